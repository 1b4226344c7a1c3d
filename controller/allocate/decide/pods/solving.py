"""Decides, for one pod, what is to be done about its claims.

The claims of a pod are solved together, so that a pod never holds a part of what it needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache

from controller.allocate.decide.messages import Proceed, Settings, Wait, Write
from controller.allocate.decide.nodes.placement import FreeRoom, Placements
from controller.allocate.decide.pods.earlier_users import EarlierUser
from controller.allocate.decide.pods.granting import Granting, GrantTerms
from controller.allocate.decide.pods.questions import (
    NoFit,
    PodDecision,
    Question,
    Trial,
    claims_for,
    first_problem,
    why_behind,
    why_nominated,
)
from controller.allocate.decide.pods.sharing import SharingPods
from controller.allocate.decide.state.claims import ClaimView, node_of
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import Objects, claims_of
from controller.allocate.decide.state.ownership import ClaimOwnership
from controller.allocate.decide.state.usable_pools import PoolTerms, UsablePools
from dra_driver.api.core import Pod
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.fleet import RequestShape, ShapeCount, count_shapes
from dra_driver.nodefit.volumes import VolumeNeeds
from dra_driver.ownership import PoolID, is_controller_taint
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Budget,
    DoesNotFit,
    Failed,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Outcome,
    PoolPolicy,
    Room,
    Snapshot,
    allocate,
    allocate_group,
    prepare,
    room,
)
from dra_driver.structured.matching.constraints import attribute_of
from dra_driver.trimming import unservable

__all__ = ["PodDecider"]

_NO_GRANT = GrantTerms()
_NOT_GRANTED = (
    "; devices are granted to kube-scheduler for single pods without a node, not for members of a group"
)


class PodDecider:
    """Decisions for single pods, on the cluster, the claims and the pools as they are now.

    Args:
        settings: drivers, and the policy of pools that none was named for.
        cluster: slices, classes and nodes.
        claims: what is taken.
        pods: with the index ``CLAIM_INDEX``.
        sharing: the pods that share claims.
        placements: where pods can go.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterState,
        claims: ClaimView,
        pods: Objects[Pod],
        sharing: SharingPods,
        placements: Placements,
    ) -> None:
        self._pools = UsablePools(settings.policy)
        self._cluster = cluster
        self._claims = claims
        self._sharing = sharing
        self._placements = placements
        self._granting = Granting(cluster, claims, placements, pods) if settings.grants else None
        # What is taken for the question at hand, where it is not what the claims hold.
        self._supposed: AllocatedState | None = None

    @contextlib.contextmanager
    def supposing(self, taken: AllocatedState) -> Iterator[None]:
        """Decide in the block as if this were taken."""
        self._supposed = taken
        try:
            yield
        finally:
            self._supposed = None

    @property
    def taken(self) -> AllocatedState:
        """What is taken for the question at hand."""
        return self._claims.allocated if self._supposed is None else self._supposed

    def set_pool(self, pool: PoolID, *, blocked: bool, policy: PoolPolicy) -> None:
        """Take in what the publishing side says about a pool."""
        self._pools.set(pool, blocked=blocked, policy=policy)

    @property
    def terms(self) -> PoolTerms:
        """Which pools may be used."""
        self._current()
        return self._pools.terms

    def refresh(self) -> None:
        """Take in what has changed; questions do the same."""
        self._current()

    def _current(self) -> ClusterState:
        cluster, before = self._cluster, self._cluster.snapshot
        changed = self._pools.update(cluster, cluster.refresh())
        if not changed and cluster.snapshot is before:
            return cluster
        # What nodes are is not for the pod to pay that happens to be asked about first.
        prepare(cluster.snapshot.with_allocated(self._claims.allocated), self._pools.ours)
        return cluster

    def _snapshot(self, trial: Trial | None) -> Snapshot:
        taken = self.taken if trial is None else trial.allocated
        return self._current().snapshot.with_allocated(taken)

    # --- pools and nodes ------------------------------------------------------------------------------------

    @property
    def ownership_version(self) -> int:
        """Another number whenever the allocator that serves some claim may have changed."""
        return self._current().ownership.version

    def are_ours(self, pools: Collection[PoolID]) -> bool:
        """Return whether every pool is this controller's to allocate from."""
        self._current()
        return all(pool in self._pools.ours for pool in pools)

    def is_ours(self, allocation: AllocationResult) -> bool:
        """Return whether every device of an allocation is from a pool of ours, and none is granted."""
        results = [(PoolID(r.driver, r.pool), r) for r in allocation.devices.results]
        granted = self._cluster.granted
        return self.are_ours([pool for pool, _ in results]) and not any(
            r.device in granted(pool) and not r.admin_access for pool, r in results
        )

    def labels(self) -> dict[str, Mapping[str, str]]:
        """Return the labels of each node."""
        nodes = self._current().snapshot.nodes
        return {name: node.metadata.labels or {} for name, node in nodes.items()}

    def labels_of(self, node: str) -> Mapping[str, str]:
        """Return the labels of a node; none if it is not there."""
        found = self._current().snapshot.nodes.get(node)
        return (found.metadata.labels or {}) if found is not None else {}

    def _concerns_us(self, claim: ResourceClaim) -> bool:
        """Return whether a claim holds, or needs, devices of ours."""
        if claim.status.allocation is not None:
            return self.is_ours(claim.status.allocation)
        return self._current().ownership.claim(claim).ownership in (ClaimOwnership.OURS, ClaimOwnership.MIXED)

    def is_theirs(self, claim: ResourceClaim) -> bool:
        """Return whether kube-scheduler allocates a claim."""
        return self._current().ownership.claim(claim).ownership is ClaimOwnership.KUBE_SCHEDULER

    def attribute_values(self, allocations: Iterable[AllocationResult], name: str) -> set[str]:
        """Return the values that allocated devices have for a qualified attribute of strings."""
        index = self._current().snapshot.index
        found: set[str] = set()
        for result in (r for a in allocations for r in a.devices.results):
            for entry in index.devices(PoolID(result.driver, result.pool)):
                if entry.id.device == result.device:
                    of = attribute_of(entry.device, entry.id.driver, name)
                    if of is not None and of.string_value is not None:
                        found.add(of.string_value)
        return found

    def room(self, pod: Pod, budget: Budget) -> Room | None:
        """Return the room for pods like this one; None if nothing is known beforehand."""
        claims = self._claims_of(pod, None)
        if isinstance(claims, Wait) or any(c.status.allocation is not None for c in claims):
            return None
        owners = [self._current().ownership.claim(c).ownership for c in claims]
        if not owners or any(owner is not ClaimOwnership.OURS for owner in owners):
            return None
        return room(
            self._snapshot(None),
            claims,
            ignore_taint=is_controller_taint,
            pools=self._pools.ours,
            budget=budget,
        )

    def shapes_state(self) -> tuple[object, ...]:
        """Return what the counts of request shapes rest on; compared by identity, since its parts are."""
        return (self._current().snapshot, self._claims.allocated, self._pools.ours)

    def prepare_shapes(self, shapes: Sequence[RequestShape], budget: Budget) -> None:
        """Build what counting request shapes needs, which a copy of the process could not keep.

        Raises:
            IndexUnfinished: the budget is not enough; the next call goes on.
        """
        snapshot, pools = self._snapshot(None), self._pools.ours
        for shape in shapes:
            room(snapshot, (shape.claim(),), ignore_taint=is_controller_taint, pools=pools, budget=budget)

    def count_shapes(
        self, shapes: Sequence[RequestShape], budget: Callable[[], Budget]
    ) -> tuple[ShapeCount, ...]:
        """Count request shapes in our pools, beside everything that is allocated or assumed."""
        return count_shapes(
            self._snapshot(None),
            shapes,
            ignore_taint=is_controller_taint,
            pools=self._pools.ours,
            budget=budget,
        )

    def beside(self, pod: Pod) -> bytes:
        """Return what decides where a pod may go beside other pods: the same for pods that it holds for."""
        return self._placements.beside(pod)

    def nodes_for(self, pod: Pod) -> Set[str]:
        """Return the nodes that can take the pod, as far as devices do not matter."""
        return self._placements.candidates(pod).nodes & self._current().snapshot.nodes.keys()

    def volume_needs(self, pod: Pod) -> VolumeNeeds:
        """Return what the volumes of a pod ask of a node, as far as that is looked at."""
        return self._placements.volume_needs(pod)

    def volumes_suit(self, pod: Pod, node: str) -> bool:
        """Return whether the volumes of a pod can be used on a node, beside those of all others."""
        return self._placements.volumes_suit(pod, node)

    def free(self, nodes: Collection[str], pods: Sequence[Pod]) -> FreeRoom:
        """Return what is left of nodes besides devices for some pods, which do not count there yet."""
        return self._placements.free(nodes, pods)

    def decide(
        self,
        pod: Pod,
        budget: Budget,
        avoid: Collection[str] = (),
        *,
        earlier: Iterable[EarlierUser] = (),
        trial: Trial | None = None,
        within: Set[str] | None = None,
        terms: GrantTerms = _NO_GRANT,
    ) -> PodDecision:
        """Decide what to do about a pod that uses claims and is neither finished nor being deleted.

        Args:
            pod: the pod.
            budget: what the decision may cost, together with others that share it.
            avoid: nodes that are left out.
            earlier: pods that kube-scheduler looks at first, and that share claims with this one.
            trial: what is taken when other pods of its group are allocated; if None, what is taken now.
            within: only these nodes.
            terms: what decides about granting devices to the pod.
        """
        granting = self._granting if trial is None and within is None and not pod.spec.node_name else None
        if granting is not None:
            granted = self._grant(granting, pod, budget, avoid, terms)
            if granted is not None:
                return granted
        question = self.question(pod, avoid, earlier=earlier, trial=trial)
        if isinstance(question, Wait) and trial is None:
            return self._without_a_claim(pod) or question
        if not isinstance(question, Question):
            return question
        claims, placement = question.claims, question.placement
        decision: NoFit | None = None
        # Nodes where kube-scheduler would have to evict pods come second, and never for members of a group.
        for found in (placement.nodes, placement.evicting if trial is None else frozenset[str]()):
            nodes = found if within is None else within & found
            if not nodes or budget.exhausted:
                continue
            answer = self._solve(pod, question, nodes, trial, budget)
            if isinstance(answer, Write):
                if granting is None or nodes is not placement.nodes:
                    return answer
                asked = (pod, question, self._snapshot(None), self._pools)
                return granting.instead(*asked, budget=budget, terms=terms) or answer
            gave_up = answer.gave_up or (decision is not None and decision.gave_up)
            decision = replace(decision or answer, gave_up=gave_up)
        if decision is None:
            decision = NoFit(placement.summary(), question.ours, self._undo(pod, claims), new_node=True)
        pending = [c for c in claims if c.status.allocation is None]
        if all(self._current().ownership.claim(c).elsewhere for c in pending) and self._fit_elsewhere(
            pending, trial, budget
        ):
            return replace(decision, elsewhere=True)
        return decision

    def _grant(
        self, granting: Granting, pod: Pod, budget: Budget, avoid: Collection[str], terms: GrantTerms
    ) -> PodDecision | None:
        """Return what is granted to a pod; None where kube-scheduler need not allocate anything of ours."""
        claims = self._claims_of(pod, None)
        if isinstance(claims, Wait) or unservable(pod) or any(c.left_out for c in claims):
            return None
        snapshot = self._snapshot(None)
        return granting.decide(pod, claims, snapshot, self._pools, avoid=avoid, budget=budget, terms=terms)

    def question(
        self,
        pod: Pod,
        avoid: Collection[str] = (),
        *,
        earlier: Iterable[EarlierUser] = (),
        trial: Trial | None = None,
    ) -> Question | PodDecision:
        """Return what a pod asks for, or what is decided without looking for devices; as for ``decide``."""
        claims = self._claims_of(pod, trial)
        if isinstance(claims, Wait):
            return claims
        pending = [c for c in claims if c.status.allocation is None]
        if problem := unservable(pod):
            # Nothing is deallocated for that: other pods may share its claims and be able to run.
            concerned = tuple(filter(self._concerns_us, claims))
            if concerned and not (pod.spec.node_name and not pending):
                return NoFit(problem, concerned)
        if not pending:
            held = (node_of(c.status.allocation) for c in claims if c.status.allocation is not None)
            return Proceed(next((node for node in held if node is not None), None))
        owned = [self._current().ownership.claim(c) for c in pending]
        problem = first_problem(owned)
        ours = [c for c, i in zip(pending, owned, strict=True) if i.ownership is ClaimOwnership.OURS]
        if all(i.ownership is ClaimOwnership.KUBE_SCHEDULER for i in owned):
            return Proceed(theirs=True)
        if not ours and not problem:
            # The rest is kube-scheduler's, but it must not see the pod before another controller is done.
            return Wait("another controller allocates a claim of the pod", poll=10.0)
        if problem:
            if self._granting is not None and any(i.ownership is ClaimOwnership.MIXED for i in owned):
                problem += _NOT_GRANTED
            return NoFit(problem, tuple(filter(self._concerns_us, pending)))
        if why := self._placements.volume_needs(pod).problem:
            undo = self._undo(pod, claims)
            return NoFit(why, tuple(ours), undo) if undo else Wait(why, volumes=True)
        if any(map(self._claims.is_assumed, claims)):
            return Wait("a claim of the pod is being allocated for another pod", poll=1.0)
        placement = self._placements.candidates(pod, avoid)
        nominated = {} if pod.spec.node_name else self._sharing.nominated(c.key for c in pending)
        if nominated:
            only = nominated.keys() if len(nominated) == 1 else frozenset[str]()
            placement = replace(placement, nodes=placement.nodes & only, evicting=placement.evicting & only)
            if not (placement.nodes or placement.evicting):
                return NoFit(why_nominated(nominated), tuple(ours), self._undo(pod, claims))
        keys = {c.key for c in pending}
        for user in earlier:
            nodes = user.goes_along(keys, placement.nodes)
            placement = replace(placement, nodes=nodes, evicting=user.goes_along(keys, placement.evicting))
            if not (nodes or placement.evicting):
                return NoFit(why_behind(user), tuple(ours), self._undo(pod, claims))
        return Question(tuple(claims), tuple(ours), len(pending) > len(ours), placement)

    def solve_group(
        self,
        members: Sequence[tuple[Pod, Question, Set[str]]],
        levels: Sequence[Level],
        least: int,
        budget: Budget,
    ) -> GroupAllocated | GroupRefused | Failed:
        """Find nodes and devices for pods that have claims of this controller only, or for none.

        Args:
            members: with what they ask for, and the nodes that they may go to.
            levels: of topology that they share.
            least: how many of them suffice, the first ones.
            budget: what the answer may cost.
        """
        nodes: set[str] = set()
        for allowed in {id(n): n for _, _, n in members}.values():
            nodes |= allowed
        free = self.free(nodes, [pod for pod, _, _ in members])
        return allocate_group(
            self._snapshot(None),
            [GroupMember(q.claims, n, free.needs(pod)) for pod, q, n in members],
            levels=levels,
            least=least,
            free=free.nodes,
            ignore_taint=is_controller_taint,
            pools=self._pools.ours,
            withheld=self._pools.withheld,
            budget=budget,
        )

    def looks_free(self, pod: Pod, budget: Budget, avoid: Collection[str]) -> bool:
        """Return whether devices of open pools that no claim has would serve a pod by itself.

        Whatever computes with slices takes them for free, also where they are set aside for others, or of no
        use to its group. What is granted to a pod is about to be its claim's.

        Args:
            pod: that is refused.
            budget: what the answer may cost.
            avoid: nodes that are left out.
        """
        question = self.question(pod, avoid)
        if not isinstance(question, Question) or not question.placement.nodes:
            return False
        outcome = allocate(
            self._snapshot(None),
            question.claims,
            nodes=question.placement.nodes,
            ignore_taint=is_controller_taint,
            pools=self._pools.every if question.with_others else self._pools.ours,
            budget=budget,
        )
        return isinstance(outcome, Allocated) and all(
            self._cluster.is_open(PoolID(r.driver, r.pool))
            for claim, result in zip(question.claims, outcome.results, strict=True)
            if claim in question.ours
            for r in result.devices.results
        )

    def _fit_elsewhere(self, claims: Sequence[ResourceClaim], trial: Trial | None, budget: Budget) -> bool:
        """Return whether kube-scheduler has devices for the claims now in pools that are not ours.

        If it has not, it need not look at the pod; whatever frees a device has the pod looked at again here.
        """
        outcome = allocate(self._snapshot(trial), claims, pools=self._pools.theirs, budget=budget)
        return isinstance(outcome, Allocated)

    def _claims_of(self, pod: Pod, trial: Trial | None) -> list[ResourceClaim] | Wait:
        return claims_for(pod, self._claims, trial)

    def _solve(
        self,
        pod: Pod,
        question: Question,
        nodes: Set[str],
        trial: Trial | None,
        budget: Budget,
    ) -> Write | NoFit:
        claims, ours, placement = question.claims, question.ours, question.placement
        pending = [c for c in claims if c.status.allocation is None]
        outcome = (
            self._own_only(claims, nodes, trial, budget)
            if len(pending) == len(ours)
            else self._beside_others(claims, ours, nodes, trial, budget)
        )
        match outcome:
            case Allocated(node, results):
                wanted = {c.metadata.uid for c in ours}
                pairs = zip(claims, results, strict=True)
                return Write(node, tuple((c, r) for c, r in pairs if c.metadata.uid in wanted))
            case DoesNotFit():

                @cache
                def why() -> str:
                    text = outcome.summary()
                    return f"{text} · {placement.summary()}" if placement.rejected else text

                return NoFit(why, ours, self._undo(pod, claims), new_node=True)
            case Failed(message):
                return NoFit(message, ours, self._undo(pod, claims), gave_up=outcome.gave_up)

    def _own_only(
        self, claims: Sequence[ResourceClaim], nodes: Set[str], trial: Trial | None, budget: Budget
    ) -> Outcome:
        return allocate(
            self._snapshot(trial),
            claims,
            nodes=nodes,
            ignore_taint=is_controller_taint,
            pools=self._pools.ours,
            withheld=self._pools.withheld,
            budget=budget,
        )

    def _beside_others(
        self,
        claims: Sequence[ResourceClaim],
        ours: Sequence[ResourceClaim],
        nodes: Set[str],
        trial: Trial | None,
        budget: Budget,
    ) -> Outcome:
        """Solve the claims of a pod that also has claims of other drivers: its node must suit those, too.

        Returns:
            One result per claim; those of other drivers are for the choice of the node only.
        """
        snapshot = self._snapshot(trial)
        left = set(nodes)
        mine = {c.metadata.uid for c in ours}

        while True:
            outcome = allocate(
                snapshot,
                claims,
                nodes=left,
                ignore_taint=is_controller_taint,
                pools=self._pools.every,
                budget=budget,
            )
            if not isinstance(outcome, Allocated):
                return outcome
            answers = dict(zip([c.metadata.uid for c in claims], outcome.results, strict=True))
            if all(self.is_ours(answers[uid]) for uid in mine):
                return outcome
            # A class of ours also has devices of others, and those were chosen: our claims alone, here.
            fixed = [c for c in claims if c.metadata.uid in mine or c.status.allocation is not None]
            alone = self._own_only(fixed, {outcome.node}, trial, budget)
            if isinstance(alone, Allocated):
                answers.update(zip([c.metadata.uid for c in fixed], alone.results, strict=True))
                return Allocated(outcome.node, tuple(answers[c.metadata.uid] for c in claims))
            left.remove(outcome.node)
            if not left:
                return alone

    def _without_a_claim(self, pod: Pod) -> NoFit | None:
        """Return what a pod gives back because a claim is missing without which it cannot run."""
        missing = self._claims_of(pod, None)
        if not isinstance(missing, Wait):
            return None
        found = [c for key in claims_of(pod) if (c := self._claims.get(key)) is not None]
        undo = self._undo(pod, found)
        return NoFit(missing.reason, (), undo) if undo else None

    def _undo(self, pod: Pod, claims: Sequence[ResourceClaim]) -> tuple[ResourceClaim, ...]:
        if pod.spec.node_name:
            return ()
        return tuple(
            c
            for c in claims
            if c.status.allocation is not None
            and not c.status.reserved_for
            and not c.metadata.deletion_timestamp
            and self.is_ours(c.status.allocation)
        )
