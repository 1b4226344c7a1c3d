"""Backend ``amdgpu``: AMD GPUs and their partitions from sysfs and KFD alone, without a vendor's library.

A GPU is a PCI function of the driver ``amdgpu``, and what KFD says about it. In a compute partition mode
other than SPX it is published as its partitions, ``gpu-0000-05-00-0-cpx-3``, never as a whole beside them.
A GPU without partition files (most that are not Instinct) is a whole GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, DeviceLink, InventoryDevice
from dra_driver.cdi import ContainerEdits
from dra_driver.discovery.amd import kfd as amdgpu_kfd
from dra_driver.discovery.amd.kfd import KfdNode
from dra_driver.discovery.amd.samples import ras_counts, read_partition_sample, read_sample
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci, pci_products
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.host import sysfs, unserved
from dra_driver.discovery.core.host.nodes import FoundNodes, device_nodes, drm_folders
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.problems import DriverMissing, HardwareAbsent, Problem, ProblemLog
from dra_driver.hardware import DeviceSample, DiscoveredDevice

__all__ = ["AmdGpuBackend"]

_COMPUTE_MODES: Final = ("spx", "dpx", "tpx", "qpx", "cpx")
_MEMORY_MODES: Final = ("nps1", "nps2", "nps3", "nps4", "nps6", "nps8")
# Partitions beyond the first have DRM nodes without a PCI function.
_XCP: Final = re.compile(r"amdgpu_xcp[._]?[0-9]{1,5}", re.ASCII)
_MAX_GPUS: Final = 512


@dataclass(slots=True)
class _Gpu:
    """A physical GPU: its PCI function, where sysfs has it, and its KFD nodes by number of partition."""

    address: PciAddress
    function: Path | None
    nodes: dict[int, KfdNode] = field(default_factory=dict)
    compute: str | None = None
    memory: str | None = None

    @property
    def partitioned(self) -> bool:
        return self.compute not in (None, "spx") or any(index > 0 for index in self.nodes)


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes one device: a GPU (``index`` None) or a partition of it."""

    gpu: _Gpu
    name: str
    index: int | None
    node: KfdNode | None
    drm: sysfs.DrmNodes


class AmdGpuBackend:
    """AMD GPUs of this machine.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for; in containers' specs they are paths below ``/dev``.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._log = ProblemLog(self.name)
        self._sampled: tuple[_Part, ...] = ()
        # While the driver resets a GPU its mode cannot be read: without the last one names would change.
        self._compute: dict[PciAddress, str] = {}

    @property
    def name(self) -> str:
        """``amdgpu``."""
        return "amdgpu"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return self._log.current

    @property
    def _drivers(self) -> Path:
        return self._sysfs_root / "module" / "amdgpu" / "drivers" / "pci:amdgpu"

    @property
    def diagnostics(self) -> str:
        """Where ``discover`` looks."""
        return f"PCI functions in {self._drivers}, nodes in {amdgpu_kfd.nodes_folder(self._sysfs_root)}"

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every GPU or partition, by PCI address and number.

        Raises:
            HardwareAbsent: the driver is not loaded.
            DriverMissing: likewise, and there are GPUs on the PCI bus that no other driver has.
        """
        problems: list[Problem] = []
        functions = sysfs.pci_addresses(self._drivers)
        nodes = amdgpu_kfd.read_nodes(self._sysfs_root, lambda s, m: problems.append(Problem("", s, m)))
        if functions is None and not nodes:
            raise self._absent()
        if nodes is None:
            folder = amdgpu_kfd.nodes_folder(self._sysfs_root)
            message = f"{folder} is not there: programs for ROCm find no GPU (the kernel's CONFIG_HSA_AMD)"
            problems.append(Problem("", "KFD", message))
        gpus = self._gpus(functions or [], nodes or [], problems)
        xcp = self._xcp() if any(gpu.partitioned for gpu in gpus) else {}
        parts = [part for gpu in gpus for part in self._parts(gpu, xcp, problems)]
        whole = {p.node.number: p.name for p in parts if p.node is not None and p.index is None}
        version = sysfs.read_sysfs(self._sysfs_root / "module" / "amdgpu" / "version")
        devices = [self._device(part, whole, version, problems) for part in parts]
        self._log.replace(problems)
        self._sampled = tuple(parts)
        return devices

    def _absent(self) -> HardwareAbsent:
        why = f"{self._drivers} is not there, and KFD has no GPU: AMD's kernel driver is not loaded"
        # Those of another driver, such as radeon, are served by it.
        free = [f for f in unserved.display_functions(self._sysfs_root, pci.AMD) if not f.driver]
        if not free:
            return HardwareAbsent(f"amdgpu: {why}")
        return DriverMissing(
            f"amdgpu: {unserved.sentence('AMD', free)}, but {why}; load it (modprobe amdgpu; is it on a "
            "list of modules that must not be loaded, or is its firmware missing?), with KFD for ROCm"
        )

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``: of what the last ``discover`` found."""
        samples: list[DeviceSample] = []
        for part in self._sampled:
            if part.index is not None and part.node is not None:
                samples.append(read_partition_sample(part.name, part.gpu.function, part.node))
            elif part.index is None and part.gpu.function is not None:
                samples.append(read_sample(part.name, part.gpu.function, part.node))
        return samples

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``."""
        folders = ((self._drivers.parent, ""), *drm_folders(self._sysfs_root, self._dev_root))
        return HotplugHints(folders, modules=frozenset({"amdgpu"}))

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _gpus(
        self, functions: Sequence[PciAddress], nodes: Sequence[KfdNode], problems: list[Problem]
    ) -> list[_Gpu]:
        if len(functions) > _MAX_GPUS:
            problems.append(Problem("", "GPUs", f"{len(functions)} found; only {_MAX_GPUS} are looked at"))
        found = {a: _Gpu(a, self._function(a)) for a in functions[:_MAX_GPUS]}
        for node in nodes:
            address, index = _place(node, found)
            gpu = found.setdefault(address, _Gpu(address, None))
            if index in gpu.nodes:
                first = gpu.nodes[index].number
                message = f"left out: KFD node {first} has the same address"
                problems.append(Problem(schema.device_name(address), f"KFD node {node.number}", message))
                continue
            gpu.nodes[index] = node
        for gpu in found.values():
            self._read_modes(gpu)
        return [found[address] for address in sorted(found)]

    def _function(self, address: PciAddress) -> Path:
        function = sysfs.pci_function(self._sysfs_root, address)
        return function if pci.exists(function) else self._drivers / str(address)

    def _read_modes(self, gpu: _Gpu) -> None:
        if gpu.function is None:
            return
        gpu.compute = _mode(gpu.function / "current_compute_partition", _COMPUTE_MODES)
        gpu.memory = _mode(gpu.function / "current_memory_partition", _MEMORY_MODES)
        if gpu.compute is not None:
            self._compute[gpu.address] = gpu.compute
        else:
            gpu.compute = self._compute.get(gpu.address)

    def _parts(self, gpu: _Gpu, xcp: Mapping[int, sysfs.DrmNodes], problems: list[Problem]) -> list[_Part]:
        name = schema.device_name(gpu.address)
        own = sysfs.drm_nodes(gpu.function) if gpu.function is not None else sysfs.DrmNodes(None, None)
        if not gpu.partitioned:
            node = gpu.nodes.get(0)
            if own.render is None and node is not None:
                own = sysfs.DrmNodes(own.card, f"renderD{node.minor}")
            return [_Part(gpu, name, None, node, own)]
        if not gpu.nodes:
            message = f"left out: it is in mode {gpu.compute}, and KFD has none of its partitions"
            problems.append(Problem(name, "partitions", message))
        parts: list[_Part] = []
        for index, node in sorted(gpu.nodes.items()):
            part_name = f"{name}-{gpu.compute or 'xcp'}-{index}"
            drm = own if own.minor == node.minor else xcp.get(node.minor)
            if drm is None:
                # Never those of a neighbour: the render node's number is the one fact that KFD gives.
                drm = sysfs.DrmNodes(None, f"renderD{node.minor}")
                message = f"no DRM device has render minor {node.minor}: its card node is unknown"
                problems.append(Problem(part_name, "device node", message))
            parts.append(_Part(gpu, part_name, index, node, drm))
        return parts

    def _xcp(self) -> Mapping[int, sysfs.DrmNodes]:
        folder = self._sysfs_root / "devices" / "platform"
        found = (sysfs.drm_nodes(folder / name) for name in sysfs.children(folder, _XCP))
        return {drm.minor: drm for drm in found if drm.minor is not None}

    def _device(
        self, part: _Part, whole: Mapping[int, str], version: str | None, problems: list[Problem]
    ) -> DiscoveredDevice:
        gpu, node = part.gpu, part.node
        parent = _unique_id(gpu)
        suffix = "" if part.index is None else f"-{gpu.compute or 'xcp'}-{part.index}"
        properties = schema.build(
            {
                **_product(gpu),
                **self._place_facts(gpu),
                "type": "gpu" if part.index is None else "partition",
                "uuid": None if parent is None else parent + suffix,
                "parentUUID": None if part.index is None else parent,
                "profile": None if part.index is None else _profile(gpu),
                "architecture": None if node is None else node.gfx_target,
                "driverVersion": version,
                "xgmiHive": f"{node.hive:016x}" if node is not None and node.hive else None,
                "computePartition": gpu.compute,
                "memoryPartition": gpu.memory,
                "eccEnabled": None if node is None else node.ecc,
            },
            {"memory": _memory(part), "multiprocessors": None if node is None else node.compute_units},
        )
        problems += [Problem(part.name, subject, why) for subject, why in properties.rejected]
        peers = (
            Counter(whole.get(n, "") for n in amdgpu_kfd.links(node))
            if part.name in whole.values() and node
            else {}
        )
        nodes = self._nodes(part, problems)
        return DiscoveredDevice(
            device=InventoryDevice(
                name=part.name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                links=tuple(DeviceLink(peer=p, type="xgmi", count=n) for p, n in sorted(peers.items()) if p),
                health=tuple(_health(part)),
            ),
            uuid=(parent or f"pci:{gpu.address}") + suffix,
            material=ContainerEdits(device_nodes=nodes.nodes),
            own_nodes=nodes.own,
        )

    def _place_facts(self, gpu: _Gpu) -> dict[str, str | int | bool | None]:
        return {
            "vendor": "amd",
            "kernelDriver": "amdgpu",
            names.PCI_BUS_ID: str(gpu.address),
            names.PCIE_ROOT: pci.pcie_root(self._sysfs_root, gpu.address),
            names.NUMA_NODE: pci.numa_node(self._sysfs_root, gpu.address),
        }

    def _nodes(self, part: _Part, problems: list[Problem]) -> FoundNodes:
        by_path = str(part.gpu.address) if part.index is None else None
        found = device_nodes(self._dev_root, ("kfd",), part.drm, by_path)
        problems += [Problem(part.name, "device node", f"{path} is not there") for path in found.missing]
        return found


def _place(node: KfdNode, functions: Mapping[PciAddress, _Gpu]) -> tuple[PciAddress, int]:
    """Return PCI function and number of the partition of a node."""
    if node.partition:
        return node.address, node.partition
    a = node.address
    gpu = functions.get(a)
    # A function of its own: a virtual function. Else the last digit counts the partitions of function 0.
    if a.function == 0 or (gpu is not None and gpu.function is not None):
        return a, 0
    return PciAddress(a.domain, a.bus, a.device), a.function


def _mode(path: Path, allowed: Sequence[str]) -> str | None:
    text = (sysfs.read_sysfs(path) or "").lower()
    return text if text in allowed else None


def _profile(gpu: _Gpu) -> str | None:
    return "-".join(mode for mode in (gpu.compute, gpu.memory) if mode) or None


def _unique_id(gpu: _Gpu) -> str | None:
    """Return the GPU's id: that of the function, as newer drivers give each partition one of its own."""
    number = sysfs.read_number(gpu.function / "unique_id", 16) if gpu.function is not None else None
    if not number and gpu.nodes:
        number = gpu.nodes[min(gpu.nodes)].unique_id
    return f"{number:016x}" if number else None


def _product(gpu: _Gpu) -> dict[str, str | int | bool | None]:
    told = revision = device = pci_id = None
    if gpu.function is not None:
        told = sysfs.read_sysfs(gpu.function / "product_name")
        revision = sysfs.read_number(gpu.function / "revision", 16)
        device = sysfs.read_number(gpu.function / "device", 16)
        pci_id = sysfs.pci_id(gpu.function)
    if device is None and gpu.nodes:
        device = gpu.nodes[min(gpu.nodes)].device_id or None
        pci_id = f"1002:{device:04x}" if device else None
    known = pci_products.amd_product(device, revision) if device else None
    name = told or (known.name if known else None)
    model = known.model if known else None
    return {
        "productName": name,
        "model": model or (schema.model_of(name) if name else None),
        "pciID": pci_id,
    }


def _memory(part: _Part) -> int | None:
    """Return the bytes that the driver reports of the whole GPU, or KFD of the partition's share."""
    if part.index is None and part.gpu.function is not None:
        total = sysfs.read_number(part.gpu.function / "mem_info_vram_total")
        if total:
            return total
    return part.node.memory if part.node is not None else None


def _health(part: _Part) -> list[DeviceHealth]:
    health: list[DeviceHealth] = []
    if part.drm.render is None:
        message = "the driver shows no render node, so that no container can get this GPU"
        health.append(DeviceHealth(reason="DeviceNodeUnknown", severity="degraded", message=message))
    if part.gpu.function is None:
        return health
    bad = {block: ue for block, (ue, _) in sorted(ras_counts(part.gpu.function).items()) if ue}
    if bad:
        blocks = ", ".join(f"{block} {count}" for block, count in bad.items())
        message = f"the driver has counted errors that could not be corrected: {blocks}"
        health.append(DeviceHealth(reason="UncorrectableErrors", severity="degraded", message=message))
    return health + sysfs.pcie_errors(part.gpu.function)
