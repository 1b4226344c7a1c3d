"""What a pod asks for, and what keeps it from getting it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from controller.allocate.decide.messages import GrantDevices, Proceed, Wait, Write
from controller.allocate.decide.nodes.placement import Placement
from controller.allocate.decide.pods.earlier_users import EarlierUser
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.ownership import ClaimOwnership, OwnedClaim
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.unreadable import unreadable_claim
from dra_driver.resourceclaim import is_for_pod, pod_claims
from dra_driver.structured import AllocatedState

__all__ = [
    "NoFit",
    "PodDecision",
    "Question",
    "Trial",
    "claims_for",
    "first_problem",
    "why_behind",
    "why_nominated",
]


@dataclass(frozen=True, slots=True)
class NoFit:
    """The claims cannot be allocated now.

    Attributes:
        why: what was asked, what is there, and why it does not fit; or what gives this text, which is to be
            called before the next decision.
        claims: claims of ours that wait.
        undo: allocations of the same pod, written before, without a reservation: they pin the pod to a node
            where the rest does not fit.
        elsewhere: kube-scheduler has what the claims ask for in pools of its own.
        gave_up: whether there may be an answer that could not be found.
        new_node: whether another node might serve the claims (``Refuse``).
    """

    why: str | Callable[[], str]
    claims: tuple[ResourceClaim, ...] = ()
    undo: tuple[ResourceClaim, ...] = ()
    elsewhere: bool = False
    gave_up: bool = False
    new_node: bool = False

    @property
    def message(self) -> str:
        """``why`` as a text, which may cost more than the decision."""
        return self.why if isinstance(self.why, str) else self.why()


PodDecision = Wait | Proceed | NoFit | Write | GrantDevices


@dataclass(frozen=True, slots=True)
class Question:
    """What a pod asks for that has claims to be allocated.

    Attributes:
        claims: all of the pod's.
        ours: those that wait for this controller.
        with_others: whether claims of other drivers wait as well, so that its node must suit those.
        placement: the nodes that can take the pod, or could if pods of lower priority were evicted.
    """

    claims: tuple[ResourceClaim, ...]
    ours: tuple[ResourceClaim, ...]
    with_others: bool
    placement: Placement


@dataclass(slots=True)
class Trial:
    """What would be allocated if the answers for some pods of a group were written.

    Attributes:
        allocated: everything that is taken then.
        claims: as they will be.
    """

    allocated: AllocatedState
    claims: dict[Uid, ResourceClaim] = field(default_factory=dict)

    def add(self, write: Write) -> None:
        """Count the allocations of an answer as taken."""
        for claim, allocation in write.allocations:
            self.allocated = self.allocated.with_allocations([(str(claim.key), allocation)])
            status = msgspec.structs.replace(claim.status, allocation=allocation)
            self.claims[claim.metadata.uid] = msgspec.structs.replace(claim, status=status)


def claims_for(pod: Pod, known: ClaimView, trial: Trial | None = None) -> list[ResourceClaim] | Wait:
    """Return the claims of a pod, each once, as they will be after a trial, or what is missing."""
    tried = trial.claims if trial is not None else {}
    claims: dict[Uid, ResourceClaim] = {}
    for used in pod_claims(pod):
        if not used.entry:
            continue  # made by kube-scheduler for extended resources: none of ours
        if used.key is None:
            return Wait(f"the claim for {used.entry} is not generated yet")
        claim = known.get(used.key)
        if claim is None or not is_for_pod(pod, claim):
            return Wait(f"claim {used.key} does not exist")
        problem = unreadable_claim(claim)
        if problem:
            return Wait(f"claim {used.key} cannot be read: {problem}")
        if claim.metadata.deletion_timestamp and claim.status.allocation is None:
            return Wait(f"claim {used.key} is being deleted")
        claims[claim.metadata.uid] = tried.get(claim.metadata.uid, claim)
    return list(claims.values())


def why_nominated(nominated: Mapping[str, str]) -> str:
    """Return that pods may be bound elsewhere with the same claims: node by pod."""
    named = ", ".join(f"pod {pod} to node {node}" for node, pod in sorted(nominated.items()))
    return f"kube-scheduler may be binding {named}, so its claims cannot be allocated elsewhere yet"


def why_behind(user: EarlierUser) -> str:
    """Return that another user of a claim comes first and cannot go along."""
    return (
        f"kube-scheduler looks first at pod {user.name}, which shares claim {user.claim}; it would "
        "deallocate the claim, because that pod cannot run with what is free now"
    )


def first_problem(owned: Sequence[OwnedClaim]) -> str:
    """Return why claims cannot be allocated by anybody; empty where that is not so."""
    for kind in (ClaimOwnership.MIXED, ClaimOwnership.UNKNOWN):
        for ownership in owned:
            if ownership.ownership is kind:
                return ownership.reason
    return ""
