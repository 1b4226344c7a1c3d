"""``matchAttribute`` and ``distinctAttribute``: what devices of a claim must, or must not, have in common.

A device without the attribute never satisfies a constraint. Values of different types are different.
``distinctAttribute`` holds pairwise over all devices, as the API documents it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from dra_driver.api import names
from dra_driver.api.resource import Device, DeviceAttribute, DeviceConstraint

__all__ = [
    "ANY_DOMAIN",
    "STANDARD",
    "TOPOLOGY",
    "Constraint",
    "Value",
    "attribute_of",
    "attribute_values",
    "make_constraint",
]

Value = tuple[str, object]

# In place of a domain in the constraints that a topology annotation adds: the attribute of this name in any
# domain, the standard one first.
ANY_DOMAIN: Final = "*/"
STANDARD: Final = {"pcieRoot": names.PCIE_ROOT, "numaNode": names.NUMA_NODE}
# Levels of topology, the tightest first: devices with the same value are close to each other.
TOPOLOGY: Final = ("nvlinkGroup", "xgmiHive", "pcieRoot", "numaNode")


def attribute_of(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """Return the attribute by its qualified name; a bare name on a device is in its driver's domain."""
    found = device.attributes.get(name)
    if found is not None:
        return found
    if name.startswith(ANY_DOMAIN):
        return _of_any_domain(device, name.removeprefix(ANY_DOMAIN))
    domain, _, bare = name.partition("/")
    if bare and domain == driver:
        return device.attributes.get(bare)
    return None


def _of_any_domain(device: Device, bare: str) -> DeviceAttribute | None:
    standard = device.attributes.get(STANDARD.get(bare, bare))
    if standard is not None:
        return standard
    return next((a for n, a in device.attributes.items() if n.rpartition("/")[2] == bare), None)


def attribute_values(attribute: DeviceAttribute | None, *, lists: bool) -> frozenset[Value]:
    """Return the values with their types; empty if there is none that can be compared.

    Args:
        attribute: None if the device lacks it.
        lists: whether list-typed attributes count (feature DRAListTypeAttributes).
    """
    if attribute is None:
        return frozenset()
    if attribute.string_value is not None:
        return frozenset({("string", attribute.string_value)})
    if attribute.int_value is not None:
        return frozenset({("int", attribute.int_value)})
    if attribute.bool_value is not None:
        return frozenset({("bool", attribute.bool_value)})
    if attribute.version_value is not None:
        return frozenset({("version", attribute.version_value)})
    if not lists:
        return frozenset()
    typed: Iterable[tuple[str, tuple[object, ...] | None]] = (
        ("string", attribute.strings),
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("version", attribute.versions),
    )
    return frozenset((kind, v) for kind, values in typed for v in values or ())


class Constraint(Protocol):
    """State of one constraint during a search: devices are added and removed as on a stack."""

    def add(self, values: frozenset[Value]) -> bool:
        """Add a device with these values; return False, and add nothing, if that violates the constraint."""
        ...

    def remove(self, values: frozenset[Value]) -> None:
        """Remove the device that was added last, with the same values."""
        ...


class _Match:
    __slots__ = ("_common",)

    def __init__(self) -> None:
        # Per device what it has in common with all before it, so that removing one is a pop. Values are sets
        # because of list-typed attributes: devices match while one value is in all of their lists.
        self._common: list[frozenset[Value]] = []

    def add(self, values: frozenset[Value]) -> bool:
        common = values & self._common[-1] if self._common else values
        if not common:
            return False
        self._common.append(common)
        return True

    def remove(self, values: frozenset[Value]) -> None:
        self._common.pop()


class _Distinct:
    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: Counter[Value] = Counter()

    def add(self, values: frozenset[Value]) -> bool:
        if not values or any(self._seen[v] for v in values):
            return False
        self._seen.update(values)
        return True

    def remove(self, values: frozenset[Value]) -> None:
        self._seen.subtract(values)


def make_constraint(constraint: DeviceConstraint) -> Constraint:
    """Return the state of a constraint before any device is chosen."""
    return _Match() if constraint.match_attribute is not None else _Distinct()
