"""No write of a leader whose lease may belong to another: the fence, and the client behind it.

The fence is as good as the clock: a virtual machine whose clocks are stopped together with it notices
nothing. So an admission policy compares the writer with the holder of the lease, at the API server. It knows
the lease from a cache: it may refuse a new leader for a moment, whose writes are repeated here until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import structlog

from dra_driver.errors import ApiError, NotLeading
from dra_driver.kube.backoff import Backoff
from dra_driver.kube.delegating import Call, DelegatingClient
from dra_driver.ports import Clock, Guardable, KubeClient

__all__ = ["LEADER_POLICY", "Fence", "FencedClient"]

R = TypeVar("R")

log = structlog.get_logger(__name__)

LEADER_POLICY = "dra-driver-leader-only"
"""Name of the ValidatingAdmissionPolicy that refuses the writes of all but the holder of the lease.

Those of optional features have policies of their own, whose names go on with "-" and the feature.
"""

_REFUSED: Final = re.compile(rf"ValidatingAdmissionPolicy '{re.escape(LEADER_POLICY)}(-[a-z]+)?'")


class Fence:
    """Whether this process may write as the leader, by its own monotonic clock. A ``ports.WriteGuard``.

    The fence is open for ``valid_seconds`` after the request of the last successful renewal was made. Another
    process takes the lease ``lease_seconds`` after it saw that renewal, so later than ``lease_seconds`` after
    the request; the difference is for what was sent while the fence was still open.
    """

    def __init__(self, clock: Clock, valid_seconds: float, lease_seconds: float) -> None:
        """Make a fence that is closed until ``begin`` and ``renewed``.

        Args:
            clock: its monotonic time counts.
            valid_seconds: the renew deadline.
            lease_seconds: the lease's duration.
        """
        self._clock = clock
        self._valid = valid_seconds
        self._lease = lease_seconds
        self._renewed: float | None = None
        self._held = False
        self._ended = True
        self._writing = 0
        self._changed = asyncio.Event()
        self._refused: dict[str, float] = {}

    # --- the elector's side ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start anew, closed: the process is about to ask for the lease."""
        self._renewed = None
        self._held = self._ended = False
        self._refused.clear()

    def renewed(self, asked: float) -> None:
        """Note a successful renewal.

        Args:
            asked: monotonic time at which its request was made, before it was sent. The answer may have taken
                long, and others count from when they see the renewal.
        """
        self._renewed = asked if self._renewed is None else max(self._renewed, asked)
        self._wake()

    def hold(self) -> None:
        """Let no new write begin: the work is about to end."""
        self._held = True

    def end(self) -> None:
        """Refuse new writes: the work is being cancelled, and with it the writes that wait already."""
        self._ended = True

    @property
    def disowned(self) -> bool:
        """Whether the API server has refused writes of a kind for as long as a lease lasts.

        Its cache has followed the lease by then, so it does not take this process for the holder.
        """
        return any(self._clock.monotonic() - since >= self._lease for since in self._refused.values())

    async def answered(self, seconds: float) -> bool:
        """Wait until every write under way has been answered; return whether that was so in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._writing:
                    await self._changed.wait()
        return not self._writing

    # --- the side of the writers ----------------------------------------------------------------------------

    @property
    def age(self) -> float:
        """Seconds since the last successful renewal was asked for; infinite before the first."""
        return float("inf") if self._renewed is None else self._clock.monotonic() - self._renewed

    @property
    def is_open(self) -> bool:
        """Whether a write may leave now."""
        return not (self._held or self._ended) and self.age < self._valid

    def check(self) -> None:
        """See ``ports.WriteGuard``.

        Raises:
            NotLeading: the fence is closed.
        """
        if not self.is_open:
            raise NotLeading("not sent: this process does not hold the lease, or has not renewed it in time")

    def seconds_left(self) -> float:
        """See ``ports.WriteGuard``: until another may hold the lease."""
        return self._lease - self.age

    async def until_open(self) -> None:
        """Wait for a renewal while the fence is closed.

        The elector either renews the lease or ends the work, which cancels the writes that wait here. None
        waits for longer than the elector tries.

        Raises:
            NotLeading: the work is over, so there will be no renewal.
        """
        while not self.is_open:
            if self._ended:
                await asyncio.sleep(0)  # what is being cancelled must hear of that, and not try again
                self.check()
            await self._changed.wait()

    def refused(self, kind: str) -> None:
        """Note that the API server has refused a write of this kind as one that is not the holder's."""
        self._refused.setdefault(kind, self._clock.monotonic())

    def accepted(self, kind: str) -> None:
        """Note that a write of this kind was not refused for that reason."""
        self._refused.pop(kind, None)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Count a write until it is answered or given up."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class FencedClient(DelegatingClient):
    """A ``KubeClient`` whose writes leave this process only while a fence is open; reads always do.

    A write that meets a closed fence waits for the outcome of the renewal. A client that is ``Guardable``
    checks again after everything that it waits for itself, right before each attempt is sent.

    A write that the policy ``LEADER_POLICY`` refuses was not refused for its object. It is repeated until the
    API server knows the lease, or until the elector ends the work: another leads, or it is ``disowned``.
    """

    def __init__(self, client: KubeClient, fence: Fence) -> None:
        super().__init__(client.guarded(fence) if isinstance(client, Guardable) else client)
        self._fence = fence

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        if not call.writes:
            return await send()
        kind = call.resource.kind if call.resource is not None else ""
        backoff = Backoff(base=0.1, cap=1.0)
        while True:
            await self._fence.until_open()
            try:
                # The client found the fence closed before it sent anything: this write waits like any other.
                with contextlib.suppress(NotLeading), self._fence.writing():
                    result = await send()
                    self._fence.accepted(kind)
                    return result
            except ApiError as e:
                if not _is_for_leaders_only(e):
                    self._fence.accepted(kind)
                    raise
                if not backoff.failures:
                    log.warning("the API server does not take this process for the leader", error=str(e))
                self._fence.refused(kind)
                await asyncio.sleep(backoff.next())


def _is_for_leaders_only(error: ApiError) -> bool:
    """Whether the policy has refused a write: 403, or 422 where it does not know any lease yet."""
    return error.code in (403, 422) and _REFUSED.search(str(error)) is not None
