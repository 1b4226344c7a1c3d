"""Decides, for one pod, what is to be done about its claims. Synchronous: a decision sees one state.

``Decider`` reads the informers and the assume cache and gives a ``Decision``; ``controller.allocate.loop``
carries it out. The claims of a pod are solved together, so that a pod never holds a part of what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from controller.allocate.assume_cache import AssumeCache, node_of
from controller.allocate.cluster_state import ClusterState
from controller.allocate.ownership import ClaimOwnership, OwnedClaim, Owner
from controller.allocate.placement import NodeUsage, Placements
from dra_driver.api.core import Node, Pod
from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.meta import DriverName, Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID, is_controller_taint
from dra_driver.resourceclaim import is_for_pod, pod_claims
from dra_driver.structured import (
    DEFAULT_POLICY,
    Allocated,
    Budget,
    DoesNotFit,
    Failed,
    Outcome,
    PersistentMap,
    PoolPolicies,
    PoolPolicy,
    allocate,
)

__all__ = ["Decider", "Decision", "Proceed", "Refuse", "Wait", "Write"]

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is missing that will come as an event, such as a claim to be generated.

    Attributes:
        reason: what.
        poll: seconds after which to look again all the same; 0: not.
    """

    reason: str
    poll: float = 0.0


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing for us to do (any more): the pod goes to kube-scheduler.

    Attributes:
        node: where its claims are allocated, as far as they are and it is one node.
        theirs: it still needs devices, but none that are ours at present.
    """

    node: str | None = None
    theirs: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The claims cannot be allocated now; people are told, and it is tried again when something changes.

    Attributes:
        why: what was asked, what is there, and why it does not fit; or what gives this text, which is to be
            called before the next decision.
        claims: that are ours and wait.
        undo: allocations of the same pod, written before, that nobody has reserved: they pin the pod to a
            node where the rest does not fit.
        elsewhere: kube-scheduler has what the claims ask for in pools of its own.
    """

    why: str | Callable[[], str]
    claims: tuple[ResourceClaim, ...] = ()
    undo: tuple[ResourceClaim, ...] = ()
    elsewhere: bool = False

    @property
    def message(self) -> str:
        """``why`` as a text, which may cost more than the decision."""
        return self.why if isinstance(self.why, str) else self.why()


@dataclass(frozen=True, slots=True)
class Write:
    """The answer: these allocations, all on one node."""

    node: str
    allocations: tuple[tuple[ResourceClaim, AllocationResult], ...]


Decision = Wait | Proceed | Refuse | Write


class Decider:
    """See the module."""

    def __init__(
        self,
        drivers: Collection[DriverName],
        assume_cache: AssumeCache,
        usage: NodeUsage,
        *,
        slices: Informer[ResourceSlice],
        classes: Informer[DeviceClass],
        nodes: Informer[Node],
        inventories: Informer[DeviceInventory] | None = None,
        blocked: Callable[[PoolID], bool] = lambda _: False,
        rule: Callable[[PoolID], PoolPolicy] = lambda _: DEFAULT_POLICY,
        taint_rules: Informer[DeviceTaintRule] | None = None,
    ) -> None:
        """Connects the parts.

        Args:
            drivers: whose pools may be ours.
            assume_cache: what is taken.
            usage: what pods take of nodes.
            slices: all drivers.
            classes: all.
            nodes: all.
            inventories: source of device utilisation; if None, utilisation is ignored.
            blocked: pools that are changing hands: protected, yet not ours to decide on.
            rule: how to choose the devices of a pool; ``forget_pool`` must tell of other answers.
            taint_rules: taints of admins; None: the API has none.
        """
        self._drivers = frozenset(drivers)
        self._blocked = blocked
        self._rule = rule
        self._assume_cache = assume_cache
        self._placements = Placements(nodes, usage)
        self._cluster = ClusterState(
            drivers,
            slices=slices,
            classes=classes,
            nodes=nodes,
            inventories=inventories,
            taint_rules=taint_rules,
        )
        # Our pools with their rules; every pool with its rule; why pools are not used; pools of which all
        # three are to be worked out anew.
        self._ours: PoolPolicies = PersistentMap()
        self._every: PoolPolicies = PersistentMap()
        self._withheld: PersistentMap[PoolID, str] = PersistentMap()
        self._stale: set[PoolID] = set()

    def forget_pool(self, pool: PoolID) -> None:
        """Another answer of ``blocked`` or ``rule`` is due."""
        self._stale.add(pool)

    def _current(self) -> ClusterState:
        cluster = self._cluster
        self._stale |= cluster.refresh()
        if self._stale:
            # Maps that come from one another: the allocator looks at the pools that differ, and no others.
            known = {p: self._rule(p) for p in self._stale if p in cluster.pools}
            ours = {p: rule for p, rule in known.items() if p in cluster.own and not self._blocked(p)}
            withheld = {p: _why_withheld(cluster.owner(p)) for p in known if p not in ours}
            self._every = _changed(self._every, known, self._stale)
            self._ours = _changed(self._ours, ours, self._stale)
            self._withheld = _changed(self._withheld, withheld, self._stale)
            self._stale = set()
        return cluster

    def is_ours(self, allocation: AllocationResult) -> bool:
        """Whether every device of an allocation is from a pool of ours."""
        self._current()
        return all(PoolID(r.driver, r.pool) in self._ours for r in allocation.devices.results)

    def is_left_to_scheduler(self, allocation: AllocationResult) -> bool:
        """Whether every device is of our drivers, in a pool that kube-scheduler has, and that is there."""
        cluster = self._current()
        pools = {PoolID(r.driver, r.pool) for r in allocation.devices.results}
        return all(p.driver in self._drivers and p in cluster.pools and p not in cluster.own for p in pools)

    def nodes_by_label(self, label: str) -> dict[str, set[str]]:
        """The nodes that have a label, by its value."""
        found: dict[str, set[str]] = {}
        for name, node in self._current().snapshot.nodes.items():
            value = (node.metadata.labels or {}).get(label)
            if value is not None:
                found.setdefault(value, set()).add(name)
        return found

    def decide(
        self,
        pod: Pod,
        avoid: Collection[str] = (),
        assumed: Mapping[Uid, ResourceClaim] | None = None,
        within: Set[str] | None = None,
        budget: Budget | None = None,
    ) -> Decision:
        """What to do about a pod that uses claims and is neither finished nor being deleted.

        Args:
            pod: the pod.
            avoid: nodes that are left out.
            assumed: claims as they will be when other pods of its group are allocated; assumed already.
            within: only these nodes.
            budget: what the decision may cost, together with others that share it; if None, ``Budget()``.
        """
        budget = budget or Budget()
        assumed = assumed or {}
        claims = self._claims(pod, assumed)
        if isinstance(claims, Wait):
            return claims
        pending = [c for c in claims if c.status.allocation is None]
        if not pending:
            nodes = (node_of(c.status.allocation) for c in claims if c.status.allocation is not None)
            return Proceed(next((n for n in nodes if n is not None), None))
        owned = [self._current().ownership.claim(c) for c in pending]
        problem = _first_problem(owned)
        ours = [c for c, i in zip(pending, owned, strict=True) if i.ownership is ClaimOwnership.OURS]
        if all(i.ownership is ClaimOwnership.KUBE_SCHEDULER for i in owned):
            return Proceed(theirs=True)
        if not ours and not problem:
            # The rest is kube-scheduler's, but it must not see the pod before another controller is done.
            return Wait("another controller allocates a claim of the pod", poll=10.0)
        if problem:
            pairs = zip(pending, owned, strict=True)
            told = tuple(c for c, i in pairs if i.ownership in (ClaimOwnership.OURS, ClaimOwnership.MIXED))
            return Refuse(problem, told)
        if any(self._assume_cache.in_flight(c) for c in claims if c.metadata.uid not in assumed):
            return Wait("a claim of the pod is being allocated for another pod", poll=1.0)
        decision = self._solve(pod, claims, ours, avoid, within, budget)
        if (
            isinstance(decision, Refuse)
            and all(i.elsewhere for i in owned)
            and self._fit_elsewhere(pending, budget)
        ):
            return replace(decision, elsewhere=True)
        return decision

    def _fit_elsewhere(self, claims: Sequence[ResourceClaim], budget: Budget) -> bool:
        """Whether kube-scheduler, to which our pools are tainted, has devices for the claims right now.

        If it has not, it need not look at the pod; whatever frees a device has the pod looked at again here.
        """
        cluster = self._current()
        snapshot = cluster.snapshot.with_allocated(self._assume_cache.allocated())
        return isinstance(allocate(snapshot, claims, budget=budget), Allocated)

    @property
    def ownership_version(self) -> int:
        """Another one whenever a claim may be somebody else's than before."""
        return self._current().ownership.version

    def _claims(self, pod: Pod, assumed: Mapping[Uid, ResourceClaim]) -> list[ResourceClaim] | Wait:
        claims: list[ResourceClaim] = []
        for used in pod_claims(pod):
            if not used.entry:
                continue  # made by kube-scheduler for extended resources: none of ours
            if used.key is None:
                return Wait(f"the claim for {used.entry} is not generated yet")
            claim = self._assume_cache.get(used.key)
            if claim is None or not is_for_pod(pod, claim):
                return Wait(f"claim {used.key} does not exist")
            if claim.metadata.deletion_timestamp and claim.status.allocation is None:
                return Wait(f"claim {used.key} is being deleted")
            claims.append(assumed.get(claim.metadata.uid, claim))
        return claims

    def _solve(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        ours: Sequence[ResourceClaim],
        avoid: Collection[str],
        within: Set[str] | None,
        budget: Budget,
    ) -> Decision:
        placement = self._placements.candidates(pod, avoid)
        nodes = placement.nodes if within is None else within & placement.nodes
        if not nodes:
            return Refuse(placement.summary(), tuple(ours), self._undo(pod, claims))
        pending = [c for c in claims if c.status.allocation is None]
        outcome = (
            self._own_only(claims, nodes, budget)
            if len(pending) == len(ours)
            else self._beside_others(claims, ours, nodes, budget)
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
                    return f"{text}; {placement.summary()}" if placement.rejected else text

                return Refuse(why, tuple(ours), self._undo(pod, claims))
            case Failed(message):
                return Refuse(message, tuple(ours), self._undo(pod, claims))

    def _own_only(self, claims: Sequence[ResourceClaim], nodes: Set[str], budget: Budget) -> Outcome:
        cluster = self._current()
        return allocate(
            cluster.snapshot.with_allocated(self._assume_cache.allocated()),
            claims,
            nodes=nodes,
            ignore_taint=is_controller_taint,
            pools=self._ours,
            withheld=self._withheld,
            budget=budget,
        )

    def _beside_others(
        self,
        claims: Sequence[ResourceClaim],
        ours: Sequence[ResourceClaim],
        nodes: Set[str],
        budget: Budget,
    ) -> Outcome:
        """The pod also has claims of other drivers: a node must suit those too, but only ours are written.

        Raises nothing; the answer has one result per claim, those of others for the choice of node only.
        """
        cluster = self._current()
        snapshot = cluster.snapshot.with_allocated(self._assume_cache.allocated())
        left = set(nodes)
        mine = {c.metadata.uid for c in ours}

        while True:
            outcome = allocate(
                snapshot,
                claims,
                nodes=left,
                ignore_taint=is_controller_taint,
                pools=self._every,
                budget=budget,
            )
            if not isinstance(outcome, Allocated):
                return outcome
            answers = dict(zip([c.metadata.uid for c in claims], outcome.results, strict=True))
            if all(self.is_ours(answers[uid]) for uid in mine):
                return outcome
            # A class of ours also has devices of others, and those were chosen: our claims alone, here.
            fixed = [c for c in claims if c.metadata.uid in mine or c.status.allocation is not None]
            alone = self._own_only(fixed, {outcome.node}, budget)
            if isinstance(alone, Allocated):
                answers.update(zip([c.metadata.uid for c in fixed], alone.results, strict=True))
                return Allocated(outcome.node, tuple(answers[c.metadata.uid] for c in claims))
            left.remove(outcome.node)
            if not left:
                return alone

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


def _changed(
    known: PersistentMap[PoolID, _V], now: Mapping[PoolID, _V], asked: Collection[PoolID]
) -> PersistentMap[PoolID, _V]:
    """Return what is known, where those pools have these values and no others.

    Where nothing differs, it is the same object.
    """
    set_ = {p: value for p, value in now.items() if known.get(p) != value}
    gone = [p for p in asked if p not in now and p in known]
    return known.updated(set_, gone) if set_ or gone else known


def _why_withheld(owner: Owner | None) -> str:
    """Return why this controller does not allocate from a pool, as a predicate."""
    match owner:
        case Owner.OTHERS:
            return "allocated by kube-scheduler"
        case Owner.OTHER_CONTROLLER:
            return "allocated by another controller"
        case _:
            return "blocked during republishing or handover"


def _first_problem(owned: Sequence[OwnedClaim]) -> str:
    for kind in (ClaimOwnership.MIXED, ClaimOwnership.UNKNOWN):
        for ownership in owned:
            if ownership.ownership is kind:
                return ownership.reason
    return ""
