"""Which kernel driver a PCI function is bound to, and binding it to another one, through sysfs.

The kernel's interface: ``driver_override`` of the function names the only driver that may take it,
``drivers/NAME/unbind`` lets go of it, ``drivers_probe`` and ``drivers/NAME/bind`` bind it
(Documentation/ABI/testing/sysfs-bus-pci). Everything here blocks, a write to ``unbind`` for as long as
somebody uses the function; every step may be taken again after a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.bus.pci import PciAddress, read_sysfs
from dra_driver.errors import DriverRefused, PrepareError

__all__ = ["VFIO", "PciFunctions", "write_attribute"]

VFIO: Final = "vfio-pci"
# They let functions of their group be used: drivers of bridges, and one that only keeps a function unused.
_HARMLESS: Final = frozenset({"", "pcieport", "pci-stub"})
# Beginnings of PCI classes: what a graphics card has beside its GPU, sound (04) and serial buses such as USB
# (0c). Never display (03) or accelerator (12): that is another device of the node.
_COMPANIONS: Final = ("0x04", "0x0c")
_CDEV: Final = re.compile(r"vfio[0-9]{1,9}", re.ASCII)
_DRIVER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
# The kernel's own process is the second one of a machine, and in no other PID namespace.
_SECOND_PROCESS: Final = "kthreadd"
# devtmpfs makes the device nodes a moment after the binding.
_NODE_SECONDS: Final = 2.0


def write_attribute(path: Path, text: str) -> None:
    """Write a sysfs attribute in one piece.

    Raises:
        OSError: the kernel refuses.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class PciFunctions:
    """The PCI functions of the machine, by address (``0000:3b:00.0``).

    Args:
        sysfs_root: where sysfs is mounted, writable.
        dev_root: where device nodes are.
        proc_root: where procfs is mounted; of the host, or nothing is seen of its processes.
        write: see ``write_attribute``.
    """

    def __init__(
        self,
        sysfs_root: Path,
        dev_root: Path,
        proc_root: Path,
        write: Callable[[Path, str], None] | None = None,
    ) -> None:
        self._pci = sysfs_root / "bus/pci"
        self._dev_root = dev_root
        self._proc_root = proc_root
        self._write = write or write_attribute

    def present(self, address: str) -> bool:
        """Return whether there is such a function."""
        return self._folder(address).exists()

    def driver(self, address: str) -> str:
        """Return the driver that it is bound to; empty if it is bound to none."""
        return _target(self._folder(address) / "driver")

    def override(self, address: str) -> str:
        """Return the only driver that may take it; empty where any may."""
        named = read_sysfs(self._folder(address) / "driver_override") or ""
        return "" if named == "(null)" else named

    def group(self, address: str) -> str:
        """Return the number of its IOMMU group; empty where the machine has no IOMMU or does not use it."""
        return _target(self._folder(address) / "iommu_group")

    def companions(self, address: str) -> Sequence[str]:
        """Return the other functions of the same card that have to go where it goes: its sound, its USB.

        Those whose driver keeps their IOMMU group, which the function is in too, from being passed through.
        """
        here = PciAddress.parse(address)
        found = []
        for other in self._members(address):
            there = PciAddress.parse(other)
            if here is None or there is None or _slot(there) != _slot(here):
                continue
            kind = read_sysfs(self._folder(other) / "class") or ""
            if kind.startswith(_COMPANIONS) and self.driver(other) not in _HARMLESS:
                found.append(other)
        return tuple(found)

    def open_nodes(self, address: str) -> Sequence[str]:
        """Return the device nodes that the kernel's subsystems for graphics and sound have made for it."""
        folder = self._folder(address)
        found = [f"/dev/dri/{n}" for n in _names(folder / "drm")]
        for card in _names(folder / "sound"):
            found += [f"/dev/snd/{n}" for n in _names(folder / "sound" / card)]
        return tuple(found)

    @property
    def iommufd(self) -> bool:
        """Whether the kernel offers IOMMUFD, by which character devices of VFIO are used."""
        return (self._dev_root / "iommu").exists()

    def cdev(self, address: str) -> str:
        """Return the name of its VFIO character device, below ``/dev/vfio/devices``.

        It is empty while the function is not bound to a driver of VFIO, and on kernels without such devices
        (before 6.6, or without CONFIG_VFIO_DEVICE_CDEV), where the folder is there and has no number.
        """
        with contextlib.suppress(OSError):
            for entry in (self._folder(address) / "vfio-dev").iterdir():
                if _CDEV.fullmatch(entry.name) and (entry / "dev").exists():
                    return entry.name
        return ""

    def nodes(self, address: str) -> Sequence[str]:
        """Return the device nodes that a process using it through VFIO has open, as containers know them."""
        group, cdev = self.group(address), self.cdev(address)
        return (
            *([f"/dev/vfio/{group}"] if group else ()),
            *([f"/dev/vfio/devices/{cdev}"] if cdev else ()),
        )

    def check(self, address: str, driver: str, ours: Collection[str]) -> None:
        """Refuse what cannot go well, before anything is changed.

        Args:
            address: the function.
            driver: that it shall be bound to.
            ours: functions that are bound to the driver for the same claim: they may be in its IOMMU group.

        Raises:
            PrepareError: the text says why.
        """
        if not self.present(address):
            raise PrepareError(f"there is no PCI function {address}", retryable=True)
        if not self._driver_folder(driver).is_dir():
            raise PrepareError(f"the kernel driver {driver} is not loaded on this node (modprobe {driver})")
        group = self.group(address)
        if not group:
            raise PrepareError(
                f"PCI function {address} is in no IOMMU group: the machine's IOMMU is off, and without it a "
                "device cannot be passed through"
            )
        if (read_sysfs(self._folder(address) / "sriov_numvfs") or "0") != "0":
            raise PrepareError(f"PCI function {address} has virtual functions, which would be lost")
        used = [
            f"{other} (driver {held})"
            for other in self._members(address)
            if other not in ours and (held := self.driver(other)) not in _HARMLESS
        ]
        if used:
            raise PrepareError(
                f"PCI function {address}: other functions of its IOMMU group {group} are in use: "
                f"{', '.join(used)}; a group can only be passed through as a whole"
            )

    def users(self, nodes: Collection[str]) -> Sequence[str]:
        """Return processes, as ``PID (NAME)``, that have one of these device nodes open.

        Args:
            nodes: as containers know them. A process may know one by another name, as those do that run below
                the root of a driver that a container brings; its number is the same.

        Raises:
            PrepareError: what the processes of the node have open cannot be seen.
        """
        if read_sysfs(self._proc_root / "2/comm") != _SECOND_PROCESS:
            raise PrepareError(
                f"the processes of the node are not visible below {self._proc_root} (that needs hostPID): "
                "a device may be in use"
            )
        numbers = {_number(self._dev_root / path.removeprefix("/dev/")) for path in nodes} - {0}

        def is_one(fd: Path) -> bool:
            name = _link(fd)
            # Only what is in a folder of devices is looked at: a file of a dead server would not answer.
            return name in nodes or ("/dev/" in name and _number(fd) in numbers)

        found: list[str] = []
        for process in self._processes():
            try:
                if any(is_one(fd) for fd in (process / "fd").iterdir()):
                    found.append(f"{process.name} ({read_sysfs(process / 'comm') or '?'})")
            except PermissionError as e:
                raise PrepareError(
                    f"what process {process.name} has open cannot be seen (the agent needs CAP_SYS_PTRACE "
                    "and no AppArmor profile): a device may be in use"
                ) from e
            except OSError:
                pass  # it has ended
        return found

    def bind(self, address: str, driver: str) -> None:
        """Bind the function to the driver, whatever it was bound to; nothing where it is.

        Raises:
            PrepareError: it is not bound to it afterwards.
        """
        folder = self._folder(address)
        try:
            if self.override(address) != driver:
                self._write(folder / "driver_override", driver)
            now = self.driver(address)
            if now != driver:
                if now:
                    self._write(self._driver_folder(now) / "unbind", address)
                self._write(self._pci / "drivers_probe", address)
        except OSError as e:
            raise PrepareError(
                f"PCI function {address} cannot be bound to {driver}: {e.filename or ''} {e.strerror}",
                retryable=True,
            ) from e
        now = self.driver(address)
        if now != driver:
            raise PrepareError(
                f"PCI function {address} was to be bound to {driver}, but is bound to {now or 'nothing'}"
            )

    def restore(self, address: str, driver: str, before: str, *, overridden: bool = False) -> str:
        """Give the function back; nothing where it is not bound to ``driver`` any more.

        Args:
            address: the function.
            driver: that it was bound to by ``bind``.
            before: that it was bound to before; empty if none. If it is the same, the binding is another's,
                and how that was made is not known: nothing is done.
            overridden: whether ``driver_override`` named ``before``, as an administrator's tools have it.

        Returns:
            Why it is not bound to what it was before, where that cannot be helped; empty where all is well.

        Raises:
            DriverRefused: it is bound to nothing, and ``before``, which is loaded, did not take it this time.
            PrepareError: it is still bound to ``driver``.
        """
        if before == driver:
            return ""
        if not self.present(address):
            return "it is not there any more"
        folder = self._folder(address)
        try:
            if self.override(address) == driver:
                self._write(folder / "driver_override", before if overridden else "\n")
            if self.driver(address) == driver:
                self._write(self._driver_folder(driver) / "unbind", address)
        except OSError as e:
            raise PrepareError(
                f"PCI function {address} cannot be taken from {driver}: {e.strerror}", retryable=True
            ) from e
        if not before or self.driver(address):
            return ""
        if not self._driver_folder(before).is_dir():
            # Once it is, the kernel gives it all functions that it knows and that are bound to nothing.
            return f"driver {before} does not take it: it is not loaded"
        try:
            self._write(self._driver_folder(before) / "bind", address)
        except OSError as e:
            raise DriverRefused(
                f"PCI function {address}: driver {before} does not take it back: {e.strerror}", retryable=True
            ) from e
        return ""

    def await_node(self, name: str) -> None:
        """Wait until a device node of a function is there.

        Args:
            name: below ``/dev/vfio``.

        Raises:
            PrepareError: it does not appear.
        """
        node = self._dev_root / "vfio" / name
        deadline = time.monotonic() + _NODE_SECONDS
        while not node.exists():
            if time.monotonic() > deadline:
                raise PrepareError(f"the device node {node} has not appeared", retryable=True)
            time.sleep(0.02)

    def _folder(self, address: str) -> Path:
        """Return the folder of a function. The address is text of backends and records, and is checked."""
        if PciAddress.parse(address) is None:
            raise PrepareError(f"{address[:80]!r} is no PCI address")
        return self._pci / "devices" / address

    def _driver_folder(self, driver: str) -> Path:
        if not _DRIVER.fullmatch(driver):
            raise PrepareError(f"{driver[:80]!r} is no name of a kernel driver")
        return self._pci / "drivers" / driver

    def _members(self, address: str) -> Sequence[str]:
        devices = self._folder(address) / "iommu_group" / "devices"
        with contextlib.suppress(OSError):
            return sorted(p.name for p in devices.iterdir() if p.name != address)
        return ()

    def _processes(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from (p for p in self._proc_root.iterdir() if p.name.isdigit())


def _slot(address: PciAddress) -> tuple[int, int, int]:
    return address.domain, address.bus, address.device


def _names(folder: Path) -> Sequence[str]:
    with contextlib.suppress(OSError):
        return sorted(p.name for p in folder.iterdir())
    return ()


def _number(path: Path) -> int:
    """Return the number of a character device; 0 where it is none."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else 0


def _target(link: Path) -> str:
    try:
        return link.readlink().name
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
