"""Informers, work queues and leader election, against an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from fake_client import FakeClient

from dra_driver.api.core import NODES, Node
from dra_driver.api.meta import ObjectKey
from dra_driver.errors import ApiUnavailable, Conflict, Forbidden, ServerBusy
from dra_driver.kube import (
    Backoff,
    Handler,
    Informer,
    LeaderConfig,
    LeaderElector,
    WorkQueue,
)
from dra_driver.kube.clock import micro_time, rfc3339
from dra_driver.kube.leader import LEASES, LeadershipLost

POD = {
    "metadata": {"name": "p", "namespace": "ns"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@contextlib.asynccontextmanager
async def informing(
    cluster: FakeClient, **options: Any
) -> AsyncIterator[tuple[Informer[Node], list[tuple[str, str]]]]:
    informer = Informer(cluster, NODES, **options)
    seen: list[tuple[str, str]] = []
    informer.add_handler(
        Handler(
            added=lambda n: seen.append(("added", n.metadata.name)),
            updated=lambda _, n: seen.append(("updated", n.metadata.name)),
            deleted=lambda n: seen.append(("deleted", n.metadata.name)),
        )
    )
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 5)
        yield informer, seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    virtual_time.run(bounded())


class Turns:
    """How often anything else could have had a turn of the event loop."""

    def __init__(self) -> None:
        self.number = 0

    async def count(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)


def test_a_first_list_leaves_time_to_others_and_a_later_one_counts_at_once() -> None:
    cluster = FakeClient()
    for i in range(100):
        cluster.put(NODES, node(f"n-{i}"))

    async def main() -> None:
        turns = Turns()
        taken: list[int] = []

        def takes_long(_: object, __: object = None) -> None:
            time.sleep(0.0005)
            taken.append(turns.number)

        informer = Informer(cluster, NODES)
        informer.add_handler(Handler(added=takes_long, updated=takes_long))
        tasks = [asyncio.create_task(informer.run()), asyncio.create_task(turns.count())]
        await asyncio.wait_for(informer.synced.wait(), 5)
        first, taken[:] = set(taken), ()
        cluster.expire()
        for i in range(100):
            cluster.put(NODES, node(f"n-{i}", changed="yes"))
        while len(taken) < 100:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        assert len(first) > 5
        # A device that goes from one claim to another must not seem to be in both.
        assert len(set(taken)) == 1

    asyncio.run(main())


def test_a_burst_of_events_leaves_time_to_others() -> None:
    cluster = FakeClient()

    async def main() -> None:
        turns = Turns()
        taken: list[int] = []

        def takes_long(_: object) -> None:
            time.sleep(0.0005)
            taken.append(turns.number)

        informer = Informer(cluster, NODES)
        informer.add_handler(Handler(added=takes_long))
        tasks = [asyncio.create_task(informer.run())]
        await asyncio.wait_for(informer.synced.wait(), 5)
        await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(turns.count()))
        for i in range(100):
            cluster.put(NODES, node(f"n-{i}"))
        while len(taken) < 100:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        assert len(set(taken)) > 5

    asyncio.run(main())


def test_an_informer_follows_and_indexes() -> None:
    cluster = FakeClient()
    cluster.put(NODES, node("a", zone="x"))

    async def main() -> None:
        by_zone = {"zone": lambda n: [(n.metadata.labels or {}).get("zone")]}
        async with informing(cluster, indices=by_zone) as (informer, seen):
            cluster.put(NODES, node("b", zone="x"))
            await asyncio.sleep(0.05)
            assert [n.metadata.name for n in informer.by_index("zone", "x")] == ["a", "b"]
            cluster.put(NODES, node("a", zone="y"))
            cluster.remove(NODES, "b")
            await asyncio.sleep(0.05)
            assert informer.by_index("zone", "x") == ()
            assert informer.get(ObjectKey("", "b")) is None
            assert seen == [("added", "a"), ("added", "b"), ("updated", "a"), ("deleted", "b")]

    run(main)


def test_after_410_the_difference_is_delivered_once() -> None:
    cluster = FakeClient()
    cluster.put(NODES, node("stays"))
    cluster.put(NODES, node("goes"))
    cluster.put(NODES, node("replaced"))

    async def main() -> None:
        async with informing(cluster) as (informer, seen):
            await asyncio.sleep(0.05)
            seen.clear()
            cluster.quiet.add("Node")
            cluster.remove(NODES, "goes")
            cluster.remove(NODES, "replaced")
            cluster.put(NODES, node("replaced"))
            cluster.put(NODES, node("new"))
            cluster.expire()
            cluster.quiet.clear()
            await asyncio.sleep(0.5)
            assert sorted(seen) == [
                ("added", "new"),
                ("added", "replaced"),
                ("deleted", "goes"),
                ("deleted", "replaced"),
            ]
            assert len(informer) == 3

    run(main)


def test_an_outage_keeps_what_was_known_and_is_recovered_from() -> None:
    cluster = FakeClient()
    cluster.put(NODES, node("a"))
    failures = itertools.count()

    def broken(verb: str, *_: object) -> None:
        if next(failures) < 3:
            raise ApiUnavailable("down") if verb == "list" else ServerBusy("busy", code=503)

    async def main() -> None:
        async with informing(cluster) as (informer, _):
            cluster.before = broken
            cluster.expire()
            await asyncio.sleep(0.05)
            assert len(informer) == 1
            cluster.put(NODES, node("b"))
            await asyncio.sleep(2)
            assert len(informer) == 2

    run(main)


def test_it_is_known_whether_objects_may_be_read() -> None:
    async def main() -> None:
        cluster = FakeClient()
        code = 403

        def refuse(verb: str, kind: str, name: str, subresource: str) -> None:
            raise Forbidden("no", code=code)

        cluster.before = refuse
        informer = Informer(cluster, NODES)
        seen: list[bool | None] = []
        informer.access_changed.append(lambda: seen.append(informer.access))
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(1)
        assert seen == [False]
        cluster.before = lambda *_: None
        await asyncio.sleep(5)
        assert (seen, informer.synced.is_set()) == ([False, True], True)
        # A token that is renewed, or a server that is not there, says nothing about rights.
        cluster.before, code = refuse, 401
        cluster.expire()
        cluster.down = True
        cluster.down = False
        await asyncio.sleep(1)
        assert seen == [False, True]
        code = 403
        await asyncio.sleep(5)
        assert seen == [False, True, False]
        task.cancel()
        await asyncio.wait({task})

    run(main)


def test_a_key_is_worked_on_once_at_a_time_and_no_request_is_lost() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test", base_delay=0.01)
        active: set[str] = set()
        done: list[str] = []

        async def work(key: str) -> None:
            assert key not in active
            active.add(key)
            await asyncio.sleep(0.01)
            active.discard(key)
            done.append(key)

        task = asyncio.create_task(queue.process(work, workers=4))
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await asyncio.sleep(0.005)
        queue.add("a")  # while a worker has it
        await asyncio.sleep(0.1)
        assert sorted(done) == ["a", "a", "b"]
        assert queue.idle
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(main)


def test_failures_are_tried_again_with_growing_delays_and_bugs_do_not_stop_the_queue() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test", base_delay=0.01)
        tries: dict[str, int] = {}

        async def work(key: str) -> None:
            tries[key] = tries.get(key, 0) + 1
            if tries[key] < 3:
                raise {"bug": RuntimeError("x"), "busy": ServerBusy("x", code=503)}.get(
                    key, Conflict("x", code=409)
                )

        task = asyncio.create_task(queue.process(work))
        for key in ("bug", "busy", "conflict"):
            queue.add(key)
        expected = {"bug": 3, "busy": 3, "conflict": 3}
        async with asyncio.timeout(30):  # a traceback alone may take long on a busy machine
            while tries != expected or not queue.idle:
                await asyncio.sleep(0.01)
        assert tries == expected
        assert queue.failures("bug") == 0
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    run(main)


def test_an_earlier_request_wins_over_a_later_one() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue("test")
        queue.add_after("a", 60)
        queue.add_after("a", 0.01)
        queue.add_after("a", 60)
        assert await asyncio.wait_for(queue.get(), 1) == "a"
        queue.close()

    run(main)


def test_delays_grow_to_the_cap_and_start_over() -> None:
    backoff = Backoff(base=1, cap=8)
    delays = [backoff.next() for _ in range(2000)]
    for delay, step in zip(delays, (1, 2, 4, 8, 8), strict=False):
        assert step / 2 <= delay <= step
    assert max(delays) <= 8
    backoff.reset()
    assert backoff.next() <= 1


# --- leader election ---


def elector(cluster: FakeClient, identity: str) -> LeaderElector:
    config = LeaderConfig(
        "ns", "lease", identity, lease_seconds=1, renew_deadline_seconds=0.6, retry_seconds=0.1
    )
    return LeaderElector(cluster, config, virtual_time.LoopClock())


def test_one_leads_and_the_next_takes_over_at_once_when_it_ends() -> None:
    cluster = FakeClient()
    leading: list[str] = []

    async def main() -> None:
        tasks = {}
        for name in ("a", "b"):

            async def work(name: str = name) -> None:
                leading.append(name)
                await asyncio.sleep(60)

            tasks[name] = asyncio.create_task(elector(cluster, name).run(work))
            await asyncio.sleep(0.05)
        assert leading == ["a"]
        tasks["a"].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks["a"]
        await asyncio.sleep(0.3)  # released, so nobody waits for the lease to run out
        assert leading == ["a", "b"]
        assert cluster.obj(LEASES, "lease", "ns").spec.holder_identity == "b"
        assert cluster.obj(LEASES, "lease", "ns").spec.lease_transitions == 1
        tasks["b"].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks["b"]

    run(main)


def test_a_dead_leader_is_replaced_when_its_lease_has_run_out() -> None:
    cluster = FakeClient()
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1}
    cluster.put(LEASES, {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})

    async def main() -> None:
        started = asyncio.get_running_loop().time()

        async def work() -> None:
            assert asyncio.get_running_loop().time() - started > 0.9

        await elector(cluster, "b").run(work)

    run(main)


def test_a_leader_that_cannot_renew_stops_its_work_and_says_so() -> None:
    cluster = FakeClient()

    async def main() -> None:
        stopped = []

        async def work() -> None:
            def down(*_: object) -> None:
                raise ApiUnavailable("down")

            cluster.before = down
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(asyncio.get_running_loop().time())

        started = asyncio.get_running_loop().time()
        with pytest.raises(LeadershipLost):
            await elector(cluster, "a").run(work)
        assert stopped[0] - started < 1.0  # before another may take over

    run(main)


def test_impatient_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="retry"):
        LeaderConfig("ns", "lease", "a", lease_seconds=5, renew_deadline_seconds=10)


# --- times ---


def test_times_are_written_as_the_api_wants_them() -> None:
    assert rfc3339(1_800_000_000.9) == "2027-01-15T08:00:00Z"
    assert micro_time(1_800_000_000.5) == "2027-01-15T08:00:00.500000Z"
