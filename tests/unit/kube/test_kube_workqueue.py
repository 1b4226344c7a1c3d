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
        async with asyncio.timeout(60):
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
        async with asyncio.timeout(60):
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


def test_keys_of_lesser_levels_go_first_and_tenants_take_turns_within_a_level() -> None:
    async def main() -> None:
        # Tenant, level, age.
        queue: WorkQueue[str] = WorkQueue(
            "q", tenant=lambda key: key[0], order=lambda key: (int(key[1]), key[2:])
        )
        for key in ("a15", "a13", "b19", "a00", "b01", "a14"):
            queue.add(key)
        assert [await queue.get() for _ in range(4)] == ["a00", "b01", "a13", "b19"]
        queue.add("c02")
        assert [await queue.get() for _ in range(3)] == ["c02", "a14", "a15"]

    asyncio.run(main())


def test_old_keys_that_come_again_and_again_do_not_keep_younger_ones_waiting() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("q", order=lambda key: (0, key))
        for key in ("2", "1", "9"):
            queue.add(key)
        taken = []
        for _ in range(4):
            key = await queue.get()
            taken.append(key)
            queue.done(key)
            if key != "9":
                queue.add(key)
        assert taken == ["1", "2", "9", "1"]

    asyncio.run(main())


def test_a_level_that_is_held_keeps_greater_ones_back_and_no_others() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("q", order=lambda key: (int(key[0]), key))
        got: list[str] = []

        async def work(key: str) -> None:
            got.append(key)

        worker = asyncio.create_task(queue.process(work, workers=3))
        with queue.holding(1):
            for key in ("2a", "1a", "0a", "2b"):
                queue.add(key)
            for _ in range(10):
                await asyncio.sleep(0)
            assert got == ["0a", "1a"]
            queue.add("1b")
        for _ in range(10):
            await asyncio.sleep(0)
        assert got == ["0a", "1a", "1b", "2a", "2b"]
        worker.cancel()
        await asyncio.wait({worker})

    asyncio.run(main())


def test_what_goes_before_all_others_does_so_whatever_its_level() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("q", order=lambda key: (int(key[0]), key))
        for key in ("1a", "0a", "2b"):
            queue.add(key)
        queue.add_first("2b")
        queue.add_first("2c")
        queue.add_first("2b")
        with queue.holding(0):
            assert [await queue.get() for _ in range(3)] == ["2b", "2c", "0a"]
        assert await queue.get() == "1a"
        assert not len(queue)

    asyncio.run(main())


def test_a_worker_that_ends_while_it_waits_takes_no_key_from_the_others() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("q")
        getters = [asyncio.create_task(queue.get()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.add("a")
        getters[0].cancel()
        async with asyncio.timeout(60):
            assert await getters[1] == "a"

    asyncio.run(main())
