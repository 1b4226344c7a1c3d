"""Random clusters of every kind, with what holds their devices, and workloads for them.

Partitions that share several counters, devices that are shared, taints, requests with alternatives, for all
devices or with admin access, constraints, pods that share claims, what pods take of nodes besides devices, on
nodes where pods take more than there is.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from allocator_world import allocated, claim, device, exactly, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.planning import Holder, PlannedCluster, Workload
from dra_driver.structured import Allocated, GroupMember, Level, allocate

_PARENT = "gpu.example.com/parent"
_SLICES = (("whole", 4, (0,)), ("half", 2, (0, 2)), ("quarter", 1, (0, 1, 2, 3)))
_TAINT = [{"key": "sick", "effect": "NoSchedule"}]
_TOLERATED = [{"key": "sick", "operator": "Exists"}]


def partitioned(random: Random, name: str) -> list[ResourceSlice]:
    """Return one or two GPUs with all their partitions; each takes memory slices and a number of engines."""
    counters: dict[str, dict[str, str]] = {}
    devices: list[dict[str, Any]] = []
    for g in range(random.choice((1, 2, 2))):
        counters[f"g{g}"] = {f"slice-{i}": "1" for i in range(4)} | {
            "engines": random.choice(("3", "4", "7"))
        }
        for profile, size, starts in _SLICES:
            for at in starts:
                amounts = {f"slice-{i}": "1" for i in range(at, at + size)}
                amounts["engines"] = str(random.choice((size, size, max(1, size - 1))))
                devices.append(
                    device(
                        f"g{g}-{profile}-{at}",
                        f"{size}0Gi",
                        attributes={"profile": profile, "parent": f"{name}-g{g}"},
                        consumesCounters=takes(f"g{g}", **amounts),
                        **({"taints": _TAINT} if random.random() < 0.1 else {}),
                    )
                )
    return partitioned_pool(name, counters, *devices)


def plain(random: Random, name: str) -> ResourceSlice:
    """Return two to four GPUs, some of which may be shared or are sick."""
    devices = []
    for k in range(random.randint(2, 4)):
        more: dict[str, Any] = {}
        if random.random() < 0.25:
            more["allowMultipleAllocations"] = True
        if random.random() < 0.15:
            more["taints"] = _TAINT
        memory = random.choice(("10Gi", "20Gi", "40Gi"))
        attributes = {"profile": "whole", "parent": f"{name}-{k // 2}"}
        devices.append(device(f"d{k}", memory, attributes=attributes, **more))
    return pool(name, *devices)


def selected(profile: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": f'device.attributes["gpu.example.com"].profile == "{profile}"'}}]


def one_request(random: Random) -> dict[str, Any]:
    """Return what a claim asks for once: devices of some kind, with or without alternatives."""

    def asked() -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if random.random() < 0.5:
            fields["selectors"] = selected(random.choice(("whole", "half", "quarter", "quarter")))
        if random.random() < 0.2:
            fields["tolerations"] = _TOLERATED
        return exactly(random.choice((1, 1, 1, 2)), random.choice(("", "", "5Gi", "20Gi")), **fields)

    what = random.random()
    if what < 0.15:
        subs = [{"name": f"s{i}", **asked()} for i in range(2)]
        return {"firstAvailable": subs}
    if what < 0.2:
        return exactly(1, adminAccess=True)
    if what < 0.25:
        return exactly(None, selectors=selected("half"))
    return asked()


def random_claim(random: Random, name: str) -> ResourceClaim:
    requests = [one_request(random) for _ in range(random.choice((1, 1, 1, 2)))]
    constraints = random.choice(
        ([], [], [], [{"matchAttribute": _PARENT}], [{"distinctAttribute": "gpu.example.com/parent"}])
    )
    return claim(name, *requests, constraints=constraints)


def random_cluster(random: Random) -> PlannedCluster:
    """Return up to three nodes with up to seven holders; some of these hold several claims."""
    names = [f"n{i}" for i in range(random.randint(1, 3))]
    slices = [partitioned(random, n) if random.random() < 0.6 else plain(random, n) for n in names]
    now = snapshot(*slices, nodes=[node(n, rack=random.choice("ab")) for n in names])
    free = {n: (random.randint(-2, 3),) for n in names if random.random() < 0.9}
    holders: list[Holder] = []
    for i in range(random.randint(1, 7)):
        asked = [random_claim(random, f"held-{i}-{k}") for k in range(random.choice((1, 1, 1, 2)))]
        outcome = allocate(now, asked, nodes=[random.choice(names)])
        if not isinstance(outcome, Allocated):
            continue
        held = tuple(allocated(c, r) for c, r in zip(asked, outcome.results, strict=True))
        given = [(str(c.key), r) for c, r in zip(asked, outcome.results, strict=True)]
        now = now.with_allocated(now.allocated.with_allocations(given))
        needs = (random.choice((0, 1, 1, 2)),)
        gives = {outcome.node: needs} if needs[0] else {}
        # Some pods may not go to their node again: it is cordoned by now.
        others = frozenset(names) - {outcome.node}
        members = (GroupMember(tuple(asked), others if random.random() < 0.15 else None, needs),)
        holders.append(Holder(f"h{i}", held, priority=random.choice((0, 5)), members=members, gives=gives))
    return PlannedCluster(now, tuple(holders), free=free if random.random() < 0.5 else {})


def random_workload(random: Random, cluster: PlannedCluster) -> Workload:
    """Return one to three pods of at most two kinds; two of them may share a claim, or be kept off a node."""
    names = list(cluster.snapshot.nodes)
    kinds = random.choice((1, 1, 2))
    seeds = [random.random() for _ in range(kinds)]
    members: list[GroupMember] = []
    for i in range(random.choice((1, 1, 2, 3))):
        of = Random(seeds[i % kinds])
        claims = tuple(random_claim(of, f"m{i}-{k}") for k in range(of.choice((1, 1, 2))))
        nodes = frozenset(of.sample(names, len(names) - 1)) if len(names) > 1 and of.random() < 0.2 else None
        members.append(GroupMember(claims, nodes, (of.choice((0, 0, 1, 2)),)))
    if len(members) > 1 and random.random() < 0.2:
        members[1] = replace(members[1], claims=members[0].claims[:1])
    levels = random.choice(((), (), (), (Level(label="rack"),), (Level(attribute=_PARENT),)))
    return Workload("w", tuple(members), levels)
