"""Pools as an earlier version left them: devices that it had lent, counters that it withheld."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import builders
import earlier_slices
import pytest

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.names import COUNTERS_ANNOTATION
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import PoolAllocator
from dra_driver.publishing import NoteStatus, PublicationPlan, Seen, WriteSlice, plan_publication
from dra_driver.publishing.handover import Handover, HandoverEffect, HandoverState
from dra_driver.publishing.seen import Guarding
from dra_driver.resourceslice import ServerFeatures

NODE = Node(metadata=ObjectMeta(name="n1", uid=Uid("u1")))
DRAIN = 15.0
CUT = codec.convert(
    DevicePolicy,
    {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "cut"},
        "spec": {"partitions": {"profiles": ["*"]}},
    },
)
OPEN = Guarding(gates=True, policy=True, closed=True)


def inventory(slices: Iterable[ResourceSlice] = (), **publication: Any) -> DeviceInventory:
    """An inventory with a GPU that can be cut, and slices that are published for the present epoch."""
    profile = {
        "name": "1g.10gb",
        "attributes": {"type": {"string": "mig"}},
        "capacity": {"memory": {"value": "10Gi"}},
        "counters": {"memory": "10Gi"},
        "placements": [{"start": i, "size": 1} for i in range(2)],
    }
    gpu = builders.device("gpu-0", "80Gi", partitions=[profile])
    body = builders.inventory("n1", gpu, node_uid="u1")
    there = list(slices)
    record: dict[str, Any] = {"allocator": "controller"}
    if there:
        generation = max(s.spec.pool.generation for s in there)
        record |= {"epoch": 1, "attempted": 1, "generation": generation, "devices": 3}
        record["slices"] = [s.metadata.name for s in there]
    body["status"]["publication"] = record | publication
    return codec.convert(DeviceInventory, body)


def seen(made: DeviceInventory, slices: Iterable[ResourceSlice] = (), **more: Any) -> Seen:
    values: dict[str, Any] = {
        "allocator": PoolAllocator.CONTROLLER,
        "node": NODE,
        "policies": (CUT,),
        "drain": DRAIN,
        **more,
    }
    return Seen(inventory=made, slices=tuple(slices), features=ServerFeatures(), **values)


def written(plan: PublicationPlan, slices: Iterable[ResourceSlice] = ()) -> list[list[ResourceSlice]]:
    """Return what the API server has after each of the writes."""
    there = {s.metadata.name: s for s in slices}
    states = []
    for step in plan.steps:
        if isinstance(step, WriteSlice):
            there[step.write.slice.metadata.name] = step.write.slice
            states.append(list(there.values()))
    return states


def published() -> list[ResourceSlice]:
    ours = Handover(HandoverState.CONTROLLER)
    return written(plan_publication(seen(inventory(), handover=ours)))[-1]


def withheld() -> list[ResourceSlice]:
    return [codec.convert(ResourceSlice, earlier_slices.withheld(s)) for s in published()]


def notes(plan: PublicationPlan) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for step in plan.steps:
        if isinstance(step, NoteStatus):
            found |= step.publication
    return found


LENT = [{"unit": "gpu-0", "devices": ["gpu-0"]}]


@pytest.mark.parametrize("guarding", [Guarding(), OPEN], ids=["tainted", "open"])
@pytest.mark.parametrize(
    "state", [HandoverState.UNKNOWN, HandoverState.CONTROLLER, HandoverState.OPEN, HandoverState.YIELDING]
)
def test_a_pool_of_which_something_is_lent_is_drained_and_read_before_it_is_ours(
    state: HandoverState, guarding: Guarding
) -> None:
    slices = published()
    made = inventory(slices, lent=LENT)
    plan = plan_publication(seen(made, slices, handover=Handover(state), guarding=guarding, now=100.0))
    assert plan.handover.state is HandoverState.DRAINING
    assert HandoverEffect.BLOCK in plan.handover_effects or state is HandoverState.YIELDING
    assert notes(plan)["allocator"] == "draining"
    assert "lent" not in notes(plan)
    made = inventory(slices, lent=LENT, allocator="draining")
    waiting = seen(made, slices, handover=plan.handover, guarding=guarding, now=100.0 + DRAIN)
    plan = plan_publication(waiting)
    assert plan.reads_claims
    assert plan_publication(dataclasses.replace(waiting, claims_seen=False)).handover == plan.handover
    plan = plan_publication(dataclasses.replace(waiting, claims_seen=True))
    assert plan.handover.state is HandoverState.GRANTED
    assert HandoverEffect.UNBLOCK not in plan.handover_effects
    found = notes(plan)
    assert (found["allocator"], found["lent"]) == ("controller", [])
    made = inventory(slices)
    plan = plan_publication(seen(made, slices, handover=plan.handover, guarding=guarding, now=120.0))
    assert plan.handover.state is (HandoverState.OPEN if guarding.closed else HandoverState.CONTROLLER)


def test_a_note_that_is_left_in_a_pool_of_kube_scheduler_is_removed() -> None:
    slices = published()
    made = inventory(slices, lent=LENT, allocator="scheduler")
    plan = plan_publication(seen(made, slices, allocator=PoolAllocator.SCHEDULER))
    assert plan.handover.state is HandoverState.SCHEDULER
    assert notes(plan)["lent"] == []


def test_the_agent_of_a_node_leaves_the_note_alone() -> None:
    slices = published()
    made = inventory(slices, lent=LENT, allocator="scheduler")
    plan = plan_publication(seen(made, slices, by_node=True))
    assert "lent" not in notes(plan)


@pytest.mark.parametrize("guarding", [Guarding(), OPEN], ids=["tainted", "open"])
def test_withheld_counters_go_back_into_their_fields_and_no_reader_sees_a_mix(guarding: Guarding) -> None:
    before = withheld()
    assert len(before) == 2
    ours = Handover(HandoverState.CONTROLLER)
    plan = plan_publication(seen(inventory(before), before, handover=ours, guarding=guarding))
    assert not plan.slices or plan.slices.generation > before[0].spec.pool.generation
    half, whole = written(plan, before)
    assert len({s.spec.pool.generation for s in half}) == 2
    assert not any(COUNTERS_ANNOTATION in (s.metadata.annotations or {}) for s in whole)
    assert whole[1].spec.shared_counters
    again = plan_publication(seen(inventory(whole), whole, handover=plan.handover, guarding=guarding))
    assert not written(again, whole)


def test_counters_that_were_lost_are_written_again() -> None:
    slices = published()
    for text in ("", "{}", "nonsense"):
        broken = []
        for raw in map(earlier_slices.withheld, slices):
            raw["metadata"]["annotations"][COUNTERS_ANNOTATION] = text
            broken.append(codec.convert(ResourceSlice, raw))
        ours = Handover(HandoverState.CONTROLLER)
        plan = plan_publication(seen(inventory(broken), broken, handover=ours))
        assert [s.spec.devices for s in written(plan, broken)[-1]] == [s.spec.devices for s in slices]
