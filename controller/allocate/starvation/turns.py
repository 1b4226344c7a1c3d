"""For which pod devices are set aside next, and until when. Plain values and rules: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.allocate.decide import PodID, Rank
from controller.allocate.starvation.accounts import Account, Accounts
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.doubling import doubled

__all__ = ["Head", "Holding", "StarvationTurns"]

# Doubling ends there; devices are set aside for no longer for all pods of a namespace and priority together.
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

    @property
    def id(self) -> PodID:
        """The pod."""
        return PodID(self.key, self.uid)

    @property
    def account(self) -> Account:
        """The account that its turns are charged to."""
        return Account(self.key.namespace, self.rank.level)


@dataclass(frozen=True, slots=True)
class Holding:
    """The pod for which devices are set aside.

    Attributes:
        head: the pod.
        begun: when its turn began.
        until: when others have their turn.
    """

    head: Head
    begun: float
    until: float


class StarvationTurns:
    """Gives one pod at a time its turn.

    Of the pods that have waited for long enough those of the highest priority have their turns; of these, one
    of the namespace that was looked at least recently; of these, the oldest. A turn ends when the pod waits
    no longer, and in any case after a time. The next turn of the same pod lasts twice as long, so that it
    outlasts what holds its devices. After a turn in vain no pod of that priority, or of a lower one, has a
    turn for half as long, and for as long as pods wait before the first at least, so that others may use the
    devices. All turns are charged (``Accounts``). A pod that would not fit if all devices were free has no
    turn.

    Args:
        seconds: for which a pod waits before its turn; the first one lasts twice as long. If 0, no pod has a
            turn.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._longest = max(_LONGEST_SECONDS, 2 * seconds)
        self._accounts = Accounts(self._longest)
        self._number = 0
        # By namespace: number of its last look.
        self._looks: dict[str, int] = {}
        # By pod: turns that ended without success; looks that found nothing for it; when it may have the
        # next turn.
        self._times: dict[Uid, int] = {}
        self._misses: dict[Uid, int] = {}
        self._next: dict[Uid, float] = {}
        # By level: until when pods of it, and of those after it, have no turn.
        self._pauses: dict[int, float] = {}
        self.holding: Holding | None = None

    # --- whose turn it is -----------------------------------------------------------------------------------

    def candidate(
        self, heads: Iterable[Head], now: float, is_left_out: Callable[[Head], bool] = lambda _: False
    ) -> Head | None:
        """Return the pod for which devices are to be set aside now; None where nothing changes.

        Args:
            heads: the pods that wait.
            now: the time.
            is_left_out: returns whether a pod is to have no turn.
        """
        if not self._seconds:
            return None
        self._accounts.give_back(now)
        ripe = sorted(
            (head for head in heads if self._has_waited_enough(head, now)),
            key=lambda h: (h.rank.level, self._looks.get(h.key.namespace, 0), h.rank),
        )
        least = 2 * self._seconds
        for head in ripe:
            if self._accounts.left(head.account, now) >= least and not is_left_out(head):
                return head
        return None

    def _has_waited_enough(self, head: Head, now: float) -> bool:
        if self.holding is not None and head.rank.level >= self.holding.head.rank.level:
            return False
        if any(now < until and head.rank.level >= level for level, until in self._pauses.items()):
            return False
        return now >= max(head.since + self._seconds, self._next.get(head.uid, 0.0))

    def nothing_found(self, head: Head, now: float) -> None:
        """Note that there is nothing to be set aside for a pod: it is looked at again later."""
        self._looked(head)
        misses = self._misses.get(head.uid, 0)
        self._misses[head.uid] = misses + 1
        self._next[head.uid] = now + doubled(self._seconds, misses, self._longest)

    def _looked(self, head: Head) -> None:
        self._number += 1
        self._looks[head.key.namespace] = self._number

    # --- turns ----------------------------------------------------------------------------------------------

    def begin(self, head: Head, now: float) -> Holding:
        """Begin the turn of a pod, in place of one of lower priority perhaps."""
        self.interrupt(now)
        self._looked(head)
        times = self._times.get(head.uid, 0)
        seconds = doubled(self._seconds, times + 1, self._accounts.left(head.account, now))
        self.holding = Holding(head, now, now + seconds)
        return self.holding

    def serve(self, now: float) -> None:
        """End the turn of the pod that has it: it has its devices, as far as it can be placed."""
        turn, self.holding = self.holding, None
        if turn is not None:
            self._accounts.served(turn.head.uid, turn.head.account, now - turn.begun, now)

    def fail(self, now: float) -> None:
        """End the turn of the pod that has it in vain: its time is over, or the pod is gone."""
        turn = self.holding
        if turn is not None:
            self.interrupt(now)
            self._times[turn.head.uid] = self._times.get(turn.head.uid, 0) + 1
            self._next[turn.head.uid] = now + self._seconds
            self._rest(turn.head.rank.level, now - turn.begun, now)

    def interrupt(self, now: float) -> None:
        """End the turn of the pod that has it, through no fault of it."""
        turn, self.holding = self.holding, None
        if turn is not None:
            self._accounts.charge(turn.head.account, now - turn.begun, now)

    def _rest(self, level: int, seconds: float, now: float) -> None:
        self._pauses = {of: until for of, until in self._pauses.items() if until > now}
        self._pauses[level] = max(self._pauses.get(level, 0.0), now + max(self._seconds, seconds / 2))

    # --- what becomes of pods -------------------------------------------------------------------------------

    def taken_back(self, uid: Uid, level: int, now: float) -> None:
        """Note that devices of a pod were taken back before it was bound: its turn was in vain."""
        seconds = self._accounts.taken_back(uid)
        if seconds is not None:
            self._rest(level, seconds, now)

    def bound(self, uid: Uid, now: float) -> None:
        """Note that a pod is bound."""
        self._accounts.bound(uid, now)

    def forget(self, uid: Uid) -> None:
        """Forget a pod that has ended or is gone."""
        self._accounts.forget(uid)
        self._times.pop(uid, None)
        self._misses.pop(uid, None)
        self._next.pop(uid, None)
