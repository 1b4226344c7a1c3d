"""Pods that kube-scheduler may be binding with claims that are deallocated by now."""

from __future__ import annotations

from controller.allocate.attempts import Attempts
from controller.allocate.decide import GroupFinder
from controller.allocate.state.known_pods import KnownPods
from dra_driver.api.core import Pod
from dra_driver.api.names import CLAIM_FINALIZER

__all__ = ["RebindGuard"]


class RebindGuard:
    """How long claims of a pod stay unallocated for the sake of other users of theirs.

    Args:
        attempts: what kube-scheduler was last seen to do with pods.
        groups: finds the other members of a pod's group.
        pods: all namespaces.
    """

    def __init__(self, attempts: Attempts, groups: GroupFinder, pods: KnownPods) -> None:
        self._attempts = attempts
        self._groups = groups
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
        pending = [c for c in self._pods.claims(pod) if c.status.allocation is None]
        was_allocated = any(CLAIM_FINALIZER in (c.metadata.finalizers or ()) for c in pending)
        self._attempts.look(pod, now, was_allocated=was_allocated)
        if not self._attempts.may_be_unsettled(now):
            return 0.0
        return max((self._attempts.unsettled_user(c.key, self._pods.find, now) for c in pending), default=0.0)
