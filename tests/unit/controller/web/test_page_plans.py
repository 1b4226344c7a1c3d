"""Plans that readers of the page ask for: how many at a time, what is kept, who is told to come again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import virtual_time

from controller.web.plans import FRESH_SECONDS, MOST_WAITING, Planned, PlanReply, Plans
from dra_driver.api.meta import ObjectKey, Uid

POD = ObjectKey("ns", "p")


class Source:
    """Implements ``PlanSource``: each plan takes a second of the clock."""

    def __init__(self) -> None:
        self.version = 1
        self.pods = {ObjectKey("ns", f"p{i}"): Uid(f"uid-{i}") for i in range(1000)} | {POD: Uid("u")}
        self.asked: list[ObjectKey] = []
        self.working = self.most_working = 0
        self.limit = ""
        self.cpu_seconds = 0.0
        self.plan = b'{"fits": true}'

    def find(self, pod: ObjectKey) -> Uid | None:
        return self.pods.get(pod)

    async def ask(self, pod: ObjectKey, uid: Uid) -> Planned:
        self.asked.append(pod)
        self.working += 1
        self.most_working = max(self.most_working, self.working)
        version = self.version
        await asyncio.sleep(1.0)
        self.working -= 1
        return Planned(version, self.cpu_seconds, self.limit, b"null" if self.limit else self.plan)


def body(reply: PlanReply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.body)
    return found


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_plan_is_given_again_while_nothing_has_changed() -> None:
    async def main() -> None:
        source = Source()
        plans = Plans(source)
        first = await plans.get(POD)
        assert (first.status, body(first)["plan"], body(first)["age"]) == (200, {"fits": True}, 0.0)
        await asyncio.sleep(1000)
        again = await plans.get(POD)
        assert body(again)["age"] == 1000.0
        assert source.asked == [POD]

    virtual_time.run(main())


def test_a_plan_is_given_again_for_a_few_seconds_only_when_the_cluster_has_changed() -> None:
    async def main() -> None:
        source = Source()
        plans = Plans(source)
        await plans.get(POD)
        source.version += 1
        await asyncio.sleep(FRESH_SECONDS - 0.1)
        await plans.get(POD)
        assert len(source.asked) == 1
        await asyncio.sleep(0.2)
        await plans.get(POD)
        assert len(source.asked) == 2

    virtual_time.run(main())


def test_a_pod_of_the_same_name_is_another_one() -> None:
    async def main() -> None:
        source = Source()
        plans = Plans(source)
        await plans.get(POD)
        source.pods[POD] = Uid("next")
        await plans.get(POD)
        assert len(source.asked) == 2

    virtual_time.run(main())


def test_pods_that_do_not_wait_cost_nothing() -> None:
    async def main() -> None:
        source = Source()
        reply = await Plans(source).get(ObjectKey("ns", "none"))
        assert (reply.status, source.asked) == (404, [])
        assert "ns/none" in body(reply)["error"]

    virtual_time.run(main())


def test_one_plan_at_a_time_is_worked_out_and_few_wait() -> None:
    async def main() -> None:
        source = Source()
        plans = Plans(source)
        pods = [ObjectKey("ns", f"p{i}") for i in range(1000)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(plans.get(pod)) for pod in pods]
        replies = [task.result() for task in tasks]
        assert [r.status for r in replies].count(200) == MOST_WAITING
        refused = [r for r in replies if r.status == 503]
        assert len(refused) == len(pods) - MOST_WAITING
        assert all(r.retry_after > 0 for r in refused)
        assert source.most_working == 1
        # Afterwards there is room again.
        assert (await plans.get(POD)).status == 200

    virtual_time.run(main())


def test_readers_that_ask_the_same_at_once_get_one_plan() -> None:
    async def main() -> None:
        source = Source()
        plans = Plans(source)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(plans.get(POD)) for _ in range(MOST_WAITING)]
        assert {task.result().status for task in tasks} == {200}
        assert source.asked == [POD]

    virtual_time.run(main())


def test_plans_take_half_of_a_processor_at_most() -> None:
    async def main() -> None:
        source = Source()
        source.cpu_seconds = 8.0
        plans = Plans(source)
        await plans.get(ObjectKey("ns", "p1"))
        since = now()
        await plans.get(ObjectKey("ns", "p2"))
        assert now() - since == 9.0

    virtual_time.run(main())


def test_what_was_stopped_at_a_limit_is_said_and_not_repeated_at_once() -> None:
    async def main() -> None:
        source = Source()
        source.limit = "it takes more than 10 s of CPU time"
        plans = Plans(source)
        for _ in range(3):
            reply = await plans.get(POD)
            assert (reply.status, reply.retry_after) == (503, 5)
            assert source.limit in body(reply)["error"]
        assert len(source.asked) == 1
        await asyncio.sleep(FRESH_SECONDS + 0.1)
        source.limit = ""
        assert (await plans.get(POD)).status == 200

    virtual_time.run(main())


def test_what_is_kept_is_bounded() -> None:
    async def main() -> None:
        source = Source()
        source.plan = b'"' + b"x" * (1 << 20) + b'"'
        plans = Plans(source)
        for i in range(40):
            await plans.get(ObjectKey("ns", f"p{i}"))
        assert plans.kept_bytes <= 16 << 20
        source.plan = b"1"
        for i in range(100, 600):
            await plans.get(ObjectKey("ns", f"p{i}"))
        asked = len(source.asked)
        await plans.get(ObjectKey("ns", "p599"))
        assert len(source.asked) == asked
        await plans.get(ObjectKey("ns", "p100"))
        assert len(source.asked) == asked + 1

    virtual_time.run(main())
