"""Background tasks that outlast a shortage of what the machine or the process has a limit of."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from dra_driver.kube import Backoff

__all__ = ["endure", "is_shortage"]

# Files of the process, files of the machine, memory, buffers, space. They come back without a restart, which
# would need them too.
_SHORT: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN}
)
# A task that has run so long has recovered; the next shortage is another one, and is logged again.
_RECOVERED_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


def is_shortage(error: BaseException) -> bool:
    """Return whether an error says that there is not enough of something now."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_shortage(e) for e in error.exceptions)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORT)


async def endure(task: str, work: Callable[[], Awaitable[None]], *, base: float = 0.5) -> None:
    """Do a background task's work; where a shortage ends it, begin it again after a while.

    The work must be one that can begin again after it has ended anywhere. Any other error ends the task, as
    it would without this.

    Args:
        task: what is done, for the log.
        work: what is to be done until it ends or is cancelled.
        base: the first pause, in seconds.
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(base=base, cap=30.0)
    while True:
        began = loop.time()
        try:
            await work()
            return
        except (MemoryError, OSError, BaseExceptionGroup) as e:
            if not is_shortage(e):
                raise
            if loop.time() - began > _RECOVERED_SECONDS:
                backoff.reset()
            # Once, not at each try.
            level = log.debug if backoff.failures else log.error
            level("a background task lacks resources and is tried again", task=task, error=str(e))
        await asyncio.sleep(backoff.next())
