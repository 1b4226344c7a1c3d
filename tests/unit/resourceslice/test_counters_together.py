"""Counters in the slice of the devices that consume them: servers that take them nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from test_device_policies import PROFILES, build, devices, gpu, policy, profile

from dra_driver.api.own.inventory import PartitionProfile
from dra_driver.api.own.policy import PartitionPolicy
from dra_driver.publishing import conditions
from dra_driver.resourceslice import ServerFeatures, Usage
from dra_driver.resourceslice.together import MAX_COUNTERS, MAX_DEVICES_WITH_TAINTS

CUT = policy(partitions=PartitionPolicy(profiles=("*",)))
HELD = "gpu-0-mig-1g-10gb-1"


def test_a_gpu_its_partitions_and_its_counters_are_in_one_slice() -> None:
    pool = build([gpu(partitions=PROFILES), gpu("gpu-1", model="B")], CUT, together=True)
    (slice_,) = pool.slices
    assert [c.name for c in slice_.shared_counters] == ["gpu-0"]
    apart = build([gpu(partitions=PROFILES), gpu("gpu-1", model="B")], CUT)
    # Smallest first, as everywhere.
    assert slice_.devices == apart.slices[0].devices
    assert pool.partitioned


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_slices_have_as_many_gpus_as_their_limits_allow(number: int) -> None:
    pool = build([gpu(f"gpu-{i}", partitions=PROFILES) for i in range(number)], CUT, together=True)
    counters = len(pool.slices[0].shared_counters[0].counters)
    together = min(MAX_COUNTERS // counters, MAX_DEVICES_WITH_TAINTS // len(devices(build([gpu()], CUT))))
    for slice_ in pool.slices:
        sets = {c.name for c in slice_.shared_counters}
        assert {c.counter_set for d in slice_.devices for c in d.consumes_counters} == sets
        assert sum(len(c.counters) for c in slice_.shared_counters) <= MAX_COUNTERS
    assert len(pool.slices) == -(-number // together)
    assert sorted(devices(pool)) == sorted(
        devices(build([gpu(f"gpu-{i}", partitions=PROFILES) for i in range(number)], CUT))
    )


def test_a_pool_without_partitions_is_published_as_everywhere() -> None:
    gpus = [gpu(f"gpu-{i}") for i in range(70)]
    assert build(gpus, together=True).slices == build(gpus).slices


def test_partitions_that_do_not_fit_beside_their_gpu_are_left_out_and_the_way_out_is_told() -> None:
    many = tuple(profile(f"1g.{i}gb", tuple(range(16))) for i in range(1, 5))
    gpus = [gpu(partitions=many), gpu("gpu-1", partitions=PROFILES)]
    pool = build(gpus, CUT, together=True)
    assert {name for name in devices(pool) if name.startswith("gpu-0")} == {"gpu-0"}
    assert not devices(pool)["gpu-0"].consumes_counters
    assert HELD.replace("gpu-0", "gpu-1") in devices(pool)
    said = conditions.published(pool, ServerFeatures(together=True))
    assert (said.status, said.reason) == ("True", "PublishedInPart")
    assert "device gpu-0: no partitions, 65 devices do not fit into one ResourceSlice" in said.message
    assert "list fewer profiles in the DevicePolicy, or update to Kubernetes 1.35" in said.message
    # Fewer profiles are the way out.
    fewer = policy(partitions=PartitionPolicy(profiles=("1g.1gb", "1g.2gb")))
    assert not build(gpus, fewer, together=True).problems


def test_a_gpu_whose_partition_is_in_use_and_does_not_fit_any_more_goes_to_nobody() -> None:
    """As after an upgrade of the node agent that finds more profiles, or a rollback of the API server."""
    many = tuple(profile(f"1g.{i}gb", tuple(range(16))) for i in range(1, 5))
    held = Usage(whole=frozenset({"gpu-0-mig-1g-1gb-1"}))
    pool = build([gpu(partitions=many), gpu("gpu-1")], CUT, usage=held, together=True)
    assert set(devices(pool)) == {"gpu-1"}
    assert "device gpu-0: left out, parts of it are in use" in pool.problems
    # It comes back, whole, with its last partition.
    assert set(devices(build([gpu(partitions=many), gpu("gpu-1")], CUT, together=True))) == {"gpu-0", "gpu-1"}


def greedy(number: int, size: int, **capacity: Any) -> tuple[PartitionProfile, ...]:
    """Profiles that take everything that a GPU has: memory slices, compute slices, engines."""
    return tuple(profile(f"1g.{i}gb", (0,), size, "10Gi", **capacity) for i in range(1, number + 1))


def test_no_slice_consumes_more_counters_than_the_server_allows() -> None:
    # 51 devices of 22 counters.
    engines = {"copyEngines": 1, "decoders": 1, "encoders": 1, "jpegEngines": 1, "ofaEngines": 1}
    alone = build([gpu(partitions=greedy(50, 16, **engines))], CUT, together=True)
    assert set(devices(alone)) == {"gpu-0"}
    assert "1122 consumed counters" in alone.problems[0]
    # 40 devices of 20 counters, and 24 of 10: together 64 devices, 30 counters, 1040 that are consumed.
    large = gpu(partitions=greedy(39, 16, copyEngines=1, decoders=1, encoders=1))
    pool = build([large, gpu("gpu-1", partitions=greedy(23, 8, decoders=1))], CUT, together=True)
    consumed = [sum(len(c.counters) for d in s.devices for c in d.consumes_counters) for s in pool.slices]
    assert (sorted(consumed), pool.problems) == ([240, 800], ())
