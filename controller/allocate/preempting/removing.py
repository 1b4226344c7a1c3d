"""Removes one pod for another: by the Eviction API, or by a deletion where a budget must be violated."""

from __future__ import annotations

import enum
from typing import Any, Final

import structlog

from dra_driver.api.core import PODS, Pod
from dra_driver.errors import ApiUnavailable, Conflict, DraError, NotFound, ServerBusy
from dra_driver.kube import EventRecorder
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["DISRUPTION_TARGET", "Outcome", "Remover"]

log = structlog.get_logger(__name__)

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The condition by which others tell a disruption from a failure (KEP-3329)."""
_TOO_MANY_REQUESTS: Final = 429


class Outcome(enum.Enum):
    """What became of an attempt to remove a pod."""

    REMOVED = "removed"
    """It is being deleted, or gone."""
    KEPT = "kept"
    """A PodDisruptionBudget keeps it for now, or whoever else may refuse its removal."""
    LATER = "later"
    """It has changed, or the API server does not answer: look again."""


class Remover:
    """Removes pods.

    A pod that is evicted gets the condition DisruptionTarget from the API server itself; for one that is
    deleted it is written first, as kube-scheduler does it.

    Args:
        client: of the API server; refuses to write when the lease is lost.
        clock: for timestamps.
        recorder: for Events.
    """

    def __init__(self, client: KubeClient, clock: Clock, recorder: EventRecorder) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder

    async def remove(self, pod: Pod, reason: str, *, violates: bool) -> Outcome:
        """Remove a pod as it was last seen, and no other one of its name.

        Args:
            pod: as it was judged: where it has changed since, it stays for now.
            reason: for people.
            violates: whether its budgets may be violated.
        """
        try:
            if violates:
                await self._delete(pod, reason)
            else:
                meta = pod.metadata
                await self._client.evict(
                    meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
                )
        except NotFound:
            return Outcome.REMOVED
        except ServerBusy as e:
            return Outcome.KEPT if e.code == _TOO_MANY_REQUESTS else Outcome.LATER
        except Conflict:
            return Outcome.LATER
        except ApiUnavailable as e:
            log.warning("no answer to the removal of a pod", pod=str(pod.key), error=str(e))
            return Outcome.LATER
        except DraError as e:
            log.warning("a pod cannot be removed", pod=str(pod.key), error=str(e))
            return Outcome.KEPT
        log.info("pod removed", pod=str(pod.key), reason=reason, violates=violates)
        self._recorder.event(PODS, pod, "Normal", "Preempted", reason)
        return Outcome.REMOVED

    async def _delete(self, pod: Pod, reason: str) -> None:
        meta = pod.metadata
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": "PreemptionByDRADriver",
            "message": reason,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        others: list[dict[str, Any]] = [
            dict(c) for c in pod.status.conditions if c.get("type") != DISRUPTION_TARGET
        ]
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": [*others, condition]},
        }
        marked = await self._client.merge_patch(PODS, meta.name, patch, meta.namespace, subresource="status")
        version = marked.metadata.resource_version
        await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, resource_version=version)
