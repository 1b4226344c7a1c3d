"""What a publisher does about a pool, from what it has seen: values in, a value out."""

from typing import Any, TypeVar

import builders
import msgspec
import pytest
from builders import device, device_class

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.ownership import CREATED_BY_CONTROLLER, CREATED_BY_NODE, PoolAllocator, owner_of
from dra_driver.publishing import (
    Announce,
    DeleteSlice,
    NoteAttempt,
    NoteStatus,
    PublicationPlan,
    Seen,
    Step,
    Verdict,
    WriteSlice,
    is_due,
    plan_publication,
)
from dra_driver.publishing.freeze import Freeze
from dra_driver.publishing.handover import Handover, HandoverState
from dra_driver.publishing.seen import Guarding
from dra_driver.resourceslice import PublishOptions, ServerFeatures, Usage, build_slices, plan_slices

NODE = Node(metadata=ObjectMeta(name="n1", uid=Uid("u1")))
DRAIN = 15.0

S = TypeVar("S", bound=Step)


def inventory(
    count: int = 2, *, registered: bool = True, asked: int = 1, **publication: Any
) -> DeviceInventory:
    devices = [device(f"gpu-{i}", "40Gi") for i in range(count)]
    body = builders.inventory("n1", *devices, node_uid="u1", registered=registered, epoch=asked)
    body["status"]["publication"] = publication
    return codec.convert(DeviceInventory, body)


def slices_for(made: DeviceInventory, allocator: PoolAllocator) -> tuple[ResourceSlice, ...]:
    desired = build_slices(made, options=PublishOptions(allocator=allocator))
    return tuple(w.slice for w in plan_slices([], desired, owner_of(NODE)).creates)


def seen(made: DeviceInventory, *slices: ResourceSlice, **more: Any) -> Seen:
    values: dict[str, Any] = {"allocator": PoolAllocator.CONTROLLER, "drain": DRAIN, "node": NODE, **more}
    return Seen(inventory=made, slices=slices, features=ServerFeatures(), **values)


def published(whose: PoolAllocator, count: int = 2, **status: Any) -> tuple[DeviceInventory, Any]:
    """A pool whose record and slices say the same."""
    slices = slices_for(inventory(count), whose)
    record = {
        "epoch": 1,
        "attempted": 1,
        "generation": 1,
        "slices": [s.metadata.name for s in slices],
        "devices": count,
        "allocator": whose.value,
    }
    return inventory(count, **{**record, **status}), slices


def kinds(plan: PublicationPlan) -> list[type[Step]]:
    return [type(step) for step in plan.steps]


def only(plan: PublicationPlan, kind: type[S]) -> S:
    """Return the only step of a kind."""
    (found,) = [s for s in plan.steps if isinstance(s, kind)]
    return found


def condition_reasons(plan: PublicationPlan) -> list[str]:
    """Return the reasons of the conditions, where nothing else is done."""
    reasons = []
    for step in plan.steps:
        assert isinstance(step, NoteStatus)
        assert step.condition is not None
        reasons.append(step.condition.reason)
    return reasons


def test_a_first_publication_notes_the_attempt_writes_and_notes_what_was_written() -> None:
    plan = plan_publication(seen(inventory()))
    assert kinds(plan) == [NoteAttempt, WriteSlice, Announce, NoteStatus]
    assert plan.steps[0] == NoteAttempt(1, {"attempted": 1, "allocator": "controller"})
    announce, note = only(plan, Announce), only(plan, NoteStatus)
    assert (announce.type, announce.reason) == ("Normal", "Published")
    assert (note.publication["epoch"], note.publication["devices"]) == (1, 2)
    assert not plan.freezes


def test_a_plan_says_the_same_each_time() -> None:
    what = seen(inventory())
    assert plan_publication(what) == plan_publication(what)


def test_a_pool_as_it_should_be_gives_nothing_to_do() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    first = plan_publication(seen(made, *slices))
    assert kinds(first) == [Announce, NoteStatus]
    note = only(first, NoteStatus)
    assert note.publication == {}
    assert note.condition is not None
    status = msgspec.structs.replace(made.status, conditions=(note.condition,))
    made = msgspec.structs.replace(made, status=status)
    assert plan_publication(seen(made, *slices)).steps == ()


def test_what_vanished_stays_away_and_so_does_everything_else() -> None:
    made, _ = published(PoolAllocator.CONTROLLER)
    assert plan_publication(seen(made)).steps == ()
    assert not is_due(seen(made))


def test_without_the_plugin_slices_change_and_none_is_created() -> None:
    grown, slices = published(PoolAllocator.CONTROLLER)
    grown = msgspec.structs.replace(inventory(3), status=grown.status)
    gone = msgspec.structs.replace(grown.status.registration, registered=False)
    grown = msgspec.structs.replace(grown, status=msgspec.structs.replace(grown.status, registration=gone))
    assert WriteSlice in kinds(plan_publication(seen(grown, *slices)))
    many = msgspec.structs.replace(inventory(100), status=grown.status)
    assert plan_publication(seen(many, *slices)).steps == ()


def test_an_attempt_of_another_process_is_closed_without_writing() -> None:
    made = inventory(attempted=1, generation=4, allocator="controller")
    plan = plan_publication(seen(made))
    assert kinds(plan) == [NoteStatus]
    note = only(plan, NoteStatus)
    assert (note.publication["epoch"], note.publication["generation"]) == (1, 4)
    assert len(note.publication["slices"]) == 1
    going_on = plan_publication(seen(made, begun=1))
    assert kinds(going_on) == [WriteSlice, Announce, NoteStatus]
    assert only(going_on, NoteStatus).publication["epoch"] == 1


def test_an_epoch_that_was_asked_for_is_not_noted_while_the_plugin_is_away() -> None:
    """What was attempted for it is not known to be there either."""
    made, slices = published(PoolAllocator.CONTROLLER, attempted=2)
    away = msgspec.structs.replace(made.status.registration, registered=False, epoch=2)
    status = msgspec.structs.replace(made.status, registration=away)
    plan = plan_publication(seen(msgspec.structs.replace(inventory(1), status=status), *slices))
    assert WriteSlice in kinds(plan)
    note = only(plan, NoteStatus).publication
    assert (note["epoch"], note["attempted"], note["devices"]) == (1, 2, 1)


def test_who_must_not_allocate_is_noted_before_the_slices_say_so() -> None:
    made, slices = published(PoolAllocator.SCHEDULER)
    plan = plan_publication(seen(made, *slices))
    assert plan.steps[0] == NoteStatus({"allocator": "draining"})
    assert isinstance(plan.steps[1], WriteSlice)
    assert plan.handover.state is HandoverState.NOTING
    # A controller that notes no allocator has published it.
    older = msgspec.structs.replace(made.status.publication, allocator="")
    made = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, publication=older))
    plan = plan_publication(seen(made, *slices))
    assert plan.steps[0] == NoteStatus({"allocator": "draining"})
    assert isinstance(plan.steps[1], WriteSlice)


def test_an_agent_that_takes_a_pool_over_notes_that_before_the_taint_goes() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    plan = plan_publication(seen(made, *slices, by_node=True))
    assert plan.steps[0] == NoteStatus({"allocator": "scheduler"})
    write = only(plan, WriteSlice)
    assert all(not d.taints for d in write.write.slice.spec.devices)
    # Where no controller has ever been, there is nothing to stop.
    assert kinds(plan_publication(seen(inventory(), by_node=True))) == [WriteSlice, NoteStatus]


def test_claims_are_read_again_when_a_pool_is_drained_and_then_it_is_granted() -> None:
    made, slices = published(PoolAllocator.CONTROLLER, allocator="draining")
    draining = Handover(HandoverState.DRAINING, since=100.0)
    early = plan_publication(seen(made, *slices, handover=draining, now=110.0))
    assert not early.reads_claims
    assert early.again == 5.0
    late = seen(made, *slices, handover=draining, now=115.0)
    assert plan_publication(late).reads_claims
    unknown = plan_publication(seen(made, *slices, handover=draining, now=115.0, claims_seen=False))
    assert unknown.handover.state is HandoverState.DRAINING
    assert unknown.again > 0
    granted = plan_publication(seen(made, *slices, handover=draining, now=115.0, claims_seen=True))
    assert granted.handover.state is HandoverState.GRANTED
    assert granted.steps[0] == NoteStatus({"allocator": "controller"})


def test_a_pool_that_was_never_noted_to_be_kube_scheduler_s_drains_from_now_on() -> None:
    made, slices = published(PoolAllocator.CONTROLLER, allocator="draining")
    plan = plan_publication(seen(made, *slices, handover=Handover(HandoverState.SCHEDULER), now=100.0))
    assert not any(isinstance(s, WriteSlice) for s in plan.steps)
    assert plan.handover == Handover(HandoverState.DRAINING, since=100.0)
    assert plan.again == DRAIN


def test_a_pool_is_yielded_when_no_allocation_is_being_written() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    yielding = Handover(HandoverState.YIELDING, since=100.0)
    wanted = {"allocator": PoolAllocator.SCHEDULER, "handover": yielding, "now": 115.0}
    writing = plan_publication(seen(made, *slices, **wanted, writing=True))
    assert writing.handover is yielding
    assert writing.again > 0
    assert not any(isinstance(s, WriteSlice) for s in writing.steps)
    done = plan_publication(seen(made, *slices, **wanted))
    assert done.steps[0] == NoteStatus({"allocator": "scheduler"})


def test_a_pool_is_frozen_only_while_devices_change_their_form() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    grown = msgspec.structs.replace(inventory(3), status=made.status)
    assert not plan_publication(seen(grown, *slices)).freezes
    shrunk = msgspec.structs.replace(inventory(1), status=made.status)
    assert plan_publication(seen(shrunk, *slices)).freezes
    held = Usage(whole=frozenset({"gpu-1"}))
    assert plan_publication(seen(shrunk, *slices, usage=held)).freezes


def test_stale_slices_go_last() -> None:
    made, slices = published(PoolAllocator.CONTROLLER, 100)
    shrunk = msgspec.structs.replace(inventory(2), status=made.status)
    steps = kinds(plan_publication(seen(shrunk, *slices)))
    assert steps[-1] is DeleteSlice
    assert steps.index(WriteSlice) < steps.index(NoteStatus) < steps.index(DeleteSlice)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({"node": Node(metadata=ObjectMeta(name="n1", uid=Uid("another")))}, Verdict.REFUSED, "Refused"),
        ({"node": None}, Verdict.NO_NODE, ""),
    ],
)
def test_an_inventory_that_is_not_its_node_s_is_not_published(
    change: dict[str, Any], verdict: Verdict, reason: str
) -> None:
    plan = plan_publication(seen(inventory(), **change))
    assert plan.verdict is verdict
    assert condition_reasons(plan) == ([reason] if reason else [])
    assert plan.desired is None
    noted = [s.condition for s in plan.steps if isinstance(s, NoteStatus) and s.condition is not None]
    made = inventory()
    made = msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, conditions=tuple(noted)))
    assert plan_publication(seen(made, **change)).steps == (), "it is noted once"


def test_a_pool_that_its_node_publishes_is_left_alone_once_it_is_handed_over() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, publisher="node"))
    first = plan_publication(seen(made, *slices))
    assert (first.verdict, first.handover.state) == (Verdict.PUBLISHES, HandoverState.YIELDING)
    publication = msgspec.structs.replace(made.status.publication, allocator="scheduler")
    status = msgspec.structs.replace(made.status, publication=publication)
    left = plan_publication(seen(msgspec.structs.replace(made, status=status), *slices))
    assert left.verdict is Verdict.LEFT_TO_NODE
    assert condition_reasons(left) == ["PublishedByNode"]


def test_claims_that_tolerate_the_taint_are_named_and_take_no_pool_away() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    plan = plan_publication(seen(made, *slices, refusal="claim ns/a tolerates it"))
    assert plan.handover.state is HandoverState.CONTROLLER
    announced = only(plan, Announce)
    assert (announced.type, announced.reason) == ("Warning", "ToleratingClaims")
    fresh = plan_publication(seen(inventory(), refusal="claim ns/a tolerates it"))
    assert fresh.handover.state is HandoverState.SCHEDULER


def test_the_generation_goes_on_from_what_was_recorded_though_the_slices_are_gone() -> None:
    made = inventory(asked=2, epoch=1, attempted=1, generation=7, allocator="controller")
    for by_node, label in ((False, CREATED_BY_CONTROLLER), (True, CREATED_BY_NODE)):
        write = only(plan_publication(seen(made, by_node=by_node)), WriteSlice).write.slice
        assert write.spec.pool.generation == 8
        assert write.metadata.labels == label


def test_a_frozen_pool_is_frozen_anew_by_whatever_is_written_and_by_nothing_else() -> None:
    made, slices = published(PoolAllocator.CONTROLLER)
    frozen = Freeze().begin()[0]
    grown = msgspec.structs.replace(inventory(3), status=made.status)
    assert plan_publication(seen(grown, *slices, freeze=frozen)).freezes
    assert not plan_publication(seen(made, *slices, freeze=frozen)).freezes


def test_an_agent_believes_its_own_inventory_and_publishes_it() -> None:
    made = inventory()
    made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, publisher="node"))
    another = Node(metadata=ObjectMeta(name="n1", uid=Uid("another")))
    assert plan_publication(seen(made, by_node=True, node=another)).verdict is Verdict.PUBLISHES


def test_what_is_told_of_a_pool_depends_on_whose_it_is() -> None:
    def message(**more: Any) -> str:
        note = only(plan_publication(seen(inventory(), **more)), NoteStatus)
        assert note.condition is not None
        return note.condition.message

    assert "gpu-0 has much" in message(doubts=("gpu-0 has much",))
    scheduler = {"allocator": PoolAllocator.SCHEDULER}
    assert "tolerates" not in message(**scheduler, refusal="claim ns/a tolerates it")
    class_ = codec.convert(DeviceClass, device_class(extendedResourceName="example.com/gpu"))
    told = "serves the extended resource example.com/gpu"
    assert told in message(classes=(class_,))
    assert told not in message(classes=(class_,), **scheduler)
    assert told not in message(classes=(class_,), guarding=Guarding(gates=True, policy=True))


def test_devices_of_a_device_plugin_are_published_where_nothing_is_withheld() -> None:
    class_ = codec.convert(DeviceClass, device_class(extendedResourceName="example.com/gpu"))
    made = inventory(withheldFor=["example.com/gpu"])
    plan = plan_publication(seen(made, classes=(class_,), now=1000.0, withholds=False))
    assert plan.desired is not None
    assert plan.desired.devices == 2


def test_the_next_look_is_the_first_that_anything_waits_for() -> None:
    class_ = codec.convert(DeviceClass, device_class(extendedResourceName="example.com/gpu"))
    made, slices = published(PoolAllocator.CONTROLLER, allocator="draining", withheldFor=["example.com/gpu"])
    for since, expected in ((100.0, 15.0), (95.0, 10.0)):
        draining = Handover(HandoverState.DRAINING, since=since)
        plan = plan_publication(
            seen(made, *slices, classes=(class_,), leaving=120.0, handover=draining, now=100.0)
        )
        assert plan.again == expected
    late = seen(made, *slices, classes=(class_,), leaving=5.0, handover=draining, now=100.0)
    assert plan_publication(late).again == 5.0


def test_a_device_plugin_withholds_and_is_looked_at_again_when_it_has_gone() -> None:
    class_ = codec.convert(DeviceClass, device_class(extendedResourceName="example.com/gpu"))
    made = inventory(withheldFor=["example.com/gpu"])
    plan = plan_publication(seen(made, classes=(class_,), leaving=120.0, now=1000.0))
    assert plan.gone == {"example.com/gpu": 1000.0}
    assert plan.again == 120.0
    assert plan.desired is not None
    assert plan.desired.devices == 0
