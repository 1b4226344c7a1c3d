"""Claims that take long to decide on: what they cost, and that the others are served all the same."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from controller_harness import OURS, Harness, claim, cluster_of, node, pod, pool, request, run
from fake_client import FakeClient
from group_members import member

from controller.allocate.decide.heavy import FAST_SECONDS, HeavyQuestions
from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.structured import LARGEST_GROUP
from dra_driver.structured.model.budget import BudgetExhausted


class Work:
    """CPU time that passes when the test says so."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_question_that_was_cheap_may_be_asked_again_at_once() -> None:
    heavy = HeavyQuestions(Work())
    assert heavy.refused("team-a", "q", 0.005, "no device", 1000.0, gave_up=False) == 0.0
    assert not heavy


def test_a_refusal_that_took_work_is_not_repeated_before_twenty_times_as_long() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    for _ in range(3):
        pause = heavy.refused("team-a", "q", 0.2, "no domain is large enough", now, gave_up=False)
        assert pause == pytest.approx(4.0)
        assert heavy.left("q", now) == pytest.approx(4.0)
        assert heavy.left("other", now) == 0.0
        assert heavy.message("q") == "no domain is large enough"
        now += 4.0
        assert heavy.left("q", now) == 0.0


def test_the_pause_doubles_where_the_decision_is_given_up_and_has_an_end() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    delays = []
    for _ in range(8):
        delays.append(heavy.refused("team-a", "q", 0.5, "gave up", now, gave_up=True))
        now += delays[-1]
    assert delays == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]
    heavy.served("team-a", "q", now)
    assert heavy.left("q", now) == 0.0
    assert not heavy.is_hard("team-b", "q", now)


def test_a_question_that_the_fast_lane_is_not_enough_for_belongs_into_the_slow_lane() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    heavy.gave_up("team-a", "q", now)
    assert heavy.is_hard("team-a", "q", now)
    assert heavy.left("q", now) == 0.0
    assert not heavy.is_hard("team-a", "other", now)
    # The pause that it has earned in the slow lane goes on doubling.
    assert heavy.refused("team-a", "q", 0.5, "gave up", now, gave_up=True) == 10.0
    heavy.gave_up("team-a", "q", now + 10.0)
    assert heavy.refused("team-a", "q", 0.5, "gave up", now + 10.0, gave_up=True) == 20.0


def test_a_namespace_that_asks_for_too_much_is_slow_and_recovers() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    for i in range(3):
        assert not heavy.is_hard("team-a", "new", now)
        heavy.gave_up("team-a", i, now)
    assert heavy.is_hard("team-a", "new", now)
    assert not heavy.is_hard("team-b", "new", now)
    now += 60.0
    assert not heavy.is_hard("team-a", "new", now)


def test_what_is_served_in_the_slow_lane_is_not_held_against_its_namespace() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    for i in range(20):
        heavy.gave_up("team-a", i, now)
        assert not heavy.is_hard("team-a", "new", now)
        heavy.served("team-a", i, now)
    assert not heavy.is_hard("team-a", 0, now)


def test_many_hard_questions_from_many_namespaces_cost_the_fast_lane_little() -> None:
    now, heavy = 1000.0, HeavyQuestions(Work())
    whole = heavy.fast_budget("team", now).steps
    steps = []
    for i in range(100):
        steps.append(heavy.fast_budget("team", now).steps)
        heavy.gave_up(f"team-{i}", i, now)
        now += 0.01
    assert steps[:3] == [whole, whole // 2, whole // 4]
    assert sum(steps) < 9 * whole
    assert heavy.fast_budget("team", now + 10.0).steps == whole


@pytest.mark.parametrize("seconds", [FAST_SECONDS, 2.0])
def test_the_seconds_of_a_budget_are_work_and_not_the_time_of_a_busy_machine(seconds: float) -> None:
    work = Work()
    budget = HeavyQuestions(work).budget(seconds)
    budget.spend(1000)
    work.time += seconds
    with pytest.raises(BudgetExhausted):
        budget.spend(1000)
    assert budget.exhausted


def test_what_is_remembered_is_bounded() -> None:
    heavy = HeavyQuestions(Work())
    for i in range(10_050):
        heavy.refused(f"ns-{i}", i, 1.0, "gave up", 1000.0, gave_up=True)
        heavy.gave_up(f"ns-{i}", -i, 1000.0)
    assert len(heavy._known) == len(heavy._strikes) == 10_000


# --- in the controller --------------------------------------------------------------------------------------


def hard_claim(cluster: FakeClient, name: str, kind: str = "x") -> None:
    """Eight requests with eight alternatives, for eight devices with seven values of an attribute."""
    subs = [
        {"name": f"s{i}", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
        for i in range(8)
    ]
    requests = [{"name": f"r{i}", "firstAvailable": subs} for i in range(8)]
    claim(cluster, name, *requests)
    constraints = [{"distinctAttribute": f"{OURS}/{kind}"}]
    cluster.edit(RESOURCE_CLAIMS, name, {"spec": {"devices": {"constraints": constraints}}}, "default")


def numbered(cluster: FakeClient, name: str, memory: int = 40) -> None:
    """A pool whose devices have seven values of ``x``."""
    pool(cluster, name, *[memory] * 8)
    raw = cluster.raw(RESOURCE_SLICES, f"{name}-{OURS}")
    devices = [{**d, "attributes": {"x": {"int": i % 7}}} for i, d in enumerate(raw["spec"]["devices"])]
    cluster.edit(RESOURCE_SLICES, f"{name}-{OURS}", {"spec": {"devices": devices}})


@pytest.mark.long
def test_a_claim_that_cannot_be_decided_is_said_to_be_and_left_alone_for_a_while() -> None:
    cluster = cluster_of()
    for name in ("n1", "n2"):
        node(cluster, name)
        numbered(cluster, name)
    hard_claim(cluster, "hard")
    pod(cluster, "hard", "hard")

    async def scenario(h: Harness) -> None:
        told = h.events("DecisionLimit")
        assert any("gave up" in text for text in told)
        await h.quiet(2.0)
        assert h.reason("hard").reason == "DecisionLimit"
        assert "gave up" in h.reason("hard").message
        assert h.gates("hard")
        decisions = h.decisions()
        for i in range(5):
            node(cluster, f"new-{i}")
            pool(cluster, f"new-{i}", 40)
            await asyncio.sleep(0.1)
        assert h.decisions() == decisions
        # A pod that asks for the same is told the same, at no cost.
        hard_claim(cluster, "twin")
        pod(cluster, "twin", "twin")
        await h.quiet()
        assert h.decisions() == decisions
        assert len([text for text in h.events("DecisionLimit") if "gave up" in text]) > len(told)
        # Pods that ask for what is there are served meanwhile.
        claim(cluster, "easy", request())
        pod(cluster, "easy", "easy")
        await h.quiet()
        assert h.devices("easy")
        decisions = h.decisions()
        h.clock.time += 400.0
        node(cluster, "later")
        pool(cluster, "later", 40)
        await h.quiet()
        assert h.decisions() > decisions

    run(cluster, scenario)


def test_a_group_costs_one_decision_and_not_one_for_each_member() -> None:
    cluster = cluster_of(**{f"n{i}": (40, 40) for i in range(6)})
    for i in range(5):
        member(cluster, f"m{i}", 5)
        cluster.edit(
            PODS,
            f"m{i}",
            {"metadata": {"annotations": {GROUP_DOMAIN_ANNOTATION: "kubernetes.io/hostname"}}},
            "default",
        )

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert len({e for e in h.events("FailedAllocation") if "all 5 pods together" in e}) == 1
        told = {e.involved_object.name for e in h.cluster.all(EVENTS) if e.reason == "FailedAllocation"}
        assert {f"m{i}" for i in range(5)} <= told
        before = h.decisions()
        # An event of each member is no reason to solve the group again.
        for i in range(5):
            cluster.edit(PODS, f"m{i}", {"metadata": {"labels": {"touched": str(next(ticks))}}}, "default")
        await h.quiet()
        assert h.decisions() == before
        # A change in the cluster is one, and one is enough for all members.
        node(cluster, "big")
        pool(cluster, "big", *[40] * 5)
        await h.quiet()
        assert len(h.held()) == 5
        assert {node for node, _ in h.held()} == {"big"}

    ticks = count()
    run(cluster, scenario)


def test_a_pod_with_too_many_conditions_on_nodes_is_judged_without_them() -> None:
    cluster = cluster_of(n1=(40,))
    cluster.edit(
        NODES, "n1", {"spec": {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}}
    )
    terms = [
        {"matchExpressions": [{"key": f"k{i}", "operator": "In", "values": ["a", "b"]}]} for i in range(200)
    ]
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    tolerations = [{"key": f"t{i}", "operator": "Exists"} for i in range(600)]
    for name, spec in (
        ("few", {"tolerations": tolerations[:10]}),
        ("tolerant", {"tolerations": tolerations}),
        ("picky", {"affinity": affinity, "tolerations": tolerations[:10]}),
    ):
        claim(cluster, name)
        pod(cluster, name, name, **spec)

    async def scenario(h: Harness) -> None:
        # kube-scheduler has the last word about these; the ordinary one is judged here.
        assert len(h.held()) == 1
        assert h.devices("few") == []
        assert any("untolerated taint" in text for text in h.events("FailedAllocation"))
        pool(cluster, "n1", 40, 40, 40)
        await h.quiet()
        assert [len(h.devices(n)) for n in ("few", "tolerant", "picky")] == [0, 1, 1]

    run(cluster, scenario)


@pytest.mark.long
def test_a_group_with_more_pods_than_any_group_has_costs_no_look_at_each_of_them() -> None:
    cluster = cluster_of(n1=(40, 40))
    for i in range(LARGEST_GROUP + 1):
        labels = {GROUP_LABEL: "huge", GROUP_SIZE_LABEL: "2"}
        pod(cluster, f"p{i}", "shared", metadata={"labels": labels})
    claim(cluster, "shared")

    async def scenario(h: Harness) -> None:
        assert h.held() == []
        assert any(f"more than {LARGEST_GROUP} pods" in text for text in h.events("FailedAllocation"))

    run(cluster, scenario)


def test_a_pod_whose_claim_is_allocated_meanwhile_does_not_wait_for_the_pause() -> None:
    cluster = cluster_of()
    node(cluster, "n1")
    numbered(cluster, "n1")
    hard_claim(cluster, "hard")
    pod(cluster, "hard", "hard")

    async def scenario(h: Harness) -> None:
        assert any("gave up" in text for text in h.events("DecisionLimit"))
        result = {"request": "r0", "driver": OURS, "pool": "n1", "device": "gpu-0"}
        allocation = {"allocation": {"devices": {"results": [result]}}}
        cluster.edit(RESOURCE_CLAIMS, "hard", {"status": allocation}, "default")
        await h.quiet()
        assert h.gates("hard") == []

    # As many steps as that takes are by far not enough.
    run(cluster, scenario, decision_seconds=0.2)


def test_a_group_that_was_given_up_is_decided_again_although_nothing_has_changed() -> None:
    cluster = cluster_of()
    # So many that differ that the steps of the whole decision run out, and not only those of each node.
    for i in range(5):
        node(cluster, f"n{i}")
        numbered(cluster, f"n{i}", 40 + i)
    for i in range(2):
        hard_claim(cluster, f"m{i}")
        pod(cluster, f"m{i}", f"m{i}")
        labels = {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "2"}
        cluster.edit(PODS, f"m{i}", {"metadata": {"labels": labels}}, "default")

    async def scenario(h: Harness) -> None:
        before = h.decisions()
        assert before
        h.clock.time += 400.0
        cluster.edit(PODS, "m0", {"metadata": {"labels": {"touched": "yes"}}}, "default")
        await h.quiet()
        assert h.decisions() > before

    # Less than it takes to find out that there are too many combinations on each node.
    run(cluster, scenario, group_decision_seconds=0.1)
