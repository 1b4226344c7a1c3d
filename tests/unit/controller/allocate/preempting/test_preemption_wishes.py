"""Dry run: what is said about pods that would be preempted, how often, and what a restart makes of it."""

from __future__ import annotations

import asyncio

from controller_harness import Harness, cluster_of
from preemption_world import create, holder, lives, play, shown, until

from controller.config import PreemptionSettings
from dra_driver.api.core import EVENTS, PODS
from dra_driver.fleet import WOULD_PREEMPT

DRY_RUN = PreemptionSettings()


def conditions(h: Harness) -> int:
    """Return how often a condition of preemption was written."""
    return sum("Preempt" in str(body) for _, body in h.cluster.applied)


def wished(h: Harness, name: str) -> bool:
    found = shown(h, name)
    return found is not None and found.reason == WOULD_PREEMPT


def test_what_is_shown_stands_after_a_restart() -> None:
    written: list[int] = []

    async def before(h: Harness) -> None:
        for name in ("a", "b"):
            await holder(h, name, priority=1)
        create(h, "high", 2, priority=100)
        await until(lambda: wished(h, "high"))
        written.append(conditions(h))

    async def after(h: Harness) -> None:
        since = shown(h, "high")
        await asyncio.sleep(600)
        assert shown(h, "high") == since
        assert conditions(h) == written[0]
        assert [e.count for e in h.cluster.all(EVENTS) if e.reason == "WouldPreempt"] == [1]

    lives(cluster_of(n1=(80, 80)), [before, after], DRY_RUN)


def test_what_holds_no_more_after_a_restart_is_ended() -> None:
    async def before(h: Harness) -> None:
        await holder(h, "a", priority=1)
        create(h, "high", priority=100)
        await until(lambda: wished(h, "high"))
        h.cluster.remove(PODS, "a", "default")

    async def after(h: Harness) -> None:
        await until(lambda: not wished(h, "high"), seconds=100)

    lives(cluster_of(n1=(80,)), [before, after], DRY_RUN)


def test_few_conditions_and_events_are_written_a_minute_however_many_pods_wait() -> None:
    async def scenario(h: Harness) -> None:
        for i in range(8):
            await holder(h, f"low-{i}", priority=1)
        for i in range(60):
            # Each of another signature, so that each is asked about.
            create(h, f"high-{i}", priority=100 + i, nodeSelector={f"x-{i}": "y"} if i % 2 else {})
        await asyncio.sleep(60)
        assert conditions(h) <= 61
        assert len(h.events("WouldPreempt")) <= 61
        await until(lambda: wished(h, "high-0") and wished(h, "high-58"), seconds=600)
        # Nobody below them is left: all of it ends, and that is written bit by bit.
        before = conditions(h)
        for i in range(8):
            h.cluster.remove(PODS, f"low-{i}", "default")
        await asyncio.sleep(5)
        assert conditions(h) - before <= 12

    play(cluster_of(n1=(80,) * 8), scenario, DRY_RUN)
