"""Names of partitions as devices."""

from __future__ import annotations

import re

from dra_driver.api.own.inventory import InventoryDevice, PartitionPlacement, PartitionProfile
from dra_driver.api.own.partitions import partition_devices, partition_name
from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.discovery.simulated.profile import built_in_profiles


def test_names() -> None:
    assert partition_name("gpu-0000-3b-00-0", "1g.5gb", 4) == "gpu-0000-3b-00-0-mig-1g-5gb-4"
    assert partition_name("gpu-0", "1g.10gb+me", 0) == "gpu-0-mig-1g-10gb-me-0"
    assert partition_name("gpu-0", "1g.10gb-me", 0) == "gpu-0-mig-1g-10gb-nome-0"
    assert partition_name("gpu-0", "1g.12gb+me.all", 0) == "gpu-0-mig-1g-12gb-me-all-0"


def test_a_long_name_stays_a_label_and_unique() -> None:
    names = {partition_name("gpu-" + "a" * 58 + last, "1g.5gb", 0) for last in "ab"}
    assert len(names) == 2
    assert all(len(n) <= 63 and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])", n) for n in names)


def test_every_placement_is_a_device() -> None:
    profile = PartitionProfile(
        name="3g.20gb",
        profile_id=9,
        placements=(PartitionPlacement(start=0, size=4), PartitionPlacement(start=4, size=4)),
    )
    found = partition_devices(InventoryDevice(name="gpu-0", partitions=(profile,)))
    assert [(d.name, d.gpu, d.profile.profile_id, d.placement.start) for d in found] == [
        ("gpu-0-mig-3g-20gb-0", "gpu-0", 9, 0),
        ("gpu-0-mig-3g-20gb-4", "gpu-0", 9, 4),
    ]


def test_no_two_partitions_of_a_product_have_one_name() -> None:
    placements = 0
    for profile in built_in_profiles():
        for found in SimulatedBackend(profile, seed="n").discover():
            names = sum(len(p.placements) for p in found.device.partitions)
            assert len(partition_devices(found.device)) == names
            placements += names
    assert placements
