"""What is sent to the page: the whole fleet first, then what changed, as fast as its reader reads.

Each reader has a set of pools that it has not seen yet. A slow reader therefore costs memory for names of
pools only, and sees the newest state of each when it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.web.plans import Plans
from dra_driver.api.core import Node, Pod
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.fleet import Fleet, PoolView, WaitingClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID

__all__ = ["MOST_READERS", "Change", "CurrentFeed", "Feed", "TooManyReaders"]

MOST_READERS: Final = 32
MOST_WAITING: Final = 200
PAUSE_SECONDS: Final = 0.25
"""Between two messages to one reader: changes within it are sent together."""
LOOK_SECONDS: Final = 2.0
"""How often reasons of waiting claims are looked at again; they change without an object changing."""
BEAT_SECONDS: Final = 15.0
"""A message at least so often: only writing finds out that a reader went away."""
_CHUNK: Final = 100

Reason = Callable[[ResourceClaim, Iterable[Pod]], str]


class TooManyReaders(Exception):
    """There are ``MOST_READERS`` already."""


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """One message.

    Attributes:
        first: whatever the reader had is void.
        pools: as they are now.
        gone: ``[driver, pool]`` of pools that are no more.
        waiting: claims that are not allocated, at most ``MOST_WAITING``; None where they are as before.
        waiting_total: how many there are.
        nodes: of the cluster.
        complete: whether everything has been sent now.
    """

    first: bool = False
    pools: tuple[PoolView, ...] = ()
    gone: tuple[PoolID, ...] = ()
    waiting: tuple[WaitingClaim, ...] | None = None
    waiting_total: int = 0
    nodes: int = 0
    complete: bool = False


class _Reader:
    """What one reader has not seen yet."""

    def __init__(self, pools: Iterable[PoolID]) -> None:
        self.unseen: dict[PoolID, None] = dict.fromkeys(pools)
        self.waiting: tuple[tuple[WaitingClaim, ...], int, int] | None = None
        self.wake = asyncio.Event()
        self.wake.set()

    def take(self) -> list[PoolID]:
        """Return the next pools to send, oldest change first."""
        keys = list(self.unseen)[:_CHUNK]
        for key in keys:
            del self.unseen[key]
        return keys


class Feed:
    """Connects the fleet to its readers. Nothing is computed while there are none.

    Args:
        drivers: whose devices.
        reason_of: why a claim is not allocated, as far as the controller knows; empty: nothing is known.
    """

    def __init__(self, drivers: Collection[str], reason_of: Reason) -> None:
        self._fleet = Fleet(drivers, self._changed)
        self._reason_of = reason_of
        self._readers: set[_Reader] = set()
        self._nodes: Informer[Node] | None = None

    def attach(
        self,
        slices: Informer[ResourceSlice],
        inventories: Informer[DeviceInventory],
        claims: Informer[ResourceClaim],
        pods: Informer[Pod],
        nodes: Informer[Node],
    ) -> None:
        """Follow the informers from now on."""
        fleet = self._fleet
        slices.add_handler(_handler(fleet.put_slice, fleet.remove_slice))
        inventories.add_handler(_handler(fleet.put_inventory, fleet.remove_inventory))
        claims.add_handler(_handler(fleet.put_claim, fleet.remove_claim))
        pods.add_handler(_handler(fleet.put_pod, fleet.remove_pod))
        self._nodes = nodes

    def _changed(self, pool: PoolID | None) -> None:
        for reader in self._readers:
            if pool is not None:
                reader.unseen[pool] = None
            reader.wake.set()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield the whole fleet, then changes, until the reader closes.

        Raises:
            TooManyReaders: come again later.
        """
        loop = asyncio.get_running_loop()
        with self._reading() as reader:
            yield Change(first=True)
            last = loop.time()
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await reader.wake.wait()
                reader.wake.clear()
                sent = False
                while reader.unseen:
                    change = self._next(reader)
                    sent = True
                    yield change
                    await asyncio.sleep(0)  # a fleet of thousands must not hold up the allocator
                change = self._next(reader)
                if change.waiting is not None or sent or loop.time() - last > BEAT_SECONDS:
                    yield msgspec.structs.replace(change, complete=True)
                    last = loop.time()
                await asyncio.sleep(PAUSE_SECONDS)

    async def whole(self) -> dict[str, Any]:
        """Return everything at this moment, as plain data."""
        for i, key in enumerate(self._fleet.pools(), 1):
            self._fleet.pool(key)  # kept until it changes
            if i % _CHUNK == 0:
                await asyncio.sleep(0)
        waiting, total, nodes = self._waiting()
        return {"pools": self._fleet.views(), "waiting": waiting, "waitingTotal": total, "nodes": nodes}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[_Reader]:
        if len(self._readers) >= MOST_READERS:
            raise TooManyReaders
        reader = _Reader(self._fleet.pools())
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def _next(self, reader: _Reader) -> Change:
        keys = reader.take()
        views = [(key, self._fleet.pool(key)) for key in keys]
        state = self._waiting() if not reader.unseen else None
        news = state if state != reader.waiting else None
        if news is not None:
            reader.waiting = news
        seen = reader.waiting or ((), 0, 0)
        return Change(
            pools=tuple(view for _, view in views if view is not None),
            gone=tuple(key for key, view in views if view is None),
            waiting=news[0] if news is not None else None,
            waiting_total=seen[1],
            nodes=seen[2],
        )

    def _waiting(self) -> tuple[tuple[WaitingClaim, ...], int, int]:
        waiting, total = self._fleet.waiting(self._reason_of, MOST_WAITING)
        return tuple(waiting), total, len(self._nodes) if self._nodes is not None else 0


@dataclass(slots=True)
class CurrentFeed:
    """What the page shows at the moment.

    Attributes:
        feed: of the controller that leads; None while this replica stands by.
        plans: likewise.
        leader: returns the holder of the lease; empty while that is not known.
    """

    feed: Feed | None = None
    plans: Plans | None = None
    leader: Callable[[], str] = lambda: ""


def _handler(put: Callable[[Any], None], remove: Callable[[Any], None]) -> Handler[Any]:
    return Handler(added=put, updated=lambda _, new: put(new), deleted=remove)
