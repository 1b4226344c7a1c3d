"""Copies of the worker that work something out beside it, send it, and end.

A copy is made by ``fork``, which the worker can do because it has one thread. It has everything that the
worker has, shares its memory, is bound in CPU time and memory, and loses nothing when it is killed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Final, NoReturn

from controller.allocate.worker import limits

__all__ = ["GRACE_SECONDS", "begin"]

GRACE_SECONDS: Final = 1.0
"""CPU time beyond what the work counts: for what it does not count, and for putting it into words."""


def begin(work: Callable[[], bytes], *, connection: int, memory: int, seconds: float) -> tuple[int, int]:
    """Begin to work in a copy of this process.

    Args:
        work: is done there, and what it returns is sent.
        connection: file descriptor of this process that the copy must not keep open.
        memory: bytes that it may take beyond what this process has.
        seconds: of CPU time that it may take, besides ``GRACE_SECONDS``.

    Returns:
        The pipe on which the result comes, and the copy's process.

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
        _work(work, there, worker, connection, memory, seconds)
    os.close(there)
    os.set_blocking(here, False)
    return here, process


def _work(
    work: Callable[[], bytes], pipe: int, worker: int, connection: int, memory: int, seconds: float
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
        limits.bound_copy(memory, seconds + GRACE_SECONDS)
        data = memoryview(work())
        while data:
            data = data[os.write(pipe, data) :]
        status = 0
    except MemoryError:
        status = limits.EXIT_MEMORY
    finally:
        os._exit(status)
