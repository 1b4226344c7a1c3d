"""How many pods may be removed in the long run, over all preemptors. No I/O, no clock."""

from __future__ import annotations

__all__ = ["VictimRate"]


class VictimRate:
    """A budget of victims that fills up with time, and can be in debt.

    A round needs all of its victims or none, so a large one may begin whenever there is anything left; then
    nobody else is removed until its debt is paid.

    Args:
        per_minute: how many victims there may be in the long run, and how many at once after a pause.
        now: the time, in seconds of any clock.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._most = per_minute
        self._left = per_minute
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until a round may begin; 0: it may begin now."""
        self._fill(now)
        return 0.0 if self._left > 0 else (1e-9 - self._left) * 60.0 / self._most

    def take(self, victims: int, now: float) -> None:
        """Charge the victims of a round that begins."""
        self._fill(now)
        self._left -= victims

    def _fill(self, now: float) -> None:
        elapsed, self._at = max(0.0, now - self._at), now
        self._left = min(self._most, self._left + elapsed * self._most / 60.0)
