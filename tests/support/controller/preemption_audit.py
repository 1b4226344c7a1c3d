"""What must hold of every removal for another pod, looked at after every single write of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.fleet import OPEN, shown_preemption

__all__ = ["PreemptionAudit"]


class PreemptionAudit:
    """Looks for victims without cause, and for second rounds within the time-out.

    Evictions are the controller's alone: people and other controllers delete pods. One may be on its way when
    the pod that it is for goes, or is served by others.

    Args:
        seconds: the time-out of a round.
        on_its_way: seconds for which a request may be.

    Attributes:
        victims: how many pods were evicted.
    """

    def __init__(self, seconds: float, on_its_way: float = 2.0) -> None:
        self._seconds = seconds
        self._on_its_way = on_its_way
        # Victim → the highest priority that it was to go for, and when that was so.
        self._wanted: dict[str, tuple[int, float]] = {}
        self._evicted: set[Uid] = set()
        self._rounds: dict[Uid, float] = {}
        self.victims = 0

    def look(self, pods: Iterable[Pod]) -> Iterator[str]:
        """Yield what is wrong."""
        pods, now = list(pods), asyncio.get_running_loop().time()
        wanted: dict[str, list[Pod]] = {}
        for pod in pods:
            shown = shown_preemption(pod)
            if shown is None or shown.reason != OPEN:
                continue
            for victim in shown.record.victims:
                wanted.setdefault(victim, []).append(pod)
            before = self._rounds.setdefault(pod.metadata.uid, shown.seconds)
            if before != shown.seconds:
                if shown.seconds - before < self._seconds - 1:
                    yield f"a second round for {pod.key} after {shown.seconds - before:.0f} s"
                self._rounds[pod.metadata.uid] = shown.seconds
        for victim, for_whom in wanted.items():
            self._wanted[victim] = (max(p.spec.priority for p in for_whom), now)
        for pod in pods:
            uid = pod.metadata.uid
            if uid in self._evicted or not _is_evicted(pod):
                continue
            self._evicted.add(uid)
            self.victims += 1
            priority, at = self._wanted.get(uid, (pod.spec.priority, now))
            if priority <= pod.spec.priority or now - at > self._on_its_way:
                yield f"{pod.key} is evicted without cause: {[str(p.key) for p in wanted.get(uid, [])]}"


def _is_evicted(pod: Pod) -> bool:
    return any(
        c.get("type") == "DisruptionTarget" and c.get("reason") == "EvictionByEvictionAPI"
        for c in pod.status.conditions
    )
