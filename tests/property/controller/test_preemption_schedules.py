"""Random days with preemption on, in virtual time: priorities, groups, budgets, kills, lost answers.

The default run plays one; ``DRA_PREEMPTION_SCHEDULES=200`` plays that many.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from typing import Any

import pytest
import virtual_time
from controller_harness import NS, Harness, bind_pods, cluster_of, controlling
from group_members import member
from preemption_audit import PreemptionAudit
from preemption_world import Ends, Time, budget, create, shown

from controller.config import PreemptionMode, PreemptionSettings
from dra_driver.api.core import PODS
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.errors import ApiUnavailable, ServerBusy
from dra_driver.fleet import OPEN

TIME_OUT = 30.0
SETTINGS = PreemptionSettings(mode=PreemptionMode.ON, seconds=TIME_OUT, per_minute=1000.0)
DAY_SECONDS = 150.0
PRIORITIES = (0, 0, 0, 10, 100, 1000)


class Day:
    """A cluster, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = cluster_of(n1=(80, 80, 80), n2=(80, 80, 80))
        self.clock = Time(self.cluster)
        self.audit = PreemptionAudit(TIME_OUT)
        self.violations: list[str] = []
        self.disturbed = True
        self._numbers = itertools.count()
        self.cluster.before = self._before
        self.cluster.after = self._after

    def _before(self, verb: str, kind: str, name: str, _: str) -> None:
        if self.disturbed and verb in ("apply", "evict", "get") and self.chance.random() < 0.05:
            raise self.chance.choice((ApiUnavailable("no answer"), ServerBusy("busy", code=503)))

    def _after(self, verb: str, kind: str, name: str, _: str) -> None:
        if kind == "Pod":
            self.violations += self.audit.look(self.cluster.all(PODS))
        if self.disturbed and verb in ("apply", "evict") and self.chance.random() < 0.05:
            raise ApiUnavailable("the answer is lost")

    async def play(self) -> None:
        tasks = [asyncio.create_task(w) for w in (Ends(self.cluster, 4.0).run(), self._scheduler())]
        settings: dict[str, Any] = {"preemption": SETTINGS, "starvation_seconds": 0.0}
        end = DAY_SECONDS
        while self.clock.monotonic() < end:
            # A life of the controller.
            async with controlling(self.cluster, clock=self.clock, **settings) as h:
                self.cluster.after = self._after
                until = min(end, self.clock.monotonic() + self.chance.uniform(2.0, 40.0))
                while self.clock.monotonic() < until:
                    self._somebody(h)
                    await asyncio.sleep(self.chance.uniform(0.5, 4.0))
        self.disturbed = False
        for found in self.cluster.all(POD_DISRUPTION_BUDGETS):
            self.cluster.remove(POD_DISRUPTION_BUDGETS, found.metadata.name, NS)
        async with controlling(self.cluster, clock=self.clock, **settings) as h:
            self.cluster.after = self._after
            await asyncio.sleep(6 * TIME_OUT)
            names = [p.metadata.name for p in self.cluster.all(PODS)]
            self.violations += [f"{n} preempts for ever" for n in names if self._is_open(h, n)]
            self.violations += self._waiting()
        for task in tasks:
            task.cancel()

    def _is_open(self, h: Harness, name: str) -> bool:
        found = shown(h, name)
        return found is not None and found.reason == OPEN

    def _waiting(self) -> list[str]:
        """Return pods of one GPU that wait although one of lower priority runs."""
        pods = [p for p in self.cluster.all(PODS) if "one" in p.metadata.name]
        lowest = min((p.spec.priority for p in pods if p.spec.node_name), default=2000)
        return [
            f"{p.metadata.name} waits for ever"
            for p in pods
            if not p.spec.node_name and p.spec.priority > lowest
        ]

    def _somebody(self, h: Harness) -> None:
        roll, number = self.chance.random(), next(self._numbers)
        priority = self.chance.choice(PRIORITIES)
        labels = {"labels": {"app": self.chance.choice("xyz")}}
        if roll < 0.55:
            create(h, f"one-{number}", priority=priority, metadata=labels)
        elif roll < 0.65:
            create(h, f"two-{number}", 2, priority=priority, metadata=labels)
        elif roll < 0.72:
            for i in range(3):
                member(self.cluster, f"group-{number}-{i}", 3, group=f"g{number}", priority=priority)
        elif roll < 0.82:
            allowed = self.chance.choice((0, 0, 1, 2))
            app = self.chance.choice("xyz")
            budget(self.cluster, app, {"app": app}, allowed)
        elif pods := self.cluster.all(PODS):
            victim = self.chance.choice(pods)
            with contextlib.suppress(KeyError):
                self.cluster.remove(PODS, victim.metadata.name, NS)

    async def _scheduler(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            bind_pods(self.cluster)
            for found in self.cluster.all(PODS):
                if found.spec.node_name and found.status.phase != "Running":
                    self.cluster.edit(PODS, found.metadata.name, {"status": {"phase": "Running"}}, NS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("DRA_PREEMPTION_SCHEDULES") or 1)))
def test_no_victim_without_cause_and_no_second_round_within_the_time_out(seed: int) -> None:
    day = Day(seed)
    virtual_time.run(day.play())
    assert day.violations == []
    assert day.audit.victims > 0
