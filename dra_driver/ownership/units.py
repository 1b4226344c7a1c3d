"""Units of exclusion: devices of a pool of which an allocation of one can exclude one of another.

A device by itself, with all its shares; or all devices that consume counters of one set, also by way of
others that consume counters of several. kube-scheduler and this controller never decide on one unit at the
same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.ownership.records import newest_generation

__all__ = ["devices_in", "unit_of", "units"]


def units(slices: Iterable[ResourceSlice]) -> dict[str, str]:
    """Return the unit of each device of a pool's newest generation.

    A unit has the name of the first of its counter sets, in the order of the alphabet, or of the device that
    consumes no counters. A GPU has the same name whole and cut, because its counter set is named like it.

    Args:
        slices: of one pool, of any generation.

    Returns:
        the name of the unit, by the name of the device.
    """
    devices = tuple(d for s in newest_generation(slices) for d in s.spec.devices)
    leader: dict[str, str] = {}
    for device in devices:
        sets = sorted({_root(leader, c.counter_set) for c in device.consumes_counters})
        for name in sets[1:]:
            leader[name] = sets[0]
    return {d.name: _unit(leader, d) for d in devices}


def unit_of(slices: Iterable[ResourceSlice], device: str) -> str:
    """Return the unit of a device; one that is not published is a unit by itself."""
    return units(slices).get(device, device)


def devices_in(slices: Iterable[ResourceSlice], names: Collection[str]) -> frozenset[str]:
    """Return the devices that units of these names exclude, published or not.

    A name that is no unit any more, because other devices are published than before, stands for the device
    and for the counter set of that name.

    Args:
        slices: of one pool, of any generation.
        names: of units, as they were.
    """
    known = tuple(slices)
    of_device = units(known)
    now = {of_device.get(name, name) for name in names}
    for device, sets in _sets(known).items():
        if sets & set(names):
            now.add(of_device[device])
    return frozenset(names) | {device for device, unit in of_device.items() if unit in now}


def _sets(slices: Iterable[ResourceSlice]) -> Mapping[str, set[str]]:
    devices = (d for s in newest_generation(slices) for d in s.spec.devices)
    return {d.name: {c.counter_set for c in d.consumes_counters} for d in devices}


def _unit(leader: dict[str, str], device: Device) -> str:
    if not device.consumes_counters:
        return device.name
    return _root(leader, device.consumes_counters[0].counter_set)


def _root(leader: Mapping[str, str], name: str) -> str:
    while name in leader:
        name = leader[name]
    return name
