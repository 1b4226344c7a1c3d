"""Whose turn it is to have devices set aside, and until when. Plain values and rules: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.allocate.decide import Rank
from dra_driver.api.meta import ObjectKey, Uid

__all__ = ["Head", "Holding", "Starving"]

# Doubling ends there.
_LONGEST_SECONDS: Final = 3600.0


class Head(NamedTuple):
    """The first pod of those that ask for the same.

    Attributes:
        rank: of the pod, or of its group.
        key: of the pod.
        uid: of the pod.
        since: when it was first looked at, or could have been.
    """

    rank: Rank
    key: ObjectKey
    uid: Uid
    since: float


@dataclass(frozen=True, slots=True)
class Holding:
    """The pod for which devices are set aside.

    Attributes:
        head: the pod.
        until: when others have their turn.
    """

    head: Head
    until: float


class Starving:
    """Gives one pod at a time its turn.

    Of the pods that have waited for long enough those of the highest priority have their turns; of these, one
    of the namespace that had one least recently; of these, the oldest. A turn ends when the pod waits no
    longer, and in any case after a time. Then no pod has a turn for as long as pods wait before the first, so
    that others may use the devices. The next turn of the same pod lasts twice as long, so that it outlasts
    what holds its devices. A pod that would not fit if all devices were free has no turn.

    Args:
        seconds: for which a pod waits before its turn; the first one lasts twice as long. If 0, no pod has a
            turn.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = 0
        # By namespace: number of its last turn.
        self._turns: dict[str, int] = {}
        # Times that a pod's turn has ended without success, or that nothing was found for it; when it may
        # have the next one.
        self._times: dict[Uid, int] = {}
        self._next: dict[Uid, float] = {}
        self._pause = 0.0
        self.holding: Holding | None = None

    def candidate(self, heads: Iterable[Head], now: float) -> Head | None:
        """Return the pod for which devices are to be set aside now; None where nothing changes."""
        if not self._seconds or now < self._pause:
            return None
        found = min(
            (head for head in heads if self._is_ripe(head, now)),
            key=lambda h: (h.rank.level, self._turns.get(h.key.namespace, 0), h.rank),
            default=None,
        )
        if found is None or self.holding is None:
            return found
        return found if found.rank.level < self.holding.head.rank.level else None

    def _is_ripe(self, head: Head, now: float) -> bool:
        return now >= max(head.since + self._seconds, self._next.get(head.uid, 0.0))

    def begin(self, head: Head, now: float) -> Holding:
        """Begin the turn of a pod."""
        self._number += 1
        self._turns[head.key.namespace] = self._number
        times = self._times.get(head.uid, 0)
        longest = max(_LONGEST_SECONDS, self._seconds)
        seconds = min(self._seconds * float(2 << min(times, 16)), longest)
        self.holding = Holding(head, now + seconds)
        return self.holding

    def end(self) -> None:
        """End the turn of the pod that has it; it waits no longer."""
        self.holding = None

    def expire(self, now: float) -> None:
        """End the turn of the pod that has it; its time is over."""
        if self.holding is not None:
            self.fail(self.holding.head, now)
            self._pause = now + self._seconds
            self.holding = None

    def fail(self, head: Head, now: float) -> None:
        """Note that a pod was not served in its turn, or that there is nothing to be set aside for it."""
        self._times[head.uid] = self._times.get(head.uid, 0) + 1
        self._next[head.uid] = now + self._seconds

    def forget(self, uid: Uid) -> None:
        """Forget a pod that is gone."""
        self._times.pop(uid, None)
        self._next.pop(uid, None)
