"""Why pods wait, as a condition of each, against an API server in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import builders
import pytest
import virtual_time
from examples import share
from fake_client import FakeClient
from virtual_time import LoopClock

from controller.observe.reasons import (
    CHANGE_SECONDS,
    FIGURES_SECONDS,
    PASSING_SECONDS,
    Reason,
    WaitingReasons,
    shown_reason,
)
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import ALLOCATED_CONDITION
from dra_driver.errors import ApiUnavailable
from dra_driver.kube import Informer

NS = "ns"
FAILED = "FailedAllocation"
SCHEDULED: dict[str, Any] = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


class KeptReasons:
    """Reasons that are kept, and what the test asks of them."""

    def __init__(self, cluster: FakeClient, pods: Informer[Pod], reasons: WaitingReasons) -> None:
        self.cluster = cluster
        self.pods = pods
        self.reasons = reasons

    def pod(self, name: str, namespace: str = NS) -> Pod:
        return self.cluster.obj(PODS, name, namespace)

    def waits(self, name: str, message: str, reason: str = FAILED, namespace: str = NS) -> bool:
        return self.reasons.waits(self.pod(name, namespace), reason, message)

    def shown(self, name: str, namespace: str = NS) -> str | None:
        found = shown_reason(self.pod(name, namespace))
        return None if found is None else found.message

    @property
    def writes(self) -> int:
        return len([w for w in self.cluster.writes if (w.kind, w.subresource) == ("Pod", "status")])


def cluster_with(*pods: str, namespace: str = NS) -> FakeClient:
    cluster = FakeClient()
    put(cluster, *pods, namespace=namespace)
    return cluster


def put(cluster: FakeClient, *pods: str, namespace: str = NS) -> None:
    for name in pods:
        cluster.put(PODS, builders.pod(name, namespace=namespace))
        cluster.edit(PODS, name, {"status": {"conditions": [SCHEDULED]}}, namespace)


@contextlib.asynccontextmanager
async def keeping(cluster: FakeClient) -> AsyncIterator[KeptReasons]:
    pods = Informer(cluster, PODS)
    reasons = WaitingReasons(cluster, LoopClock(), pods)
    tasks = [asyncio.create_task(pods.run()), asyncio.create_task(reasons.run())]
    try:
        await pods.synced.wait()
        yield KeptReasons(cluster, pods, reasons)
    finally:
        reasons.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def run(cluster: FakeClient, scenario: Callable[[KeptReasons], Awaitable[None]]) -> None:
    async def main() -> None:
        async with keeping(cluster) as world:
            await scenario(world)

    virtual_time.run(main())


def test_a_pod_that_waits_has_the_reason_and_loses_it_when_it_is_served() -> None:
    async def scenario(w: KeptReasons) -> None:
        assert w.waits("p", "0 of 3 nodes")
        assert not w.waits("p", "0 of 3 nodes")
        assert w.reasons.reason(ObjectKey(NS, "p")) == "0 of 3 nodes"
        await asyncio.sleep(3)
        assert w.shown("p") == "0 of 3 nodes"
        assert {c["type"] for c in w.pod("p").status.conditions} == {"PodScheduled", ALLOCATED_CONDITION}
        await asyncio.sleep(10)
        w.reasons.served(w.pod("p"), allocated=True)
        await asyncio.sleep(3)
        assert w.shown("p") is None
        states = {c["type"]: c["status"] for c in w.pod("p").status.conditions}
        assert states == {"PodScheduled": "False", ALLOCATED_CONDITION: "True"}
        assert w.writes == 2

    run(cluster_with("p"), scenario)


def test_a_pod_that_is_served_within_a_second_is_not_written() -> None:
    async def scenario(w: KeptReasons) -> None:
        for _ in range(5):
            w.waits("p", "text")
            await asyncio.sleep(0.5)
            w.reasons.served(w.pod("p"), allocated=True)
        await asyncio.sleep(60)
        assert w.writes == 0

    run(cluster_with("p"), scenario)


def test_a_wait_that_is_expected_to_end_by_itself_is_written_when_it_does_not() -> None:
    async def scenario(w: KeptReasons) -> None:
        w.reasons.waits(w.pod("p"), "WaitingForClaim", "its claim is being made", passing=True)
        w.reasons.waits(w.pod("q"), "WaitingForTurn", "others come first", passing=True)
        await asyncio.sleep(PASSING_SECONDS - 1)
        assert w.writes == 0
        w.reasons.served(w.pod("q"), allocated=True)
        await asyncio.sleep(2)
        assert w.shown("p") == "its claim is being made"
        assert w.shown("q") is None
        assert w.writes == 1

    run(cluster_with("p", "q"), scenario)


def test_a_pod_that_is_refused_after_such_a_wait_is_written_at_once() -> None:
    async def scenario(w: KeptReasons) -> None:
        w.reasons.waits(w.pod("p"), "WaitingForClaim", "its claim is being made", passing=True)
        await asyncio.sleep(3)
        w.waits("p", "0 of 3 nodes")
        await asyncio.sleep(0.1)
        assert w.shown("p") == "0 of 3 nodes"

    run(cluster_with("p"), scenario)


def test_the_time_of_the_transition_stays_while_the_reason_changes() -> None:
    def since(w: KeptReasons) -> object:
        (ours,) = [c for c in w.pod("p").status.conditions if c["type"] == ALLOCATED_CONDITION]
        return ours["lastTransitionTime"]

    async def scenario(w: KeptReasons) -> None:
        w.waits("p", "text")
        await asyncio.sleep(10)
        before = since(w)
        w.waits("p", "another text")
        await asyncio.sleep(60)
        assert w.shown("p") == "another text"
        assert since(w) == before

    run(cluster_with("p"), scenario)


def test_figures_are_no_other_reason_and_are_brought_up_to_date_now_and_then() -> None:
    async def scenario(w: KeptReasons) -> None:
        w.waits("p", "0 of 0 nodes")
        for second in range(600):
            assert not w.waits("p", f"0 of {second} nodes")
            await asyncio.sleep(1)
        assert w.writes <= 11
        await asyncio.sleep(600)
        assert w.shown("p") == "0 of 599 nodes"

    run(cluster_with("p"), scenario)


def test_figures_that_a_pod_waits_for_are_brought_up_to_date_soon_and_are_paced_all_the_same() -> None:
    def members(w: KeptReasons, number: int) -> bool:
        text = f"group g: {number} of 4 pods are there"
        return w.reasons.waits(w.pod("p"), "WaitingForGroup", text, counts=True)

    async def scenario(w: KeptReasons) -> None:
        members(w, 1)
        await asyncio.sleep(3)
        assert not members(w, 3)
        await asyncio.sleep(10)
        assert w.shown("p") == "group g: 3 of 4 pods are there"
        written = w.writes
        for second in range(600):
            members(w, second % 4)
            await asyncio.sleep(1)
        assert w.writes <= written + 10

    run(cluster_with("p"), scenario)


@pytest.mark.parametrize("hours", share([2, 6], 1))
def test_reasons_that_flap_are_written_every_five_minutes_in_the_end(hours: int) -> None:
    async def scenario(w: KeptReasons) -> None:
        for second in range(hours * 3600):
            w.waits("p", "one" if second % 2 else "another")
            if second % 7 == 0:
                w.reasons.served(w.pod("p"), allocated=True)
            await asyncio.sleep(1)
        assert w.writes <= 10 + hours * 3600 / 300

    run(cluster_with("p"), scenario)


def test_a_controller_that_starts_anew_writes_only_what_has_changed() -> None:
    cluster = cluster_with("same", "other", "served", "new")

    async def before(w: KeptReasons) -> None:
        for name in ("same", "other", "served"):
            w.waits(name, "text")
        await asyncio.sleep(5)
        assert w.writes == 3

    async def after(w: KeptReasons) -> None:
        written = w.writes
        for name in ("same", "new"):
            w.waits(name, "text")
        w.waits("other", "a text that is not the same")
        w.reasons.served(w.pod("served"), allocated=False)
        await asyncio.sleep(5)
        assert w.writes == written + 3
        assert [w.shown(n) for n in ("same", "new")] == ["text"] * 2
        assert w.shown("other") == "a text that is not the same"
        assert w.shown("served") is None

    run(cluster, before)
    run(cluster, after)


def test_a_controller_that_ends_at_any_write_leaves_the_rest_to_the_next_one() -> None:
    names = [f"p{i}" for i in range(6)]
    for fatal in range(7):
        cluster = cluster_with(*names)
        left = iter(range(fatal))

        def fail(verb: str, *_: str, left: Iterator[int] = left) -> None:
            if verb == "apply" and next(left, None) is None:
                raise ApiUnavailable("killed")

        async def look(w: KeptReasons) -> None:
            for name in names:
                w.waits(name, "text")
            await asyncio.sleep(5)

        cluster.before = fail
        run(cluster, look)
        cluster.before = lambda *_: None
        run(cluster, look)
        told = [shown_reason(p) for p in cluster.all(PODS)]
        assert [r.message for r in told if r is not None] == ["text"] * len(names)
        assert len([w for w in cluster.writes if w.subresource == "status"]) == len(names)


@pytest.mark.parametrize("number", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_thousands_of_pods_are_all_told_and_changes_are_paced(number: int) -> None:
    names = [f"p{i}" for i in range(number)]

    async def scenario(w: KeptReasons) -> None:
        for name in names:
            w.waits(name, "text")
        await asyncio.sleep(60)
        assert w.writes == len(names)
        for name in names:
            w.waits(name, "another text")
        await asyncio.sleep(100)
        assert len(names) < w.writes <= len(names) + 100 / CHANGE_SECONDS + 1
        await asyncio.sleep(len(names) * CHANGE_SECONDS)
        assert {w.shown(name) for name in names} == {"another text"}
        written = w.writes
        for name in names:
            w.waits(name, "another text with 3 figures")
            w.waits(name, "another text with 4 figures")
        await asyncio.sleep(len(names) * CHANGE_SECONDS + 60)
        for name in names:
            w.waits(name, "another text with 5 figures")
        written = w.writes
        await asyncio.sleep(200)
        assert w.writes <= written + 200 / FIGURES_SECONDS + 1

    run(cluster_with(*names), scenario)


def test_a_namespace_that_floods_does_not_hold_up_another_one() -> None:
    crowd = [f"p{i}" for i in range(500)]
    cluster = cluster_with(*crowd, namespace="crowd")
    put(cluster, "honest")

    async def scenario(w: KeptReasons) -> None:
        for name in crowd:
            w.waits(name, "text", namespace="crowd")
        await asyncio.sleep(30)
        for name in crowd:
            w.waits(name, "another text", namespace="crowd")
        await asyncio.sleep(6)
        w.waits("honest", "text")
        await asyncio.sleep(2)
        assert w.shown("honest") == "text"
        w.waits("honest", "another text")
        await asyncio.sleep(6)
        assert w.shown("honest") == "another text"

    run(cluster, scenario)


def test_what_is_gone_is_forgotten() -> None:
    names = [f"p{i}" for i in range(50)]

    async def scenario(w: KeptReasons) -> None:
        for name in names:
            w.waits(name, "text")
        await asyncio.sleep(5)
        for name in names[:25]:
            w.cluster.remove(PODS, name, NS)
        await asyncio.sleep(5)
        assert len(w.reasons) == 25

    run(cluster_with(*names), scenario)


def test_a_refused_write_is_tried_again_and_said_once() -> None:
    cluster = cluster_with(*(f"p{i}" for i in range(20)))
    refusals = [0]

    def down(*_: object) -> None:
        refusals[0] += 1
        raise ApiUnavailable("down")

    async def scenario(w: KeptReasons) -> None:
        for i in range(20):
            w.waits(f"p{i}", "text")
        await asyncio.sleep(30)
        cluster.before = lambda *_: None
        await asyncio.sleep(400)
        assert all(w.shown(f"p{i}") == "text" for i in range(20))
        assert refusals[0] < 20 * 10

    async def main() -> None:
        async with keeping(cluster) as world:
            cluster.before = down
            await scenario(world)

    virtual_time.run(main())


def test_a_long_reason_is_cut_at_the_bytes_that_an_event_may_have() -> None:
    """Conditions and Events say the same, and the API server counts bytes."""

    async def scenario(w: KeptReasons) -> None:
        w.waits("p", "n1 has 1 free · " * 100)
        await asyncio.sleep(3)
        shown = w.shown("p")
        assert shown is not None
        assert 1000 < len(shown.encode()) <= 1024
        assert shown.endswith("…")

    run(cluster_with("p"), scenario)


def test_figures_with_separators_are_figures() -> None:
    def scenario_of(figure: str) -> Reason:
        return Reason("R", f"{figure} nodes have at most 24.5Gi")

    assert scenario_of("997").is_like(scenario_of("4,997"))
    assert not scenario_of("997").is_like(scenario_of("no"))
