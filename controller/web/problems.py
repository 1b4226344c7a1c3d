"""The problems of the fleet for the page: those of pools are looked at again only where something changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dra_driver.fleet import LONG_WAIT_SECONDS, Fleet, Problem, wait_problem
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import PoolID

__all__ = ["MOST_PROBLEMS", "PageProblems"]

MOST_PROBLEMS: Final = 200
"""Those that readers are sent; they are told how many there are."""


class PageProblems:
    """Keeps the problems of each pool that has some.

    Args:
        now: returns seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._changed: set[PoolID] = set()
        self._of: dict[PoolID, tuple[Problem, ...]] = {}

    def changed(self, pool: PoolID) -> None:
        """Look at a pool again."""
        self._changed.add(pool)

    def look(self, fleet: Fleet, reason_of: Callable[..., str]) -> tuple[tuple[Problem, ...], int]:
        """Return the first problems, and how many there are: of nodes and devices, then of pods."""
        for pool in self._changed:
            found = fleet.pool_problems(pool)
            if found:
                self._of[pool] = found
            else:
                self._of.pop(pool, None)
        self._changed.clear()
        total = sum(map(len, self._of.values()))
        first: list[Problem] = []
        for pool in sorted(self._of):
            first += self._of[pool][: MOST_PROBLEMS - len(first)]
            if len(first) == MOST_PROBLEMS:
                break
        before = rfc3339(self._now() - LONG_WAIT_SECONDS)
        waits, waiting = fleet.long_waits(reason_of, before, MOST_PROBLEMS - len(first))
        return (*first, *map(wait_problem, waits)), total + waiting
