"""Groups as preemptors and as victims, budgets that are violated, and kube-scheduler's own preemption."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import builders
import msgspec
from builders import allocation, result
from controller_harness import NS, Harness, claim, cluster_of, inline, pod, request
from group_members import member
from preemption_world import ON, budget, create, evictions, holder, play, served, until

from controller.allocate.answers.decider import Answers
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import PodID, Settings
from controller.allocate.plans import ChosenVictim, PlanAnswer, PlanQuestion, PreemptionAnswer
from controller.config import PreemptionSettings
from dra_driver.api import codec
from dra_driver.api.core import PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS


async def group(h: Harness, name: str, size: int, priority: int, *, runs: bool) -> None:
    for i in range(size):
        member(h.cluster, f"{name}-{i}", size, group=name, priority=priority)
    if runs:
        names = [f"{name}-{i}" for i in range(size)]
        await until(lambda: all(served(h, n) for n in names))
        for n in names:
            h.bind(n, h.devices(n)[0][0])
            h.cluster.edit(PODS, n, {"status": {"phase": "Running"}}, NS)


def test_a_group_displaces_a_group() -> None:
    async def scenario(h: Harness) -> None:
        await group(h, "low", 4, 1, runs=True)
        await group(h, "high", 4, 100, runs=False)
        await until(lambda: all(served(h, f"high-{i}") for i in range(4)))
        assert sorted(evictions(h)) == [f"low-{i}" for i in range(4)]

    play(cluster_of(n1=(80, 80), n2=(80, 80)), scenario)


def test_a_group_goes_as_a_whole_or_not_at_all() -> None:
    async def scenario(h: Harness) -> None:
        await group(h, "low", 3, 1, runs=True)
        await holder(h, "alone", priority=2)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        # Its priority is lower, but three pods are more than one: the highest priority counts first.
        assert sorted(evictions(h)) in (["alone"], ["low-0", "low-1", "low-2"])
        assert len(evictions(h)) in (1, 3)

    play(cluster_of(n1=(80, 80), n2=(80, 80)), scenario)


def test_a_budget_is_violated_only_where_that_is_allowed_and_with_the_condition_on_the_victim() -> None:
    async def scenario(h: Harness) -> None:
        seen: list[dict[str, str]] = []

        def look(verb: str, kind: str, name: str, _: str) -> None:
            if (verb, kind) == ("delete", "Pod"):
                conditions = h.cluster.raw(PODS, name, NS)["status"]["conditions"]
                seen.extend(c for c in conditions if c["type"] == "DisruptionTarget")

        await holder(h, "guarded", metadata={"labels": {"app": "x"}})
        budget(h.cluster, "x", {"app": "x"}, allowed=0)
        h.cluster.before = look
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"))
        assert evictions(h) == ["guarded"]
        assert [c["reason"] for c in seen] == ["PreemptionByDRADriver"]

    play(cluster_of(n1=(80,)), scenario, replace(ON, violates_budgets=True))


def test_a_pod_for_which_kube_scheduler_evicts_others_is_left_to_it() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "a", priority=1)
        victim = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        h.cluster.edit(PODS, "a", {"status": {"conditions": [victim]}}, NS)
        claim(h.cluster, "high", request())
        pod(h.cluster, "high", "high", gated=False, priority=100)
        h.report("high", "0/1 nodes are available: 1 Insufficient cpu.", nominated="n1")
        await asyncio.sleep(120)
        assert evictions(h) == []

    play(cluster_of(n1=(80,)), scenario)


def test_no_node_is_asked_for_while_room_is_made() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "low", priority=1)
        create(h, "high", priority=100)
        await until(lambda: evictions(h) == ["low"])
        await asyncio.sleep(40.0)
        assert h.gates("high"), "an autoscaler would add a node for it"
        await until(lambda: served(h, "high"))
        assert h.events("WaitingForScaleUp") == []

    cluster = cluster_of(n1=(80,))
    policy = {"metadata": {"name": "autoscaled", "generation": 1}, "spec": {"autoscaled": True}}
    cluster.put(DEVICE_POLICIES, policy)
    play(cluster, scenario, ends=60.0)


def test_what_ends_by_itself_is_waited_for() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "a", priority=1)
        await holder(h, "b", priority=1)
        h.cluster.edit(PODS, "a", {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}, NS)
        create(h, "high", priority=100)
        await until(lambda: served(h, "high"), seconds=100)
        assert evictions(h) == []

    play(cluster_of(n1=(80, 80)), scenario, ends=40.0)


def test_several_pods_get_room_at_the_same_time() -> None:
    async def scenario(h: Harness) -> None:
        for i in range(4):
            await holder(h, f"low-{i}", priority=1)
        for i in range(4):
            create(h, f"high-{i}", priority=100)
        # Each of them takes 20 s to end: one after the other they would take 80.
        await until(lambda: all(served(h, f"high-{i}") for i in range(4)), seconds=45)
        assert len(evictions(h)) == 4

    play(cluster_of(n1=(80,) * 4), scenario, ends=20.0)


def test_pods_of_other_namespaces_are_not_named() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "mine", priority=1)
        elsewhere(h, "theirs")
        create(h, "high", 2, priority=100)
        await until(lambda: bool(h.events("WouldPreempt")))
        assert h.events("WouldPreempt") == ["would preempt mine, 1 pods of other namespaces"]
        text = str(h.cluster.raw(PODS, "high", NS)["status"])
        assert "theirs" not in text

    play(cluster_of(n1=(80, 80)), scenario, PreemptionSettings())


def elsewhere(h: Harness, name: str) -> None:
    """Have a pod of another namespace run with the second device."""
    taken = allocation(result("n1", "gpu-1"))
    h.cluster.put(RESOURCE_CLAIMS, builders.claim(name, namespace="other", status=taken))
    found = builders.pod(name, name, namespace="other", nodeName="n1")
    h.cluster.put(PODS, found | {"status": {"phase": "Running"}})


def test_victims_that_a_worker_makes_up_stay() -> None:
    """A worker that was taken over names pods of the same priority, without devices, and of the preemptor."""

    async def scenario(h: Harness) -> None:
        await holder(h, "equal", priority=100)
        await holder(h, "low", priority=1)
        h.cluster.put(PODS, builders.pod("bare", nodeName="n1"))
        create(h, "high", 2, priority=100)
        await asyncio.sleep(120)
        assert evictions(h) == []
        assert not h.events("Preempting")

    class Lying:
        def __init__(self, real: Answers, journal: Journal) -> None:
            self._real, self._journal = real, journal
            self.run, self.ask, self.restart_worker = real.run, real.ask, real.restart_worker

        async def plan(self, question: PlanQuestion) -> PlanAnswer:
            victims = []
            for name in ("low", "equal", "bare", "high"):
                pod = self._journal.pod(ObjectKey(NS, name))
                if pod is not None:
                    victims.append(ChosenVictim(PodID(pod.key, pod.metadata.uid)))
            made_up = PreemptionAnswer(victims=tuple(victims))
            return PlanAnswer(self._journal.version, 0.0, plan=msgspec.Raw(codec.encode(made_up)))

    def answers(journal: Journal, settings: Settings, config: Any, metrics: Any) -> Answers:
        return Lying(inline(journal, settings, config, metrics), journal)

    play(cluster_of(n1=(80, 80)), scenario, answers_of=answers)
