"""What the controller does while a publication plan is carried out, and what it knows afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER
from fake_client import FakeClient, unreachable

from controller.publish.execution import Attempts, Execution
from controller.publish.gates import PoolGates
from dra_driver.api import codec
from dra_driver.api.core import EVENTS
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory, inventory_name
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.errors import ApiUnavailable, DraError, Invalid
from dra_driver.kube import EventRecorder, Informer, SystemClock
from dra_driver.kube.slices import AlteredByServer
from dra_driver.ownership import PoolID
from dra_driver.publishing import Announce, NoteAttempt, PublicationPlan, Step, Verdict, WriteSlice
from dra_driver.publishing.epochs import EpochEvent
from dra_driver.resourceslice import SliceWrite

POOL = PoolID(DriverName(DRIVER), PoolName("n1"))
NAME = inventory_name(POOL.pool, POOL.driver)


def write() -> WriteSlice:
    taints = [{"key": "x", "effect": "NoSchedule"}]
    body = builders.resource_slice("n1", builders.device("gpu-0", taints=taints), name="s")
    return WriteSlice(SliceWrite(codec.convert(ResourceSlice, body)))


class World:
    """One inventory, and an informer of slices that runs behind until it is told to catch up."""

    def __init__(self) -> None:
        self.cluster = FakeClient()
        self.cluster.put(DEVICE_INVENTORIES, builders.inventory("n1", builders.device("gpu-0")))
        self.slices = Informer(self.cluster, RESOURCE_SLICES)
        inventories = Informer(self.cluster, DEVICE_INVENTORIES)
        self.told: list[bool] = []
        self.gates = PoolGates(
            virtual_time.LoopClock(),
            inventories=inventories,
            slices=self.slices,
            changed=lambda _, blocked: self.told.append(blocked),
        )
        self.attempts = Attempts()
        self.recorder = EventRecorder(self.cluster, "test", SystemClock())
        self.execution = Execution(self.cluster, SystemClock(), self.recorder, self.gates, self.attempts)

    @property
    def inventory(self) -> DeviceInventory:
        return self.cluster.obj(DEVICE_INVENTORIES, NAME)

    async def carry_out(self, *steps: Step, **plan: Any) -> None:
        await self.execution.carry_out(PublicationPlan(pool=POOL, steps=steps, **plan), self.inventory)

    async def events(self) -> list[tuple[str, str]]:
        task = asyncio.create_task(self.recorder.run())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        return [(e.type, e.reason) for e in self.cluster.all(EVENTS)]


def test_a_pool_is_frozen_before_the_first_step_and_until_what_was_written_is_seen() -> None:
    async def scenario() -> None:
        world = World()
        blocked: list[bool] = []
        world.cluster.before = lambda verb, kind, *_: blocked.append(world.gates.blocked(POOL))
        await world.carry_out(write())
        assert (blocked, world.told) == ([False], [])
        world.cluster.remove(RESOURCE_SLICES, "s")
        await world.carry_out(write(), freezes=True)
        assert (blocked, world.told) == ([False, True], [True])
        assert world.gates.blocked(POOL)
        task = asyncio.create_task(world.slices.run())
        await asyncio.sleep(1)
        world.cluster.put(RESOURCE_SLICES, builders.resource_slice("another"))
        await asyncio.sleep(1)
        assert world.told == [True, False]
        task.cancel()
        await asyncio.wait({task})

    virtual_time.run(scenario())


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_frozen_pool_opens_with_a_pass_that_leaves_nothing_to_be_written(verdict: Verdict) -> None:
    """Not with one that did not look into what should be published."""

    async def scenario() -> None:
        world = World()
        world.gates.begin(POOL)
        await world.carry_out(verdict=verdict)
        assert world.gates.blocked(POOL) is (verdict in (Verdict.REFUSED, Verdict.NO_NODE, Verdict.UNDECIDED))

    virtual_time.run(scenario())


def test_a_pool_stays_frozen_where_a_step_has_failed() -> None:
    async def scenario() -> None:
        world = World()
        world.cluster.before = unreachable
        with pytest.raises(ApiUnavailable):
            await world.carry_out(write(), freezes=True)
        assert world.told == [True]
        assert world.gates.blocked(POOL)

    virtual_time.run(scenario())


def refuse(*_: str) -> None:
    raise Invalid("too many devices", code=422, reason="Invalid")


def strip(body: dict[str, Any]) -> None:
    for found in body.get("spec", {}).get("devices", ()):
        found.pop("taints", None)


@pytest.mark.parametrize(
    ("trouble", "error", "begun", "events"),
    [
        (unreachable, ApiUnavailable, 0, []),
        (refuse, Invalid, 3, [("Warning", "SliceRefused")]),
        (None, AlteredByServer, 3, [("Warning", "SliceAltered")]),
    ],
)
def test_what_becomes_of_a_write_is_known_unless_it_is_not_answered(
    trouble: Callable[..., None] | None, error: type[DraError], begun: int, events: list[tuple[str, str]]
) -> None:
    async def scenario() -> None:
        world = World()
        if trouble is None:
            world.cluster.strip = strip

        def before(verb: str, kind: str, *more: str) -> None:
            if kind == RESOURCE_SLICES.kind and verb == "create" and trouble is not None:
                trouble(verb, kind, *more)

        world.cluster.before = before
        with pytest.raises(error):
            await world.carry_out(NoteAttempt(3, {"attempted": 3}), write())
        assert world.attempts.begun(world.inventory) == begun
        assert await world.events() == events

    virtual_time.run(scenario())


def test_an_attempt_is_known_once_it_is_noted_and_people_are_told_what_the_plan_says() -> None:
    async def scenario() -> None:
        world = World()
        assert world.attempts.begun(world.inventory) == 0
        await world.carry_out(NoteAttempt(3, {"attempted": 3}), Announce("Normal", "Handed", "over"), write())
        assert world.attempts.begun(world.inventory) == 3
        assert await world.events() == [("Normal", "Handed")]

    virtual_time.run(scenario())


@pytest.mark.parametrize(
    "event", [EpochEvent.UNANSWERED, EpochEvent.SLICE_DELETED, EpochEvent.INVENTORY_DELETED]
)
def test_an_attempt_is_forgotten_where_its_outcome_is_not_certain_any_more(event: EpochEvent) -> None:
    attempts = Attempts()
    one, other = (
        codec.convert(DeviceInventory, {**body, "metadata": {**body["metadata"], "uid": name}})
        for name in ("n1", "n2")
        for body in [builders.inventory(name)]
    )
    attempts.begin(one, 3)
    attempts.begin(other, 4)
    attempts.happened(one, EpochEvent.LOOK)
    assert (attempts.begun(one), attempts.begun(other)) == (3, 4)
    attempts.happened(one, event)
    assert (attempts.begun(one), attempts.begun(other)) == (0, 4)
    attempts.happened(one, event)
