"""For how long devices may be set aside for the pods of one namespace and priority. No I/O, no clock."""

from __future__ import annotations

from typing import Final, NamedTuple

from dra_driver.api.meta import Uid

__all__ = ["Account", "Accounts"]

# Of the time: what is charged is forgotten at this rate, two hours a day.
_SHARE: Final = 1 / 12


class Account(NamedTuple):
    """Whose turns are charged together.

    Attributes:
        namespace: of the pods.
        level: their priority, negated.
    """

    namespace: str
    level: int


class _Charged(NamedTuple):
    seconds: float
    at: float

    def left(self, now: float) -> float:
        return max(0.0, self.seconds - _SHARE * (now - self.at))


class _Turn(NamedTuple):
    account: Account
    seconds: float
    begun: float


class Accounts:
    """Seconds for which devices were set aside, by namespace and priority.

    Each turn is charged when it ends, whatever came of it, and an account has room for ``most`` seconds. What
    is charged is forgotten at a slow rate. It is given back when the pod has then run for as long as the
    devices were kept for it. So those that use what was set aside for them have as many turns as they need,
    and what others can keep idle is bounded, however many pods they make.

    Args:
        most: seconds.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._charged: dict[Account, _Charged] = {}
        # Pods that have devices after their turn: not bound yet, and bound since then.
        self._served: dict[Uid, _Turn] = {}
        self._running: dict[Uid, _Turn] = {}

    def left(self, account: Account, now: float) -> float:
        """Return for how many seconds devices may be set aside for a pod of an account."""
        charged = self._charged.get(account)
        return self._most - (charged.left(now) if charged is not None else 0.0)

    def charge(self, account: Account, seconds: float, now: float) -> None:
        """Charge a turn that has ended."""
        self._charged = {a: c for a, c in self._charged.items() if c.left(now) > 0}
        charged = self._charged.get(account)
        before = charged.left(now) if charged is not None else 0.0
        self._charged[account] = _Charged(before + seconds, now)

    def served(self, pod: Uid, account: Account, seconds: float, now: float) -> None:
        """Charge the turn of a pod that has got its devices."""
        self.charge(account, seconds, now)
        self._served[pod] = _Turn(account, seconds, now)

    def bound(self, pod: Uid, now: float) -> None:
        """Note that a pod is bound, and so uses its devices from now on."""
        turn = self._served.pop(pod, None)
        if turn is not None:
            self._running[pod] = turn._replace(begun=now)

    def taken_back(self, pod: Uid) -> float | None:
        """Note that a pod has lost its devices; return the seconds of its turn; None: it had no turn."""
        turn = self._served.pop(pod, None)
        return turn.seconds if turn is not None else None

    def forget(self, pod: Uid) -> None:
        """Forget a pod that has ended or is gone."""
        self._served.pop(pod, None)
        self._running.pop(pod, None)

    def give_back(self, now: float) -> None:
        """Give back what was charged for pods that have run for long enough."""
        for pod, turn in list(self._running.items()):
            if now - turn.begun >= turn.seconds:
                del self._running[pod]
                charged = self._charged.get(turn.account)
                if charged is not None:
                    left = max(0.0, charged.left(now) - turn.seconds)
                    self._charged[turn.account] = _Charged(left, now)
