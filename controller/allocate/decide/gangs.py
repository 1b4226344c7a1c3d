"""Pods whose claims are allocated all or none: the workers of one training job, say.

Members are pods of one namespace that carry, themselves or on a claim that they use, the labels
``dra-driver.dev/group`` (a name) and ``dra-driver.dev/group-size`` (their number). What holds:

* No member is allocated, and none loses its gate, before all are there and all fit at the same time.
* A member with a scheduling gate of another controller counts as one that is not there yet.
* All allocations are decided in one step on one state of the cluster, so two groups never hold a part each.
* Where some are written and the rest cannot be (a refusal by the API server, a member that is deleted, a
  restart in between and no room afterwards), everything that gated members hold is given back; where the rest
  is merely missing, after ``--group-timeout``.
* Once all are allocated, the group has started. A member that fails later leaves the others alone: they keep
  running and keep their devices. A pod that takes its place (same labels) is allocated by itself as soon as
  the number of members is right again. Failed pods and pods that are being deleted do not count as members,
  pods that have succeeded do.
* With the annotation ``dra-driver.dev/group-domain`` (``group_levels``) all members go to nodes of one value
  of a label, or get devices of one value of an attribute.
* Members are decided as one question (``allocate_group`` of ``dra_driver.structured``), unless they have
  claims of other drivers as well: those are decided one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from controller.allocate.decide.claims import ClaimView, node_of
from controller.allocate.decide.group_bounds import Crowd, crowds, missing_in, state_of
from controller.allocate.decide.group_levels import described, levels_of, node_sets
from controller.allocate.decide.messages import (
    GroupMembers,
    GroupWrite,
    PodID,
    Proceed,
    Refuse,
    Settings,
    Wait,
    Write,
)
from controller.allocate.decide.objects import CLAIM_INDEX, GROUP_INDEX, Objects, claims_of, is_finished
from controller.allocate.decide.placement import NodeUsage
from controller.allocate.decide.solving import NoFit, PodDecider, Question, Trial
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.resourceclaim import foreign_gates, held_by, is_gated
from dra_driver.structured import Budget, Failed, GroupRefused, Level

__all__ = ["LARGEST_GROUP", "Gang", "Gangs", "GroupKey", "GroupProblem", "signature_of_group"]

LARGEST_GROUP: Final = 1024
_POLL_SECONDS: Final = 10.0

GroupKey = tuple[str, str]


def signature_of_group(key: GroupKey) -> bytes:
    """Return what makes all members of a group wait together."""
    return "/".join(("group", *key)).encode()


def _label(meta: ObjectMeta, key: str) -> str:
    return (meta.labels or {}).get(key, "")


@dataclass(frozen=True, slots=True)
class Gang:
    """A group as it is now.

    Attributes:
        key: namespace and name.
        size: number of members that there must be.
        members: that count, in the order of their names.
        levels: of topology that the group shares.
    """

    key: GroupKey
    size: int
    members: tuple[Pod, ...]
    levels: tuple[Level, ...] = ()

    @property
    def domain(self) -> str:
        """The levels that all members must share, for people; empty if there is none."""
        return described(self.levels)

    def described(self) -> GroupMembers:
        """Return what the answer says about the group."""
        return GroupMembers(*self.key, self.size, tuple(map(_id, self.members)))


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """Labels that make no sense together."""

    key: GroupKey
    message: str


@dataclass(frozen=True, slots=True)
class _Refused:
    """A refusal, and on what it rests: while that is the same, so is the answer.

    Attributes:
        changes: how many changes there were that may help any group.
        rests_on: what it rests on of the members.
        state: what it rests on of nodes and devices; if None, that is not known.
    """

    changes: int
    rests_on: object
    state: object
    refusal: Refuse

    def still_holds(self, rests_on: object, state: object) -> bool:
        return self.state == state and self.rests_on == rests_on


class Gangs:
    """Finds the members of groups and decides for all of them.

    Args:
        settings: how long a part of a group may hold devices.
        pods: with the indices ``CLAIM_INDEX`` and ``GROUP_INDEX``.
        claims: what is taken.
        decider: for single pods.
        usage: while a group is tried, its members count where they would go.
        avoided: nodes that are left out for a pod at a time.
    """

    def __init__(
        self,
        settings: Settings,
        pods: Objects[Pod],
        claims: ClaimView,
        decider: PodDecider,
        usage: NodeUsage,
        avoided: Callable[[Pod, float], Collection[str]],
    ) -> None:
        self._timeout = settings.group_seconds
        self._pods = pods
        self._claims = claims
        self._decider = decider
        self._usage = usage
        self._avoided = avoided
        self._partial_since: dict[GroupKey, float] = {}
        self._refused: dict[GroupKey, _Refused] = {}

    # --- members --------------------------------------------------------------------------------------------

    def of(self, pod: Pod) -> Gang | GroupProblem | None:
        """Return the group of a pod; None where it has none."""
        metas = [pod.metadata, *(c.metadata for c in self._claims_of(pod))]
        names = sorted({_label(m, GROUP_LABEL) for m in metas} - {""})
        if not names:
            return None
        key = (pod.metadata.namespace, names[0])
        if self._pods.count(GROUP_INDEX, key) > LARGEST_GROUP:
            return GroupProblem(key, f"group {key[1]} has more than {LARGEST_GROUP} pods")
        if len(names) > 1:
            return GroupProblem(key, f"the pod and its claims name several groups: {', '.join(names)}")
        members = self._members(key)
        sizes = {
            size
            for member in members
            for m in (member.metadata, *(c.metadata for c in self._claims_of(member)))
            if (size := _label(m, GROUP_SIZE_LABEL))
        }
        if len(sizes) != 1:
            found = ", ".join(sorted(sizes)) or "nothing"
            return GroupProblem(
                key, f"group {key[1]}: its members need one {GROUP_SIZE_LABEL}; they say {found}"
            )
        text = sizes.pop()
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST_GROUP:
            return GroupProblem(
                key, f"group {key[1]}: {GROUP_SIZE_LABEL} is {text!r}, expected 1 to {LARGEST_GROUP}"
            )
        if len(members) > int(text):
            return GroupProblem(
                key, f"group {key[1]} has {len(members)} pods, its {GROUP_SIZE_LABEL} is {text}"
            )
        domains = {
            domain
            for member in members
            for m in (member.metadata, *(c.metadata for c in self._claims_of(member)))
            if (domain := (m.annotations or {}).get(GROUP_DOMAIN_ANNOTATION, ""))
        }
        if len(domains) > 1:
            found = ", ".join(sorted(domains))
            return GroupProblem(
                key, f"group {key[1]}: its members name several {GROUP_DOMAIN_ANNOTATION}: {found}"
            )
        levels = levels_of(domains.pop()) if domains else ()
        if isinstance(levels, str):
            return GroupProblem(key, f"group {key[1]}: {GROUP_DOMAIN_ANNOTATION}: {levels}")
        return Gang(key, int(text), members, levels)

    def _members(self, key: GroupKey) -> tuple[Pod, ...]:
        found = {p.key: p for p in self._pods.by_index(GROUP_INDEX, key)}
        for claim in self._claims.of_group(key):
            found.update((p.key, p) for p in self._pods.by_index(CLAIM_INDEX, claim.key))
        return tuple(
            p
            for _, p in sorted(found.items())
            if p.status.phase != "Failed" and not p.metadata.deletion_timestamp
        )

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        return [c for c in map(self._claims.get, claims_of(pod)) if c is not None]

    # --- what to do -----------------------------------------------------------------------------------------

    def decide(
        self, gang: Gang, budget: Budget, changes: int, now: float
    ) -> Wait | Proceed | Refuse | GroupWrite:
        """Decide for all members on one state.

        Args:
            gang: the group.
            budget: what the decision may cost, over all members, domains and orders together.
            changes: as for ``known_refusal``, which remembers the answer.
            now: the time.

        Returns:
            ``Proceed``: every member is allocated as far as it concerns us. ``Wait``, ``Refuse``: for all.
        """
        missing = gang.size - len(gang.members)
        if missing > 0:
            reason = f"group {gang.key[1]}: {len(gang.members)} of {gang.size} pods are there"
            return self._incomplete(gang, reason, now)
        waiting = [p for p in gang.members if foreign_gates(p)]
        if waiting:
            reason = f"group {gang.key[1]}: {len(waiting)} of {gang.size} pods are {held_by(waiting)}"
            return self._incomplete(gang, reason, now)
        of = self._crowds(gang, budget)
        state = self._state(gang, of)
        known = self._refused.get(gang.key)
        if known is not None and state is not None and known.still_holds(self._rests_on(gang, now), state):
            # Something has changed, but nothing that helps.
            self._refused[gang.key] = replace(known, changes=changes)
            return known.refusal
        answer = self._anywhere(gang, of, budget, now)
        if isinstance(answer, NoFit):
            where = f" on nodes of one {gang.domain}" if gang.domain else ""
            text = f"group {gang.key[1]}, all {gang.size} pods together{where}: {answer.message}"
            refusal = self._refusal(gang, text, answer.claims, self._held(gang))
            # What was given up may be answered the next time, although nothing has changed.
            if not (refusal.undo or budget.exhausted or budget.cut):
                rests_on = self._rests_on(gang, now)
                self._refused[gang.key] = _Refused(changes, rests_on, state, refusal)
            return refusal
        held = self._held(gang) if isinstance(answer, GroupWrite) else ()
        if held and self._time_left(gang, now) <= 0:
            return self._refusal(gang, f"group {gang.key[1]} was not allocated as a whole in time", (), held)
        if not held and not isinstance(answer, Wait):
            self._partial_since.pop(gang.key, None)
        return answer

    def would_fit(self, gang: Gang, budget: Budget, now: float) -> GroupWrite | None:
        """Return what its members would be allocated as things are supposed to be; nothing is remembered."""
        if len(gang.members) < gang.size or any(foreign_gates(p) for p in gang.members):
            return None
        answer = self._anywhere(gang, self._crowds(gang, budget), budget, now)
        return answer if isinstance(answer, GroupWrite) else None

    def known_refusal(self, gang: Gang, changes: int, now: float) -> Refuse | None:
        """Return the answer of the last decision where it was a refusal that still holds.

        Each member of a group is looked at after each event of its own; only the first look costs a decision.

        Args:
            gang: the group.
            changes: another number whenever something has changed that may help a group.
            now: the time.
        """
        known = self._refused.get(gang.key)
        if known is not None and known.changes == changes and known.rests_on == self._rests_on(gang, now):
            return known.refusal
        return None

    def _rests_on(self, gang: Gang, now: float) -> object:
        """Return what a refusal depends on, besides the members' claims, which cannot change."""
        members = [
            (
                p.metadata.uid,
                p.spec.tolerations,
                bool(foreign_gates(p)),
                p.status.nominated_node_name,
                sorted(self._avoided(p, now)),
            )
            for p in gang.members
        ]
        return gang.size, gang.levels, members

    def _crowds(self, gang: Gang, budget: Budget) -> list[Crowd]:
        """Return the members that wait for devices, those of one signature together."""
        return crowds(self._decider, [(pod, self._claims_of(pod)) for pod in gang.members], budget)

    def _state(self, gang: Gang, of: Sequence[Crowd]) -> object:
        """Return what a refusal rests on besides the members; None where that is not known."""
        if sum(crowd.number for crowd in of) < sum(not is_finished(p) for p in gang.members):
            return None
        if any(level.attribute for level in gang.levels):
            return None  # claims do not see it, so it is no part of the state of their room
        nodes = set[str]().union(*(crowd.nodes for crowd in of))
        state = state_of(of, self._domains(gang), self._decider.free(nodes, gang.members))
        return None if state is None else (self._decider.ownership_version, state)

    # --- the search -----------------------------------------------------------------------------------------

    def _anywhere(
        self, gang: Gang, of: Sequence[Crowd], budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Return the answer in the best domain, if it is known to have devices enough."""
        domains = missing_in(of, self._domains(gang))
        if not domains:
            return NoFit(f"no node has the label {gang.domain}")
        fitting = [nodes for nodes, missing in domains if not missing]
        if not fitting:
            return self._too_little_room(gang, min(missing for _, missing in domains))
        asked: list[tuple[Pod, Question]] = []
        for pod in gang.members:
            if is_finished(pod):
                continue
            found = self._decider.question(pod, self._avoided(pod, now))
            if isinstance(found, Wait | NoFit):
                return found
            if isinstance(found, Question):
                if not found.placement.nodes:
                    return NoFit(found.placement.summary(), found.ours)
                asked.append((pod, found))
        if any(question.with_others for _, question in asked):
            return self._one_by_one(gang, fitting, budget, now)
        return self._together(gang, asked, fitting, budget) if asked else Proceed()

    def _together(
        self,
        gang: Gang,
        asked: Sequence[tuple[Pod, Question]],
        fitting: Sequence[set[str] | None],
        budget: Budget,
    ) -> NoFit | GroupWrite:
        """Decide for all members that ask for something as one question."""
        within = None if None in fitting else set[str]().union(*(nodes for nodes in fitting if nodes))
        # One object for all members that can go to the same nodes: by that they are known to be alike.
        allowed: dict[int, Set[str]] = {}
        for _, question in asked:
            nodes = question.placement.nodes
            if id(nodes) not in allowed:
                allowed[id(nodes)] = nodes if within is None else nodes & within
        outcome = self._decider.solve_group(
            [(pod, question, allowed[id(question.placement.nodes)]) for pod, question in asked],
            self._pinned(gang),
            budget,
        )
        waiting = tuple({c.metadata.uid: c for _, q in asked for c in q.ours}.values())
        if isinstance(outcome, GroupRefused):
            return NoFit(outcome.summary, waiting)
        if isinstance(outcome, Failed):
            return NoFit(outcome.message, waiting, gave_up=outcome.gave_up)
        left = {c.metadata.uid for c in waiting}
        writes: list[tuple[PodID, Write]] = []
        for (pod, question), answer in zip(asked, outcome.members, strict=True):
            assert answer is not None
            # A claim that members share is written with the first of them.
            results = zip(question.claims, answer.results, strict=True)
            mine = tuple((c, r) for c, r in results if c.metadata.uid in left)
            left -= {c.metadata.uid for c, _ in mine}
            if mine:
                writes.append((_id(pod), Write(answer.node, mine)))
        return GroupWrite(tuple(writes))

    def _one_by_one(
        self, gang: Gang, fitting: Sequence[set[str] | None], budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Decide for the members one after the other: some have claims of other drivers as well.

        Their nodes must suit those, which is known for single pods only.
        """
        answer: Wait | Proceed | NoFit | GroupWrite = Proceed()
        attribute = next((at.name for at in gang.levels if at.attribute and at.required), "")
        if attribute:
            return NoFit(
                f"members with claims of other drivers cannot be asked to share {attribute} of devices"
            )
        by_demand = self._by_demand(gang.members)
        orders = (by_demand,) if by_demand == gang.members else (by_demand, gang.members)
        for within in fitting:
            for order in orders:
                answer = self._try(order, within, budget, now)
                if not isinstance(answer, NoFit) or budget.exhausted:
                    return answer
        return answer

    def _too_little_room(self, gang: Gang, missing: int) -> NoFit:
        """Return the refusal where no domain has enough devices, ``missing`` in the best one."""
        where = f"no nodes of one {gang.domain} have" if gang.domain else "the cluster does not have"
        waiting = tuple(
            c for pod in gang.members for c in self._claims_of(pod) if c.status.allocation is None
        )
        return NoFit(
            f"{where} free devices for all of them, at best for all but {missing}",
            tuple({c.metadata.uid: c for c in waiting}.values()),
        )

    def _domains(self, gang: Gang) -> list[set[str] | None]:
        """Return sets of nodes of which one must hold the group, smallest first; None for all nodes."""
        if not gang.levels:
            return [None]
        return node_sets(gang.levels, self._decider.labels(), self._held_nodes(gang))

    def _held_nodes(self, gang: Gang) -> set[str]:
        """Return the nodes of members that run already, or whose allocation was written before."""
        nodes = map(node_of, self._allocations(gang))
        return {node for node in nodes if node is not None}

    def _allocations(self, gang: Gang) -> list[AllocationResult]:
        claims = (claim for pod in gang.members for claim in self._claims_of(pod))
        return [claim.status.allocation for claim in claims if claim.status.allocation is not None]

    def _pinned(self, gang: Gang) -> list[Level]:
        """Return the levels, with their domains where members hold something already: they decide."""
        held = self._held_nodes(gang)
        if not held:
            return list(gang.levels)
        labels = self._decider.labels()
        found: list[Level] = []
        for level in gang.levels:
            values = {labels.get(node, {}).get(level.label, "") for node in held}
            if level.attribute:
                values = self._decider.attribute_values(self._allocations(gang), level.attribute)
            found.append(replace(level, value=values.pop()) if len(values) == 1 else level)
        return found

    def _refusal(
        self, gang: Gang, message: str, claims: tuple[ResourceClaim, ...], undo: tuple[ResourceClaim, ...]
    ) -> Refuse:
        return Refuse(message, claims, undo, signature=signature_of_group(gang.key))

    def _incomplete(self, gang: Gang, reason: str, now: float) -> Wait | Refuse:
        held = self._held(gang)
        if not held:
            self._partial_since.pop(gang.key, None)
            # The pool may become ours again, and no event leads to a look at a pod that only waits.
            return Wait(reason, poll=_POLL_SECONDS if self._held(gang, ours=False) else 0.0)
        left = self._time_left(gang, now)
        return Wait(reason, poll=left) if left > 0 else self._refusal(gang, reason, (), held)

    def _time_left(self, gang: Gang, now: float) -> float:
        """Return the seconds for which a part of the group may go on holding devices."""
        return self._partial_since.setdefault(gang.key, now) + self._timeout - now

    def _held(self, gang: Gang, *, ours: bool = True) -> tuple[ResourceClaim, ...]:
        """Return what members that have not started hold: allocations without a reservation.

        Args:
            gang: the group.
            ours: only what is from pools that are this controller's to allocate from.
        """
        return tuple(
            {
                claim.metadata.uid: claim
                for pod in gang.members
                if is_gated(pod)
                for claim in self._claims_of(pod)
                if claim.status.allocation is not None
                and not claim.status.reserved_for
                and not self._claims.is_assumed(claim)
                and (not ours or self._decider.is_ours(claim.status.allocation))
            }.values()
        )

    def held_since(self, key: GroupKey) -> float | None:
        """Return since when a part of a group has been holding devices; None where none does."""
        return self._partial_since.get(key)

    def restore(self, key: GroupKey, since: float | None) -> None:
        """Note since when a part of a group has been holding devices, as far as there is the group."""
        if since is None:
            self._partial_since.pop(key, None)
        elif self._members(key):
            self._partial_since[key] = since

    def forget(self, key: GroupKey) -> None:
        """Forget what was decided for a group that has no members any more."""
        if not self._members(key):
            self._partial_since.pop(key, None)
            self._refused.pop(key, None)

    def _by_demand(self, members: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return the members, those that ask for most first: the others can use what is left over."""

        def demand(pod: Pod) -> int:
            return sum(
                (r.exactly.count or 8) if r.exactly is not None else 1
                for claim in self._claims_of(pod)
                for r in claim.spec.devices.requests or ()
            )

        return tuple(sorted(members, key=lambda p: (-demand(p), p.key)))

    def _try(
        self, members: Sequence[Pod], within: set[str] | None, budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Decide for the members in this order, each as if the answers before it had been written."""
        writes: list[tuple[Pod, Write]] = []
        trial = Trial(self._decider.taken)
        with self._usage.placing() as place:
            for pod in members:
                if is_finished(pod):
                    continue
                avoid = self._avoided(pod, now)
                decision = self._decider.decide(pod, budget, avoid, trial=trial, within=within)
                if isinstance(decision, Wait | NoFit):
                    return decision
                if isinstance(decision, Write):
                    writes.append((pod, decision))
                    trial.add(decision)
                    place(pod, decision.node)
        return GroupWrite(tuple((_id(pod), write) for pod, write in writes)) if writes else Proceed()


def _id(pod: Pod) -> PodID:
    return PodID(pod.key, pod.metadata.uid)
