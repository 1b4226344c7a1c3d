"""Victims on 5,000 nodes of eight GPUs that are full of pods with many priorities."""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import msgspec
from bench_plan import DRIVER, NODES, request

from dra_driver.api.meta import DriverName, ObjectKey, PoolName
from dra_driver.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dra_driver.cli.described_fleet import described_fleet
from dra_driver.preemption import Fits, HoldingPod, NoVictims, OccupiedCluster, Preemptor, choose_victims
from dra_driver.structured import AllocatedState, Budget, GroupMember, Snapshot, prepare


def held(name: str, pool: str, devices: list[str]) -> ResourceClaim:
    """Return a claim that has some devices of a pool."""
    results = tuple(
        DeviceRequestAllocationResult(
            request="gpus", driver=DriverName(DRIVER), pool=PoolName(pool), device=device
        )
        for device in devices
    )
    status = ResourceClaimStatus(allocation=AllocationResult(devices=DeviceAllocationResult(results=results)))
    return msgspec.structs.replace(request(name, len(devices)), status=status)


def full_cluster(nodes: int, priorities: int, sizes: tuple[int, ...], budgets: int) -> OccupiedCluster:
    """Return nodes of which all devices are held.

    Args:
        nodes: how many.
        priorities: of the pods, from 0 on.
        sizes: numbers of devices that a pod may have.
        budgets: of which some pods have one, and which allow one disruption each.
    """
    chance = random.Random(1)
    fleet = described_fleet(f"dgx-h100:{nodes}", driver=DRIVER)
    claims: list[ResourceClaim] = []
    pods: list[HoldingPod] = []
    for slice_ in fleet.slices:
        free = [device.name for device in slice_.spec.devices]
        while free:
            size = min(len(free), chance.choice(sizes))
            claims.append(held(f"held-{len(claims)}", slice_.spec.pool.name, free[:size]))
            free = free[size:]
            covered = budgets and chance.random() < 0.2
            pods.append(
                HoldingPod(
                    ObjectKey("default", f"pod-{len(claims)}"),
                    chance.randrange(priorities),
                    (claims[-1].key,),
                    started=chance.randrange(1_000_000),
                    node=slice_.spec.node_name or "",
                    takes=(size * 8_000,),
                    budgets=(f"default/budget-{chance.randrange(budgets)}",) if covered else (),
                )
            )
    snapshot = Snapshot.build(
        slices=fleet.slices,
        classes=fleet.classes,
        nodes=fleet.nodes,
        allocated=AllocatedState.from_claims(claims),
    )
    return OccupiedCluster(
        snapshot,
        tuple(claims),
        tuple(pods),
        {f"default/budget-{i}": 1 for i in range(budgets)},
        {n.metadata.name: (100_000,) for n in fleet.nodes},
    )


def measure(what: str, limit: float, now: OccupiedCluster, members: int, devices: int) -> dict[str, Any]:
    """Return what a choice takes, beside what it may take, and what it says."""
    asked = tuple(
        GroupMember((request(f"x-{i}", devices),), None, (devices * 8_000,)) for i in range(members)
    )
    cpu = time.process_time()
    budget = Budget(20_000_000, seconds=120, clock=time.process_time)
    found = choose_victims(now, Preemptor("Pod default/x", asked, 1_000_000), budget)
    taken = time.process_time() - cpu
    result: dict[str, Any] = {
        "name": f"victims for {what}, {len(now.snapshot.nodes)} nodes, {len(now.claims)} holders",
        "value": round(taken, 2),
        "unit": "s of CPU",
        "baseline": limit,
        "baseline_of": "what it may take",
        "steps": budget.spent,
    }
    if isinstance(found, Fits | NoVictims):
        return result | {"answer": found.summary()}
    return result | {"cost": list(found.cost), "proven": found.proven}


def run(nodes: int = NODES) -> list[dict[str, Any]]:
    """Measure a pod of eight GPUs, of four, and a group, where nothing is free."""
    results = []
    for what, priorities, sizes, budgets in (
        ("8 GPUs among pods of one GPU", 1, (1,), 0),
        ("8 GPUs among 1,000 priorities", 1_000, (1,), 0),
        ("8 GPUs among pods of 1 to 8 GPUs with budgets", 1_000, (1, 1, 2, 4, 8), 50),
    ):
        now = full_cluster(nodes, priorities, sizes, budgets)
        prepare(now.snapshot)
        # As the controller's processes do with what they keep.
        gc.freeze()
        results.append(measure(what, 1.0, now, 1, 8))
        results.append(measure(what.replace("8 GPUs among", "4 GPUs among"), 1.0, now, 1, 4))
        results.append(measure(f"8 pods of {what}", 5.0, now, 8, 8))
    return results


if __name__ == "__main__":
    import sys

    for line in run(*map(int, sys.argv[1:])):
        print(line)
