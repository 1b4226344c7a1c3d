"""A queue of keys: each key is worked on by one worker at a time, and once for any number of requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from dra_driver.errors import Conflict, DraError
from dra_driver.kube.backoff import Backoff

__all__ = ["WorkQueue"]

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger(__name__)


class _Turns(Generic[K]):
    """Keys in the order in which they came, but tenants take turns."""

    def __init__(self, tenant: Callable[[K], Hashable]) -> None:
        self._tenant = tenant
        # The first tenant is the next one.
        self._keys: OrderedDict[Hashable, deque[K]] = OrderedDict()
        self._some: asyncio.Queue[None] = asyncio.Queue()

    def put(self, key: K) -> None:
        """Add a key."""
        self._keys.setdefault(self._tenant(key), deque()).append(key)
        self._some.put_nowait(None)

    def put_first(self, key: K) -> None:
        """Add a key, or move it, before all others."""
        tenant = self._tenant(key)
        keys = self._keys.setdefault(tenant, deque())
        if key in keys:
            keys.remove(key)
        else:
            self._some.put_nowait(None)
        keys.appendleft(key)
        self._keys.move_to_end(tenant, last=False)

    async def get(self) -> K:
        """Wait for a key and take it."""
        await self._some.get()
        tenant, keys = next(iter(self._keys.items()))
        key = keys.popleft()
        if keys:
            self._keys.move_to_end(tenant)
        else:
            del self._keys[tenant]
        return key


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
    """

    def __init__(
        self,
        name: str,
        *,
        base_delay: float = 0.05,
        max_delay: float = 60.0,
        tenant: Callable[[K], Hashable] | None = None,
    ) -> None:
        self.name = name
        self._base, self._cap = base_delay, max_delay
        self._ready = _Turns(tenant or (lambda _: None))
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

    def add_first(self, key: K) -> None:
        """Ask for the key to be worked on before all others; cancel a delay."""
        self.add(key)
        if key in self._waiting:
            self._ready.put_first(key)

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
        key = await self._ready.get()
        self._waiting.discard(key)
        self._active.add(key)
        return key

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
