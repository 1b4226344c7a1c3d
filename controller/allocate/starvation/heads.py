"""The first pod of each signature, and for how long it has waited."""

from __future__ import annotations

from typing import Final

from controller.allocate.decide import is_ending
from controller.allocate.pending import PendingPods
from controller.allocate.starvation.turns import Head
from controller.allocate.state.known_pods import KnownPods
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.api.names import SET_ASIDE_CONDITION
from dra_driver.kube import Handler
from dra_driver.kube.clock import seconds_of
from dra_driver.ports import Clock
from dra_driver.resourceclaim import foreign_gates

__all__ = ["WaitingHeads"]

# Pods that waited when the controller started were created before it could look at them.
_START_SECONDS: Final = 30.0


class WaitingHeads:
    """Knows since when each pod waits.

    Args:
        pending: pods that could not be served.
        clock: for the times for which pods wait.
        pods: all namespaces.
    """

    def __init__(self, pending: PendingPods, clock: Clock, pods: KnownPods) -> None:
        self._pending = pending
        self._clock = clock
        self._pods = pods
        self._started = clock.monotonic()
        self._since: dict[Uid, float] = {}
        pods.follow(Handler(deleted=self._forget))

    def _forget(self, pod: Pod) -> None:
        self._since.pop(pod.metadata.uid, None)

    def look(self, now: float) -> list[Head]:
        """Return the first pod of each signature, in no order; note since when all pods wait."""
        for key in self._pending:
            pod = self._pods.get(key)
            if pod is not None and pod.metadata.uid not in self._since:
                self._since[pod.metadata.uid] = now - self._waited_before(pod, now)
        heads: list[Head] = []
        for rank, key in self._pending.first_of_each():
            pod = self._pods.get(key)
            if pod is not None and pod.metadata.uid in self._since:
                heads.append(Head(rank, key, pod.metadata.uid, self._since[pod.metadata.uid]))
        return heads

    def _waited_before(self, pod: Pod, now: float) -> float:
        """Return the seconds for which a pod had waited before this process saw that, after its last turn."""
        ended = (c for c in pod.status.conditions if c.get("type") == SET_ASIDE_CONDITION)
        turns = (c.get("lastTransitionTime") for c in ended if c.get("status") == "False")
        times = [str(t) for t in (pod.metadata.creation_timestamp, *turns) if t]
        if not times or now - self._started > _START_SECONDS:
            return 0.0
        return max(0.0, self._clock.now() - max(map(seconds_of, times)))

    def waits(self, head: Head) -> bool:
        """Return whether a pod is still there and waits."""
        pod = self._pods.find(head.id)
        return pod is not None and head.key in self._pending and not (is_ending(pod) or foreign_gates(pod))

    def longest(self) -> float:
        """Return for how many seconds the pod waits that waits longest; 0: none waits."""
        now = self._clock.monotonic()
        pods = (self._pods.get(key) for key in self._pending)
        known = (self._since.get(pod.metadata.uid, now) for pod in pods if pod is not None)
        return now - min(known, default=now)
