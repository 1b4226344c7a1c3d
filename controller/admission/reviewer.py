"""The process that reviews: HTTPS for the API server's AdmissionReviews, and their judgement.

Anybody who reaches the port has a say about what happens here. So this process has no API client, and what it
takes is bounded: connections, those of one caller, its large reviews that are received at a time, bytes, the
time of each step, the CPU time of each judgement, and memory. The controller looks whether it
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, Final

from aiohttp import web

from controller import process_limits
from controller.admission.installed_kinds import installed_kinds
from controller.admission.loading import load
from controller.admission.paths import CAPACITY_PATH, GATE_PATH, VALIDATE_PATH
from controller.admission.review import Judgement, gate, judge, read_review, refuse_capacity, write_review
from controller.admission.wire import MOST_REFUSED, Certificate, Pong, Refused, Start
from dra_driver.api.server.admission import AdmissionRequest
from dra_driver.errors import DecodeError
from dra_driver.serving import Limits, Port, serve

__all__ = ["LIMITS", "Reviewer"]

# The API server stores at most 1.5 MiB in one object; a review carries two at most. What is being received at
# a time is bounded to 32 MiB, whoever sends it. An API server opens a connection for each of the reviews that
# it sends at the same time.
LIMITS: Final = Limits(request_bytes=4 << 20, body_bytes=32 << 20, per_peer=64)
# Large reviews of one address that are received and judged at a time; further ones wait, unread. The API
# server sends few that are, and a slow one holds up no small one.
_LARGE_BYTES: Final = 256 << 10
_LARGE_OF_ONE_PEER: Final = 2


class _OutOfTime(BaseException):
    """A judgement has taken its CPU time. Not an ``Exception``, which what it interrupts may catch."""


class Reviewer:
    """Serves the webhooks.

    Args:
        start: how reviews are judged, and what they may take.

    Attributes:
        keeps_capacity: whether the API server keeps requests for capacity; None: that is not known.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self.keeps_capacity: bool | None = None
        self._kinds = installed_kinds()
        self._names = frozenset(start.client_names)
        self._turns = _Turns(_LARGE_OF_ONE_PEER)
        self._reviews: Counter[str] = Counter()
        self._refused: list[Refused] = []
        signal.signal(signal.SIGPROF, _out_of_time)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        if start.client_authorities:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(cadata=start.client_authorities)

    def install(self, certificate: Certificate) -> None:
        """Serve another certificate from now on; connections that are open keep theirs.

        Raises:
            ssl.SSLError: it cannot be used.
        """
        load(self._context, certificate)

    def pong(self, number: int) -> Pong:
        """Return what has happened since the last time."""
        found = Pong(number=number, reviews=dict(self._reviews), refused=tuple(self._refused))
        self._reviews.clear()
        self._refused.clear()
        return found

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Port]:
        """Serve for as long as the block runs. Without a certificate connections fail in their handshake."""
        listening = [socket.socket(fileno=number) for number in self._start.listening]
        limits = replace(LIMITS, body=self._start.receive_seconds + 5)
        async with serve(
            None,
            0,
            self._app,
            flag="--admission-port",
            limits=limits,
            context=self._context,
            listening=listening,
        ) as port:
            yield port

    def _app(self, port: Port) -> web.Application:
        app = web.Application(middlewares=[port.middleware], client_max_size=LIMITS.request_bytes)
        app.router.add_post(VALIDATE_PATH, self._handler(port, self._judge))
        app.router.add_post(CAPACITY_PATH, self._handler(port, self.judge_capacity))
        app.router.add_post(
            GATE_PATH, self._handler(port, lambda r: gate(r, resources=self._start.resources))
        )
        return app

    def _judge(self, request: AdmissionRequest) -> Judgement:
        return judge(request, self._start.drivers, kinds=self._kinds, others=self._start.others)

    def judge_capacity(self, request: AdmissionRequest) -> Judgement:
        """Refuse requests for capacity, unless the API server is known to keep them."""
        return refuse_capacity(request, self._start.drivers[0], kept=self.keeps_capacity)

    def _handler(
        self, port: Port, decide: Callable[[AdmissionRequest], Judgement]
    ) -> Callable[[web.Request], Any]:
        async def handle(http: web.Request) -> web.Response:
            if not self._is_expected(http):
                self._count("", "unauthorized")
                answer = web.Response(status=403, text="this is no certificate of the API server's\n")
                answer.force_close()
                return answer
            if http.content_type != "application/json":
                return web.Response(status=415, text="expected application/json\n")
            try:
                async with asyncio.timeout(self._start.receive_seconds), self._turn(http):
                    return self.answer(await port.body(http), decide)
            except TimeoutError:
                return web.Response(status=408, text=f"no review within {self._start.receive_seconds:g} s\n")
            except MemoryError:
                # What was left half-done is not known: the controller starts another process.
                os._exit(process_limits.EXIT_MEMORY)

        return handle

    def _turn(self, http: web.Request) -> contextlib.AbstractAsyncContextManager[None]:
        length = http.content_length
        if length is not None and length <= _LARGE_BYTES:
            return contextlib.nullcontext()
        return self._turns.one(http.remote or "")

    def answer(self, body: bytes, decide: Callable[[AdmissionRequest], Judgement]) -> web.Response:
        """Return the answer to a review."""
        try:
            with _cpu_time(self._start.cpu_seconds):
                request = read_review(body)
                judgement = decide(request)
                answer = write_review(judgement.response)
        except DecodeError as e:
            self._count("", "unreadable")
            return web.Response(status=400, text=f"{str(e)[:500]}\n")
        except _OutOfTime:
            self._count("", "stopped")
            return web.Response(
                status=503, text=f"not judged within {self._start.cpu_seconds:g} s of CPU time\n"
            )
        self._count(_known(request.kind.kind), judgement.outcome)
        if judgement.outcome == "refused" and len(self._refused) < MOST_REFUSED:
            status = judgement.response.status
            self._refused.append(
                Refused(
                    kind=_known(request.kind.kind),
                    object=f"{request.namespace}/{request.name}"[:320],
                    reason=status.message[:1000] if status is not None else "",
                )
            )
        return web.Response(body=answer, content_type="application/json")

    def _is_expected(self, http: web.Request) -> bool:
        if not self._names:
            return True
        shown = http.transport.get_extra_info("peercert") if http.transport is not None else None
        return not self._names.isdisjoint(_names_of(shown or {}))

    def _count(self, kind: str, outcome: str) -> None:
        self._reviews[f"{kind}/{outcome}"] += 1


class _Turns:
    """Lets a few reviews of each peer be worked on at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @contextlib.asynccontextmanager
    async def one(self, peer: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs."""
        free, users = self._of.get(peer, (asyncio.Semaphore(self._most), 0))
        self._of[peer] = (free, users + 1)
        try:
            async with free:
                yield
        finally:
            free, users = self._of.pop(peer)
            if users > 1:
                self._of[peer] = (free, users - 1)


def _known(kind: str) -> str:
    """Return a bounded value for a label, whatever was sent."""
    return kind if kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod") else "other"


def _names_of(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Return common name and DNS names of a certificate, as ``SSLSocket.getpeercert`` shows it."""
    for part in certificate.get("subject", ()):
        yield from (value for key, value in part if key == "commonName")
    yield from (value for key, value in certificate.get("subjectAltName", ()) if key == "DNS")


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise _OutOfTime


@contextlib.contextmanager
def _cpu_time(seconds: float) -> Iterator[None]:
    """Let the block take so many seconds of CPU time.

    Raises:
        _OutOfTime: it has taken more.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
