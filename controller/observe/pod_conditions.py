"""Writes one condition of pods. What it says, and when it is worth a write, others decide."""

from __future__ import annotations

import enum
from typing import Any

import structlog

from dra_driver.api.core import PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.ports import KubeClient

__all__ = ["PodCondition", "Written"]

log = structlog.get_logger(__name__)


class Written(enum.Enum):
    """What became of a write."""

    DONE = "done"
    GONE = "gone"
    """The pod is gone, or another one has its name."""
    FAILED = "failed"
    """It may be tried again."""


class PodCondition:
    """A condition that is written by server-side apply.

    Each has a field manager of its own: an apply of only one of two conditions of one manager would remove
    the other one.

    Args:
        client: of the API server.
        kind: type of the condition.
        field_manager: that owns it.
    """

    def __init__(self, client: KubeClient, kind: str, field_manager: str) -> None:
        self._client = client
        self._kind = kind
        self._field_manager = field_manager
        self._is_failing = False

    async def apply(
        self, pod: ObjectKey, uid: str, said: dict[str, str], since: str, *, version: str = ""
    ) -> None:
        """Write the condition of a pod.

        Args:
            pod: whose.
            uid: of the pod.
            said: ``status``, ``reason`` and ``message``.
            since: ``lastTransitionTime``.
            version: resourceVersion of the pod that is to be written; if empty, any.

        Raises:
            DraError: it was not written, or there was no answer.
        """
        meta = {"name": pod.name, "namespace": pod.namespace, "uid": uid}
        if version:
            meta["resourceVersion"] = version
        body: dict[str, Any] = {
            "apiVersion": PODS.api_version,
            "kind": PODS.kind,
            "metadata": meta,
            "status": {"conditions": [{"type": self._kind, **said, "lastTransitionTime": since}]},
        }
        await self._client.apply(
            PODS, body, field_manager=self._field_manager, subresource="status", force=True
        )

    async def try_to_apply(self, pod: ObjectKey, uid: str, said: dict[str, str], since: str) -> Written:
        """Write the condition of a pod; the first of several failures in a row is logged."""
        try:
            await self.apply(pod, uid, said, since)
        except (NotFound, Conflict):
            return Written.GONE
        except DraError as e:
            if not self._is_failing:
                log.warning(
                    "the condition of a pod cannot be written", pod=str(pod), type=self._kind, error=str(e)
                )
            self._is_failing = True
            return Written.FAILED
        self._is_failing = False
        return Written.DONE
