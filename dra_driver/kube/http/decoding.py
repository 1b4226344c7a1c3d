"""Bodies of the API server's answers: lists, watch events, kinds that are served."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, TypeVar, cast

import aiohttp
import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, ObjectMeta, Resource, WireObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.server.watch import Unreadable, WatchEvent, WatchEventType
from dra_driver.api.unreadable import lenient_metadata, stand_in
from dra_driver.errors import (
    ApiUnavailable,
    DecodeError,
)
from dra_driver.kube.http import status
from dra_driver.kube.http.paging import LARGEST_OBJECT

__all__ = [
    "LISTS",
    "RESOURCES",
    "ListBody",
    "decode_answer",
    "decode_event",
    "decode_object",
    "lines",
    "list_without_items",
]

T = TypeVar("T", bound=WireObject)

# Of a list, before its items: a token to go on has some hundred.
_LONGEST_HEAD = 16 * 1024

log = structlog.get_logger(__name__)


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListBody(msgspec.Struct):
    """A page of a list."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ServedResource(msgspec.Struct):
    name: str


class _ResourceList(msgspec.Struct):
    resources: list[_ServedResource] | None = None


class _MetaOnly(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


LISTS = msgspec.json.Decoder(ListBody)
_event_decoder = msgspec.json.Decoder(_Event)
RESOURCES = msgspec.json.Decoder(_ResourceList)
_meta_decoder = msgspec.json.Decoder(_MetaOnly)
_anything = msgspec.json.Decoder(object)
_LONGEST_PROBLEM: Final = 500


def decode_object(resource: Resource[T], raw: msgspec.Raw) -> tuple[T | None, Unreadable | None]:
    """Return an object of a list or an event, or why it cannot be read, or both: one that stands in for it.

    Neither: it cannot be read and has no name.
    """
    try:
        return codec.decode_kept(resource, raw), None
    except DecodeError as e:
        problem = str(e)[:_LONGEST_PROBLEM]
    try:
        found = codec.from_json(_anything, raw)
    except msgspec.DecodeError:
        found = None
    metadata = lenient_metadata(found)
    if not metadata.name:
        log.error("object left out: it cannot be decoded", resource=repr(resource), problem=problem)
        return None, None
    if resource.type is not ResourceClaim:
        return None, Unreadable(_key(metadata), metadata.uid, problem)
    claim = stand_in(found, problem)
    unreadable = Unreadable(_key(metadata), metadata.uid, problem, holds_unknown=claim is None)
    return cast("T | None", claim), unreadable


def _key(metadata: ObjectMeta) -> ObjectKey:
    return ObjectKey(metadata.namespace, metadata.name)


def decode_event(resource: Resource[T], line: bytes) -> WatchEvent[T] | None:
    """Return an event of a watch; None, and a line in the log, where it is to be passed over.

    Raises:
        ApiError: the server ends the watch with an error.
        ApiUnavailable: the stream is broken.
    """
    try:
        event = codec.from_json(_event_decoder, line)
    except msgspec.DecodeError as e:
        raise ApiUnavailable(f"watch of {resource!r}: broken stream: {e}") from e
    if event.type == "ERROR":
        raise status.to_error(0, bytes(event.object), {})
    try:
        kind = WatchEventType(event.type)
    except ValueError:
        log.warning("watch event of unknown type passed over", resource=repr(resource), type=event.type)
        return None
    if kind is WatchEventType.BOOKMARK:
        # A custom resource's bookmark has metadata alone, so the kind's own struct may refuse it.
        try:
            meta = codec.from_json(_meta_decoder, event.object).metadata
        except msgspec.DecodeError as e:
            raise ApiUnavailable(f"watch of {resource!r}: broken bookmark: {e}") from e
        return WatchEvent(kind, cast("T", WireObject(metadata=meta)))
    item, unreadable = decode_object(resource, event.object)
    if unreadable is None:
        return None if item is None else WatchEvent(kind, item)
    if item is not None:
        return WatchEvent(kind, item, unreadable, stands_in=True)
    metadata = lenient_metadata(codec.from_json(_anything, event.object))
    return WatchEvent(kind, cast("T", WireObject(metadata=metadata)), unreadable)


def decode_answer(resource: Resource[T], data: bytes, asked: str) -> T:
    """Return the object with which the server has answered a request.

    Raises:
        ApiUnavailable: it cannot be read, so that it is not known what a write has done.
    """
    try:
        return codec.decode(resource.type, data)
    except DecodeError as e:
        raise ApiUnavailable(f"{asked}: the answer cannot be read: {str(e)[:_LONGEST_PROBLEM]}") from e


def list_without_items(beginning: bytes | bytearray) -> ListBody | None:
    """Return the metadata of a list of which only the beginning is there; None where it does not say.

    The API server writes the metadata first.
    """
    head, items, _ = bytes(beginning[:_LONGEST_HEAD]).partition(b'"items":[')
    try:
        return codec.from_json(LISTS, head + b'"items":[]}') if items else None
    except msgspec.DecodeError:
        return None


async def lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield lines of up to ``LARGEST_OBJECT`` bytes; longer ones are logged and passed over.

    aiohttp's own readline gives up at 128 KiB, and a slice can be larger.
    """
    pending = _Line()
    async for chunk in response.content.iter_any():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending.add(chunk[start:end])
            line = pending.take()
            start = end + 1
            if line.strip():
                yield line
        if start < len(chunk):
            pending.add(chunk[start:])
    rest = pending.take()
    if rest.strip():
        yield rest


class _Line:
    """Collects the parts of a line, unless it is too long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= LARGEST_OBJECT:
            self._parts.append(part)
        else:
            self._parts.clear()

    def take(self) -> bytes:
        """Return the line, empty where it was too long; the next one begins."""
        line, size = b"".join(self._parts), self._size
        self._parts.clear()
        self._size = 0
        if size > LARGEST_OBJECT:
            log.error("watch event passed over: it is too long", bytes=size, most=LARGEST_OBJECT)
        return line
