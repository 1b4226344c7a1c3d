"""Events: one per object and reason, limited in their rate, against an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import builders
import virtual_time
from fake_client import FakeClient
from virtual_time import LoopClock

from dra_driver.api.core import EVENTS, PODS, Event, Pod
from dra_driver.errors import ApiUnavailable
from dra_driver.kube import EventRecorder
from dra_driver.kube.events import (
    BURST,
    LONGEST_REPEAT_SECONDS,
    LONGEST_WAIT_SECONDS,
    MOST_OF_NAMESPACE,
    REMEMBERED,
)


def pod(cluster: FakeClient, name: str, namespace: str = "ns") -> Pod:
    cluster.put(PODS, builders.pod(name, namespace=namespace))
    return cluster.obj(PODS, name, namespace)


@contextlib.asynccontextmanager
async def recording(cluster: FakeClient, per_second: float | None = None) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(cluster, "test", LoopClock(), per_second=per_second)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    virtual_time.run(main())


def event_writes(cluster: FakeClient) -> int:
    return len([w for w in cluster.writes if w.kind == EVENTS.kind])


def only(cluster: FakeClient) -> Event:
    (event,) = cluster.all(EVENTS)
    return event


def test_what_happens_again_is_a_count_and_the_newest_text_of_one_event() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    async def scenario() -> None:
        async with recording(cluster) as recorder:
            for _ in range(3):
                recorder.event(PODS, told, "Warning", "Reason", "text")
                await recorder.drain()
            assert (only(cluster).message, only(cluster).count, only(cluster).type) == ("text", 1, "Warning")
            assert only(cluster).involved_object.name == "p"
            recorder.event(PODS, told, "Warning", "Reason", "x" * 5000)
            await asyncio.sleep(100)
            assert len(only(cluster).message.encode()) <= 1024
            assert only(cluster).message.startswith("xxx")
            assert only(cluster).count == 4

    run(scenario)


def test_things_of_one_object_have_events_of_their_own() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    async def scenario() -> None:
        async with recording(cluster) as recorder:
            for about in ("a", "b", "a"):
                recorder.event(PODS, told, "Warning", "Reason", f"device {about}", about=about)
            await recorder.drain()
            assert sorted(e.message for e in cluster.all(EVENTS)) == ["device a", "device b"]

    run(scenario)


def test_reasons_that_flap_cost_a_write_every_quarter_of_an_hour_in_the_end() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    async def scenario() -> None:
        async with recording(cluster) as recorder:
            for second in range(4 * 3600):
                recorder.event(PODS, told, "Warning", "Reason", f"text {second}")
                await asyncio.sleep(1)
            # 20, 40, … 640 s, then each quarter of an hour.
            assert event_writes(cluster) <= 8 + 4 * 3600 / LONGEST_REPEAT_SECONDS
            assert only(cluster).count > 3 * 3600

    run(scenario)


def test_another_process_goes_on_with_an_event() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    async def scenario() -> None:
        for number in range(3):
            async with recording(cluster) as recorder:
                recorder.event(PODS, told, "Warning", "Reason", f"text {number}")
                await asyncio.sleep(30)
                recorder.event(PODS, told, "Warning", "Reason", f"text {number}")
                await recorder.drain()
        assert only(cluster).message == "text 2"
        assert only(cluster).count == 4

    run(scenario)


def test_an_event_that_has_expired_is_written_anew() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    async def scenario() -> None:
        async with recording(cluster) as recorder:
            recorder.event(PODS, told, "Warning", "Reason", "text")
            await recorder.drain()
            cluster.remove(EVENTS, only(cluster).metadata.name, "ns")
            await asyncio.sleep(7200)
            recorder.event(PODS, told, "Warning", "Reason", "text")
            await recorder.drain()
            assert only(cluster).count == 1

    run(scenario)


def test_the_rate_is_limited_and_namespaces_take_turns() -> None:
    cluster = FakeClient()
    crowd = [pod(cluster, f"p{i}", "crowd") for i in range(BURST + 200)]
    honest = pod(cluster, "p", "honest")

    async def scenario() -> None:
        async with recording(cluster, per_second=1.0) as recorder:
            for one in crowd:
                recorder.event(PODS, one, "Warning", "Reason", "text")
            await asyncio.sleep(10)
            assert BURST <= event_writes(cluster) <= BURST + 11
            recorder.event(PODS, honest, "Warning", "Reason", "text")
            await asyncio.sleep(5)
            assert [e for e in cluster.all(EVENTS) if e.metadata.namespace == "honest"]
            await asyncio.sleep(300)
            assert len(cluster.all(EVENTS)) == len(crowd) + 1

    run(scenario)


def test_the_newest_event_of_a_namespace_comes_first() -> None:
    """After churn, the Event of a pod that waited came 300 s late, behind those of pods that were gone."""
    cluster = FakeClient()
    churn = [pod(cluster, f"p{i}") for i in range(BURST + 2 * MOST_OF_NAMESPACE)]
    waiting = pod(cluster, "waiting")

    async def scenario() -> None:
        async with recording(cluster, per_second=1.0) as recorder:
            for one in churn:
                recorder.event(PODS, one, "Warning", "Reason", "text")
            await asyncio.sleep(10)
            recorder.event(PODS, waiting, "Warning", "Reason", "text")
            await asyncio.sleep(3)
            assert "waiting" in {e.involved_object.name for e in cluster.all(EVENTS)}
            # The others follow, the newest of them; what has waited for too long is no news.
            await asyncio.sleep(LONGEST_WAIT_SECONDS + 10)
            told = {e.involved_object.name for e in cluster.all(EVENTS)}
            assert {one.metadata.name for one in churn[-MOST_OF_NAMESPACE + 20 :]} <= told
            assert not recorder._notes
            assert not recorder._fresh
            assert not recorder._waiting

    run(scenario)


def test_an_event_is_written_whichever_turns_its_namespace_has_had() -> None:
    cluster = FakeClient()
    pods = [pod(cluster, f"p{i}") for i in range(3)]

    async def scenario() -> None:
        async with recording(cluster, per_second=1.0) as recorder:
            for number in range(50):
                for one in pods:
                    recorder.event(PODS, one, "Warning", f"Reason{number % 7}", f"{number}")
                await asyncio.sleep(7)
                if number % 5 == 0:
                    recorder._known.clear()  # as if thousands of others had come since
            await asyncio.sleep(2 * LONGEST_WAIT_SECONDS)
            assert len(cluster.all(EVENTS)) == 3 * 7
            assert not recorder._notes

    run(scenario)


def test_repeats_wait_for_what_is_new() -> None:
    cluster = FakeClient()
    waiting = [pod(cluster, f"p{i}") for i in range(BURST)]

    async def scenario() -> None:
        async with recording(cluster, per_second=1.0) as recorder:
            for second in range(0, 1200, 20):
                for one in waiting:
                    recorder.event(PODS, one, "Warning", "Reason", f"{second} devices")
                await asyncio.sleep(20)
            assert event_writes(cluster) <= BURST + 1200
            new = pod(cluster, "new")
            recorder.event(PODS, new, "Warning", "Reason", "text")
            await asyncio.sleep(1)
            assert "new" in {e.involved_object.name for e in cluster.all(EVENTS)}

    run(scenario)


def test_news_that_are_old_are_not_written_and_memory_is_bounded() -> None:
    cluster = FakeClient()
    crowd = [pod(cluster, f"p{i}") for i in range(BURST + MOST_OF_NAMESPACE + 100)]

    async def scenario() -> None:
        async with recording(cluster, per_second=0.1) as recorder:
            for one in crowd:
                recorder.event(PODS, one, "Warning", "Reason", "text")
            await asyncio.sleep(24 * 3600)
            written = event_writes(cluster)
            assert written <= MOST_OF_NAMESPACE
            assert written <= BURST + LONGEST_WAIT_SECONDS * 0.1 + 1

    assert REMEMBERED <= 10_000
    run(scenario)


def test_an_event_that_cannot_be_written_costs_nothing() -> None:
    cluster = FakeClient()
    told = pod(cluster, "p")

    def down(*_: object) -> None:
        raise ApiUnavailable("down")

    cluster.before = down

    async def scenario() -> None:
        async with recording(cluster) as recorder:
            recorder.event(PODS, told, "Normal", "Reason", "text")
            await recorder.drain()
            cluster.before = lambda *_: None
            recorder.event(PODS, told, "Normal", "Reason", "text")
            await recorder.drain()
            assert len(cluster.all(EVENTS)) == 1

    run(scenario)
