"""Pods that kube-scheduler may be binding with claims that are deallocated by now."""

from __future__ import annotations

from controller.allocate.attempts import Attempts
from controller.allocate.decide import GroupFinder, PodID, claims_of
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.core import Pod
from dra_driver.api.names import CLAIM_FINALIZER
from dra_driver.kube import Informer

__all__ = ["Settling"]


class Settling:
    """How long claims of a pod stay unallocated for the sake of other users of theirs.

    Args:
        attempts: what kube-scheduler was last seen to do with pods.
        groups: finds the other members of a pod's group.
        assume_cache: the claims.
        pods: all namespaces.
    """

    def __init__(
        self, attempts: Attempts, groups: GroupFinder, assume_cache: AssumeCache, pods: Informer[Pod]
    ) -> None:
        self._attempts = attempts
        self._groups = groups
        self._assume_cache = assume_cache
        self._pods = pods

    def seconds(self, pod: Pod, now: float) -> float:
        """Return for how many seconds kube-scheduler may be binding a pod whose claims would be allocated.

        Args:
            pod: whose claims, or whose group's, would be allocated.
            now: monotonic time.
        """
        found = self._alone(pod, now)
        if self._attempts.may_be_unsettled(now):
            # All members are decided about together. Those with our gate were never with kube-scheduler.
            for other in self._groups.beside(pod):
                if not (other.spec.scheduling_gates or other.spec.node_name):
                    found = max(found, self._alone(other, now))
        return found

    def _alone(self, pod: Pod, now: float) -> float:
        """Return for how many seconds kube-scheduler may be binding a pod that uses claims of this one."""
        claims = [c for key in claims_of(pod) if (c := self._assume_cache.get(key)) is not None]
        pending = [c for c in claims if c.status.allocation is None]
        was_allocated = any(CLAIM_FINALIZER in (c.metadata.finalizers or ()) for c in pending)
        self._attempts.look(pod, now, was_allocated=was_allocated)
        if not self._attempts.may_be_unsettled(now):
            return 0.0
        return max((self._attempts.unsettled_user(c.key, self._find, now) for c in pending), default=0.0)

    def _find(self, pod_id: PodID) -> Pod | None:
        pod = self._pods.get(pod_id.key)
        return pod if pod is not None and pod.metadata.uid == pod_id.uid else None
