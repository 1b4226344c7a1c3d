"""Random sequences of events through the tables of publishing, in worlds that crash, lag and lose answers."""

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from builders import DRIVER
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.api import names
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, OwnerReference, PoolName, Uid
from dra_driver.api.own.inventory import (
    NODE_PUBLISHES,
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
    Publication,
    Registration,
    inventory_name,
)
from dra_driver.api.resource import Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.ownership import AllocatorRecord, PoolAllocator, lacks_slices
from dra_driver.publishing import (
    Announce,
    DeleteSlice,
    NoteAttempt,
    NoteStatus,
    Seen,
    Step,
    WriteSlice,
    plan_publication,
)
from dra_driver.publishing.epochs import (
    EPOCH_TRANSITIONS,
    EpochEffect,
    EpochEvent,
    EpochState,
    asks_again,
    confirmed,
)
from dra_driver.publishing.freeze import Freeze, FreezeEffect, FreezeState
from dra_driver.publishing.grants import PoolKind
from dra_driver.publishing.handover import (
    Handover,
    HandoverEffect,
    HandoverFacts,
    HandoverState,
    look,
    recorded,
)
from dra_driver.resourceslice import ServerFeatures

NODE = Node(metadata=ObjectMeta(name="n1", uid=Uid("u1")))


# --- epochs: one pool, its plugin, its kubelet, and a publisher that is killed ------------------------------


class Pool:
    """The API objects of one pool, and those who write them."""

    def __init__(self, *, by_node: bool) -> None:
        owner = OwnerReference(api_version="v1", kind="Node", name="n1", uid=Uid("u1"))
        self.by_node = by_node
        self.inventory = DeviceInventory(
            metadata=ObjectMeta(name=inventory_name("n1", DRIVER), owner_references=(owner,)),
            spec=DeviceInventorySpec(
                node_name="n1", driver=DRIVER, publisher=NODE_PUBLISHES if by_node else ""
            ),
        )
        self.slices: dict[str, ResourceSlice] = {}
        self.alive = False
        self.begun = 0
        self.created: set[int] = set()
        self.wiped: set[int] = set()
        self.discover(1)

    @property
    def registration(self) -> Registration:
        return self.inventory.status.registration

    @property
    def publication(self) -> Publication:
        return self.inventory.status.publication

    def set_status(self, **fields: object) -> None:
        status = msgspec.structs.replace(self.inventory.status, **fields)
        self.inventory = msgspec.structs.replace(self.inventory, status=status)

    # What plugin and kubelet do.

    def discover(self, count: int) -> None:
        devices = tuple(InventoryDevice(name=f"gpu-{i}") for i in range(count))
        spec = msgspec.structs.replace(self.inventory.spec, devices=devices)
        self.inventory = msgspec.structs.replace(self.inventory, spec=spec)

    def register(self) -> None:
        self.alive = True
        self.set_status(registration=confirmed(self.registration, registered=True, anew=True))

    def die(self) -> None:
        """The plugin dies without a word, and 30 s later the kubelet deletes what there is."""
        self.alive = False
        self.wipe()

    def wipe(self) -> None:
        if self.registration.epoch in self.created:
            self.wiped.add(self.registration.epoch)
        if self.slices:
            self.slices = {}
            self.happened(EpochEvent.SLICE_DELETED)

    def miss(self) -> None:
        if self.alive and lacks_slices(self.registration, self.publication, self.slices):
            self.set_status(registration=asks_again(self.registration))

    # What the publisher does.

    def happened(self, event: EpochEvent) -> None:
        if EpochEffect.FORGET_ATTEMPT in EPOCH_TRANSITIONS[EpochState.BEGUN, event].effects:
            self.begun = 0

    def restart(self) -> None:
        """The process that publishes starts anew; the plugin itself, where it does, which registers again."""
        self.begun = 0
        if self.by_node and self.alive:
            self.register()

    def look(self, steps: int = 1000, *, answered: bool = True) -> None:
        """One pass, of which so many steps are made; then it is killed, or hears nothing of the last step."""
        if self.by_node and not self.alive:
            return
        seen = Seen(
            inventory=self.inventory,
            node=NODE,
            slices=tuple(self.slices.values()),
            features=ServerFeatures(),
            by_node=self.by_node,
            allocator=PoolAllocator.CONTROLLER,
            begun=self.begun,
        )
        todo = plan_publication(seen).steps
        for step in todo[:steps]:
            before = self.publication
            self.make(step)
            after = self.publication
            assert after.epoch >= before.epoch
            assert after.attempted >= before.attempted
            assert after.generation >= before.generation
            assert max(after.epoch, after.attempted) <= self.registration.epoch
            assert after.epoch <= after.attempted
        if steps < len(todo):
            if answered:
                self.restart()
            elif steps and isinstance(todo[steps - 1], WriteSlice):
                self.happened(EpochEvent.UNANSWERED)
            elif steps and isinstance(todo[steps - 1], NoteAttempt):
                self.begun = 0

    def make(self, step: Step) -> None:
        match step:
            case NoteAttempt(epoch, fields):
                self.note(fields)
                self.begun = epoch
            case NoteStatus(fields, _):
                self.note(fields)
            case WriteSlice(write):
                if write.replaces is None:
                    assert self.registration.registered
                    # The controller does not see who lives; the plugin itself does.
                    good = self.alive if self.by_node else self.registration.epoch not in self.wiped
                    assert good, "a dead plugin is advertised"
                    self.created.add(self.registration.epoch)
                else:
                    assert write.slice.metadata.name in self.slices
                self.slices[write.slice.metadata.name] = write.slice
            case DeleteSlice(slice_):
                assert slice_.metadata.name not in self.publication.slices
                del self.slices[slice_.metadata.name]
            case Announce():
                pass

    def note(self, fields: Mapping[str, Any]) -> None:
        names_ = {"withheldFor": "withheld_for", "otherDrivers": "other_drivers"}
        values = {names_.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        self.set_status(publication=msgspec.structs.replace(self.publication, **values))


@settings(max_examples=examples(150), deadline=None)
@given(by_node=st.booleans(), seed=st.integers(0, 10**9))
def test_no_epoch_goes_backwards_and_no_dead_plugin_is_advertised(by_node: bool, seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(by_node=by_node)
    actions: list[Callable[[], None]] = [
        pool.register,
        pool.die,
        pool.wipe,
        pool.miss,
        pool.restart,
        pool.look,
        lambda: pool.look(chance.randrange(6)),
        lambda: pool.look(chance.randrange(6), answered=False),
        lambda: pool.discover(chance.choice((0, 1, 100, 200))),
    ]
    for _ in range(40):
        chance.choice(actions)()
    # Whatever has happened: a plugin that lives is published in the end, and then nothing is left to do.
    pool.register()
    for _ in range(4):
        pool.look()
        pool.miss()
    assert sorted(pool.slices) == list(pool.publication.slices) != []
    assert pool.publication.epoch == pool.registration.epoch
    published = sum(len(s.spec.devices) for s in pool.slices.values())
    assert published == len(pool.inventory.spec.devices) == pool.publication.devices


# --- handover: one device, two allocators that see late -----------------------------------------------------

DRAIN = 15.0
LATEST_WRITE = 5.0
"""A decision of kube-scheduler is written, and what it decides on is seen, within so many seconds."""
CLOSING = 5.0
"""Until the policy counts as in force; an API server follows it at once here."""


class TwoAllocators:
    """A pool of one device, and the policy that keeps it. Time goes on in steps of a second."""

    def __init__(self, chance: random.Random, record: AllocatorRecord) -> None:
        self.chance = chance
        self.now = 0.0
        self.record = record
        self.tainted = record not in (AllocatorRecord.SCHEDULER, AllocatorRecord.OPEN)
        self.seen_record, self.seen_taint = self.record, self.tainted
        self.wanted = PoolKind.TAINTED
        # Since when the policy refuses kube-scheduler; and since when the controller relies on that.
        self.policy: float | None = 0.0 if record is AllocatorRecord.OPEN else None
        self.in_force = False
        self.handover = Handover()
        self.handover, _ = recorded(self.handover, self.seen_record, self.now)
        self.holders: set[str] = set()
        # What the controller knows of the holders, by its informer and its own assumptions.
        self.known: set[str] = set()
        # Decisions that are not written yet: name → when it is at the latest.
        self.by_scheduler: dict[str, float] = {}
        self.by_controller: set[str] = set()
        self.freed = float("-inf")
        self.untainted_until = float("inf") if not self.tainted else float("-inf")
        self.names = (f"claim-{i}" for i in itertools.count())

    # kube-scheduler.

    def scheduler_decides(self) -> None:
        """It may still decide on slices that it saw untainted a moment ago."""
        if self.now - self.untainted_until < LATEST_WRITE / 2 and not (self.holders | {*self.by_scheduler}):
            self.by_scheduler[next(self.names)] = self.now + LATEST_WRITE

    def scheduler_writes(self) -> None:
        for name in [*self.by_scheduler]:
            del self.by_scheduler[name]
            if self.policy is None:
                self.hold(name)

    # The controller.

    def controller_decides(self) -> None:
        kept = (
            self.in_force if self.handover.state is HandoverState.OPEN else self.seen_taint or self.in_force
        )
        if not self.handover.state.blocked and kept and not (self.known | self.by_controller):
            self.by_controller.add(next(self.names))

    def controller_writes(self) -> None:
        for name in [*self.by_controller]:
            self.by_controller.discard(name)
            self.known.add(name)
            self.hold(name)

    def hold(self, name: str) -> None:
        self.holders.add(name)
        assert len(self.holders) == 1, "a device was given away twice"

    def claims_are_seen(self) -> None:
        self.known = set(self.holders)

    def record_and_slices_are_seen(self) -> None:
        self.seen_record, self.seen_taint = self.record, self.tainted
        self.handover, _ = recorded(self.handover, self.seen_record, self.now)

    def claim_ends(self) -> None:
        """Both have seen the device taken, and both see it free."""
        if self.holders and not self.by_controller and not self.by_scheduler:
            self.holders.clear()
            self.known.clear()

    def policy_is_installed(self) -> None:
        """Have kube-scheduler's writes refused; only where the pool is not its own."""
        if self.policy is None and self.handover.state is not HandoverState.SCHEDULER:
            self.policy = self.now

    def policy_goes(self) -> None:
        """Take the policy away, which the controller notices at once.

        What is under way just then may be admitted by nobody's decision, so nothing is.
        """
        if not self.by_controller:
            self.scheduler_writes()
            self.policy, self.in_force = None, False

    def policy_is_proved(self) -> None:
        """The time to close is over, and the claims are read."""
        if self.policy is not None and self.now - self.policy >= CLOSING and self.holders <= self.known:
            self.in_force = True

    def publisher_looks(self) -> None:
        answer: bool | None = None
        if self.handover.state is HandoverState.SCHEDULER:
            self.policy, self.in_force = None, False  # the object says that the pool is kube-scheduler's
        wanted: PoolKind | None = self.wanted
        if wanted is PoolKind.OPEN and not self.in_force:
            wanted = None if self.policy is not None and self.handover.state.open else PoolKind.TAINTED
        for _ in range(2):
            facts = HandoverFacts(
                record=self.seen_record,
                slices=(slice_of(tainted=self.seen_taint),),
                wanted=wanted,
                refused=False,
                writing=bool(self.by_controller),
                claims_seen=answer,
                now=self.now,
                drain=DRAIN,
                closed=self.in_force,
            )
            self.handover, effects, _ = look(self.handover, facts)
            if answer is not None or HandoverEffect.READ_CLAIMS not in effects:
                break
            answer = self.holders <= self.known
        # Each write may fail; a note is refused where the informer is behind.
        if self.chance.random() < 0.2:
            return
        if self.handover.state.record is not self.record:
            if self.seen_record is not self.record:
                return
            self.record = self.handover.state.record
        if self.chance.random() < 0.2:
            return
        tainted = self.handover.state.allocator is PoolAllocator.CONTROLLER and not self.handover.state.open
        if tainted is not self.tainted and self.seen_taint is self.tainted:
            self.tainted = tainted
            self.untainted_until = self.now if tainted else float("inf")

    def restart(self) -> None:
        """Another controller leads: it lists everything anew; what was decided and not written is gone."""
        self.by_controller.clear()
        self.handover, self.in_force = Handover(), False
        self.claims_are_seen()
        self.record_and_slices_are_seen()

    def policy_changes(self) -> None:
        self.wanted = self.chance.choice(list(PoolKind))

    def time_goes_on(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            self.now += 1
            if any(self.now >= latest for latest in self.by_scheduler.values()):
                self.scheduler_writes()


def slice_of(*, tainted: bool) -> ResourceSlice:
    taint = DeviceTaint(key=names.CONTROLLER_TAINT, value="allocates", effect="NoSchedule")
    device = Device(name="gpu-0", taints=(taint,) if tainted else ())
    spec = ResourceSliceSpec(
        driver=DRIVER,
        pool=ResourcePool(name=PoolName("n1"), generation=1, resource_slice_count=1),
        node_name="n1",
        devices=(device,),
    )
    return ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec)


@settings(max_examples=examples(600), deadline=None)
@given(
    record=st.sampled_from([r for r in AllocatorRecord if r is not AllocatorRecord.NONE]),
    seed=st.integers(0, 10**9),
)
def test_a_pool_that_changes_hands_is_never_allocated_by_both(record: AllocatorRecord, seed: int) -> None:
    chance = random.Random(seed)
    world = TwoAllocators(chance, record)
    actions = [
        world.scheduler_decides,
        world.scheduler_writes,
        world.controller_decides,
        world.controller_writes,
        world.claims_are_seen,
        world.record_and_slices_are_seen,
        world.claim_ends,
        world.policy_changes,
        world.policy_is_installed,
        world.policy_goes,
        world.policy_is_proved,
        world.restart,
    ]
    # Some of them happen seldom in a run or never: else nothing would ever be late for long enough.
    actions = [a for a in actions if chance.random() < 0.6] + [world.publisher_looks, world.time_goes_on] * 3
    for _ in range(200):
        chance.choice(actions)()
    reaches_each_kind(world)


@settings(max_examples=examples(1200), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_an_open_pool_whose_policy_comes_and_goes_is_never_allocated_by_both(seed: int) -> None:
    chance = random.Random(seed)
    world = TwoAllocators(chance, AllocatorRecord.OPEN)
    world.wanted = PoolKind.OPEN
    often = [
        world.scheduler_decides,
        world.controller_decides,
        world.controller_writes,
        world.record_and_slices_are_seen,
        world.publisher_looks,
        world.publisher_looks,
        world.time_goes_on,
        world.time_goes_on,
    ]
    seldom = [
        world.policy_is_installed,
        world.policy_goes,
        world.policy_is_proved,
        world.claims_are_seen,
        world.claim_ends,
        world.restart,
        world.policy_changes,
    ]
    for _ in range(200):
        chance.choice(often if chance.random() < 0.8 else seldom)()
    reaches_each_kind(world)


def reaches_each_kind(world: TwoAllocators) -> None:
    """Left alone, the pool reaches the one who should have it, in the way that is wanted."""
    for world.wanted in PoolKind:
        world.chance = random.Random(1)
        for _ in range(90):
            world.now += 1
            world.scheduler_writes()
            world.controller_writes()
            world.claims_are_seen()
            world.record_and_slices_are_seen()
            world.policy_is_installed()
            world.policy_is_proved()
            world.publisher_looks()
        world.record_and_slices_are_seen()
        ours = world.wanted is not PoolKind.SCHEDULER
        record = {PoolKind.OPEN: "open", PoolKind.TAINTED: "controller", PoolKind.SCHEDULER: "scheduler"}
        assert world.record.value == record[world.wanted]
        assert world.tainted is (world.wanted is PoolKind.TAINTED)
        assert world.handover.state.blocked is not ours


# --- freeze -------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**9))
def test_a_frozen_pool_stays_blocked_until_the_informer_shows_what_was_written(seed: int) -> None:
    chance = random.Random(seed)
    version = itertools.count(1)
    history: list[tuple[str, int, bool]] = []  # name, version, whether it was deleted then
    stored: dict[str, int] = {}
    shown: dict[str, int] = {}
    position = 0
    unseen: dict[str, int] = {}  # what was written while the pool was frozen
    freeze, writing = Freeze(), False

    def store(name: str, *, deleted: bool = False) -> None:
        history.append((name, next(version), deleted))
        stored[name] = history[-1][1]
        if deleted:
            del stored[name]

    def show(version: int) -> tuple[FreezeEffect, ...]:
        nonlocal freeze
        freeze, effects = freeze.saw(str(version))
        return effects

    def watch() -> tuple[FreezeEffect, ...]:
        nonlocal position
        name, seen, deleted = history[position]
        position += 1
        shown[name] = seen
        if deleted:
            del shown[name]
        return show(seen)

    def list_again() -> tuple[FreezeEffect, ...]:
        """Show what is gone and what is there, but not what was there only in between."""
        nonlocal position
        changed = shown != stored
        position = len(history)
        shown.clear()
        shown.update(stored)
        return show(history[-1][1]) if changed else ()

    for _ in range(80):
        before = freeze
        effects: tuple[FreezeEffect, ...] = ()
        roll = chance.random()
        name = chance.choice("abc")
        if roll < 0.2:
            freeze, effects = freeze.begin()
            writing = True
        elif roll < 0.4 and writing:
            store(name)
            unseen[name] = stored[name]
            freeze = freeze.wrote(at(name, stored[name]), str(history[position - 1][1] if position else 0))
        elif roll < 0.45 and name in stored:
            store(name, deleted=True)  # by somebody else
        elif roll < 0.6:
            if writing and chance.random() < 0.3:
                continue  # a write has failed: the publisher looks again
            freeze, effects = freeze.end()
            writing = False
        elif roll < 0.9 and position < len(history):
            effects = watch()
        elif roll >= 0.9:
            effects = list_again()
        unseen = {n: v for n, v in unseen.items() if v > (history[position - 1][1] if position else 0)}
        if writing or unseen:
            assert freeze.blocked
        assert (FreezeEffect.BLOCK in effects) is (freeze.blocked and not before.blocked)
        assert (FreezeEffect.UNBLOCK in effects) is (before.blocked and not freeze.blocked)
    freeze, _ = freeze.end()
    # Slices that were deleted unseen are never shown. The pool is published again, and that is.
    store("a")
    list_again()
    assert freeze == Freeze(FreezeState.OPEN)


def at(name: str, version: int) -> ResourceSlice:
    made = slice_of(tainted=False)
    meta = ObjectMeta(name=name, resource_version=str(version))
    return msgspec.structs.replace(made, metadata=meta)
