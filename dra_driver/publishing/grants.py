"""Grants and the policy that holds them, as two tables: who may allocate from open pools.

``dra_driver.ownership.grants`` has the object and the policy's condition. Here is what has to have happened
before the controller may allocate what kube-scheduler could have allocated:

* a **grant** is for what is exclusive together (``dra_driver.ownership.units``) and the claims of one pod; or
  for a whole pool and every claim, where the pool is kube-scheduler's. Both end in the same way: the object
  is written without it, in a write that changes it in any case; every API server applies that; the claims
  are read;
* the **guard** is the policy itself, for all pools. A process that starts, and one that has seen the policy,
  its binding or the object change, proves it again, waits likewise and reads the claims, before it allocates
  from pools whose devices kube-scheduler sees.

So nothing rests on how long kube-scheduler takes to write what it has decided.
``docs/adr/0011-open-pools.md`` has the reasons, ``tests/model`` tries every order of these steps.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dra_driver.publishing.tables import Transition, total

__all__ = [
    "GRANT_TRANSITIONS",
    "GUARD_TRANSITIONS",
    "Grant",
    "GrantEffect",
    "GrantEvent",
    "GrantState",
    "Guard",
    "GuardEffect",
    "GuardEvent",
    "GuardState",
    "PoolKind",
    "advance_grant",
    "advance_guard",
    "grant_stored",
    "guard_stored",
    "kind_of",
    "may_allocate",
]


class PoolKind(enum.Enum):
    """How a pool is kept for one allocator."""

    OPEN = "the controller's, by the policy: every free device is published without our taint"
    TAINTED = "the controller's, by our taint on every device"
    SCHEDULER = "kube-scheduler's"


def kind_of(*, ours: bool, taints: bool, gates: bool, policy: bool) -> PoolKind:
    """Return of which kind a pool has to be.

    An open pool needs the gate in every namespace, because kube-scheduler would try pods without it again and
    again with devices that look free. Where the policy is installed but not in force at the moment, the pool
    stays tainted; where there are no taints either, nothing keeps kube-scheduler away.

    Args:
        ours: whether policies and configuration make the controller its allocator.
        taints: whether the API server keeps device taints.
        gates: whether the pods of every namespace get our gate.
        policy: whether the policy is in force.
    """
    if ours and gates and policy:
        return PoolKind.OPEN
    return PoolKind.TAINTED if ours and taints else PoolKind.SCHEDULER


# --- grants -------------------------------------------------------------------------------------------------


class GrantState(enum.Enum):
    """Who may allocate from what a grant is for."""

    OURS = "the controller may"
    GRANTING = "on its way to kube-scheduler: the object is to be written with the grant"
    GRANTED = "the object has the grant: kube-scheduler may"
    ENDING = "on its way back: the object is to be written without it"
    CLOSING = "written: the API servers that do not know it yet are waited for"
    READING = "closed: the claims are to be read"

    @property
    def blocked(self) -> bool:
        """Whether the controller must neither allocate nor deallocate anything of it."""
        return self is not GrantState.OURS

    @property
    def listed(self) -> bool:
        """Whether the object has to have the grant."""
        return self in (GrantState.GRANTING, GrantState.GRANTED)


class GrantEvent(enum.Enum):
    """What happens to a grant."""

    GRANT = "nothing is against it: all of it is ours, and no write of ours about it is under way"
    STORED = "the API server has stored the object as this state asks"
    END = "allocated, its pod gone, time over, a device unhealthy; or the pool is to be the controller's"
    TIME_OVER = "the time of the state is over"
    CLAIMS_SEEN = "every allocation that the API server has is known here, too"


class GrantEffect(enum.Enum):
    """What is done besides keeping the object as the states want it."""

    BLOCK = "the allocator has to leave it alone from now on"
    UNBLOCK = "the allocator may decide on it from now on"
    WRITE = "write the object, in a write that changes it in any case"
    READ_CLAIMS = "read the claims from the API server again and look whether all of them are known"


_S, _E, _F = GrantState, GrantEvent, GrantEffect

GRANT_TRANSITIONS: Final[Mapping[tuple[GrantState, GrantEvent], Transition[GrantState, GrantEffect]]] = total(
    {
        (_S.OURS, _E.GRANT): Transition(_S.GRANTING, (_F.BLOCK, _F.WRITE)),
        (_S.GRANTING, _E.STORED): Transition(_S.GRANTED),
        # The write may be stored all the same, or be already.
        (_S.GRANTING, _E.END): Transition(_S.ENDING, (_F.WRITE,)),
        (_S.GRANTED, _E.END): Transition(_S.ENDING, (_F.WRITE,)),
        (_S.ENDING, _E.STORED): Transition(_S.CLOSING),
        # What is read before nothing can come any more does not count.
        (_S.CLOSING, _E.TIME_OVER): Transition(_S.READING, (_F.READ_CLAIMS,)),
        (_S.READING, _E.CLAIMS_SEEN): Transition(_S.OURS, (_F.UNBLOCK,)),
    },
    GrantState,
    GrantEvent,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """How far a grant is.

    Attributes:
        state: as in the table.
        claims: the devices that kube-scheduler may allocate, by the key of the claim in the object
            (``dra_driver.ownership.grant_key``): claims of one pod may take parts of one GPU. Empty for a
            pool, which is granted to every claim.
        shares: those of the devices that are granted as shares: they were published so when the grant began.
            What kube-scheduler decides on another form of a device takes no account of who holds it now.
        kept: of a pool, devices that the controller had allocated when it gave the pool away, and that have
            not been free since: kube-scheduler may have decided on them before it knew.
        since: monotonic time in seconds at which ``CLOSING`` began.
        turn: how often the object was to be written for it: the answer to an earlier write does not count.
    """

    state: GrantState = GrantState.OURS
    claims: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    shares: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    since: float = 0.0
    turn: int = 0

    @property
    def devices(self) -> frozenset[str]:
        """Return the devices that are granted to one claim or another."""
        return frozenset().union(*self.claims.values())


def advance_grant(grant: Grant, event: GrantEvent, now: float) -> tuple[Grant, tuple[GrantEffect, ...]]:
    """Return the grant after an event, and the effects; a time runs from the entry into ``CLOSING``."""
    move = GRANT_TRANSITIONS[grant.state, event]
    if move.state is grant.state:
        return grant, move.effects
    if not move.state.blocked:
        return Grant(turn=grant.turn), move.effects
    turn = grant.turn + (GrantEffect.WRITE in move.effects)
    since = now if move.state is GrantState.CLOSING else 0.0
    return replace(grant, state=move.state, since=since, turn=turn), move.effects


def grant_stored(grant: Grant, turn: int, now: float) -> Grant:
    """Return the grant after the API server has stored the object.

    Args:
        grant: as it is now.
        turn: ``Grant.turn`` when the write was begun.
        now: monotonic time in seconds.
    """
    return advance_grant(grant, GrantEvent.STORED, now)[0] if turn == grant.turn else grant


# --- the guard ----------------------------------------------------------------------------------------------


class GuardState(enum.Enum):
    """Whether the policy keeps the devices of open pools for the controller."""

    WRITING = "not known: the object is to be written, in a turn of this process"
    PROVING = "written: an allocation by an account without a grant is to be refused, for a trial"
    CLOSING = "refused: the API servers that do not know it yet are waited for"
    READING = "closed: the claims are to be read"
    IN_FORCE = "every allocation is known, and all that comes is admitted by a grant"


class GuardEvent(enum.Enum):
    """What happens to the guard."""

    STORED = "the API server has stored the object that this process has written"
    PROVED = "an API server has refused the trial by the policy, with this process's turn or a later one"
    FAILED = "the trial was admitted; or policy, binding or object are gone, or are not as they should be"
    TIME_OVER = (
        "the time of the state is over, and nothing that an earlier process has sent can come any more"
    )
    CLAIMS_SEEN = "every allocation that the API server has is known here, too"


class GuardEffect(enum.Enum):
    """What is done when the state changes."""

    BLOCK = "the allocator has to leave all open pools alone from now on"
    UNBLOCK = "the allocator may decide on them from now on"
    END_GRANTS = "end every grant to a claim: what it is for may have been allocated to another one"
    WRITE = "write the object, in a write that changes it in any case"
    PROVE = "try an allocation by an account that may do nothing else"
    READ_CLAIMS = "read the claims from the API server again and look whether all of them are known"


_G, _H, _D = GuardState, GuardEvent, GuardEffect

GUARD_TRANSITIONS: Final[Mapping[tuple[GuardState, GuardEvent], Transition[GuardState, GuardEffect]]] = total(
    {
        (_G.WRITING, _H.STORED): Transition(_G.PROVING, (_D.PROVE,)),
        (_G.PROVING, _H.PROVED): Transition(_G.CLOSING),
        (_G.CLOSING, _H.TIME_OVER): Transition(_G.READING, (_D.READ_CLAIMS,)),
        (_G.READING, _H.CLAIMS_SEEN): Transition(_G.IN_FORCE, (_D.UNBLOCK,)),
        # The object may be another one when the policy is there again, so it is written first.
        **{
            (state, _H.FAILED): Transition(_G.WRITING, (_D.WRITE,))
            for state in (_G.PROVING, _G.CLOSING, _G.READING)
        },
        (_G.IN_FORCE, _H.FAILED): Transition(_G.WRITING, (_D.BLOCK, _D.END_GRANTS, _D.WRITE)),
    },
    GuardState,
    GuardEvent,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """How far the guard is.

    Attributes:
        state: as in the table; a process begins with what is not known.
        since: monotonic time in seconds at which ``CLOSING`` began.
        turn: how often the object was to be written for it.
    """

    state: GuardState = GuardState.WRITING
    since: float = 0.0
    turn: int = 0


def advance_guard(guard: Guard, event: GuardEvent, now: float) -> tuple[Guard, tuple[GuardEffect, ...]]:
    """Return the guard after an event, and the effects; a time runs from the entry into ``CLOSING``."""
    move = GUARD_TRANSITIONS[guard.state, event]
    if move.state is guard.state:
        return guard, move.effects
    since = now if move.state is GuardState.CLOSING else 0.0
    return Guard(move.state, since, guard.turn + (GuardEffect.WRITE in move.effects)), move.effects


def guard_stored(guard: Guard, turn: int, now: float) -> Guard:
    """Return the guard after the API server has stored the object that was begun at a ``turn``."""
    return advance_guard(guard, GuardEvent.STORED, now)[0] if turn == guard.turn else guard


def may_allocate(guard: Guard, pool: Grant, unit: Grant) -> bool:
    """Return whether the controller may allocate, or deallocate, devices of a unit of an open pool.

    Args:
        guard: of all pools.
        pool: its pool, granted to every claim or not.
        unit: what is exclusive together.
    """
    return guard.state is GuardState.IN_FORCE and not pool.state.blocked and not unit.state.blocked
