"""Victims on random fleets of every kind against a search of all sets of pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from random import Random
from typing import Any

import pytest
from allocator_world import allocated, claim, device, exactly, pool, snapshot
from examples import parts
from random_fleets import random_cluster, random_workload

from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.ownership import PoolID, is_controller_taint
from dra_driver.planning import Workload
from dra_driver.preemption import (
    Fits,
    HoldingPod,
    NoVictims,
    OccupiedCluster,
    Preemptor,
    Removal,
    choose_victims,
)
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    GroupAllocated,
    GroupMember,
    allocate,
    allocate_group,
)

Ordered = tuple[int, ...]


def occupied(random: Random) -> OccupiedCluster:
    """Return a random cluster, with pods that hold its devices, alone, together or in groups, and budgets."""
    planned = random_cluster(random)
    pods: list[HoldingPod] = []
    claims: list[ResourceClaim] = []
    for number, holder in enumerate(planned.holders):
        claims += holder.claims
        node, takes = next(iter(holder.gives.items()), (f"n{random.randrange(3)}", (0,)))
        pods += [
            HoldingPod(
                ObjectKey("default", f"p{number}-{k}"),
                random.choice((-1, 0, 0, 0, 1, 2, 3)),
                tuple(c.key for c in holder.claims if k == 0 or random.random() < 0.8),
                started=random.choice((0, 100, 200, 300)),
                node=node,
                takes=takes if k == 0 else (0,),
                budgets=tuple(b for b in ("a", "b") if random.random() < 0.25),
                group=random.choice(("", "", "", "g", "h")),
                going=(ending := random.random()) < 0.08,
                hangs=0.08 <= ending < 0.14,
                kept="opts out" if random.random() < 0.05 else "",
            )
            for k in range(random.choice((0, 1, 1, 1, 1, 1, 1, 2)))
        ]
    ours = {PoolID(r.driver, r.pool) for c in claims for r in held(c) if random.random() < 0.97}
    return OccupiedCluster(
        planned.snapshot,
        tuple(claims),
        tuple(pods),
        budgets={b: random.randint(0, 2) for b in ("a", "b") if random.random() < 0.8},
        free=planned.free,
        ours=None if random.random() < 0.5 else ours,
    )


def held(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    assert claim.status.allocation is not None
    return [r for r in claim.status.allocation.devices.results if not r.admin_access]


def asked(random: Random, workload: Workload) -> Preemptor:
    members = workload.members
    least = random.randint(1, len(members)) if random.random() < 0.15 else None
    priority = random.choice((0, 1, 2, 3, 3, 10))
    return Preemptor("Pod default/x", members, priority, levels=workload.levels, least=least)


@dataclass
class Exhaustive:
    """All sets of pods that may go, by the order that is documented."""

    cluster: OccupiedCluster
    preemptor: Preemptor

    def best(self) -> Ordered | None:
        """Return the cost of the least removal; None if there is none."""
        pods = [p for p in self.cluster.pods if self._may_go(p)]
        sets = chain.from_iterable(combinations(pods, n) for n in range(1, len(pods) + 1))
        closed = [some for some in sets if self._closed(some)]
        for some in sorted(closed, key=self.cost):
            if self.fits(some):
                return self.cost(some)
        return None

    def _may_go(self, pod: HoldingPod) -> bool:
        claims = [c for c in self.cluster.claims if c.key in pod.claims and c.key not in self._hanging]
        pools = {PoolID(r.driver, r.pool) for c in claims for r in held(c)}
        if self.cluster.ours is not None and not pools <= set(self.cluster.ours):
            return False
        # Pods without devices are left to kube-scheduler.
        keys = {k for p in self._with_near([pod]) for k in p.claims} - self._hanging
        if not any(held(c) for c in self.cluster.claims if c.key in keys):
            return False
        return not (pod.kept or pod.going or pod.hangs) and pod.priority < self.preemptor.priority

    def _closed(self, some: Collection[HoldingPod]) -> bool:
        """Return whether all go that share claims with one of them, or a group; each with a device."""
        together = set(some)
        for pod in self.cluster.pods:
            if pod in together:
                continue
            near = [o for o in self._near(pod) if o in together]
            if near and not (pod.going or pod.hangs):
                return False
            # What is being deleted still joins what it shares claims with.
            if near:
                others = [o for o in self._near(pod) if not (o.going or o.hangs)]
                if not all(o in together for o in others):
                    return False
        return True

    def _near(self, pod: HoldingPod) -> list[HoldingPod]:
        found = {pod}
        while True:
            more = {
                o
                for o in self.cluster.pods
                for p in found
                if set(o.claims) & set(p.claims) or (o.group and o.group == p.group)
            }
            if more <= found:
                return sorted(found - {pod}, key=lambda p: p.key)
            found |= more

    def cost(self, some: Iterable[HoldingPod]) -> Ordered:
        pods = list(some)
        used = Counter(b for p in pods for b in p.budgets)
        beyond = sum(max(0, n - self.cluster.budgets.get(b, 0)) for b, n in used.items())
        keys = {k for p in self._with_near(pods) for k in p.claims} - self._hanging
        return (
            beyond + sum(len(p.budgets) > 1 for p in pods),
            max((p.priority for p in pods), default=0),
            len(pods),
            sum(p.priority for p in pods),
            -sum(p.started for p in pods),
            sum(len(held(c)) for c in self.cluster.claims if c.key in keys),
        )

    @property
    def _hanging(self) -> set[ObjectKey]:
        """Claims that stay, because a pod that is being deleted keeps them."""
        return {k for p in self.cluster.pods if p.hangs for k in p.claims}

    def _with_near(self, pods: Iterable[HoldingPod]) -> set[HoldingPod]:
        return {o for p in pods for o in (p, *self._near(p))}

    def fits(self, some: Iterable[HoldingPod], *, gone: bool = True) -> bool:
        """Return whether the preemptor fits without some pods, and without those that are being deleted."""
        out = set(some) | {p for p in self.cluster.pods if p.going and gone}
        kept = [
            c
            for c in self.cluster.claims
            if not any(c.key in p.claims for p in out)
            or any(c.key in p.claims for p in self.cluster.pods if p not in out)
            or any(
                o not in out and not o.hangs
                for p in self.cluster.pods
                if c.key in p.claims
                for o in self._near(p)
            )
        ]
        free = {n: list(of) for n, of in self.cluster.free.items()}
        for pod in out:
            if pod.node in free:
                free[pod.node] = [a + b for a, b in zip(free[pod.node], pod.takes, strict=True)]
        answer = allocate_group(
            self.cluster.snapshot.with_allocated(AllocatedState.from_claims(kept)),
            self.preemptor.members[: self.preemptor.least],
            levels=self.preemptor.levels,
            free={n: tuple(max(0, a) for a in of) for n, of in free.items()} or None,
            ignore_taint=is_controller_taint,
        )
        return isinstance(answer, GroupAllocated)


def cases(seeds: Iterable[int]) -> Iterator[tuple[int, OccupiedCluster, Preemptor]]:
    for seed in seeds:
        random = Random(seed)
        cluster = occupied(random)
        planned: Any = cluster
        yield seed, cluster, asked(random, random_workload(random, planned))


@pytest.mark.parametrize("part", parts(20, by_day=2))
def test_no_other_removal_costs_less(part: int) -> None:
    number = 50 if part == 0 else 1_100
    removals = unproven = 0
    for seed, cluster, preemptor in cases(range(part * 10_000, part * 10_000 + number)):
        all_ways = Exhaustive(cluster, preemptor)
        found = choose_victims(cluster, preemptor)
        if isinstance(found, Fits):
            assert all_ways.fits((), gone=bool(found.going)), seed
            continue
        assert not all_ways.fits(()), seed
        best = all_ways.best()
        if isinstance(found, NoVictims):
            assert best is None or not found.proven, seed
            continue
        removals += 1
        unproven += not found.proven
        victims = [p for p in cluster.pods if p.key in {v.key for v in found.victims}]
        assert len(victims) == len(found.victims) == found.cost.pods, seed
        assert all_ways.cost(victims) == tuple(found.cost), seed
        assert tuple(found.cost) == best or not found.proven, seed
        assert all_ways.fits(victims), seed
    assert removals > number // 20
    # The allocator gives up on a few questions.
    assert unproven <= removals // 20


@pytest.mark.parametrize("part", parts(3))
def test_what_was_removed_is_not_removed_again(part: int) -> None:
    """While the victims end, the answer is to wait; when they are gone, the preemptor fits."""
    waits = 0
    for seed, cluster, preemptor in cases(range(5_000 + part * 20, 5_020 + part * 20)):
        found = choose_victims(cluster, preemptor)
        if not isinstance(found, Removal):
            continue
        victims = {v.key for v in found.victims}
        ending = tuple(replace(p, going=p.going or p.key in victims) for p in cluster.pods)
        again = choose_victims(replace(cluster, pods=ending), preemptor)
        assert isinstance(again, Fits), seed
        assert again.going, seed
        waits += 1
    assert waits


class Counted:
    """GPUs, groups and priorities by numbers alone: whether members fit is counted, not asked."""

    def __init__(self, random: Random) -> None:
        self.size = random.choice((2, 3, 4))
        self.nodes = [f"n{i}" for i in range(random.choice((2, 3, 4)))]
        slices = [pool(n, *(device(f"d{k}", "80Gi") for k in range(self.size))) for n in self.nodes]
        claims: list[ResourceClaim] = []
        pods: list[HoldingPod] = []
        now = snapshot(*slices)
        for n in self.nodes:
            left = self.size
            while left and len(pods) < 9 and random.random() < 0.9:
                count = random.randint(1, left)
                left -= count
                one = claim(f"c{len(claims)}", exactly(count))
                outcome = allocate(now, [one], nodes=[n])
                assert isinstance(outcome, Allocated)
                now = now.with_allocated(now.allocated.with_allocations([(str(one.key), outcome.results[0])]))
                claims.append(allocated(one, outcome.results[0]))
                pods.append(
                    HoldingPod(
                        ObjectKey("default", f"p{len(pods)}"),
                        random.choice((0, 0, 1, 2, 9)),
                        (one.key,),
                        started=random.choice((0, 100)),
                        node=n,
                        budgets=("a",) if random.random() < 0.2 else (),
                        group=random.choice(("", "", "g", "h")),
                    )
                )
        self.cluster = OccupiedCluster(now, tuple(claims), tuple(pods), {"a": random.randint(0, 2)})
        counts = [random.randint(1, self.size)] * random.choice((2, 2, 3, 4))
        if random.random() < 0.3:
            counts[0] = random.randint(1, self.size)
        self.counts = sorted(counts, reverse=True)
        members = [GroupMember((claim(f"x{i}", exactly(n)),)) for i, n in enumerate(counts)]
        self.preemptor = Preemptor("Pod default/x", tuple(members), 5)

    def fits(self, some: Iterable[HoldingPod]) -> bool:
        gone = {key for pod in some for key in pod.claims}
        free = dict.fromkeys(self.nodes, self.size)
        for one in self.cluster.claims:
            if one.key not in gone:
                free[str(held(one)[0].pool)] -= len(held(one))
        return self._place(self.counts, free)

    def _place(self, counts: list[int], free: dict[str, int]) -> bool:
        if not counts:
            return True
        return any(
            self._place(counts[1:], free | {n: left - counts[0]})
            for n, left in free.items()
            if left >= counts[0]
        )

    def best(self) -> Ordered | None:
        ways = Exhaustive(self.cluster, self.preemptor)
        pods = [p for p in self.cluster.pods if p.priority < 5]
        sets = chain.from_iterable(combinations(pods, n) for n in range(1, len(pods) + 1))
        whole = [
            some
            for some in sets
            if all(o in some for p in some for o in self.cluster.pods if p.group and o.group == p.group)
        ]
        return min((ways.cost(some) for some in whole if self.fits(some)), default=None)


@pytest.mark.parametrize("part", parts(10, by_day=3))
def test_groups_make_room_at_the_least_cost_over_nodes(part: int) -> None:
    removals = 0
    for seed in range(part * 1_000, part * 1_000 + (30 if part == 0 else 1_000)):
        of = Counted(Random(seed))
        found = choose_victims(of.cluster, of.preemptor)
        if of.fits(()):
            assert isinstance(found, Fits), seed
            continue
        best = of.best()
        assert (tuple(found.cost) if isinstance(found, Removal) else None) == best, seed
        assert not isinstance(found, Removal) or found.proven, seed
        removals += best is not None
    assert removals > 10
