"""What sysfs and devfs show of AMD GPUs of a simulated machine."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.simulated.machine import AmdGpu, LinkGroup, PciFunction
from dra_driver.discovery.simulated.tree import TreeWriter

__all__ = ["AmdWriter"]

_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
# Bits of a node's capabilities as recorded on MI300X: without and with ECC of the memory.
_CAPABILITY: Final = 0xAC679086 & ~0x00100000
_ECC: Final = 0x00100000
_LINK_PCIE, _LINK_XGMI = 2, 11
# Kinds of memory banks: system memory, and the frame buffer that processors can address.
_HEAP_SYSTEM, _HEAP_FRAME_BUFFER = 0, 1


class AmdWriter:
    """Writes a machine's AMD GPUs: their PCI functions, DRM devices and KFD nodes.

    Args:
        tree: where they are written.
        processors: number of cores of each NUMA node; they are KFD nodes, too.
    """

    def __init__(self, tree: TreeWriter, processors: Sequence[int]) -> None:
        self._tree = tree
        self._kfd = _KfdWriter(tree, processors)
        self._next_xcp = 0
        self._nodes: dict[PciAddress, list[int]] = {}

    def write(self, function: PciFunction, gpu: AmdGpu) -> None:
        """Write one GPU with its partitions."""
        _write_function(self._tree, function, gpu)
        renders = [self._tree.drm(function.folder, function.address)[1]]
        # Partitions beyond the first have DRM devices without a PCI function.
        for _ in range(gpu.render_slots - 1):
            renders.append(self._tree.drm(f"sys/devices/platform/amdgpu_xcp_{self._next_xcp}", None)[1])
            self._next_xcp += 1
        nodes = self._nodes[function.address] = _write_nodes(self._kfd, function, gpu, renders)
        for node in nodes:
            self._kfd.link(node, function.numa_node or 0, xgmi=False)
            for peer in nodes:
                if peer != node:
                    self._kfd.link(node, peer, xgmi=True)

    def write_links(self, groups: Sequence[LinkGroup]) -> None:
        """Write the XGMI links between the GPUs that have been written."""
        for group in groups:
            if group.type != "xgmi":
                continue
            # The driver shows links between GPUs only while they are whole.
            members = [self._nodes[member] for member in group.members]
            whole = [nodes[0] for nodes in members if len(nodes) == 1]
            for node, peer in itertools.permutations(whole, 2):
                for _ in range(group.links):
                    self._kfd.link(node, peer, xgmi=True)


class _KfdWriter:
    """KFD's list of nodes: processors first, then GPUs and partitions.

    Args:
        tree: where it is written.
        processors: number of cores of each NUMA node.
    """

    def __init__(self, tree: TreeWriter, processors: Sequence[int]) -> None:
        self._tree = tree
        self._next = 0
        self._links: dict[int, int] = {}
        tree.node("kfd")
        for cores in processors:
            properties = {"cpu_cores_count": cores, "simd_count": 0, "drm_render_minor": 0}
            self._add(0, properties, bank=(_HEAP_SYSTEM, 1 << 38))

    def gpu(self, properties: Mapping[str, int], memory: int | None) -> int:
        """Write a GPU or a partition, and return the number of its node."""
        gpu_id = properties["drm_render_minor"] * 257
        simd = {"cpu_cores_count": 0, "vendor_id": 0x1002, "local_mem_size": 0, **properties}
        return self._add(gpu_id, simd, None if memory is None else (_HEAP_FRAME_BUFFER, memory))

    def link(self, node: int, peer: int, *, xgmi: bool) -> None:
        """Write a link from one node to another."""
        index = self._links.get(node, 0)
        self._links[node] = index + 1
        kind, weight = (_LINK_XGMI, 15) if xgmi else (_LINK_PCIE, 20)
        text = f"type {kind}\nnode_from {node}\nnode_to {peer}\nweight {weight}\nmin_bandwidth 0"
        self._tree.file(f"{_NODES}/{node}/io_links/{index}/properties", text)

    def _add(self, gpu_id: int, properties: Mapping[str, int], bank: tuple[int, int] | None) -> int:
        number, self._next = self._next, self._next + 1
        folder = f"{_NODES}/{number}"
        self._tree.file(f"{folder}/properties", "\n".join(f"{k} {v}" for k, v in properties.items()))
        self._tree.files(folder, {"gpu_id": gpu_id, "name": "ip discovery" if gpu_id else ""})
        if bank is not None:
            text = f"heap_type {bank[0]}\nsize_in_bytes {bank[1]}\nflags 0\nwidth 8192\nmem_clk_max 1300"
            self._tree.file(f"{folder}/mem_banks/0/properties", text)
        return number


def _unique_id(address: PciAddress) -> int:
    """Return a number that is the same for the same address, as a serial number would be."""
    return int.from_bytes(hashlib.sha256(str(address).encode()).digest()[:8], "big") >> 1


def _write_function(tree: TreeWriter, function: PciFunction, gpu: AmdGpu) -> None:
    tree.pci_function(
        function,
        {
            "product_name": gpu.product_name,
            "unique_id": f"{_unique_id(function.address):016x}" if gpu.unique_ids else None,
            "mem_info_vram_total": gpu.memory,
            "mem_info_vram_used": None if gpu.memory is None else 0,
            "gpu_busy_percent": 0,
        },
    )
    if gpu.modes:
        tree.files(
            function.folder,
            {
                "current_compute_partition": gpu.compute_partition,
                "available_compute_partition": ", ".join(gpu.modes),
                "current_memory_partition": gpu.memory_partition,
            },
        )
    if gpu.ecc:
        for block, count in (("umc", gpu.uncorrectable_errors), ("gfx", 0), ("sdma", 0)):
            tree.file(f"{function.folder}/ras/{block}_err_count", f"ue: {count}\nce: 0")


def _write_nodes(kfd: _KfdWriter, function: PciFunction, gpu: AmdGpu, renders: Sequence[int]) -> list[int]:
    address = function.address
    location = address.bus << 8 | address.device << 3 | address.function
    return [
        kfd.gpu(
            {
                "simd_count": gpu.compute_units * gpu.simd_per_unit // gpu.partitions,
                "simd_per_cu": gpu.simd_per_unit,
                "gfx_target_version": gpu.gfx_target,
                "device_id": int(function.device_id or "0", 16),
                "location_id": location | index,
                "domain": address.domain,
                "drm_render_minor": renders[index],
                "hive_id": gpu.hive,
                "capability": _CAPABILITY | (_ECC if gpu.ecc else 0),
                "unique_id": _unique_id(address) if gpu.unique_ids else 0,
                "num_xcc": 1,
            },
            gpu.partition_memory if gpu.partitions > 1 else gpu.memory,
        )
        for index in range(gpu.partitions)
    ]
