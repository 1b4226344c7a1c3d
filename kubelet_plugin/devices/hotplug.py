"""Devices that come and go, drivers that are loaded and unloaded, and their release on request.

The kernel reports most of it (``uevents``). What it does not report, such as some drivers' device nodes,
or where its events cannot be read, shows in directories that are listed once a second; backends name them.

A vendor's library keeps the driver's device nodes open, and a driver in use cannot be unloaded. To
unload it, an admin creates the file ``release`` in the state directory: while it is there the libraries are
closed and the hardware is not read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from dra_driver.discovery.core.hotplug import HotplugHints, HotplugSource, fingerprint
from dra_driver.ports import DeviceBackend
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.devices.uevents import heard, open_uevents

__all__ = ["RELEASE_FILE", "Hotplug", "watched"]

RELEASE_FILE: Final = "release"
LOOK_SECONDS: Final = 1.0
# A driver needs a moment from its first device node to its last.
SETTLE_SECONDS: Final = 1.0
MOST_SETTLE_SECONDS: Final = 5.0
# What concerns devices whatever they are: how the kernel calls PCI functions and the drivers that have them.
_SUBSYSTEMS: Final = frozenset({"pci", "drm", "accel", "drivers", "vfio"})
_MODULES: Final = frozenset({"vfio_pci"})

log = structlog.get_logger(__name__)


def watched(sysfs: Path, backends: Iterable[DeviceBackend]) -> HotplugHints:
    """Return what shows that devices and drivers come and go: of every PCI device, and of the backends'."""
    hints = [b.hotplug() for b in backends if isinstance(b, HotplugSource)]
    folders = ((sysfs / "bus/pci/devices", ""), *(f for h in hints for f in h.folders))
    return HotplugHints(
        folders=tuple(dict.fromkeys(folders)),
        modules=_MODULES.union(*(h.modules for h in hints)),
        subsystems=_SUBSYSTEMS.union(*(h.subsystems for h in hints)),
    )


class Hotplug:
    """Runs beside the calls.

    Args:
        table: scanned when something has changed, closed while it shall be released.
        file: while it is there, the hardware is released.
        hints: see ``watched``.
        hold: called with whether the hardware is released.
        listen: opens what the kernel's events are read from.
    """

    def __init__(
        self,
        *,
        table: DeviceTable,
        file: Path,
        hints: HotplugHints,
        hold: Callable[[bool], None],
        listen: Callable[[], socket.socket | None] = open_uevents,
    ) -> None:
        self._table = table
        self._file = file
        self._hints = hints
        self._hold = hold
        self._released = False
        self._listen = listen
        self._events = Changes()

    def begin(self) -> None:
        """Read what was asked for while no agent ran; call it before any device is opened."""
        if self._file.exists():
            log.warning("the hardware is not looked at, as asked for", file=str(self._file))
            self._set(released=True)
            self._table.close()  # nothing is open; the backends learn that they were let go of

    async def run(self) -> None:
        """Work until cancelled."""
        with heard(self._listen(), self._hints, self._events.notify):
            await self._follow()

    async def _follow(self) -> None:
        before, seen = fingerprint(self._hints.folders), self._events.count
        while True:
            events = await self._events.wait(seen, LOOK_SECONDS)
            await self._release_or_not(self._file.exists())
            now = fingerprint(self._hints.folders)
            if now == before and events == seen:
                continue
            if not self._released:
                log.info("devices or drivers have changed; looking at the hardware", events=events != seen)
                await self._settle()
            # What comes during the look is looked at again.
            before, seen = fingerprint(self._hints.folders), self._events.count
            if not self._released:
                await self._table.scan()

    async def _settle(self) -> None:
        """Wait until no event has come for a moment: loading a driver sends one for each device."""
        loop = asyncio.get_running_loop()
        end = loop.time() + MOST_SETTLE_SECONDS
        while True:
            seen = self._events.count
            if await self._events.wait(seen, SETTLE_SECONDS) == seen or loop.time() > end:
                return

    async def _release_or_not(self, wanted: bool) -> None:
        if wanted == self._released:
            return
        self._set(released=wanted)
        if wanted:
            if await self._table.release():
                log.warning("the libraries of the hardware are closed, as asked for", file=str(self._file))
            else:
                log.error("a driver hangs, and its library cannot be closed", file=str(self._file))
        else:
            log.info("looking at the hardware again", file=str(self._file))
            await self._table.scan()

    def _set(self, *, released: bool) -> None:
        self._released = released
        self._table.released = released
        self._hold(released)
