"""Other DRA drivers in the publication plan: what is noted, in which order, and for how long it counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import builders
import pytest

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName, Uid
from dra_driver.api.own.inventory import DeviceInventory, OtherDriverNote
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.ownership import PoolAllocator, PoolID, owner_of
from dra_driver.publishing import (
    LEAVING_SECONDS,
    Announce,
    Elsewhere,
    NoteStatus,
    PublicationPlan,
    Seen,
    WriteSlice,
    plan_publication,
)
from dra_driver.publishing.other_drivers import look_at_other_drivers
from dra_driver.resourceslice import (
    OtherDriver,
    Presence,
    PublishOptions,
    ServerFeatures,
    build_slices,
    plan_slices,
)

NODE = Node(metadata=ObjectMeta(name="n1", uid=Uid("u1")))
OTHER = PoolID(DriverName("x.example"), PoolName("n1"))
NOTE = {"driver": "x.example", "pools": ["n1"], "devices": ["gpu-0"]}
OFFERED = Elsewhere({"gpu-0": [OTHER]})


def inventory(*, registered: bool = True, count: int = 2, **publication: Any) -> DeviceInventory:
    devices = [builders.device(f"gpu-{i}", "40Gi") for i in range(count)]
    body = builders.inventory("n1", *devices, node_uid="u1", registered=registered)
    body["status"]["publication"] = publication
    return codec.convert(DeviceInventory, body)


def published(*, registered: bool = True, **more: Any) -> Seen:
    """A pool with both of its devices in slices."""
    desired = build_slices(inventory(), options=PublishOptions(allocator=PoolAllocator.SCHEDULER))
    slices = tuple(w.slice for w in plan_slices([], desired, owner_of(NODE)).creates)
    record: dict[str, Any] = {
        "epoch": 1,
        "attempted": 1,
        "generation": 1,
        "slices": [s.metadata.name for s in slices],
        "devices": 2,
        "allocator": "scheduler",
    }
    noted = {"otherDrivers": more.pop("noted")} if "noted" in more else {}
    return Seen(
        inventory=inventory(registered=registered, **record, **noted),
        node=NODE,
        slices=slices,
        features=ServerFeatures(),
        **more,
    )


def notes(plan: PublicationPlan) -> list[Any]:
    return [
        s.publication["otherDrivers"]
        for s in plan.steps
        if isinstance(s, NoteStatus) and "otherDrivers" in s.publication
    ]


def test_what_another_driver_has_is_noted_before_slices_change_and_by_itself() -> None:
    plan = plan_publication(published(elsewhere=OFFERED))
    kinds = [type(s) for s in plan.steps]
    assert kinds == [NoteStatus, WriteSlice, Announce, NoteStatus]
    assert notes(plan) == [[NOTE]]
    # A publisher that was killed after that goes on where it was.
    plan = plan_publication(published(elsewhere=OFFERED, noted=[NOTE]))
    assert [type(s) for s in plan.steps] == [WriteSlice, Announce, NoteStatus]
    assert notes(plan) == []


def test_it_is_noted_while_the_plugin_is_not_registered_too() -> None:
    """A kubelet that restarts deletes the slices of both drivers, and ours may be back first."""
    assert notes(plan_publication(published(registered=False, elsewhere=OFFERED))) == [[NOTE]]
    asked = Seen(
        inventory=inventory(registered=False),
        node=NODE,
        slices=(),
        features=ServerFeatures(),
        elsewhere=OFFERED,
    )
    assert notes(plan_publication(asked)) == [[NOTE]]


def test_nothing_is_withheld_where_others_do_not_matter() -> None:
    plan = plan_publication(published(noted=[NOTE]))
    assert notes(plan) == [[]]
    assert plan.desired is not None
    assert plan.desired.devices == 2


def test_a_device_beside_a_device_plugin_and_another_driver_is_told_twice_and_waits_for_both() -> None:
    vendor = {"type": "gpu", "vendor": "nvidia"}
    devices = [builders.device(f"gpu-{i}", attributes=vendor) for i in range(2)]
    body = builders.inventory("n1", *devices, node_uid="u1")
    node = codec.convert(
        Node, {**builders.node("n1", uid="u1"), "status": {"capacity": {"nvidia.com/gpu": "2"}}}
    )
    seen = Seen(
        inventory=codec.convert(DeviceInventory, body),
        node=node,
        slices=(),
        features=ServerFeatures(),
        elsewhere=OFFERED,
    )
    plan = plan_publication(seen)
    assert notes(plan) == [[NOTE]]
    (said,) = (s for s in plan.steps if isinstance(s, Announce))
    assert said.reason == "DevicePluginPresent"
    assert "Remove the device plugin" in said.message
    assert "x.example" in said.message


def test_a_device_that_is_hidden_is_withheld_because_of_nobody() -> None:
    policy = codec.convert(DevicePolicy, {"metadata": {"name": "p"}, "spec": {"hide": True}})
    plan = plan_publication(published(elsewhere=OFFERED, policies=(policy,)))
    assert notes(plan) == []
    assert plan.desired is not None
    assert (plan.desired.devices, plan.desired.other_drivers) == (0, ())


# --- for how long -------------------------------------------------------------------------------------------


def note(driver: str, *devices: str) -> OtherDriverNote:
    return OtherDriverNote(driver=DriverName(driver), pools=(PoolName("n1"),), devices=devices)


@pytest.mark.parametrize(
    ("others", "times"),
    [(("x.example",), 1), (("a.example",), 2), (("a.example", "b.example", "x.example"), 3)],
)
def test_a_driver_waits_once_more_for_each_whose_name_sorts_before_its_own(
    others: Iterable[str], times: int
) -> None:
    noted = [note(driver, "gpu-0") for driver in others]

    def left(now: float) -> bool:
        gone = dict.fromkeys(((n.driver, "gpu-0") for n in noted), 0.0)
        found = look_at_other_drivers(
            noted, Elsewhere(), driver=DriverName("ours.example"), gone=gone, now=now
        )
        return bool(found.found)

    assert left(times * LEAVING_SECONDS - 1)
    assert not left(times * LEAVING_SECONDS)


def test_devices_leave_one_by_one() -> None:
    noted = [note("x.example", "gpu-0", "gpu-1")]
    first = look_at_other_drivers(noted, OFFERED, driver=DriverName("ours"), gone={}, now=10.0)
    presences = {o.presence: o.devices for o in first.found}
    assert presences == {Presence.PUBLISHES: {"gpu-0"}, Presence.LEAVES: {"gpu-1"}}
    assert first.gone == {("x.example", "gpu-1"): 10.0}
    assert first.again == LEAVING_SECONDS


def test_the_notes_of_many_drivers_stay_small() -> None:
    many = inventory(count=1000)
    names = frozenset(d.name for d in many.spec.devices)
    others = [
        OtherDriver(
            driver=DriverName(f"d{i:02}.example"),
            pools=tuple(PoolName(f"p{j}") for j in range(40)),
            presence=Presence.PUBLISHES,
            devices=names,
        )
        for i in range(40)
    ]
    desired = build_slices(many, others=others)
    assert desired.devices == 0
    assert len(desired.other_driver_notes) == 16
    assert sum(len(n.devices) for n in desired.other_driver_notes) == 1024
    assert {len(n.pools) for n in desired.other_driver_notes} == {16}
