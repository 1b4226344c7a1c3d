"""What the controller does not put into effect, whatever an answer says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import builders
import pytest
import virtual_time

from controller.allocate.answers.decider import Answered, Decider
from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    GrantDevices,
    GrantedDevices,
    GrantedNode,
    GroupWrite,
    Lane,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodID,
    PodQuestion,
    PoolChanged,
    Proceed,
    QuestionHeavy,
    Refuse,
    Write,
)
from controller.allocate.plans import PlanAnswer, PlanQuestion
from controller.allocate.signal import Signal
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured import DEFAULT_POLICY

GPU_0 = builders.allocation(builders.result("n1", "gpu-0"))
ALLOCATION = codec.convert(AllocationResult, GPU_0["allocation"])
N1, N2 = (PoolID(builders.DRIVER, PoolName(name)) for name in ("n1", "n2"))


class Says:
    """Implements ``Answers``: one decision, said to be of now, and what changes while it is on its way."""

    def __init__(self, journal: Journal, decision: Decision) -> None:
        self._journal = journal
        self.decision = decision
        self.meanwhile: Sequence[Change] = ()
        self.mistrusted: list[str] = []
        self.asked = 0

    async def run(self) -> None:
        pass

    async def ask(self, question: PodQuestion, unwanted: Callable[[Answered], None]) -> Answered:
        self.asked += 1
        version = self._journal.version
        for change in self.meanwhile:
            self._journal.apply(change)
        taken = self.decision.allocations if isinstance(self.decision, Write) else ()
        claims = tuple((claim.key, claim.metadata.uid) for claim, _ in taken)
        return Answered(PodAnswer(version, self.decision, steps=1), Knowledge(version), claims)

    async def plan(self, question: PlanQuestion) -> PlanAnswer:
        raise NotImplementedError

    def restart_worker(self, reason: str) -> None:
        self.mistrusted.append(reason)


class Bench:
    """A decider whose answers are all the same, beside pods that use the same claims.

    Args:
        of: the decision, made of the claims.
        pods: how many there are, with the names and UIDs ``pod-0`` and so on.
        allowed: whether the controller's last look at the devices allows what is allocated.
    """

    def __init__(
        self, of: Callable[[dict[str, ResourceClaim]], Decision], *, pods: int = 1, allowed: bool = True
    ) -> None:
        self.journal = Journal()
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
            self.journal.apply(ClaimSeen(claim))
        self.pods = [
            codec.convert(Pod, builders.pod(f"pod-{i}", "own", "allocated", "reserved", uid=f"pod-{i}"))
            for i in range(pods)
        ]
        for pod in self.pods:
            self.journal.apply(ObjectSeen(pod))
        self.says = Says(self.journal, of(claims))
        self.clock = virtual_time.LoopClock()
        self.decider = Decider(self.journal, self.says, self.clock, Signal(), lambda _: allowed)

    async def decide(self, pod: Pod) -> Decision | None:
        found = await self.decider.decide(pod, Lane.FAST)
        return found[0].decision if found is not None else None


def write(*names: str) -> Callable[[dict[str, ResourceClaim]], Decision]:
    return lambda claims: Write("n1", tuple((claims[name], ALLOCATION) for name in names))


def undo(name: str) -> Callable[[dict[str, ResourceClaim]], Decision]:
    return lambda claims: Refuse("", undo=(claims[name],))


@pytest.mark.parametrize("decision", [write("own"), undo("allocated")])
def test_what_is_of_the_pod_counts(decision: Callable[[dict[str, ResourceClaim]], Decision]) -> None:
    bench = Bench(decision)
    assert virtual_time.run(bench.decide(bench.pods[0])) is bench.says.decision
    assert bench.says.asked == 1


@pytest.mark.parametrize(
    "decision", [write("other"), write("allocated"), write("own", "own"), undo("other"), undo("reserved")]
)
def test_what_cannot_be_is_asked_once_more_and_then_costs_only_the_pod(
    decision: Callable[[dict[str, ResourceClaim]], Decision],
) -> None:
    bench = Bench(decision)
    found = virtual_time.run(bench.decide(bench.pods[0]))
    assert isinstance(found, Refuse)
    assert not found.undo
    assert bench.says.asked == 2
    assert not bench.says.mistrusted


def test_devices_that_are_taken_are_not_given_again() -> None:
    bench = Bench(write("own"), allowed=False)
    assert isinstance(virtual_time.run(bench.decide(bench.pods[0])), Refuse)


def test_a_question_that_was_given_up_is_heavy_for_the_next_worker() -> None:
    bench = Bench(write("other"))
    virtual_time.run(bench.decide(bench.pods[0]))
    heavy = [change for change in bench.journal.replay() if isinstance(change, QuestionHeavy)]
    assert [(change.pod, change.gave_up) for change in heavy] == [(bench.pods[0].key, True)]


def test_a_worker_that_is_wrong_about_many_pods_is_replaced_once_a_minute() -> None:
    bench = Bench(write("other"), pods=40)

    async def scenario() -> list[int]:
        seen: list[int] = []
        for pod in bench.pods[:20]:
            await bench.decide(pod)
            seen.append(len(bench.says.mistrusted))
        await asyncio.sleep(60)
        for pod in bench.pods[20:]:
            await bench.decide(pod)
            seen.append(len(bench.says.mistrusted))
        return seen

    assert virtual_time.run(scenario()) == [0] * 7 + [1] * 13 + [2] * 20


def test_an_allocation_that_holds_ends_the_doubt() -> None:
    bench = Bench(write("other"), pods=20)
    wrong, right = bench.says.decision, Bench(write("own")).says.decision

    async def scenario() -> None:
        for number, pod in enumerate(bench.pods):
            bench.says.decision = right if number % 7 == 6 else wrong
            await bench.decide(pod)

    virtual_time.run(scenario())
    assert not bench.says.mistrusted


def test_one_pod_asked_about_again_and_again_never_replaces_the_worker() -> None:
    bench = Bench(write("other"))

    async def scenario() -> None:
        for _ in range(30):
            await bench.decide(bench.pods[0])
            await asyncio.sleep(60)

    virtual_time.run(scenario())
    assert not bench.says.mistrusted


# --- what changes while an answer is on its way -------------------------------------------------------------


def judged(
    of: Callable[[dict[str, ResourceClaim]], Decision], *meanwhile: Change, allowed: bool = True
) -> bool | None:
    """Return whether an answer counts or is impossible; None where it is to be asked for again."""
    bench = Bench(of, allowed=allowed)
    bench.says.meanwhile = meanwhile
    found = virtual_time.run(bench.decide(bench.pods[0]))
    return None if found is None else found is bench.says.decision


def in_use(name: str, pool: str) -> Change:
    """Return that another claim is seen to hold a device."""
    held = builders.allocation(builders.result(pool, "gpu-0"))
    return ClaimSeen(codec.convert(ResourceClaim, builders.claim(name, uid=name, status=held)))


def assumed(name: str, pool: str = "n2") -> Change:
    """Return that another answer gives a device to a claim."""
    held = builders.allocation(builders.result(pool, "gpu-0"))["allocation"]
    return ClaimAssumed(key_of(name), Uid(name), codec.convert(AllocationResult, held))


def key_of(name: str) -> ObjectKey:
    return ObjectKey(builders.NAMESPACE, name)


def blocked(pool: PoolID) -> Change:
    return PoolChanged(pool, True, DEFAULT_POLICY)


def grant(_: dict[str, ResourceClaim]) -> Decision:
    nodes = (("n1", N1), ("n2", N2))
    found = (GrantedNode(node, (GrantedDevices(pool, "key", ("gpu-0",)),)) for node, pool in nodes)
    return GrantDevices(tuple(found))


def proceed(_: dict[str, ResourceClaim]) -> Decision:
    return Proceed("n1")


def group(claims: dict[str, ResourceClaim]) -> Decision:
    member = PodID(key_of("pod-0"), Uid("pod-0"))
    return GroupWrite(((member, Write("n1", ((claims["own"], ALLOCATION),))),))


def group_of_another_pod(claims: dict[str, ResourceClaim]) -> Decision:
    member = PodID(key_of("pod-0"), Uid("pod of before"))
    return GroupWrite(((member, Write("n1", ((claims["own"], ALLOCATION),))),))


@pytest.mark.parametrize("decision", [write("own"), group, undo("allocated"), grant])
def test_an_answer_about_a_pool_that_has_changed_is_asked_for_again(
    decision: Callable[[dict[str, ResourceClaim]], Decision],
) -> None:
    assert judged(decision) is True
    assert judged(decision, blocked(N1)) is None
    assert judged(decision, blocked(PoolID(builders.DRIVER, PoolName("n3")))) is True


@pytest.mark.parametrize("pool", ["n1", "n2"])
def test_devices_are_not_granted_where_any_have_been_taken_meanwhile(pool: str) -> None:
    assert judged(grant, in_use("another", pool)) is None
    assert judged(grant, assumed("another", pool)) is None
    assert judged(grant, in_use("another", "n3")) is True


def test_an_answer_is_not_to_blame_for_devices_that_were_taken_meanwhile() -> None:
    assert judged(write("own"), in_use("another", "n1"), allowed=False) is None
    assert judged(write("own"), assumed("another", "n1"), allowed=False) is None
    # What has been taken elsewhere is no excuse.
    assert judged(write("own"), in_use("another", "n2"), allowed=False) is False


def test_a_claim_is_not_allocated_while_another_allocation_of_it_is_written() -> None:
    assert judged(write("own"), assumed("own")) is None


def test_a_pod_proceeds_only_by_what_its_claims_are_now() -> None:
    assert judged(proceed) is True
    assert judged(proceed, in_use("other", "n3")) is True
    for name in ("own", "allocated", "reserved"):
        assert judged(proceed, ClaimGone(key_of(name), Uid(name))) is None


def test_a_claim_that_has_been_reserved_meanwhile_is_not_deallocated() -> None:
    reserved = {**GPU_0, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]}
    body = builders.claim("reserved", uid="reserved", status=reserved)
    seen = ClaimSeen(codec.convert(ResourceClaim, body))
    assert judged(undo("reserved"), seen) is None


@pytest.mark.parametrize("decision", [write("own"), group])
def test_nothing_is_allocated_for_a_pod_that_has_gone_or_is_another(
    decision: Callable[[dict[str, ResourceClaim]], Decision],
) -> None:
    again = codec.convert(Pod, builders.pod("pod-0", "own", uid="another"))
    assert judged(decision, ObjectGone(Pod, key_of("pod-0"))) is None
    assert judged(decision, ObjectSeen(again)) is None


def test_nothing_is_allocated_for_a_member_that_was_never_there() -> None:
    assert judged(group) is True
    assert judged(group_of_another_pod) is None
