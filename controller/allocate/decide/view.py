"""The state that decisions rest on, as plain values, for questions that decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from controller.allocate.decide.groups.group_members import Gang, GroupProblem
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import called
from controller.allocate.decide.state.usable_pools import PoolTerms
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dra_driver.api.unreadable import unreadable_claim
from dra_driver.ownership import PoolID
from dra_driver.resourceclaim import pod_claims
from dra_driver.structured import Level, PoolPolicies, Snapshot

__all__ = ["StateView", "view_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """A pod that waits, and the cluster around it.

    Attributes:
        members: the pod, or the members of its group, each with its claims.
        problem: why nothing can be asked about them; empty where they are in order.
        group: the group for people, such as ``group NAMESPACE/NAME``; empty where the pod has none.
        size: number of members that there must be at least.
        levels: of topology that the group shares.
        snapshot: with everything that is allocated or assumed.
        nodes: all of them.
        slices: as they are published.
        rules: that add taints to them.
        pods: all of them.
        claims: those with devices that are allocated to them, or assumed to be.
        blocked: number of pools that are changing hands.
        pools: ours, with their policies.
        withheld: why other pools are not used.
        set_aside: allocations that are kept for pods that come before this one.
    """

    members: Sequence[tuple[Pod, tuple[ResourceClaim, ...]]]
    problem: str
    group: str
    size: int
    levels: tuple[Level, ...]
    snapshot: Snapshot
    nodes: Sequence[Node]
    slices: Sequence[ResourceSlice]
    rules: Sequence[DeviceTaintRule]
    pods: Sequence[Pod]
    claims: Sequence[ResourceClaim]
    blocked: int
    pools: PoolPolicies
    withheld: Mapping[PoolID, str]
    set_aside: Sequence[AllocationResult]

    @property
    def classes(self) -> Iterable[DeviceClass]:
        """Classes of devices."""
        return self.snapshot.classes.values()

    @property
    def pods_known(self) -> bool:
        """Whether pods were looked for."""
        return True


def view_of(
    pod: Pod | None,
    group: Gang | GroupProblem | None,
    *,
    claims: ClaimView,
    cluster: ClusterState,
    pods: Iterable[Pod],
    terms: PoolTerms,
    set_aside: Iterable[AllocationResult],
) -> StateView:
    """Return the state around a pod that waits.

    Args:
        pod: which one; None where it does not exist any more.
        group: of the pod.
        claims: all of them.
        cluster: after a ``refresh``.
        pods: all of them.
        terms: which pools may be used.
        set_aside: what is kept for pods that come before this one.
    """
    several = group.members if isinstance(group, Gang) else () if pod is None else (pod,)
    problem = "" if several else "the pod does not exist any more"
    if isinstance(group, GroupProblem):
        problem = group.message
    elif group is not None and group.terms.parts is not None:
        problem = "counts of members for each domain are not planned"
    members: list[tuple[Pod, tuple[ResourceClaim, ...]]] = []
    for member in several:
        found = _claims_or_problem(member, claims)
        if isinstance(found, str):
            problem = problem or f"Pod {member.key}: {found}"
        else:
            members.append((member, found))
    return StateView(
        members=members,
        problem=problem,
        group=called(group.key[1], group.key[0]) if group is not None else "",
        size=group.terms.least if isinstance(group, Gang) else 1,
        levels=group.terms.levels if isinstance(group, Gang) else (),
        snapshot=cluster.snapshot.with_allocated(claims.allocated),
        nodes=tuple(cluster.nodes),
        slices=tuple(cluster.slices),
        rules=tuple(cluster.rules),
        pods=tuple(pods),
        claims=_held_claims(claims),
        blocked=terms.blocked,
        pools=terms.ours,
        withheld=terms.withheld,
        set_aside=tuple(set_aside),
    )


def _claims_or_problem(pod: Pod, claims: ClaimView) -> tuple[ResourceClaim, ...] | str:
    """Return the claims of a pod, or why they are not known."""
    found: list[ResourceClaim] = []
    for used in pod_claims(pod):
        if used.key is None:
            continue
        claim = claims.get(used.key)
        if claim is None:
            return f"ResourceClaim {used.key} does not exist (yet)"
        if unreadable := unreadable_claim(claim):
            return f"ResourceClaim {used.key} cannot be read: {unreadable}"
        found.append(claim)
    return tuple(found) or "its claims are not generated yet"


def _held_claims(claims: ClaimView) -> list[ResourceClaim]:
    """Return the claims that hold devices, with what they hold; of a deleted one nothing else is known."""
    found: list[ResourceClaim] = []
    for key, uid, allocation in claims.holders():
        known = claims.get(key)
        if known is None or known.metadata.uid != uid:
            known = ResourceClaim(metadata=ObjectMeta(name=key.name, namespace=key.namespace, uid=uid))
        if known.status.allocation is not allocation:
            status: ResourceClaimStatus = msgspec.structs.replace(known.status, allocation=allocation)
            known = msgspec.structs.replace(known, status=status)
        found.append(known)
    return found
