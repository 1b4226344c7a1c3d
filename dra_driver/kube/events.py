"""Events that people find with ``kubectl describe``."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import structlog

from dra_driver.api.core import EVENTS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["EventRecorder"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

MESSAGE_BYTES = 1024  # the API server's limit
REMEMBERED = 4096
# The same text about the same object is counted at most this often (seconds).
REPEAT_SECONDS = 20.0


@dataclass(slots=True)
class _Known:
    name: str
    count: int
    written: float


@dataclass(frozen=True, slots=True)
class _Note:
    involved: dict[str, str]
    namespace: str
    type: str
    reason: str
    message: str

    @property
    def identity(self) -> tuple[str, ...]:
        """Identity of a note: two with the same one are one event."""
        return (self.involved["uid"], self.involved["kind"], self.type, self.reason, self.message)


class EventRecorder:
    """Writes core/v1 Events in the background; repeats become a count. Losing an event is never an error."""

    def __init__(self, client: KubeClient, component: str, clock: Clock) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._instance = f"{component}-{socket.gethostname()}"[:128]
        self._queue: asyncio.Queue[_Note] = asyncio.Queue(maxsize=1000)
        self._known: OrderedDict[tuple[str, ...], _Known] = OrderedDict()

    def event(
        self,
        resource: Resource[T],
        object_: T,
        type_: Literal["Normal", "Warning"],
        reason: str,
        message: str,
    ) -> None:
        """Queue one event about ``object_``; returns at once.

        Args:
            resource: kind of the object.
            object_: what the event is about.
            type_: Normal or Warning.
            reason: CamelCase, stable.
            message: for people; cut at 1024 bytes.
        """
        meta = object_.metadata
        involved = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": meta.name,
            "uid": meta.uid,
        }
        if meta.namespace:
            involved["namespace"] = meta.namespace
        note = _Note(involved, meta.namespace or "default", type_, reason, _cut(message))
        known = self._known.get(note.identity)
        if known is not None and self._clock.monotonic() - known.written < REPEAT_SECONDS:
            return
        try:
            self._queue.put_nowait(note)
        except asyncio.QueueFull:
            log.debug("event dropped: too many are waiting", reason=reason, name=meta.name)

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            note = await self._queue.get()
            try:
                await self._write(note)
            except DraError as e:
                log.info("event not written", reason=note.reason, error=str(e))
            finally:
                self._queue.task_done()

    async def drain(self) -> None:
        """Wait until everything queued is written (for tests and an orderly end)."""
        await self._queue.join()

    async def _write(self, note: _Note) -> None:
        now = self._clock.now()
        known = self._known.get(note.identity)
        if known is not None:
            if self._clock.monotonic() - known.written < REPEAT_SECONDS:
                return
            known.count += 1
            known.written = self._clock.monotonic()
            patch = {"count": known.count, "lastTimestamp": rfc3339(now)}
            try:
                await self._client.merge_patch(EVENTS, known.name, patch, note.namespace)
                return
            except (NotFound, Conflict):
                del self._known[note.identity]  # events expire after an hour
        name = self._name(note, now)
        await self._client.create(EVENTS, self._body(note, name, now), note.namespace)
        self._known[note.identity] = _Known(name, 1, self._clock.monotonic())
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _name(self, note: _Note, now: float) -> str:
        digest = hashlib.sha256(repr((note.identity, now, self._instance)).encode()).hexdigest()[:16]
        return f"{note.involved['name'][:230]}.{digest}"

    def _body(self, note: _Note, name: str, now: float) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace},
            "involvedObject": note.involved,
            "reason": note.reason,
            "message": note.message,
            "type": note.type,
            "count": 1,
            "firstTimestamp": rfc3339(now),
            "lastTimestamp": rfc3339(now),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _cut(message: str) -> str:
    raw = message.encode()
    if len(raw) <= MESSAGE_BYTES:
        return message
    return raw[: MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
