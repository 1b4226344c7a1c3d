"""Grants to claims, and of whole pools: their states, and the object that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import builders
import pytest
from builders import DRIVER, device
from fake_client import FakeClient

from controller.config import Timings
from controller.publish.grants import PoolGrants
from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.kube import Informer
from dra_driver.ownership import SHARE, Grants, PoolAllocator, PoolID
from dra_driver.publishing.grants import GrantState, GuardState
from dra_driver.publishing.handover import HandoverState

POOL, OTHER = (PoolID(DRIVER, PoolName(name)) for name in ("n1", "n2"))
CLOSING, KEPT = 5.0, 3600.0
KEY = "_claim_uid-c"
WANTED = {POOL: {"gpu-0": {KEY: frozenset({"gpu-0"})}}}
S, G = GrantState, GuardState


@dataclass
class World:
    """What the grants know of, as the test has it; ``write`` and ``read`` are their writer.

    Attributes:
        blocked: what the allocator was told to leave alone, by pool.
    """

    default: PoolAllocator = PoolAllocator.CONTROLLER
    time: float = 100.0
    stored: Grants = field(default_factory=lambda: Grants(default=PoolAllocator.SCHEDULER))
    states: dict[PoolID, HandoverState] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    writing: set[str] = field(default_factory=set)
    blocked: dict[PoolID, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client = FakeClient()
        self.inventories = Informer(client, DEVICE_INVENTORIES)
        self.devices = {f"gpu-{i}": device(f"gpu-{i}", "40Gi") for i in range(2)}
        self.registered = self.published = True
        self.publisher = ""
        self.grants = PoolGrants(
            self.default,
            (DRIVER,),
            Timings(closing=CLOSING, kept=KEPT),
            self,
            handover=lambda pool: self.states.get(pool, HandoverState.OPEN),
            inventories=self,  # type: ignore[arg-type]
            slices=Informer(client, RESOURCE_SLICES),
            slices_of=self.slices,
            taken=lambda _: frozenset(self.taken),
            being_written=lambda _: frozenset(self.writing),
            blocked=lambda pool, names: self.blocked.update({pool: frozenset(names)}),
        )

    # The clock, and the inventories.

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def add_handler(self, _: Any) -> None:
        pass

    def items(self) -> list[DeviceInventory]:
        bodies = (
            builders.inventory(
                pool.pool, *self.devices.values(), registered=self.registered, publisher=self.publisher
            )
            for pool in (POOL, OTHER)
        )
        return [codec.convert(DeviceInventory, body) for body in bodies]

    def get_by_name(self, name: str) -> DeviceInventory | None:
        return next((i for i in self.items() if i.metadata.name == name), None)

    def slices(self, pool: PoolID) -> tuple[ResourceSlice, ...]:
        if not self.published:
            return ()
        body = builders.resource_slice(pool.pool, *self.devices.values())
        return (codec.convert(ResourceSlice, body),)

    # The writer.

    def write(self) -> bool:
        """Write the object, if it should be another one; return whether it was written."""
        work = self.grants.look(self.stored)
        if work is None:
            return False
        before, (self.stored, asked) = self.stored, work
        assert self.stored != before
        self.grants.stored(self.stored, asked)
        return True

    def read(self) -> None:
        """Let the time to close be over, and read the claims."""
        self.time += CLOSING
        self.grants.tick(self.time)
        self.grants.claims_seen(self.grants.reading())

    def in_force(self) -> World:
        self.write()
        self.grants.proved()
        self.read()
        assert self.grants.in_force()
        return self

    def admitted(self) -> set[str]:
        """Return the forms of the first pool that others may allocate."""
        names = (form for name in self.devices for form in (name, name + SHARE))
        return {form for form in names if self.stored.admits(KEY, POOL, form)}

    def state(self, unit: str = "gpu-0") -> GrantState:
        grant = self.grants.grants(POOL).get(unit)
        return grant.state if grant is not None else S.OURS


def whole(default: PoolAllocator, *kept: str) -> Grants:
    """Return an object that lists the first pool as kube-scheduler's, but for what is kept."""
    exceptions = frozenset({POOL}) if default is PoolAllocator.CONTROLLER else frozenset()
    return Grants(exceptions=exceptions, kept=frozenset((POOL, name) for name in kept), default=default)


def test_a_grant_is_one_write_and_its_end_is_a_write_a_time_and_a_read() -> None:
    world = World().in_force()
    turn = world.stored.turn
    assert world.grants.grant(WANTED)
    assert world.blocked[POOL] == {"gpu-0"}
    assert world.state() is S.GRANTING
    assert world.write()
    assert world.state() is S.GRANTED
    assert world.stored.devices == {KEY: {(POOL, "gpu-0")}}
    assert not world.write()
    world.grants.end(POOL, ["gpu-0", "gpu-1"])
    assert world.write()
    assert not world.stored.devices
    assert world.stored.turn == turn + 2
    assert world.state() is S.CLOSING
    world.time += CLOSING / 2
    world.grants.tick(world.time)
    assert not world.grants.reading()
    assert world.blocked[POOL] == {"gpu-0"}
    world.read()
    assert world.state() is S.OURS
    assert world.blocked[POOL] == frozenset()


def test_a_read_that_began_before_the_end_of_a_grant_says_nothing_of_it() -> None:
    world = World().in_force()
    early = world.grants.reading()
    assert world.grants.grant(WANTED)
    world.write()
    world.grants.end(POOL, ["gpu-0"])
    world.write()
    world.time += CLOSING
    world.grants.tick(world.time)
    world.grants.claims_seen(early)
    assert world.state() is S.READING


def test_claims_of_one_pod_may_take_parts_of_one_unit_and_go_together() -> None:
    world = World().in_force()
    both = {KEY: frozenset({"gpu-0"}), "_claim_uid-d": frozenset({"gpu-0"})}
    assert world.grants.grant({POOL: {"gpu-0": both}})
    world.write()
    assert world.stored.devices.keys() == both.keys()
    world.grants.end(POOL, ["gpu-0"])
    world.write()
    assert not world.stored.devices


def test_a_share_is_granted_as_a_share_however_the_device_is_published_then() -> None:
    world = World().in_force()
    world.devices["gpu-0"]["allowMultipleAllocations"] = True
    assert world.grants.grant(WANTED)
    world.write()
    assert world.admitted() == {"gpu-0" + SHARE}
    world.devices["gpu-0"]["allowMultipleAllocations"] = False
    assert not world.write()
    world.grants.end(POOL, ["gpu-0"])
    world.write()
    world.read()
    assert world.grants.grant(WANTED)
    world.write()
    assert world.admitted() == {"gpu-0"}


@pytest.mark.parametrize(
    "why", ["tainted", "changing hands", "not in force", "granted", "written", "no unit", "nothing"]
)
def test_what_is_not_ours_alone_is_not_granted(why: str) -> None:
    world, wanted = World(), WANTED
    if why != "not in force":
        world.in_force()
    match why:
        case "tainted":
            world.states[POOL] = HandoverState.CONTROLLER
        case "changing hands":
            world.states[POOL] = HandoverState.WITHDRAWING
        case "granted":
            assert world.grants.grant(WANTED)
        case "written":
            world.writing = {"gpu-0"}
        case "no unit":
            wanted = {POOL: {"gpu-0": {KEY: frozenset({"gpu-9"})}}}
        case "nothing":
            wanted = {POOL: {"gpu-0": {}}}
        case _:
            assert world.grants.obstacle()
    # All or none.
    assert not world.grants.grant({**wanted, OTHER: WANTED[POOL]})
    assert not world.grants.grants(OTHER)


@pytest.mark.parametrize("why", ["gone", "unhealthy", "unregistered", "withdrawn", "policy"])
def test_a_grant_ends_where_its_device_cannot_be_given(why: str) -> None:
    world = World().in_force()
    assert world.grants.grant(WANTED)
    world.write()
    match why:
        case "gone":
            del world.devices["gpu-0"]
        case "unhealthy":
            taint = {"key": "sick", "effect": "NoExecute"}
            world.devices["gpu-0"] = device("gpu-0", "40Gi", taints=[taint])
        case "unregistered":
            world.registered = False
        case "withdrawn":
            world.states[POOL] = HandoverState.WITHDRAWING
        case _:
            world.grants.found("it is gone")
            assert world.grants.obstacle() == "it is gone"
            assert not world.grants.refuses_others(POOL)
    world.write()
    assert not world.stored.devices
    assert world.state() is (S.OURS if why == "policy" else S.CLOSING)


def test_a_process_that_starts_ends_what_was_granted_with_the_proof() -> None:
    world = World(stored=Grants({KEY: frozenset({(POOL, "gpu-0")})}, turn=7))
    assert not world.grants.refuses_others(POOL)
    world.write()
    assert (world.stored.turn, world.stored.devices) == (8, {})
    assert world.grants.guard.state is G.PROVING
    assert not world.grants.refuses_others(POOL)
    world.grants.proved()
    assert not world.grants.refuses_others(POOL)
    world.read()
    assert world.grants.refuses_others(POOL)


def test_an_answer_to_a_write_of_before_a_failure_proves_nothing() -> None:
    world = World()
    work = world.grants.look(world.stored)
    assert work is not None
    world.grants.stored(*work)
    world.grants.failed("somebody has written it")
    world.grants.stored(*work)
    assert world.grants.guard.state is G.WRITING


def test_a_pool_that_becomes_kube_schedulers_is_listed_and_what_is_held_of_it_is_kept() -> None:
    world = World(taken={"gpu-1"}).in_force()
    world.states[POOL] = HandoverState.SCHEDULER
    assert world.write()
    assert world.admitted() == {"gpu-0"}
    assert not world.grants.refuses_others(POOL)
    world.time += KEPT / 2
    assert not world.write()
    # Free, and then an hour later.
    world.taken = set()
    assert world.write()
    assert world.admitted() == {"gpu-0", "gpu-1"}
    assert not world.stored.admits_all(POOL)
    world.time += KEPT / 2 + 1
    assert world.write()
    assert world.stored.exceptions == {POOL}
    assert world.stored.admits_all(POOL)
    world.states[POOL] = HandoverState.NOTING
    assert world.write()
    assert not world.admitted()
    world.grants.tick(world.time)
    world.grants.claims_seen(world.grants.reading())
    assert not world.grants.refuses_others(POOL)
    world.read()
    assert world.grants.refuses_others(POOL)


def test_what_is_held_is_kept_for_an_hour_at_most() -> None:
    world = World(taken={"gpu-1"}).in_force()
    world.states[POOL] = HandoverState.SCHEDULER
    world.write()
    world.time += KEPT + 1
    assert world.write()
    assert world.stored.admits_all(POOL)


def test_a_new_pool_of_kube_scheduler_is_admitted_as_a_whole() -> None:
    """Nobody can have decided on anything of it."""
    world = World()
    world.published = False
    world.states = {POOL: HandoverState.UNKNOWN, OTHER: HandoverState.SCHEDULER}
    world.in_force()
    assert world.stored.admits_all(OTHER)
    world.published = True
    world.states[POOL] = HandoverState.SCHEDULER
    assert world.write()
    assert world.stored.exceptions == {POOL, OTHER}
    assert world.stored.admits_all(POOL)
    # Later it is none.
    world.states[POOL] = HandoverState.NOTING
    world.write()
    world.read()
    world.states[POOL] = HandoverState.SCHEDULER
    world.write()
    assert not world.stored.admits_all(POOL)


@pytest.mark.parametrize("default", PoolAllocator)
def test_what_was_kept_stays_kept_over_a_restart_while_it_is_held(default: PoolAllocator) -> None:
    stored = whole(default, "gpu-0", "gpu-1")
    states = {POOL: HandoverState.SCHEDULER}
    world = World(default=default, stored=stored, taken={"gpu-1"}, states=states).in_force()
    assert world.admitted() == {"gpu-0"}
    # What kube-scheduler has allocated since is not kept, by the next process either.
    world.taken.add("gpu-0")
    again = World(default=default, stored=world.stored, taken=world.taken, states=states).in_force()
    assert again.admitted() == {"gpu-0"}


@pytest.mark.parametrize("default", PoolAllocator)
def test_where_all_was_admitted_it_is_after_a_restart(default: PoolAllocator) -> None:
    stored = whole(default)
    states = {POOL: HandoverState.SCHEDULER}
    world = World(default=default, stored=stored, taken={"gpu-1"}, states=states).in_force()
    assert world.stored.admits_all(POOL)
    # A pool that leaves kube-scheduler and comes back is a new one.
    world.states[POOL] = HandoverState.NOTING
    world.write()
    world.read()
    world.states[POOL] = HandoverState.SCHEDULER
    world.write()
    assert world.admitted() == {"gpu-0"}


def test_a_pool_that_has_no_allocator_for_a_moment_is_a_new_one() -> None:
    """Its devices may have changed their form meanwhile."""
    stored = whole(PoolAllocator.CONTROLLER)
    world = World(stored=stored, states={POOL: HandoverState.SCHEDULER}).in_force()
    world.states[POOL] = HandoverState.TAINTING
    world.grants.look(world.stored)
    world.states[POOL] = HandoverState.SCHEDULER
    world.write()
    world.read()
    assert not world.admitted()
    world.write()
    assert world.admitted() == {"gpu-0", "gpu-1"}
    assert not world.stored.admits_all(POOL)


def test_where_pools_are_kube_schedulers_by_default_those_of_the_controller_are_listed() -> None:
    states = {POOL: HandoverState.OPEN, OTHER: HandoverState.SCHEDULER}
    world = World(default=PoolAllocator.SCHEDULER, states=states).in_force()
    assert world.stored.exceptions == {POOL}
    assert world.stored.allocator(POOL) is PoolAllocator.CONTROLLER
    assert world.stored.allocator(OTHER) is PoolAllocator.SCHEDULER
    trial = PoolID(DRIVER, PoolName("trial.dra-driver.dev"))
    assert not world.stored.admits(KEY, trial, "trial")


def test_pools_that_their_nodes_publish_are_kube_schedulers() -> None:
    """Nothing is noted of whose they are."""
    states = {POOL: HandoverState.UNKNOWN, OTHER: HandoverState.UNKNOWN}
    world = World(states=states).in_force()
    assert not world.stored.exceptions  # not published yet: whose they will be is not known
    world.publisher = "node"
    assert world.write()
    assert world.stored.exceptions == {POOL, OTHER}


@pytest.mark.parametrize("start", ["handed over", "found"])
def test_pools_for_which_there_is_no_room_wait(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """They are listed when others need no list any more."""
    monkeypatch.setattr("dra_driver.ownership.grants.MAX_LISTED", 3)
    states = {POOL: HandoverState.SCHEDULER, OTHER: HandoverState.SCHEDULER}
    if start == "found":
        world = World(stored=Grants(), states=states).in_force()
    else:
        world = World().in_force()
        world.states = states
        assert world.write()
    assert len(world.stored.exceptions) == 1
    assert not world.write()
    world.time += KEPT + 1
    assert world.write()
    assert world.stored.exceptions == {POOL, OTHER}


def test_pools_for_which_there_is_no_room_wait_after_a_restart_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are kube-scheduler's by the note, and what is held of them was not written down yet."""
    monkeypatch.setattr("dra_driver.ownership.grants.MAX_LISTED", 1)
    states = {POOL: HandoverState.SCHEDULER, OTHER: HandoverState.SCHEDULER}
    world = World(stored=Grants(turn=3), taken={"gpu-0"}, states=states).in_force()
    assert world.stored.fits
    assert world.stored.free == {(POOL, "gpu-1")}
    assert not world.write()
    monkeypatch.setattr("dra_driver.ownership.grants.MAX_LISTED", 2)
    assert world.write()
    assert world.stored.free == {(POOL, "gpu-1"), (OTHER, "gpu-1")}


def test_room_is_counted_and_a_grant_beyond_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World().in_force()
    before = world.grants.room()
    assert before > 1000
    monkeypatch.setattr("dra_driver.ownership.grants.MAX_GRANT_BYTES", 60)
    assert not world.grants.grant(WANTED)
