"""Copies of the worker that work something out beside it, send it, and end.

A copy is made by ``fork``, which the worker can do because it has one thread. It has everything that the
worker has, shares its memory, is bound in CPU time and memory, and loses nothing when it is killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from controller import process_limits as limits

__all__ = ["GRACE_SECONDS", "Copy", "Ended", "begin"]

GRACE_SECONDS: Final = 1.0
"""CPU time beyond what the work counts: for what it does not count, and for putting it into words."""

_CHUNK: Final = 1 << 16


class Ended(NamedTuple):
    """How a copy has ended.

    Attributes:
        status: as of ``wait``.
        seconds: of CPU time that it took.
    """

    status: int
    seconds: float

    @property
    def has_result(self) -> bool:
        """Whether it has sent all of its result."""
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) == 0

    @property
    def lacked_memory(self) -> bool:
        """Whether it needed more memory than it may take."""
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) == limits.EXIT_MEMORY

    @property
    def was_stopped(self) -> bool:
        """Whether it took more CPU time than it may, or was killed."""
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) in (signal.SIGXCPU, signal.SIGKILL)


@dataclass(slots=True)
class Copy:
    """A copy at work.

    Attributes:
        pipe: on which its result comes.
        process: its number.
        data: that it has sent so far.
    """

    pipe: int
    process: int
    data: bytearray = field(default_factory=bytearray)

    def read(self, most: int) -> Ended | None:
        """Take in what has been sent; a copy that sends more than ``most`` bytes is stopped.

        Returns:
            How it has ended; None while there is more to come.
        """
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.pipe, _CHUNK):
                self.data += data
                if len(self.data) > most:
                    self.stop()
                    break
            os.close(self.pipe)
            _, status, used = os.wait4(self.process, 0)
            return Ended(status, used.ru_utime + used.ru_stime)
        return None

    def stop(self) -> None:
        """Stop it; ``read`` finds that it has ended."""
        os.kill(self.process, signal.SIGKILL)

    def close(self) -> None:
        """Stop it and leave nothing of it."""
        self.stop()
        os.close(self.pipe)
        os.waitpid(self.process, 0)


def begin(work: Callable[[], bytes], *, connection: int, memory: int, seconds: float, nice: int = 5) -> Copy:
    """Begin to work in a copy of this process.

    Args:
        work: is done there, and what it returns is sent.
        connection: file descriptor of this process that the copy must not keep open.
        memory: bytes that it may take beyond what this process has.
        seconds: of CPU time that it may take, besides ``GRACE_SECONDS``.
        nice: by how much it comes after this process where processors are short.

    Raises:
        OSError: there are no more processes, files or memory.
    """
    worker = os.getpid()
    here, there = os.pipe()
    try:
        process = os.fork()
    except BaseException:
        os.close(here)
        os.close(there)
        raise
    if process == 0:
        os.close(here)
        _work(work, there, worker, connection, memory, seconds, nice)
    os.close(there)
    os.set_blocking(here, False)
    return Copy(here, process)


def _work(
    work: Callable[[], bytes],
    pipe: int,
    worker: int,
    connection: int,
    memory: int,
    seconds: float,
    nice: int,
) -> NoReturn:
    """Work, send the result, and end; nothing of the worker goes on here."""
    status = 1
    try:
        # It would copy the memory that is shared with the worker.
        gc.disable()
        # The controller must see at once that the worker has ended.
        os.close(connection)
        limits.end_with_parent(worker)
        limits.prefer_to_end(1000)
        limits.bound_copy(memory, seconds + GRACE_SECONDS, nice)
        data = memoryview(work())
        while data:
            data = data[os.write(pipe, data) :]
        status = 0
    except MemoryError:
        status = limits.EXIT_MEMORY
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)
