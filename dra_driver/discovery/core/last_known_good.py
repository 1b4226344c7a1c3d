"""A backend whose last good result stays while it cannot look.

Two things look alike and are not:

* *It failed* (``failed``): the library or the driver answered with an error, which may pass. Nothing is
  known, so what was found last stays as it was.
* *It vanished* (``vanished``): the backend had devices, and now says that there is no driver or no library.
  Its devices cannot be used, but pods may hold them and the driver may be on its way back (a reload), so they
  stay with the condition ``DriverAbsent``, which keeps new pods away and evicts none.

Both end with the next look that succeeds. A backend that never had devices is just ``absent``, or
``driverless`` where its hardware is on the machine all the same: then somebody has to see to the software.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery.core.hotplug import HotplugSource, fingerprint
from dra_driver.discovery.core.problems import DriverMissing, HardwareAbsent, Problem
from dra_driver.discovery.core.third_parties import error_text, rebuilt
from dra_driver.errors import DiscoveryError, DraError, PrepareError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import DeviceBackend

__all__ = ["DRIVER_ABSENT", "DRIVER_HANGING", "BackendReport", "BackendState", "LastKnownGood"]

DRIVER_ABSENT: Final = "DriverAbsent"
# Of all devices of a backend that hangs, or of the one device that does.
DRIVER_HANGING: Final = "DriverHanging"

BackendState = Literal["waiting", "ok", "absent", "driverless", "vanished", "failed", "hanging"]

# Loading a driver anew takes seconds at most, and a look that saw it half done is made again.
_MOST_LOOKS: Final = 3
# Of an inventory's condition; the API takes 1024.
_MOST_TEXT: Final = 1000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BackendReport:
    """How a backend is.

    Attributes:
        backend: its name.
        state: ``waiting`` before the first look, ``hanging`` while one does not end, else how the last
            one went.
        message: why it is not ``ok``.
        problems: what the last look that succeeded could not learn.
        unnamed: whether there are devices that do not say which they are: one that was there before the agent
            was started and is not found may be among them.
    """

    backend: str
    state: BackendState
    message: str = ""
    problems: tuple[Problem, ...] = ()
    unnamed: bool = False

    @property
    def broken(self) -> bool:
        """Whether it is to be reported: it cannot look, or its driver has gone or never was there."""
        return self.state in ("driverless", "failed", "hanging", "vanished")


class LastKnownGood:
    """A backend with its last good result. Not for several threads at a time.

    Attributes:
        backend: what is looked through.
        report: how the last look went.
        answered: whether it is known what there is: a look has succeeded, or found that there is nothing.

    Args:
        backend: what is looked through.
        optional: whether the absence of its hardware is an answer. It is none where somebody named the
            backend: then the driver is expected.
    """

    def __init__(self, backend: DeviceBackend, *, optional: bool = False) -> None:
        self.backend = backend
        self.report = BackendReport(backend.name, "waiting")
        self.answered = False
        self._optional = optional
        self._found: tuple[DiscoveredDevice, ...] = ()

    @property
    def devices(self) -> tuple[DiscoveredDevice, ...]:
        """What was found last; with the condition ``DriverAbsent`` where the driver has vanished."""
        if self.report.state == "vanished":
            return tuple(_driver_absent(d, self.report.message) for d in self._found)
        return self._found

    def look(
        self, complete: Callable[[Sequence[DiscoveredDevice]], Sequence[DiscoveredDevice]] = tuple
    ) -> tuple[DiscoveredDevice, ...]:
        """Return ``devices`` after another look. Whatever the backend raises is in ``report``.

        Args:
            complete: adds to what the backend found.
        """
        name = self.backend.name
        try:
            self._found = self._steady(lambda: tuple(complete(_checked(self.backend.discover()))))
        except HardwareAbsent as e:
            self.answered = self.answered or self._optional
            self.report = BackendReport(name, self._absence(e), str(e))
        except DraError as e:
            self.report = BackendReport(name, "failed", str(e))
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # somebody's, at a command
            # A bug, maybe a third party's, costs no other backend; SystemExit ends none of our threads.
            message = f"{name}: a bug: {type(e).__name__}: {error_text(e)}"
            if message != self.report.message:
                _log.exception("discovery failed unexpectedly", backend=name)
            self.report = BackendReport(name, "failed", message)
        else:
            self.answered = True
            self.report = BackendReport(
                name,
                "ok",
                problems=tuple(getattr(self.backend, "problems", ())),
                unnamed=bool(getattr(self.backend, "unnamed", False)),
            )
        return self.devices

    def _steady(self, look: Callable[[], tuple[DiscoveredDevice, ...]]) -> tuple[DiscoveredDevice, ...]:
        """Return what a look found during which no device came or went.

        A driver that is loaded anew may number its devices anew. A look during that could read the identity
        of one device and the address of another one under the same name, and publish a device that does not
        exist.

        Raises:
            DiscoveryError: devices come and go all the time.
        """
        if not isinstance(self.backend, HotplugSource):
            return look()
        for _ in range(_MOST_LOOKS):
            folders = self.backend.hotplug().folders
            before = fingerprint(folders)
            found = look()
            if fingerprint(folders) == before:
                return found
        raise DiscoveryError(
            f"{self.backend.name}: devices or drivers came or went during each of {_MOST_LOOKS} looks"
        )

    def _absence(self, error: HardwareAbsent) -> BackendState:
        if self._found:
            return "vanished"
        if isinstance(error, DriverMissing):
            return "driverless"
        return "absent" if self._optional else "failed"


def _checked(found: Sequence[DiscoveredDevice]) -> list[DiscoveredDevice]:
    """Return what a backend has found, if the records of claims can be made of it and read again.

    Raises:
        DiscoveryError: a part of a device is of another type than it has to be.
    """
    checked = []
    for device in found:
        try:
            checked.append(rebuilt(DiscoveredDevice, device))
        except PrepareError as e:
            name = getattr(getattr(device, "device", None), "name", "?")
            raise DiscoveryError(f"device {name}: {e}") from e
    return checked


def _driver_absent(device: DiscoveredDevice, why: str) -> DiscoveredDevice:
    health = DeviceHealth(reason=DRIVER_ABSENT, severity="degraded", message=why[:_MOST_TEXT])
    changed = msgspec.structs.replace(device.device, health=(*device.device.health, health))
    return dataclasses.replace(device, device=changed)
