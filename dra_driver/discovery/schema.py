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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dra_driver.api import names
from dra_driver.api.inventory import PartitionProfile
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.api.version import Version
from dra_driver.discovery.pci import PciAddress
from dra_driver.errors import InvalidVersion

__all__ = [
    "ATTRIBUTES",
    "CAPACITIES",
    "MAX_FACTS",
    "MAX_STRING_BYTES",
    "AttributeSpec",
    "CapacitySpec",
    "Facts",
    "Properties",
    "build",
    "cuda_version",
    "device_name",
    "model_of",
    "partition_maxima",
    "semantic_version",
]

# resource.k8s.io/v1: ResourceSliceMaxAttributesAndCapacitiesPerDevice, DeviceAttributeMaxValueLength.
MAX_FACTS = 32
MAX_STRING_BYTES = 64

Kind = Literal["string", "int", "bool", "version"]
Facts = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One row of the table of attributes."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """One row of the table of capacities."""

    name: str
    format: Format
    meaning: str


# Most important first: see the module's docstring for what this order decides.
ATTRIBUTES = (
    AttributeSpec("type", "string", "gpu, mig, vf or partition"),
    AttributeSpec("vendor", "string", "nvidia, amd or intel"),
    AttributeSpec("uuid", "string", "the vendor's identity of the device"),
    AttributeSpec("model", "string", "short stable id made of the product name, for example A100-SXM4-40GB"),
    AttributeSpec("productName", "string", "the product name as the vendor's library writes it"),
    AttributeSpec("architecture", "string", "for example Ampere, Ada Lovelace, Hopper"),
    AttributeSpec(names.PCI_BUS_ID, "string", "PCI address, for example 0000:3b:00.0"),
    AttributeSpec(names.PCIE_ROOT, "string", "PCIe root complex, for example pci0000:3a"),
    AttributeSpec(names.NUMA_NODE, "int", "NUMA node; absent where the kernel says -1"),
    AttributeSpec("parentUUID", "string", "of a partition: uuid of the device that it is cut from"),
    AttributeSpec("profile", "string", "of a partition: the vendor's name of its kind, for example 1g.5gb"),
    AttributeSpec("cudaComputeCapability", "version", "NVIDIA: compute capability, for example 8.0.0"),
    AttributeSpec("driverVersion", "version", "version of the kernel driver"),
    AttributeSpec("cudaDriverVersion", "version", "NVIDIA: newest CUDA version that the driver supports"),
    AttributeSpec("nvlinkGroup", "string", "the same for all devices of a node that NVLink connects"),
    AttributeSpec(
        "fabricClique", "string", "NVIDIA: <cluster uuid>.<clique id> of a multi-node NVLink fabric"
    ),
    AttributeSpec("migCapable", "bool", "NVIDIA: whether the device supports MIG"),
    AttributeSpec("index", "int", "number that the vendor's library gives it; it may change at a restart"),
    AttributeSpec("brand", "string", "NVIDIA: brand, for example Nvidia, GeForce, QuadroRTX"),
    AttributeSpec("addressingMode", "string", "NVIDIA: HMM, ATS or None"),
    AttributeSpec("eccEnabled", "bool", "whether the memory is protected by ECC"),
    AttributeSpec(
        "virtualization", "string", "passthrough, vgpu, host-vgpu or host-vsga; absent on bare metal"
    ),
)

CAPACITIES = (
    CapacitySpec("memory", Format.BINARY_SI, "bytes of device memory"),
    CapacitySpec("multiprocessors", Format.DECIMAL_SI, "streaming multiprocessors or compute units"),
    CapacitySpec("copyEngines", Format.DECIMAL_SI, "copy engines"),
    CapacitySpec("decoders", Format.DECIMAL_SI, "video decoders"),
    CapacitySpec("encoders", Format.DECIMAL_SI, "video encoders"),
    CapacitySpec("jpegEngines", Format.DECIMAL_SI, "JPEG engines"),
    CapacitySpec("ofaEngines", Format.DECIMAL_SI, "optical flow accelerators"),
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


def build(facts: Facts, capacity: Mapping[str, int | None]) -> Properties:
    """Types the facts; None means unknown, and the attribute is then absent.

    Args:
        facts: attribute name → text, number or truth; names of ``ATTRIBUTES`` only.
        capacity: capacity name → whole amount (bytes for ``memory``); names of ``CAPACITIES`` only.

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
        typed = _typed(spec.kind, value)
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
    dropped = _trim(attributes, amounts)
    return Properties(attributes, amounts, dropped, tuple(rejected))


def _typed(kind: Kind, value: str | int | bool) -> DeviceAttribute | str:
    """The attribute, or why the value cannot be one."""
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


def _trim(attributes: dict[str, DeviceAttribute], capacity: dict[str, DeviceCapacity]) -> tuple[str, ...]:
    surplus = len(attributes) + len(capacity) - MAX_FACTS
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
    """``text`` as a semantic version, or None where it is no version.

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
    """NVML's ``12040`` as ``12.4.0``."""
    return f"{number // 1000}.{number % 1000 // 10}.0" if number > 0 else None


_PREFIX = re.compile(r"^(?:NVIDIA|Tesla|AMD|Intel(?:\(R\))?)\s+", re.IGNORECASE)


def model_of(product_name: str) -> str | None:
    """Short stable id of a product: the name without the maker, words joined by dashes.

    ``NVIDIA A100-SXM4-40GB`` → ``A100-SXM4-40GB``, ``NVIDIA H100 80GB HBM3`` → ``H100-80GB-HBM3``,
    ``Tesla T4`` → ``T4``.
    """
    short = _PREFIX.sub("", product_name.strip())
    return re.sub(r"[^A-Za-z0-9._]+", "-", short).strip("-") or None


def device_name(address: PciAddress) -> str:
    """Name of a device in slices and inventories: ``gpu-0000-3b-00-0``."""
    return f"gpu-{address.label}"


def partition_maxima(partitions: Iterable[PartitionProfile]) -> dict[str, int]:
    """Engines of a whole device that can be cut up: the most that one kind of partition gets.

    No library tells them for the whole device; the largest partition of NVIDIA's has them all. ``memory`` and
    ``multiprocessors`` are not given: there the largest partition has less than the device.
    """
    maxima: dict[str, int] = {}
    for partition in partitions:
        for name, amount in partition.capacity.items():
            if name.endswith(("Engines", "coders")):
                maxima[name] = max(maxima.get(name, 0), amount.value.value())
    return maxima
