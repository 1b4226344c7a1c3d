"""From the inventory's devices to devices that the API server accepts.

An inventory is written by a node and not trusted: what does not meet the API's rules is left out here with
the reason, because one bad device would make the server refuse the whole slice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from dra_driver.api import names
from dra_driver.api.own.inventory import (
    LARGEST_CAPACITY,
    MOST_PLACES,
    MOST_PLACES_OF_ALL,
    DeviceHealth,
    InventoryDevice,
)
from dra_driver.api.own.policy import HealthPolicy
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity, DeviceTaint
from dra_driver.api.version import Version
from dra_driver.errors import InvalidVersion
from dra_driver.resourceslice.sharing import SHARES

__all__ = [
    "HEALTH_TAINT",
    "MAX_FACTS",
    "MAX_VALUES",
    "PENDING_TAINT",
    "clean_device",
    "clean_devices",
    "first_values",
    "has_lists",
    "health_taints",
    "limit_facts",
    "pending_taint",
    "problem_of_attribute",
]

# Limits of resource.k8s.io/v1: attributes and capacities of a device together; values of its attributes, of
# which one with a list has several; bytes of a text.
MAX_FACTS: Final = 32
MAX_VALUES: Final = 48
_MAX_TEXT: Final = 64

HEALTH_TAINT: Final = "dra-driver.dev/unhealthy"
# On devices that a policy wants to withdraw or change while they are in use: nothing new goes there.
PENDING_TAINT: Final = "dra-driver.dev/pending"
_DEFAULT_HEALTH: Final = HealthPolicy()

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
    names.PASSTHROUGH,
    "driverVersion",
    "cudaComputeCapability",
    "cudaDriverVersion",
    "index",
    "brand",
)
_RANK: Final = {name: i for i, name in enumerate(_KEEP)}


def clean_devices(devices: Iterable[InventoryDevice]) -> tuple[list[Device], list[str]]:
    """Return devices as the API accepts them, in the order given, and what was left out."""
    result: list[Device] = []
    problems: list[str] = []
    seen: set[str] = set()
    places = 0
    for device in devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            problems.append(f"device {device.name[:80]!r}: the name is no DNS label")
        elif device.name in seen:
            problems.append(f"device {device.name}: listed twice")
        elif why := _implausible(device, places):
            problems.append(f"device {device.name}: {why}")
        else:
            seen.add(device.name)
            places += _places(device)
            result.append(clean_device(device, problems))
    return result, problems


def _implausible(device: InventoryDevice, places: int) -> str:
    """Return why no device can be like this; empty if one can.

    Such a device is left out whole: without the amount alone it would look like the smallest device of all,
    which best fit takes first.

    Args:
        device: as its node describes it.
        places: of partitions of the node's other devices.
    """
    partitions = ((f"partition {p.name[:63]}: ", p.capacity) for p in device.partitions)
    for what, capacity in (("", device.capacity), *partitions):
        for name, amount in sorted(capacity.items()):
            if amount.value > LARGEST_CAPACITY:
                return f"{what}capacity {name[:100]} is {amount.value}, more than {LARGEST_CAPACITY}"
    number = _places(device)
    if number > MOST_PLACES:
        return f"{number} partitions, more than {MOST_PLACES}"
    if number and number + places > MOST_PLACES_OF_ALL:
        return f"the node has more than {MOST_PLACES_OF_ALL} partitions"
    return ""


def _places(device: InventoryDevice) -> int:
    return sum(len(profile.placements) for profile in device.partitions)


def clean_device(device: InventoryDevice, problems: list[str]) -> Device:
    """Return one device as the API accepts it; what is left out is added to ``problems``."""
    attributes: dict[str, DeviceAttribute] = {}
    for name, attribute in sorted(device.attributes.items()):
        problem = problem_of_attribute(name, attribute)
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
    return limit_facts(Device(name=device.name, attributes=attributes, capacity=capacity), problems)


_ZERO: Final = Quantity.of(0)
_FIRST_CAPACITIES: Final = ("memory", SHARES)


def limit_facts(device: Device, problems: list[str]) -> Device:
    """Return the device with as many attributes and capacities as the API allows."""
    values = sum(_number_of_values(a) for a in device.attributes.values())
    if len(device.attributes) + len(device.capacity) <= MAX_FACTS and values <= MAX_VALUES:
        return device
    facts = [(_RANK.get(n, len(_RANK) + 1), n, True) for n in device.attributes]
    facts += [(-1 if n in _FIRST_CAPACITIES else len(_RANK), n, False) for n in device.capacity]
    facts.sort()
    kept: set[tuple[str, bool]] = set()
    left = MAX_VALUES
    for _, name, is_attribute in facts:
        number = _number_of_values(device.attributes[name]) if is_attribute else 0
        if len(kept) < MAX_FACTS and number <= left:
            kept.add((name, is_attribute))
            left -= number
    texts = ", ".join(n for _, n, is_attribute in facts if (n, is_attribute) not in kept)
    problems.append(
        f"device {device.name}: more than {MAX_FACTS} attributes and capacities, or {MAX_VALUES} values; "
        f"left out: {texts}"
    )
    return msgspec.structs.replace(
        device,
        attributes={n: a for n, a in device.attributes.items() if (n, True) in kept},
        capacity={n: c for n, c in device.capacity.items() if (n, False) in kept},
    )


def _number_of_values(attribute: DeviceAttribute) -> int:
    lists = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    return sum(map(len, filter(None, lists))) or 1


def has_lists(device: Device) -> bool:
    """Return whether an attribute has a list of values."""
    return any(
        a.string_value is None and (a.strings or a.ints or a.versions or a.bools)
        for a in device.attributes.values()
    )


def first_values(device: Device) -> Device:
    """Return the device with the first value of each list, as a server without lists can have it.

    The first is what describes the device best: backends put it there. ``matchAttribute`` then lets two
    devices be together only if that is true, but not in every case in which it is.
    """
    attributes = dict(device.attributes)
    for name, a in device.attributes.items():
        if a.strings:
            attributes[name] = DeviceAttribute(string_value=a.strings[0])
        elif a.ints:
            attributes[name] = DeviceAttribute(int_value=a.ints[0])
        elif a.versions:
            attributes[name] = DeviceAttribute(version_value=a.versions[0])
        elif a.bools:
            attributes[name] = DeviceAttribute(bool_value=a.bools[0])
    return msgspec.structs.replace(device, attributes=attributes)


_NO_SCALARS: Final = (None,) * 3
_NO_LISTS: Final = (None,) * 4


def problem_of_attribute(name: str, attribute: DeviceAttribute) -> str:
    """Return why the API would refuse the attribute; empty if it would not."""
    return _name_problem(name) or _attribute_problem(attribute)


def _name_problem(name: str) -> str:
    domain, slash, identifier = name.rpartition("/")
    if not _IDENTIFIER.fullmatch(identifier):
        return "the name is no C identifier of at most 32 characters, with or without a domain before it"
    if slash and (len(domain) > 63 or not _DOMAIN.fullmatch(domain)):
        return "its domain is no DNS name of at most 63 characters"
    return ""


def _attribute_problem(attribute: DeviceAttribute) -> str:
    text = attribute.string_value
    others = (attribute.int_value, attribute.bool_value, attribute.version_value)
    lists = (attribute.ints, attribute.bools, attribute.strings, attribute.versions)
    is_alone = others == _NO_SCALARS and lists == _NO_LISTS
    # Nearly all are like this, and a node may have thousands.
    if text is not None and is_alone and len(text) <= _MAX_TEXT and text.isascii():
        return ""
    scalars = (text, *others)
    if sum(v is not None for v in (*scalars, *lists)) != 1:
        return "exactly one of int, bool, string and version, or of their plurals, must be set"
    number = next((len(values) for values in lists if values is not None), 1)
    if not 1 <= number <= MAX_VALUES:
        return f"a list of {number} values; 1 to {MAX_VALUES} are allowed"
    for integer in (attribute.int_value, *(attribute.ints or ())):
        if integer is not None and not -(2**63) <= integer < 2**63:
            return "the number does not fit 64 bits"
    versions = (attribute.version_value, *(attribute.versions or ()))
    for text in (attribute.string_value, *(attribute.strings or ()), *versions):
        if text is not None and len(text.encode()) > _MAX_TEXT:
            return f"the value is longer than {_MAX_TEXT} bytes"
    for version in versions:
        if version is not None:
            try:
                Version.parse(version)
            except InvalidVersion as e:
                return str(e)
    return ""


def pending_taint() -> DeviceTaint:
    """Return the taint that keeps new claims off a device which changes when those that hold it are gone."""
    return DeviceTaint(key=PENDING_TAINT, value="policy", effect="NoSchedule")


def health_taints(
    health: Iterable[DeviceHealth], policy: HealthPolicy = _DEFAULT_HEALTH
) -> tuple[DeviceTaint, ...]:
    """Return taints for what ails a device. The policy says which severity has which effect.

    The API allows one taint per key and effect; the first reason of each effect is the value. Without a
    policy, ``degraded`` gets no new work and ``failed`` loses what runs on it.
    """
    effects = {"info": policy.info, "degraded": policy.degraded, "failed": policy.failed}
    taints: dict[str, DeviceTaint] = {}
    for entry in health:
        effect = effects.get(entry.severity)
        if effect and effect not in taints:
            reason = entry.reason if _LABEL_VALUE.fullmatch(entry.reason) else "Unhealthy"
            taints[effect] = DeviceTaint(key=HEALTH_TAINT, value=reason, effect=effect)
    return tuple(taints[effect] for effect in sorted(taints))
