"""Devices are lent to kube-scheduler and come back, by the writes of one process after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import builders
import pytest
import virtual_time
from fake_client import FakeClient, unreachable
from lending_world import INVENTORY, NODE, POOL, LendingCluster, Process, process, world_of

from controller.config import LendingMode
from dra_driver.api.core import CONFIG_MAPS, NODES
from dra_driver.api.meta import PoolName
from dra_driver.api.names import RECALLED_DEVICES, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.kube import Handler
from dra_driver.ownership import MAX_RECALLED, MAX_RECALLED_OF_POOL, PoolID, Recalls, unprotected_devices
from dra_driver.publishing.loans import LoanState

S = LoanState
GPU = {"gpu-0": frozenset({"gpu-0"})}
Scenario = Callable[[Process], Awaitable[None]]


def run(world: LendingCluster, scenario: Scenario, *, mode: LendingMode = LendingMode.ON) -> None:
    async def main() -> None:
        async with asyncio.timeout(100_000), process(world, mode=mode) as p:
            await scenario(p)

    virtual_time.run(main())


async def until(condition: Callable[[], bool], seconds: float = 200.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def ready(p: Process) -> None:
    await until(lambda: not p.loans.obstacle() and bool(p.seen()) and p.world.publication().epoch > 0)
    await asyncio.sleep(1)


async def lend(p: Process, name: str = "gpu-0") -> None:
    await ready(p)
    assert p.loans.lend(POOL, {name: frozenset({name})})
    await until(lambda: p.state(name) is S.LENT)


def writes(cluster: FakeClient) -> list[str]:
    return [w.kind for w in cluster.writes if w.kind in ("DeviceInventory", "ResourceSlice", "ConfigMap")]


def set_slices(world: LendingCluster, *untainted: str) -> None:
    """Do as somebody who may write slices: take our taint off."""
    (slice_,) = world.slices()
    raw = world.cluster.raw(RESOURCE_SLICES, slice_.metadata.name)
    for one in raw["spec"]["devices"]:
        if one["name"] in untainted:
            one.pop("taints", None)
    world.cluster.edit(RESOURCE_SLICES, slice_.metadata.name, {"spec": raw["spec"]})


def test_an_inventory_that_is_gone_and_of_which_nothing_is_lent_costs_no_more_than_a_look() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await ready(p)
        calls = len(world.cluster.calls)
        await p.publisher.reconcile(f"n2.{POOL.driver}")
        assert len(world.cluster.calls) == calls

    run(world, scenario)


# --- the way there and back ---------------------------------------------------------------------------------


def test_a_device_is_lent_and_comes_back_by_five_writes() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await ready(p)
        world.cluster.writes.clear()
        started = asyncio.get_running_loop().time()
        assert p.loans.lend(POOL, GPU)
        assert p.blocked("gpu-0")
        assert not p.blocked("gpu-1")
        await until(lambda: p.state("gpu-0") is S.LENT)
        assert asyncio.get_running_loop().time() - started < 0.1
        assert world.noted() == {"gpu-0": ("gpu-0",)}
        assert world.untainted() == {"gpu-0"}
        assert [d.name for s in world.slices() for d in s.spec.devices] == ["gpu-0", "gpu-1"]
        p.loans.end(POOL, ["gpu-0"])
        ended = asyncio.get_running_loop().time()
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert 20 <= asyncio.get_running_loop().time() - ended < 21
        assert world.noted() == {}
        assert world.untainted() == set()
        assert world.recalled() == {"gpu-0"}
        assert not p.blocked("gpu-0")
        notes_and_slices = [
            "DeviceInventory",
            "ResourceSlice",
            "ResourceSlice",
            "ConfigMap",
            "DeviceInventory",
        ]
        assert writes(world.cluster) == notes_and_slices

    run(world, scenario)


def test_the_lent_device_stands_first() -> None:
    world = world_of(3)

    async def scenario(p: Process) -> None:
        await lend(p, "gpu-2")
        assert [d.name for s in world.slices() for d in s.spec.devices] == ["gpu-2", "gpu-0", "gpu-1"]

    run(world, scenario)


def test_what_is_lent_again_is_admitted_before_its_taint_goes() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        world.cluster.writes.clear()
        await lend(p)
        assert world.recalled() == set()
        assert writes(world.cluster) == ["DeviceInventory", "ConfigMap", "ResourceSlice"]

    run(world, scenario)


def test_a_recall_changes_the_object_even_where_the_device_is_in_it() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        recalls = Recalls().recall(POOL, ["gpu-0"])
        assert recalls is not None
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.DRAINING)
        world.cluster.edit(CONFIG_MAPS, RECALLED_DEVICES, {"data": recalls.data()}, SYSTEM_NAMESPACE)
        await until(lambda: p.state("gpu-0") is S.CLOSING)
        assert world.recalls().turn > recalls.turn

    run(world, scenario)


def test_a_loan_ends_by_itself() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        began = asyncio.get_running_loop().time()
        await until(lambda: p.state("gpu-0") is not S.LENT, 121)
        assert 119 < asyncio.get_running_loop().time() - began < 121
        await until(lambda: p.state("gpu-0") is S.OURS)

    run(world, scenario)


def test_devices_stay_recalled_for_an_hour() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        await asyncio.sleep(3500)
        assert world.recalled() == {"gpu-0"}
        await asyncio.sleep(150)
        assert world.recalled() == set()

    run(world, scenario)


def test_a_unit_waits_until_every_claim_is_known() -> None:
    """kube-scheduler has allocated, and the watch does not show it."""
    world = world_of()
    world.cluster.put(RESOURCE_CLAIMS, builders.claim("c", builders.request()))

    async def scenario(p: Process) -> None:
        await lend(p)
        world.cluster.quiet.add("ResourceClaim")
        held = builders.allocation(builders.result(NODE, "gpu-0"))
        world.cluster.edit(RESOURCE_CLAIMS, "c", {"status": held}, builders.NAMESPACE)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.READING)
        await asyncio.sleep(30)
        assert p.state("gpu-0") is S.READING
        world.cluster.quiet.clear()
        world.cluster.wake()
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert set(p.assume_cache.taken(POOL).devices) == {"gpu-0"}

    run(world, scenario)


def test_a_pool_of_several_slices_lends_and_has_as_many_slices_while_everything_is_lent() -> None:
    world = world_of(70)
    names = [f"gpu-{i}" for i in range(70)]

    async def scenario(p: Process) -> None:
        await lend(p, "gpu-69")
        (first, second) = world.slices()
        assert first.spec.devices[0].name == "gpu-69"
        assert p.loans.lend(POOL, {name: frozenset({name}) for name in names if name != "gpu-69"})
        await until(lambda: all(p.state(name) is S.LENT for name in names))
        assert world.untainted() == set(names)
        assert [s.metadata.name for s in world.slices()] == [first.metadata.name, second.metadata.name]
        p.loans.end(POOL, names)
        await until(lambda: not p.loans.loans(POOL))
        assert world.untainted() == set()
        assert world.recalled() == set(names)

    run(world, scenario)


# --- when nothing is lent -----------------------------------------------------------------------------------


def test_nothing_is_lent_before_the_claims_were_read_once() -> None:
    async def scenario(p: Process) -> None:
        await until(lambda: p.world.publication().epoch > 0)
        await asyncio.sleep(10)
        assert "claims" in p.loans.obstacle()
        assert not p.loans.lend(POOL, GPU)
        await asyncio.sleep(10)
        assert p.loans.obstacle() == ""

    run(world_of(), scenario)


@pytest.mark.parametrize(
    "devices",
    [
        {},
        {"gpu-0": frozenset()},
        {"gpu-0": frozenset({"gpu-1"})},
        {"gpu-9": frozenset({"gpu-9"})},
        {**GPU, "gpu-9": frozenset({"gpu-9"})},
    ],
)
def test_what_cannot_be_lent_is_refused_as_a_whole(devices: dict[str, frozenset[str]]) -> None:
    async def scenario(p: Process) -> None:
        await ready(p)
        assert not p.loans.lend(POOL, devices)
        assert not p.loans.loans(POOL)
        assert not p.told

    run(world_of(), scenario)


def test_a_unit_is_not_lent_twice_at_a_time() -> None:
    async def scenario(p: Process) -> None:
        await lend(p)
        assert not p.loans.lend(POOL, GPU)
        assert p.loans.lend(POOL, {"gpu-1": frozenset({"gpu-1"})})

    run(world_of(), scenario)


def test_nothing_is_lent_of_a_node_that_is_not_registered_and_what_is_lent_comes_back() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        patch = {"status": {"registration": {"registered": False}}}
        world.cluster.edit(DEVICE_INVENTORIES, INVENTORY, patch)
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert world.untainted() == set()
        assert not p.loans.lend(POOL, GPU)

    run(world, scenario)


def test_without_the_object_nothing_is_lent_and_nothing_comes_back() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        world.cluster.remove(CONFIG_MAPS, RECALLED_DEVICES, SYSTEM_NAMESPACE)
        p.loans.end(POOL, ["gpu-0"])
        await asyncio.sleep(100)
        assert p.state("gpu-0") is S.RECALLING
        assert world.untainted() == set()
        assert p.blocked("gpu-0")
        assert p.loans.obstacle()
        name = {"name": RECALLED_DEVICES, "namespace": SYSTEM_NAMESPACE}
        world.cluster.put(CONFIG_MAPS, {"metadata": name})
        await until(lambda: p.state("gpu-0") is S.OURS)

    run(world, scenario)


def test_an_object_that_was_emptied_is_filled_again() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        world.cluster.edit(CONFIG_MAPS, RECALLED_DEVICES, {"data": None}, SYSTEM_NAMESPACE)
        await asyncio.sleep(11)
        assert world.recalled() == {"gpu-0"}

    run(world, scenario)


def test_no_more_devices_are_lent_than_can_be_recalled() -> None:
    world = world_of()
    others = Recalls().recall(POOL, (f"old-{i}" for i in range(MAX_RECALLED_OF_POOL - 1)))
    assert others is not None
    world.cluster.edit(CONFIG_MAPS, RECALLED_DEVICES, {"data": others.data()}, SYSTEM_NAMESPACE)

    async def scenario(p: Process) -> None:
        await ready(p)
        both = {name: frozenset({name}) for name in ("gpu-0", "gpu-1")}
        assert not p.loans.lend(POOL, both)
        await lend(p)
        assert not p.loans.lend(POOL, {"gpu-1": frozenset({"gpu-1"})})
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert len(world.recalled()) == MAX_RECALLED_OF_POOL
        pools = [PoolID(POOL.driver, PoolName(f"n{i}")) for i in range(MAX_RECALLED)]
        p.loans.stored(Recalls(frozenset((pool, "gpu-0") for pool in pools)))
        assert "recalled" in p.loans.obstacle()
        assert not p.loans.lend(POOL, GPU)

    run(world, scenario)


@pytest.mark.long
def test_what_one_node_notes_leaves_room_for_the_loans_of_others() -> None:
    """As a node's agent could where no policy keeps it from writing the controller's note."""
    world = world_of()
    liar = PoolID(POOL.driver, PoolName("liar"))
    lie = [{"unit": f"u-{i}", "devices": [f"d-{i}-{k}" for k in range(256)]} for i in range(1024)]

    async def scenario(p: Process) -> None:
        await ready(p)
        world.cluster.put(NODES, builders.node("liar"))
        body = builders.inventory("liar", node_uid=world.cluster.raw(NODES, "liar")["metadata"]["uid"])
        body["status"]["publication"] = {"lent": lie}
        world.cluster.put(DEVICE_INVENTORIES, body)
        await until(lambda: bool(p.loans.loans(liar)))
        await asyncio.sleep(20)
        assert p.loans.obstacle() == ""
        await lend(p)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)

    run(world, scenario)


# --- what others do -----------------------------------------------------------------------------------------


def test_a_device_that_somebody_has_untainted_is_blocked_at_once_and_comes_back() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await ready(p)
        seen: list[bool] = []
        # In the step in which the slice is seen: before anybody else can run.
        p.slices.add_handler(Handler(updated=lambda _old, _new: seen.append(p.blocked("gpu-1"))))
        seen.clear()
        set_slices(world, "gpu-1")
        await until(lambda: bool(seen))
        assert seen[0]
        await until(lambda: p.state("gpu-1") is S.OURS)
        assert world.untainted() == set()
        assert world.recalled() == {"gpu-1"}

    run(world, scenario)


def test_with_lending_off_a_device_that_somebody_has_untainted_is_tainted_again_and_that_is_all() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await until(lambda: world.publication().epoch > 0)
        await asyncio.sleep(1)
        set_slices(world, "gpu-1")
        await asyncio.sleep(1)
        assert world.untainted() == set()
        assert not p.told
        assert "ConfigMap" not in {c.kind for c in world.cluster.calls}
        assert p.loans.obstacle() == "lending is off"
        assert not p.loans.lend(POOL, GPU)

    run(world, scenario, mode=LendingMode.OFF)


def test_slices_that_the_kubelet_deletes_are_created_tainted() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        (slice_,) = world.slices()
        world.cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        registration = {"registered": True, "epoch": 2}
        world.cluster.edit(DEVICE_INVENTORIES, INVENTORY, {"status": {"registration": registration}})
        await until(lambda: bool(world.slices()))
        assert world.untainted() == set()
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert world.recalled() == {"gpu-0"}

    run(world, scenario)


def test_a_slice_that_a_growing_pool_needs_has_nothing_that_is_lent() -> None:
    """A write that creates has nothing that it replaces: it could come at any time."""
    world = world_of(60)
    created: list[str] = []

    def after(verb: str, kind: str, name: str, _subresource: str) -> None:
        if (verb, kind) == ("create", "ResourceSlice"):
            created.append(name)
            assert not unprotected_devices(s for s in world.slices() if s.metadata.name == name)

    async def scenario(p: Process) -> None:
        await lend(p, "gpu-59")
        world.cluster.after = after
        gpus = [builders.device(f"gpu-{i}", "40Gi") for i in range(70)]
        world.cluster.edit(DEVICE_INVENTORIES, INVENTORY, {"spec": {"devices": gpus}})
        await until(lambda: len(world.slices()) == 2)
        await asyncio.sleep(1)
        assert len(created) == 1
        assert p.state("gpu-59") is S.LENT
        assert world.untainted() == {"gpu-59"}

    run(world, scenario)


def test_an_inventory_that_is_deleted_and_made_anew_gets_its_note_again() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        world.cluster.remove(DEVICE_INVENTORIES, INVENTORY)
        await until(lambda: p.state("gpu-0") is S.TAINTING)
        world.inventory(1)
        await until(lambda: bool(world.noted()))
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert world.untainted() == set()
        assert world.noted() == {}

    run(world, scenario)


def test_the_loans_of_a_node_that_is_gone_come_to_an_end() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        for slice_ in world.slices():
            world.cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        world.cluster.remove(DEVICE_INVENTORIES, INVENTORY)
        world.cluster.remove(NODES, NODE)
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert p.told[-1] == frozenset()
        assert world.recalled() == {"gpu-0"}

    run(world, scenario)


# --- one process after the other ----------------------------------------------------------------------------


class Kill:
    """Ends a process at one of its writes: from then on nothing reaches the API server."""

    def __init__(self, cluster: FakeClient, number: int, *, done: bool) -> None:
        self.happened = False
        self._cluster = cluster
        self._number = number
        cluster.before = lambda *call: None if done else self._look(*call)
        cluster.after = lambda *call: self._look(*call) if done else None

    def _look(self, verb: str, kind: str, _name: str, _subresource: str) -> None:
        if verb not in ("create", "replace", "patch", "delete") or kind == "Event" or self.happened:
            return
        self._number -= 1
        if self._number == 0:
            self.happened = True
            self._cluster.down = True
            unreachable()

    def over(self) -> None:
        """Let everything through again."""
        self._cluster.before = self._cluster.after = lambda *_: None
        self._cluster.down = False


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_process_that_is_killed_at_any_write_leaves_a_loan_that_the_next_one_ends(
    number: int, done: bool
) -> None:
    """Writes: note, slice, slice, recall, note."""
    world = world_of()

    async def main() -> None:
        async with asyncio.timeout(100_000):
            async with process(world) as p:
                await ready(p)
                kill = Kill(world.cluster, number, done=done)
                assert p.loans.lend(POOL, GPU)
                await until(lambda: kill.happened or p.state("gpu-0") is S.LENT)
                p.loans.end(POOL, ["gpu-0"])
                await until(lambda: kill.happened)
            kill.over()
            noted, untainted = world.noted(), world.untainted()
            assert not untainted or noted, "the taint goes before the note"
            started = asyncio.get_running_loop().time()
            async with process(world) as p:
                await until(lambda: bool(p.seen()))
                await asyncio.sleep(1)
                assert p.blocked("gpu-0") is bool(noted)
                await until(lambda: p.state("gpu-0") is S.OURS and not world.noted())
                if noted:
                    assert asyncio.get_running_loop().time() - started >= 20
                    assert world.recalled() == {"gpu-0"}
                assert world.untainted() == set()
                await ready(p)
                await lend(p)

    virtual_time.run(main())


def test_a_note_is_blocked_in_the_step_in_which_it_is_seen() -> None:
    world = world_of()

    async def main() -> None:
        async with asyncio.timeout(100_000):
            async with process(world) as p:
                await lend(p)
            async with process(world) as p:
                await until(lambda: bool(p.inventories.items()))
                assert p.told == [frozenset({"gpu-0"})]

    virtual_time.run(main())


def test_with_lending_off_what_is_noted_stays_blocked_and_with_ending_it_comes_back() -> None:
    world = world_of()

    async def main() -> None:
        async with asyncio.timeout(100_000):
            async with process(world) as p:
                await lend(p)
            async with process(world, mode=LendingMode.OFF) as p:
                await asyncio.sleep(300)
                assert p.blocked("gpu-0")
                assert not p.blocked("gpu-1")
                assert world.untainted() == set()
                assert world.noted() == {"gpu-0": ("gpu-0",)}
            async with process(world, mode=LendingMode.ENDING) as p:
                await until(lambda: bool(p.seen()))
                await until(lambda: p.state("gpu-0") is S.OURS)
                assert p.loans.obstacle() == "lending is ending"

    virtual_time.run(main())


def test_a_recall_that_was_not_answered_is_written_again() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        lost = 0

        def after(verb: str, kind: str, _name: str, _subresource: str) -> None:
            nonlocal lost
            if (verb, kind) == ("patch", "ConfigMap") and lost < 2:
                lost += 1
                unreachable()

        world.cluster.after = after
        before = world.recalls().turn
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        assert world.recalls().turn == before + 3

    run(world, scenario)


def test_what_a_process_before_has_recalled_stays_recalled() -> None:
    world = world_of()

    async def main() -> None:
        async with asyncio.timeout(100_000):
            async with process(world) as p:
                await lend(p)
                p.loans.end(POOL, ["gpu-0"])
                await until(lambda: p.state("gpu-0") is S.OURS)
            async with process(world) as p:
                await lend(p, "gpu-1")
                p.loans.end(POOL, ["gpu-1"])
                await until(lambda: p.state("gpu-1") is S.OURS)
                assert world.recalled() == {"gpu-0", "gpu-1"}

    virtual_time.run(main())


def test_nothing_of_a_pool_that_goes_to_kube_scheduler_is_recalled() -> None:
    world = world_of()

    async def scenario(p: Process) -> None:
        await lend(p)
        p.loans.end(POOL, ["gpu-0"])
        await until(lambda: p.state("gpu-0") is S.OURS)
        await lend(p, "gpu-1")
        world.cluster.edit(DEVICE_INVENTORIES, INVENTORY, {"spec": {"publisher": "node"}})
        await until(lambda: world.publication().allocator == "scheduler")
        await asyncio.sleep(11)
        assert world.noted() == {}
        assert world.recalled() == set()
        assert not p.loans.loans(POOL)

    run(world, scenario)
