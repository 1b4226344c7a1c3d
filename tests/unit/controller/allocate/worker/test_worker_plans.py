"""Plans that a worker works out in copies of itself, beside decisions."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import msgspec
import pytest
from builders import DRIVER
from worker_world import GPU_0, WorkerCluster, copies_of, facts_of, hard_claim, long_text, run, world

from controller.allocate.answers.decider import WorkerEnded
from controller.allocate.decide import ClaimAssumed, ObjectGone, PodID, PoolChanged
from controller.allocate.plans import LARGEST_PLAN, PlanAnswer, PlanQuestion
from controller.allocate.worker.process import Limits
from controller.allocate.worker.sent_answers import plan_of
from controller.allocate.worker.wire import Code, Frame
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import DriverName, PoolName, Uid
from dra_driver.api.resource import AllocationResult
from dra_driver.errors import DecodeError
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy


def question(pod: Pod, seconds: float = 10.0) -> PlanQuestion:
    return PlanQuestion(PodID(pod.key, pod.metadata.uid), seconds)


async def plan(w: WorkerCluster, pod: Pod) -> dict[str, Any]:
    answer = await w.worker.plan(question(pod))
    assert not answer.limit, answer.limit
    found: dict[str, Any] = msgspec.json.decode(answer.plan)
    return found


def holders(found: dict[str, Any]) -> list[str]:
    return [h["name"] for h in found["free"]["holders"]]


def running(w: WorkerCluster, name: str, node: str, device: str, namespace: str = builders.NAMESPACE) -> None:
    """A pod with a device, of any namespace."""
    status = builders.allocation(builders.result(node, device))
    w.claim(builders.claim(name, uid=f"claim-{name}", status=status, namespace=namespace))
    body = builders.pod(name, name, uid=f"pod-{name}", cpu="1", node=node, namespace=namespace)
    w.seen(Pod, body)


def test_a_plan_names_the_holder_to_be_freed() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            running(w, "holder", "n1", "gpu-0")
            pod = w.pod("waits")
            found = await plan(w, pod)
            assert (found["fits"], found["error"]) == (False, False)
            assert (found["free"]["number"], found["free"]["proven"]) == (1, True)
            assert holders(found) == [f"{builders.NAMESPACE}/holder"]
            assert found["addNodes"][0]["number"] == 1
            assert w.worker.restarts == 0

    run(scenario)


def test_a_plan_knows_what_is_assumed_and_what_is_gone() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            first, second = w.pod("first"), w.pod("second")
            assert (await plan(w, first))["fits"]
            allocation = codec.convert(AllocationResult, GPU_0["allocation"])
            key = first.key
            w.journal.apply(ClaimAssumed(key, Uid("claim-first"), allocation))
            found = await plan(w, second)
            assert not found["fits"]
            assert holders(found) == [str(key)]
            w.journal.apply(ClaimAssumed(key, Uid("claim-first"), None))
            w.journal.apply(ObjectGone(Pod, second.key))
            gone = await plan(w, second)
            assert gone["error"]
            assert "does not exist" in gone["reason"]

    run(scenario)


def test_the_members_of_a_group_are_asked_about_together() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.node("n1", 1)
            labels = {"dra-driver.dev/group": "g", "dra-driver.dev/group-size": "3"}
            for name in ("a", "b"):
                w.claim(builders.claim(name, uid=f"claim-{name}"))
                body = builders.pod(name, name, uid=f"pod-{name}", gated=True, cpu="1")
                body["metadata"]["labels"] = labels
                w.pods[name] = w.seen(Pod, body)
            found = await plan(w, w.pods["b"])
            assert (found["workload"], found["pods"]) == (f"group {builders.NAMESPACE}/g", 3)
            assert found["addNodes"][0]["number"] == 2
            assert "2 of 3 pods are there" in found["notes"][0]

    run(scenario)


@pytest.mark.parametrize(
    ("nodes", "pools", "it"),
    [(["n1"], "1 pool", "it"), (["n1", "n2"], "2 pools", "them")],
)
def test_pools_that_change_hands_are_counted(nodes: list[str], pools: str, it: str) -> None:
    note = (
        f"the controller does not allocate from {pools} now: kube-scheduler allocates from {it}, or "
        "a handover is under way"
    )

    async def scenario() -> None:
        async with world() as w:
            for name in nodes:
                w.node(name, 1)
                w.journal.apply(PoolChanged(PoolID(DriverName(DRIVER), PoolName(name)), True, PoolPolicy()))
            found = await plan(w, w.pod("first"))
            assert note in found["notes"]

    run(scenario)


def test_decisions_go_on_beside_a_plan_and_plans_take_turns() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.hard_nodes()
            slow = w.pod("slow", hard_claim("slow"))
            quick = [w.pod(f"quick-{i}") for i in range(3)]
            async with asyncio.TaskGroup() as group:
                w.accept(await w.ask(w.pod("first").metadata.name))
                plans = [group.create_task(w.worker.plan(question(p, 0.3))) for p in (slow, quick[0])]
                while not copies_of(w.child.pid):
                    await asyncio.sleep(0.01)
                for pod in quick:
                    w.accept(await w.ask(pod.metadata.name))
                    assert len(copies_of(w.child.pid)) <= 1
                assert not plans[0].done()
            assert not plans[0].result().limit, plans[0].result()
            found = msgspec.json.decode(plans[0].result().plan)
            # What the time did not suffice for is said; nothing is guessed.
            assert not found["fits"]
            assert not found["certain"]
            assert found["unfinished"]
            assert w.worker.restarts == 0

    run(scenario)


def test_a_plan_that_takes_too_much_memory_is_stopped_alone() -> None:
    async def scenario() -> None:
        async with world(Limits(memory=1 << 20)) as w:
            w.node("n1", 1)
            answer = await w.worker.plan(question(w.pod("waits", long_text("waits"))))
            assert "1 MiB of memory" in answer.limit
            w.accept(await w.ask(w.pod("other").metadata.name))
            assert w.worker.restarts == 0

    run(scenario)


def test_who_asks_is_told_when_the_worker_ends() -> None:
    async def scenario() -> None:
        async with world() as w:
            w.hard_nodes()
            w.accept(await w.ask(w.pod("first").metadata.name))
            pod = w.pod("slow", hard_claim("slow"))
            asked = asyncio.get_running_loop().create_task(w.worker.plan(question(pod)))
            while not copies_of(w.child.pid):
                await asyncio.sleep(0.01)
            copies = copies_of(w.child.pid)
            await w.kill()
            with pytest.raises(WorkerEnded):
                await asked
            assert not (await w.worker.plan(question(w.pod("easy")))).limit
            # They were killed with the worker, and are gone when the system has ended them.
            while any(map(facts_of, copies)):
                await asyncio.sleep(0.01)

    run(scenario)


def frame_of(**fields: Any) -> Frame:
    values: dict[str, Any] = {"version": 3, "seconds": 0.5, "limit": "", "plan": {"fits": True}} | fields
    return Frame(Code.PLANNED, 1, msgspec.json.encode(values))


def test_a_plan_is_taken_as_it_is_sent() -> None:
    assert plan_of(frame_of(), 3) == PlanAnswer(3, 0.5, plan=msgspec.Raw(b'{"fits":true}'))
    assert plan_of(frame_of(limit="too slow", plan=None), 3).limit == "too slow"


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 4},
        {"version": -1},
        {"seconds": -1.0},
        {"seconds": 1e9},
        {"limit": "x" * 20_000, "plan": None},
        {"limit": "both"},
        {"plan": None},
        {"plan": ["x"] * LARGEST_PLAN},
        {"seconds": "long"},
    ],
)
def test_plans_that_no_worker_in_order_sends_end_it(fields: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        plan_of(frame_of(**fields), 3)
