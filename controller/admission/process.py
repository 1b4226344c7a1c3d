"""The process that reviews, on the controller's side: starts it, looks whether it answers, replaces it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from controller.admission.wire import (
    LARGEST,
    Capacity,
    Certificate,
    Ping,
    Pong,
    Start,
    ToReviewer,
    line,
    pong_of,
)
from controller.process_limits import EXIT_MEMORY
from dra_driver.kube import Backoff

__all__ = ["ReviewProcess", "waited_for_processor"]

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 1.0
# Looks, not time: while this process itself is held up, the other one is not to blame.
_LOOKS: Final = 5
# The first answer comes when its modules are loaded, on a machine that is busy.
_FIRST_LOOKS: Final = 60
# Of a look before which the process has waited for a processor: a new one would wait as well.
_STARVED_LOOK: Final = 0.1
# One that has lived for so long is none that cannot work.
_STEADY_SECONDS: Final = 10.0


def waited_for_processor(pid: int) -> float:
    """Return the seconds that a process's first thread could have run but had no processor; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Time on a processor, time of waiting for one (both in nanoseconds), and how often it got one.
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


class ReviewProcess:
    """Keeps a process running that reviews.

    Attributes:
        answers: set while it does.
        pid: of the process that runs at present; 0: none does.
    """

    def __init__(
        self,
        start: Start,
        counted: Callable[[Pong], None],
        ended: Callable[[str], None],
        look_seconds: float = _LOOK_SECONDS,
        waited: Callable[[int], float] = waited_for_processor,
    ) -> None:
        """Connect the parts.

        Args:
            start: what each process is told first.
            counted: called with what has happened there.
            ended: called with why a process has ended that should not have: hangs, memory or ended.
            look_seconds: between two looks whether it answers.
            waited: returns the seconds that a process has waited for a processor.
        """
        self._look_seconds = look_seconds
        self._waited = waited
        self._start = start
        self._counted = counted
        self._ended = ended
        self._state: dict[type, Certificate | Capacity] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: Process | None = None
        self._asked = self._answered = 0
        self._why = ""
        self.answers = asyncio.Event()

    @property
    def pid(self) -> int:
        """See the class."""
        return self._process.pid if self._process is not None else 0

    def tell(self, state: Certificate | Capacity) -> None:
        """Tell the present process, and each one after it, what counts from now on."""
        self._state[type(state)] = state
        self._send(state)

    def begin_anew(self, start: Start) -> None:
        """Have another process take the place of the present one, which is told something else."""
        self._start = start
        self._kill("anew")

    async def run(self) -> None:
        """Keep a process running until cancelled."""
        backoff = Backoff(base=0.05, cap=10.0)
        while True:
            since = asyncio.get_running_loop().time()
            try:
                reason = await self._live()
            except (OSError, ValueError, msgspec.DecodeError) as e:
                log.error("the process that reviews cannot be used", error=str(e)[:500])
                reason = "ended"
            if reason == "anew":
                continue
            self._ended(reason)
            if asyncio.get_running_loop().time() - since >= _STEADY_SECONDS:
                backoff.reset()
            delay = backoff.next()
            log.error("the process that reviews has ended", reason=reason, again_in=round(delay, 2))
            await asyncio.sleep(delay)

    async def _live(self) -> str:
        """Run one process until it ends; return why it did."""
        self._asked = self._answered = 0
        self._why = ""
        here, there = socket.socketpair()
        with there:
            reader, writer = await asyncio.open_connection(sock=here, limit=LARGEST)
            try:
                self._process = process = await _begun(there, self._start.listening)
                there.close()
                self._writer = writer  # nothing is sent before what it begins with
                self._send(self._start)
                for state in self._state.values():
                    self._send(state)
                looking = asyncio.get_running_loop().create_task(self._look())
                try:
                    await self._listen(reader)
                finally:
                    looking.cancel()
                    self.answers.clear()
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    status = await process.wait()
                return self._why or ("memory" if status == EXIT_MEMORY else "ended")
            finally:
                self._process = self._writer = None
                writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take in what it says until it says no more.

        Raises:
            msgspec.DecodeError, ValueError: it makes no sense.
        """
        with contextlib.suppress(ConnectionError):
            while text := await reader.readline():
                pong = pong_of(text)
                if pong.number != self._answered + 1 or pong.number > self._asked:
                    raise ValueError(f"an answer to question {pong.number}, which is not the next one")
                self._answered = pong.number
                self.answers.set()
                self._counted(pong)

    async def _look(self) -> None:
        """Ask whether it is there, and end it where it is not."""
        looks, waited = 0.0, self._waited(self.pid)
        while True:
            if self._asked == self._answered:
                looks = 0.0
                self._asked += 1
                self._send(Ping(number=self._asked))
            elif looks >= (_LOOKS if self._answered else _FIRST_LOOKS):
                break
            await asyncio.sleep(self._look_seconds)
            before, waited = waited, self._waited(self.pid)
            looks += _STARVED_LOOK if waited - before >= self._look_seconds / 2 else 1
        self._kill("hangs")

    def _send(self, message: ToReviewer) -> None:
        if self._writer is not None:
            self._writer.write(line(message))

    def _kill(self, why: str) -> None:
        if self._process is not None and self._process.returncode is None:
            self._why = self._why or why
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)


async def _begun(connection: socket.socket, listening: tuple[int, ...]) -> Process:
    """Start a process.

    Raises:
        OSError: that is not possible now.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        __package__ or "",
        str(connection.fileno()),
        str(os.getpid()),
        pass_fds=[connection.fileno(), *listening],
        stdin=DEVNULL,
        stdout=DEVNULL,
        process_group=0,
        # The code of this process, wherever it is from, not what lies in the working directory.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
