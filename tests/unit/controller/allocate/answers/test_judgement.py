"""What the controller does not put into effect, whatever an answer says."""

from __future__ import annotations

from collections.abc import Callable

import builders
import pytest
import virtual_time

from controller.allocate.answers.decider import Answered, Decider
from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    ClaimSeen,
    Decision,
    Lane,
    ObjectSeen,
    PodAnswer,
    PodQuestion,
    Refuse,
    Write,
)
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.signal import Signal
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.resource import AllocationResult, ResourceClaim

GPU_0 = builders.allocation(builders.result("n1", "gpu-0"))


class Says:
    """Implements ``Answers``: one decision, said to be of now."""

    def __init__(self, journal: Journal, decision: Decision) -> None:
        self._journal = journal
        self._decision = decision
        self.mistrusted: list[str] = []

    async def run(self) -> None:
        pass

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        version = self._journal.version
        return Answered(PodAnswer(version, self._decision, steps=1), Knowledge(version))

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        raise NotImplementedError

    def mistrust(self, reason: str) -> None:
        self.mistrusted.append(reason)


def judged(of: Callable[[dict[str, ResourceClaim]], Decision], *, allowed: bool = True) -> tuple[bool, bool]:
    """Return whether a decision about the pod ``own`` counts, and whether whatever gave it is replaced."""
    journal = Journal()
    bodies = {
        "own": builders.claim("own", uid="own"),
        "other": builders.claim("other", uid="other"),
        "allocated": builders.claim("allocated", uid="allocated", status=GPU_0),
        "reserved": builders.claim(
            "reserved",
            uid="reserved",
            status={**GPU_0, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]},
        ),
    }
    claims = {name: codec.convert(ResourceClaim, body) for name, body in bodies.items()}
    for claim in claims.values():
        journal.apply(ClaimSeen(claim))
    pod = codec.convert(Pod, builders.pod("own", "own", "allocated", "reserved", uid="pod"))
    journal.apply(ObjectSeen(pod))
    says = Says(journal, of(claims))
    clock = virtual_time.LoopClock()
    decider = Decider(journal, says, clock, Signal(), lambda _: allowed)
    found = virtual_time.run(decider.decide(pod, Lane.FAST))
    return found is not None, bool(says.mistrusted)


def write(*names: str) -> Callable[[dict[str, ResourceClaim]], Decision]:
    allocation = codec.convert(AllocationResult, GPU_0["allocation"])
    return lambda claims: Write("n1", tuple((claims[name], allocation) for name in names))


def undo(name: str) -> Callable[[dict[str, ResourceClaim]], Decision]:
    return lambda claims: Refuse("", undo=(claims[name],))


@pytest.mark.parametrize("decision", [write("own"), undo("allocated")])
def test_what_is_of_the_pod_counts(decision: Callable[[dict[str, ResourceClaim]], Decision]) -> None:
    assert judged(decision) == (True, False)


@pytest.mark.parametrize(
    "decision", [write("other"), write("allocated"), write("own", "own"), undo("other"), undo("reserved")]
)
def test_what_cannot_be_replaces_whatever_says_it(
    decision: Callable[[dict[str, ResourceClaim]], Decision],
) -> None:
    assert judged(decision) == (False, True)


def test_devices_that_are_taken_are_not_given_again() -> None:
    assert judged(write("own"), allowed=False) == (False, True)
