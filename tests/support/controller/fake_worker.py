"""Workers in this process that do what no worker in order does, for scenarios in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from late_answers import SlowLaneInPlace

from controller.allocate.worker.sent_answers import Answer
from controller.allocate.worker.service import Service
from controller.allocate.worker.wire import Code, Frame, Frames, frame
from dra_driver.api import codec

__all__ = ["FakeWorker", "FakeWorkers", "changed", "whole"]

HIGH_WATER = 1 << 16


class _Service(Service):
    """The worker's, without what is done to a process of its own."""

    def tidy(self) -> None:
        """Leave the collector of garbage as it is."""


class FakeWorker:
    """Implements ``Child`` with the worker's service.

    Attributes:
        delay: seconds from what it is sent to what it sends.
        spoil: what it sends in place of each message; nothing where that is empty.
        reads: whether it takes what is sent.
        works: whether it does anything about it.
        is_stopped: whether a signal has stopped it.
        service: that answers.
    """

    def __init__(self, delay: Callable[[], float], spoil: Callable[[Frame], bytes]) -> None:
        self.delay = delay
        self.spoil = spoil
        self.reads = self.works = True
        self.is_stopped = False
        self.cpu_seconds = 0.0
        self.switches = 0
        self.has_ended = False
        self._unread: deque[bytes] = deque()
        self._taken = asyncio.Event()
        self._frames = Frames()
        self._stream = asyncio.StreamReader()
        self._last = 0.0
        sent = Frames()
        self.service = _Service(lambda data: self._send_all(sent.feed(data)))

    # --- the controller's side ------------------------------------------------------------------------------

    @property
    def unread(self) -> int:
        """See ``Child.unread``."""
        return sum(map(len, self._unread))

    async def read(self) -> bytes:
        """See ``Child.read``."""
        return await self._stream.read(1 << 18)

    def write(self, data: bytes) -> None:
        """See ``Child.write``."""
        if not self.has_ended:
            self._unread.append(data)
            self.go_on()

    async def drain(self) -> None:
        """See ``Child.drain``."""
        while self.unread > HIGH_WATER and not self.has_ended:
            self._taken.clear()
            await self._taken.wait()
        if self.has_ended:
            raise ConnectionResetError

    def abort(self) -> None:
        """See ``Child.abort``."""
        self.kill()

    def kill(self) -> None:
        """See ``Child.kill``."""
        if not self.has_ended:
            self.has_ended = True
            self._unread.clear()
            self._taken.set()
            self._stream.feed_eof()

    async def end(self) -> str:
        """See ``Child.end``."""
        self.kill()
        await asyncio.sleep(0.01)
        return "it was killed"

    # --- the worker's side ----------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Take what was sent, and do something about it."""
        while self._unread and self.reads and not self.is_stopped and not self.has_ended:
            data = self._unread.popleft()
            self._taken.set()
            for message in self._frames.feed(data) if self.works else ():
                self.service.handle(message)
                if message.code == Code.START:
                    slow: Any = SlowLaneInPlace(self.service)
                    self.service.slow = slow

    def _send_all(self, messages: Iterable[Frame]) -> None:
        # In order, however long each takes.
        loop = asyncio.get_running_loop()
        for message in messages:
            self._last = max(self._last, loop.time() + self.delay())
            loop.call_at(self._last, self._arrive, self.spoil(message))

    def _arrive(self, data: bytes) -> None:
        if not self.has_ended and data:
            self._stream.feed_data(data)


class FakeWorkers:
    """Starts one fake worker after the other.

    Attributes:
        delay: of the next ones.
        spoil: of the next ones.
        mood: done to the next ones before they are told anything.
        started: all so far.
    """

    def __init__(self) -> None:
        self.delay: Callable[[], float] = lambda: 0.0
        self.spoil: Callable[[Frame], bytes] = whole
        self.mood: Callable[[FakeWorker], None] = lambda _: None
        self.started: list[FakeWorker] = []

    async def start(self) -> FakeWorker:
        """Start a worker."""
        await asyncio.sleep(0.1)
        self.started.append(FakeWorker(self.delay, self.spoil))
        self.mood(self.last)
        return self.started[-1]

    @property
    def last(self) -> FakeWorker:
        """The worker that was started last."""
        return self.started[-1]


def whole(message: Frame) -> bytes:
    """Return the bytes of a message as it is."""
    return frame(message.code, message.number, msgspec.Raw(message.body) if message.body else None)


def changed(message: Frame, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the bytes of a message, with its content changed where it is an answer."""
    if message.code != Code.ANSWER:
        return whole(message)
    body = msgspec.json.decode(message.body)
    change(body)
    codec.decode(Answer, codec.encode(body))  # it is wrong, but in form
    return frame(message.code, message.number, body)
