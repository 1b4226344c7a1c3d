"""Whether a pod may be removed for another: the last look before each removal, at what is known here.

Who is to go was worked out elsewhere, perhaps by a process before this one. None of that is believed: each
victim must be below the preemptor by what the API server has shown of both.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Sequence, Set

import msgspec

from controller.allocate.decide import (
    GroupKey,
    GroupsOf,
    PodID,
    group_of_claim,
    is_ending,
)
from controller.allocate.preempting.candidates import Candidate
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from dra_driver.api.core import Pod
from dra_driver.api.names import PREEMPTIBLE_LABEL
from dra_driver.api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim

__all__ = ["Judge", "Verdict"]


class Verdict(enum.Enum):
    """What a last look says about a victim."""

    GOES = "goes"
    """It may be removed."""
    IS_GOING = "is going"
    """It has ended, or is being deleted already."""
    STAYS = "stays"
    """It must not be removed."""
    NEEDLESS = "needless"
    """It holds nothing, and no victim of its group does any more."""


class Judge:
    """Looks at victims.

    Args:
        owners: know whose a pool is.
        pods: all namespaces.
        kept: returns whether the pods of a namespace are never preempted.
        groups_of: the groups of a pod, as far as it says itself.
        is_gang: returns whether a group is allocated as a whole.
        members: returns the pods of a group.
    """

    def __init__(
        self,
        owners: CurrentOwners,
        pods: KnownPods,
        kept: Callable[[str], bool],
        groups_of: GroupsOf,
        is_gang: Callable[[GroupKey], bool],
        members: Callable[[GroupKey], Collection[Pod]],
    ) -> None:
        self._groups_of = groups_of
        self._is_gang = is_gang
        self._members = members
        self._owners = owners
        self._pods = pods
        self._kept = kept

    def look(self, left: Sequence[PodID], preemptor: Candidate, victims: Collection[PodID]) -> list[Verdict]:
        """Return which victims of a preemptor may be removed now.

        Args:
            left: those to be removed yet.
            preemptor: as it waits now.
            victims: all of the round, removed ones too: what belongs together goes as a whole.
        """
        there = [pod for v in victims if (pod := self._pods.find(v)) is not None]
        groups = {group for pod in there if self._holds(pod) for group in self._groups(pod)}
        if not self._are_whole(there, groups):
            return [Verdict.STAYS] * len(left)
        return [self._verdict(victim, preemptor, groups) for victim in left]

    def _verdict(self, victim: PodID, preemptor: Candidate, groups: Set[GroupKey]) -> Verdict:
        pod = self._pods.find(victim)
        if pod is None or is_ending(pod):
            return Verdict.IS_GOING
        of_preemptor = victim.uid in {m.metadata.uid for m in preemptor.members}
        labels = pod.metadata.labels or {}
        if (
            of_preemptor
            or pod.spec.priority >= preemptor.priority
            or labels.get(PREEMPTIBLE_LABEL) == "false"
            or self._kept(pod.metadata.namespace)
        ):
            return Verdict.STAYS
        held = self._held(pod)
        if not all(map(self._is_ours, held)):
            return Verdict.STAYS
        if any(map(_taken, held)):
            return Verdict.GOES if pod.spec.node_name else Verdict.STAYS
        # It is of the group of a victim that holds devices.
        return Verdict.NEEDLESS if groups.isdisjoint(self._groups(pod)) else Verdict.GOES

    def _are_whole(self, victims: Collection[Pod], groups: Collection[GroupKey]) -> bool:
        """Return whether all go that run with a claim of a victim, or with devices in a group of one."""
        uids = {pod.metadata.uid for pod in victims}
        of_groups = (m for group in groups for m in self._members(group) if self._holds(m))
        claims = {c.key for pod in victims for c in self._pods.claims(pod) if _takes(c)}
        of_claims = (user for key in claims for user in self._pods.users_of(key))
        return all(
            pod.metadata.uid in uids or not pod.spec.node_name or is_ending(pod)
            for pod in itertools.chain(of_groups, of_claims)
        )

    def _groups(self, pod: Pod) -> list[GroupKey]:
        of_claims = (g for claim in self._pods.claims(pod) for g in group_of_claim(claim))
        return [group for group in (*self._groups_of(pod), *of_claims) if self._is_gang(group)]

    def _holds(self, pod: Pod) -> bool:
        return any(map(_takes, self._pods.claims(pod)))

    def _held(self, pod: Pod) -> list[AllocationResult]:
        return [c.status.allocation for c in self._pods.claims(pod) if c.status.allocation is not None]

    def _is_ours(self, allocation: AllocationResult) -> bool:
        taken = _taken(allocation)
        devices = msgspec.structs.replace(allocation.devices, results=taken)
        return self._owners.are_ours(msgspec.structs.replace(allocation, devices=devices))


def _taken(allocation: AllocationResult) -> tuple[DeviceRequestAllocationResult, ...]:
    """Return the devices that an allocation takes from others: not those with admin access."""
    return tuple(r for r in allocation.devices.results if not r.admin_access)


def _takes(claim: ResourceClaim) -> bool:
    return claim.status.allocation is not None and bool(_taken(claim.status.allocation))
