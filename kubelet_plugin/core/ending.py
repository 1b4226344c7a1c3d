"""The end of the process, which nothing may hold up: threads inside of a driver that hangs cannot be ended.

What is durable survives a process that ends anywhere, so that there is nothing such a thread is waited for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final, NoReturn

import structlog

__all__ = ["GRACE_SECONDS", "end_within", "hang", "leave"]

# The DaemonSet gives 50 s (terminationGracePeriodSeconds); then the kubelet kills.
GRACE_SECONDS: Final = 48.0
# Longer than a wait for events of the hardware takes.
_JOIN_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


def end_within(seconds: float) -> threading.Timer:
    """End the process with status 1 after so many seconds, unless the timer is cancelled before."""
    timer = threading.Timer(seconds, _give_up, (seconds,))
    timer.daemon = True
    timer.start()
    return timer


def hang() -> bool:
    """Return whether threads of the process do not end within two seconds."""
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in _others():
        thread.join(max(0.0, deadline - time.monotonic()))
    return bool(_others())


def leave(status: int) -> int:
    """Return the exit status; if threads of the process do not end, end it here without them."""
    if hang():
        threads = sorted(t.name for t in _others())
        log.warning("ending although calls of libraries have not come back", threads=threads)
        _exit(status)
    return status


def _others() -> list[threading.Thread]:
    here = (threading.main_thread(), threading.current_thread())
    return [t for t in threading.enumerate() if t not in here and not t.daemon]


def _give_up(seconds: float) -> NoReturn:
    log.error("the orderly end takes too long; ending without it", seconds=seconds)
    _exit(1)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
