"""Random schedules of faults, restarts, policy changes and other writers.

After each schedule: no device in two exclusive claims, no partition over another, no memory or number of
shares exceeded, at any write on the way; in the end every claim that can be satisfied is allocated, slices
are what ``build_slices`` makes of the inventory, and nothing is written any more.

The default run plays a few schedules side by side; ``DRA_FAULT_SCHEDULES=200`` plays that many.
"""

import asyncio
import contextlib
import os
import random

import pytest
from support.fake_cluster import FakeCluster, unreachable

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.inventory import DEVICE_INVENTORIES
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.partitions import partition_devices
from dra_driver.api.policy import DEVICE_POLICIES
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import Conflict, ServerBusy
from dra_driver.ownership import PoolID, is_controller_taint
from dra_driver.resourceslice import Usage, build_slices, owner_of, plan
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Snapshot,
    allocate,
)

DRIVER = "gpu.example.com"
NS = "default"
SCHEDULES = int(os.environ.get("DRA_FAULT_SCHEDULES", "12"))
SIDE_BY_SIDE = 12
GIB = 1 << 30

PROFILES = [
    {
        "name": name,
        "placements": [{"start": s, "size": size} for s in starts],
        "attributes": {"type": {"string": "mig"}},
        "capacity": {"memory": {"value": f"{10 * size}Gi"}},
    }
    for name, starts, size in (("1g.10gb", (0, 1, 2, 3), 1), ("2g.20gb", (0, 2), 2))
]
POLICIES = [
    None,
    {"partitions": {"profiles": ["*"]}},
    {"partitions": {"profiles": ["2g.20gb"]}},
    {"share": {"maxShares": 2}},
    {"share": {"maxShares": 4, "memory": {"min": "4Gi", "step": "2Gi"}}},
    {"hide": True},
    {"taints": [{"key": "example.com/t", "effect": "NoSchedule"}]},
]
SELECTORS = [
    'device.attributes["gpu.example.com"].type == "gpu"',
    'device.attributes["gpu.example.com"].type == "mig"',
    "true",
]


def build() -> FakeCluster:
    cluster = FakeCluster()
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    cluster.put(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    for name in ("n1", "n2"):
        uid = f"uid-{name}"
        labels = {"kubernetes.io/hostname": name, "zone": name}
        cluster.put(NODES, {"metadata": {"name": name, "uid": uid, "labels": labels}})
        devices = [
            {
                "name": f"gpu-{i}",
                "attributes": {"type": {"string": "gpu"}},
                "capacity": {"memory": {"value": "40Gi"}},
                "partitions": PROFILES,
            }
            for i in range(2)
        ]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        meta = {"name": f"{name}.{DRIVER}", "ownerReferences": [owner]}
        status = {"registration": {"registered": True, "epoch": 1}}
        spec = {"nodeName": name, "driver": DRIVER, "devices": devices}
        cluster.put(DEVICE_INVENTORIES, {"metadata": meta, "spec": spec, "status": status})
    return cluster


def add_pod(cluster: FakeCluster, name: str, chance: random.Random) -> None:
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": chance.choice((1, 1, 1, 2)),
        "selectors": [{"cel": {"expression": chance.choice(SELECTORS)}}],
    }
    if chance.random() < 0.3:
        exactly["capacity"] = {"requests": {"memory": chance.choice(("4Gi", "10Gi", "20Gi"))}}
    meta = {"name": name, "namespace": NS}
    claim_spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": dict(meta), "spec": claim_spec, "status": {}})
    pod_spec = {
        "containers": [{"name": "c"}],
        "resourceClaims": [{"name": "r", "resourceClaimName": name}],
        "schedulingGates": [{"name": ALLOCATION_GATE}],
    }
    cluster.put(PODS, {"metadata": dict(meta), "spec": pod_spec, "status": {"phase": "Pending"}})


def violations(cluster: FakeCluster) -> list[str]:
    """Checked by the geometry of the hardware and not by what slices say."""
    held: dict[tuple[str, str], list] = {}
    for claim in cluster.all(RESOURCE_CLAIMS):
        for r in claim.status.allocation.devices.results if claim.status.allocation else ():
            held.setdefault((r.pool, r.device), []).append(r)
    found = [
        f"{device} is in {len(results)} claims"
        for device, results in held.items()
        if len(results) > 1 and not all(r.share_id for r in results)
    ]
    for inventory in cluster.all(DEVICE_INVENTORIES):
        node = inventory.spec.node_name
        for gpu in inventory.spec.devices:
            whole = held.get((node, gpu.name), [])
            memory = sum(r.consumed_capacity["memory"].value() for r in whole if r.share_id)
            if memory > 40 * GIB:
                found.append(f"{node}/{gpu.name}: {memory / GIB} Gi of shares")
            slices: dict[int, str] = {}
            for p in partition_devices(gpu):
                if (node, p.name) not in held:
                    continue
                if whole:
                    found.append(f"{node}/{gpu.name} and its partition {p.name}")
                place = range(p.placement.start, p.placement.start + p.placement.size)
                found += [f"{node}: {p.name} over {slices[i]}" for i in place if i in slices]
                slices.update(dict.fromkeys(place, p.name))
    return found


class Schedule:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = build()
        self.found: list[str] = []
        self.cluster.before, self.cluster.after = self.before, self.after
        self.names = iter(f"p{i}" for i in range(1000))
        self.pods: list[str] = []
        self.kinds: set[str] = set()

    def before(self, verb: str, kind: str, name: str, subresource: str) -> None:
        roll = self.chance.random()
        if verb in ("watch", "list"):
            if roll < 0.05:
                unreachable()
            return
        if roll < 0.05:
            raise ServerBusy("busy", code=503)
        if roll < 0.08:
            raise ServerBusy("slow down", code=429)
        if roll < 0.13:
            unreachable()
        if roll < 0.18 and verb == "patch":
            raise Conflict("somebody was faster", code=409)

    def after(self, verb: str, kind: str, name: str, subresource: str) -> None:
        self.found += [f"{verb} {kind} {name}: {v}" for v in violations(self.cluster)]
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            for r in claim.status.allocation.devices.results if claim.status.allocation else ():
                self.kinds.add("share" if r.share_id else "partition" if "-mig-" in r.device else "whole")
        if self.chance.random() < 0.07:
            unreachable()

    def others(self) -> None:
        """What users, admins, kubelets, kube-scheduler and the network do meanwhile."""
        cluster, chance = self.cluster, self.chance
        roll = chance.random()
        if roll < 0.35:
            name = next(self.names)
            add_pod(cluster, name, chance)
            self.pods.append(name)
        elif roll < 0.5 and self.pods:
            name = self.pods.pop(chance.randrange(len(self.pods)))
            cluster.remove(PODS, name, NS)
            cluster.remove(RESOURCE_CLAIMS, name, NS)
        elif roll < 0.7:
            self.policy()
        elif roll < 0.78:
            cluster.quiet ^= {chance.choice(("ResourceClaim", "ResourceSlice", "DeviceInventory"))}
            cluster.wake()
        elif roll < 0.84:
            cluster.expire()
        elif roll < 0.9:
            self.wipe(chance.choice(("n1", "n2")))
        else:
            allocated = [c for c in cluster.all(RESOURCE_CLAIMS) if c.status.allocation is not None]
            if allocated:  # kube-scheduler could not place the pod
                name = chance.choice(allocated).metadata.name
                cluster.edit(RESOURCE_CLAIMS, name, {"status": {"allocation": None}}, NS)

    def policy(self) -> None:
        node = self.chance.choice(("n1", "n2"))
        spec = self.chance.choice(POLICIES)
        key = ("DevicePolicy", "", node)
        if spec is None:
            if key in self.cluster.objects:
                self.cluster.remove(DEVICE_POLICIES, node)
            return
        requirement = {"key": "zone", "operator": "In", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
        body = {"metadata": {"name": node, "generation": 1}, "spec": {**spec, "nodeSelector": terms}}
        self.cluster.put(DEVICE_POLICIES, body)

    def wipe(self, node: str) -> None:
        """A kubelet restarts: it deletes the node's slices, and the plugin asks for them again."""
        for slice_ in self.cluster.all(RESOURCE_SLICES):
            if slice_.spec.node_name == node:
                self.cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        self.ask_again(node)

    def ask_again(self, node: str) -> None:
        name = f"{node}.{DRIVER}"
        epoch = self.cluster.obj(DEVICE_INVENTORIES, name).status.registration.epoch
        status = {"registration": {"registered": True, "epoch": epoch + 1}}
        self.cluster.edit(DEVICE_INVENTORIES, name, {"status": status})

    def stop_faults(self) -> None:
        self.cluster.before = lambda *_: None
        self.cluster.after = lambda verb, kind, name, _: self.found.extend(
            f"{verb} {kind} {name}: {v}" for v in violations(self.cluster)
        )
        self.cluster.quiet.clear()
        self.cluster.wake()

    async def play(self) -> None:
        for _ in range(3):  # restarts
            async with controller(self.cluster):
                for _ in range(self.chance.randint(4, 12)):
                    await asyncio.sleep(self.chance.random() * 0.1)
                    self.others()
        self.stop_faults()
        async with controller(self.cluster):
            await self.settle()
            assert self.found == []
            count = len(self.cluster.writes)
            await asyncio.sleep(1.0)
            assert len(self.cluster.writes) == count, self.cluster.writes[count:]

    async def settle(self) -> None:
        """Until all is as it should be and nothing is written; plugins ask for slices that are missing."""
        problem: AssertionError | None = None
        for _ in range(60):
            count = len(self.cluster.writes)
            await asyncio.sleep(0.7)
            there = {s.metadata.name for s in self.cluster.all(RESOURCE_SLICES)}
            for inventory in self.cluster.all(DEVICE_INVENTORIES):
                status = inventory.status
                missing = set(status.publication.slices) - there
                if status.publication.epoch == status.registration.epoch and missing:
                    self.ask_again(inventory.spec.node_name)
            try:
                self.check_slices()
                self.check_allocated()
            except AssertionError as e:
                problem = e
            else:
                problem = None
                if len(self.cluster.writes) == count:
                    return
        raise problem or AssertionError("still writing")

    def taken(self) -> AllocatedState:
        return AllocatedState.from_claims(self.cluster.all(RESOURCE_CLAIMS))

    def check_slices(self) -> None:
        slices = self.cluster.all(RESOURCE_SLICES)
        for inventory in self.cluster.all(DEVICE_INVENTORIES):
            node = inventory.spec.node_name
            mine = [s for s in slices if s.spec.node_name == node]
            state = self.taken().pool(PoolID(DRIVER, node))
            published = {d.name: d for s in mine for d in s.spec.devices}
            usage = Usage(frozenset(state.devices), frozenset(state.shares), published)
            matching = [p for p in self.cluster.all(DEVICE_POLICIES) if p.metadata.name == node]
            desired = build_slices(inventory, matching, usage)
            assert plan(mine, desired, owner_of(self.cluster.obj(NODES, node))).empty, node

    def check_allocated(self) -> None:
        snapshot = Snapshot.build(
            slices=self.cluster.all(RESOURCE_SLICES),
            classes=self.cluster.all(DEVICE_CLASSES),
            nodes=self.cluster.all(NODES),
            allocated=self.taken(),
        )
        for claim in self.cluster.all(RESOURCE_CLAIMS):
            if claim.status.allocation is None:
                outcome = allocate(snapshot, [claim], ignore_taint=is_controller_taint)
                assert not isinstance(outcome, Allocated), claim.metadata.name


@contextlib.asynccontextmanager
async def controller(cluster: FakeCluster):
    timings = Timings(avoid=0.1, longest_avoid=0.3, drain=0.1, settle=0.02)
    config = ControllerConfig(drivers=(DRIVER,), leader_elect=False, timings=timings)
    task = asyncio.create_task(Controller(cluster, config).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SCHEDULES, SIDE_BY_SIDE))
def test_invariants_hold_after_every_schedule(first):
    assert Quantity.parse("40Gi").value() == 40 * GIB

    async def one(seed: int, failures: dict[int, BaseException]) -> None:
        schedule = Schedule(seed)
        try:
            async with asyncio.timeout(100):
                await schedule.play()
            kinds.update(schedule.kinds)
        except (AssertionError, TimeoutError) as e:
            failures[seed] = e

    async def main() -> None:
        failures: dict[int, BaseException] = {}
        async with asyncio.TaskGroup() as group:
            for seed in range(first, min(first + SIDE_BY_SIDE, SCHEDULES)):
                group.create_task(one(seed, failures))
        assert failures == {}
        # The schedules do something: devices, shares and partitions were given out.
        assert {"whole", "share", "partition"} <= kinds

    kinds: set[str] = set()
    asyncio.run(main())
