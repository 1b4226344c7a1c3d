"""Pods whose claims are allocated all or none: the workers of one training job, say.

Members are pods of one namespace that carry, themselves or on a claim that they use, the labels
``dra-driver.dev/group`` (a name) and ``dra-driver.dev/group-size`` (their number), or those that others have
for that (``dra_driver.structured.groups.labels``), or that belong to one PodGroup with the policy ``gang``
(``minCount`` of them suffice, the others join). What holds:

* No member is allocated, and none loses its gate, before all are there and all fit at the same time. Of an
  elastic group (``dra-driver.dev/group-min``) so many suffice: as many as fit, the first ones, get devices,
  once no more of them have come for a second; the others as devices become free for them.
* A member with a scheduling gate of another controller counts as one that is not there yet.
* All allocations are decided in one step on one state of the cluster, so two groups never hold a part each.
* Where some are written and the rest cannot be (a refusal by the API server, a member that is deleted, a
  restart in between and no room afterwards), everything that members hold that are not bound is given back;
  where the rest is merely missing, after ``--group-timeout``. So it is where kube-scheduler cannot place a
  member (``controller.allocate.releasing.tentative``).
* Where some are bound already, they keep their devices. Those that are not bound keep theirs as well, or
  give them back (``dra-driver.dev/group-when-some-run``).
* A pod that takes the place of one that has failed (same labels) is allocated by itself as soon as the number
  of members is right again. Failed pods and pods that are being deleted do not count as members, pods that
  have succeeded do, but not in a PodGroup.
* With the annotation ``dra-driver.dev/group-domain`` all members go to nodes of one value of a label, or get
  devices of one value of an attribute; with a count, so many members each.
* Members are decided as one question (``allocate_group`` of ``dra_driver.structured``), unless they have
  claims of other drivers as well: those are decided one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.allocate.decide.groups.group_bounds import Crowd, crowds, state_of
from controller.allocate.decide.groups.group_members import (
    Gang,
    GroupFinder,
    GroupProblem,
    Standing,
    signature_of_group,
)
from controller.allocate.decide.groups.group_search import Asking, GroupSearch
from controller.allocate.decide.groups.wrong_groups import WrongGroups
from controller.allocate.decide.messages import (
    Decision,
    GroupMembers,
    GroupWrite,
    PodID,
    Proceed,
    Refuse,
    Settings,
    Wait,
)
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.signatures import signature_of
from controller.allocate.decide.pods.earlier_users import EarlierUsers
from controller.allocate.decide.pods.questions import NoFit
from controller.allocate.decide.pods.sharing import SharingPods
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.objects import (
    GroupKey,
    Objects,
    claims_of,
    is_finished,
)
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.scheduling import PodGroup
from dra_driver.resourceclaim import foreign_gates, held_by, is_gated
from dra_driver.structured import Budget, is_named_by_others
from dra_driver.trimming import unservable

__all__ = ["Gangs"]

_POLL_SECONDS: Final = 10.0
_WRITING_SECONDS: Final = 1.0
# Without another member of an elastic group, until it does with those that are there.
_GATHERING_SECONDS: Final = 1.0
# Kinds of members of which one each is looked at by itself.
_MOST_KINDS: Final = 8
# Claims of which is known who allocates them.
_MOST_KNOWN: Final = 10_000


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
        sharing: the pods that share claims.
        claims: what is taken.
        decider: for single pods.
        usage: while a group is tried, its members count where they would go.
        avoided: nodes that are left out for a pod at a time.
        earlier: pods that kube-scheduler looks at first.
        pod_group: gives a PodGroup, or says why it is not known.
    """

    def __init__(
        self,
        settings: Settings,
        pods: Objects[Pod],
        sharing: SharingPods,
        claims: ClaimView,
        decider: PodDecider,
        usage: NodeUsage,
        avoided: Callable[[Pod, float], Collection[str]],
        earlier: EarlierUsers,
        pod_group: Callable[[ObjectKey], PodGroup | str],
    ) -> None:
        self._timeout = settings.group_seconds
        self._pods = pods
        self._sharing = sharing
        self._claims = claims
        self._decider = decider
        self._avoided = avoided
        self._earlier = earlier
        self._search = GroupSearch(claims, decider, usage, avoided, earlier)
        self._finder = GroupFinder(
            pods.by_index, pods.count, claims.of_group, claims.get, pod_group, settings.group_labels
        )
        self._partial_since: dict[GroupKey, float] = {}
        self._wrong = WrongGroups(settings.group_seconds, pods, self.of)
        self._refused: dict[GroupKey, _Refused] = {}
        # Of elastic groups that have not started: their number of members, and since when it is that.
        self._gathered: dict[GroupKey, tuple[int, float]] = {}
        # Claims by whether kube-scheduler allocates them, and as of when.
        self._theirs: dict[str, bool] = {}
        self._theirs_at = -1

    # --- members --------------------------------------------------------------------------------------------

    def of(self, pod: Pod) -> Gang | GroupProblem | None:
        """Return the group of a pod; None where it has none.

        A pod whose claims kube-scheduler allocates is in no group by labels of others: it did not ask us to
        hold it back.
        """
        group = self._finder.of(pod)
        if group is None or not is_named_by_others(group.key[1]):
            return group
        self._refresh_owners()
        claims = self._claims_of(pod)
        return None if claims and all(map(self._is_theirs, claims)) else group

    def described(self, gang: Gang, decision: Decision) -> GroupMembers:
        """Return what an answer with this decision says about the group."""
        standing = self._standing(gang)
        written = {pod for pod, _ in decision.writes} if isinstance(decision, GroupWrite) else set[PodID]()
        allocated = len(standing.served) + len(written)
        held_back = allocated < gang.terms.least

        def waits(pod: Pod) -> bool:
            if pod.spec.node_name or is_finished(pod):
                return False
            if pod.metadata.uid in standing.served or _id(pod) in written:
                return held_back and is_gated(pod)
            return True

        return GroupMembers(
            *gang.key,
            size=gang.size,
            pods=tuple(map(_id, gang.members)),
            waiting=tuple(_id(p) for p in gang.members if waits(p)),
            allocated=allocated,
            running=len(standing.running),
            priority=gang.priority,
        )

    def _refresh_owners(self) -> None:
        version = self._decider.ownership_version
        if version != self._theirs_at or len(self._theirs) > _MOST_KNOWN:
            self._theirs, self._theirs_at = {}, version

    def _standing(self, gang: Gang) -> Standing:
        self._refresh_owners()
        return Standing.of(gang, self._claims.get, self._is_theirs)

    def _is_theirs(self, claim: ResourceClaim) -> bool:
        """Return whether kube-scheduler allocates a claim: each look at a member asks that about all."""
        uid = claim.metadata.uid
        known = self._theirs.get(uid)
        if known is None:
            known = self._theirs[uid] = self._decider.is_theirs(claim)
        return known

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        return [c for c in map(self._claims.get, claims_of(pod)) if c is not None]

    # --- what to do -----------------------------------------------------------------------------------------

    def decide(
        self, gang: Gang, pod: Pod, budget: Budget, changes: int, now: float
    ) -> Wait | Proceed | Refuse | GroupWrite:
        """Decide for all members on one state.

        Args:
            gang: the group.
            pod: the member that is looked at.
            budget: what the decision may cost, over all members, domains and orders together.
            changes: as for ``known_refusal``, which remembers the answer.
            now: the time.

        Returns:
            ``Proceed``: this member, and all that wait no longer, are allocated as far as it concerns us.
        """
        standing = self._standing(gang)
        held = self._held(standing)
        if not held:
            self._partial_since.pop(gang.key, None)
        if self._goes_on(pod, standing):
            # What kube-scheduler allocates counts as served, and may be ours again.
            return Proceed(theirs=any(c.status.allocation is None for c in self._claims_of(pod)))
        reason = self._missing(standing)
        if reason:
            return self._incomplete(gang, reason, held, now)
        if (left := self._gathering(standing, now)) > 0:
            there = f"{len(gang.members)} of {gang.terms.number} pods are there"
            return Wait(f"{gang.called}: {there}, and more may be coming", poll=left)
        if problem := self._member_problem(standing):
            return self._incomplete(gang, f"{gang.called}: {problem}", held, now, volumes=True)
        asking = Asking.of(standing)
        if any(self._claims.is_assumed(c) for p in asking.pods for c in self._claims_of(p)):
            # What they are about to have looks as if others had it.
            return Wait(f"{gang.called} is being allocated", poll=_WRITING_SECONDS)
        of = self._crowds(asking, budget)
        state = self._state(asking, of)
        known = self._refused.get(gang.key)
        if (
            known is not None
            and state is not None
            and known.still_holds(self._rests_on(standing, now), state)
        ):
            # Something has changed, but nothing that helps.
            self._refused[gang.key] = replace(known, changes=changes)
            return known.refusal
        answer = self._search.anywhere(asking, of, budget, now)
        for others in asking.others(self._signature) if isinstance(answer, NoFit) else ():
            found = self._search.anywhere(others, self._crowds(others, budget), budget, now)
            if isinstance(found, GroupWrite):
                answer = found
                break
        if isinstance(answer, NoFit):
            refusal = replace(
                self._refusal(gang, _text(asking, answer, held), answer.claims, held),
                new_node=answer.new_node and not answer.gave_up,
            )
            # What was given up may be answered the next time, although nothing has changed.
            if not (refusal.undo or budget.exhausted or budget.cut):
                rests_on = self._rests_on(standing, now)
                self._refused[gang.key] = _Refused(changes, rests_on, state, refusal)
            return refusal
        if held and isinstance(answer, GroupWrite) and self._time_left(gang, now) <= 0:
            return self._refusal(gang, f"{gang.called} was not allocated as a whole in time", (), held)
        if held and isinstance(answer, Wait) and not answer.poll:
            return self._incomplete(gang, answer.reason, held, now)  # a claim of a member is missing
        return answer

    def _member_problem(self, standing: Standing) -> str:
        """Return why a member can run nowhere because of its claims or volumes; empty where all can.

        What an elastic group can do without is left to the search.
        """
        for pod in () if standing.gang.terms.is_elastic else standing.pending:
            if why := unservable(pod) or self._decider.volume_needs(pod).problem:
                return f"pod {pod.metadata.name}: {why}"
        return ""

    def would_fit(self, gang: Gang, budget: Budget, now: float) -> GroupWrite | None:
        """Return what its members would be allocated as things are supposed to be; nothing is remembered."""
        standing = self._standing(gang)
        if self._missing(standing) or not standing.pending:
            return None
        asking = Asking.of(standing)
        answer = self._search.anywhere(asking, self._crowds(asking, budget), budget, now)
        return answer if isinstance(answer, GroupWrite) else None

    def known_refusal(self, gang: Gang, pod: Pod, changes: int, now: float) -> Refuse | None:
        """Return the answer of the last decision where it was a refusal that still holds.

        Each member of a group is looked at after each event of its own; only the first look costs a decision.

        Args:
            gang: the group.
            pod: the member that is looked at.
            changes: another number whenever something has changed that may help a group.
            now: the time.
        """
        known = self._refused.get(gang.key)
        if known is None or known.changes != changes:
            return None
        standing = self._standing(gang)
        if self._goes_on(pod, standing) or known.rests_on != self._rests_on(standing, now):
            return None
        return known.refusal

    def _goes_on(self, pod: Pod, standing: Standing) -> bool:
        """Return whether nothing holds a member back: it has its devices, and so have as many as it takes.

        What kube-scheduler has seen it may bind at any moment: the gate cannot be put back.
        """
        return pod.metadata.uid in standing.served and (standing.has_started or not is_gated(pod))

    def _missing(self, standing: Standing) -> str:
        """Return why too few members are there; empty if there are enough."""
        gang, least = standing.gang, standing.gang.terms.least
        if len(gang.members) < least:
            needed = f"{least}" if not gang.terms.is_elastic else f"at least {least}"
            running = f", {len(standing.running)} run" if standing.running else ""
            return f"{gang.called}: {len(gang.members)} of {needed} pods are there{running}"
        if len(standing.there) < least:
            waiting = [p for p in gang.members if foreign_gates(p)]
            return f"{gang.called}: {len(waiting)} of {len(gang.members)} pods are {held_by(waiting)}"
        return ""

    def _gathering(self, standing: Standing, now: float) -> float:
        """Return for how many seconds an elastic group waits for more members, which may be on their way.

        What is chosen for those that come first decides for the others.
        """
        gang, number = standing.gang, len(standing.there)
        if number >= gang.terms.size or standing.served:
            self._gathered.pop(gang.key, None)
            return 0.0
        known = self._gathered.get(gang.key)
        if known is None or known[0] != number:
            known = self._gathered[gang.key] = (number, now)
        return known[1] + _GATHERING_SECONDS - now

    # --- refusals that still hold ---------------------------------------------------------------------------

    def _rests_on(self, standing: Standing, now: float) -> object:
        """Return what a refusal depends on, besides the members' claims, which cannot change."""
        gang = standing.gang
        members = [
            (
                p.metadata.uid,
                p.metadata.uid in standing.served,
                p.metadata.uid in standing.running,
                p.spec.tolerations,
                bool(foreign_gates(p)),
                p.status.nominated_node_name,
                sorted(self._avoided(p, now)),
                [user._replace(nodes=frozenset(user.nodes)) for user in self._earlier.of(p, now)],
                self._decider.volume_needs(p),
            )
            for p in gang.members
        ]
        return gang.terms, members

    def _crowds(self, asking: Asking, budget: Budget) -> list[Crowd]:
        """Return the members that wait for devices, those of one signature together."""
        members = [(pod, self._claims_of(pod)) for pod in asking.standing.gang.members]
        return crowds(self._decider, members, {p.metadata.uid for p in asking.pods}, budget)

    def kinds(self, gang: Gang) -> list[Pod]:
        """Return one of the members that need devices of each kind, of a few kinds."""
        found: dict[bytes, Pod] = {}
        for pod in self._standing(gang).pending:
            found.setdefault(self._signature(pod), pod)
            if len(found) == _MOST_KINDS:
                break
        return list(found.values())

    def _signature(self, pod: Pod) -> bytes:
        """Return what a member asks for."""
        return signature_of(pod, self._claims_of(pod), ())

    def _state(self, asking: Asking, of: Sequence[Crowd]) -> object:
        """Return what a refusal rests on besides the members; None where that is not known."""
        if sum(crowd.number for crowd in of) < len(asking.pods):
            return None
        if any(level.attribute for level in asking.terms.levels):
            return None  # claims do not see it, so it is no part of the state of their room
        nodes = set[str]().union(*(crowd.nodes for crowd in of))
        state = state_of(of, self._search.domains(asking), self._decider.free(nodes, asking.pods))
        held = frozenset(self._search.held(asking).items())
        return None if state is None else (self._decider.ownership_version, held, state)

    # --- groups that are there in part ----------------------------------------------------------------------

    def _refusal(
        self, gang: Gang, message: str, claims: tuple[ResourceClaim, ...], undo: tuple[ResourceClaim, ...]
    ) -> Refuse:
        return Refuse(message, claims, undo, signature=signature_of_group(gang.key))

    def _incomplete(
        self,
        gang: Gang,
        reason: str,
        held: tuple[ResourceClaim, ...],
        now: float,
        *,
        volumes: bool = False,
    ) -> Wait | Refuse:
        if not held:
            # The pool may become ours again, and no event leads to a look at a pod that only waits.
            others = self._held(self._standing(gang), ours=False)
            return Wait(reason, _POLL_SECONDS if others else 0.0, volumes)
        left = self._time_left(gang, now)
        return Wait(reason, left, volumes) if left > 0 else self._refusal(gang, reason, (), held)

    def in_disorder(self, pod: Pod, problem: GroupProblem, now: float) -> Wait | tuple[ResourceClaim, ...]:
        """Return what a pod whose group is wrong gives back; ``Wait`` while it may keep that."""
        held = self._tentative(pod, {pod.metadata.uid}) if is_gated(pod) else ()
        return self._wrong.decide(pod, problem, held, now)

    def _time_left(self, gang: Gang, now: float) -> float:
        """Return the seconds for which a part of the group may go on holding devices."""
        return self._partial_since.setdefault(gang.key, now) + self._timeout - now

    def _held(self, standing: Standing, *, ours: bool = True) -> tuple[ResourceClaim, ...]:
        """Return the allocations that go where the group is not allocated as a whole: tentative ones.

        Those are without a reservation, of members that are not bound. Where others are bound, members that
        kube-scheduler has seen keep what they have, unless the group says otherwise.

        Args:
            standing: of the group.
            ours: only what is from pools that are this controller's to allocate from.
        """
        mine = {p.metadata.uid for p in standing.gang.members}
        found: dict[str, ResourceClaim] = {}
        for pod in standing.gang.members:
            uid = pod.metadata.uid
            stays = uid in standing.running or (standing.has_started and uid in standing.served)
            if stays or (standing.keeps and not is_gated(pod)):
                continue
            found.update((c.metadata.uid, c) for c in self._tentative(pod, mine, ours=ours))
        return tuple(found.values())

    def _tentative(self, pod: Pod, mine: Collection[str], *, ours: bool = True) -> tuple[ResourceClaim, ...]:
        """Return the claims of a pod that are allocated and not reserved; ``mine``: UIDs of the members."""
        return tuple(
            claim
            for claim in self._claims_of(pod)
            if (allocation := claim.status.allocation) is not None
            and not claim.status.reserved_for
            and not self._claims.is_assumed(claim)
            and not self._is_with_others(claim, mine)
            and (not ours or self._decider.is_ours(allocation))
        )

    def _is_with_others(self, claim: ResourceClaim, mine: Collection[str]) -> bool:
        """Return whether kube-scheduler may be placing a pod that is no member with a claim."""
        return any(p.metadata.uid not in mine for p in self._sharing.ungated(claim.key))

    def held_since(self, key: GroupKey) -> float | None:
        """Return since when a part of a group has been holding devices; None where none does."""
        return self._partial_since.get(key)

    def restore(self, key: GroupKey, since: float | None) -> None:
        """Note since when a part of a group has been holding devices, as far as there is the group."""
        if since is None:
            self._partial_since.pop(key, None)
        elif self._finder.members(key):
            self._partial_since[key] = since

    def forget(self, keys: Collection[GroupKey], pod: Pod) -> None:
        """Forget a pod, and what was decided for those of its groups that have no members any more."""
        self._wrong.forget(pod)
        known: tuple[dict[GroupKey, Any], ...] = (self._partial_since, self._refused, self._gathered)
        for key in keys:
            # Of groups that are none, with thousands of members, nothing is known.
            if any(key in of for of in known) and not self._finder.members(key):
                for of in known:
                    of.pop(key, None)


def _text(asking: Asking, answer: NoFit, undo: Sequence[ResourceClaim]) -> str:
    """Return why a group, or the rest of one, is refused, and what becomes of the devices that it has."""
    standing, terms = asking.standing, asking.terms
    who = standing.gang.called
    served, running = len(standing.served), len(standing.running)
    where = f" on nodes of one {asking.domain}" if asking.domain else ""
    if standing.has_started:
        text = f"{who}, {served} of {terms.number} pods have devices, {asking.least} more{where}"
    elif running:
        rest = f"the other {len(asking.pods)}{' together' * (len(asking.pods) > 1)}"
        if served > running and not undo:
            rest = f"{served - running} more have devices and keep them, {rest}"
        text = f"{who}, {running} of {terms.number} pods run, {rest}{where}"
    else:
        text = f"{who}, {'all ' if not terms.is_elastic else ''}{terms.number} pods together{where}"
    text = f"{text}: {answer.message}"
    return f"{text}; what its pods hold that do not run is given back" if undo else text


def _id(pod: Pod) -> PodID:
    return PodID(pod.key, pod.metadata.uid)
