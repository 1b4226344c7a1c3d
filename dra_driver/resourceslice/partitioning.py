"""Partitions of a GPU as devices that consume shared counters of that GPU (KEP-4815).

One counter set for each GPU, named like it: every memory slice by its number, so that placements that overlap
exclude each other; compute slices; and the engines that the vendor counts. The whole GPU takes everything, a
partition what its profile takes at its place. What is allocated thus always fits on the hardware.
"""

from __future__ import annotations

import re
from collections import Counter as Counter_
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import InventoryDevice, OccupiedPlace, PartitionProfile
from dra_driver.api.own.partitions import PartitionDevice
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Counter, CounterSet, Device, DeviceAttribute, DeviceCounterConsumption

__all__ = [
    "ALL_PROFILES",
    "chosen_partitions",
    "counter_set",
    "has_room",
    "partition_attributes",
    "taken_by",
    "taken_by_existing",
    "taken_whole",
]

ALL_PROFILES: Final = "*"

# resource.k8s.io/v1 allows 32 counters in a set; nothing that can be cut has more memory slices than this.
_MOST_SLICES: Final = 16
_ENGINES: Final = (
    ("copyEngines", "copy-engines"),
    ("decoders", "decoders"),
    ("encoders", "encoders"),
    ("jpegEngines", "jpeg-engines"),
    ("ofaEngines", "ofa-engines"),
    ("multiprocessors", "multiprocessors"),
)
_COMPUTE: Final = "compute-slices"
_COMPUTE_SLICES = re.compile(r"([1-9][0-9]?)g\.")

# What a partition is not, or has otherwise than the GPU that it is cut from.
_OWN_TO_THE_GPU: Final = ("uuid", "index", "migCapable", "migEnabled", "nvlinkGroup", names.PASSTHROUGH)


def chosen_partitions(
    partitions: Sequence[PartitionDevice], profiles: Iterable[str]
) -> tuple[PartitionDevice, ...]:
    """Return those whose profile is listed; ``*`` lists all."""
    wanted = set(profiles)
    return tuple(p for p in partitions if ALL_PROFILES in wanted or p.profile.name in wanted)


def partition_attributes(gpu: Device, profile: PartitionProfile) -> dict[str, DeviceAttribute]:
    """Return those of the GPU as far as they hold for a part of it, and those of the profile."""
    shared = {n: a for n, a in gpu.attributes.items() if n not in _OWN_TO_THE_GPU}
    result = {**shared, **profile.attributes}
    uuid = gpu.attributes.get("uuid")
    if uuid is not None:
        result.setdefault("parentUUID", uuid)
    result.setdefault("type", DeviceAttribute(string_value="mig"))
    result.setdefault("profile", DeviceAttribute(string_value=profile.name))
    assert names.PCI_BUS_ID not in _OWN_TO_THE_GPU  # partitions sit where their GPU sits
    return result


def counter_set(gpu: InventoryDevice, partitions: Sequence[PartitionDevice]) -> CounterSet | str:
    """Return what the GPU has, or why it cannot be expressed."""
    slices = max((p.placement.start + p.placement.size for p in partitions), default=0)
    if slices > _MOST_SLICES or any(p.placement.start < 0 or p.placement.size < 1 for p in partitions):
        return f"a placement is outside of {_MOST_SLICES} memory slices"
    counters = {_slice(i): 1 for i in range(slices)}
    compute = [_compute(p.profile) for p in partitions]
    if any(compute):
        counters[_COMPUTE] = max(compute)
    for capacity, counter in _ENGINES:
        of_profiles = max((_amount(p.profile.capacity, capacity) for p in partitions), default=0)
        if of_profiles:
            counters[counter] = max(_amount(gpu.capacity, capacity), of_profiles)
    return CounterSet(name=gpu.name, counters=_counters(counters))


def taken_whole(counters: CounterSet) -> DeviceCounterConsumption:
    """Return what the whole GPU takes: everything."""
    return DeviceCounterConsumption(counter_set=counters.name, counters=counters.counters)


def taken_by(partition: PartitionDevice, counters: CounterSet) -> DeviceCounterConsumption:
    """Return what one partition takes."""
    place = partition.placement
    taken = {_slice(i): 1 for i in range(place.start, place.start + place.size)}
    compute = _compute(partition.profile)
    if compute:
        taken[_COMPUTE] = compute
    for capacity, counter in _ENGINES:
        amount = _amount(partition.profile.capacity, capacity)
        if amount and counter in counters.counters:
            taken[counter] = amount
    return DeviceCounterConsumption(counter_set=counters.name, counters=_counters(taken))


def taken_by_existing(
    places: Iterable[OccupiedPlace], partitions: Sequence[PartitionDevice], counters: CounterSet
) -> Mapping[str, int]:
    """Return what partitions that exist take of the counters.

    Args:
        places: where they are. One that is none of ``partitions`` takes its memory slices.
        partitions: all that the device can be cut into.
        counters: of the device.
    """
    known = {(p.profile.profile_id, p.placement.start, p.placement.size): p for p in partitions}
    taken: Counter_[str] = Counter_()
    for place in places:
        found = known.get((place.profile_id, place.start, place.size))
        if found is not None:
            taken.update(_amounts(taken_by(found, counters).counters))
        else:
            taken.update(_slice(i) for i in range(_MOST_SLICES) if 0 <= i - place.start < place.size)
    return taken


def has_room(partition: PartitionDevice, taken: Mapping[str, int], counters: CounterSet) -> bool:
    """Return whether the device has enough left for a partition, of what others have ``taken``."""
    has = _amounts(counters.counters)
    needed = _amounts(taken_by(partition, counters).counters)
    return all(amount + taken.get(name, 0) <= has[name] for name, amount in needed.items())


def _amounts(counters: Mapping[str, Counter]) -> dict[str, int]:
    return {name: counter.value.value() for name, counter in counters.items()}


def _counters(amounts: Mapping[str, int]) -> dict[str, Counter]:
    return {name: Counter(value=Quantity.of(amount)) for name, amount in amounts.items()}


def _slice(number: int) -> str:
    return f"memory-slice-{number}"


def _compute(profile: PartitionProfile) -> int:
    """Return the compute slices, which the vendor writes into the name: ``3g.40gb`` has three."""
    found = _COMPUTE_SLICES.match(profile.name)
    return int(found[1]) if found else 0


def _amount(capacity: Mapping[str, object], name: str) -> int:
    quantity = getattr(capacity.get(name), "value", None)
    return max(0, quantity.value()) if isinstance(quantity, Quantity) else 0
