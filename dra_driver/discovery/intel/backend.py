"""Backend ``intel``: Intel GPUs on i915 or xe, physical and virtual functions, from sysfs alone.

Model, family and architecture come from a table of PCI ids. The size of the memory is published where the
driver shows it in sysfs (out-of-tree i915, xe's tiles, the quota of a virtual function); the ioctl that tells
it elsewhere needs privilege, so there it is absent. GPUs that are parts of a processor are left out unless
``--backend intel=integrated`` asks for them: a claim for "any GPU" does not mean the one of the console.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice
from dra_driver.cdi import ContainerEdits
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci, pci_products
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.bus.pci_products import PciProduct
from dra_driver.discovery.core.host import sysfs, unserved
from dra_driver.discovery.core.host.nodes import FoundNodes, device_nodes, drm_folders
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.problems import DriverMissing, HardwareAbsent, Problem, ProblemLog
from dra_driver.discovery.intel.samples import IntelSampler, Sampled
from dra_driver.hardware import DeviceSample, DiscoveredDevice

__all__ = ["IntelGpuBackend"]

_DRM_DRIVERS: Final = ("i915", "xe")
_TILE: Final = re.compile(r"tile[0-9]{1,2}", re.ASCII)
_GT: Final = re.compile(r"gt[0-9]{0,2}", re.ASCII)
_VIRTFN: Final = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)
_FATAL: Final = re.compile(r"fatal_[a-z0-9_]{1,48}|[a-z0-9_]{1,48}_fatal", re.ASCII)
_MAX_GPUS: Final = 1024


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One PCI function that is a GPU."""

    address: PciAddress
    function: Path
    device_id: int
    product: PciProduct | None
    driver: str | None
    physical: PciAddress | None

    @property
    def name(self) -> str:
        return schema.device_name(self.address)

    @property
    def integrated(self) -> bool:
        # Every GPU of a processor is the function 2.0 of the first bus, whether the table knows it or not.
        onboard = (self.address.domain, self.address.bus, self.address.device) == (0, 0, 2)
        return onboard or (self.product is not None and self.product.integrated)


class IntelGpuBackend:
    """Intel GPUs of this machine.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for; in containers' specs they are paths below ``/dev``.
        integrated: whether GPUs that are parts of a processor count.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path, integrated: bool = False) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._integrated = integrated
        self._left_out = 0
        self._sampler = IntelSampler()
        self._sampled: tuple[Sampled, ...] = ()
        self._log = ProblemLog(self.name)

    @property
    def name(self) -> str:
        """``intel``."""
        return "intel"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return self._log.current

    @property
    def _functions(self) -> Path:
        return self._sysfs_root / "bus" / "pci" / "devices"

    @property
    def diagnostics(self) -> str:
        """Where ``discover`` looks, and what it left out."""
        text = f"display controllers of vendor 0x8086 in {self._functions}"
        if self._left_out:
            text += f"; left out: {self._left_out} integrated, which --backend intel=integrated includes"
        return text

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every GPU and virtual function, by PCI address.

        Raises:
            HardwareAbsent: there is no list of PCI functions.
            DriverMissing: there are GPUs, none has a driver, and neither i915 nor xe is loaded.
        """
        addresses = sysfs.pci_addresses(self._functions)
        if addresses is None:
            raise HardwareAbsent(f"intel: {self._functions} is not there: no PCI functions can be looked at")
        problems: list[Problem] = []
        gpus = [gpu for address in addresses if (gpu := self._gpu(address)) is not None]
        wanted = [gpu for gpu in gpus if self._integrated or not gpu.integrated]
        self._left_out = len(gpus) - len(wanted)
        self._refuse_without_drivers(wanted)
        if len(wanted) > _MAX_GPUS:
            problems.append(Problem("", "GPUs", f"{len(wanted)} found; only {_MAX_GPUS} are looked at"))
        by_address = {gpu.address: gpu for gpu in wanted}
        found = [(gpu, self._device(gpu, by_address, problems)) for gpu in wanted[:_MAX_GPUS]]
        self._log.replace(problems)
        self._sampled = tuple(_sampled(gpu, device) for gpu, device in found if gpu.driver in _DRM_DRIVERS)
        return [device for _, device in found]

    def _refuse_without_drivers(self, gpus: Sequence[_Gpu]) -> None:
        loaded = any(pci.exists(self._sysfs_root / "module" / name) for name in _DRM_DRIVERS)
        if not gpus or loaded or any(gpu.driver for gpu in gpus):
            return
        functions = [unserved.DisplayFunction(gpu.address, "") for gpu in gpus]
        raise DriverMissing(
            f"intel: {unserved.sentence('Intel', functions)}, but neither i915 nor xe is loaded; load "
            "the one that knows them (modprobe xe, or i915)"
        )

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``: of what the last ``discover`` found and a graphics driver serves."""
        return [self._sampler.sample(gpu) for gpu in self._sampled]

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``."""
        drivers = tuple((self._sysfs_root / "module" / name / "drivers", "") for name in _DRM_DRIVERS)
        folders = (*drivers, *drm_folders(self._sysfs_root, self._dev_root))
        return HotplugHints(folders, modules=frozenset(_DRM_DRIVERS))

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _gpu(self, address: PciAddress) -> _Gpu | None:
        function = sysfs.pci_function(self._sysfs_root, address)
        if sysfs.read_number(function / "vendor", 16) != pci.INTEL or pci.display_vendor(function) is None:
            return None
        device_id = sysfs.read_number(function / "device", 16) or 0
        product = pci_products.intel_product(device_id) if device_id <= 0xFFFF else None
        driver = sysfs.driver_name(function)
        # Without a driver only the table says that it is a GPU worth telling of.
        if driver is None and product is None:
            return None
        physical = sysfs.link_address(function / "physfn")
        return _Gpu(address, function, device_id, product, driver, physical)

    def _device(
        self, gpu: _Gpu, gpus: Mapping[PciAddress, _Gpu], problems: list[Problem]
    ) -> DiscoveredDevice:
        drm = sysfs.drm_nodes(gpu.function) if gpu.driver in _DRM_DRIVERS else sysfs.DrmNodes(None, None)
        driver = gpu.driver or ""
        product = gpu.product
        vfs = sysfs.read_number(gpu.function / "sriov_numvfs") or 0
        total_vfs = sysfs.read_number(gpu.function / "sriov_totalvfs")
        memory = _memory(gpu, drm) if gpu.physical is None else _quota(gpu, gpus)
        properties = schema.build(
            {
                "type": "gpu" if gpu.physical is None else "vf",
                "vendor": "intel",
                "model": product.model if product else None,
                "productName": product.name if product else None,
                "family": product.family if product else None,
                "architecture": product.architecture if product else None,
                names.PCI_BUS_ID: str(gpu.address),
                names.PCIE_ROOT: pci.pcie_root(self._sysfs_root, gpu.address),
                names.NUMA_NODE: pci.numa_node(self._sysfs_root, gpu.address),
                "physicalFunction": None if gpu.physical is None else str(gpu.physical),
                "kernelDriver": gpu.driver,
                "driverVersion": sysfs.read_sysfs(self._sysfs_root / "module" / driver / "version")
                if driver
                else None,
                "pciID": sysfs.pci_id(gpu.function),
                "integrated": True if gpu.integrated else None,
                "tiles": len(sysfs.children(gpu.function, _TILE)) or None,
                "sriovCapable": None if total_vfs is None else total_vfs > 0,
                "sriovVFs": vfs or None,
            },
            {"memory": memory},
        )
        problems += [Problem(gpu.name, subject, why) for subject, why in properties.rejected]
        nodes = self._nodes(gpu, drm, problems)
        return DiscoveredDevice(
            device=InventoryDevice(
                name=gpu.name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                health=tuple(_health(gpu, drm, vfs)),
            ),
            uuid=f"pci:{gpu.address}/{gpu.device_id:04x}",
            material=ContainerEdits(device_nodes=nodes.nodes),
            own_nodes=nodes.own,
        )

    def _nodes(self, gpu: _Gpu, drm: sysfs.DrmNodes, problems: list[Problem]) -> FoundNodes:
        found = device_nodes(self._dev_root, (), drm, str(gpu.address))
        problems += [Problem(gpu.name, "device node", f"{path} is not there") for path in found.missing]
        return found


def _sampled(gpu: _Gpu, device: DiscoveredDevice) -> Sampled:
    memory = device.device.capacity.get("memory")
    total = None if memory is None else memory.value.value()
    return Sampled(gpu.name, gpu.function, sysfs.drm_nodes(gpu.function).card, total)


def _memory(gpu: _Gpu, drm: sysfs.DrmNodes) -> int | None:
    """Return bytes if the driver shows them: out-of-tree i915 on the card, xe tile by tile."""
    if drm.card is not None:
        total = sysfs.read_number(gpu.function / "drm" / drm.card / "lmem_total_bytes")
        if total:
            return total
    tiles = [gpu.function / tile for tile in sysfs.children(gpu.function, _TILE)]
    sizes = [sysfs.read_number(tile / "physical_vram_size_bytes") for tile in tiles]
    # One tile that cannot be read makes the sum a guess.
    known = [size for size in sizes if size]
    return sum(known) if known and len(known) == len(sizes) else None


def _quota(gpu: _Gpu, gpus: Mapping[PciAddress, _Gpu]) -> int | None:
    """Return the bytes that the physical function gives to this one; drivers number from 1, PCI from 0."""
    parent = gpus.get(gpu.physical) if gpu.physical is not None else None
    if parent is None:
        return None
    links = sysfs.children(parent.function, _VIRTFN)
    own = [n for n in links if sysfs.link_address(parent.function / n) == gpu.address]
    if not own:
        return None
    number = int(own[0].removeprefix("virtfn")) + 1
    quota = sysfs.read_number(parent.function / "sriov_admin" / f"vf{number}" / "profile" / "vram_quota")
    if quota:
        return quota
    card = sysfs.drm_nodes(parent.function).card
    if card is None:
        return None
    folder = parent.function / "drm" / card / "prelim_iov" / f"vf{number}"
    quotas = [sysfs.read_number(folder / gt / "lmem_quota") for gt in sysfs.children(folder, _GT)]
    known = [q for q in quotas if q]
    return sum(known) if known and len(known) == len(quotas) else None


def _health(gpu: _Gpu, drm: sysfs.DrmNodes, vfs: int) -> list[DeviceHealth]:
    def degraded(reason: str, message: str) -> DeviceHealth:
        return DeviceHealth(reason=reason, severity="degraded", message=message)

    health: list[DeviceHealth] = []
    if gpu.driver is None:
        health.append(degraded("DriverNotBound", "no kernel driver is bound to it"))
    elif gpu.driver not in _DRM_DRIVERS:
        message = f"it is bound to {gpu.driver}, not to i915 or xe: containers cannot use it"
        health.append(degraded("DriverNotBound", message))
    elif drm.render is None:
        message = "the driver shows no render node, so that no container can get this GPU"
        health.append(degraded("DeviceNodeUnknown", message))
    if vfs:
        message = f"{vfs} virtual functions are enabled: the GPU is shared out and cannot be used as a whole"
        health.append(degraded("VirtualFunctionsEnabled", message))
    if sysfs.read_sysfs(gpu.function / "survivability_mode") is not None:
        message = "the driver runs it in survivability mode: its firmware has to be flashed anew"
        health.append(DeviceHealth(reason="SurvivabilityMode", severity="failed", message=message))
    fatal = _fatal_errors(gpu, drm)
    if fatal:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(fatal.items()))
        health.append(degraded("FatalErrors", f"the driver has counted fatal errors: {counts}"))
    return health + sysfs.pcie_errors(gpu.function)


def _fatal_errors(gpu: _Gpu, drm: sysfs.DrmNodes) -> dict[str, int]:
    """Return the counters above 0 that out-of-tree i915 keeps per GT (``error_counter``)."""
    found: dict[str, int] = {}
    if drm.card is None:
        return found
    root = gpu.function / "drm" / drm.card / "gt"
    for gt in sysfs.children(root, _GT):
        folder = root / gt / "error_counter"
        for name in sysfs.children(folder, _FATAL):
            count = sysfs.read_number(folder / name)
            if count:
                found[f"{gt}/{name}"] = count
    return found
