"""Why pods are refused, as the answers say it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller.allocate.decide.groups.group_members import Gang, GroupProblem, signature_of_group
from controller.allocate.decide.messages import NotYet, Refuse
from controller.allocate.decide.nodes.signatures import signature_of
from controller.allocate.decide.pods.questions import NoFit
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.state.claims import ClaimView
from controller.allocate.decide.state.objects import CLAIM_INDEX, Objects, claims_of, is_ending
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.resourceclaim import claims_named, foreign_gates, is_generated
from dra_driver.structured import IndexUnfinished

__all__ = ["Refusals"]

# Of the users of a claim that are looked at: there may be thousands.
_MOST_CLAIMS: Final = 4096


class Refusals:
    """Makes refusals of what was found out about pods.

    Args:
        pods: with the index ``CLAIM_INDEX``.
        claims: what is taken.
        decider: knows whose claims are, and where pods can go.
    """

    def __init__(self, pods: Objects[Pod], claims: ClaimView, decider: PodDecider) -> None:
        self._pods = pods
        self._claims = claims
        self._decider = decider

    def of(self, pod: Pod, decision: NoFit, avoid: Collection[str]) -> Refuse:
        """Return the refusal of a pod that does not fit; ``avoid``: nodes that were left out."""
        own, shared = _asked(pod, decision.claims)
        return Refuse(
            decision.message,
            decision.claims,
            # A pod that merely shares a claim lets another pod go first.
            tuple(c for c in decision.undo if not self._serves_another(c, pod)),
            decision.elsewhere,
            signature_of(
                pod,
                own,
                avoid,
                self._decider.beside(pod),
                self._decider.volume_needs(pod),
                shared,
            ),
            decision.new_node and not decision.gave_up,
        )

    def not_yet(
        self, pod: Pod, group: Gang | None, unfinished: IndexUnfinished, avoid: Collection[str]
    ) -> NotYet:
        """Return that it is not known yet whether a pod, or its group, can be served.

        Args:
            pod: that was asked about.
            group: of the pod.
            unfinished: what is being prepared.
            avoid: nodes that are left out for the pod.
        """
        waiting = self._waiting(pod)
        ours = tuple(c for c in waiting if not self._decider.is_theirs(c))
        if group is not None:
            return NotYet(str(unfinished), ours, signature_of_group(group.key))
        beside, volumes = self._decider.beside(pod), self._decider.volume_needs(pod)
        own, shared = _asked(pod, ours)
        signature = signature_of(pod, own, avoid, beside, volumes, shared)
        return NotYet(str(unfinished), ours, signature)

    def of_problem(self, pod: Pod, problem: GroupProblem, undo: tuple[ResourceClaim, ...]) -> Refuse:
        """Return the refusal of a pod whose group is wrong; it is reported where the pod has no gate, too.

        Args:
            pod: the one that is refused.
            problem: what is wrong.
            undo: what the pod has to give back.
        """
        ours = tuple(c for c in self._waiting(pod) if not self._decider.is_theirs(c))
        return Refuse(problem.message, ours, undo, signature=signature_of_group(problem.key))

    def of_stopped(self, key: ObjectKey, pod: Pod | None, limit: str) -> Refuse:
        """Return the refusal of a pod the working out of whose question was stopped.

        Args:
            key: of the pod.
            pod: if it is still there.
            limit: that was met, such as ``2 s of CPU time``.
        """
        waiting = self._waiting(pod) if pod is not None else ()
        names = ", ".join(c.metadata.name for c in waiting) or "none"
        return Refuse(
            f"the decision about claim {names} was stopped: it took more than {limit}; ask for fewer "
            "alternatives, fewer devices in one claim, or with simpler selectors",
            waiting,
            signature=str(key).encode(),
        )

    def _waiting(self, pod: Pod) -> tuple[ResourceClaim, ...]:
        """Return the claims of a pod that are not allocated."""
        claims = (self._claims.get(key) for key in claims_of(pod))
        return tuple(c for c in claims if c is not None and c.status.allocation is None)

    def _serves_another(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether another pod that has everything it needs is about to run with the claim.

        Of those that are left out none can run that kube-scheduler has not reserved the claim for by then.
        """
        left = _MOST_CLAIMS
        for other in self._pods.each(CLAIM_INDEX, claim.key):
            left -= 1 + len(other.spec.resource_claims)
            if left < 0:
                break
            if is_ending(other) or foreign_gates(other) or other.metadata.uid == pod.metadata.uid:
                continue
            needed = (self._claims.get(key) for key in claims_named(other))
            # The claims of a pod are written one after the other.
            if all(
                c is not None and (c.status.allocation is not None or self._claims.is_assumed(c))
                for c in needed
            ):
                return True
        return False


_Claims = tuple[ResourceClaim, ...]


def _asked(pod: Pod, claims: _Claims) -> tuple[_Claims, _Claims]:
    """Return the claims of a pod that wait, as its own or as those that others may share.

    Both are empty where it has other claims as well: then its answer may be another one than that of any
    other pod. Of pods that share all their claims, those that kube-scheduler looks at later fit nowhere where
    an earlier one does not.
    """
    entries = pod.spec.resource_claims
    if len(claims) != len(entries):
        return (), ()
    return (claims, ()) if all(map(is_generated, entries)) else ((), claims)
