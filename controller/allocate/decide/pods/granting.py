"""Pods that kube-scheduler places with their devices, and what is granted to it for them.

For three kinds it alone can: claims that mix devices of ours with those of others, extended resources that a
DeviceClass serves, and claims that ask for something newer than we are. For others our own choice would be a
guess: pods that came back from one, and pods that demand what we do not look at. Their allocations are
kube-scheduler's to write, so all that is decided here is on which nodes which of their claims may get what it
picks there.

A guess may be wrong, but not twice: where kube-scheduler chooses a device that a pod has no grant for, the
refusal names it, and it is what the pod is granted next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.allocate.decide.messages import GrantDevices, GrantedDevices, GrantedNode, Proceed, Wait
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.nodes.reports import has_no_node, refused_devices, report_of
from controller.allocate.decide.pods.questions import NoFit, Question
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import CLAIM_INDEX, Objects, is_finished
from controller.allocate.decide.state.ownership import ClaimOwnership
from controller.allocate.decide.state.usable_pools import UsablePools
from dra_driver.api.core import Node, Pod
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION
from dra_driver.api.resource import DeviceClass, DeviceRequestAllocationResult, ResourceClaim
from dra_driver.nodefit.volumes import VolumeNeeds
from dra_driver.ownership import PoolID, grant_key, grant_key_of_pod, pool_of_slice
from dra_driver.resourceclaim import (
    classes_by_resource,
    extended_claim,
    extended_resources,
    is_extended_claim,
    lacks_extended_claim,
    shares,
)
from dra_driver.structured import (
    Budget,
    GrantChoice,
    NoGrant,
    Snapshot,
    choose_grants,
    fits_beside,
    understood,
)

__all__ = ["MOST_NODES", "GrantTerms", "Granting", "Wish"]

MOST_NODES: Final = 3
"""On which devices are granted for a pod, where it is not known which of them kube-scheduler takes."""

_SERVED: Final = frozenset((ClaimOwnership.OURS, ClaimOwnership.MIXED))
_NO_NODE: Final = (
    "on each node that suits it devices are granted for another pod, or a device plugin serves the resource"
)
_NOT_OPEN: Final = (
    "only kube-scheduler can allocate what it asks for, and no pool of the controller is open, so that "
    "nothing can be granted: the condition Published of the DeviceInventories says why"
)
_IN_VAIN: Final = NoGrant(lambda: "kube-scheduler cannot use what is free of the pools that it allocates")


class GrantTerms(NamedTuple):
    """What decides about grants for a pod besides the pod itself.

    Attributes:
        instead: whether devices may be granted where the controller could allocate itself.
        came_back: whether kube-scheduler has turned down a choice of ours for the pod.
    """

    instead: bool = False
    came_back: bool = False


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


class Granting:
    """Decides what to grant for a pod.

    Args:
        cluster: slices, classes and nodes.
        claims: what is taken.
        placements: where pods can go.
        pods: with the index ``CLAIM_INDEX``.
    """

    def __init__(
        self, cluster: ClusterState, claims: ClaimView, placements: Placements, pods: Objects[Pod]
    ) -> None:
        self._cluster = cluster
        self._claims = claims
        self._placements = placements
        self._pods = pods
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
        # Of a claim that its own pools could serve it may choose devices of ours, again and again.
        refused = bool(refused_devices(pod))
        alone = any(
            owner is ClaimOwnership.MIXED
            or (owner is ClaimOwnership.OURS and _is_newer(c))
            or (owner is ClaimOwnership.KUBE_SCHEDULER and refused)
            for c in waiting
            for owner in (ownership.claim(c).ownership,)
        )
        extended = self._extended(pod)
        if extended is None:
            return Wish(tuple(claims), waiting, frozenset()) if alone else None
        claim, resources = extended
        owner = ownership.claim(claim).ownership
        if owner is ClaimOwnership.OTHER_CONTROLLER:
            return Wait("another controller grants the devices of its extended resources", poll=10.0)
        if owner not in _SERVED and not alone:
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
        terms: GrantTerms,
    ) -> GrantDevices | NoFit | Wait | Proceed | None:
        """Return what is to be granted for a pod; None where kube-scheduler need allocate nothing of ours.

        Args:
            pod: without a node.
            claims: that it names.
            snapshot: the cluster, with what is taken.
            pools: that may be used.
            avoid: nodes that are left out.
            budget: what the choice may cost.
            terms: what else is known of the pod.
        """
        wish = self._wish(pod, claims)
        if not isinstance(wish, Wish):
            return wish
        if why := _not_grantable(pod, wish.waiting):
            return NoFit(why, wish.waiting)
        needs = self._placements.volume_needs(pod)
        if needs.problem:
            return Wait(needs.problem, volumes=True)
        if any(map(self._claims.is_assumed, wish.claims)):
            return Wait("a claim of the pod is being allocated for another pod", poll=1.0)
        placement = self._placements.candidates(pod, avoid)
        nodes = self._free(placement.nodes, wish.resources)
        if not nodes:
            why = _NO_NODE if placement.nodes else placement.summary()
            return NoFit(why, wish.waiting, new_node=not placement.nodes)
        claims, keys = tuple(map(understood, wish.claims)), _keys(pod, wish)
        suitable, slow = len(placement.nodes) + len(avoid), _makes_volumes(needs)
        if claims != wish.claims and (tried := self._tried(pod, wish, keys, nodes, snapshot, pools)):
            return GrantDevices((tried,), slow=slow, suitable=suitable)
        is_guess = terms.came_back or self._is_guess(pod, needs) or claims != wish.claims
        most = MOST_NODES if is_guess else 1
        found = self._find(pod, claims, keys, nodes, most, snapshot, pools, budget)
        if not isinstance(found, NoGrant) and not found:
            if report_of(pod) is None:
                return Proceed(theirs=True)  # others have all that it asks for
            # kube-scheduler has tried that in vain: devices of ours are left, now or when something changes.
            own = nodes & {str(pool.pool) for pool in pools.ours}
            found = self._choose(claims, keys, own, most, snapshot, pools, budget) if own else _IN_VAIN
        if isinstance(found, NoGrant) or not found:
            left = found if isinstance(found, NoGrant) else _IN_VAIN
            if pools.ours and not any(map(self._cluster.is_open, pools.ours)):
                return NoFit(_NOT_OPEN, wish.waiting, gave_up=left.gave_up)
            return NoFit(left.why, wish.waiting, gave_up=left.gave_up, new_node=left.new_node)
        return GrantDevices(found, slow=slow, suitable=suitable)

    def instead(
        self,
        pod: Pod,
        question: Question,
        snapshot: Snapshot,
        pools: UsablePools,
        *,
        budget: Budget,
        terms: GrantTerms,
    ) -> GrantDevices | None:
        """Return what is granted for a pod that could be allocated; None where our own choice is as good.

        Not where kube-scheduler says that no node would do, whatever devices are there: our own choice is in
        vain for a shorter time. Nor where other pods use the claims: they may be with kube-scheduler, too.

        Args:
            pod: without a node, to which its claims could be allocated.
            question: what it asks for.
            snapshot: the cluster, with what is taken.
            pools: that may be used.
            budget: what the choice may cost.
            terms: what else is known of the pod.
        """
        if not terms.instead or has_no_node(pod) or _not_grantable(pod, question.claims):
            return None
        needs = self._placements.volume_needs(pod)
        if not (terms.came_back or self._is_guess(pod, needs)) or self._has_others(pod, question.claims):
            return None
        nodes = self._free(question.placement.nodes, frozenset())
        if not nodes:
            return None
        claims = question.claims
        keys = tuple(map(grant_key, claims))
        found = self._find(pod, claims, keys, nodes, MOST_NODES, snapshot, pools, budget)
        if isinstance(found, NoGrant) or not found:
            return None
        suitable = len(question.placement.nodes)
        return GrantDevices(found, instead=True, slow=_makes_volumes(needs), suitable=suitable)

    def _find(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        keys: Sequence[str],
        nodes: Set[str],
        most: int,
        snapshot: Snapshot,
        pools: UsablePools,
        budget: Budget,
    ) -> tuple[GrantedNode, ...] | NoGrant:
        """Return what is to be granted, on the node that kube-scheduler has chosen itself if there is one."""
        chosen = nodes & {str(pool.pool) for pool, _ in refused_devices(pod)}
        if chosen:
            found = self._choose(claims, keys, chosen, 1, snapshot, pools, budget)
            if found and not isinstance(found, NoGrant):
                return found
        return self._choose(claims, keys, nodes, most, snapshot, pools, budget)

    def _tried(
        self,
        pod: Pod,
        wish: Wish,
        keys: Sequence[str],
        nodes: Set[str],
        snapshot: Snapshot,
        pools: UsablePools,
    ) -> GrantedNode | None:
        """Return what kube-scheduler has chosen for a claim that we do not understand, if that is free.

        Which devices suit it nobody else knows. Only where the pod has no other claim that waits: of several
        the refusal names the devices of one.
        """
        tried = refused_devices(pod)
        waiting = [key for key, claim in zip(keys, wish.claims, strict=True) if claim in wish.waiting]
        found = {str(pool.pool) for pool, _ in tried} & nodes
        if len(waiting) != 1 or wish.resources or len({pool for pool, _ in tried}) != 1 or not found:
            return None
        ((pool, _), *_), names = tried, tuple(sorted(name for _, name in tried))
        entries = {e.id.device: e for e in snapshot.index.devices(pool)}
        if pool not in pools.ours or not all(n in entries and not entries[n].shareable for n in names):
            return None
        results = [
            DeviceRequestAllocationResult(request="", driver=pool.driver, pool=pool.pool, device=name)
            for name in names
        ]
        slices = (s for s in self._cluster.slices if pool_of_slice(s) == pool)
        if not fits_beside(snapshot.allocated.pool(pool), slices, results):
            return None
        return GrantedNode(found.pop(), (GrantedDevices(pool, waiting[0], names),))

    def _choose(
        self,
        claims: Sequence[ResourceClaim],
        keys: Sequence[str],
        nodes: Set[str],
        most: int,
        snapshot: Snapshot,
        pools: UsablePools,
        budget: Budget,
    ) -> tuple[GrantedNode, ...] | NoGrant:
        """Return what is to be granted; nothing where the best node has all without devices of ours."""
        found = choose_grants(
            snapshot,
            claims,
            nodes=nodes,
            most=most,
            ours=pools.ours,
            pools=pools.grantable,
            slices=self._cluster.slices,
            rules=tuple(self._cluster.rules),
            held=self._claims.held,
            budget=budget,
        )
        if isinstance(found, NoGrant):
            return found
        chosen = found if found[0].devices else ()
        return tuple(GrantedNode(one.node, _devices(one, keys)) for one in chosen if one.devices)

    def _is_guess(self, pod: Pod, needs: VolumeNeeds) -> bool:
        """Return whether a pod demands something of its node that only kube-scheduler looks at."""
        return _makes_volumes(needs) or not self._placements.are_known(pod)

    def _has_others(self, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
        """Return whether other pods use claims that are not allocated."""
        return any(
            other.metadata.uid != pod.metadata.uid and not is_finished(other)
            for claim in claims
            if claim.status.allocation is None
            for other in self._pods.each(CLAIM_INDEX, claim.key)
        )

    def _free(self, nodes: Set[str], resources: Set[str]) -> Set[str]:
        """Return the nodes on which kube-scheduler sees none of what others are granted as free."""
        held = self._claims.held
        # Pools of inventories are named like their nodes.
        granted = {
            pool.pool
            for pool, devices in self._cluster.granted_devices.items()
            if not devices <= held.pool(pool).devices.keys()
        }
        return {name for name in nodes if name not in granted and self._serves(name, resources)}

    def _serves(self, name: str, resources: Set[str]) -> bool:
        """Return whether kube-scheduler would take devices on a node for these resources.

        It counts what a device plugin advertises there instead.
        """
        node = self._cluster.nodes.by_name(name)
        return node is not None and name in self._cluster.snapshot.nodes and not _advertised(node, resources)

    def _extended(self, pod: Pod) -> tuple[ResourceClaim, frozenset[str]] | None:
        """Return the claim that kube-scheduler would make for the extended resources of a pod, and these."""
        names = extended_resources(pod)
        if not names or not lacks_extended_claim(pod, self._claims.get):
            return None
        classes = self._cluster.snapshot.classes
        if self._served[0] is not classes:
            self._served = (classes, classes_by_resource(classes.values()))
        served = {name: self._served[1][name] for name in names if name in self._served[1]}
        if not served:
            return None
        return extended_claim(pod, shares(pod, served).requests), frozenset(served)


def _not_grantable(pod: Pod, claims: Collection[ResourceClaim]) -> str:
    """Return why nothing can be granted for one of the claims; empty if something can.

    A claim with the annotation of kube-scheduler has its grant under the UID of its owner. Whoever makes a
    claim may write any text there, and the API server would refuse the whole object with such a key.
    """
    for claim in claims:
        marked = (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_ANNOTATION) == "true"
        if marked and not is_extended_claim(claim, pod.metadata.uid):
            return (
                f"claim {claim.key} has the annotation {EXTENDED_RESOURCE_ANNOTATION}, which is for claims "
                "that kube-scheduler makes itself, so no devices can be granted to it; make it without that"
            )
    return ""


def _keys(pod: Pod, wish: Wish) -> tuple[str, ...]:
    """Return under which keys the claims of a wish get their grants."""
    if not wish.resources:
        return tuple(map(grant_key, wish.claims))
    extended = grant_key_of_pod(pod.metadata.namespace, pod.metadata.uid)
    return (*map(grant_key, wish.claims[:-1]), extended)


def _devices(choice: GrantChoice, keys: Sequence[str]) -> tuple[GrantedDevices, ...]:
    """Return what is granted on a node, in order."""
    found: dict[tuple[PoolID, str], list[str]] = {}
    for key, devices in zip(keys, choice.claims, strict=True):
        for one in sorted(devices):
            found.setdefault((one.pool_id, key), []).append(one.device)
    return tuple(GrantedDevices(pool, key, tuple(names)) for (pool, key), names in sorted(found.items()))


def _is_newer(claim: ResourceClaim) -> bool:
    """Return whether a claim asks for something that this version does not know."""
    return understood(claim) is not claim


def _makes_volumes(needs: VolumeNeeds) -> bool:
    """Return whether a volume is to be made where the pod goes: only its driver knows whether it can be."""
    return any(one.made and not one.only_made for one in needs.unbound)


def _advertised(node: Node, resources: Set[str]) -> bool:
    return any(node.status.allocatable.get(name) for name in resources)
