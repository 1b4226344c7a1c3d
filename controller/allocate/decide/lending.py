"""Pods that kube-scheduler alone can place with their devices, and what is lent to it for them.

Two kinds: claims that mix devices of ours with those of others, and extended resources that a DeviceClass
serves. Their allocations are kube-scheduler's to write, so all that is decided here is on which node it is to
find which devices of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from controller.allocate.decide.messages import Lend, Proceed, Wait
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.questions import NoFit
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.ownership import ClaimOwnership
from controller.allocate.decide.state.usable_pools import UsablePools
from dra_driver.api.core import Node, Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.resourceclaim import classes_by_resource, extended_claim, extended_resources, shares
from dra_driver.structured import Budget, LoanChoice, Snapshot, choose_loan

__all__ = ["Lending", "Wish"]

_LENT: Final = frozenset((ClaimOwnership.OURS, ClaimOwnership.MIXED))
_NO_NODE: Final = (
    "on each node that suits it devices are lent for another pod, or a device plugin serves the resource"
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks for that only kube-scheduler can allocate.

    Attributes:
        claims: of the pod; the one for its extended resources, which is not there yet, is the last one.
        waiting: those of them that are there and not allocated.
        resources: extended resources that a DeviceClass serves.
    """

    claims: tuple[ResourceClaim, ...]
    waiting: tuple[ResourceClaim, ...]
    resources: frozenset[str]


class Lending:
    """Decides what to lend for a pod.

    Args:
        cluster: slices, classes and nodes.
        claims: what is taken.
        placements: where pods can go.
    """

    def __init__(self, cluster: ClusterState, claims: ClaimView, placements: Placements) -> None:
        self._cluster = cluster
        self._claims = claims
        self._placements = placements
        # The classes of the last question, and the resources that they serve.
        self._served: tuple[Mapping[str, DeviceClass], Mapping[str, DeviceClass]] = ({}, {})

    def _wish(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Wish | Wait | None:
        """Return what only kube-scheduler can allocate for a pod; None where there is nothing of ours in it.

        Args:
            pod: without a node.
            claims: that it names.
        """
        ownership = self._cluster.ownership
        waiting = tuple(c for c in claims if c.status.allocation is None)
        mixed = any(ownership.claim(c).ownership is ClaimOwnership.MIXED for c in waiting)
        extended = self._extended(pod)
        if extended is None:
            return Wish(tuple(claims), waiting, frozenset()) if mixed else None
        claim, resources = extended
        owner = ownership.claim(claim).ownership
        if owner is ClaimOwnership.OTHER_CONTROLLER:
            return Wait("another controller lends the devices of its extended resources", poll=10.0)
        if owner not in _LENT and not mixed:
            return None
        return Wish((*claims, claim), waiting, resources)

    def decide(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        snapshot: Snapshot,
        pools: UsablePools,
        *,
        avoid: Collection[str],
        budget: Budget,
    ) -> Lend | NoFit | Wait | Proceed | None:
        """Return what is to be lent for a pod; None where kube-scheduler need not allocate anything of ours.

        Args:
            pod: without a node.
            claims: that it names.
            snapshot: the cluster, with what is taken.
            pools: that may be used.
            avoid: nodes that are left out.
            budget: what the choice may cost.
        """
        wish = self._wish(pod, claims)
        if not isinstance(wish, Wish):
            return wish
        return self._choose(pod, wish, snapshot, pools, avoid=avoid, budget=budget)

    def _choose(
        self,
        pod: Pod,
        wish: Wish,
        snapshot: Snapshot,
        pools: UsablePools,
        *,
        avoid: Collection[str],
        budget: Budget,
    ) -> Lend | NoFit | Wait | Proceed:
        if why := self._placements.volume_needs(pod).problem:
            return Wait(why, volumes=True)
        if any(map(self._claims.is_assumed, wish.claims)):
            return Wait("a claim of the pod is being allocated for another pod", poll=1.0)
        placement = self._placements.candidates(pod, avoid)
        lending = self._cluster.lending_nodes
        nodes = {n for n in placement.nodes if n not in lending and self._serves(n, wish.resources)}
        if not nodes:
            why = _NO_NODE if placement.nodes else placement.summary()
            return NoFit(why, wish.waiting, new_node=not placement.nodes)
        found = choose_loan(
            snapshot,
            wish.claims,
            nodes=nodes,
            ours=pools.ours,
            pools=pools.every,
            slices=self._cluster.slices,
            rules=tuple(self._cluster.rules),
            held=self._claims.held,
            budget=budget,
        )
        if not isinstance(found, LoanChoice):
            return NoFit(found.why, wish.waiting, gave_up=found.gave_up, new_node=found.new_node)
        if not found.devices:
            return Proceed(theirs=True)  # others have all that it asks for
        return Lend(found.node, tuple(sorted((p, tuple(sorted(d))) for p, d in found.devices.items())))

    def _serves(self, name: str, resources: Set[str]) -> bool:
        """Return whether kube-scheduler would take devices on a node for these resources.

        It counts what a device plugin advertises there instead.
        """
        node = self._cluster.nodes.by_name(name)
        return node is not None and name in self._cluster.snapshot.nodes and not _advertised(node, resources)

    def _extended(self, pod: Pod) -> tuple[ResourceClaim, frozenset[str]] | None:
        """Return the claim that kube-scheduler would make for the extended resources of a pod, and these."""
        if pod.status.extended_resource_claim_status is not None:
            return None  # it is there, and allocated
        names = extended_resources(pod)
        if not names:
            return None
        classes = self._cluster.snapshot.classes
        if self._served[0] is not classes:
            self._served = (classes, classes_by_resource(classes.values()))
        served = {name: self._served[1][name] for name in names if name in self._served[1]}
        if not served:
            return None
        return extended_claim(pod, shares(pod, served).requests), frozenset(served)


def _advertised(node: Node, resources: Set[str]) -> bool:
    return any(node.status.allocatable.get(name) for name in resources)
