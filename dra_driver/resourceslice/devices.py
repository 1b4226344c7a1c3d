"""From the inventory's devices to devices that the API server accepts.

An inventory is written by a node and not trusted: what does not meet the API's rules is left out here with
the reason, because one bad device would make the server refuse the whole slice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dra_driver.api import names
from dra_driver.api.inventory import DeviceHealth, InventoryDevice
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity, DeviceTaint
from dra_driver.api.version import Version
from dra_driver.errors import InvalidVersion

__all__ = ["HEALTH_TAINT", "MAX_FACTS", "clean_devices", "controller_taint", "health_taints"]

# Limits of resource.k8s.io/v1: attributes and capacities of a device together; text of one attribute.
MAX_FACTS: Final = 32
_MAX_TEXT: Final = 64

HEALTH_TAINT: Final = "dra-driver.dev/unhealthy"
_EFFECTS: Final[Mapping[str, str]] = {"degraded": "NoSchedule", "failed": "NoExecute"}

_DEVICE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")

# Kept first when a device has more than 32 facts; then capacities, then all others by name. So what is
# dropped first is the attribute that is last in the alphabet and not listed here.
_KEEP: Final = (
    "type",
    "vendor",
    "model",
    "productName",
    "architecture",
    "uuid",
    names.PCI_BUS_ID,
    names.PCIE_ROOT,
    names.NUMA_NODE,
    "driverVersion",
    "cudaComputeCapability",
    "cudaDriverVersion",
    "index",
    "brand",
)
_RANK: Final = {name: i for i, name in enumerate(_KEEP)}


def clean_devices(devices: Iterable[InventoryDevice]) -> tuple[list[Device], list[str]]:
    """Devices as the API accepts them, in the order given, and what was left out."""
    result: list[Device] = []
    problems: list[str] = []
    seen: set[str] = set()
    for device in devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            problems.append(f"device {device.name[:80]!r}: the name is no DNS label")
        elif device.name in seen:
            problems.append(f"device {device.name}: listed twice")
        else:
            seen.add(device.name)
            result.append(_clean(device, problems))
    return result, problems


def _clean(device: InventoryDevice, problems: list[str]) -> Device:
    attributes: dict[str, DeviceAttribute] = {}
    for name, attribute in sorted(device.attributes.items()):
        problem = _name_problem(name) or _attribute_problem(attribute)
        if problem:
            problems.append(f"device {device.name}: attribute {name[:100]!r}: {problem}")
        else:
            attributes[name] = attribute
    capacity: dict[str, DeviceCapacity] = {}
    for name, amount in sorted(device.capacity.items()):
        problem = _name_problem(name)
        if problem:
            problems.append(f"device {device.name}: capacity {name[:100]!r}: {problem}")
        elif amount.value < _ZERO:
            problems.append(f"device {device.name}: capacity {name}: {amount.value} is negative")
        else:
            # A request policy belongs to a policy of the admin, not to what a node says of itself.
            capacity[name] = DeviceCapacity(value=amount.value)
    return _limited(device.name, attributes, capacity, problems)


_ZERO: Final = Quantity.of(0)


def _limited(
    name: str,
    attributes: Mapping[str, DeviceAttribute],
    capacity: Mapping[str, DeviceCapacity],
    problems: list[str],
) -> Device:
    facts = [(_RANK.get(n, len(_RANK) + 1), n, True) for n in attributes]
    facts += [(-1 if n == "memory" else len(_RANK), n, False) for n in capacity]
    facts.sort()
    dropped = facts[MAX_FACTS:]
    if dropped:
        texts = ", ".join(n for _, n, _ in dropped)
        problems.append(f"device {name}: more than {MAX_FACTS} attributes and capacities; left out: {texts}")
    kept = {(n, is_attribute) for _, n, is_attribute in facts[:MAX_FACTS]}
    return Device(
        name=name,
        attributes={n: a for n, a in attributes.items() if (n, True) in kept},
        capacity={n: c for n, c in capacity.items() if (n, False) in kept},
    )


def _name_problem(name: str) -> str:
    domain, slash, identifier = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(identifier):
        return "the name is no C identifier of at most 32 characters, with or without a domain before it"
    if slash and (len(domain) > 63 or not _DOMAIN.fullmatch(domain)):
        return "its domain is no DNS name of at most 63 characters"
    return ""


def _attribute_problem(attribute: DeviceAttribute) -> str:
    if attribute.ints or attribute.bools or attribute.strings or attribute.versions:
        return "list values are not published (DRAListTypeAttributes is alpha)"
    values = (
        attribute.int_value,
        attribute.bool_value,
        attribute.string_value,
        attribute.version_value,
    )
    if sum(v is not None for v in values) != 1:
        return "exactly one of int, bool, string and version must be set"
    if attribute.int_value is not None and not -(2**63) <= attribute.int_value < 2**63:
        return "the number does not fit 64 bits"
    text = attribute.string_value if attribute.string_value is not None else attribute.version_value
    if text is not None and len(text.encode()) > _MAX_TEXT:
        return f"the value is longer than {_MAX_TEXT} bytes"
    if attribute.version_value is not None:
        try:
            Version.parse(attribute.version_value)
        except InvalidVersion as e:
            return str(e)
    return ""


def controller_taint() -> DeviceTaint:
    """Keeps kube-scheduler's allocator off the devices that our controller allocates."""
    return DeviceTaint(key=names.CONTROLLER_TAINT, value="allocates", effect="NoSchedule")


def health_taints(health: Iterable[DeviceHealth]) -> tuple[DeviceTaint, ...]:
    """Taints for what ails a device: ``degraded`` gets no new work, ``failed`` loses what runs on it.

    The API allows one taint per key and effect; the first reason of each severity is the value.
    """
    taints: dict[str, DeviceTaint] = {}
    for entry in health:
        effect = _EFFECTS.get(entry.severity)
        if effect is not None and effect not in taints:
            reason = entry.reason if _LABEL_VALUE.fullmatch(entry.reason) else "Unhealthy"
            taints[effect] = DeviceTaint(key=HEALTH_TAINT, value=reason, effect=effect)
    return tuple(taints[effect] for effect in sorted(taints))
