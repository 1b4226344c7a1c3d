"""Growing delays with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Exponential delays: each draws between half of the step and the whole step, so that clients spread.

    Attributes:
        base: first step, in seconds.
        cap: longest step, in seconds.
        factor: growth from step to step.
    """

    base: float = 0.2
    cap: float = 30.0
    factor: float = 2.0
    _failures: int = field(default=0, init=False)

    @property
    def failures(self) -> int:
        """Number of delays handed out since the last ``reset``."""
        return self._failures

    def next(self) -> float:
        """Return the delay before the next try, in seconds."""
        # The exponent is bounded: 2.0**1024 overflows after weeks of outage.
        step = min(self.cap, self.base * self.factor ** min(self._failures, 64))
        self._failures += 1
        return step * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Start again with the shortest delay, after a success."""
        self._failures = 0
