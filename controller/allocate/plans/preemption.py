"""Which pods would have to go for a pod that waits, from the state that decisions rest on."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator
from typing import Final

from controller.allocate.decide import Decisions, GroupKey, PodID, StateView, called, claims_of, is_finished
from controller.allocate.plans.clusters import ClusterBuilder
from controller.allocate.plans.messages import (
    BudgetState,
    ChosenVictim,
    PlanQuestion,
    PreemptionAnswer,
    PreemptionTerms,
)
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta, Uid
from dra_driver.api.names import PREEMPTIBLE_LABEL
from dra_driver.api.resource import ResourceClaim, ResourceClaimStatus
from dra_driver.preemption import Fits, HoldingPod, NoVictims, OccupiedCluster, Preemptor, choose_victims
from dra_driver.resourceclaim import selects
from dra_driver.structured import Budget, GroupMember

__all__ = ["work_out_preemption"]

# Where there are holders of devices that no pod uses: devices that are kept for pods that come first.
_SET_ASIDE: Final = "set aside"
# More than any question needs in the seconds that it has.
_STEPS: Final = 20_000_000
_STEPS_PER_NODE: Final = 30_000
_IN_DOUBT: Final = "it would not get devices even then, or it is not certain that it would"


def work_out_preemption(
    decisions: Decisions, question: PlanQuestion, terms: PreemptionTerms, clock: Callable[[], float]
) -> PreemptionAnswer:
    """Return who would have to go for a waiting pod, or for its whole group.

    What ``choose_victims`` finds is tried with the very decision that would follow: it knows more, such as
    volumes and which pods keep others away.

    Args:
        decisions: that know of the cluster.
        question: the pod, and the seconds for it.
        terms: what decides besides.
        clock: seconds from any start.
    """
    view = decisions.view(question.pod)
    if view.problem or not view.members or view.size > len(view.members):
        return PreemptionAnswer(reason=view.problem or "its group is not complete")
    builder = ClusterBuilder(view, view.snapshot)
    for pod, _ in view.members:
        builder.ask_about(pod)
    asked = [(claims, builder.nodes_for(pod), builder.needs_of(pod)) for pod, claims in view.members]
    members = tuple(GroupMember(claims, nodes, builder.vectors.of(needs)) for claims, nodes, needs in asked)
    pods = [pod for pod, _ in view.members]
    preemptor = Preemptor(
        name=view.group or f"Pod {question.pod.key}",
        members=members,
        priority=min(pod.spec.priority for pod in pods),
        levels=view.levels,
        least=view.size if view.group else None,
        preempts=all(pod.spec.preemption_policy != "Never" for pod in pods),
        pods=frozenset(pod.key for pod in pods),
        group=view.group,
    )
    cluster = _Occupied(view, builder, terms, decisions.groups_of).cluster()
    budget = Budget(_STEPS, _STEPS_PER_NODE, seconds=question.seconds, clock=clock)
    found = choose_victims(cluster, preemptor, budget)
    if isinstance(found, NoVictims):
        return PreemptionAnswer(reason=found.reason)
    if isinstance(found, Fits):
        return PreemptionAnswer(fits=True, reason="it fits, or does when pods have ended")
    if found.violated and not terms.violates:
        return PreemptionAnswer(
            reason=f"PodDisruptionBudgets keep others: {', '.join(sorted(found.violated))}"
        )
    gone = {*(v.key for v in found.victims), *found.going}
    placed = decisions.place_without(question.pod, gone, terms.now)
    if placed is None:
        return PreemptionAnswer(reason=_IN_DOUBT)
    ids = {pod.key: PodID(pod.key, pod.metadata.uid) for pod in view.pods if pod.key in gone}
    guarded = {pod.key for pod in cluster.pods if pod.budgets}
    victims = tuple(ChosenVictim(ids[v.key], v.budgets, v.key in guarded) for v in found.victims)
    return PreemptionAnswer(victims=victims, rank=placed.rank, places=placed.places)


class _Occupied:
    """Makes the cluster that ``choose_victims`` is asked about."""

    def __init__(
        self,
        view: StateView,
        builder: ClusterBuilder,
        terms: PreemptionTerms,
        groups_of: Callable[[Pod], Collection[GroupKey]],
    ) -> None:
        self._groups_of = groups_of
        self._view = view
        self._builder = builder
        self._terms = terms
        self._budgets: dict[str, list[BudgetState]] = {}
        for budget in terms.budgets:
            self._budgets.setdefault(budget.key.namespace, []).append(budget)
        self._kept = frozenset(terms.kept)
        self._refused = frozenset(terms.refused)

    def cluster(self) -> OccupiedCluster:
        """Return the cluster."""
        view = self._view
        held = {c.key: c for c in view.claims if c.status.allocation is not None}
        allocated = view.snapshot.allocated.with_allocations((_SET_ASIDE, a) for a in view.set_aside)
        return OccupiedCluster(
            snapshot=view.snapshot.with_allocated(allocated),
            claims=(*held.values(), *self._set_aside()),
            pods=tuple(self._pods(held)),
            budgets={str(b.key): b.allowed for b in self._terms.budgets},
            free=self._builder.free,
            ours=view.pools.keys(),
            coupled=self._builder.coupled,
            pools=view.pools,
            withheld=view.withheld,
        )

    def _set_aside(self) -> Iterator[ResourceClaim]:
        """Yield claims that stand for devices that are kept for pods that come first; they have no pod."""
        for number, allocation in enumerate(self._view.set_aside):
            name = f"{_SET_ASIDE} {number}"
            meta = ObjectMeta(name=name, namespace=_SET_ASIDE, uid=Uid(name))
            yield ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation=allocation))

    def _pods(self, held: Collection[ObjectKey]) -> Iterator[HoldingPod]:
        view = self._view
        users: list[tuple[Pod, tuple[ObjectKey, ...], frozenset[GroupKey]]] = []
        for pod in view.pods:
            claims = tuple(key for key in claims_of(pod) if key in held)
            groups = frozenset(self._groups_of(pod))
            if claims or groups:
                users.append((pod, claims, groups))
        holding = {group for _, claims, groups in users if claims for group in groups}
        for pod, claims, groups in users:
            if claims or not holding.isdisjoint(groups):
                yield self._holding(pod, claims, groups)

    def _holding(self, pod: Pod, claims: tuple[ObjectKey, ...], groups: Collection[GroupKey]) -> HoldingPod:
        # What has ended holds its devices until the controller-manager has seen that.
        going = is_finished(pod) or self._ends_soon(pod)
        return HoldingPod(
            key=pod.key,
            priority=pod.spec.priority,
            claims=claims,
            started=_seconds(pod.status.start_time, self._terms.time),
            node=pod.spec.node_name,
            takes=self._builder.taken_by(pod) if pod.spec.node_name else self._builder.vectors.nothing,
            budgets=tuple(self._counted(pod)),
            group=_called(min(groups)) if groups else "",
            going=going,
            hangs=pod.metadata.deletion_timestamp is not None and not going,
            kept=self._kept_back(pod, claims, groups),
        )

    def _ends_soon(self, pod: Pod) -> bool:
        """Return whether a pod is being deleted, and its end is near.

        Owners choose the grace period, and a pod outlasts it for as long as its node does not answer: after a
        while nothing is to be expected of it soon. A finalizer by itself keeps no devices, because the
        controller-manager deallocates what a pod has whose containers have ended, or that is on no node
        (``isPodDone``).
        """
        at, terms = pod.metadata.deletion_timestamp, self._terms
        if at is None or not pod.spec.node_name:
            return at is not None
        return abs(_seconds(at, terms.time) - terms.time) <= terms.patience

    def _kept_back(self, pod: Pod, claims: Collection[ObjectKey], groups: Collection[GroupKey]) -> str:
        """Return why a pod may not be removed; empty where it may."""
        if pod.metadata.namespace in self._kept:
            return "is of a namespace that opts out"
        if (pod.metadata.labels or {}).get(PREEMPTIBLE_LABEL) == "false":
            return "opts out by its label"
        if pod.metadata.uid in self._refused:
            return "could not be removed a short while ago"
        if claims and not pod.spec.node_name:
            return "is not bound yet"
        if len(groups) > 1:
            return "names several groups"
        return ""

    def _counted(self, pod: Pod) -> Iterator[str]:
        """Yield the budgets that count the removal of a pod."""
        labels = pod.metadata.labels or {}
        for budget in self._budgets.get(pod.metadata.namespace, ()):
            if budget.selector is not None and selects(budget.selector, labels):
                yield str(budget.key)


def _called(group: GroupKey) -> str:
    namespace, name = group
    return called(name, namespace)


def _seconds(time: str | None, now: float) -> int:
    """Return a time in seconds since 1970; now, where there is none."""
    try:
        return int(datetime.datetime.fromisoformat(time).timestamp()) if time else int(now)
    except (ValueError, OverflowError):
        return int(now)
