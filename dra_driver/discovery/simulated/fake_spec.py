"""The description of a machine that ``dra-driver fake-hardware`` builds: schema and strict decoding.

::

    description: eight GPUs and eight NICs       # for people
    processors: [96, 96]                         # cores of each NUMA node; default: one node with 8
    modules: {amdgpu: "6.10.5"}                  # versions of kernel modules that show one
    devices:                                     # groups of equal devices
    - kind: amdgpu                               # amdgpu, intel, nvidia or rdma
      at: ["0000:05:00.0 pci0000:00 0"]          # PCI address, PCIe root, NUMA node (default: −1)
      deviceID: "74a1"                           # PCI device id; required
      class: "120000"                            # default: 030000; of rdma 020700
      revision: "00"
      # amdgpu
      productName: AMD Instinct MI300X OAM       # default: empty, as consumer cards have it
      memory: 196592Mi                           # default: the driver does not tell
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
      uniqueIDs: true                            # false: the driver does not tell them
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
      productName: NVIDIA A100-SXM4-40GB
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
from dra_driver.discovery.core.pci import PciAddress

__all__ = ["DevicePosition", "FakeGroup", "FakeMachine", "decode"]

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
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
_TEXTS: Final[Mapping[str, tuple[re.Pattern[str] | None, str]]] = {
    "deviceID": (_HEX4, "four hex digits in lower case, for example 74a1"),
    "vendorID": (_HEX4, "four hex digits in lower case, for example 15b3"),
    "class": (re.compile(r"[0-9a-f]{6}", re.ASCII), "six hex digits in lower case, for example 030000"),
    "revision": (re.compile(r"[0-9a-f]{2}", re.ASCII), "two hex digits in lower case"),
    "hive": (re.compile(r"[0-9a-f]{1,16}", re.ASCII), "up to 16 hex digits in lower case"),
    "driver": (_WORD, "the name of a kernel driver"),
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


@dataclass(frozen=True, slots=True)
class DevicePosition:
    """Where a device is; ``numa`` is −1 where the firmware does not tell."""

    address: PciAddress
    root: str
    numa: int


@dataclass(frozen=True, slots=True)
class FakeGroup:
    """Equal devices. What the description leaves out is in none of the mappings."""

    kind: str
    places: tuple[DevicePosition, ...]
    texts: Mapping[str, str]
    numbers: Mapping[str, int]
    flags: Mapping[str, bool]
    modes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FakeMachine:
    """A machine; ``processors`` are the cores of each NUMA node."""

    description: str
    processors: tuple[int, ...]
    modules: Mapping[str, str]
    groups: tuple[FakeGroup, ...]


def decode(text: str, name: str) -> FakeMachine:
    """Decodes the YAML ``text`` of the description ``name``.

    Raises:
        ConfigurationError: with every mistake, each naming path, value and what is allowed.
    """
    reader = strict.Reader(f"fake hardware {name}")
    top = reader.mapping(
        strict.parse_yaml(text, f"fake hardware {name}"),
        "",
        ("description", "processors", "modules", "devices"),
        required=("devices",),
    )
    cores = [
        reader.integer(item, path, 1, 4096)
        for path, item in reader.items(top.get("processors"), "processors", 64)
    ]
    modules = _modules(reader, top.get("modules"))
    groups = [_group(reader, item, path) for path, item in reader.items(top.get("devices"), "devices", 64)]
    places = [place.address for group in groups if group for place in group.places]
    if len(places) > _MAX_DEVICES:
        reader.finding("devices", f"{len(places)} devices are too many: at most {_MAX_DEVICES} are allowed")
    for address in sorted({a for a in places if places.count(a) > 1}):
        reader.finding("devices", f"'{address}' is given twice; every device has its own address")
    machine = FakeMachine(
        description=reader.text(top.get("description"), "description", limit=400) or "",
        processors=tuple(c for c in cores if c is not None) or (8,),
        modules=modules,
        groups=tuple(group for group in groups if group is not None),
    )
    reader.finish()
    return machine


def _modules(reader: strict.Reader, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        reader.finding("modules", "not a mapping of module names to versions")
        return {}
    found: dict[str, str] = {}
    for key, item in value.items():
        name = reader.text(key, "modules", _WORD, "the name of a kernel module")
        version = reader.text(item, f"modules.{name}")
        if name and version:
            found[name] = version
    return found


def _group(reader: strict.Reader, value: object, path: str) -> FakeGroup | None:
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
    return FakeGroup(
        kind=kind,
        places=tuple(p for p in places if p is not None),
        texts=texts,
        numbers=numbers,
        flags=flags,
        modes=tuple(m for m in modes if m),
    )


_PLACE: Final = re.compile(
    r"(?P<address>\S{12,16})(?: (?P<root>pci[0-9a-f]{4,8}:[0-9a-f]{2})(?: (?P<numa>-1|[0-9]{1,4}))?)?",
    re.ASCII,
)


def _place(reader: strict.Reader, value: object, path: str) -> DevicePosition | None:
    match = _PLACE.fullmatch(value) if isinstance(value, str) else None
    address = PciAddress.parse(match["address"]) if match else None
    if match is None or address is None:
        reader.finding(
            path,
            "not a PCI address, PCIe root and NUMA node with a blank between them, for example "
            "0000:05:00.0 pci0000:00 0",
        )
        return None
    root = match["root"] or f"pci{address.domain:04x}:{max(address.bus - 1, 0):02x}"
    return DevicePosition(address, root, int(match["numa"] or -1))
