"""A local copy of one collection, kept up to date by list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import structlog

from dra_driver.api.meta import ObjectKey, Resource, WireObject
from dra_driver.api.server.watch import Unreadable, WatchEvent, WatchEventType
from dra_driver.errors import ApiError, ApiUnavailable, DecodeError, DraError, Forbidden, Gone, NotFound
from dra_driver.indices import Indices
from dra_driver.kube.backoff import Backoff
from dra_driver.ports import KubeClient

__all__ = ["Handler", "Informer", "Keeper"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

# Between two looks whether a kind is served now: an upgrade of the API server brings it.
_UNSERVED_SECONDS: Final = 30.0
# Unlike 401, which passes when a token is renewed.
_NOT_ALLOWED = 403
# For which the event loop takes in objects of a first list without doing anything else.
_SLICE_SECONDS: Final = 0.005
# Events of a watch, and the time that they take, after which others have a turn.
_EVENTS_AT_A_TIME: Final = 16
_LONGEST_BURST_SECONDS: Final = 0.02


def _left_out(item: WireObject) -> object:
    """Return what says of some kinds that an object is not kept as a whole."""
    return getattr(item, "left_out", None)


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Handler(Generic[T]):
    """Callbacks; they run in the event loop, must not block, and see the store already changed."""

    added: Callable[[T], None] = _nothing
    updated: Callable[[T, T], None] = _nothing
    deleted: Callable[[T], None] = _nothing


class Keeper(Protocol[T]):
    """Says what is kept of each object, and counts it."""

    def keep(self, item: T) -> T:
        """Return what is kept of an object that was just decoded."""
        ...

    def forget(self, item: T) -> None:
        """Take in that an object is not in the store any more."""
        ...

    def listed(self, items: Iterable[T]) -> None:
        """Take in that these are all that there are."""
        ...

    def outdated(self) -> bool:
        """Return whether more would be kept of an object if it were read now."""
        ...


class Informer(Generic[T]):
    """Lists, then watches, forever; relists when the server's history no longer reaches back (410).

    Errors are never raised out of ``run``: they are logged and tried again with growing delays, and the store
    keeps what was last known. So it does for an object that cannot be read, which is not one that is gone.
    Only a claim with devices that are not known keeps it from being filled for the first time.

    With ``find`` the kind may be one that the API server serves in another version after an upgrade or a
    rollback, or not at all. Where it is found twice in a row that there is no such kind, there are no objects
    of it: once may be another server of a control plane that is just being upgraded.

    Attributes:
        served: whether the API server has the kind, as far as known.
        synced: set when the store has been filled.
        failing: whether a list or watch has failed since the API server last sent something.
        access: whether the API server let us read the last time that it said; None: it has not said yet.
        access_changed: called when ``access`` has changed.
        unreadable: the objects that cannot be read at present.
        found_unreadable: called with each of them, once for each problem.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        indices: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
        watch_seconds: int = 300,
        keeper: Keeper[T] | None = None,
        find: Callable[[KubeClient], Awaitable[Resource[T] | None]] | None = None,
        served: bool = True,
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._resource = resource if keeper is None else resource.keeping(keeper.keep)
        self._find = find
        self._missed = False
        self.served = served
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._watch_seconds = watch_seconds
        self._store: dict[ObjectKey, T] = {}
        self._indices: Indices[ObjectKey, T] = Indices(indices or {})
        self._handlers: list[Handler[T]] = []
        self._resource_version = ""
        self.synced = asyncio.Event()
        self.failing = False
        self.access: bool | None = None
        self.access_changed: list[Callable[[], None]] = []
        self.unreadable: dict[ObjectKey, Unreadable] = {}
        self.found_unreadable: list[Callable[[Unreadable], None]] = []

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def resource(self) -> Resource[T]:
        """What is watched."""
        return self._resource

    @property
    def resource_version(self) -> str:
        """The version up to which changes are in the store, or being put there; empty if it is not known."""
        return self._resource_version

    def get(self, key: ObjectKey) -> T | None:
        """Return an object as last seen; None where there is none."""
        return self._store.get(key)

    def get_by_name(self, name: str, namespace: str = "") -> T | None:
        """Return an object as last seen; None where there is none."""
        return self._store.get(ObjectKey(namespace, name))

    def items(self) -> tuple[T, ...]:
        """Return all objects as last seen."""
        return tuple(self._store.values())

    def __len__(self) -> int:
        return len(self._store)

    def by_index(self, index: str, value: Hashable) -> tuple[T, ...]:
        """Return the objects whose index function gives ``value``, in order of their keys."""
        return tuple(self._store[k] for k in self._indices.keys(index, value))

    def each(self, index: str, value: Hashable) -> Iterator[T]:
        """Yield what ``by_index`` returns, for looks that end early; nothing may change meanwhile."""
        return map(self._store.__getitem__, self._indices.keys(index, value))

    def keys_after(
        self, index: str, value: Hashable, last: ObjectKey | None, most: int
    ) -> tuple[ObjectKey, ...]:
        """Return keys of some of the objects whose index function gives ``value``: see ``Indices.after``."""
        return tuple(self._indices.after(index, value, last, most))

    def number_by_index(self, index: str, value: Hashable) -> int:
        """Return how many objects there are whose index function gives ``value``."""
        return self._indices.number(index, value)

    def add_handler(self, handler: Handler[T]) -> None:
        """Call ``handler`` for every change from now on, and ``added`` at once for what is there already."""
        self._handlers.append(handler)
        for item in tuple(self._store.values()):
            handler.added(item)

    # --- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        backoff = Backoff(base=0.1, cap=30.0)
        while True:
            try:
                if not self.served and not await self._find_kind():
                    await asyncio.sleep(_UNSERVED_SECONDS)
                    continue
                if not self._resource_version:
                    await self._list()
                    backoff.reset()
                await self._watch(backoff)
                if self._keeper is not None and self._keeper.outdated():
                    await self._list()
            except Gone:
                self.failing = True
                self._resource_version = ""
                if backoff.failures:
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.next()  # the first time at once; a server that says 410 forever is not hammered
            except DraError as e:
                self.failing = True
                refused = isinstance(e, NotFound) or (isinstance(e, Forbidden) and e.code == _NOT_ALLOWED)
                delay = backoff.next()
                # Where a right is missing, this goes on for as long as nobody grants it.
                (log.debug if refused and self.access is False else log.warning)(
                    "list or watch failed, will be tried again",
                    resource=repr(self._resource),
                    error=f"{type(e).__name__}: {e}",
                    retry_in=round(delay, 2),
                )
                if self._find is not None and isinstance(e, NotFound):
                    self.served = False
                if refused:
                    self._set_access(False)
                if isinstance(e, ApiError) and not isinstance(e, ApiUnavailable) and backoff.failures > 3:
                    # Some servers answer 400 or 500 to a resourceVersion that they never gave out.
                    self._resource_version = ""
                await asyncio.sleep(delay)

    async def _find_kind(self) -> bool:
        """Look in which version the kind is served, and return whether it is in one.

        Raises:
            ApiError, ApiUnavailable: the API server does not say.
        """
        found = await self._find(self._client) if self._find is not None else self._resource
        if found is not None:
            log.info("the API server serves a kind that it did not serve", resource=repr(found))
            self._resource = found if self._keeper is None else found.keeping(self._keeper.keep)
            self._resource_version = ""
        elif self._missed:
            self.failing = False
            for key in tuple(self._store):
                self._remove(key)
        self.served = found is not None
        self._missed = found is None
        return self.served

    def _set_access(self, access: bool) -> None:
        if self.access is not access:
            self.access = access
            for call in self.access_changed:
                call()

    async def _list(self) -> None:
        found = await self._client.list(
            self._resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        new = {item.key: item for item in found.items}
        for problem in found.unreadable:
            self._note_unreadable(problem)
            if problem.holds_unknown and not self.synced.is_set():
                raise DecodeError(
                    f"{self._resource.kind} {problem.key} has devices that cannot be read, so that it is not "
                    f"known which are free: {problem.problem}"
                )
        self._resource_version = found.resource_version
        kept = {u.key: u.uid for u in found.unreadable}
        for key in [k for k in self.unreadable if k not in kept]:
            self._note_readable(key)
        for key in [k for k, old in self._store.items() if k not in new and kept.get(k) != old.metadata.uid]:
            self._remove(key)
        since = time.monotonic()
        for key, item in new.items():
            old = self._store.get(key)
            if (
                old is not None
                and old.metadata.uid == item.metadata.uid
                and old.metadata.resource_version == item.metadata.resource_version
                and _left_out(old) == _left_out(item)
            ):
                continue
            self._put(item)
            if not self.synced.is_set() and time.monotonic() - since > _SLICE_SECONDS:
                # Nobody acts before all is known. Afterwards all of a list counts at once: else
                # a device that went from one claim to another would seem to be in both.
                await asyncio.sleep(0)
                since = time.monotonic()
        if self._keeper is not None:
            self._keeper.listed(self._store.values())
        self.failing = False
        self.synced.set()
        self._set_access(True)

    async def _watch(self, backoff: Backoff) -> None:
        events = self._client.watch(
            self._resource,
            self._namespace,
            resource_version=self._resource_version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            timeout_seconds=self._watch_seconds,
        )
        started = asyncio.get_running_loop().time()
        seen, count, busy = False, 0, 0.0
        async with contextlib.AsyncExitStack() as stack:
            close = getattr(events, "aclose", None)
            if close is not None:
                stack.push_async_callback(close)
            async for event in events:
                seen = True
                self.failing = False
                backoff.reset()
                self._set_access(True)
                if event.object.metadata.resource_version:
                    self._resource_version = event.object.metadata.resource_version
                since = time.monotonic()
                self._take(event)
                count, busy = count + 1, busy + time.monotonic() - since
                if count == _EVENTS_AT_A_TIME or busy > _LONGEST_BURST_SECONDS:
                    # What has come already is read without waiting: a burst must not hold up everything else.
                    await asyncio.sleep(0)
                    count, busy = 0, 0.0
        if not seen and asyncio.get_running_loop().time() - started < 1.0:
            # A server that hangs up at once: do not spin.
            await asyncio.sleep(backoff.next())

    # --- the store ------------------------------------------------------------------------------------------

    def _take(self, event: WatchEvent[T]) -> None:
        if event.type is WatchEventType.BOOKMARK:
            return
        key = event.object.key
        if event.unreadable is None or event.type is WatchEventType.DELETED:
            self._note_readable(key)
        else:
            self._note_unreadable(event.unreadable)
        old = self._store.get(key)
        if event.type is WatchEventType.DELETED:
            self._remove(key)
            if self._keeper is not None:
                self._keeper.forget(event.object)  # it was counted as it came
        elif event.unreadable is None or event.stands_in:
            self._put(event.object)
        elif old is not None and old.metadata.uid != event.unreadable.uid:
            self._remove(key)

    def _note_unreadable(self, found: Unreadable) -> None:
        if self.unreadable.get(found.key) == found:
            return
        self.unreadable[found.key] = found
        log.error(
            "an object cannot be read; what was known of it stays",
            kind=self._resource.kind,
            name=str(found.key),
            problem=found.problem,
        )
        for call in self.found_unreadable:
            call(found)

    def _note_readable(self, key: ObjectKey) -> None:
        if self.unreadable.pop(key, None) is not None:
            log.info("an object can be read again, or is gone", kind=self._resource.kind, name=str(key))

    def _put(self, item: T) -> None:
        key = item.key
        old = self._store.get(key)
        if old is not None and old.metadata.uid != item.metadata.uid:
            # Deleted and created again while we were not looking: two objects, not one that changed.
            self._remove(key)
            old = None
        self._indices.change(key, old, item)
        self._store[key] = item
        for handler in self._handlers:
            if old is None:
                handler.added(item)
            else:
                handler.updated(old, item)

    def _remove(self, key: ObjectKey) -> None:
        old = self._store.pop(key, None)
        if old is None:
            return
        self._indices.change(key, old, None)
        if self._keeper is not None:
            self._keeper.forget(old)
        for handler in self._handlers:
            handler.deleted(old)
