"""A PCI bus in a sysfs tree, and what the kernel does when somebody writes to it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from dra_driver.discovery.core.bus.pci_binding import VFIO


class FakePci:
    """Functions, drivers and IOMMU groups below ``root/sys``, VFIO's nodes below ``root/dev``.

    What is bound where is in the tree alone, so that it outlives every process that looks at it. ``write``
    takes the place of a write to a sysfs attribute; after a crash the tree is as before it or as after it.
    """

    def __init__(self, root: Path) -> None:
        self._lock = threading.Lock()
        self.sysfs = root / "sys"
        self.dev = root / "dev"
        self.proc = root / "proc"
        self._pci = self.sysfs / "bus/pci"

    def build(
        self,
        functions: Mapping[str, tuple[str, str]],
        drivers: tuple[str, ...] = ("nvidia", VFIO),
        *,
        sound: Collection[str] = (),
        iommufd: bool = False,
        cdevs: bool | None = None,
    ) -> FakePci:
        """Functions by address: driver (empty: none) and IOMMU group (empty: none).

        ``sound``: those that are sound controllers; all others are GPUs.
        ``iommufd``: whether the kernel has it; ``cdevs``: whether VFIO has character devices; as ``iommufd``.
        """
        (self.dev / "vfio").mkdir(parents=True, exist_ok=True)
        # What shows that the processes are the machine's.
        (self.proc / "2/fd").mkdir(parents=True, exist_ok=True)
        (self.proc / "2/comm").write_text("kthreadd\n")
        if iommufd:
            (self.dev / "iommu").touch()
        if iommufd if cdevs is None else cdevs:
            (self.dev / "vfio/devices").mkdir()
        for name in {*drivers, *(d for d, _ in functions.values() if d)}:
            (self._pci / "drivers" / name).mkdir(parents=True, exist_ok=True)
        for address, (driver, group) in functions.items():
            folder = self._pci / "devices" / address
            folder.mkdir(parents=True)
            (folder / "driver_override").write_text("(null)\n")
            # What the kernel knows from the device's numbers.
            (folder / "modalias").write_text(driver)
            (folder / "class").write_text("0x040300\n" if address in sound else "0x030200\n")
            if group:
                members = self.sysfs / "kernel/iommu_groups" / group / "devices"
                members.mkdir(parents=True, exist_ok=True)
                (members / address).symlink_to(folder)
                (folder / "iommu_group").symlink_to(members.parent)
            if driver:
                self._bind(address, driver)
        (self.dev / "vfio/vfio").touch()
        return self

    def driver(self, address: str) -> str:
        try:
            return (self._pci / "devices" / address / "driver").readlink().name
        except FileNotFoundError:  # a thread of the driver may take it away meanwhile
            return ""

    def override(self, address: str) -> str:
        text = (self._pci / "devices" / address / "driver_override").read_text().strip()
        return "" if text == "(null)" else text

    def reboot(self) -> None:
        """Every function is bound to what the kernel chooses for it."""
        for folder in (self._pci / "devices").iterdir():
            (folder / "driver_override").write_text("(null)\n")
            if self.driver(folder.name):
                self._unbind(folder.name)
            if wanted := (folder / "modalias").read_text():
                self._bind(folder.name, wanted)

    def write(self, path: Path, text: str) -> None:
        """What the kernel does, which locks the device meanwhile."""
        with self._lock:
            self._write(path, text.strip())

    def _write(self, path: Path, text: str) -> None:
        if path.name == "driver_override":
            descriptor = os.open(path, os.O_WRONLY)
            try:
                # In place and in one piece; what is longer stays, so that it is filled up.
                os.write(descriptor, (text or "(null)").ljust(32).encode() + b"\n")
            finally:
                os.close(descriptor)
        elif path.name == "unbind":
            if self.driver(text) != path.parent.name:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(path))
            self._unbind(text)
        elif path.name in ("bind", "drivers_probe"):
            named = path.parent.name if path.name == "bind" else ""
            wanted = self.override(text) or (self._pci / "devices" / text / "modalias").read_text()
            fits = wanted in ("", named) if named else True
            driver = named or wanted
            if self.driver(text) or not fits or not (driver and (self._pci / "drivers" / driver).is_dir()):
                if named:
                    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(path))
                return
            self._bind(text, driver)
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def _bind(self, address: str, driver: str) -> None:
        folder = self._pci / "devices" / address
        if driver == VFIO:
            (self.dev / "vfio" / (folder / "iommu_group").readlink().name).touch()
            self._add_cdev(folder)
        temporary = folder / f".driver.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(self._pci / "drivers" / driver)
        os.rename(temporary, folder / "driver")  # noqa: PTH104 - the step that the crash test counts

    def _unbind(self, address: str) -> None:
        folder = self._pci / "devices" / address
        was = self.driver(address)
        os.unlink(folder / "driver")  # noqa: PTH108 - likewise
        if was == VFIO:
            members = (folder / "iommu_group/devices").iterdir()
            if not any(self.driver(other.name) == VFIO for other in members):
                (self.dev / "vfio" / (folder / "iommu_group").readlink().name).unlink(missing_ok=True)
            self._remove_cdevs(folder)

    def _add_cdev(self, folder: Path) -> None:
        """The lowest number that is free. Since Linux 6.1 there is a folder, with or without a device."""
        self._remove_cdevs(folder)
        taken = {p.name for p in (self._pci / "devices").glob("*/vfio-dev/*")}
        name = next(n for i in range(1000) if (n := f"vfio{i}") not in taken)
        (folder / "vfio-dev" / name).mkdir(parents=True)
        devices = self.dev / "vfio/devices"
        if devices.is_dir():
            (folder / "vfio-dev" / name / "dev").write_text(f"511:{name.removeprefix('vfio')}\n")
            (devices / name).touch()

    def _remove_cdevs(self, folder: Path) -> None:
        for entry in (folder / "vfio-dev").glob("*"):
            (self.dev / "vfio/devices" / entry.name).unlink(missing_ok=True)
            shutil.rmtree(entry)
