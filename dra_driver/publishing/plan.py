"""The publication plan: what a publisher does about one pool, computed from what it has seen.

``plan_publication`` has no effects. The plan is a value; a publisher carries it out in one pass: first what
the allocator has to know at once (``handover``, ``freezes``), then ``steps`` in their order. Each step is one
request or one Event; a publisher that is killed between any two of them, and looks again, ends where it would
have ended (the tables of ``epochs``, ``handover`` and ``freeze`` say why).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from dra_driver.api.core import Node
from dra_driver.api.own.inventory import NODE_PUBLISHES, DeviceInventory, Publication
from dra_driver.api.resource import Condition
from dra_driver.ownership import (
    CREATED_BY_CONTROLLER,
    CREATED_BY_NODE,
    AllocatorRecord,
    PoolAllocator,
    PoolID,
    is_published_by_node,
    owner_of,
    pool_of_inventory,
    raw_other_drivers,
    raw_publication,
    recorded_allocator,
    refusal_of,
    slice_name,
    slices_of_node,
)
from dra_driver.publishing import conditions
from dra_driver.publishing.device_plugins import CountedResources, count_resources
from dra_driver.publishing.epochs import (
    EPOCH_TRANSITIONS,
    EpochEffect,
    EpochEvent,
    EpochState,
    epoch_state,
)
from dra_driver.publishing.freeze import changes_forms
from dra_driver.publishing.grants import PoolKind, kind_of
from dra_driver.publishing.handover import Handover, HandoverEffect, HandoverFacts, HandoverState, look
from dra_driver.publishing.other_drivers import OtherDrivers, look_at_other_drivers
from dra_driver.publishing.seen import PublicationPlan, Seen, Verdict
from dra_driver.publishing.steps import Announce, DeleteSlice, NoteAttempt, NoteStatus, Step, WriteSlice
from dra_driver.resourceslice import (
    DesiredPool,
    PublishOptions,
    SlicePlan,
    build_slices,
    extended_resource_conflicts,
    handed_out,
    plan_slices,
)

__all__ = ["is_due", "plan_publication"]


def is_due(seen: Seen) -> bool:
    """Whether the epoch lets the publisher do anything; ``node`` and ``features`` do not matter for that."""
    return bool(_effects(seen, _state(seen)))


def plan_publication(seen: Seen) -> PublicationPlan:
    """Return what is to be done about a pool now."""
    inventory, node = seen.inventory, seen.node
    pool = pool_of_inventory(inventory)
    # The agent has made the inventory by itself and reads its own Node; neither can be another one's.
    refusal = "" if seen.by_node else refusal_of(inventory, node)
    if refusal:
        steps = tuple(_note_condition(inventory, conditions.refused(refusal)))
        return PublicationPlan(pool=pool, verdict=Verdict.REFUSED, reason=refusal, steps=steps)
    if node is None:
        return PublicationPlan(pool=pool, verdict=Verdict.NO_NODE)
    if not seen.by_node and is_published_by_node(inventory):
        # What the agent withholds it notes itself, and when that is over.
        nodes = conditions.is_publishers_own(inventory.status.conditions)
        steps = () if nodes else tuple(_note_condition(inventory, conditions.left_to_node()))
        return PublicationPlan(pool=pool, verdict=Verdict.LEFT_TO_NODE, steps=steps)
    return _plan(seen, pool, node)


def _plan(seen: Seen, pool: PoolID, node: Node) -> PublicationPlan:
    publication = seen.inventory.status.publication
    beside = _beside(seen, node)
    state = _state(seen)
    made = _desired(seen, beside)
    desired = made.desired
    if made.handover.state is HandoverState.UNKNOWN and not seen.by_node:
        return PublicationPlan(pool=pool, verdict=Verdict.UNDECIDED)
    todo = plan_slices(
        slices_of_node(seen.slices, node.metadata.name),
        desired,
        owner_of(node),
        least_generation=publication.generation + 1,
        labels=CREATED_BY_NODE if seen.by_node else CREATED_BY_CONTROLLER,
    )
    steps = tuple(_Steps(seen, desired, todo, made.handover, state).all())
    if made.handover.state is HandoverState.YIELDING and not seen.features.taints:
        # A server that drops taints was taken back to an older version. What it has keeps them until the pool
        # is drained, if nothing is written.
        steps = ()
    writes = any(isinstance(step, WriteSlice | DeleteSlice) for step in steps)
    return PublicationPlan(
        pool=pool,
        steps=steps,
        desired=desired,
        slices=todo,
        state=state,
        handover=made.handover,
        handover_effects=made.effects,
        freezes=writes and (seen.freeze.blocked or changes_forms(todo, seen.slices)),
        gone=beside.plugins.gone,
        gone_drivers=beside.drivers.gone,
        again=min((s for s in (made.again, *beside.again) if s), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class _Beside:
    """What else hands out devices of the node."""

    plugins: CountedResources = field(default_factory=CountedResources)
    drivers: OtherDrivers = field(default_factory=OtherDrivers)

    @property
    def again(self) -> tuple[float, float]:
        """Seconds after which another answer may be due, of each; 0: none is."""
        return self.plugins.again, self.drivers.again


def _beside(seen: Seen, node: Node) -> _Beside:
    publication = seen.inventory.status.publication
    plugins, drivers = CountedResources(), OtherDrivers()
    if seen.withholds:
        plugins = count_resources(
            publication.withheld_for,
            node.status.capacity,
            [c.spec.extended_resource_name or "" for c in seen.classes],
            gone=seen.gone,
            now=seen.now,
            seconds=seen.leaving,
        )
    if seen.elsewhere is not None:
        drivers = look_at_other_drivers(
            publication.other_drivers,
            seen.elsewhere,
            driver=seen.inventory.spec.driver,
            gone=seen.gone_drivers,
            now=seen.now,
            seconds=seen.leaving,
        )
    return _Beside(plugins, drivers)


def _state(seen: Seen) -> EpochState:
    status = seen.inventory.status
    present = {s.metadata.name for s in seen.slices}
    # The plugin itself knows whether it lives: see ``epochs``.
    begun = status.registration.epoch if seen.by_node else seen.begun
    return epoch_state(status.registration, status.publication, begun=begun, present=present)


def _effects(seen: Seen, state: EpochState) -> tuple[EpochEffect, ...]:
    registered = seen.inventory.status.registration.registered
    return EPOCH_TRANSITIONS[state, EpochEvent.LOOK if registered else EpochEvent.LOOK_UNREGISTERED].effects


@dataclass(frozen=True, slots=True)
class _Desired:
    """What should be published, and what that rests on.

    Attributes:
        desired: the slices.
        handover: whose the pool is.
        effects: of the handover.
        again: seconds to the next look at the handover.
    """

    desired: DesiredPool
    handover: Handover = field(default_factory=Handover)
    effects: tuple[HandoverEffect, ...] = ()
    again: float = 0.0


def _desired(seen: Seen, beside: _Beside) -> _Desired:
    if seen.by_node:
        return _Desired(_build(seen, beside, PoolAllocator.SCHEDULER))
    # A pool that its node is to publish goes to kube-scheduler first, in the order that keeps it safe.
    to_node = seen.inventory.spec.publisher == NODE_PUBLISHES
    opened = _is_open(seen, seen.handover.state)
    desired = _build(seen, beside, PoolAllocator.SCHEDULER if to_node else None, opened=opened)
    ours = desired.wanted is PoolAllocator.CONTROLLER and not to_node
    facts = HandoverFacts(
        record=recorded_allocator(seen.inventory.status.publication),
        slices=seen.slices,
        wanted=_wanted_kind(seen, ours=ours),
        closed=seen.guarding.closed,
        refused=bool(seen.refusal),
        writing=seen.writing,
        claims_seen=seen.claims_seen,
        now=seen.now,
        drain=seen.drain,
    )
    handover, effects, again = look(seen.handover, facts)
    opens = _is_open(seen, handover.state)
    refusal = seen.refusal if desired.allocator is PoolAllocator.CONTROLLER and not opens else ""
    if handover.state.allocator is not desired.allocator or opens is not opened:
        desired = _build(seen, beside, handover.state.allocator, opened=opens)
    # Where devices are granted, kube-scheduler serves extended resources with them.
    conflicts = () if seen.guarding.may_open else extended_resource_conflicts(desired, seen.classes)
    desired = replace(desired, refusal=refusal, doubts=seen.doubts, conflicts=conflicts)
    return _Desired(desired, handover, effects, again)


def _wanted_kind(seen: Seen, *, ours: bool) -> PoolKind | None:
    """Return of which kind the pool has to be; None while that depends on what is not known yet."""
    guarding, taints, state = seen.guarding, seen.features.taints, seen.handover.state
    possible = guarding.gates is not False and guarding.policy is not False
    known = guarding.gates is not None and guarding.policy is not None
    if ours and possible and not known and (state.open or not taints):
        return None
    gates, policy = guarding.gates is True, guarding.policy is True and possible
    return kind_of(ours=ours, taints=taints, gates=gates, policy=policy)


def _is_open(seen: Seen, state: HandoverState) -> bool:
    """Return whether the controller's pool is published without taints of ours."""
    if state.open:
        return True
    # Where there are no taints, a pool has none on its way, and on its way back.
    theirs = state in (HandoverState.UNKNOWN, HandoverState.SCHEDULER)
    return not seen.features.taints and not theirs and seen.guarding.policy is not False


def _build(seen: Seen, beside: _Beside, forced: PoolAllocator | None, *, opened: bool = False) -> DesiredPool:
    return build_slices(
        seen.inventory,
        seen.policies,
        seen.usage,
        options=PublishOptions(allocator=seen.allocator, forced=forced, open=opened),
        features=seen.features,
        plugins=handed_out(beside.plugins.amounts, seen.classes),
        others=beside.drivers.found,
    )


class _Steps:
    """The steps that the table of epochs asks for."""

    def __init__(
        self,
        seen: Seen,
        desired: DesiredPool,
        todo: SlicePlan,
        handover: Handover,
        state: EpochState,
    ) -> None:
        self._seen = seen
        self._publication = seen.inventory.status.publication
        self._registration = seen.inventory.status.registration
        self._desired = desired
        self._todo = todo
        self._state = state
        self._record = AllocatorRecord.SCHEDULER if seen.by_node else handover.state.record

    def all(self) -> Iterator[Step]:
        """Yield them in order; what other drivers have is noted whatever the epoch says.

        It is noted before slices change: a publisher that is killed in between must not forget it.
        """
        others = self._desired.other_driver_notes
        if others != self._publication.other_drivers:
            yield NoteStatus(raw_other_drivers(others))
        effects = _effects(self._seen, self._state)
        if EpochEffect.UPDATE_SLICES in effects and self._todo.creates:
            return
        for effect in effects:
            yield from self._of(effect)

    def _of(self, effect: EpochEffect) -> Iterator[Step]:
        match effect:
            case EpochEffect.NOTE_ATTEMPT:
                epoch = self._registration.epoch
                yield NoteAttempt(epoch, {"attempted": epoch, **self._raw_allocator()})
            case EpochEffect.NOTE_ALLOCATOR:
                if self._notes_allocator():
                    yield NoteStatus(self._raw_allocator())
            case EpochEffect.WRITE_SLICES | EpochEffect.UPDATE_SLICES:
                yield from (WriteSlice(w) for w in (*self._todo.creates, *self._todo.updates))
            case EpochEffect.NOTE_PUBLICATION:
                yield from self._note()
            case EpochEffect.CLOSE:
                yield NoteStatus(raw_publication(self._closed()))
            case EpochEffect.DELETE_STALE:
                yield from (DeleteSlice(s) for s in self._todo.deletes)
            case EpochEffect.FORGET_ATTEMPT:
                pass  # nothing to write

    def _notes_allocator(self) -> bool:
        if self._state is EpochState.ASKED:
            return False  # noted with the attempt
        if self._seen.by_node and recorded_allocator(self._publication) is AllocatorRecord.NONE:
            return False  # there is no controller that would have to be stopped
        return self._publication.allocator != self._record.value or self._ends_loans()

    def _ends_loans(self) -> bool:
        """Return whether what an earlier version has lent is back; no agent may remove the note of it."""
        back = self._record is not AllocatorRecord.DRAINING
        return back and bool(self._publication.lent) and not self._seen.by_node

    def _raw_allocator(self) -> dict[str, Any]:
        return {"allocator": self._record.value, **({"lent": []} if self._ends_loans() else {})}

    def _note(self) -> Iterator[Step]:
        present = self._publication
        new = self._state in (EpochState.ASKED, EpochState.BEGUN)
        epoch = self._registration.epoch if new else present.epoch
        publication = Publication(
            epoch=epoch,
            attempted=max(epoch, present.attempted),
            generation=self._todo.generation,
            slices=self._todo.names,
            devices=self._desired.devices,
            allocator=self._record.value,
            withheld_for=self._desired.withheld_for,
            other_drivers=present.other_drivers,
            lent=present.lent,
        )
        if self._notes_allocator():
            present = msgspec.structs.replace(present, allocator=self._record.value)
        fields = raw_publication(publication) if publication != present else {}
        condition = self._condition()
        if condition is not None and conditions.same(self._seen.inventory.status.conditions, condition):
            condition = None
        if condition is not None:
            type_: Literal["Normal", "Warning"] = "Normal" if condition.reason == "Published" else "Warning"
            yield Announce(type_, condition.reason, condition.message)
        if fields or condition is not None:
            yield NoteStatus(fields, condition)

    def _condition(self) -> Condition | None:
        seen, desired = self._seen, self._desired
        if not seen.by_node:
            draining = self._record is AllocatorRecord.DRAINING
            ours = desired.wanted is PoolAllocator.CONTROLLER
            unguarded = seen.guarding.problem if ours else ""
            return conditions.published(desired, seen.features, draining=draining, unguarded=unguarded)
        # Of what else hands out devices only: the rest is the controller's to say, where there is one.
        if desired.withheld or desired.other_drivers:
            return conditions.published(
                desired, seen.features, publish_anyway=_BY_FLAG, publish_beside_others=_OTHERS_BY_FLAG
            )
        if conditions.is_publishers_own(seen.inventory.status.conditions):
            return conditions.left_to_node()
        return None

    def _closed(self) -> Publication:
        """Return the record that ends an attempt of which it is not known what it has created."""
        desired, epoch = self._desired, self._registration.epoch
        names = tuple(slice_name(desired.node_name, desired.driver, i) for i in range(len(desired.slices)))
        return msgspec.structs.replace(self._publication, epoch=epoch, attempted=epoch, slices=names)


_BY_FLAG: Final = "start the node agent with --beside-device-plugin=publish if the plugin leaves them alone"
_OTHERS_BY_FLAG: Final = (
    "start the node agent with --beside-other-driver=publish if that driver never gives them to pods"
)


def _note_condition(inventory: DeviceInventory, condition: Condition) -> Iterator[Step]:
    if not conditions.same(inventory.status.conditions, condition):
        yield NoteStatus(condition=condition)
