"""A small world with one open pool, and every order in which the steps of grants and of the policy can come.

One pool, kube-scheduler, an API server with its admission policy, and the controller, which is killed and
started again. kube-scheduler sees every device and decides for every claim as it likes; it may write that at
any time, also for a claim or a process that is gone. What the controller does is decided by
``dra_driver.publishing.grants``. What crosses the network takes as long as it likes.

A write holds the version of what it replaces. Instead of numbers it is noted whether that is still the
newest.

The devices are exclusive together. They may be two forms of one GPU, of which one is published:
kube-scheduler decides on what it sees published, and takes no account of what it or others have of the other
form.

While the policy is gone and the controller cannot know it, two claims can hold one device. So a double does
not count where the write that makes it, or the other claim, was admitted only because the policy was gone,
and the controller has not read the claims since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import exploring
from exploring import Explored

from dra_driver.publishing.grants import (
    Grant,
    GrantEvent,
    GrantState,
    Guard,
    GuardEffect,
    GuardEvent,
    GuardState,
    advance_grant,
    advance_guard,
    grant_stored,
    guard_stored,
    may_allocate,
)

NONE: Final = -1
"""In place of a device: a claim is not allocated."""
EVERY: Final = 4
"""With the devices that the object grants to claim 0: the pool is kube-scheduler's, for every claim."""

S, E = GrantState, GrantEvent
G, H = GuardState, GuardEvent

POOL, GUARD = 2, 3
"""Positions of what a write of the object is for, beside the numbers of units."""
KEPT: Final = 8
"""With it: the first of the devices that are refused to kube-scheduler nevertheless."""
GRANTS, OWN, KILLS, RESTARTS, FREED, GAPS, HANDOVERS = range(7)
Left = tuple[int, int, int, int, int, int, int]


class Write(NamedTuple):
    """A write of the controller that the API server has not handled yet.

    Attributes:
        kind: of the object with the grants, or of a claim.
        target: what the object shall say, as bits; the device of the claim.
        newest: whether what it replaces is the newest version; the API server refuses it otherwise.
        ours: whether the process lives that has sent it, and still waits for the answer.
        asked: what it is written for, as bits.
        claim: number of the claim.
    """

    kind: Literal["object", "claim"]
    target: int
    newest: bool
    ours: bool
    asked: int = 0
    claim: int = 0


class State(NamedTuple):
    """All there is. Devices are bits where there can be several.

    Attributes:
        object: what is granted.
        applied: what is granted as far as the API server knows that is furthest behind.
        policy: whether the policy is there.
        applied_policy: whether that API server applies it.
        claims: what is allocated, by claim.
        alive: whether the controller runs.
        guard: in its memory, like all up to ``pool``.
        units: grants of each unit.
        pool: the grant of the pool.
        seen: whether it knows the newest version of the object.
        changed: whether the policy has been changed since it was looked at before a trial, or was not there.
        seen_claims: what it sees of the claims.
        writes: of the controller, also of one that was killed.
        sees_claims: what kube-scheduler sees of the claims, its own decisions included.
        decided: what it is about to write: claim, device, whether it knows that itself.
        loose: claims that were admitted only because the policy was gone, and are not read yet.
        late: the policy has been gone for longer than the controller takes to notice what it can.
        doubled: a device has been given to two claims.
        published: the devices that are.
        sees_published: what kube-scheduler sees of that.
        changes: how often the form of the devices may still change.
        left: how often grants, own allocations, kills, restarts of kube-scheduler, deallocations, losses of
            the policy, and changes of the allocator may still happen.
    """

    object: int
    applied: int
    policy: bool
    applied_policy: bool
    claims: tuple[int, ...]
    alive: bool
    guard: Guard
    units: tuple[Grant, ...]
    pool: Grant
    seen: bool
    changed: bool
    seen_claims: tuple[int, ...]
    writes: frozenset[Write]
    sees_claims: tuple[int, ...]
    decided: frozenset[tuple[int, int, bool]]
    loose: frozenset[int]
    late: bool
    doubled: bool
    published: int
    sees_published: int
    changes: int
    left: Left


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How large the world is, and which rules it has lost.

    Attributes:
        devices: number of devices, which are exclusive together.
        left: see ``State``.
        changes: how often another device is published, in place of the one before; 0: all are.
        without: rules that do not hold.
        skipped: states that are left without what they wait for, for another one.
    """

    devices: int = 1
    left: Left = (1, 1, 1, 0, 0, 0, 0)
    changes: int = 0
    without: frozenset[str] = frozenset()
    skipped: tuple[tuple[GrantState | GuardState, GrantState | GuardState], ...] = ()

    def start(self) -> State:
        """Return the world before anything has happened."""
        claims = (NONE, NONE)
        published = 1 if self.changes else (1 << self.devices) - 1
        return State(
            object=0,
            applied=0,
            policy=True,
            applied_policy=True,
            claims=claims,
            alive=True,
            guard=Guard(G.IN_FORCE),
            units=(Grant(),),
            pool=Grant(),
            seen=True,
            changed=False,
            seen_claims=claims,
            writes=frozenset(),
            sees_claims=claims,
            decided=frozenset(),
            loose=frozenset(),
            late=False,
            doubled=False,
            published=published,
            sees_published=published,
            changes=self.changes,
            left=self.left,
        )


def is_quiet(state: State) -> bool:
    """Return whether the controller may allocate every device, and kube-scheduler none."""
    free = may_allocate(state.guard, state.pool, state.units[0])
    return state.alive and free and state.policy and state.applied_policy and not state.applied


class ScenarioSteps:
    """The steps of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._without = scenario.without
        self._unit = (1 << scenario.devices) - 1

    def steps(self, state: State) -> Iterator[State]:
        """Yield what the world can be next."""
        if state.alive:
            yield from self._sees(state)
            yield from self._grants(state)
            yield from self._looks(state)
            yield from self._guards(state)
            yield from self._writes(state)
            yield from self._allocates(state)
            yield from self._changes(state)
            if state.left[KILLS]:
                yield self._killed(state)
                if any(w.kind == "object" and w.ours for w in state.writes):
                    # It gives a request up, which may be handled all the same. Claims stay assumed.
                    given_up = frozenset(
                        w._replace(ours=False, asked=0) if w.kind == "object" else w for w in state.writes
                    )
                    yield _spent(state._replace(writes=given_up), KILLS)
        else:
            yield self._started(state)
        for write in state.writes:
            yield self._landed(state, write)
        yield from self._scheduler(state)
        yield from self._surroundings(state)

    # --- the controller -------------------------------------------------------------------------------------

    def _sees(self, state: State) -> Iterator[State]:
        if not state.seen:
            yield state._replace(seen=True)
        if state.seen_claims != state.claims:
            yield state._replace(seen_claims=state.claims)

    def _read(self, state: State) -> bool:
        """Return whether a read of the claims shows that all of them are known."""
        return "consistent read" in self._without or state.seen_claims == state.claims

    def _grants(self, state: State) -> Iterator[State]:
        own = any(w.kind == "claim" for w in state.writes)
        settled = not own or "own writes" in self._without
        if state.guard.state is not G.IN_FORCE or not settled:
            return
        free = all(device == NONE for device in state.seen_claims)
        if state.left[GRANTS] and free and may_allocate(state.guard, state.pool, state.units[0]):
            grant, _ = advance_grant(state.units[0], E.GRANT, 0.0)
            yield _spent(self._with(state, 0, replace(grant, claims={"0": frozenset("0")})), GRANTS)
        if state.left[HANDOVERS] and state.pool.state is S.OURS:
            grant, _ = advance_grant(state.pool, E.GRANT, 0.0)
            kept = frozenset(str(d) for d in state.seen_claims if d != NONE)
            grant = replace(grant, kept=frozenset() if "kept" in self._without else kept)
            yield _spent(self._with(state, POOL, grant), HANDOVERS)

    def _looks(self, state: State) -> Iterator[State]:
        held = {str(device) for device in state.seen_claims if device != NONE}
        if state.pool.kept - held:
            yield state._replace(pool=replace(state.pool, kept=state.pool.kept & held))
        for number, grant, bits in ((0, state.units[0], self._unit), (POOL, state.pool, EVERY)):
            event = {S.GRANTING: E.END, S.GRANTED: E.END}.get(grant.state)
            if grant.state is S.CLOSING and (not state.applied & bits or "closing" in self._without):
                event = E.TIME_OVER
            if grant.state is S.READING and self._read(state):
                event = E.CLAIMS_SEEN
            if event is not None:
                yield self._with(state, number, advance_grant(grant, event, 0.0)[0])

    def _guards(self, state: State) -> Iterator[State]:
        guard, event = state.guard, None
        settled = "settling" in self._without or not any(w.kind == "claim" for w in state.writes)
        if guard.state is G.PROVING and (state.policy or state.applied_policy or "proof" in self._without):
            event = H.PROVED
        if guard.state is G.CLOSING and settled and self._closed(state):
            event = H.TIME_OVER
        if guard.state is G.READING and self._read(state):
            event = H.CLAIMS_SEEN
        if event is not None:
            yield self._guarded(state, event)
        gone = not (state.policy and state.applied_policy)
        if "watch" not in self._without and (state.changed or gone):
            yield self._guarded(state, H.FAILED)

    def _closed(self, state: State) -> bool:
        """Return whether the time to close can be over: what an API server knows is not older than that."""
        known = (state.applied_policy or not state.policy) and not state.applied & 7 & ~self._listed(state)
        return known or "closing" in self._without

    def _guarded(self, state: State, event: GuardEvent) -> State:
        guard, effects = advance_guard(state.guard, event, 0.0)
        state = self._with(state, GUARD, guard)
        if GuardEffect.END_GRANTS in effects and "end of grants" not in self._without:
            state = self._with(state, 0, Grant())
        if guard.state is G.IN_FORCE and event is H.CLAIMS_SEEN:
            state = state._replace(loose=frozenset(), late=False)
        return state

    def _with(self, state: State, number: int, entry: Grant | Guard) -> State:
        """Return the world with another grant or guard, without numbers that make equal worlds differ."""
        for from_, to in self._scenario.skipped:
            if entry.state is from_:
                entry = replace(entry, state=to)  # type: ignore[arg-type]
        if entry.turn:
            # The answer to an earlier write does not count.
            state = state._replace(
                writes=frozenset(w._replace(asked=w.asked & ~(1 << number)) for w in state.writes)
            )
        entry = replace(entry, turn=0, since=0.0)
        match entry:
            case Guard():
                return state._replace(guard=entry)
            case _:
                return state._replace(pool=entry) if number == POOL else state._replace(units=(entry,))

    def _listed(self, state: State) -> int:
        listed = 1 if state.units[0].state.listed else 0
        if state.pool.state.listed:
            refused = 0 if "forms" in self._without else self._unit & ~state.published
            if "excluded" in self._without:
                refused |= sum(1 << int(name) for name in state.pool.kept)
            elif state.pool.kept:
                refused = self._unit
            listed |= EVERY + KEPT * refused
        return listed

    def _writes(self, state: State) -> Iterator[State]:
        if any(w.kind == "object" and w.ours for w in state.writes):
            return
        asked = sum(
            1 << n for n, g in ((0, state.units[0]), (POOL, state.pool)) if g.state in (S.GRANTING, S.ENDING)
        )
        asked |= (state.guard.state is G.WRITING) << GUARD
        freed = state.pool.state is S.GRANTED and state.seen and state.object != self._listed(state)
        if asked or freed:
            yield _sent(state, Write("object", self._listed(state), state.seen, ours=True, asked=asked))

    def _allocates(self, state: State) -> Iterator[State]:
        if not state.left[OWN] or any(w.kind == "claim" and w.ours for w in state.writes):
            return
        if not may_allocate(state.guard, state.pool, state.units[0]) or any(
            d != NONE for d in state.seen_claims
        ):
            return
        for claim in (0, 1):
            device = state.published.bit_length() - 1
            yield _spent(_sent(state, Write("claim", device, True, ours=True, claim=claim)), OWN)

    def _changes(self, state: State) -> Iterator[State]:
        """Publish the other form: while the controller may allocate, and what is held keeps its form."""
        free = may_allocate(state.guard, state.pool, state.units[0])
        writing = any(w.kind == "claim" for w in state.writes)
        if state.changes and free and not writing and all(d == NONE for d in state.seen_claims):
            yield state._replace(published=self._unit & ~state.published, changes=state.changes - 1)

    def _killed(self, state: State) -> State:
        writes = frozenset(w._replace(ours=False, asked=0) for w in state.writes)
        state = state._replace(alive=False, writes=writes, units=(Grant(),), pool=Grant(), guard=Guard())
        return _spent(state, KILLS)

    def _started(self, state: State) -> State:
        """Start the controller: its first list is consistent, and a note says whose the pool is."""
        kept = frozenset(str(d) for d in state.claims if d != NONE and state.object & KEPT << d)
        pool = Grant(S.GRANTED, kept=kept) if state.object & EVERY else Grant()
        guard = Guard(G.IN_FORCE) if "guard" in self._without else Guard()
        state = state._replace(alive=True, pool=pool, seen=True, seen_claims=state.claims)
        return self._with(state, GUARD, guard)

    # --- the API server -------------------------------------------------------------------------------------

    def _landed(self, state: State, write: Write) -> State:
        """Handle a write: it is refused where what it replaces has changed."""
        rest = state.writes - {write}
        state = state._replace(writes=rest)
        if write.kind == "claim":
            if state.claims[write.claim] != NONE:
                return state
            seen = state.seen_claims
            if write.ours:
                # Its answer counts until the watch shows it.
                seen = _set(seen, write.claim, write.target)
            return self._allocated(state, write.claim, write.target)._replace(seen_claims=seen)
        if not write.newest:
            return state._replace(seen=state.seen and not write.ours)
        if write.target != state.object or "real writes" not in self._without:
            stale = frozenset(w._replace(newest=False) if w.kind == "object" else w for w in rest)
            state = state._replace(object=write.target, writes=stale, seen=write.ours)
        if write.ours:
            for number, grant in ((0, state.units[0]), (POOL, state.pool)):
                if write.asked >> number & 1:
                    state = self._with(state, number, grant_stored(grant, 0, 0.0))
            if write.asked >> GUARD & 1:
                # The policy is looked at before the trial, so what changes from here on shows.
                missing = not state.policy and "proof" not in self._without
                state = self._with(state, GUARD, guard_stored(state.guard, 0, 0.0))
                state = state._replace(changed=missing)
        return state

    def _allocated(self, state: State, claim: int, device: int, *, loose: bool = False) -> State:
        others = {c for c, d in enumerate(state.claims) if c != claim and d != NONE}
        doubled = state.doubled or (bool(others - state.loose) and not loose)
        marked = state.loose | {claim} if loose and not state.late else state.loose
        return state._replace(claims=_set(state.claims, claim, device), doubled=doubled, loose=marked)

    def _surroundings(self, state: State) -> Iterator[State]:
        if state.applied != state.object:
            yield state._replace(applied=state.object)
        if state.applied_policy != state.policy:
            yield state._replace(applied_policy=state.policy)
        if not state.policy:
            yield state._replace(policy=True, changed=True)
            # What there is to notice is noticed in time.
            if not state.late and (not state.changed or "watch" in self._without):
                yield state._replace(late=True)
        elif state.left[GAPS]:
            yield _spent(state._replace(policy=False, changed=True), GAPS)
        if state.left[FREED]:
            for claim, device in enumerate(state.claims):
                if device != NONE:
                    freed = state._replace(
                        claims=_set(state.claims, claim, NONE), loose=state.loose - {claim}
                    )
                    yield _spent(freed, FREED)

    # --- kube-scheduler -------------------------------------------------------------------------------------

    def _scheduler(self, state: State) -> Iterator[State]:
        if state.sees_claims != state.claims:
            yield state._replace(sees_claims=state.claims)
        if state.sees_published != state.published:
            yield state._replace(sees_published=state.published)
        seen = [d for d in range(self._scenario.devices) if state.sees_published >> d & 1]
        known = {c for c, _, lives in state.decided if lives}
        counted = {d for _, d, lives in state.decided if lives} | set(state.sees_claims)
        if counted.isdisjoint(seen):
            for claim in {0, 1} - known:
                for device in seen:
                    yield state._replace(decided=state.decided | {(claim, device, True)})
        for decision in state.decided:
            yield self._bound(state, *decision)
        if state.left[RESTARTS] and known:
            gone = frozenset((c, d, False) for c, d, _ in state.decided)
            yield _spent(state._replace(decided=gone, sees_claims=state.claims), RESTARTS)

    def _bound(self, state: State, claim: int, device: int, lives: bool) -> State:
        """Handle kube-scheduler's write, which reads the claim again where it has changed."""
        state = state._replace(decided=state.decided - {(claim, device, lives)})
        if state.claims[claim] != NONE:
            return state
        granted = any(
            (content & EVERY and not content & KEPT << device) or (claim == 0 and content >> device & 1)
            for content in (state.object, state.applied)
        )
        gone = not (state.policy and state.applied_policy)
        if not (granted or gone or "policy" in self._without):
            return state
        sees = _set(state.sees_claims, claim, device) if lives else state.sees_claims
        loose = not granted and "policy" not in self._without
        return self._allocated(state, claim, device, loose=loose)._replace(sees_claims=sees)


def explore(scenario: Scenario, *, back: bool = False, most: int = 3_000_000) -> Explored[State]:
    """Try every order of the steps; see ``exploring.explore``."""
    world = ScenarioSteps(scenario)
    return exploring.explore(
        scenario.start(), world.steps, lambda state: state.doubled, is_quiet, back=back, most=most
    )


def _set(claims: tuple[int, ...], claim: int, device: int) -> tuple[int, ...]:
    return (*claims[:claim], device, *claims[claim + 1 :])


def _sent(state: State, write: Write) -> State:
    return state._replace(writes=state.writes | {write})


def _spent(state: State, what: int) -> State:
    left = list(state.left)
    left[what] -= 1
    a, b, c, d, e, f, g = left
    return state._replace(left=(a, b, c, d, e, f, g))
