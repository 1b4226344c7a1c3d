"""Watches: events of a collection as a stream of lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from dra_driver.sim.apiserver.http import tables
from dra_driver.sim.apiserver.http.listing import object_bytes, object_raw, selector
from dra_driver.sim.apiserver.http.requests import Accept, Route
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Causes, Raw, StatusError
from dra_driver.sim.apiserver.storage.selectors import Selector
from dra_driver.sim.apiserver.storage.store import Event, Stored
from dra_driver.sim.apiserver.writing.registry import Registry

__all__ = ["Watch"]

_BOOKMARKS = 60.0
"""Seconds between bookmarks."""

_DEFAULT_TIMEOUT = 1800.0
_INITIAL_END = "k8s.io/initial-events-end"


class Watch:
    """One watch: its constructor checks the request, ``lines`` yields what has to be sent.

    Args:
        registry: the verbs.
        route: the collection.
        query: parameters of the request.
        accept: form of the objects in events.

    Raises:
        StatusError: 422 for combinations of options, 500 for a malformed resourceVersion.
    """

    def __init__(self, registry: Registry, route: Route, query: Mapping[str, str], accept: Accept) -> None:
        self._registry = registry
        self._kind = route.kind
        self._namespace = route.namespace
        self._selector: Selector | None = selector(route.kind, query)
        self._name = route.name
        self._bookmarks = query.get("allowWatchBookmarks", "").lower() in ("true", "1")
        self._initial = _check_options(query)
        self._transform = accept.transform
        self._include = query.get("includeObject", "Metadata")
        self._first = True
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise StatusError.internal(
                f'resourceVersion: Invalid value: "{version}": '
                f'strconv.ParseUint: parsing "{version}": invalid syntax'
            )
        self._version = int(version or 0)
        try:
            seconds = float(query.get("timeoutSeconds") or 0)
        except ValueError:
            raise StatusError.bad_request(
                f"timeoutSeconds: {query['timeoutSeconds']!r} is no number"
            ) from None
        self._deadline = _now() + (seconds or _DEFAULT_TIMEOUT)

    async def lines(self, stopping: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield chunks of one or more lines, until the timeout or until ``stopping``."""
        collection = self._registry.collection(self._kind)
        sent = self._registry.store.version
        if self._version == 0 or self._initial:
            position: int | None = collection.end()
            listed = [s for s in collection.list(self._namespace) if self._matches(s.raw)]
            if listed:
                yield b"".join(self._line("ADDED", s) for s in listed)
            if self._initial:
                yield self._bookmark(sent, {_INITIAL_END: "true"})
        else:
            position = collection.position(self._version)
        next_bookmark = self._next_bookmark()
        while not stopping():
            events = None if position is None else collection.read(position)
            if events is None or position is None:
                yield self._expired()
                return
            if events:
                position += len(events)
                chunk = b"".join(filter(None, map(self._event, events)))
                if chunk:
                    yield chunk
                continue
            now = _now()
            if now >= self._deadline:
                return
            if self._bookmarks and now >= next_bookmark:
                next_bookmark = self._next_bookmark()
                yield self._bookmark(self._registry.store.version)
            wait_until = min(self._deadline, next_bookmark) if self._bookmarks else self._deadline
            await collection.wait(position, wait_until - now)

    def _next_bookmark(self) -> float:
        """Return when the next bookmark is due: in a minute, or two seconds before the end of the watch."""
        now = _now()
        early = self._deadline - 2
        return min(now + _BOOKMARKS, early) if early > now + 2 else now + _BOOKMARKS

    def _matches(self, raw: Raw) -> bool:
        if self._name and raw["metadata"]["name"] != self._name:
            return False
        return self._selector is None or self._selector(raw)

    def _event(self, event: Event) -> bytes | None:
        new = event.new
        if self._namespace and new.key.namespace != self._namespace:
            return None
        if event.version <= self._version:
            return None
        if self._selector is None and not self._name:
            if not self._transform and self._kind.api_version == self._kind.storage_version:
                return event.line
            return self._line(event.type, new)
        old = event.old
        before = old is not None and self._matches(old.raw)
        if event.type == "DELETED":
            return self._line("DELETED", new) if before else None
        after = self._matches(new.raw)
        if after:
            return self._line("MODIFIED" if before else "ADDED", new)
        if before and old is not None:
            # It leaves the selection: the event has its old content, with the version of the change.
            metadata = {**old.raw["metadata"], "resourceVersion": str(event.version)}
            return self._line("DELETED", Stored(old.key, {**old.raw, "metadata": metadata}, event.version))
        return None

    def _line(self, type_: str, stored: Stored) -> bytes:
        if not self._transform:
            body = object_bytes(self._kind, stored)
        else:
            raw = object_raw(self._kind, stored.raw)
            if self._transform == "Table":
                now = self._registry.clock()
                made = tables.table_event(self._kind, raw, self._include, now, first=self._first)
                self._first = False
            else:
                made = {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": raw["metadata"],
                }
            body = msgspec.json.encode(made)
        return b'{"type":"%s","object":%s}\n' % (type_.encode(), body)

    def _bookmark(self, version: int, annotations: Mapping[str, str] | None = None) -> bytes:
        metadata: Raw = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = dict(annotations)
        kind: Kind = self._kind
        made: Raw = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        if self._transform == "Table":
            made = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": str(version)},
                "columnDefinitions": None,
                "rows": [{"cells": [], "object": made}],
            }
        return b'{"type":"BOOKMARK","object":%s}\n' % msgspec.json.encode(made)

    def _expired(self) -> bytes:
        oldest = self._registry.collection(self._kind).compacted
        status = StatusError.expired(f"too old resource version: {self._version} ({oldest})").raw()
        return b'{"type":"ERROR","object":%s}\n' % msgspec.json.encode(status)


def _now() -> float:
    """Return the seconds of the event loop, whose timers end the waits of a watch."""
    return asyncio.get_running_loop().time()


def _check_options(query: Mapping[str, str]) -> bool:
    """Return whether initial events are requested."""
    match = query.get("resourceVersionMatch", "")
    wanted = query.get("sendInitialEvents")
    causes = Causes()
    if wanted is None:
        if match:
            causes.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
    elif match != "NotOlderThan":
        causes.forbidden(
            "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
    if causes:
        raise StatusError.invalid("ListOptions", "meta.k8s.io", "", causes)
    return wanted is not None and wanted.lower() in ("true", "1")
