"""Calls to a backend of a third party: in threads, bounded in time, none twice while it hangs.

A call that does not come back keeps its thread, and whatever it is about; nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import structlog

from dra_driver.errors import DraError, PrepareError

__all__ = ["BackendCalls"]

_T = TypeVar("_T")
# A call for each device of a node may be under way.
_THREADS: Final = 8
_CHARACTERS: Final = 400
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")

log = structlog.get_logger(__name__)


class BackendCalls:
    """The calls to one backend.

    Args:
        name: of the backend, for messages.
        threads: as many calls may be under way; those that hang are among them.
    """

    def __init__(self, name: str, threads: int = _THREADS) -> None:
        self._name = name
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"claims-{name}")
        self._locks: dict[str, asyncio.Lock] = {}
        self._under_way: dict[str, asyncio.Future[Any]] = {}

    async def call(self, about: str, seconds: float, work: Callable[..., _T], *args: object) -> _T:
        """Call in a thread; calls about one thing wait for each other.

        Args:
            about: for messages: the device.
            seconds: that the call may take.
            work: what is called.
            args: its arguments.

        Raises:
            PrepareError: it has failed, takes too long, or another one about the same thing hangs.
        """
        async with self._locks.setdefault(about, asyncio.Lock()):
            if about in self._under_way:
                raise self._late(about, "an earlier call has not come back yet")
            if len(self._under_way) >= self._threads:
                raise self._late(about, f"{len(self._under_way)} calls have not come back yet")
            future = asyncio.get_running_loop().run_in_executor(self._executor, self._guarded, work, args)
            # Until it ends, also after its caller has given up.
            self._under_way[about] = future
            future.add_done_callback(lambda _: self._under_way.pop(about, None))
            done, _ = await asyncio.wait([future], timeout=seconds)
            if not done:
                log.error("a call to a backend does not come back", backend=self._name, device=about)
                raise self._late(about, f"no answer after {seconds:g} s")
            return done.pop().result()

    def close(self) -> None:
        """Take no more calls; one that hangs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _late(self, about: str, why: str) -> PrepareError:
        return PrepareError(f"device {about}: backend {self._name}: {why}", retryable=True)

    def _guarded(self, work: Callable[..., _T], args: tuple[object, ...]) -> _T:
        try:
            return work(*args)
        except PrepareError as e:
            raise PrepareError(self._text(str(e)), retryable=e.retryable) from e
        except DraError as e:
            raise PrepareError(self._text(str(e))) from e
        except BaseException as e:  # also SystemExit: nothing that a backend raises ends the agent
            log.exception("a backend has failed", backend=self._name)
            raise PrepareError(self._text(f"{type(e).__name__}: {e}")) from e

    def _text(self, text: str) -> str:
        """Return a text for the Event of a pod: one line, of bounded length."""
        text = _CONTROL.sub(" ", text)
        return f"backend {self._name}: {text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + '…'}"
