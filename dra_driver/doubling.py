"""Times that double from one attempt in vain to the next."""

from __future__ import annotations

from typing import Final

__all__ = ["doubled"]

# 2**1024 is no float any more, which an outage of weeks would reach.
_MOST_DOUBLINGS: Final = 64


def doubled(seconds: float, times: int, longest: float) -> float:
    """Return a time that has been doubled so many times (0 or less: not at all), ``longest`` at the most."""
    return min(seconds * float(1 << min(max(times, 0), _MOST_DOUBLINGS)), longest)
