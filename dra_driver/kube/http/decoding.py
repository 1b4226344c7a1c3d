"""Bodies of the API server's answers: lists, watch events, kinds that are served."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TypeVar, cast

import aiohttp
import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.api.meta import ObjectMeta, Resource, WireObject
from dra_driver.api.server.watch import WatchEvent, WatchEventType
from dra_driver.errors import (
    ApiUnavailable,
    DecodeError,
)
from dra_driver.kube.http import status

__all__ = ["LISTS", "RESOURCES", "decode_event", "decode_object", "lines"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListBody(msgspec.Struct):
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


LISTS = msgspec.json.Decoder(_ListBody)
_event_decoder = msgspec.json.Decoder(_Event)
RESOURCES = msgspec.json.Decoder(_ResourceList)
_meta_decoder = msgspec.json.Decoder(_MetaOnly)


def decode_object(resource: Resource[T], raw: msgspec.Raw) -> T | None:
    """Return an object of a list; None, and a line in the log, where it cannot be decoded."""
    try:
        return codec.decode(resource.type, raw)
    except DecodeError as e:
        log.error("object left out: it cannot be decoded", resource=repr(resource), problem=str(e)[:500])
        return None


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
    item = decode_object(resource, event.object)
    return None if item is None else WatchEvent(kind, item)


async def lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield lines of any length: aiohttp's own readline gives up at 128 KiB, and a slice can be larger."""
    pending: list[bytes] = []
    async for chunk in response.content.iter_any():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending.append(chunk[start:end])
            line = b"".join(pending)
            pending.clear()
            start = end + 1
            if line.strip():
                yield line
        if start < len(chunk):
            pending.append(chunk[start:])
    rest = b"".join(pending)
    if rest.strip():
        yield rest
