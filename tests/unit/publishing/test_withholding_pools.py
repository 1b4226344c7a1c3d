"""When the counters of a pool are withheld from kube-scheduler, and that it never sees a mix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import builders
import msgspec
import pytest

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.own.inventory import DeviceInventory, LentUnit
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolAllocator, newest_generation, unprotected_devices
from dra_driver.publishing import PublicationPlan, Seen, WriteSlice, plan_publication
from dra_driver.publishing.handover import Handover, HandoverState
from dra_driver.publishing.loans import Lending, Loan, LoanState
from dra_driver.resourceslice import ServerFeatures

NODE = Node(metadata=ObjectMeta(name="n1", uid=Uid("u1")))
GPU = "gpu-0"
CUT = codec.convert(
    DevicePolicy,
    {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "cut"},
        "spec": {"partitions": {"profiles": ["*"]}},
    },
)


def inventory(*lent: LentUnit, number: int = 1) -> DeviceInventory:
    """An inventory whose GPUs can be cut, with slices published for the present epoch."""
    profile = {
        "name": "1g.10gb",
        "attributes": {"type": {"string": "mig"}},
        "capacity": {"memory": {"value": "10Gi"}},
        "counters": {"memory": "10Gi"},
        "placements": [{"start": i, "size": 1} for i in range(2)],
    }
    gpus = [builders.device(f"gpu-{i}", "80Gi", partitions=[profile]) for i in range(number)]
    body = builders.inventory("n1", *gpus, node_uid="u1")
    body["status"]["publication"] = {
        "allocator": "controller",
        "lent": [msgspec.to_builtins(u) for u in lent],
    }
    return codec.convert(DeviceInventory, body)


def seen(slices: Iterable[ResourceSlice], made: DeviceInventory | None = None, **more: Any) -> Seen:
    made = made or inventory()
    values: dict[str, Any] = {
        "allocator": PoolAllocator.CONTROLLER,
        "node": NODE,
        "policies": (CUT,),
        "handover": Handover(HandoverState.CONTROLLER),
        "lending": Lending(lends=True, withholds_counters=True, strays=True),
        **more,
    }
    return Seen(inventory=made, slices=tuple(slices), features=ServerFeatures(), **values)


def written(plan: PublicationPlan, slices: Iterable[ResourceSlice] = ()) -> list[list[ResourceSlice]]:
    """Return what the API server has after each of the writes, as it is read there."""
    there = {s.metadata.name: s for s in slices}
    states = []
    for step in plan.steps:
        if isinstance(step, WriteSlice):
            one = codec.convert(ResourceSlice, step.write.slice.as_stored())
            there[one.metadata.name] = one
            states.append(list(there.values()))
    return states


def published(**more: Any) -> list[ResourceSlice]:
    return written(plan_publication(seen((), **more)))[-1]


def recorded(slices: Iterable[ResourceSlice], *lent: LentUnit) -> DeviceInventory:
    made = inventory(*lent)
    record = msgspec.structs.replace(
        made.status.publication,
        epoch=1,
        attempted=1,
        generation=max(s.spec.pool.generation for s in slices),
        slices=tuple(s.metadata.name for s in slices),
    )
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, publication=record))


def lending(state: LoanState, device: str) -> Lending:
    loan = Loan(state, frozenset({device}), frozenset({device}))
    return Lending(loans={GPU: loan}, lends=True, withholds_counters=True, strays=True)


def withholding(slices: Iterable[ResourceSlice]) -> list[bool]:
    return [s.withholds_counters for s in slices]


def test_a_pool_of_which_nothing_is_lent_withholds_its_counters() -> None:
    slices = published()
    assert len(slices) == 2
    assert withholding(slices) == [True, True]
    assert all(d.consumes_counters for d in slices[0].spec.devices)
    assert slices[1].spec.shared_counters
    again = plan_publication(seen(slices, recorded(slices)))
    assert not written(again, slices)


@pytest.mark.parametrize(
    "more",
    [
        {"lending": Lending()},
        {"lending": Lending(withholds_counters=True), "by_node": True},
        {
            "lending": Lending(withholds_counters=True),
            "allocator": PoolAllocator.SCHEDULER,
            "handover": Handover(HandoverState.SCHEDULER),
        },
    ],
    ids=["not asked for", "published by the node", "kube-scheduler allocates"],
)
def test_no_other_pool_does(more: dict[str, Any]) -> None:
    slices = published(**more)
    assert withholding(slices) == [False, False]
    assert not any(COUNTERS_ANNOTATION in (s.metadata.annotations or {}) for s in slices)


def test_devices_without_counters_are_published_as_ever() -> None:
    (slice_,) = published(policies=())
    assert not slice_.withholds_counters


def test_kube_scheduler_sees_the_counters_with_the_lent_device_and_not_before_all_are_there() -> None:
    before = published()
    device = before[0].spec.devices[0].name
    note = LentUnit(unit=GPU, devices=(device,))
    plan = plan_publication(
        seen(before, recorded(before, note), lending=lending(LoanState.UNTAINTING, device))
    )
    first, last = written(plan, before)
    assert unprotected_devices(last) == {device}
    assert withholding(last) == [False, False]
    # In between the pool is incomplete: nobody allocates from it.
    newest = newest_generation(first)
    assert len(newest) == 1 < newest[0].spec.pool.resource_slice_count
    assert not plan.freezes  # no device changes its form


def test_with_the_taint_they_are_withheld_again() -> None:
    before = published()
    device = before[0].spec.devices[0].name
    note = LentUnit(unit=GPU, devices=(device,))
    lent = written(
        plan_publication(seen(before, recorded(before, note), lending=lending(LoanState.UNTAINTING, device))),
        before,
    )[-1]
    plan = plan_publication(seen(lent, recorded(lent, note), lending=lending(LoanState.TAINTING, device)))
    first, last = written(plan, lent)
    assert not unprotected_devices(last)
    assert withholding(last) == [True, True]
    newest = newest_generation(first)
    assert len(newest) == 1 < newest[0].spec.pool.resource_slice_count


def test_half_written_slices_neither_begin_a_loan_nor_end_it() -> None:
    before = published()
    device = before[0].spec.devices[0].name
    note = LentUnit(unit=GPU, devices=(device,))
    begun = lending(LoanState.UNTAINTING, device)
    first, last = written(plan_publication(seen(before, recorded(before, note), lending=begun)), before)
    half = plan_publication(seen(first, recorded(before, note), lending=begun))
    assert half.loans[GPU].state is LoanState.UNTAINTING
    whole = plan_publication(seen(last, recorded(last, note), lending=begun))
    assert whole.loans[GPU].state is LoanState.LENT
    # The other slice first: no device of the unit is in the newest generation.
    bumped = [s if i else before[0] for i, s in enumerate(last)]
    other = plan_publication(seen(bumped, recorded(before, note), lending=begun))
    assert other.loans[GPU].state is LoanState.UNTAINTING


def test_counters_that_were_lost_are_written_again() -> None:
    slices = published()
    for text in ("", "{}", "nonsense"):
        broken = []
        for slice_ in slices:
            raw = slice_.as_stored()
            raw["metadata"]["annotations"][COUNTERS_ANNOTATION] = text
            broken.append(codec.convert(ResourceSlice, raw))
        plan = plan_publication(seen(broken, recorded(broken)))
        assert [s.spec.devices for s in written(plan, broken)[-1]] == [s.spec.devices for s in slices]


def policy(**spec: Any) -> DevicePolicy:
    body = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "DevicePolicy", "metadata": {"name": "p"}}
    return codec.convert(DevicePolicy, {**body, "spec": spec})


@pytest.mark.parametrize("before", [(CUT,), (policy(share={"maxShares": 2}),)])
def test_what_is_lent_keeps_its_form_until_it_is_back(before: tuple[DevicePolicy, ...]) -> None:
    """kube-scheduler may have decided on it as it was published; the claim that holds it comes later."""
    slices = published(policies=before)
    lent = LentUnit(unit=GPU, devices=(GPU,))

    def forms(plan: PublicationPlan) -> dict[str, object]:
        assert plan.desired is not None
        devices = [d for s in plan.desired.slices for d in s.devices]
        return {d.name: (d.allow_multiple_allocations, d.consumes_counters) for d in devices}

    as_before = forms(plan_publication(seen(slices, recorded(slices), policies=before)))
    assert forms(plan_publication(seen(slices, recorded(slices), policies=()))) != as_before
    for state in (LoanState.LENT, LoanState.DRAINING, LoanState.RETURNING):
        given = {"policies": (), "lending": lending(state, GPU)}
        assert forms(plan_publication(seen(slices, recorded(slices, lent), **given))) == as_before
