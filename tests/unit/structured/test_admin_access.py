"""Admin access: devices are looked at, whatever others hold of them, and nothing is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from allocator_world import (
    allocated,
    claim,
    device,
    exactly,
    names,
    partitioned_pool,
    pool,
    snapshot,
    takes,
)

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DoesNotFit,
    Features,
    Snapshot,
    Strategy,
    allocate,
)

BOTH = pytest.mark.parametrize("strategy", Strategy)


def called(name: str) -> dict[str, Any]:
    """A selector of the device with this name."""
    expression = f'device.attributes["gpu.example.com"].name == "{name}"'
    return {"selectors": [{"cel": {"expression": expression}}]}


def gpu_in_parts() -> list[ResourceSlice]:
    """A GPU as a whole, and two halves of it."""
    return partitioned_pool(
        "n1",
        {"gpu": {"slices": "2"}},
        device("whole", "80Gi", attributes={"name": "whole"}, consumesCounters=takes("gpu", slices="2")),
        *(
            device(
                f"half-{i}",
                "40Gi",
                attributes={"name": f"half-{i}"},
                consumesCounters=takes("gpu", slices="1"),
            )
            for i in range(2)
        ),
    )


def after(now: Snapshot, *claims: ResourceClaim) -> Snapshot:
    """The cluster with these claims allocated, one after the other."""
    for one in claims:
        outcome = allocate(now, [one])
        assert isinstance(outcome, Allocated), outcome
        made = [(str(one.key), result) for result in outcome.results]
        now = now.with_allocated(now.allocated.with_allocations(made))
    return now


def looked_at(now: Snapshot, admin: ResourceClaim, strategy: Strategy = Strategy.BEST_FIT) -> list[str]:
    """The devices that the claim gets, and that it takes nothing."""
    outcome = allocate(now, [admin], strategy=strategy)
    assert isinstance(outcome, Allocated), outcome
    (result,) = outcome.results
    assert all(
        r.admin_access and r.share_id is None and not r.consumed_capacity for r in result.devices.results
    )
    assert AllocatedState.from_claims([allocated(admin, result)]) == AllocatedState()
    return names(result)


@BOTH
def test_a_whole_gpu_is_looked_at_while_a_part_of_it_is_in_use(strategy: Strategy) -> None:
    now = after(snapshot(gpu_in_parts()), claim("user", exactly(**called("half-0"))))
    assert looked_at(now, claim("admin", exactly(adminAccess=True, **called("whole"))), strategy) == [
        "n1/whole"
    ]


@BOTH
def test_a_part_of_a_gpu_is_looked_at_while_the_whole_is_in_use(strategy: Strategy) -> None:
    now = after(snapshot(gpu_in_parts()), claim("user", exactly(**called("whole"))))
    assert looked_at(now, claim("admin", exactly(adminAccess=True, **called("half-1"))), strategy) == [
        "n1/half-1"
    ]


@BOTH
def test_a_shared_gpu_that_is_full_is_looked_at(strategy: Strategy) -> None:
    shared = pool("n1", device("d", "80Gi", allowMultipleAllocations=True))
    now = after(snapshot(shared), claim("a", exactly(memory="50Gi")), claim("b", exactly(memory="30Gi")))
    assert looked_at(now, claim("admin", exactly(adminAccess=True)), strategy) == ["n1/d"]
    assert looked_at(now, claim("admin", exactly(adminAccess=True, memory="80Gi")), strategy) == ["n1/d"]


@BOTH
def test_all_devices_are_looked_at_whatever_is_in_use(strategy: Strategy) -> None:
    shared = [
        device(f"s{i}", "80Gi", allowMultipleAllocations=True, attributes={"name": f"s{i}"}) for i in range(2)
    ]
    other = pool("n1", *shared, driver="other.example.com")
    users = [
        claim("half", exactly(**called("half-0"))),
        claim("full", exactly(selectors=[{"cel": {"expression": 'device.driver == "other.example.com"'}}])),
    ]
    now = after(snapshot([*gpu_in_parts(), other]), *users)
    everything = looked_at(now, claim("admin", exactly(None, adminAccess=True)), strategy)
    assert sorted(everything) == ["n1/half-0", "n1/half-1", "n1/s0", "n1/s1", "n1/whole"]


def test_what_is_looked_at_stays_free_for_others_of_the_pod() -> None:
    """In whatever order the pod names its claims."""
    user, admin = claim("user", exactly()), claim("admin", exactly(None, adminAccess=True))
    shared = device("d", "80Gi", allowMultipleAllocations=True)
    for what in (device("d", "80Gi"), shared):
        for pod in ([user, admin], [admin, user]):
            outcome = allocate(snapshot(pool("n1", what)), pod)
            assert isinstance(outcome, Allocated)
            assert [names(r) for r in outcome.results] == [["n1/d"], ["n1/d"]]


def test_no_claim_has_a_device_twice() -> None:
    one_gpu = snapshot(pool("n1", device("d", "80Gi")))
    for requests in ([exactly(adminAccess=True), exactly()], [exactly(), exactly(adminAccess=True)]):
        assert isinstance(allocate(one_gpu, [claim("c", *requests)]), DoesNotFit)


def test_a_device_that_is_too_small_is_not_looked_at() -> None:
    """An amount is a property that the device must have, though nothing is taken of it."""
    now = snapshot(pool("n1", device("d", "40Gi", allowMultipleAllocations=True)))
    outcome = allocate(now, [claim("admin", exactly(adminAccess=True, memory="80Gi"))])
    assert isinstance(outcome, DoesNotFit)
    assert "40Gi" in outcome.summary()
    assert "in use" not in outcome.summary()


def test_with_the_rules_of_kubernetes_counters_and_capacity_are_needed() -> None:
    shared = pool("n1", device("d", "80Gi", allowMultipleAllocations=True), driver="other.example.com")
    user, half = claim("user", exactly(memory="80Gi")), claim("half", exactly(**called("half-0")))
    for slices, taken, wanted in (
        (gpu_in_parts(), half, claim("admin", exactly(adminAccess=True, **called("whole")))),
        ([shared], user, claim("admin", exactly(adminAccess=True))),
    ):
        now = after(snapshot(slices), taken)
        strict = Snapshot.build(
            slices=slices,
            classes=list(now.classes.values()),
            nodes=list(now.nodes.values()),
            allocated=now.allocated,
            features=replace(Features(), admin_access_in_use=False),
        )
        assert isinstance(allocate(now, [wanted]), Allocated)
        assert isinstance(allocate(strict, [wanted]), DoesNotFit)
