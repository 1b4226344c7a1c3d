"""Plans for 5,000 nodes of eight GPUs that claims of 1, 2, 4 and 8 devices fill at random.

What is measured is the search: the cluster is in memory, as it is once the objects are read.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dra_driver.cli.described_fleet import described_fleet
from dra_driver.planning import Checks, Holder, PlannedCluster, Template, Workload, make_plan
from dra_driver.structured import AllocatedState, GroupMember, Snapshot

DRIVER = "gpu.dra-driver.dev"
NODES = 5000


def request(name: str, count: int, *same: str) -> ResourceClaim:
    """Return a claim for H100s that share some attributes."""
    expression = f'device.attributes["{DRIVER}"].model.startsWith("H100")'
    exactly = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": count,
        "selectors": [{"cel": {"expression": expression}}],
    }
    constraints = [{"matchAttribute": f"{DRIVER}/{attribute}"} for attribute in same]
    devices = {"requests": [{"name": "gpus", "exactly": exactly}], "constraints": constraints}
    raw = {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}
    return codec.convert(ResourceClaim, raw)


def cluster(nodes: int, full: float) -> tuple[PlannedCluster, Template]:
    """Return the cluster, and what its nodes are like; of each node about a part is allocated."""
    chance = random.Random(1)
    half = nodes // 2
    fleet = described_fleet(f"dgx-h100:{half},dgx-a100:{nodes - half}", driver=DRIVER)
    holders: list[Holder] = []
    for slice_ in fleet.slices:
        free = [device.name for device in slice_.spec.devices]
        while len(free) > 8 * (1 - full) and free:
            size = min(len(free), chance.choice((1, 1, 2, 4, 8)))
            taken = chance.sample(free, size)
            free = [name for name in free if name not in taken]
            results = tuple(
                DeviceRequestAllocationResult(
                    request="gpus",
                    driver=DriverName(DRIVER),
                    pool=PoolName(slice_.spec.pool.name),
                    device=name,
                )
                for name in taken
            )
            name = f"held-{len(holders)}"
            bare = request(name, size)
            held = msgspec.structs.replace(
                bare,
                status=ResourceClaimStatus(
                    allocation=AllocationResult(devices=DeviceAllocationResult(results=results))
                ),
            )
            holders.append(
                Holder(name, (held,), (name,), chance.choice((0, 0, 100)), (GroupMember((bare,)),))
            )
    snapshot = Snapshot.build(
        slices=fleet.slices,
        classes=fleet.classes,
        nodes=fleet.nodes,
        allocated=AllocatedState.from_claims(c for h in holders for c in h.claims),
    )
    template = Template("dgx-h100", fleet.nodes[0], (fleet.slices[0],))
    return PlannedCluster(snapshot, tuple(holders)), template


def measure(
    what: str, limit: float, now: PlannedCluster, template: Template, workload: Workload
) -> dict[str, Any]:
    """Return how long the plan took, beside how long it may take, and what it says."""
    checks = Checks(now, time.monotonic, time.monotonic() + 120)
    begin = time.perf_counter()
    cpu = time.process_time()
    plan = make_plan(checks, workload, templates=[template], count=True)
    return {
        "name": f"plan for {what}, {len(now.snapshot.nodes)} nodes, {len(now.holders)} holders",
        "value": round(time.process_time() - cpu, 2),
        "unit": "s of CPU",
        "baseline": limit,
        "baseline_of": "what it may take",
        "elapsed": round(time.perf_counter() - begin, 2),
        "questions": checks.asked,
        "fits": plan.placed is not None,
        "fitting": None if plan.count is None else plan.count.number,
        "freed": None if plan.freed is None else [len(plan.freed.holders), plan.freed.proven],
        "moved": None if plan.moved is None else [len(plan.moved.holders), plan.moved.proven],
        "added": [None if n.added is None else len(n.added.names) for n in plan.nodes],
        "unfinished": plan.out_of_time,
    }


def run(nodes: int = NODES) -> Iterator[dict[str, Any]]:
    """Measure a claim and a gang on a cluster that is full, and on one that is nearly full."""
    for full in (1.0, 0.7):
        now, template = cluster(nodes, full)
        one = (GroupMember((request("one", 8, "nvlinkGroup"),)),)
        gang = tuple(GroupMember((request(f"m{i}", 8, "nvlinkGroup"),)) for i in range(64))
        small = tuple(GroupMember((request(f"m{i}", 2),)) for i in range(64))
        yield (measure(f"a claim for 8, {full:.0%} full", 3.0, now, template, Workload("one", one)))
        yield (measure(f"64 pods with 8 each, {full:.0%} full", 10.0, now, template, Workload("gang", gang)))
        yield (measure(f"64 pods with 2 each, {full:.0%} full", 10.0, now, template, Workload("gang", small)))


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row), flush=True)
