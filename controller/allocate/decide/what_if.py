"""What a pod, or a group, would get if other pods had ended, or beside what is set aside for others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from controller.allocate.decide.groups.gangs import Gangs
from controller.allocate.decide.groups.group_members import Gang
from controller.allocate.decide.messages import (
    GroupWrite,
    PodID,
    PodPlacement,
    Refuse,
    SetAside,
    Write,
)
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.order import Rank, rank_of, rank_of_group
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.set_aside import SetAsideDevices, SetAsideFor, over, soonest
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.objects import CLAIM_INDEX, Objects, claims_of, is_finished
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.structured import AllocatedState, Budget

__all__ = ["WhatIf"]

_Places = Iterable[tuple[PodID, str | None]]


class WhatIf:
    """Answers what would be in another state of the cluster; nothing of it stays.

    Args:
        pods: all of them, with the index ``CLAIM_INDEX``.
        claims: what is allocated.
        usage: where pods count.
        decider: decides about one pod.
        gangs: decide about groups.
        set_aside: devices for pods that have waited for long.
        avoided: nodes that are left out for a pod at a time.
    """

    def __init__(
        self,
        pods: Objects[Pod],
        claims: ClaimView,
        usage: NodeUsage,
        decider: PodDecider,
        gangs: Gangs,
        set_aside: SetAsideDevices,
        avoided: Callable[[Pod, float], Collection[str]],
    ) -> None:
        self._pods = pods
        self._claims = claims
        self._usage = usage
        self._decider = decider
        self._gangs = gangs
        self._set_aside = set_aside
        self._avoided = avoided

    def ahead_of(self, pod: Pod, group: Gang | None, *, awaited: bool = False) -> list[SetAsideFor]:
        """Return what is set aside for others that come before a pod, or its group.

        Args:
            pod: which one.
            group: of the pod.
            awaited: see ``PodQuestion``.
        """
        if awaited or not self._set_aside:
            return []  # else each member would go through all of its group for its rank
        return self._set_aside.before(_rank(pod, group), pod.metadata.uid)

    @contextlib.contextmanager
    def beside(self, ahead: Sequence[SetAsideFor]) -> Iterator[None]:
        """Count in the block what is set aside for others as allocated, and these where it is."""
        nodes = [(place.pod, place.node) for one in ahead for place in one.places]
        with self._decider.supposing(over(self._claims.allocated, ahead)), self._placing(nodes):
            yield

    def without(
        self, pod: Pod, group: Gang | None, gone: Collection[ObjectKey], budget: Budget, now: float
    ) -> SetAside | None:
        """Return the devices that a pod, or its group, would get if some pods had ended.

        Args:
            pod: which one.
            group: of the pod.
            gone: pods that are taken to have ended; a claim that others use as well stays.
            budget: of work.
            now: the time.

        Returns:
            None where it would not fit, or more work might show that it does.
        """
        pods = [p for key in gone if (p := self._pods.get(key)) is not None]
        claims = [
            claim
            for key in {key for p in pods for key in claims_of(p)}
            if (claim := self._claims.get(key)) is not None
            and all(p.key in gone or is_finished(p) for p in self._pods.each(CLAIM_INDEX, key))
        ]
        ahead = self.ahead_of(pod, group)
        taken = over(self._claims.without({c.metadata.uid for c in claims}), ahead)
        nodes: list[tuple[PodID, str | None]] = [(PodID(p.key, p.metadata.uid), None) for p in pods]
        nodes += [(place.pod, place.node) for one in ahead for place in one.places]
        places = self._would_get(pod, group, taken, nodes, budget, now)
        return SetAside(_rank(pod, group), places) if places is not None else None

    def soonest(self, pod: Pod, group: Gang | None, budget: Budget, now: float) -> SetAside | Refuse:
        """Return the devices that the pod, or all of its group, could have soonest."""
        members = (pod,) if group is None else group.members
        own = {key for member in members for key in claims_of(member)}
        ahead = self.ahead_of(pod, group)
        holders = [
            (allocation.allocation_timestamp or "", key, uid)
            for key, uid, allocation in self._claims.holders()
            if key not in own and self._decider.is_ours(allocation)
        ]

        def fits(since: str) -> tuple[PodPlacement, ...] | None:
            gone = [(key, uid) for at, key, uid in holders if at >= since]
            users = [p for key, _ in gone for p in self._pods.each(CLAIM_INDEX, key)]
            away = [(PodID(p.key, p.metadata.uid), None) for p in users]
            taken = over(self._claims.without({uid for _, uid in gone}), ahead)
            return self._would_get(pod, group, taken, away, budget, now)

        places = soonest([at for at, _, _ in holders], fits)
        if places is None:
            return Refuse("it would not fit if all devices were free", signature=str(pod.key).encode())
        return SetAside(_rank(pod, group), places)

    def _would_get(
        self,
        pod: Pod,
        group: Gang | None,
        taken: AllocatedState,
        nodes: Iterable[tuple[PodID, str | None]],
        budget: Budget,
        now: float,
    ) -> tuple[PodPlacement, ...] | None:
        """Return what a pod, or all of its group, would get; None where it would not fit.

        Args:
            pod: which one.
            group: of the pod.
            taken: what is taken.
            nodes: where some pods are; None: on none.
            budget: of work.
            now: the time.
        """
        with self._decider.supposing(taken), self._placing(nodes):
            found: object
            if group is not None:
                found = self._gangs.would_fit(group, budget, now)
            else:
                found = self._decider.decide(pod, budget, self._avoided(pod, now))
        if isinstance(found, Write):
            found = GroupWrite(((PodID(pod.key, pod.metadata.uid), found),))
        if not isinstance(found, GroupWrite):
            return None
        return tuple(
            PodPlacement(of, write.node, tuple(result for _, result in write.allocations))
            for of, write in found.writes
        )

    @contextlib.contextmanager
    def _placing(self, places: Iterable[tuple[PodID, str | None]]) -> Iterator[None]:
        """Count pods on these nodes in the block, or on none."""
        before: list[tuple[Pod, str | None]] = []
        for pod_id, node in places:
            pod = self._pods.get(pod_id.key)
            if pod is not None and pod.metadata.uid == pod_id.uid:
                before.append((pod, self._usage.place_of(pod)))
                self._place(pod, node)
        try:
            yield
        finally:
            for pod, node in reversed(before):
                self._place(pod, node)

    def _place(self, pod: Pod, node: str | None) -> None:
        if node is None:
            self._usage.gone(pod)
        else:
            self._usage.place(pod, node)


def _rank(pod: Pod, group: Gang | None) -> Rank:
    if group is None or not group.members:
        return rank_of(pod)
    return rank_of_group(group.members, group.priority)
