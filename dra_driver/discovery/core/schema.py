"""The one schema of device attributes: every backend names and types its facts through this module.

``ATTRIBUTES`` and ``CAPACITIES`` are the tables. Names are unqualified, hence in the domain of the driver,
except for the standard ones of Kubernetes. Where NVIDIA's own driver publishes an attribute, ours has the
same name and type.

A ResourceSlice allows 32 attributes and capacities together on a device (``resource.k8s.io/v1 Device``).
Where there are more, attributes are dropped from the end of ``ATTRIBUTES`` upwards, then capacities from the
end of ``CAPACITIES`` upwards; ``type`` and ``memory`` are the last to go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dra_driver.api import names
from dra_driver.api.own.inventory import PartitionProfile
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.api.version import Version
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.errors import InvalidVersion

__all__ = [
    "ATTRIBUTES",
    "CAPACITIES",
    "MAX_FACTS",
    "MAX_STRING_BYTES",
    "AttributeSpec",
    "CapacitySpec",
    "Facts",
    "Kind",
    "Properties",
    "Value",
    "build",
    "cuda_version",
    "device_name",
    "model_of",
    "partition_maxima",
    "semantic_version",
    "typed_attribute",
    "typed_list",
]

# resource.k8s.io/v1: ResourceSliceMaxAttributesAndCapacitiesPerDevice, DeviceAttributeMaxValueLength.
MAX_FACTS = 32
MAX_STRING_BYTES = 64

Kind = Literal["string", "int", "bool", "version"]
Value = str | int | bool
Facts = Mapping[str, Value | Sequence[Value] | None]
"""Attribute name → value; of several values, the one first that describes the device best."""
# resource.k8s.io/v1: ResourceSliceMaxAttributeValuesPerDevice.
_MAX_VALUES: Final = 48


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One row of the table of attributes; ``by`` names the backends that may report it."""

    name: str
    kind: Kind
    meaning: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """One row of the table of capacities."""

    name: str
    format: Format
    meaning: str
    by: tuple[str, ...]


_ALL: Final = ("nvml", "amdgpu", "intel", "rdma")
_GPU: Final = ("nvml", "amdgpu", "intel")

# Most important first: see the module's docstring for what this order decides.
ATTRIBUTES = (
    AttributeSpec(
        "type", "string", "gpu, mig, vf, partition or nic; accelerator if a description names none", _ALL
    ),
    AttributeSpec(
        "vendor", "string", "nvidia, amd or intel; of a NIC also mellanox, amazon or broadcom", _ALL
    ),
    AttributeSpec("uuid", "string", "the vendor's identity of the device", ("nvml", "amdgpu", "rdma")),
    AttributeSpec(
        "model",
        "string",
        "short stable id of the product: A100-SXM4-40GB, MI300X, Flex-170, ConnectX-7",
        _ALL,
    ),
    AttributeSpec("productName", "string", "the product name as the vendor writes it", _ALL),
    AttributeSpec(
        "architecture",
        "string",
        "generation of the chip as its vendor calls it: Hopper, gfx942, Xe-HPC",
        _GPU,
    ),
    AttributeSpec(names.PCI_BUS_ID, "string", "PCI address, for example 0000:3b:00.0", _ALL),
    AttributeSpec(
        names.PCIE_ROOT,
        "string",
        "PCIe root complex, for example pci0000:3a; a list for a NIC with ports on several functions",
        _ALL,
    ),
    AttributeSpec(
        names.NUMA_NODE, "int", "NUMA node; absent if the kernel reports -1; can be a list as well", _ALL
    ),
    AttributeSpec(
        names.PASSTHROUGH,
        "bool",
        "true if claims can have it as a bare PCI function; set by the agent with `--passthrough` if the "
        "IOMMU is on",
        (),
    ),
    AttributeSpec(
        "parentUUID",
        "string",
        "partition: uuid of the device that it is cut from",
        ("nvml", "amdgpu"),
    ),
    AttributeSpec(
        "profile",
        "string",
        "partition: the vendor's name of its kind, for example 1g.5gb or cpx-nps1",
        ("nvml", "amdgpu"),
    ),
    AttributeSpec(
        "physicalFunction",
        "string",
        "virtual function: PCI address of the device that it belongs to",
        ("intel", "rdma"),
    ),
    AttributeSpec(
        "cudaComputeCapability", "version", "NVIDIA: compute capability, for example 8.0.0", ("nvml",)
    ),
    AttributeSpec("driverVersion", "version", "version of the kernel driver", ("nvml", "amdgpu", "intel")),
    AttributeSpec(
        "cudaDriverVersion", "version", "NVIDIA: newest CUDA version that the driver supports", ("nvml",)
    ),
    AttributeSpec(
        "nvlinkGroup", "string", "the same for all devices of a node that NVLink connects", ("nvml",)
    ),
    AttributeSpec(
        "fabricClique",
        "string",
        "NVIDIA: cluster uuid, dot, clique id of a multi-node NVLink fabric",
        ("nvml",),
    ),
    AttributeSpec(
        "xgmiHive", "string", "AMD: the same for all devices that XGMI connects, 16 hex digits", ("amdgpu",)
    ),
    AttributeSpec("migCapable", "bool", "NVIDIA: whether the device supports MIG", ("nvml",)),
    AttributeSpec("computePartition", "string", "AMD: spx, dpx, tpx, qpx or cpx", ("amdgpu",)),
    AttributeSpec("memoryPartition", "string", "AMD: nps1, nps2, nps4 or nps8", ("amdgpu",)),
    AttributeSpec("family", "string", "Intel: family of products, for example Data Center Flex", ("intel",)),
    AttributeSpec("linkLayer", "string", "NIC: InfiniBand or Ethernet", ("rdma",)),
    AttributeSpec("rdmaDevice", "string", "NIC: name of the RDMA device, for example mlx5_0", ("rdma",)),
    AttributeSpec("netdev", "string", "NIC: name of the network interface", ("rdma",)),
    AttributeSpec("nodeGUID", "string", "NIC: node GUID, for example 0a7f:bc12:45ef:d23b", ("rdma",)),
    AttributeSpec("ports", "int", "NIC: number of ports", ("rdma",)),
    AttributeSpec(
        "kernelDriver",
        "string",
        "name of the kernel driver: amdgpu, i915, xe, mlx5_core",
        ("amdgpu", "intel", "rdma"),
    ),
    AttributeSpec(
        "pciID",
        "string",
        "PCI vendor and device id, for example 1002:74a1",
        ("amdgpu", "intel", "rdma"),
    ),
    AttributeSpec(
        "index", "int", "number that the vendor's library gives it; it may change at a restart", ("nvml",)
    ),
    AttributeSpec("brand", "string", "NVIDIA: brand, for example Nvidia, GeForce, QuadroRTX", ("nvml",)),
    AttributeSpec("addressingMode", "string", "NVIDIA: HMM, ATS or None", ("nvml",)),
    AttributeSpec("eccEnabled", "bool", "whether the memory is protected by ECC", ("nvml", "amdgpu")),
    AttributeSpec(
        "virtualization",
        "string",
        "passthrough, vgpu, host-vgpu or host-vsga; absent on bare metal",
        ("nvml",),
    ),
    AttributeSpec(
        "integrated", "bool", "true where the GPU is a part of the processor; else absent", ("intel",)
    ),
    AttributeSpec("tiles", "int", "Intel: number of tiles, where the driver shows them", ("intel",)),
    AttributeSpec("sriovVFs", "int", "virtual functions that are enabled on it", ("intel", "rdma")),
    AttributeSpec(
        "sriovCapable", "bool", "whether virtual functions can be enabled on it", ("intel", "rdma")
    ),
    AttributeSpec("firmwareVersion", "version", "NIC: version of the firmware", ("rdma",)),
    AttributeSpec("hcaType", "string", "NIC: type of the adapter, for example MT4129", ("rdma",)),
    AttributeSpec("boardID", "string", "NIC: the maker's id of the board", ("rdma",)),
)

CAPACITIES = (
    CapacitySpec("memory", Format.BINARY_SI, "bytes of device memory", _GPU),
    CapacitySpec("bandwidth", Format.DECIMAL_SI, "NIC: bits per second of its active ports", ("rdma",)),
    CapacitySpec(
        "multiprocessors",
        Format.DECIMAL_SI,
        "streaming multiprocessors or compute units",
        ("nvml", "amdgpu"),
    ),
    CapacitySpec("copyEngines", Format.DECIMAL_SI, "copy engines", ("nvml",)),
    CapacitySpec("decoders", Format.DECIMAL_SI, "video decoders", ("nvml",)),
    CapacitySpec("encoders", Format.DECIMAL_SI, "video encoders", ("nvml",)),
    CapacitySpec("jpegEngines", Format.DECIMAL_SI, "JPEG engines", ("nvml",)),
    CapacitySpec("ofaEngines", Format.DECIMAL_SI, "optical flow accelerators", ("nvml",)),
)

_ATTRIBUTE_KINDS = {spec.name: spec.kind for spec in ATTRIBUTES}
_CAPACITY_NAMES = frozenset(spec.name for spec in CAPACITIES)


@dataclass(frozen=True, slots=True)
class Properties:
    """Attributes and capacities as the API takes them.

    Attributes:
        dropped: names that did not fit (``MAX_FACTS``).
        rejected: ``(name, why)`` of facts that the API would refuse; they are left out, never altered.
    """

    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    dropped: tuple[str, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


def build(facts: Facts, capacity: Mapping[str, int | None], *, most: int = MAX_FACTS) -> Properties:
    """Return the facts as the API types them. One of None is unknown, and absent from the result.

    Several values that are equal, or a sequence of one value, are no list: most devices have one PCIe root,
    and selectors for these are to work on all.

    Args:
        facts: attribute name → text, number or truth, or several of them; names of ``ATTRIBUTES`` only.
        capacity: capacity name → whole amount (bytes for ``memory``); names of ``CAPACITIES`` only.
        most: attributes and capacities that are kept, the least important being left out first.

    Raises:
        KeyError: a name is not in the tables: a mistake of the backend.
    """
    unknown = sorted((facts.keys() - _ATTRIBUTE_KINDS.keys()) | (capacity.keys() - _CAPACITY_NAMES))
    if unknown:
        raise KeyError(f"not in the schema: {', '.join(unknown)}")
    attributes: dict[str, DeviceAttribute] = {}
    rejected: list[tuple[str, str]] = []
    for spec in ATTRIBUTES:
        value = facts.get(spec.name)
        if value is None:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            several = list(dict.fromkeys(value))
            if not several:
                continue
            typed = (
                typed_list(spec.kind, several) if len(several) > 1 else typed_attribute(spec.kind, several[0])
            )
        else:
            typed = typed_attribute(spec.kind, value)
        if isinstance(typed, str):
            rejected.append((spec.name, typed))
        else:
            attributes[spec.name] = typed
    amounts: dict[str, DeviceCapacity] = {}
    for amount_spec in CAPACITIES:
        amount = capacity.get(amount_spec.name)
        if amount is None:
            continue
        if not 0 <= amount < 2**63:
            rejected.append((amount_spec.name, f"{amount} is not between 0 and 2^63 - 1"))
        else:
            amounts[amount_spec.name] = DeviceCapacity(value=Quantity.of(amount, amount_spec.format))
    dropped = _trim(attributes, amounts, most)
    return Properties(attributes, amounts, dropped, tuple(rejected))


def typed_attribute(kind: Kind, value: str | int | bool) -> DeviceAttribute | str:
    """Return the attribute, or why the value cannot be one, for people."""
    if kind == "bool":
        return (
            DeviceAttribute(bool_value=value) if isinstance(value, bool) else f"{value!r} is no truth value"
        )
    if kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{value!r} is no whole number"
        if not -(2**63) <= value < 2**63:
            return f"{value} does not fit in 64 bits"
        return DeviceAttribute(int_value=value)
    if not isinstance(value, str):
        return f"{value!r} is no text"
    if kind == "version":
        version = semantic_version(value)
        return f"{value[:80]!r} is no version" if version is None else DeviceAttribute(version_value=version)
    if not value.strip() or not value.isprintable():
        return f"{value[:80]!r} is empty or not printable"
    if len(value.encode("utf-8", "surrogatepass")) > MAX_STRING_BYTES:
        return f"{value[:80]!r} is longer than {MAX_STRING_BYTES} bytes"
    return DeviceAttribute(string_value=value)


def typed_list(kind: Kind, values: Sequence[Value]) -> DeviceAttribute | str:
    """Return the attribute with a list (``DRAListTypeAttributes``), or why there can be none, for people."""
    if not 1 <= len(values) <= _MAX_VALUES:
        return f"{len(values)} values; 1 to {_MAX_VALUES} are allowed"
    typed = [typed_attribute(kind, value) for value in values]
    problem = next((t for t in typed if isinstance(t, str)), None)
    if problem is not None:
        return problem
    each = [t for t in typed if isinstance(t, DeviceAttribute)]
    match kind:
        case "string":
            return DeviceAttribute(strings=tuple(t.string_value or "" for t in each))
        case "int":
            return DeviceAttribute(ints=tuple(t.int_value or 0 for t in each))
        case "bool":
            return DeviceAttribute(bools=tuple(bool(t.bool_value) for t in each))
        case "version":
            return DeviceAttribute(versions=tuple(t.version_value or "" for t in each))


def _trim(
    attributes: dict[str, DeviceAttribute], capacity: dict[str, DeviceCapacity], most: int
) -> tuple[str, ...]:
    surplus = len(attributes) + len(capacity) - most
    if surplus <= 0:
        return ()
    last_first = [n for n in reversed(attributes) if n != "type"] + [
        n for n in reversed(capacity) if n != "memory"
    ]
    dropped = tuple(last_first[:surplus])
    for name in dropped:
        attributes.pop(name, None)
        capacity.pop(name, None)
    return dropped


_VERSION = re.compile(
    r"([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.([0-9]{1,9}))?(?:\.[0-9]{1,9})*([-+].*)?", re.ASCII
)


def semantic_version(text: str) -> str | None:
    """Return ``text`` as a semantic version, or None where it is no version.

    Missing parts become 0 (``12.4`` → ``12.4.0``), leading zeros go (``560.35.03`` → ``560.35.3``), a fourth
    number goes; a prerelease or build part stays.
    """
    match = _VERSION.fullmatch(text.strip().removeprefix("v"))
    if match is None:
        return None
    major, minor, patch, rest = match.groups()
    version = f"{int(major)}.{int(minor or 0)}.{int(patch or 0)}{rest or ''}"
    try:
        Version.parse(version)
    except InvalidVersion:
        return None
    return version if len(version) <= MAX_STRING_BYTES else None


def cuda_version(number: int) -> str | None:
    """Return NVML's ``12040`` as ``12.4.0``."""
    return f"{number // 1000}.{number % 1000 // 10}.0" if number > 0 else None


_PREFIX = re.compile(r"^(?:NVIDIA|Tesla|AMD|Intel(?:\(R\))?)\s+", re.IGNORECASE)


def model_of(product_name: str) -> str | None:
    """Return a short stable id of a product: the name without the maker, words joined by dashes.

    ``NVIDIA A100-SXM4-40GB`` → ``A100-SXM4-40GB``, ``NVIDIA H100 80GB HBM3`` → ``H100-80GB-HBM3``,
    ``Tesla T4`` → ``T4``.
    """
    short = _PREFIX.sub("", product_name.strip())
    return re.sub(r"[^A-Za-z0-9._]+", "-", short).strip("-") or None


def device_name(address: PciAddress, kind: str = "gpu") -> str:
    """Return the name of a device in slices and inventories: ``gpu-0000-3b-00-0``."""
    return f"{kind}-{address.label}"


def partition_maxima(partitions: Iterable[PartitionProfile]) -> dict[str, int]:
    """Return the engines of a device that can be cut up: the most that one kind of partition gets.

    No library tells them for the whole device; the largest partition of NVIDIA's has them all. ``memory`` and
    ``multiprocessors`` are not given: there the largest partition has less than the device.
    """
    maxima: dict[str, int] = {}
    for partition in partitions:
        for name, amount in partition.capacity.items():
            if name.endswith(("Engines", "coders")):
                maxima[name] = max(maxima.get(name, 0), amount.value.value())
    return maxima
