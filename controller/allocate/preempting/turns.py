"""About which waiting pod the next question of preemption is asked. No I/O, no clock.

One question is worked out at a time. Pods that are asked about in vain must not keep others from their
turn, also where they come first by priority and change makes them worth another question all the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.allocate.decide import Rank
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.doubling import doubled

__all__ = ["Turns", "WaitingPod"]

# Until a pod has its next turn: doubled with each one that was in vain.
_AGAIN_SECONDS: Final = 5.0
_LONGEST_AGAIN_SECONDS: Final = 300.0
_MOST_COUNTED: Final = 8
# The same for one that may not preempt as it is now. What that depends on is not counted as progress.
_PASSED_OVER_SECONDS: Final = 20.0


class WaitingPod(NamedTuple):
    """A pod that waits, the first one of its signature.

    Attributes:
        rank: of the pod, or of its group.
        key: of the pod.
        uid: of the pod.
        since: when it began to wait, in seconds of the clock that turns are counted by.
    """

    rank: Rank
    key: ObjectKey
    uid: Uid
    since: float


@dataclass(slots=True)
class _Turn:
    """The last turn of a pod.

    Attributes:
        at: when it was.
        due: before then there is no other one.
        number: of the turn, from 1 on.
        misses: how many turns were in vain since the last one that was not.
        progress: what had changed until then; None where that does not matter.
    """

    at: float
    due: float
    number: int
    misses: int = 0
    progress: object = None


class Turns:
    """Chooses who is asked about next.

    Every other time it is the first by rank of those that were asked about least often. In between it is
    the one that has waited longest for a turn, where namespaces take turns: so every pod has one, however
    many others there are, and one namespace cannot take those of another.
    """

    def __init__(self) -> None:
        self._last: dict[Uid, _Turn] = {}
        self._namespaces: dict[str, float] = {}
        self._by_rank = False

    def keep(self, pods: Collection[Uid], namespaces: Collection[str]) -> None:
        """Forget all pods and namespaces but these."""
        self._last = {uid: turn for uid, turn in self._last.items() if uid in pods}
        self._namespaces = {name: at for name, at in self._namespaces.items() if name in namespaces}

    def is_due(self, pod: Uid, now: float, progress: object) -> bool:
        """Return whether a pod may have a turn.

        Args:
            pod: which one.
            now: the time.
            progress: another value whenever something has changed that may lead to another answer.
        """
        turn = self._last.get(pod)
        if turn is None or now < turn.due:
            return turn is None
        # Not all that matters is counted, such as labels of pods.
        changed = turn.progress is None or turn.progress != progress
        return changed or now >= turn.due + _LONGEST_AGAIN_SECONDS

    def next(self, pods: Iterable[WaitingPod], now: float, progress: object, most: int) -> list[WaitingPod]:
        """Return those whose turn it is, the first of them first, ``most`` at the most."""
        due = [one for one in pods if self.is_due(one.uid, now, progress)]
        self._by_rank = not self._by_rank
        return heapq.nsmallest(most, due, key=self._in_order if self._by_rank else self._in_turn)

    def _in_order(self, one: WaitingPod) -> tuple[int, Rank]:
        turn = self._last.get(one.uid)
        return turn.number if turn is not None else 0, one.rank

    def _in_turn(self, one: WaitingPod) -> tuple[float, float, Rank]:
        turn = self._last.get(one.uid)
        # A namespace that is new, or was forgotten, comes after those that have waited longer.
        last = self._namespaces.get(one.key.namespace, one.since)
        return last, turn.at if turn is not None else one.since, one.rank

    def take(self, key: ObjectKey, uid: Uid, now: float, progress: object) -> None:
        """Note that a pod is asked about; that its next turn is due now, if nothing else is said."""
        before = self._last.get(uid)
        number, misses = (before.number, before.misses) if before is not None else (0, 0)
        self._last[uid] = _Turn(now, now, min(number + 1, _MOST_COUNTED), misses, progress)
        self._namespaces[key.namespace] = now

    def pass_over(self, key: ObjectKey, uid: Uid, now: float) -> None:
        """Note that a pod had its turn, and may not preempt as it is now."""
        self.take(key, uid, now, None)
        self._last[uid].due = now + _PASSED_OVER_SECONDS

    def miss(self, uid: Uid, now: float) -> None:
        """Note that the last turn of a pod was in vain."""
        if (turn := self._last.get(uid)) is not None:
            turn.due = now + doubled(_AGAIN_SECONDS, turn.misses, _LONGEST_AGAIN_SECONDS)
            turn.misses = min(turn.misses + 1, _MOST_COUNTED)

    def again(self, uid: Uid, due: float) -> None:
        """Note that the last turn of a pod was of use, and when its next one is due."""
        if (turn := self._last.get(uid)) is not None:
            turn.due, turn.misses = due, 0

    def has_changed(self, uid: Uid) -> None:
        """Note that what the last answer rested on has changed, whatever else changes until the next turn."""
        if (turn := self._last.get(uid)) is not None:
            turn.progress = None
