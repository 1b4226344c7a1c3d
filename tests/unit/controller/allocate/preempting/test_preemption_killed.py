"""A controller that is killed while it preempts, before and after each write, and what strangers write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import virtual_time
from controller_harness import NS, Clock, Harness, claim, cluster_of, controlling, pod, request
from fake_client import FakeClient
from preemption_world import ON, Ends, create, evictions, holder, play, served, shown, until

from dra_driver.api.core import PODS
from dra_driver.api.names import PREEMPTING_CONDITION
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import OPEN, PreemptionRecord
from dra_driver.kube.clock import rfc3339


class Time(Clock):
    def now(self) -> float:
        return 1_800_000_000.0 + self.monotonic()


class Kill:
    """Ends the controller at one of its writes: from then on nothing reaches the API server."""

    def __init__(self, cluster: FakeClient, number: int, *, done: bool) -> None:
        self._cluster = cluster
        self._number = number
        self._done = done
        self.happened = asyncio.Event()
        cluster.before = lambda *call: None if done else self._look(*call)
        cluster.after = lambda *call: self._look(*call) if done else None

    def _look(self, verb: str, kind: str, name: str, _: str) -> None:
        is_ours = verb == "evict" or (verb, name) == ("apply", "high")
        if kind != "Pod" or not is_ours:
            return
        self._number -= 1
        if self._number == 0:
            self._cluster.down = True
            self.happened.set()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_round_goes_on_after_a_kill_at_each_write_and_removes_nobody_else(number: int, done: bool) -> None:
    """Writes: why it waits, the record, three evictions, the end of the record."""

    async def main() -> None:
        clock = Time()
        cluster = cluster_of(n1=(80,) * 4, n2=(80,) * 4)
        ends = asyncio.create_task(Ends(cluster, 3.0).run())
        settings: dict[str, Any] = {"preemption": ON, "binding_seconds": 86_400.0, "starvation_seconds": 0.0}
        async with asyncio.timeout(10_000):
            async with controlling(cluster, clock=clock, **settings) as h:
                for name in ("a", "b", "c", "d"):
                    await holder(h, name, priority=1)
                for name in ("w", "x", "y", "z"):
                    await holder(h, name, priority=2)
                where = {name: h.devices(name)[0][0] for name in "abcd"}
                assert len(set(where.values())) == 1
                kill = Kill(cluster, number, done=done)
                create(h, "high", 3, priority=100)
                await kill.happened.wait()
            cluster.before = cluster.after = lambda *_: None
            cluster.down = False
            # Jobs make new pods of those that were removed; they wait for the same devices.
            for name in evictions_of(cluster):
                claim(cluster, f"{name}-again", request())
                pod(cluster, f"{name}-again", f"{name}-again", priority=1)
            async with controlling(cluster, clock=clock, **settings) as h:
                await until(lambda: served(h, "high"))
                removed = evictions(h)
                assert len(removed) == len(set(removed)) == 3
                assert set(removed) <= set("abcd")
                await asyncio.sleep(30)
                assert len(evictions(h)) == 3
        ends.cancel()

    virtual_time.run(main())


def evictions_of(cluster: FakeClient) -> list[str]:
    return [w.name for w in cluster.writes if w.verb == "evict"]


def test_a_record_that_others_wrote_removes_nobody() -> None:
    """A stranger who may write the status names a pod of the same priority, and one that is better off."""

    async def main() -> None:
        clock = Time()
        cluster = cluster_of(n1=(80, 80))
        settings: dict[str, Any] = {"preemption": ON, "binding_seconds": 86_400.0, "starvation_seconds": 0.0}
        async with asyncio.timeout(10_000):
            async with controlling(cluster, clock=clock, **settings) as h:
                await holder(h, "dear", priority=50)
                await holder(h, "cheap", priority=1)
            claim(cluster, "high", request())
            pod(cluster, "high", "high", priority=100)
            forge(cluster, "high", ["dear"], clock)
            async with controlling(cluster, clock=clock, **settings) as h:
                await asyncio.sleep(60)
                # It would have removed the other one, so nobody is removed; its own round has to wait.
                assert evictions(h) == []
                await asyncio.sleep(300)
                assert evictions(h) == ["cheap"]

    virtual_time.run(main())


@pytest.mark.parametrize(
    "message",
    [
        "",
        "null",
        "[]",
        '{"victims":["../../x"]}',
        '{"victims":["' + "a" * 65 + '"]}',
        '{"victims":[' + ",".join(['"u"'] * 257) + "]}",
        '{"victims":[],"more":1}',
        '{"victims":["u"],"devices":[["n1","d","p"]]}',
        '{"victims":["' + "x" * 600_000 + '"]}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_a_record_that_makes_no_sense_is_none(message: str) -> None:
    cluster = cluster_of(n1=(80,))
    claim(cluster, "high", request())
    pod(cluster, "high", "high", priority=100)
    condition = {
        "type": PREEMPTING_CONDITION,
        "status": "True",
        "reason": OPEN,
        "message": message,
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }
    cluster.edit(PODS, "high", {"status": {"conditions": [condition]}}, NS)

    async def short(h: Harness) -> None:
        assert shown(h, "high") is None
        await until(lambda: served(h, "high"))

    play(cluster, short)


def forge(cluster: FakeClient, name: str, victims: list[str], clock: Clock) -> None:
    uids = tuple(cluster.obj(PODS, victim, NS).metadata.uid for victim in victims)
    condition = {
        "type": PREEMPTING_CONDITION,
        "status": "True",
        "reason": OPEN,
        "message": PreemptionRecord(uids).message,
        "lastTransitionTime": rfc3339(clock.now()),
    }
    cluster.edit(PODS, name, {"status": {"conditions": [condition]}}, NS)


def test_a_record_without_its_preemptor_waiting_removes_nobody() -> None:
    async def main() -> None:
        clock = Time()
        cluster = cluster_of(n1=(80, 80, 80))
        settings: dict[str, Any] = {"preemption": ON, "binding_seconds": 86_400.0, "starvation_seconds": 0.0}
        async with asyncio.timeout(10_000):
            async with controlling(cluster, clock=clock, **settings) as h:
                await holder(h, "a", priority=1)
                await holder(h, "high", priority=100)
            forge(cluster, "high", ["a"], clock)
            async with controlling(cluster, clock=clock, **settings) as h:
                await asyncio.sleep(400)
                assert evictions(h) == []
                found = shown(h, "high")
                assert found is None or found.reason != OPEN
                assert cluster.find(RESOURCE_CLAIMS, "a", NS) is not None

    virtual_time.run(main())
