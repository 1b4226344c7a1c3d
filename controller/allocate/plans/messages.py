"""What is asked about a waiting pod, and what comes back."""

from __future__ import annotations

from typing import Final

import msgspec

from controller.allocate.decide import PodID, PodPlacement, Rank
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.pod_affinity import LabelSelector

__all__ = [
    "LARGEST_PLAN",
    "BudgetState",
    "ChosenVictim",
    "PlanAnswer",
    "PlanQuestion",
    "PreemptionAnswer",
    "PreemptionTerms",
]

LARGEST_PLAN: Final = 2 << 20
"""Bytes of a plan; a group of 1,024 pods with eight devices each stays below."""


class BudgetState(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget.

    Attributes:
        key: of it.
        selector: of its pods; None selects none.
        allowed: disruptions that are allowed now.
    """

    key: ObjectKey
    selector: LabelSelector | None
    allowed: int


class PreemptionTerms(msgspec.Struct, frozen=True):
    """What decides who may be preempted besides the state of the decisions.

    Attributes:
        now: the time, by the clock of the changes.
        time: the time of day, in seconds since 1970.
        budgets: all that are known.
        kept: namespaces whose pods are never preempted.
        refused: pods whose removal was refused a short while ago.
        violates: whether budgets may be violated where no other choice is left.
        patience: seconds within which the end of a pod that is being deleted is waited for: from now until
            its grace period ends, and from then on.
    """

    now: float
    time: float
    budgets: tuple[BudgetState, ...] = ()
    kept: tuple[str, ...] = ()
    refused: tuple[Uid, ...] = ()
    violates: bool = False
    patience: float = 300.0


class PlanQuestion(msgspec.Struct, frozen=True):
    """What would make a pod fit?

    Attributes:
        pod: which one; the rest of its group is asked about with it.
        seconds: of CPU time that the answer may take. What is not known by then, the plan says.
        preemption: if not None, asked is which pods would have to go, and the plan is a
            ``PreemptionAnswer``.
    """

    pod: PodID
    seconds: float
    preemption: PreemptionTerms | None = None


class ChosenVictim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod that would have to go.

    Attributes:
        pod: which one.
        violates: PodDisruptionBudgets that its removal violates, ``namespace/name``.
        guarded: whether a PodDisruptionBudget is for it.
    """

    pod: PodID
    violates: tuple[str, ...] = ()
    guarded: bool = False


class PreemptionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who would have to go for a pod, or its group.

    Attributes:
        victims: in the order of their removal; none where none is needed, or none would help.
        rank: of the preemptor.
        places: what it would get.
        fits: whether it fits without that, at the latest when pods have ended that are being deleted.
        reason: why no pod is preempted, for people; empty where there are victims.
    """

    victims: tuple[ChosenVictim, ...] = ()
    rank: Rank | None = None
    places: tuple[PodPlacement, ...] = ()
    fits: bool = False
    reason: str = ""


class PlanAnswer(msgspec.Struct, frozen=True):
    """The answer to a ``PlanQuestion``.

    Attributes:
        version: of the last change that it knows.
        seconds: of CPU time that it took.
        limit: that it was stopped at; empty where there is a plan.
        plan: as JSON, in the form of ``plan_data``; null where there is none.
    """

    version: int
    seconds: float
    limit: str = ""
    plan: msgspec.Raw = msgspec.Raw(b"null")
