"""Whether an answer still holds, although what it rests on may have changed since it was worked out.

Answers of the fast lane are worked out one after the other, and each knows those before it. So an answer that
is put into effect spoils none that came after it from the same life of the worker. An answer of the slow lane
knows only what there was when its copy of the worker was made.

Devices that were taken from a pool since do not spoil an answer by themselves: whether its own are among them
is looked at when it is put into effect. Otherwise an answer that takes long, over pools where much happens,
would be dropped each time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import PoolID

__all__ = ["Freshness", "Knowledge"]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What an answer knows.

    Attributes:
        version: of the last change.
        life: of the worker that gave it; 0: before the first.
        answers: how many answers with allocations had been given before in this life.
        slow: whether it is one of the slow lane: those after it do not know it.
    """

    version: int
    life: int = 0
    answers: int = 0
    slow: bool = False


class Freshness:
    """When pools and claims last changed, as far as an answer is awaited that may not know it."""

    def __init__(self) -> None:
        self._pools: dict[PoolID, int] = {}
        self._taken: dict[PoolID, int] = {}
        self._claims: dict[ObjectKey, int] = {}
        self._all = 0
        # Which answer last took devices of a pool: life and number.
        self._own: dict[PoolID, tuple[int, int]] = {}
        self._accepting: Knowledge | None = None
        self._life = 0
        self._awaited: Counter[int] = Counter()

    @contextlib.contextmanager
    def awaiting(self, version: int) -> Iterator[None]:
        """Remember what changes after this version for the length of the block."""
        self._awaited[version] += 1
        try:
            yield
        finally:
            self._awaited[version] -= 1
            if not self._awaited[version]:
                del self._awaited[version]
            if not self._awaited:
                # No answer is awaited that could be older.
                self._pools.clear()
                self._taken.clear()
                self._claims.clear()
                self._own.clear()

    def begin(self, life: int) -> None:
        """Note that a worker begins another life: it knows everything that is in effect by now."""
        self._life = life

    @contextlib.contextmanager
    def accepting(self, knowledge: Knowledge) -> Iterator[None]:
        """Note that what is taken in the block is what an answer says."""
        self._accepting = knowledge
        try:
            yield
        finally:
            self._accepting = None

    # --- changes --------------------------------------------------------------------------------------------

    def pool_changed(self, pool: PoolID, version: int) -> None:
        """Note that the devices of a pool, or its owner, have changed."""
        if self._awaited:
            self._pools[pool] = version

    def claim_changed(self, key: ObjectKey, version: int) -> None:
        """Note that a claim has changed."""
        if self._awaited:
            self._claims[key] = version

    def all_changed(self, version: int) -> None:
        """Note that any device may have changed."""
        self._all = version

    def taken(self, allocation: AllocationResult, version: int) -> None:
        """Note that devices are taken that were not."""
        if not self._awaited:
            return
        by = self._accepting
        for pool in {PoolID(r.driver, r.pool) for r in allocation.devices.results}:
            if by is not None and by.life == self._life and not by.slow:
                self._own[pool] = (by.life, by.answers + 1)
            else:
                self._taken[pool] = version

    # --- questions ------------------------------------------------------------------------------------------

    def holds_for_pool(self, pool: PoolID, knowledge: Knowledge) -> bool:
        """Return whether an answer knows the devices of a pool, and its owner."""
        return max(self._pools.get(pool, 0), self._all) <= knowledge.version

    def knows_taken(self, pool: PoolID, knowledge: Knowledge) -> bool:
        """Return whether an answer knows which devices of a pool are taken."""
        if self._taken.get(pool, 0) > knowledge.version:
            return False
        own = self._own.get(pool)
        if own is None or own[0] < knowledge.life:
            return True
        life, number = own
        return life == knowledge.life and (not knowledge.slow or number <= knowledge.answers)

    def holds_for_claim(self, key: ObjectKey, knowledge: Knowledge) -> bool:
        """Return whether an answer knows the newest version of a claim."""
        return self._claims.get(key, 0) <= knowledge.version

    def is_undecided(self, pool: PoolID) -> bool:
        """Return whether an answer is awaited that may not know the last change of a pool."""
        changed = self._pools.get(pool, 0)
        return any(version < changed for version in self._awaited)
