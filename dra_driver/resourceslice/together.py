"""Counters in the slice of the devices that consume them, for servers that take them nowhere else.

Kubernetes 1.34 (gate DRAPartitionableDevices) refuses a device whose counters are not defined in its own
slice. A GPU that can be cut and all of its partitions therefore stand in one slice, a *unit*, with their
counter set. Source: validation of ResourceSlices in Kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_driver.api.resource import CounterSet, Device, DeviceCounterConsumption
from dra_driver.resourceslice.types import SliceContent

__all__ = ["MAX_DEVICES_WITH_TAINTS", "pack", "problem_of_unit"]

# Devices in a slice, where any of them has taints or consumes counters. 1.34 allows more, but what comes
# after it has to take the slices that it finds.
MAX_DEVICES_WITH_TAINTS: Final = 64
# Of 1.34: counters of all sets of a slice, and counters that all of its devices consume.
MAX_COUNTERS: Final = 32
MAX_CONSUMED: Final = 1024


def problem_of_unit(counters: CounterSet, consumed: Iterable[DeviceCounterConsumption]) -> str:
    """Return why a device and its partitions cannot be published in one slice; empty if they can.

    Args:
        counters: of the device.
        consumed: what the device and each of its partitions take of them.
    """
    amounts = [len(c.counters) for c in consumed]
    for number, limit, what in (
        (len(amounts), MAX_DEVICES_WITH_TAINTS, "devices"),
        (len(counters.counters), MAX_COUNTERS, "counters"),
        (sum(amounts), MAX_CONSUMED, "consumed counters"),
    ):
        if number > limit:
            return (
                f"{number} {what} do not fit into one ResourceSlice, where this API server wants them: "
                "list fewer profiles in the DevicePolicy, or update to Kubernetes 1.35"
            )
    return ""


def pack(devices: Sequence[Device], counters: Sequence[CounterSet]) -> Iterator[SliceContent]:
    """Yield slices in which every device stands beside the counters that it consumes.

    Units come in the order of their first devices, and so do the devices of a slice.

    Args:
        devices: of the pool, in their order.
        counters: of the pool. Each has a device that consumes it, and makes no ``problem_of_unit``.
    """
    position = {d.name: i for i, d in enumerate(devices)}
    sets = {c.name: c for c in counters}
    units: dict[str, list[Device]] = {}
    for device in devices:
        # A device consumes one set, or none and is alone.
        key = device.consumes_counters[0].counter_set if device.consumes_counters else f"/{device.name}"
        units.setdefault(key, []).append(device)
    slice_, names = _Slice(), list[str]()
    for name, unit in units.items():
        if not slice_.takes(unit, sets.get(name)):
            yield slice_.content(position, [sets[n] for n in names])
            slice_, names = _Slice(), []
        slice_.add(unit, sets.get(name))
        names += [name] if name in sets else []
    yield slice_.content(position, [sets[n] for n in names])


class _Slice:
    """A slice that is being filled."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._counters = 0
        self._consumed = 0

    def takes(self, unit: Sequence[Device], counters: CounterSet | None) -> bool:
        """Return whether a unit fits beside what is there."""
        return (
            len(self._devices) + len(unit) <= MAX_DEVICES_WITH_TAINTS
            and self._counters + _number(counters) <= MAX_COUNTERS
            and self._consumed + _consumed(unit) <= MAX_CONSUMED
        )

    def add(self, unit: Sequence[Device], counters: CounterSet | None) -> None:
        """Put a unit in."""
        self._devices += unit
        self._counters += _number(counters)
        self._consumed += _consumed(unit)

    def content(self, position: dict[str, int], counters: list[CounterSet]) -> SliceContent:
        """Return it."""
        devices = tuple(sorted(self._devices, key=lambda d: position[d.name]))
        return SliceContent(devices=devices, shared_counters=tuple(sorted(counters, key=lambda c: c.name)))


def _number(counters: CounterSet | None) -> int:
    return len(counters.counters) if counters is not None else 0


def _consumed(unit: Sequence[Device]) -> int:
    return sum(len(c.counters) for d in unit for c in d.consumes_counters)
