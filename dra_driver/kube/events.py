"""Events that people find with ``kubectl describe``: one per object and reason, limited in rate."""

from __future__ import annotations

import asyncio
import hashlib
import math
import socket
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import structlog

from dra_driver.api.core import EVENTS, Event
from dra_driver.api.meta import Resource, WireObject
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube.clock import rfc3339
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.ports import Clock, KubeClient

__all__ = ["EventRecorder", "cut_message"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

MESSAGE_BYTES: Final = 1024  # the API server's limit
# Events whose names and counts are known; of others the API server says that they are there.
REMEMBERED: Final = 10_000
# Events that wait to be written: of one namespace, and in all. More would be no news when their turn comes.
MOST_OF_NAMESPACE: Final = 600
MOST_WAITING: Final = 4096
# An Event that is not written by then would be no news.
LONGEST_WAIT_SECONDS: Final = 600.0
# Between two writes of one Event: at first, and in the end. It expires an hour after the last one.
REPEAT_SECONDS: Final = 20.0
LONGEST_REPEAT_SECONDS: Final = 900.0
# Where the rate is limited: this many Events may be written at once after a pause.
BURST: Final = 300
# A repeat waits while fewer Events than half of a burst could be written at once, and tries again then.
_YIELDING_SECONDS: Final = 30.0

_Identity = tuple[str, str, str, str, str, str]


@dataclass(slots=True)
class _Known:
    """What was written of an Event.

    Attributes:
        count: as it was last written.
        more: how often it happened since.
        text: hash of the message that was last written.
        written: when that was, by the monotonic clock.
        delay: seconds until it may be written again.
    """

    count: int
    more: int
    text: int
    written: float
    delay: float


@dataclass(frozen=True, slots=True)
class _Note:
    involved: dict[str, str]
    namespace: str
    type: str
    reason: str
    about: str
    message: str
    noted: float

    @property
    def identity(self) -> _Identity:
        """Identity of a note: two with the same one are one Event."""
        involved = self.involved
        return (self.namespace, involved["uid"], involved["kind"], self.type, self.reason, self.about)


class EventRecorder:
    """Writes core/v1 Events in the background. Losing an Event is never an error.

    There is one Event per object and reason. What happens again becomes its count, and its message that of
    the last time; it is written again after 20 seconds, then after twice as long each time, up to 15 minutes.
    Its name follows from what it is about, so that another process goes on with it. Namespaces take turns,
    and the newest Event of one comes first: that of a pod which waits now does not wait for those of hundreds
    of pods before it, most of which are gone.

    Args:
        client: of the API server.
        component: that reports.
        clock: for timestamps and intervals.
        per_second: how many Events are written in the long run, repeats after new ones; if None, any number.
    """

    def __init__(
        self, client: KubeClient, component: str, clock: Clock, *, per_second: float | None = None
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._instance = f"{component}-{socket.gethostname()}"[:128]
        self._bucket = _Bucket(BURST, per_second or math.inf, clock.monotonic())
        self._queue: WorkQueue[_Identity] = WorkQueue("events", tenant=lambda identity: identity[0])
        self._notes: dict[_Identity, _Note] = {}
        # Those of them that are no repeats, by namespace, the newest last. An entry of the queue is a turn
        # for any of its namespace.
        self._fresh: dict[str, dict[_Identity, None]] = {}
        self._waiting: Counter[str] = Counter()  # by namespace
        self._known: OrderedDict[_Identity, _Known] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_failing = False

    def event(
        self,
        resource: Resource[T],
        object_: T,
        type_: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        about: str = "",
    ) -> None:
        """Queue one Event about ``object_``; returns at once.

        Args:
            resource: kind of the object.
            object_: what the Event is about.
            type_: Normal or Warning.
            reason: CamelCase, stable.
            message: for people; cut at 1024 bytes.
            about: which of several things of the object, such as a device of a Node: each has its own Event.
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
        now = self._clock.monotonic()
        note = _Note(involved, meta.namespace or "default", type_, reason, about, cut_message(message), now)
        identity = note.identity
        known, wait = self._known.get(identity), 0.0
        if known is not None:
            known.more += 1
            wait = known.written + known.delay - now
            if wait > 0 and known.text == hash(note.message):
                return
        if identity not in self._notes:
            fresh = self._fresh.get(note.namespace)
            if self._waiting[note.namespace] >= MOST_OF_NAMESPACE and fresh:
                self._take(next(iter(fresh)))
            if self._waiting[note.namespace] >= MOST_OF_NAMESPACE or len(self._notes) >= MOST_WAITING:
                log.debug("event dropped: too many are waiting", reason=reason, name=meta.name)
                return
            self._waiting[note.namespace] += 1
            if known is None:
                self._fresh.setdefault(note.namespace, {})[identity] = None
        self._notes[identity] = note
        if wait > 0:
            self._queue.add_after(identity, wait)
        else:
            self._idle.clear()
            self._queue.add(identity)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        try:
            while True:
                identity = await self._queue.get()
                try:
                    await self._next(identity)
                    self._is_failing = False
                except DraError as e:
                    if not self._is_failing:
                        log.info("Events cannot be written", reason=identity[4], error=str(e))
                    self._is_failing = True
                finally:
                    self._queue.done(identity)
                    if self._queue.idle:
                        self._idle.set()
        finally:
            self._queue.close()

    async def drain(self) -> None:
        """Wait until everything that is due is written (for tests and an orderly end)."""
        await self._idle.wait()

    async def _next(self, identity: _Identity) -> None:
        """Write one Event of a namespace: a repeat when it is its turn, else the newest one."""
        namespace, now = identity[0], self._clock.monotonic()
        known = self._known.get(identity)
        repeats = identity in self._notes and identity not in self._fresh.get(namespace, ())
        if repeats and known is not None:
            left = known.written + known.delay - now
            if left > 0 or not self._bucket.is_half_full(now):
                self._queue.add_after(identity, max(left, _YIELDING_SECONDS))
                repeats = False
        if not repeats and namespace not in self._fresh:
            return
        await asyncio.sleep(self._bucket.take(now))
        if not repeats:
            if namespace not in self._fresh:
                return
            identity, known = next(reversed(self._fresh[namespace])), None
        note = self._take(identity)
        if namespace in self._fresh:
            self._queue.add(next(reversed(self._fresh[namespace])))  # that there is a turn for each of them
        if note is not None and self._clock.monotonic() - note.noted <= LONGEST_WAIT_SECONDS:
            await self._write(note, known)

    def _take(self, identity: _Identity) -> _Note | None:
        note = self._notes.pop(identity, None)
        if note is not None:
            self._waiting[note.namespace] -= 1
            if not self._waiting[note.namespace]:
                del self._waiting[note.namespace]
            fresh = self._fresh.get(note.namespace, {})
            fresh.pop(identity, None)
            if not fresh:
                self._fresh.pop(note.namespace, None)
        return note

    async def _write(self, note: _Note, known: _Known | None) -> None:
        name = self._name(note)
        if known is not None:
            known.count, known.more = known.count + known.more, 0
            known.written, known.text = self._clock.monotonic(), hash(note.message)
            known.delay = min(2 * known.delay, LONGEST_REPEAT_SECONDS)
            self._known.move_to_end(note.identity)
            try:
                await self._again(note, name, {"count": known.count})
                return
            except (NotFound, Conflict):
                del self._known[note.identity]  # Events expire after an hour
        try:
            await self._client.create(EVENTS, self._body(note, name), note.namespace)
            count = 1
        except Conflict:
            # A process before this one has written it.
            count = (await self._again(note, name, {})).count
        self._known[note.identity] = _Known(
            count, 0, hash(note.message), self._clock.monotonic(), REPEAT_SECONDS
        )
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    async def _again(self, note: _Note, name: str, count: dict[str, int]) -> Event:
        patch = {**count, "message": note.message, "lastTimestamp": rfc3339(self._clock.now())}
        return await self._client.merge_patch(EVENTS, name, patch, note.namespace)

    def _name(self, note: _Note) -> str:
        digest = hashlib.sha256(repr((note.identity, self._component)).encode()).hexdigest()[:16]
        return f"{note.involved['name'][:230]}.{digest}"

    def _body(self, note: _Note, name: str) -> dict[str, Any]:
        now = rfc3339(self._clock.now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": note.namespace},
            "involvedObject": note.involved,
            "reason": note.reason,
            "message": note.message,
            "type": note.type,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


class _Bucket:
    """A token bucket that can be in debt: ``take`` returns how long to wait."""

    def __init__(self, size: int, per_second: float, now: float) -> None:
        self._size, self._rate = float(size), per_second
        self._level, self._at = float(size), now

    def is_half_full(self, now: float) -> bool:
        """Return whether there are tokens for what can wait."""
        self._fill(now)
        return self._level >= self._size / 2

    def take(self, now: float) -> float:
        """Take a token; return the seconds after which it may be used."""
        self._fill(now)
        self._level -= 1.0
        return max(0.0, -self._level / self._rate)

    def _fill(self, now: float) -> None:
        elapsed, self._at = now - self._at, now
        if self._rate == math.inf:
            self._level = self._size
        elif elapsed > 0:
            self._level = min(self._size, self._level + elapsed * self._rate)


def cut_message(message: str) -> str:
    """Return a message for people, cut at the length that the API server takes for an Event."""
    raw = message.encode()
    if len(raw) <= MESSAGE_BYTES:
        return message
    return raw[: MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
