"""The counters of recorded MIG geometries allow exactly what the hardware allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from dra_driver.api.meta import DriverName, ObjectMeta
from dra_driver.api.own.inventory import DeviceInventory, DeviceInventorySpec, InventoryDevice
from dra_driver.api.own.policy import DevicePolicy, DevicePolicySpec, PartitionPolicy
from dra_driver.api.resource import Counter, Device
from dra_driver.discovery.registry import open_backend
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice import (
    DesiredPool,
    PublishOptions,
    build_slices,
)

# Instances of one kind that fit on an empty GPU at the same time, as nvidia-smi shows them.
COUNTS = {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}


@pytest.fixture(scope="module")
def pool() -> tuple[InventoryDevice, DesiredPool]:
    backend = open_backend(
        "simulated=dgx-h100", sysfs_root=Path("/nonexistent"), dev_root=Path("/nonexistent"), node_name="n"
    )
    found = tuple(d.device for d in backend.discover())[:1]
    backend.close()
    cut = DevicePolicy(
        metadata=ObjectMeta(name="p"),
        spec=DevicePolicySpec(partitions=PartitionPolicy(profiles=("*",))),
    )
    inventory = DeviceInventory(
        spec=DeviceInventorySpec(node_name="n", driver=DriverName("d.io"), devices=found)
    )
    return found[0], build_slices(inventory, [cut], options=PublishOptions(allocator=PoolAllocator.SCHEDULER))


def fits(devices: Iterable[Device], counters: Mapping[str, Counter]) -> bool:
    left = {name: c.value.value() for name, c in counters.items()}
    for d in devices:
        for name, c in d.consumes_counters[0].counters.items():
            left[name] -= c.value.value()
    return min(left.values()) >= 0


def test_as_many_partitions_of_each_kind_fit_as_on_the_hardware(
    pool: tuple[InventoryDevice, DesiredPool],
) -> None:
    gpu, desired = pool
    (counters,) = desired.slices[-1].shared_counters
    all_devices = [d for s in desired.slices for d in s.devices]
    seen = set()
    for profile in gpu.partitions:
        same = [
            d
            for d in all_devices
            if "profile" in d.attributes and d.attributes["profile"].string_value == profile.name
        ]
        expected = COUNTS[profile.profile_id]
        sizes = range(1, len(same) + 1)
        most = max(
            n for n in sizes if any(fits(c, counters.counters) for c in itertools.combinations(same, n))
        )
        assert most == expected, profile.name
        seen.add(profile.profile_id)
    assert {19, 14, 9, 5, 0} <= seen


def test_overlapping_placements_exclude_each_other_and_the_whole_gpu_excludes_all(
    pool: tuple[InventoryDevice, DesiredPool],
) -> None:
    gpu, desired = pool
    (counters,) = desired.slices[-1].shared_counters
    parts = {d.name: d for s in desired.slices for d in s.devices}
    whole = parts.pop(gpu.name)
    for d in parts.values():
        assert not fits([whole, d], counters.counters)
    three = [d for n, d in parts.items() if "-mig-3g-" in n]
    one_at_zero = next(d for n, d in parts.items() if n.endswith("-mig-1g-10gb-0"))
    at_zero, at_four = sorted(three, key=lambda d: d.name)
    assert not fits([one_at_zero, at_zero], counters.counters)
    assert fits([one_at_zero, at_four], counters.counters)
