"""What sysfs and devfs show of AMD GPUs, for fake machines."""

from __future__ import annotations

import hashlib
from typing import Final

from dra_driver.discovery.simulated.fake_spec import DevicePosition, FakeGroup, FakeMachine
from dra_driver.discovery.simulated.fake_tree import FakeTree

__all__ = ["FakeKfd", "write_amd"]

_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
# Bits of a node's capabilities as recorded on MI300X: without and with ECC of the memory.
_CAPABILITY: Final = 0xAC679086 & ~0x00100000
_ECC: Final = 0x00100000
_LINK_PCIE, _LINK_XGMI = 2, 11


class FakeKfd:
    """KFD's list of nodes: processors first, then GPUs and partitions."""

    def __init__(self, tree: FakeTree, machine: FakeMachine) -> None:
        self._tree = tree
        self._next = 0
        self._links: dict[int, int] = {}
        tree.node("kfd")
        for cores in machine.processors:
            self._add(
                0, {"cpu_cores_count": cores, "simd_count": 0, "drm_render_minor": 0}, bank=(0, 1 << 38)
            )

    def _add(self, gpu_id: int, properties: dict[str, int], bank: tuple[int, int] | None) -> int:
        number, self._next = self._next, self._next + 1
        folder = f"{_NODES}/{number}"
        self._tree.file(f"{folder}/properties", "\n".join(f"{k} {v}" for k, v in properties.items()))
        self._tree.files(folder, {"gpu_id": gpu_id, "name": "ip discovery" if gpu_id else ""})
        if bank is not None:
            text = f"heap_type {bank[0]}\nsize_in_bytes {bank[1]}\nflags 0\nwidth 8192\nmem_clk_max 1300"
            self._tree.file(f"{folder}/mem_banks/0/properties", text)
        return number

    def gpu(self, properties: dict[str, int], memory: int | None) -> int:
        """A GPU or a partition; gives the node's number."""
        gpu_id = properties["drm_render_minor"] * 257
        simd = {"cpu_cores_count": 0, "vendor_id": 0x1002, "local_mem_size": 0, **properties}
        return self._add(gpu_id, simd, None if memory is None else (1, memory))

    def link(self, node: int, peer: int, *, xgmi: bool) -> None:
        """A link from one node to another."""
        index = self._links.get(node, 0)
        self._links[node] = index + 1
        kind, weight = (_LINK_XGMI, 15) if xgmi else (_LINK_PCIE, 20)
        text = f"type {kind}\nnode_from {node}\nnode_to {peer}\nweight {weight}\nmin_bandwidth 0"
        self._tree.file(f"{_NODES}/{node}/io_links/{index}/properties", text)


def unique_id(place: DevicePosition) -> int:
    """A number that is the same for the same address, as a serial number would be."""
    return int.from_bytes(hashlib.sha256(str(place.address).encode()).digest()[:8], "big") >> 1


def write_amd(tree: FakeTree, kfd: FakeKfd, group: FakeGroup, first_xcp: int) -> int:
    """A group of GPUs; gives the number of the next partition device of the platform bus."""
    whole: list[int] = []
    for place in group.places:
        folder = _function(tree, group, place)
        slots = max(group.numbers.get("renderSlots", 1), group.numbers.get("partitions", 1))
        _, render = tree.drm(folder, place.address)
        renders = [render]
        for _ in range(slots - 1):
            xcp = f"sys/devices/platform/amdgpu_xcp_{first_xcp}"
            first_xcp += 1
            renders.append(tree.drm(xcp, None)[1])
        nodes = _nodes(kfd, group, place, renders)
        for node in nodes:
            kfd.link(node, max(place.numa, 0), xgmi=False)
            for peer in nodes:
                if peer != node:
                    kfd.link(node, peer, xgmi=True)
        whole += nodes if len(nodes) == 1 else []
    for node in whole:
        for peer in whole:
            for _ in range(group.numbers.get("links", 0) if peer != node else 0):
                kfd.link(node, peer, xgmi=True)
    return first_xcp


def _function(tree: FakeTree, group: FakeGroup, place: DevicePosition) -> str:
    texts, numbers = group.texts, group.numbers
    tells_id = group.flags.get("uniqueIDs", True)
    folder = tree.pci_function(
        place.address,
        root=place.root,
        numa=place.numa,
        driver="amdgpu",
        facts={
            "vendor": "0x1002",
            "device": f"0x{texts['deviceID']}",
            "class": f"0x{texts.get('class', '030000')}",
            "revision": f"0x{texts.get('revision', '00')}",
            "product_name": texts.get("productName", ""),
            "unique_id": f"{unique_id(place):016x}" if tells_id else None,
            "mem_info_vram_total": numbers.get("memory"),
            "mem_info_vram_used": 0 if "memory" in numbers else None,
            "gpu_busy_percent": 0,
        },
    )
    if group.modes:
        tree.files(
            folder,
            {
                "current_compute_partition": texts.get("computePartition", "SPX"),
                "available_compute_partition": ", ".join(group.modes),
                "current_memory_partition": texts.get("memoryPartition", "NPS1"),
            },
        )
    if group.flags.get("ecc"):
        bad = numbers.get("uncorrectableErrors", 0)
        for block, count in (("umc", bad), ("gfx", 0), ("sdma", 0)):
            tree.file(f"{folder}/ras/{block}_err_count", f"ue: {count}\nce: 0")
    return folder


def _nodes(kfd: FakeKfd, group: FakeGroup, place: DevicePosition, renders: list[int]) -> list[int]:
    numbers = group.numbers
    count = numbers.get("partitions", 1)
    per_unit = numbers.get("simdPerUnit", 4)
    location = place.address.bus << 8 | place.address.device << 3 | place.address.function
    memory = numbers.get("partitionMemory") if count > 1 else numbers.get("memory")
    return [
        kfd.gpu(
            {
                "simd_count": numbers.get("computeUnits", 0) * per_unit // count,
                "simd_per_cu": per_unit,
                "gfx_target_version": numbers.get("gfxTarget", 0),
                "device_id": int(group.texts["deviceID"], 16),
                "location_id": location | index,
                "domain": place.address.domain,
                "drm_render_minor": renders[index],
                "hive_id": int(group.texts.get("hive", "0"), 16),
                "capability": _CAPABILITY | (_ECC if group.flags.get("ecc") else 0),
                "unique_id": unique_id(place) if group.flags.get("uniqueIDs", True) else 0,
                "num_xcc": 1,
            },
            memory,
        )
        for index in range(count)
    ]
