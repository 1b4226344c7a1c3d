"""The work queue: fair to whatever else runs in the loop."""

from __future__ import annotations

import asyncio
import itertools

from dra_driver.kube import WorkQueue


def test_a_long_queue_of_work_without_io_lets_others_run() -> None:
    async def scenario() -> None:
        queue: WorkQueue[int] = WorkQueue("long")
        for key in range(1000):
            queue.add(key)
        done: list[int] = []

        async def work(key: int) -> None:
            done.append(key)

        seen: list[int] = []

        async def other() -> None:
            while len(done) < 1000:
                seen.append(len(done))
                await asyncio.sleep(0)

        worker = asyncio.create_task(queue.process(work, workers=2))
        async with asyncio.timeout(30):
            await other()
        seen.append(len(done))
        worker.cancel()
        await asyncio.wait({worker})
        assert max(b - a for a, b in itertools.pairwise(seen)) <= 10

    asyncio.run(scenario())


def test_a_key_that_is_added_while_it_is_worked_on_is_worked_on_again() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue("again")
        queue.add("a")
        times = 0
        finished = asyncio.Event()

        async def work(key: str) -> None:
            nonlocal times
            times += 1
            if times == 1:
                queue.add(key)
                await asyncio.sleep(0)
            else:
                finished.set()

        worker = asyncio.create_task(queue.process(work, workers=2))
        async with asyncio.timeout(30):
            await finished.wait()
        worker.cancel()
        await asyncio.wait({worker})
        assert times == 2

    asyncio.run(scenario())


def test_tenants_take_turns_however_much_one_of_them_asks_for() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("q", tenant=lambda key: key[0])
        for i in range(100):
            queue.add(f"a{i}")
        queue.add("b0")
        queue.add("b1")
        queue.add("c0")
        taken = [await queue.get() for _ in range(8)]
        assert taken == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]
        queue.add("b2")
        assert [await queue.get() for _ in range(3)] == ["a5", "b2", "a6"]

    asyncio.run(main())


def test_a_key_can_go_before_all_others_once() -> None:
    async def scenario() -> None:
        queue: WorkQueue[str] = WorkQueue("first", tenant=lambda key: key[0])
        for key in ("a1", "a2", "b1", "b2", "c1"):
            queue.add(key)
        queue.add_first("b2")
        queue.add_first("new")
        found = []
        while len(queue):
            found.append(await queue.get())
        assert found == ["new", "b2", "a1", "c1", "b1", "a2"]

    asyncio.run(scenario())
