"""The worker's process: started, told of every change, asked, stopped, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from controller.allocate.answers.decider import Answered, WorkerEnded
from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Change, PodQuestion, Settings
from controller.allocate.worker.wire import (
    Answer,
    Code,
    Frame,
    Frames,
    OutOfDate,
    Start,
    claims_taken,
    decision_of,
    frame,
    frame_of_change,
    pods_placed,
)
from dra_driver.api import codec
from dra_driver.errors import DecodeError
from dra_driver.kube import Backoff

__all__ = ["Limits", "WorkerProcess", "answered_by"]

log = structlog.get_logger(__name__)

_CHUNK: Final = 1 << 18
# The event loop is held for so long at most while a new worker is told what there is.
_SLICE_SECONDS: Final = 0.005
# Looks at the worker in the time that a question may take.
_LOOKS: Final = 4
# A worker that gets no processor is not to blame for it.
_STARVED_FACTOR: Final = 10
_CPU_TICKS: Final = 100.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What questions may take.

    Attributes:
        seconds: of CPU time for one in the fast lane, until the worker is stopped.
        memory: bytes beyond what the worker has.
        slow: questions of the slow lane at a time.
    """

    seconds: float = 2.0
    memory: int = 256 << 20
    slow: int = 1


@dataclass(slots=True)
class _Asked:
    question: PodQuestion
    answer: asyncio.Future[Answered]
    unwanted: Callable[[Answered], None]


class WorkerProcess:
    """Implements ``Answers`` with a process of its own.

    Attributes:
        restarts: how often a worker has ended that should not have.

    Args:
        journal: that the worker is told.
        settings: of the decisions.
        limits: that end a question.
        report: called with the reason whenever a worker has ended.
    """

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        limits: Limits,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._limits = limits
        self._report = report
        self._life = 0
        self._ready = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        # The question of the fast lane that is worked on; the one that the worker is stopped for.
        self._begun: int | None = None
        self._blamed: int | None = None
        self._process: Process | None = None
        self._was_ready = False
        self.restarts = 0

    # --- questions ------------------------------------------------------------------------------------------

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        """See ``Answers.ask``."""
        while not self._ready.is_set():
            await self._ready.wait()
        self._number += 1
        number = self._number
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(question, answer, unwanted)
        self._write(frame(Code.QUESTION, number, question))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                unwanted(answer.result())
            raise

    def _write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)

    def _send(self, version: int, change: Change) -> None:
        self._write(frame_of_change(version, change))

    # --- life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a worker running until cancelled."""
        backoff = Backoff(base=0.05, cap=10.0)
        while True:
            try:
                reason = await self._live()
            except (OSError, DecodeError) as e:
                reason = str(e)
            self.restarts += 1
            self._report("limit" if self._blamed is not None else "ended")
            if self._was_ready:
                # It is no worker that cannot start.
                backoff.reset()
            delay = 0.0 if self._blamed is not None else backoff.next()
            log.warning("the worker that decides has ended", reason=reason, again_in=round(delay, 2))
            self._blamed = None
            await asyncio.sleep(delay)

    async def _live(self) -> str:
        """Run one worker until it ends; return why it did."""
        here, there = socket.socketpair()
        try:
            with there:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "controller.allocate.worker",
                    str(there.fileno()),
                    pass_fds=[there.fileno()],
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    # The code of this process, wherever it is from, not what lies in the working directory.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
        except BaseException:
            here.close()
            raise
        self._process = process
        self._was_ready = False
        try:
            reader, self._writer = await asyncio.open_connection(sock=here)
            self._life += 1
            self._journal.freshness.begin(self._life)
            await self._tell(self._writer)
            watching = asyncio.get_running_loop().create_task(self._watch(process))
            try:
                await self._listen(reader)
            finally:
                watching.cancel()
        finally:
            self._end()
            self._kill(process)
            status = await process.wait()
        return f"exit status {status}"

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        """Tell a new worker everything that there is; changes are passed on meanwhile."""
        limits = self._limits
        began = since = time.monotonic()
        self._write(frame(Code.START, 0, Start(self._settings, limits.slow, limits.memory)))
        self._journal.send_to(self._send)
        for count, change in enumerate(self._journal.replay(), 1):
            self._write(frame_of_change(self._journal.version, change))
            if count % 16 == 0 and time.monotonic() - since > _SLICE_SECONDS:
                await writer.drain()
                await asyncio.sleep(0)
                since = time.monotonic()
        self._write(frame(Code.READY, self._journal.version))
        await writer.drain()
        log.info("the worker that decides has started", seconds=round(time.monotonic() - began, 3))
        self._ready.set()
        self._was_ready = True

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        # What became of the worker, its exit status says.
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                for message in frames.feed(data):
                    self._received(message)

    def _end(self) -> None:
        self._journal.send_to(None)
        self._ready.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        asked, self._asked = self._asked, {}
        if self._blamed is None:
            # It ended by itself while it worked on this one, if it worked.
            self._blamed = self._begun
        self._begun = None
        for number, one in asked.items():
            if not one.answer.done():
                one.answer.set_exception(WorkerEnded(blamed=number == self._blamed))

    # --- messages -------------------------------------------------------------------------------------------

    def _received(self, message: Frame) -> None:
        asked = self._asked.get(message.number)
        if message.code == Code.BEGUN:
            self._begun = message.number
            return
        if self._begun == message.number:
            self._begun = None
        if message.code != Code.ANSWER:
            raise DecodeError(f"a message of unknown code {message.code}")
        answer = codec.decode(Answer, message.body)
        if asked is None:
            raise DecodeError(f"an answer to question {message.number}, which was not asked")
        del self._asked[message.number]
        answered = answered_by(answer, asked.question, self._life, self._journal)
        if asked.answer.done():
            asked.unwanted(answered)
        else:
            asked.answer.set_result(answered)

    # --- limits ---------------------------------------------------------------------------------------------

    async def _watch(self, process: Process) -> None:
        """Stop a worker that works on one question for too long."""
        limit = self._limits.seconds
        question, cpu, since, stopped = None, 0.0, 0.0, False
        while True:
            await asyncio.sleep(limit / _LOOKS)
            if process.returncode is not None and self._writer is not None:
                # Something of it lives on and holds the connection.
                self._writer.transport.abort()
                return
            seconds, was_stopped, stopped = _cpu_seconds(process), stopped, _is_stopped(process)
            if stopped and was_stopped:
                log.error("the worker that decides was stopped by a signal; it is replaced")
                self._kill(process)
                return
            now = self._begun
            if now is None or now != question:
                question, cpu, since = now, seconds, time.monotonic()
                continue
            used, waited = seconds - cpu, time.monotonic() - since
            if used < limit and waited < _STARVED_FACTOR * limit:
                # This process, or the worker, may have been held up by the machine.
                continue
            log.error(
                "a decision took too long; the worker is replaced",
                pod=str(self._asked[now].question.pod.key) if now in self._asked else "",
                cpu_seconds=round(used, 2),
                seconds=round(waited, 2),
            )
            self._blamed = now
            self._kill(process)
            return

    @staticmethod
    def _kill(process: Process) -> None:
        # ``Process.kill`` looks first whether it has ended, and takes its status from whatever waits for it.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _cpu_seconds(process: Process) -> float:
    """Return the CPU time of the worker, without that of its copies."""
    facts = _facts(process)
    return (int(facts[11]) + int(facts[12])) / _CPU_TICKS if facts else 0.0


def _is_stopped(process: Process) -> bool:
    """Return whether the worker is stopped (SIGSTOP): it will not end by itself, nor answer."""
    return _facts(process)[:1] == ["T"]


def _facts(process: Process) -> list[str]:
    """Return state, parent and so on (proc_pid_stat(5)); empty where the process has ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()
    return []


def answered_by(answer: Answer, question: PodQuestion, life: int, journal: Journal) -> Answered:
    """Return what an answer says with the claims as they are known here.

    Args:
        answer: as it was received.
        question: that it is to.
        life: of the worker that gave it.
        journal: of what the worker was told.
    """
    # Answers of the slow lane are not assumed by the worker, so nothing of them is to be given back.
    taken = () if answer.slow else tuple((ref.key, ref.uid) for ref in claims_taken(answer))
    placed = () if answer.slow else tuple(pods_placed(answer, question.pod))
    knowledge = Knowledge(answer.version, life, answer.answers, answer.slow)
    try:
        decision = decision_of(answer, journal.claim)
    except OutOfDate:
        return Answered(None, knowledge, taken, placed)
    return Answered(answer.with_decision(decision), knowledge, taken, placed)
