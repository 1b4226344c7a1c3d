"""What is sent to the page: the whole fleet first, then what changed, as fast as its reader reads.

Each reader has a set of pools that it has not seen yet. A slow reader therefore costs memory for names of
pools only, and sees the newest state of each when it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.web.objects import Objects
from controller.web.plans import Plans
from controller.web.problems import PageProblems
from controller.web.waits import LOOK_SECONDS, Found, Looked, Waits, waiting_filter
from dra_driver.api.core import Node, Pod
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.fleet import (
    STATES,
    Fleet,
    FleetSample,
    History,
    Observer,
    PoolView,
    Problem,
    Trend,
    WaitingClaim,
    node_trouble,
)
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock

__all__ = ["MOST_READERS", "Change", "CurrentFeed", "Feed", "LabelKey", "Past", "TooManyReaders"]

MOST_READERS: Final = 32
MOST_WAITING: Final = 200
PAUSE_SECONDS: Final = 0.25
"""Between two messages to one reader: changes within it are sent together."""
BEAT_SECONDS: Final = 15.0
"""A message at least so often: only writing finds out that a reader went away."""
SAMPLE_SECONDS: Final = 60.0
"""Between two samples of the trend."""
MOST_GROUPS: Final = 1_000
"""Most values of a label by which nodes can be grouped; a label with more is not offered."""
MOST_LABELS: Final = 200
_CHUNK: Final = 100

Reason = Callable[[ResourceClaim, Iterable[Pod]], str]


class TooManyReaders(Exception):
    """There are ``MOST_READERS`` already."""


class LabelKey(msgspec.Struct, frozen=True):
    """A label of nodes.

    Attributes:
        values: how many different ones there are.
        nodes: that have it.
    """

    key: str
    values: int
    nodes: int


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """One message.

    Attributes:
        first: whatever the reader had is void.
        pools: as they are now.
        gone: ``[driver, pool]`` of pools that are no more.
        waiting: claims that are not allocated, at most ``MOST_WAITING``; None where they are as before.
        waiting_total: how many there are.
        nodes: of the cluster.
        troubles: ``[node, text]`` of nodes that take no pods; None where they are as before.
        problems: of the fleet, at most ``MOST_PROBLEMS``; None where they are as before.
        problems_total: how many there are.
        complete: whether everything has been sent now.
        standby: that the replica does not lead, and which one does; empty if it leads.
    """

    first: bool = False
    pools: tuple[PoolView, ...] = ()
    gone: tuple[PoolID, ...] = ()
    waiting: tuple[WaitingClaim, ...] | None = None
    waiting_total: int = 0
    nodes: int = 0
    troubles: tuple[tuple[str, str], ...] | None = None
    problems: tuple[Problem, ...] | None = None
    problems_total: int = 0
    complete: bool = False
    standby: str = ""


class _Reader:
    """What one reader has not seen yet."""

    def __init__(self, pools: Iterable[PoolID]) -> None:
        self.unseen: dict[PoolID, None] = dict.fromkeys(pools)
        self.waiting: Waits | None = None
        self.troubles: tuple[tuple[str, str], ...] = ()
        self.wake = asyncio.Event()
        self.wake.set()

    def take(self) -> list[PoolID]:
        """Return the next pools to send, oldest change first."""
        keys = list(self.unseen)[:_CHUNK]
        for key in keys:
            del self.unseen[key]
        return keys


class Past:
    """What is remembered beyond the present, for as long as this process runs.

    Args:
        drivers: whose devices are looked at.
        clock: for the times of entries.
    """

    def __init__(self, drivers: Collection[str], clock: Clock) -> None:
        self.history = History()
        self.trend = Trend()
        self.observer = Observer(drivers, self.history, clock.now)
        self.now = clock.now
        self.since = clock.now()


class Feed:
    """Connects the fleet to its readers.

    While there are none, the pools that changed are looked at once a minute, for the trend.

    Args:
        drivers: whose devices.
        reason_of: why a claim is not allocated, as far as it is known; empty: nothing is.
        past: is told what changes.
        standby: returns that this replica does not lead, and which one does; empty: this one does.
    """

    def __init__(
        self, drivers: Collection[str], reason_of: Reason, past: Past, standby: Callable[[], str] = lambda: ""
    ) -> None:
        self._fleet = Fleet(drivers, self._changed)
        self._reason_of = reason_of
        self._past = past
        self._standby = standby
        self._readers: set[_Reader] = set()
        self._nodes: Informer[Node] | None = None
        self._troubles: dict[str, str] = {}
        self._problems = PageProblems(past.now)
        self._closed = False
        self._waiting = Looked(self._look, _loop_time)
        self.objects: Objects | None = None

    def attach(
        self,
        slices: Informer[ResourceSlice],
        inventories: Informer[DeviceInventory],
        claims: Informer[ResourceClaim],
        pods: Informer[Pod],
        nodes: Informer[Node],
    ) -> None:
        """Follow the informers, which are filled, from now on."""
        fleet, past = self._fleet, self._past
        seen = past.observer
        seen.begin()
        slices.add_handler(_handler(fleet.put_slice, fleet.remove_slice))
        inventories.add_handler(_handler(fleet.put_inventory, fleet.remove_inventory))
        inventories.add_handler(_handler(seen.put_inventory, seen.remove_inventory))
        claims.add_handler(_handler(fleet.put_claim, fleet.remove_claim))
        claims.add_handler(_handler(seen.put_claim, seen.remove_claim))
        pods.add_handler(_handler(fleet.put_pod, fleet.remove_pod))
        pods.add_handler(_handler(seen.put_pod, seen.remove_pod))
        nodes.add_handler(_handler(seen.put_node, seen.remove_node))
        nodes.add_handler(_handler(fleet.put_node, fleet.remove_node))
        nodes.add_handler(_handler(self._put_node, self._remove_node))
        seen.settle()
        self._nodes = nodes
        self.objects = Objects(
            fleet, claims, pods, nodes, past.history, past.since, past.now, self._reason_of
        )

    def close(self) -> None:
        """End what readers read: another feed takes its place."""
        self._closed = True
        for reader in self._readers:
            reader.wake.set()

    async def run(self) -> None:
        """Note once a minute how the fleet is, and forget what is too old, until cancelled."""
        while True:
            await self._sample()
            self._past.history.expire(self._past.now())
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _sample(self) -> None:
        states, busy = dict.fromkeys(STATES, 0), 0
        for i, key in enumerate(self._fleet.pools(), 1):
            view = self._fleet.pool(key)  # kept until it changes
            for device in view.devices if view is not None else ():
                states[device.state] += 1
                busy += device.activity == "busy"
            if i % _CHUNK == 0:
                await asyncio.sleep(0)
        _, waiting = self._fleet.waiting(lambda *_: "", 0)
        self._past.trend.add(FleetSample(self._past.now(), tuple(states.values()), busy, waiting))

    def _put_node(self, node: Node) -> None:
        name, trouble = node.metadata.name, node_trouble(node)
        if trouble != self._troubles.get(name, ""):
            self._troubles[name] = trouble
            self._changed(None)
        if not trouble:
            self._troubles.pop(name, None)

    def _remove_node(self, node: Node) -> None:
        if self._troubles.pop(node.metadata.name, None):
            self._changed(None)

    def _changed(self, pool: PoolID | None) -> None:
        if pool is None:
            self._waiting.stale = True
        else:
            self._problems.changed(pool)
        for reader in self._readers:
            if pool is not None:
                reader.unseen[pool] = None
            reader.wake.set()

    def trend(self) -> tuple[FleetSample, ...]:
        """Return how the fleet was, once a minute."""
        return self._past.trend.samples()

    async def labels(self) -> list[LabelKey]:
        """Return the labels of nodes by which they can be grouped, those with the fewest values first."""
        values: dict[str, set[str]] = {}
        nodes: Counter[str] = Counter()
        for i, node in enumerate(self._nodes.items() if self._nodes is not None else (), 1):
            for key, value in (node.metadata.labels or {}).items():
                found = values.setdefault(key, set())
                if len(found) <= MOST_GROUPS:
                    found.add(value)
                nodes[key] += 1
            if i % _CHUNK == 0:
                await asyncio.sleep(0)
        keys = [LabelKey(k, len(v), nodes[k]) for k, v in values.items() if len(v) <= MOST_GROUPS]
        return sorted(keys, key=lambda k: (k.values, k.key))[:MOST_LABELS]

    def label(self, key: str) -> dict[str, str]:
        """Return the value of a label of each node that has it."""
        nodes = self._nodes.items() if self._nodes is not None else ()
        found = ((n.metadata.name, (n.metadata.labels or {}).get(key)) for n in nodes)
        return {name: value for name, value in found if value is not None}

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield the whole fleet, then changes, until the reader closes.

        Raises:
            TooManyReaders: come again later.
        """
        loop = asyncio.get_running_loop()
        with self._reading() as reader:
            yield Change(first=True, standby=self._standby())
            last = loop.time()
            while not self._closed:
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
                news = change.waiting is not None or change.troubles is not None
                if news or sent or loop.time() - last > BEAT_SECONDS:
                    yield msgspec.structs.replace(change, complete=True)
                    last = loop.time()
                if self._waiting.stale:
                    reader.wake.set()  # it is not looked at for each of many changes
                await asyncio.sleep(PAUSE_SECONDS)

    async def whole(self) -> dict[str, Any]:
        """Return everything at this moment, as plain data."""
        for i, key in enumerate(self._fleet.pools(), 1):
            self._fleet.pool(key)  # kept until it changes
            if i % _CHUNK == 0:
                await asyncio.sleep(0)
        waits = self._waiting.get()
        return {
            "pools": self._fleet.views(),
            "waiting": waits.claims,
            "waitingTotal": waits.total,
            "nodes": waits.nodes,
            "troubles": self._node_troubles(),
            "problems": waits.problems,
            "problemsTotal": waits.problems_total,
            "standby": self._standby(),
        }

    async def search(self, query: str) -> Found:
        """Return the claims that wait and match a filter: the most urgent ones, and how many there are."""
        matches = waiting_filter(query)
        first: list[WaitingClaim] = []
        total = 0
        keys = self._fleet.waiting_keys()
        for i, key in enumerate(keys, 1):
            claim = self._fleet.waiting_claim(key, self._reason_of)
            if claim is not None and matches(claim):
                total += 1
                if total <= MOST_WAITING:
                    first.append(claim)
            if i % _CHUNK == 0:
                await asyncio.sleep(0)
        return Found(tuple(first), total, len(keys))

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
        state = self._waiting.get() if not reader.unseen else None
        news = state if state != reader.waiting else None
        if news is not None:
            reader.waiting = news
        seen = reader.waiting or Waits()
        troubles = self._node_troubles()
        new_troubles = troubles if troubles != reader.troubles else None
        reader.troubles = troubles
        return Change(
            pools=tuple(view for _, view in views if view is not None),
            gone=tuple(key for key, view in views if view is None),
            waiting=news.claims if news is not None else None,
            waiting_total=seen.total,
            nodes=seen.nodes,
            troubles=new_troubles,
            problems=news.problems if news is not None else None,
            problems_total=seen.problems_total,
            standby=self._standby(),
        )

    def _node_troubles(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._troubles.items()))

    def _look(self) -> Waits:
        waiting, total = self._fleet.waiting(self._reason_of, MOST_WAITING)
        problems = self._problems.look(self._fleet, self._reason_of)
        return Waits(tuple(waiting), total, len(self._nodes) if self._nodes is not None else 0, *problems)


@dataclass(slots=True)
class CurrentFeed:
    """What the page shows at the moment.

    Attributes:
        feed: of the fleet; None until the caches of this replica are filled.
        plans: of the controller that leads; None while this replica stands by.
        leader: returns the holder of the lease; empty while that is not known.
    """

    feed: Feed | None = None
    plans: Plans | None = None
    leader: Callable[[], str] = lambda: ""

    def standby(self) -> str:
        """Return that this replica does not lead, and which one does."""
        # What is behind the "_" differs from start to start (``identity_of``).
        return f"this replica stands by: {self.leader().rpartition('_')[0] or 'another one'} leads"


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _handler(put: Callable[[Any], None], remove: Callable[[Any], None]) -> Handler[Any]:
    return Handler(added=put, updated=lambda _, new: put(new), deleted=remove)
