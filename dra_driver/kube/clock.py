"""The real clock, and times as the API writes them."""

from __future__ import annotations

import datetime
import time

__all__ = ["SystemClock", "micro_time", "rfc3339", "seconds_of"]


class SystemClock:
    """Implements ``ports.Clock`` with the clocks of the machine."""

    # On Linux time.monotonic stands still while the machine is suspended; a lease runs out all the same.
    _MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        return time.clock_gettime(self._MONOTONIC)


def seconds_of(timestamp: str) -> float:
    """Return the seconds since the epoch of a timestamp as API objects have them (RFC 3339).

    Raises:
        ValueError: it is none.
    """
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def rfc3339(seconds: float) -> str:
    """Write a ``metav1.Time``: UTC with whole seconds, ``2026-01-02T03:04:05Z``."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(seconds: float) -> str:
    """Write a ``metav1.MicroTime``: exactly six decimals; the API server answers 400 to any other number."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
