"""Limits that the operating system holds: memory, CPU time, and which process it ends first."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["EXIT_MEMORY", "bound_copy", "bound_memory", "end_with_parent", "memory", "prefer_to_end"]

EXIT_MEMORY: Final = 70
"""Exit status of a process that a question took too much memory of."""
_PAGE: Final = resource.getpagesize()
_PR_SET_PDEATHSIG: Final = 1
_STATM: Final = Path("/proc/self/statm")
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")


def _used() -> int:
    """Return the bytes of address space of this process."""
    return int(_STATM.read_bytes().split(maxsplit=1)[0]) * _PAGE


@contextlib.contextmanager
def memory(more: int) -> Iterator[None]:
    """Let the block take so many bytes more than the process has; beyond, there is ``MemoryError``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _used() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def bound_copy(more: int, seconds: float, nice: int) -> None:
    """Limit this process for good: to so many bytes more than it has, to seconds of CPU time, in priority."""
    cpu = math.ceil(seconds)
    bound_memory(more)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        os.nice(nice)


def bound_memory(more: int) -> None:
    """Limit this process for good to so many bytes more than it has; beyond, there is ``MemoryError``."""
    limit = _used() + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = limit if hard < 0 else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that made it ends (prctl(2)), or has ended already.

    Args:
        parent: that made it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def prefer_to_end(score: int) -> None:
    """Have the kernel end this process rather than others where memory runs out.

    Args:
        score: 0 to 1,000 (proc_pid_oom_score_adj(5)).
    """
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(str(score), encoding="ascii")
