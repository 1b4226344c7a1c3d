"""Topology that claims ask for, the policy for nodes, idle devices."""

from __future__ import annotations

import pytest
from allocator_world import annotated, claim, device, exactly, names, pool, snapshot

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.structured import Allocated, DoesNotFit, Failed, NodePolicy, Snapshot, Strategy, allocate


def gpus(node: str, *facts: tuple[str, int]) -> ResourceSlice:
    """Devices with memory and a NUMA node."""
    return pool(node, *(device(f"d{i}", m, attributes={"numaNode": n}) for i, (m, n) in enumerate(facts)))


def fit(cluster: Snapshot, one: ResourceClaim, **how: object) -> list[str]:
    outcome = allocate(cluster, [one], **how)  # type: ignore[arg-type]
    assert isinstance(outcome, Allocated), outcome
    return names(outcome.results[0])


MIXED = snapshot(gpus("n1", ("40Gi", 0), ("40Gi", 1), ("80Gi", 1)))


def test_without_a_wish_capacity_counts_more_than_topology() -> None:
    assert fit(MIXED, claim("c", exactly(2))) == ["n1/d0", "n1/d1"]


def test_a_preferred_topology_counts_more_than_capacity() -> None:
    assert fit(MIXED, annotated(claim("c", exactly(2)), "preferred:numaNode")) == ["n1/d1", "n1/d2"]


def test_a_preferred_topology_is_no_condition() -> None:
    assert len(fit(MIXED, annotated(claim("c", exactly(3)), "preferred:numaNode"))) == 3


@pytest.mark.parametrize("strategy", Strategy)
def test_a_required_topology_is_a_condition(strategy: Strategy) -> None:
    two, three = (annotated(claim("c", exactly(n)), "required:numaNode") for n in (2, 3))
    assert fit(MIXED, two, strategy=strategy) == ["n1/d1", "n1/d2"]
    outcome = allocate(MIXED, [three], strategy=strategy)
    assert isinstance(outcome, DoesNotFit)
    assert "the same numaNode" in str(outcome.reasons)


def test_a_device_without_the_attribute_never_meets_a_required_topology() -> None:
    cluster = snapshot(pool("n1", device("d", "40Gi")))
    assert isinstance(allocate(cluster, [annotated(claim("c", exactly()), "required:numaNode")]), DoesNotFit)


@pytest.mark.parametrize("text", ["numaNode", "required:rack", "wanted:numaNode", "required:numaNode;x"])
def test_a_wish_that_is_not_understood_is_refused(text: str) -> None:
    outcome = allocate(MIXED, [annotated(claim("c", exactly()), text)])
    assert isinstance(outcome, Failed)
    assert "claim default/c: annotation dra-driver.dev/topology" in outcome.message
    assert "nvlinkGroup, xgmiHive, pcieRoot, numaNode" in outcome.message


def test_nodes_are_packed_or_spread() -> None:
    cluster = snapshot(gpus("n1", ("40Gi", 0), ("40Gi", 0)), gpus("n2", *[("40Gi", 0)] * 4))
    one = claim("c", exactly())
    first = allocate(cluster, [one], nodes=["n1"])
    assert isinstance(first, Allocated)
    used = cluster.with_allocated(cluster.allocated.with_allocations([("default/a", first.results[0])]))
    for count in (1, 2):
        wanted = claim("c", exactly(count))
        assert fit(used, wanted, policy=NodePolicy.SPREAD)[0].startswith("n2/")
    assert fit(used, one, policy=NodePolicy.PACK) == ["n1/d1"]


def test_of_equal_devices_an_idle_one_is_taken() -> None:
    busy = [device(f"d{i}", "40Gi", attributes={"busy": i < 2}) for i in range(4)]
    cluster = snapshot(pool("n1", *busy))
    assert fit(cluster, claim("c", exactly())) == ["n1/d2"]
    assert fit(cluster, claim("c", exactly(2))) == ["n1/d2", "n1/d3"]
    assert len(fit(cluster, claim("c", exactly(3)))) == 3
