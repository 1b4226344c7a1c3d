"""Groups are whole or hold nothing, whatever kube-scheduler reports and whenever the controller ends."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, pod
from examples import share
from fake_client import FakeClient
from group_members import member

from dra_driver.api.core import PODS

NO_ROOM = "0/3 nodes are available: 1 node(s) had no room, 2 resourceclaim not available on the node."
# By then what was reported has been answered, and what was deallocated may be allocated again: also by a
# controller that does not know since when kube-scheduler has been binding other members, and waits for 20 s.
SETTLED = 25.0


class Play:
    """A random cluster with groups, and what kube-scheduler and the end of the controller do to it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        nodes = {f"n{i}": (40,) * self.random.randint(1, 3) for i in range(self.random.randint(1, 3))}
        self.cluster: FakeClient = cluster_of(**nodes)
        self.groups: dict[str, tuple[int, str, list[str]]] = {}
        for group in ("x", "y")[: self.random.randint(1, 2)]:
            size = self.random.randint(2, 4)
            least = self.random.choice((size, size, self.random.randint(1, size)))
            some_run = self.random.choice(("", "wait", "release"))
            names = [f"{group}{i}" for i in range(size)]
            for name in names:
                member(self.cluster, name, size, group=group, least=least, some_run=some_run)
            self.groups[group] = (least, some_run, names)
        for i in range(self.random.randint(0, 2)):
            claim(self.cluster, f"single{i}")
            pod(self.cluster, f"single{i}", f"single{i}")
        self.done: list[str] = []

    async def run(self) -> None:
        for _ in range(4):
            async with controlling(self.cluster) as h:
                for _ in range(self.random.randint(1, 5)):
                    self.step(h)
                    if self.random.random() < 0.7:
                        await h.quiet(SETTLED)
                        self.check(h)
                if self.random.random() < 0.5:
                    await asyncio.sleep(self.random.choice((0.0, 0.001, 0.05, 0.5)))
        async with controlling(self.cluster) as h:
            await h.quiet(SETTLED)
            self.check(h)

    def step(self, h: Harness) -> None:
        pods = [p for p in self.cluster.all(PODS) if p.status.phase == "Pending" and not p.spec.node_name]
        placed = [p.metadata.name for p in pods if not p.spec.scheduling_gates and h.devices(p.metadata.name)]
        bound = [p.metadata.name for p in self.cluster.all(PODS) if p.spec.node_name]
        what = self.random.choice(("bind", "bind", "report", "report", "deallocate", "end", "nothing"))
        self.done.append(what)
        if what == "end" and bound:
            name = self.random.choice(bound)
            self.cluster.edit(PODS, name, {"status": {"phase": "Succeeded"}}, NS)
            h.deallocate(name)
        elif what in ("bind", "report", "deallocate") and placed:
            name = self.random.choice(placed)
            self.done[-1] += f" {name}"
            if what == "bind":
                h.bind(name, h.devices(name)[0][0])
            elif what == "report":
                h.report(name, NO_ROOM)
            else:
                h.deallocate(name)

    def check(self, h: Harness) -> None:
        held = h.held()
        assert len(set(held)) == len(held), self.done
        for group, (least, some_run, names) in self.groups.items():
            pods = {name: self.cluster.obj(PODS, name, NS) for name in names}
            runs = {n for n, p in pods.items() if p.spec.node_name}
            has = runs | {n for n in names if h.devices(n)}
            if len(has) < least and (not runs or some_run == "release"):
                assert has == runs, (group, self.groups[group], has, runs, self.done)
            for name in has - runs:
                # What it has is for kube-scheduler to see.
                assert not pods[name].spec.scheduling_gates, (name, self.done)


def play(seed: int) -> None:
    async def main() -> None:
        async with asyncio.timeout(3600):
            await Play(seed).run()

    virtual_time.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", share(range(10), 3))
def test_a_group_is_whole_or_holds_nothing(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("seed", share(range(1000, 1500), 0, by_day=100))
def test_a_group_is_whole_or_holds_nothing_in_500_plays(seed: int) -> None:
    play(seed)
