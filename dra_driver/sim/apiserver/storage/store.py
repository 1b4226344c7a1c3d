"""Objects in memory: collections, resource versions, and the history that watches read.

One ``Store`` has one counter of resource versions, as etcd has one revision. A collection is one kind of
object; it keeps its objects, an index by namespace, and a window of past events. Watches hold a position in
that window, not a queue: a slow reader costs nothing until it falls out of the window, and then it gets 410.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import Resource, WireObject
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.journal import Journal, Kept, change_line

__all__ = ["Collection", "Event", "Key", "Store", "Stored"]

T = TypeVar("T", bound=WireObject)

HISTORY = 8192
"""Events kept per collection."""

FIRST_VERSION = 1000
"""The counter starts here, so that small versions are too old, as on a server that has compacted."""

_encode = msgspec.json.Encoder().encode


class Key(NamedTuple):
    """Namespace (empty for cluster-scoped) and name."""

    namespace: str
    name: str


class Stored:
    """One version of an object. It is never changed once it is stored: writers make a new one.

    Attributes:
        raw: the object, with ``kind`` and ``apiVersion``.
        version: its resource version as a number.
    """

    __slots__ = ("_encoded", "_struct", "key", "raw", "version")

    def __init__(self, key: Key, raw: Raw, version: int) -> None:
        self.key = key
        self.raw = raw
        self.version = version
        self._encoded: bytes | None = None
        self._struct: WireObject | None = None

    @property
    def encoded(self) -> bytes:
        """The object as JSON, encoded once."""
        if self._encoded is None:
            self._encoded = _encode(self.raw)
        return self._encoded

    def struct(self, kind: type[T]) -> T:
        """Return the object as its struct, decoded once.

        Raises:
            DecodeError: the object is not one of this kind.
        """
        known = self._struct
        if type(known) is not kind:
            known = self._struct = codec.decode(kind, self.encoded)
        return known


class Event:
    """A change.

    Attributes:
        type: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        version: resource version of the change.
        new: the object; for DELETED its last state, with the version of the deletion.
        old: the object before the change; None for ADDED.
    """

    __slots__ = ("_line", "new", "old", "type", "version")

    def __init__(self, type_: str, version: int, new: Stored, old: Stored | None) -> None:
        self.type = type_
        self.version = version
        self.new = new
        self.old = old
        self._line: bytes | None = None

    @property
    def line(self) -> bytes:
        """The watch event as one line of JSON, encoded once for all watches."""
        if self._line is None:
            self._line = b'{"type":"%s","object":%s}\n' % (self.type.encode(), self.new.encoded)
        return self._line


class Collection:
    """All objects of one kind.

    Attributes:
        group: API group.
        plural: name in URLs.
        events: the window of past events, oldest first.
        compacted: the newest version that can be neither listed nor watched from any more.
    """

    def __init__(self, store: Store, group: str, plural: str, history: int) -> None:
        self.store = store
        self.group = group
        self.plural = plural
        self.objects: dict[Key, Stored] = {}
        self.by_namespace: dict[str, dict[str, Stored]] = {}
        self.events: deque[Event] = deque()
        self.compacted = FIRST_VERSION - 1
        self._history = history
        self._first = 0  # sequence number of events[0]
        self._waiters: set[asyncio.Future[None]] = set()
        self._sorted: list[Key] | None = None

    def get(self, key: Key) -> Stored | None:
        """Return the current version; None if there is no such object."""
        return self.objects.get(key)

    def list(self, namespace: str = "") -> Sequence[Stored]:
        """Return the current objects, sorted by namespace and name."""
        if namespace:
            names = self.by_namespace.get(namespace, {})
            return [names[n] for n in sorted(names)]
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        objects = self.objects
        return [objects[k] for k in self._sorted]

    def list_at(self, version: int, namespace: str = "") -> Sequence[Stored] | None:
        """Return the objects as they were at ``version``; None if that is before the window."""
        if version < self.compacted:
            return None
        if not self.events or self.events[-1].version <= version:
            return self.list(namespace)
        past = dict(self.objects)
        for event in reversed(self.events):
            if event.version <= version:
                break
            if event.old is None:
                past.pop(event.new.key, None)
            else:
                past[event.new.key] = event.old
        return [past[k] for k in sorted(past) if not namespace or k.namespace == namespace]

    def put(self, key: Key, raw: Raw) -> Stored:
        """Store a new version of the object, with its ``metadata.resourceVersion``, and wake the watches."""
        version = self.store.next_version()
        raw["metadata"]["resourceVersion"] = str(version)
        old = self.objects.get(key)
        new = Stored(key, raw, version)
        self.store.record(self, new, gone=False)
        self.objects[key] = new
        self.by_namespace.setdefault(key.namespace, {})[key.name] = new
        if old is None:
            self._sorted = None
        self._publish(Event("ADDED" if old is None else "MODIFIED", version, new, old))
        return new

    def remove(self, key: Key, last: Raw | None = None) -> Stored:
        """Remove the object; return its last state (or ``last``) with the version of the deletion."""
        version = self.store.next_version()
        old = self.objects[key]
        state = old.raw if last is None else last
        metadata = {**state["metadata"], "resourceVersion": str(version)}
        new = Stored(key, {**state, "metadata": metadata}, version)
        self.store.record(self, new, gone=True)
        del self.objects[key]
        names = self.by_namespace[key.namespace]
        del names[key.name]
        if not names:
            del self.by_namespace[key.namespace]
        self._sorted = None
        self._publish(Event("DELETED", version, new, old))
        return new

    def restore(self, raw: Raw, version: int) -> None:
        """Restore an object of an earlier server, without an event.

        Args:
            raw: the object.
            version: version of the last change of this kind; older ones cannot be watched from.
        """
        metadata = raw["metadata"]
        key = Key(metadata.get("namespace", ""), metadata["name"])
        self.objects[key] = Stored(key, raw, int(metadata["resourceVersion"]))
        self.by_namespace.setdefault(key.namespace, {})[key.name] = self.objects[key]
        self._sorted = None
        self.compacted = max(self.compacted, version)

    @property
    def last(self) -> int:
        """Version of the last change."""
        return self.events[-1].version if self.events else self.compacted

    def position(self, version: int) -> int | None:
        """Return where a watch from ``version`` starts to read; None if the window has moved past it."""
        if version < self.compacted:
            return None
        # Nearly always the reader has just listed, so the search starts at the end.
        index = len(self.events)
        while index and self.events[index - 1].version > version:
            index -= 1
        return self._first + index

    def end(self) -> int:
        """Return the position after the newest event."""
        return self._first + len(self.events)

    def read(self, position: int) -> Sequence[Event] | None:
        """Return the events from ``position`` on; None if the window has moved past it."""
        offset = position - self._first
        if offset < 0:
            return None
        size = len(self.events)
        if offset >= size:
            return []
        if size - offset < 64:
            return [self.events[i] for i in range(offset, size)]
        return list(self.events)[offset:]

    async def wait(self, position: int, timeout: float) -> None:
        """Wait for an event at ``position``, at most ``timeout`` seconds."""
        if self.end() > position:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=max(0.0, timeout))
        finally:
            self._waiters.discard(waiter)
            waiter.cancel()

    def _publish(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) > self._history:
            self.compact(1)
        self.store.notify()
        self.wake()

    def compact(self, count: int) -> None:
        """Forget the oldest ``count`` events; tests use it to make watches expire."""
        for _ in range(min(count, len(self.events))):
            self.compacted = self.events.popleft().version
            self._first += 1

    def forget(self) -> None:
        """Forget all history, as a server that has compacted: every version so far is too old.

        Open watches get 410, too, like those that are too slow.
        """
        self.compact(len(self.events))
        self.compacted = self.store.next_version()
        self.store.record_version()
        self._first += 1
        self.wake()

    def wake(self) -> None:
        """Wake every waiting watch."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Store:
    """All objects of the API server.

    Args:
        history: number of events that are kept per kind.
        journal: keeps the objects over restarts, and those in it are restored; if None, none are kept.

    Attributes:
        version: the newest resource version.
        writes: number of changes so far, for statistics.
    """

    def __init__(self, history: int = HISTORY, journal: Journal | None = None) -> None:
        self.version = FIRST_VERSION
        self.writes = 0
        self._history = history
        self._journal = journal
        self._collections: dict[tuple[str, str], Collection] = {}
        if journal is not None:
            self._restore(journal.kept)

    def _restore(self, kept: Kept) -> None:
        self.version = max(self.version, kept.version)
        for (group, plural, _, _), raw in kept.objects.items():
            self.collection(group, plural).restore(raw, kept.versions[group, plural])
        for kind, version in kept.versions.items():
            self.collection(*kind).compacted = version

    def record(self, collection: Collection, changed: Stored, *, gone: bool) -> None:
        """Write a change into the journal, before it is visible.

        Raises:
            OSError: it cannot be written; then the change must not take place.
        """
        if self._journal is not None:
            encoded = b"null" if gone else changed.encoded
            line = change_line(changed.version, collection.group, collection.plural, changed.key, encoded)
            self._append(line)

    def record_version(self) -> None:
        """Write into the journal that the version has advanced without a change."""
        if self._journal is not None:
            self._append(change_line(self.version, "", "", ("", ""), b"null"))

    def _append(self, line: bytes) -> None:
        assert self._journal is not None
        if self._journal.full:
            versions = {f"{c.group}/{c.plural}": c.last for c in self._collections.values()}
            self._journal.rewrite(self.version, versions, self._lines())
        self._journal.append(line)

    def _lines(self) -> Iterator[bytes]:
        for collection in self._collections.values():
            for stored in collection.objects.values():
                yield change_line(
                    stored.version, collection.group, collection.plural, stored.key, stored.encoded
                )

    def collection(self, group: str, plural: str) -> Collection:
        """Return the collection of a kind; it is made at its first use."""
        key = (group, plural)
        found = self._collections.get(key)
        if found is None:
            found = self._collections[key] = Collection(self, group, plural, self._history)
        return found

    def collections(self) -> Iterator[Collection]:
        """Return all collections."""
        return iter(list(self._collections.values()))

    def next_version(self) -> int:
        """Advance the resource version and return it."""
        self.version += 1
        return self.version

    def notify(self) -> None:
        """Count a change."""
        self.writes += 1

    # For tests, and for the parts of the embedded cluster in the same process.

    def get(self, resource: Resource[T], name: str, namespace: str = "") -> T | None:
        """Return an object as its struct; None if there is none."""
        found = self.collection(resource.group, resource.plural).get(Key(namespace, name))
        return None if found is None else found.struct(resource.type)

    def list(self, resource: Resource[T], namespace: str = "") -> Sequence[T]:
        """Return all objects of a kind as structs, sorted by namespace and name."""
        found = self.collection(resource.group, resource.plural).list(namespace)
        return [s.struct(resource.type) for s in found]

    def raw(self, group: str, plural: str, name: str, namespace: str = "") -> Any:
        """Return an object as plain data, which must not be changed; None if there is none."""
        found = self.collection(group, plural).get(Key(namespace, name))
        return None if found is None else found.raw
