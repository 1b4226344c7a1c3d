"""Looks through one backend, in a thread of its own, none of which is waited for without end.

A vendor's library may not come back: a call into a driver that hangs cannot be cancelled, and its thread is
lost until the driver answers. So every backend has its own thread, a look that is late counts as *hanging*,
and no other look begins before it has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import structlog

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery import BackendReport, LastKnownGood
from dra_driver.errors import DraError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock
from kubelet_plugin.core.notices import DRIVER_HANGING

__all__ = ["Looks"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Result:
    """What the last look that ended has found.

    Attributes:
        began: a time of the loop's clock; below 0 before the first look.
        known_at: when what is known of the devices was learned, in seconds since the epoch; None if nothing
            is known.
    """

    report: BackendReport
    devices: tuple[DiscoveredDevice, ...] = ()
    answered: bool = False
    began: float = -1.0
    known_at: float | None = None


class Looks:
    """The looks through one backend, one at a time.

    Attributes:
        backend: the backend with its last good result; it is the thread's while a look is under way.
        report: how the backend is.
        devices: what was found last; while the backend hangs, with the condition ``DriverHanging``.
        stalled: what else of the backend hangs, as a clause; empty if nothing does.

    Args:
        complete: adds to what the backend found; blocks.
        clock: for the times that people read.
        late: called in the loop when a look has ended that was late.
    """

    def __init__(
        self,
        backend: LastKnownGood,
        *,
        complete: Callable[[Sequence[DiscoveredDevice]], Sequence[DiscoveredDevice]],
        clock: Clock,
        late: Callable[[], None],
    ) -> None:
        self.backend = backend
        self.report = backend.report
        self.devices: tuple[DiscoveredDevice, ...] = ()
        self.stalled = ""
        self._complete = complete
        self._clock = clock
        self._late = late
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"look-{backend.backend.name}")
        self._result = _Result(backend.report)
        self._under_way: asyncio.Future[bool] | None = None
        self._started = (0.0, 0.0)
        self._overdue = False

    @property
    def executor(self) -> Executor:
        """The backend's own thread, for whatever else it is asked."""
        return self._thread

    @property
    def answered(self) -> bool:
        """Whether it is known what there is; see ``LastKnownGood``."""
        return self._result.answered

    @property
    def began(self) -> float:
        """When the look began whose result this is, a time of the loop's clock; below 0 before the first."""
        return self._result.began

    @property
    def known_at(self) -> float | None:
        """When what is known of the devices was learned, in seconds since the epoch; None if nothing is."""
        return self._result.known_at

    def begin(self, released: Callable[[], bool]) -> asyncio.Future[bool] | None:
        """Begin a look; return None if the one before has not ended.

        Args:
            released: asked in the thread right before the look; if true, the backend is not asked.
        """
        if self._under_way is not None:
            return None
        loop = asyncio.get_running_loop()
        self._started = (loop.time(), self._clock.now())
        self._under_way = loop.run_in_executor(self._thread, self._look, released)
        return self._under_way

    def settle(self, *, overdue: bool) -> None:
        """Take the result of the look that was begun.

        Args:
            overdue: whether the backend counts as hanging if there is none yet.
        """
        future = self._under_way
        if future is not None and future.done():
            self._under_way, self._overdue = None, False
            if future.result():
                self._result = self._ended()
        elif future is not None and overdue and not self._overdue:
            self._overdue = True
            future.add_done_callback(lambda _: self._late())
        self._show()

    def release(self) -> None:
        """Release what the backend holds. Blocks."""
        try:
            self.backend.backend.close()
        except DraError as e:
            log.warning("a backend could not be closed", backend=self.report.backend, error=str(e))

    def end(self) -> asyncio.Future[None]:
        """Release what the backend holds, behind a look that is under way, and take no more work."""
        released = asyncio.get_running_loop().run_in_executor(self._thread, self.release)
        self._thread.shutdown(wait=False)
        return released

    def _look(self, released: Callable[[], bool]) -> bool:
        if released():  # while this waited for its turn
            return False
        self.backend.look(self._complete)
        return True

    def _ended(self) -> _Result:
        now = self.backend
        # An error says nothing about the devices: what is known of them is as old as it was.
        known_at = self._result.known_at if now.report.state == "failed" else self._clock.now()
        return _Result(now.report, now.devices, now.answered, self._started[0], known_at)

    def _show(self) -> None:
        self.report, self.devices = self._result.report, self._result.devices
        since = rfc3339(self._started[1]) if self._overdue else ""
        hanging = f"a scan of the hardware that began at {since} has not ended" if since else self.stalled
        if not hanging:
            return
        name = self.report.backend
        why = f"{name}: {hanging}: the driver or its library hangs; what was found before stays published"
        self.report = BackendReport(name, "hanging", why)
        health = DeviceHealth(reason=DRIVER_HANGING, severity="degraded", message=why)
        self.devices = tuple(_with(d, health) for d in self.devices)


def _with(device: DiscoveredDevice, health: DeviceHealth) -> DiscoveredDevice:
    changed = msgspec.structs.replace(device.device, health=(*device.device.health, health))
    return dataclasses.replace(device, device=changed)
