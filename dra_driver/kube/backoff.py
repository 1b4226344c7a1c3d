"""Growing delays with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dra_driver.doubling import doubled

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Exponential delays: each draws between half of the step and the whole step, so that clients spread.

    Attributes:
        base: first step, in seconds.
        cap: longest step, in seconds.
    """

    base: float = 0.2
    cap: float = 30.0
    _failures: int = field(default=0, init=False)

    @property
    def failures(self) -> int:
        """Number of delays handed out since the last ``reset``."""
        return self._failures

    def next(self) -> float:
        """Return the delay before the next try, in seconds."""
        step = doubled(self.base, self._failures, self.cap)
        self._failures += 1
        return step * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._failures = 0
