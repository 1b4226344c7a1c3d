"""A queue of keys: each key is worked on by one worker at a time, and once for any number of requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import operator
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

import structlog

from dra_driver.errors import Conflict, DraError
from dra_driver.kube.backoff import Backoff

__all__ = ["WorkQueue"]

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger(__name__)


class _Turns(Generic[K]):
    """The keys of one level: tenants take turns, and each has its keys in the order of their ages.

    Of each tenant those that are there when its first one is taken go before all that come later, however old
    those are: what comes again and again must not keep the others waiting.
    """

    def __init__(self) -> None:
        # The first tenant is the next one. Of each: keys in order, and those that came since.
        self._tenants: OrderedDict[Hashable, tuple[deque[K], list[tuple[Any, int, K]]]] = OrderedDict()
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def put(self, key: K, tenant: Hashable, age: Any) -> None:
        _, later = self._tenants.setdefault(tenant, (deque(), []))
        later.append((age, next(self._numbers), key))

    def take(self) -> K:
        tenant, (keys, later) = next(iter(self._tenants.items()))
        if not keys:
            later.sort(key=operator.itemgetter(0, 1))
            keys.extend(key for _, _, key in later)
            later.clear()
        key = keys.popleft()
        if keys or later:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]
        return key

    def had_its_turn(self, tenant: Hashable) -> None:
        if tenant in self._tenants:
            self._tenants.move_to_end(tenant)

    def remove(self, key: K, tenant: Hashable) -> None:
        keys, later = self._tenants[tenant]
        if key in keys:
            keys.remove(key)
        later[:] = [entry for entry in later if entry[2] != key]
        if not keys and not later:
            del self._tenants[tenant]


class _Ready(Generic[K]):
    """Keys to be worked on: some before all others, then level by level."""

    def __init__(self, tenant: Callable[[K], Hashable], order: Callable[[K], tuple[int, Any]]) -> None:
        self._tenant = tenant
        self._order = order
        self._first: deque[K] = deque()
        self._levels: dict[int, _Turns[K]] = {}
        # Kept, because the order of a key may be another one later.
        self._level_of: dict[K, int] = {}

    def put(self, key: K) -> None:
        level, age = self._order(key)
        self._level_of[key] = level
        self._levels.setdefault(level, _Turns()).put(key, self._tenant(key), age)

    def put_first(self, key: K) -> None:
        """Move a key that is there before all others."""
        level = self._level_of.pop(key, None)
        if level is None:
            self._first.remove(key)
        else:
            self._levels[level].remove(key, self._tenant(key))
            self._tidy(level)
        self._first.appendleft(key)

    def has(self, highest: float) -> bool:
        """Return whether there is a key to be taken, of this level or a lesser one."""
        return bool(self._first) or bool(self._levels and min(self._levels) <= highest)

    def take(self) -> K:
        if self._first:
            key = self._first.popleft()
            for turns in self._levels.values():
                turns.had_its_turn(self._tenant(key))
            return key
        level = min(self._levels)
        key = self._levels[level].take()
        del self._level_of[key]
        self._tidy(level)
        return key

    def _tidy(self, level: int) -> None:
        if not self._levels[level]:
            del self._levels[level]


class WorkQueue(Generic[K]):
    """Deduplicating queue with delayed and rate-limited requeues.

    A key that is added while a worker has it is handed out again when that worker is done, so no change is
    lost and no two workers ever hold one key.

    Args:
        name: for logs and metrics.
        base_delay: seconds after the first failure.
        max_delay: the most seconds after a failure.
        tenant: of a key: keys of several tenants take turns, however many one of them has. If None, all keys
            have one.
        order: level and age of a key: keys of a lesser level go first, whatever their tenants; of one tenant
            and level those of a lesser age do. If None, all keys are of one level, in the order in which they
            came.
    """

    def __init__(
        self,
        name: str,
        *,
        base_delay: float = 0.05,
        max_delay: float = 60.0,
        tenant: Callable[[K], Hashable] | None = None,
        order: Callable[[K], tuple[int, Any]] | None = None,
    ) -> None:
        self.name = name
        self._base, self._cap = base_delay, max_delay
        self._ready = _Ready(tenant or (lambda _: None), order or (lambda _: (0, 0)))
        # Levels that keep back those above them; workers that wait for a key.
        self._holding: Counter[int] = Counter()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waiting: set[K] = set()  # in _ready
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    @property
    def idle(self) -> bool:
        """Nothing ready and nothing in work (delayed keys do not count)."""
        return not self._waiting and not self._active

    def add(self, key: K) -> None:
        """Ask for the key to be worked on as soon as possible; cancel a delay."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put(key)
            self._wake_one()

    def add_first(self, key: K) -> None:
        """Ask for the key to be worked on before all others; cancel a delay."""
        self.add(key)
        if key in self._waiting:
            self._ready.put_first(key)
            self._wake_one()

    def add_after(self, key: K, delay: float) -> None:
        """Ask for the key after ``delay`` seconds, or earlier where an earlier request stands."""
        loop = asyncio.get_running_loop()
        present = self._timers.get(key)
        if present is not None:
            if present.when() <= loop.time() + delay:
                return
            present.cancel()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def add_rate_limited(self, key: K) -> float:
        """Ask for the key after a delay that grows with every call until ``forget``; return the delay."""
        backoff = self._backoffs.setdefault(key, Backoff(self._base, self._cap))
        delay = backoff.next()
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return the number of rate-limited requests since the last ``forget``."""
        backoff = self._backoffs.get(key)
        return backoff.failures if backoff else 0

    def forget(self, key: K) -> None:
        """Note that the key's work succeeded: its next failure starts with the shortest delay."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """Wait for the next key and return it; give it back with ``done``."""
        while not self._has_some():
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):  # passed over by ``_wake_one``
                        self._idle.remove(waiter)
                elif self._has_some():
                    self._wake_one()
                raise
        key = self._ready.take()
        if self._has_some():
            self._wake_one()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    @contextlib.contextmanager
    def holding(self, level: int) -> Iterator[None]:
        """Hand out no key of a greater level within the block: what comes of it may go before those."""
        self._holding[level] += 1
        try:
            yield
        finally:
            self._holding[level] -= 1
            if not self._holding[level]:
                del self._holding[level]
            if self._has_some():
                self._wake_one()

    def _has_some(self) -> bool:
        return self._ready.has(min(self._holding, default=math.inf))

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def done(self, key: K) -> None:
        """Note that the worker is finished with the key."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def process(self, work: Callable[[K], Awaitable[None]], *, workers: int = 1) -> None:
        """Work on keys until cancelled. A ``DraError`` is logged and the key tried again later."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self.get()
            # Neither getting a key that is there nor work without I/O gives way: thousands of keys in a row
            # would hold up the renewal of the lease until it is lost.
            await asyncio.sleep(0)
            try:
                await work(key)
            except Conflict as e:
                # Expected under optimistic concurrency: the informer is about to show the newer object.
                self.add_rate_limited(key)
                log.debug("conflict, will be tried again", queue=self.name, key=str(key), error=str(e))
            except DraError as e:
                delay = self.add_rate_limited(key)
                log.warning(
                    "work failed, will be tried again",
                    queue=self.name,
                    key=str(key),
                    error=f"{type(e).__name__}: {e}",
                    retry_in=round(delay, 2),
                )
            except Exception:
                # A bug that one object meets must not stop the work on all others.
                delay = self.add_rate_limited(key)
                log.exception("unexpected error", queue=self.name, key=str(key), retry_in=round(delay, 2))
            else:
                if key not in self._timers:
                    self.forget(key)
            finally:
                self.done(key)

    def close(self) -> None:
        """Cancel all delayed requests."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
