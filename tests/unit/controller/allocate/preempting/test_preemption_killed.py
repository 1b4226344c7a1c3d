"""A controller that is killed while it preempts, before and after each write, and what strangers write."""

from __future__ import annotations

import asyncio

import open_cluster
import pytest
from controller_harness import NS, Harness, claim, cluster_of, pod, request
from fake_client import FakeClient
from preemption_world import (
    create,
    evictions,
    forge,
    holder,
    lives,
    play,
    served,
    shown,
    until,
)

from dra_driver.api.core import PODS
from dra_driver.api.names import PREEMPTING_CONDITION
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import OPEN


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

    async def before(h: Harness) -> None:
        for name in ("a", "b", "c", "d"):
            await holder(h, name, priority=1)
        for name in ("w", "x", "y", "z"):
            await holder(h, name, priority=2)
        where = {name: h.devices(name)[0][0] for name in "abcd"}
        assert len(set(where.values())) == 1
        kill = Kill(h.cluster, number, done=done)
        create(h, "high", 3, priority=100)
        await kill.happened.wait()
        # Jobs make new pods of those that were removed; they wait for the same devices.
        for name in evictions(h):
            create(h, f"{name}-again", priority=1)

    async def after(h: Harness) -> None:
        await until(lambda: served(h, "high"))
        removed = evictions(h)
        assert len(removed) == len(set(removed)) == 3
        assert set(removed) <= set("abcd")
        await asyncio.sleep(30)
        assert len(evictions(h)) == 3

    lives(cluster_of(n1=(80,) * 4, n2=(80,) * 4), [before, after], ends=3.0)


def test_a_round_goes_on_when_open_pools_are_the_controllers_again() -> None:
    """A process that has just started does not allocate from them, so nothing would be made room for."""
    cluster = open_cluster.cluster_of("n1", gpus=4)

    async def before(h: Harness) -> None:
        await until(lambda: cluster.record("n1") == "open")
        for name in "abcd":
            await holder(h, name, priority=1)
        kill = Kill(h.cluster, 4, done=False)
        create(h, "high", 3, priority=100)
        await kill.happened.wait()
        assert len(evictions(h)) in (1, 2)

    async def after(h: Harness) -> None:
        began = asyncio.get_running_loop().time()
        await until(lambda: served(h, "high"))
        assert asyncio.get_running_loop().time() < began + 60
        assert len(evictions(h)) == 3

    lives(cluster, [before, after], ends=3.0, open_pools=True)


def test_a_record_that_others_wrote_removes_nobody() -> None:
    """A stranger who may write the status names a pod of the same priority, and one that is better off."""

    async def before(h: Harness) -> None:
        await holder(h, "dear", priority=50)
        await holder(h, "cheap", priority=1)
        create(h, "high", priority=100)
        forge(h.cluster, "high", ["dear"])

    async def after(h: Harness) -> None:
        await asyncio.sleep(60)
        # It would have removed the other one, so nobody is removed; its own round has to wait.
        assert evictions(h) == []
        await asyncio.sleep(300)
        assert evictions(h) == ["cheap"]

    lives(cluster_of(n1=(80, 80)), [before, after], ends=None)


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


def test_a_record_without_its_preemptor_waiting_removes_nobody() -> None:
    async def before(h: Harness) -> None:
        await holder(h, "a", priority=1)
        await holder(h, "high", priority=100)
        forge(h.cluster, "high", ["a"])

    async def after(h: Harness) -> None:
        await asyncio.sleep(400)
        assert evictions(h) == []
        found = shown(h, "high")
        assert found is None or found.reason != OPEN
        assert h.cluster.find(RESOURCE_CLAIMS, "a", NS) is not None

    lives(cluster_of(n1=(80, 80, 80)), [before, after], ends=None)
