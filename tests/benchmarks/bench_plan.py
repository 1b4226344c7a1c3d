"""Plans for 5,000 nodes of eight GPUs that claims of 1, 2, 4 and 8 devices fill at random.

The search is measured by itself, with the cluster in memory, and as the whole command on objects that kubectl
exports: nodes with their images, and pods, some that hold the devices and twice as many others.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dra_driver.api import codec
from dra_driver.api.core import NODES as NODE_KIND
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dra_driver.cli.described_fleet import FleetObjects, described_fleet
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


def fleet_of(nodes: int) -> FleetObjects:
    """Return so many nodes, half of them with H100s."""
    half = nodes // 2
    return described_fleet(f"dgx-h100:{half},dgx-a100:{nodes - half}", driver=DRIVER)


def cluster(nodes: int, full: float) -> tuple[PlannedCluster, Template]:
    """Return the cluster, and what its nodes are like; of each node about a part is allocated."""
    chance = random.Random(1)
    fleet = fleet_of(nodes)
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


def exported(nodes: int, full: float) -> Iterator[dict[str, Any]]:
    """Yield the objects of a cluster as an API server has them."""
    now, _ = cluster(nodes, full)
    fleet = fleet_of(nodes)
    status = {
        "allocatable": {"cpu": "192", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "1000Gi"},
        "conditions": [{"type": t, "status": "True", "reason": t * 30, "message": t * 60} for t in "abcde"],
        "images": [
            {"names": [f"registry.example.com/image-{i}@sha256:{'0' * 64}"], "sizeBytes": 123456789}
            for i in range(30)
        ],
    }
    for node in fleet.nodes:
        yield {**codec.to_raw(NODE_KIND, node), "status": status}
    yield from (codec.to_raw(RESOURCE_SLICES, slice_) for slice_ in fleet.slices)
    yield from (codec.to_raw(DEVICE_CLASSES, class_) for class_ in fleet.classes)
    for holder in now.holders:
        (claim,) = holder.claims
        yield codec.to_raw(RESOURCE_CLAIMS, claim)
        assert claim.status.allocation is not None
        place = str(claim.status.allocation.devices.results[0].pool)
        yield running(holder.name, place, priority=holder.priority, claim=claim.metadata.name)
        yield running(f"{holder.name}-a", place)
        yield running(f"{holder.name}-b", place)


def running(name: str, node: str, *, priority: int = 0, claim: str = "") -> dict[str, Any]:
    """Return a pod of three kilobytes on a node."""
    container = {
        "name": "c",
        "image": "i" * 60,
        "env": [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    spec: dict[str, Any] = {"nodeName": node, "priority": priority, "containers": [container]}
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    conditions = [{"type": t, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"} for t in "abcd"]
    metadata = {"name": name, "namespace": "default"}
    status = {"phase": "Running", "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def write_export(path: Path, nodes: int, full: float) -> int:
    """Write the list that ``kubectl get … -o json`` prints; return the number of its objects."""
    number = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [')
        for number, item in enumerate(exported(nodes, full), 1):
            item["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number)}
            file.write("," * (number > 1) + json.dumps(item, indent=4))
        file.write("]}")
    return number


def measure_command(what: str, limit: float, path: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Return how long a user waits for the command, with reading and its start."""
    command = [sys.executable, "-m", "dra_driver.cli.main", "plan", "-s", str(path), *arguments]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - begin
    return {
        "name": f"dra-driver plan for {what}, {path.stat().st_size >> 20} MiB of exported objects",
        "value": round(elapsed, 2),
        "unit": "s",
        "baseline": limit,
        "baseline_of": "what it may take",
        "status": done.returncode,
        "says": done.stdout.splitlines()[:1] or done.stderr.splitlines()[-1:],
    }


def run_commands(nodes: int = NODES) -> Iterator[dict[str, Any]]:
    """Measure the command on exported objects of a cluster that is nearly full."""
    flags = ("--model", "H100", "--same", "nvlinkGroup", "--gpus", "8", "--how-many")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        write_export(path, nodes, 0.7)
        yield measure_command("a claim for 8", 3.0, path, flags)
        yield measure_command("64 pods with 8 each", 10.0, path, (*flags, "--pods", "64"))


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
    for row in chain(run(), run_commands()):
        print(json.dumps(row), flush=True)
