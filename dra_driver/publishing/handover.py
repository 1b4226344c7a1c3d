"""Handover as a table: pools that change hands between kube-scheduler and this controller.

Two allocators on one pool would give a device away twice, and each sees the other's work late. So there is a
time in which neither allocates, long enough for decisions that are under way to be written and seen:

* to the controller: ``draining`` is noted, then the devices are tainted, so that kube-scheduler decides
  nothing more here; after the time to drain the claims are read again, and ``controller`` is noted. The
  controller decides when it sees that note.
* to kube-scheduler: the controller stops deciding at once; after the time to drain, when none of its writes
  is under way, ``scheduler`` is noted and then the taint goes.

A pool of the controller's is *open* where the API server refuses what others allocate from it
(``dra_driver.publishing.grants``): ``open`` is noted, then the taints go. A pool that can be open no more is
kube-scheduler's in fact, so it takes the whole way from there. Where the API server keeps no taints, a pool
comes to the controller when others are refused: that counts as tainted.

What is noted is in ``status.publication.allocator``. A controller that is killed in between starts the time
anew; no clocks of different machines are compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.resource import ResourceSlice
from dra_driver.ownership import AllocatorRecord, PoolAllocator, protected_pools
from dra_driver.publishing.grants import PoolKind
from dra_driver.publishing.tables import Transition, total

__all__ = [
    "HANDOVER_TRANSITIONS",
    "Handover",
    "HandoverEffect",
    "HandoverEvent",
    "HandoverFacts",
    "HandoverState",
    "advance",
    "deleted",
    "look",
    "recorded",
    "slices_event",
    "takes_over",
]

# How long until it is asked again whether the last write or event has arrived.
_POLL_SECONDS: Final = 0.5


class HandoverState(enum.Enum):
    """Who may allocate from a pool, as far as this controller knows."""

    UNKNOWN = "there is no note, and the slices were not looked at yet"
    SCHEDULER = "kube-scheduler may"
    NOTING = "on its way to the controller: ``draining`` is to be noted"
    TAINTING = "on its way to the controller: it is noted, the devices are to be tainted"
    DRAINING = "on its way to the controller: tainted; what kube-scheduler has decided is waited for"
    GRANTED = "on its way to the controller: drained; ``controller`` is to be noted"
    CONTROLLER = "the controller may"
    YIELDING = "on its way to kube-scheduler: what the controller has decided is waited for"
    OPEN = "the controller may, while the API server refuses others: there are no taints of ours"
    WITHDRAWING = "not open any more: what the controller has decided is waited for"

    @property
    def blocked(self) -> bool:
        """Whether this controller must neither allocate from the pool nor deallocate what is held of it.

        From an open pool it may only where ``may_allocate`` (``dra_driver.publishing.grants``) says so, too.
        """
        return self not in (HandoverState.UNKNOWN, HandoverState.CONTROLLER, HandoverState.OPEN)

    @property
    def open(self) -> bool:
        """Whether the pool is published without taints of ours although it is the controller's."""
        return self in (HandoverState.OPEN, HandoverState.WITHDRAWING)

    @property
    def timed(self) -> bool:
        """Whether the time to drain runs."""
        return self in (HandoverState.DRAINING, HandoverState.YIELDING, HandoverState.WITHDRAWING)

    @property
    def allocator(self) -> PoolAllocator:
        """For whom the slices are made: those for the controller are tainted, unless the pool is open."""
        if self is HandoverState.SCHEDULER:
            return PoolAllocator.SCHEDULER
        return PoolAllocator.CONTROLLER

    @property
    def record(self) -> AllocatorRecord:
        """What has to be noted before slices are written."""
        match self:
            case HandoverState.SCHEDULER:
                return AllocatorRecord.SCHEDULER
            case HandoverState.NOTING | HandoverState.TAINTING | HandoverState.DRAINING:
                return AllocatorRecord.DRAINING
            case HandoverState.OPEN | HandoverState.WITHDRAWING:
                return AllocatorRecord.OPEN
            case _:
                return AllocatorRecord.CONTROLLER


class HandoverEvent(enum.Enum):
    """What is seen, in the order in which a look at a pool goes through it."""

    NOTED_NOTHING = "the inventory has no note: the first publication, or an older controller's work"
    NOTED_SCHEDULER = "the inventory says ``scheduler``"
    NOTED_DRAINING = "the inventory says ``draining``"
    NOTED_CONTROLLER = "the inventory says ``controller``"
    NOTED_OPEN = "the inventory says ``open``"
    TAINTED = "kube-scheduler can allocate no device of the slices as they are, or the API server refuses it"
    UNTAINTED = "kube-scheduler can allocate devices of them"
    NO_DEVICES = "no slice has devices"
    CONTROLLER_WANTED = "the controller should allocate, and nothing is against it"
    REFUSED = "the controller should allocate, but claims or templates tolerate its taint"
    OPEN_WANTED = "the controller should allocate without taints, and the API server refuses others"
    SCHEDULER_WANTED = "kube-scheduler should allocate"
    TIME_OVER = "the time to drain is over, and no allocation of ours is being written"
    CLAIMS_SEEN = "every allocation from the pool that the API server has is known here, too"
    INVENTORY_DELETED = "the DeviceInventory is deleted, and with it the note"


class HandoverEffect(enum.Enum):
    """What is done besides noting ``HandoverState.record`` and writing slices for its ``allocator``."""

    BLOCK = "the allocator has to leave the pool alone from now on"
    UNBLOCK = "the allocator may decide on the pool from now on"
    READ_CLAIMS = "read the claims from the API server again and look whether all of them are known"


_S, _E = HandoverState, HandoverEvent
_BLOCK, _UNBLOCK = (HandoverEffect.BLOCK,), (HandoverEffect.UNBLOCK,)
_ON_THE_WAY: Final = (_S.NOTING, _S.TAINTING, _S.DRAINING, _S.GRANTED)

HANDOVER_TRANSITIONS: Final[
    Mapping[tuple[HandoverState, HandoverEvent], Transition[HandoverState, HandoverEffect]]
] = total(
    {
        # A controller that has just started goes by the note, and without one by the slices. A pool without
        # either is given at once to the one who should have it, unless kube-scheduler could reach it too.
        (_S.UNKNOWN, _E.NOTED_SCHEDULER): Transition(_S.SCHEDULER, _BLOCK),
        (_S.UNKNOWN, _E.NOTED_DRAINING): Transition(_S.TAINTING, _BLOCK),
        (_S.UNKNOWN, _E.NOTED_CONTROLLER): Transition(_S.CONTROLLER),
        (_S.UNKNOWN, _E.NOTED_OPEN): Transition(_S.OPEN),
        (_S.UNKNOWN, _E.TAINTED): Transition(_S.CONTROLLER),
        (_S.UNKNOWN, _E.UNTAINTED): Transition(_S.SCHEDULER, _BLOCK),
        (_S.UNKNOWN, _E.CONTROLLER_WANTED): Transition(_S.CONTROLLER),
        (_S.UNKNOWN, _E.OPEN_WANTED): Transition(_S.CONTROLLER),
        (_S.UNKNOWN, _E.REFUSED): Transition(_S.SCHEDULER, _BLOCK),
        (_S.UNKNOWN, _E.SCHEDULER_WANTED): Transition(_S.SCHEDULER, _BLOCK),
        # A note that says otherwise is older than what this process has decided since: it changes nothing.
        (_S.SCHEDULER, _E.CONTROLLER_WANTED): Transition(_S.NOTING),
        (_S.SCHEDULER, _E.OPEN_WANTED): Transition(_S.NOTING),
        (_S.SCHEDULER, _E.INVENTORY_DELETED): Transition(_S.UNKNOWN, _UNBLOCK),
        (_S.NOTING, _E.NOTED_DRAINING): Transition(_S.TAINTING),
        (_S.TAINTING, _E.NOTED_NOTHING): Transition(_S.NOTING),
        **{
            (state, event): Transition(_S.NOTING)
            for state in (_S.TAINTING, _S.DRAINING, _S.GRANTED)
            for event in (_E.NOTED_SCHEDULER, _E.NOTED_OPEN)
        },
        (_S.TAINTING, _E.TAINTED): Transition(_S.DRAINING),
        (_S.TAINTING, _E.NO_DEVICES): Transition(_S.DRAINING),
        # Without the note or the taint kube-scheduler may have decided again: all of it once more.
        (_S.DRAINING, _E.NOTED_NOTHING): Transition(_S.NOTING),
        (_S.DRAINING, _E.UNTAINTED): Transition(_S.TAINTING),
        (_S.DRAINING, _E.TIME_OVER): Transition(_S.DRAINING, (HandoverEffect.READ_CLAIMS,)),
        (_S.DRAINING, _E.CLAIMS_SEEN): Transition(_S.GRANTED),
        (_S.GRANTED, _E.NOTED_NOTHING): Transition(_S.NOTING),
        (_S.GRANTED, _E.NOTED_CONTROLLER): Transition(_S.CONTROLLER, _UNBLOCK),
        (_S.GRANTED, _E.UNTAINTED): Transition(_S.TAINTING),
        # The controller has decided nothing on the way, so there is nothing to wait for on the way back.
        **{(state, _E.REFUSED): Transition(_S.SCHEDULER) for state in _ON_THE_WAY},
        **{(state, _E.SCHEDULER_WANTED): Transition(_S.SCHEDULER) for state in _ON_THE_WAY},
        # What kube-scheduler has decided may still be on its way, even if the note of it is deleted.
        **{(state, _E.INVENTORY_DELETED): Transition(_S.NOTING) for state in _ON_THE_WAY},
        # REFUSED changes nothing: to hand the pool over for it would let any user switch allocators.
        (_S.CONTROLLER, _E.NOTED_SCHEDULER): Transition(_S.SCHEDULER, _BLOCK),
        (_S.CONTROLLER, _E.NOTED_DRAINING): Transition(_S.TAINTING, _BLOCK),
        # Another process has noted that.
        (_S.CONTROLLER, _E.NOTED_OPEN): Transition(_S.OPEN),
        (_S.CONTROLLER, _E.OPEN_WANTED): Transition(_S.OPEN),
        (_S.CONTROLLER, _E.SCHEDULER_WANTED): Transition(_S.YIELDING, _BLOCK),
        (_S.CONTROLLER, _E.INVENTORY_DELETED): Transition(_S.UNKNOWN),
        # The devices are tainted until the end, so the controller may go on at once.
        (_S.YIELDING, _E.CONTROLLER_WANTED): Transition(_S.CONTROLLER, _UNBLOCK),
        (_S.YIELDING, _E.REFUSED): Transition(_S.CONTROLLER, _UNBLOCK),
        (_S.YIELDING, _E.OPEN_WANTED): Transition(_S.CONTROLLER, _UNBLOCK),
        (_S.YIELDING, _E.NOTED_SCHEDULER): Transition(_S.SCHEDULER),
        (_S.YIELDING, _E.NOTED_DRAINING): Transition(_S.TAINTING),
        (_S.YIELDING, _E.TIME_OVER): Transition(_S.SCHEDULER),
        (_S.YIELDING, _E.INVENTORY_DELETED): Transition(_S.UNKNOWN, _UNBLOCK),
        (_S.OPEN, _E.NOTED_SCHEDULER): Transition(_S.SCHEDULER, _BLOCK),
        (_S.OPEN, _E.NOTED_DRAINING): Transition(_S.TAINTING, _BLOCK),
        **{
            (_S.OPEN, event): Transition(_S.WITHDRAWING, _BLOCK)
            for event in (_E.CONTROLLER_WANTED, _E.REFUSED, _E.SCHEDULER_WANTED)
        },
        (_S.OPEN, _E.INVENTORY_DELETED): Transition(_S.UNKNOWN),
        # In the time between, others were refused, or the claims were read since.
        (_S.WITHDRAWING, _E.OPEN_WANTED): Transition(_S.OPEN, _UNBLOCK),
        (_S.WITHDRAWING, _E.NOTED_SCHEDULER): Transition(_S.SCHEDULER),
        (_S.WITHDRAWING, _E.NOTED_DRAINING): Transition(_S.TAINTING),
        (_S.WITHDRAWING, _E.TIME_OVER): Transition(_S.SCHEDULER),
        (_S.WITHDRAWING, _E.INVENTORY_DELETED): Transition(_S.UNKNOWN, _UNBLOCK),
    },
    HandoverState,
    HandoverEvent,
)

_NOTED: Final = {
    AllocatorRecord.NONE: _E.NOTED_NOTHING,
    AllocatorRecord.SCHEDULER: _E.NOTED_SCHEDULER,
    AllocatorRecord.DRAINING: _E.NOTED_DRAINING,
    AllocatorRecord.CONTROLLER: _E.NOTED_CONTROLLER,
    AllocatorRecord.OPEN: _E.NOTED_OPEN,
}


@dataclass(frozen=True, slots=True)
class Handover:
    """Whose a pool is, and since when that is waited for.

    Attributes:
        state: as in the table.
        since: monotonic time in seconds at which the present state began, where its time to drain runs.
    """

    state: HandoverState = HandoverState.UNKNOWN
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverFacts:
    """What a look at a pool goes by.

    Attributes:
        record: what is noted.
        slices: of the pool, as they are.
        wanted: by policy, and possible on this server; None: that is not known yet.
        closed: whether the API server refuses what others allocate from the pool, and every claim of the time
            before is known.
        refused: whether claims or templates tolerate our taint.
        writing: whether an allocation from the pool is being written by this controller.
        claims_seen: whether all claims that the API server has are known; if None, they were not read again.
        now: monotonic time in seconds.
        drain: seconds between the last decision of one allocator and the first of the other.
    """

    record: AllocatorRecord
    slices: tuple[ResourceSlice, ...]
    wanted: PoolKind | None
    refused: bool
    writing: bool
    claims_seen: bool | None
    now: float
    drain: float
    closed: bool = False


def advance(
    handover: Handover, event: HandoverEvent, now: float
) -> tuple[Handover, tuple[HandoverEffect, ...]]:
    """Return the pool after an event, and the effects; the time to drain runs from the entry into a state."""
    move = HANDOVER_TRANSITIONS[handover.state, event]
    if move.state is handover.state:
        return handover, move.effects
    return Handover(move.state, now if move.state.timed else 0.0), move.effects


def recorded(
    handover: Handover, record: AllocatorRecord, now: float
) -> tuple[Handover, tuple[HandoverEffect, ...]]:
    """Return the pool after its inventory was seen, and the effects."""
    return advance(handover, _NOTED[record], now)


def deleted(handover: Handover, now: float) -> tuple[Handover, tuple[HandoverEffect, ...]]:
    """Return the pool after its inventory was deleted, and the effects."""
    return advance(handover, _E.INVENTORY_DELETED, now)


def look(handover: Handover, facts: HandoverFacts) -> tuple[Handover, tuple[HandoverEffect, ...], float]:
    """Return the pool after all that a look shows, the effects, and seconds to the next look (0: none)."""
    effects: list[HandoverEffect] = []
    # Twice: a pool that has just been put on its way may be noted and tainted already. Then nothing is left
    # to be written, and no event leads to another look.
    for event in (*_before(facts, handover.state), *_before(facts, handover.state)):
        handover, more = advance(handover, event, facts.now)
        effects += more
    left = handover.since + facts.drain - facts.now
    if handover.state.timed and left <= 0 and not facts.writing and _may_go_on(handover.state, facts):
        handover, more = advance(handover, _E.TIME_OVER, facts.now)
        effects += more
        # A pool that was open is kube-scheduler's for no longer than that.
        rest = (_E.CLAIMS_SEEN,) if facts.claims_seen else ()
        for event in (*rest, *_wanted(facts, handover.state)):
            handover, more = advance(handover, event, facts.now)
            effects += more
    again = max(left, 0.0) or _POLL_SECONDS
    return handover, tuple(effects), again if handover.state.timed else 0.0


def _may_go_on(state: HandoverState, facts: HandoverFacts) -> bool:
    """Return whether the time counts that is over."""
    match state:
        case HandoverState.WITHDRAWING:
            return facts.wanted is not None  # the policy may be on its way back
        case HandoverState.DRAINING:
            return facts.closed or facts.wanted is not PoolKind.OPEN
        case _:
            return True


def _before(facts: HandoverFacts, state: HandoverState) -> Iterator[HandoverEvent]:
    """Yield what is seen before the time counts."""
    yield _NOTED[facts.record]
    yield _E.TAINTED if facts.closed else slices_event(facts.slices)
    yield from _wanted(facts, state)


def _wanted(facts: HandoverFacts, state: HandoverState) -> Iterator[HandoverEvent]:
    match facts.wanted:
        case None:
            pass
        case PoolKind.SCHEDULER:
            yield _E.SCHEDULER_WANTED
        case PoolKind.OPEN if facts.closed:
            yield _E.OPEN_WANTED
        case PoolKind.OPEN if state is not HandoverState.UNKNOWN:
            yield _E.CONTROLLER_WANTED  # tolerations do not matter when it is open
        case _:
            yield _E.REFUSED if facts.refused else _E.CONTROLLER_WANTED


def slices_event(slices: Iterable[ResourceSlice]) -> HandoverEvent:
    """Return what the slices of one pool say of kube-scheduler."""
    with_devices = [s for s in slices if s.spec.devices]
    if not with_devices:
        return _E.NO_DEVICES
    return _E.TAINTED if protected_pools(with_devices) else _E.UNTAINTED


def takes_over(record: AllocatorRecord, since: float | None, now: float, patience: float) -> bool:
    """Return whether the agent of a node may publish a pool whose allocator ``status.publication`` records.

    A controller that lives hands the pool to kube-scheduler within seconds. One that is gone decides nothing.

    Args:
        record: who may allocate.
        since: monotonic time in seconds at which the agent began to wait; if None, it has not.
        now: monotonic time in seconds.
        patience: seconds that a controller is given.
    """
    return not record.is_controllers or (since is not None and now - since >= patience)
