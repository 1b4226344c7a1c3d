"""``devices`` of a profile: groups of equal devices, in the words of what the kernel shows of them.

::

    devices:                                     # groups of equal devices
    - kind: amdgpu                               # amdgpu, intel, nvidia or rdma
      at: ["0000:05:00.0 pci0000:00 0"]          # PCI address, PCIe root, NUMA node (default: not known)
      deviceID: "74a1"                           # PCI device id; required
      class: "120000"                            # default: 030000; of rdma 020700
      revision: "00"
      # amdgpu
      productName: AMD Instinct MI300X OAM       # default: empty, as consumer cards have it
      memory: 196592Mi                           # default: the driver does not show it
      gfxTarget: 90402
      computeUnits: 304                          # of the whole GPU
      simdPerUnit: 4
      computePartitions: [SPX, CPX]              # modes that it has; default: none, no partition files
      computePartition: CPX
      memoryPartition: NPS1
      partitions: 8                              # number of partitions in that mode
      partitionMemory: 24574Mi
      renderSlots: 8                             # render numbers that the driver reserves for a GPU
      hive: "d2c9cbcd5f6b4f07"                   # XGMI hive of the group; default: none
      links: 1                                   # XGMI links between two GPUs of the group
      uniqueIDs: true                            # false: the driver does not show them
      ecc: true
      uncorrectableErrors: 0
      # intel
      driver: i915                               # i915 (default), xe, vfio-pci or none
      tiles: 2                                   # xe shows them
      memory: 16Gi                               # where the driver shows it without privilege
      totalVFs: 31
      vfs: 2                                     # virtual functions that are enabled
      vfMemory: 4Gi
      # nvidia
      productName: NVIDIA A100-SXM4-40GB         # of a known product: with what is recorded about it
      # rdma
      driver: mlx5_core
      vendorID: "15b3"
      linkLayer: InfiniBand                      # or Ethernet
      rate: 400 Gb/sec (4X NDR)
      state: "4: ACTIVE"
      firmware: 28.39.1002
      hcaType: MT4129
      boardID: MT_0000000838
      netdev: ib                                 # prefix of the network interfaces; default: none
      totalVFs: 16
      vfs: 0
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.discovery.core import strict
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.simulated.gpu_entries import nvidia_group_gpu
from dra_driver.discovery.simulated.machine import (
    AmdGpu,
    IntelGpu,
    LinkGroup,
    NvidiaGpu,
    PciFunction,
    RdmaNic,
    SimulatedDevice,
    default_root,
)

__all__ = ["WORD", "read_groups"]

_KINDS: Final = ("amdgpu", "intel", "nvidia", "rdma")
_COMMON: Final = ("kind", "at", "deviceID", "class", "revision")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "amdgpu": (
        "productName", "memory", "gfxTarget", "computeUnits", "simdPerUnit", "computePartitions",
        "computePartition", "memoryPartition", "partitions", "partitionMemory", "renderSlots", "hive",
        "links", "uniqueIDs", "ecc", "uncorrectableErrors",
    ),
    "intel": ("driver", "tiles", "memory", "totalVFs", "vfs", "vfMemory"),
    "nvidia": ("productName",),
    "rdma": (
        "driver", "vendorID", "linkLayer", "rate", "state", "firmware", "hcaType", "boardID", "netdev",
        "totalVFs", "vfs",
    ),
}  # fmt: skip
# How each key is read: as text of a pattern, as a number up to a limit, as bytes, as truth.
_HEX4: Final = re.compile(r"[0-9a-f]{4}", re.ASCII)
WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_TEXTS: Final[Mapping[str, tuple[re.Pattern[str] | None, str]]] = {
    "deviceID": (_HEX4, "four hex digits in lower case, for example 74a1"),
    "vendorID": (_HEX4, "four hex digits in lower case, for example 15b3"),
    "class": (re.compile(r"[0-9a-f]{6}", re.ASCII), "six hex digits in lower case, for example 030000"),
    "revision": (re.compile(r"[0-9a-f]{2}", re.ASCII), "two hex digits in lower case"),
    "hive": (re.compile(r"[0-9a-f]{1,16}", re.ASCII), "up to 16 hex digits in lower case"),
    "driver": (WORD, "the name of a kernel driver"),
    "netdev": (re.compile(r"[a-z]{1,8}", re.ASCII), "up to eight lower-case letters"),
    "productName": (None, ""), "rate": (None, ""), "state": (None, ""), "firmware": (None, ""),
    "hcaType": (None, ""), "boardID": (None, ""), "linkLayer": (None, ""),
}  # fmt: skip
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "computePartition": ("SPX", "DPX", "TPX", "QPX", "CPX"),
    "memoryPartition": ("NPS1", "NPS2", "NPS4", "NPS8"),
}
_NUMBERS: Final[Mapping[str, int]] = {
    "gfxTarget": 999999, "computeUnits": 4096, "simdPerUnit": 16, "partitions": 8, "renderSlots": 64,
    "links": 64, "uncorrectableErrors": 10**9, "tiles": 8, "totalVFs": 256, "vfs": 256,
}  # fmt: skip
_BYTES: Final = ("memory", "partitionMemory", "vfMemory")
_FLAGS: Final = ("uniqueIDs", "ecc")
_MAX_DEVICES: Final = 512


# Kind → PCI vendor id, class and kernel driver where the group does not say.
_FUNCTIONS: Final = {
    "amdgpu": ("1002", "030000", "amdgpu"),
    "intel": ("8086", "030000", "i915"),
    "nvidia": ("10de", "030200", "nvidia"),
    "rdma": ("15b3", "020700", "mlx5_core"),
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a device; ``numa_node`` is None if the firmware does not report it."""

    address: PciAddress
    root: str
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class _Group:
    """A group as it is written: keys that are left out are in none of the mappings."""

    kind: str
    places: tuple[_Place, ...]
    texts: Mapping[str, str]
    numbers: Mapping[str, int]
    flags: Mapping[str, bool]
    modes: tuple[str, ...]


def read_groups(
    reader: strict.Reader, value: object, modules: Mapping[str, str]
) -> tuple[list[SimulatedDevice], list[LinkGroup]]:
    """Read ``devices``: the devices, and the XGMI links between those of one group.

    Args:
        reader: collects every mistake.
        value: the list as it is decoded from YAML.
        modules: versions of kernel modules.
    """
    devices: list[SimulatedDevice] = []
    links: list[LinkGroup] = []
    for path, item in reader.items(value, "devices", 64):
        group = _group(reader, item, path)
        if group is None:
            continue
        found = [_device(group, place, modules) for place in group.places]
        devices += found
        if group.numbers.get("links"):
            members = tuple(place.address for place in group.places)
            links.append(LinkGroup("xgmi", members, group.numbers["links"]))
    if len(devices) > _MAX_DEVICES:
        reader.finding("devices", f"{len(devices)} devices are too many: at most {_MAX_DEVICES} are allowed")
    return devices, links


def _group(reader: strict.Reader, value: object, path: str) -> _Group | None:
    kind = reader.choice(value.get("kind") if isinstance(value, Mapping) else None, f"{path}.kind", _KINDS)
    if kind is None:
        if not isinstance(value, Mapping) or "kind" not in value:
            reader.finding(path, f"kind is missing; allowed are {', '.join(_KINDS)}")
        return None
    raw = reader.mapping(value, path, (*_COMMON, *_KEYS[kind]), required=("at", "deviceID"))
    places = [_place(reader, item, p) for p, item in reader.items(raw.get("at"), f"{path}.at", _MAX_DEVICES)]
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    flags: dict[str, bool] = {}
    for key, item in raw.items():
        where = f"{path}.{key}"
        if key in _TEXTS and (text := reader.text(item, where, *_TEXTS[key])) is not None:
            texts[key] = text
        elif key in _CHOICES and (choice := reader.choice(item, where, _CHOICES[key])) is not None:
            texts[key] = choice
        elif key in _NUMBERS and (number := reader.integer(item, where, 0, _NUMBERS[key])) is not None:
            numbers[key] = number
        elif key in _BYTES and (amount := reader.byte_count(item, where)) is not None:
            numbers[key] = amount
        elif key in _FLAGS and (flag := reader.boolean(item, where)) is not None:
            flags[key] = flag
    modes = [
        reader.choice(item, p, _CHOICES["computePartition"])
        for p, item in reader.items(raw.get("computePartitions"), f"{path}.computePartitions", 8)
    ]
    return _Group(
        kind=kind,
        places=tuple(p for p in places if p is not None),
        texts=texts,
        numbers=numbers,
        flags=flags,
        modes=tuple(m for m in modes if m),
    )


def _device(group: _Group, place: _Place, modules: Mapping[str, str]) -> SimulatedDevice:
    vendor_id, class_code, usual_driver = _FUNCTIONS[group.kind]
    driver = group.texts.get("driver", usual_driver)
    function = PciFunction(
        address=place.address,
        root=place.root,
        numa_node=place.numa_node,
        vendor_id=group.texts.get("vendorID", vendor_id),
        device_id=group.texts.get("deviceID"),
        class_code=group.texts.get("class", class_code),
        revision=group.texts.get("revision", "00"),
        driver=None if driver == "none" and group.kind == "intel" else driver,
        driver_version=modules.get(driver),
    )
    if group.kind == "amdgpu":
        return SimulatedDevice(function, _amd(group))
    if group.kind == "intel":
        return SimulatedDevice(function, _intel(group))
    if group.kind == "nvidia":
        name = group.texts.get("productName")
        return SimulatedDevice(function, NvidiaGpu(product_name=name), nvidia_group_gpu(name))
    return SimulatedDevice(function, _rdma(group))


def _amd(group: _Group) -> AmdGpu:
    texts, numbers, flags = group.texts, group.numbers, group.flags
    partitions = max(numbers.get("partitions", 1), 1)
    return AmdGpu(
        product_name=texts.get("productName", ""),
        memory=numbers.get("memory"),
        gfx_target=numbers.get("gfxTarget", 0),
        compute_units=numbers.get("computeUnits", 0),
        simd_per_unit=numbers.get("simdPerUnit", 4),
        modes=group.modes,
        compute_partition=texts.get("computePartition", "SPX"),
        memory_partition=texts.get("memoryPartition", "NPS1"),
        partitions=partitions,
        partition_memory=numbers.get("partitionMemory"),
        render_slots=max(numbers.get("renderSlots", 1), partitions),
        hive=int(texts.get("hive", "0"), 16),
        unique_ids=flags.get("uniqueIDs", True),
        ecc=flags.get("ecc", False),
        uncorrectable_errors=numbers.get("uncorrectableErrors", 0),
    )


def _intel(group: _Group) -> IntelGpu:
    numbers = group.numbers
    return IntelGpu(
        memory=numbers.get("memory"),
        tiles=numbers.get("tiles", 1),
        total_vfs=numbers.get("totalVFs"),
        vfs=numbers.get("vfs", 0),
        vf_memory=numbers.get("vfMemory"),
    )


def _rdma(group: _Group) -> RdmaNic:
    texts, numbers = group.texts, group.numbers
    return RdmaNic(
        link_layer=texts.get("linkLayer", "InfiniBand"),
        rate=texts.get("rate"),
        state=texts.get("state", "4: ACTIVE"),
        firmware=texts.get("firmware"),
        hca_type=texts.get("hcaType"),
        board_id=texts.get("boardID"),
        netdev=texts.get("netdev"),
        total_vfs=numbers.get("totalVFs"),
        vfs=numbers.get("vfs", 0),
    )


_PLACE: Final = re.compile(
    r"(?P<address>\S{12,16})(?: (?P<root>pci[0-9a-f]{4,8}:[0-9a-f]{2})(?: (?P<numa>-1|[0-9]{1,4}))?)?",
    re.ASCII,
)


def _place(reader: strict.Reader, value: object, path: str) -> _Place | None:
    match = _PLACE.fullmatch(value) if isinstance(value, str) else None
    address = PciAddress.parse(match["address"]) if match else None
    if match is None or address is None:
        reader.finding(
            path,
            "not a PCI address, PCIe root and NUMA node with a blank between them, for example "
            "0000:05:00.0 pci0000:00 0",
        )
        return None
    numa = int(match["numa"] or -1)
    return _Place(address, match["root"] or default_root(address), numa if numa >= 0 else None)
