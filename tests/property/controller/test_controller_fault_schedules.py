"""Random schedules of faults, restarts, policy changes and other writers.

After each schedule: no device in two exclusive claims, no partition over another, no memory or number of
shares exceeded, at any write on the way; in the end every claim that can be satisfied is allocated, slices
are what ``build_slices`` makes of the inventory, and nothing but Events is written any more. Then a device,
a partition and a share are still handed out.

What users do is a matter of the seed alone: each step draws by itself, however many calls of the controller
had a fault drawn for them until then.

The default run plays a few schedules; ``DRA_FAULT_SCHEDULES=200`` plays that many.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import virtual_time
from examples import seeds
from fake_client import FakeClient, unreachable
from late_answers import late

from controller.app import Controller
from controller.config import ControllerConfig, Timings
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.partitions import partition_devices
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceRequestAllocationResult,
)
from dra_driver.api.storage import STORAGE_RESOURCES
from dra_driver.errors import Conflict, ServerBusy
from dra_driver.ownership import PoolID, is_controller_taint, owner_of
from dra_driver.resourceslice import Usage, build_slices, plan_slices
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Snapshot,
    allocate,
)

DRIVER = DriverName("gpu.example.com")
NS = "default"
STORAGE = frozenset(resource.kind for resource in STORAGE_RESOURCES)
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
# Policy of all nodes, and selector of the claim, that lead to each form of a device.
FORMS = {
    "whole": (None, SELECTORS[0]),
    "partition": (POLICIES[1], SELECTORS[1]),
    "share": (POLICIES[3], SELECTORS[0]),
}


def build() -> FakeClient:
    cluster = FakeClient()
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


def add_pod(cluster: FakeClient, name: str, chance: random.Random) -> None:
    exactly: dict[str, Any] = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": chance.choice((1, 1, 1, 2)),
        "selectors": [{"cel": {"expression": chance.choice(SELECTORS)}}],
    }
    if chance.random() < 0.3:
        exactly["capacity"] = {"requests": {"memory": chance.choice(("4Gi", "10Gi", "20Gi"))}}
    put_pod(cluster, name, exactly)


def put_pod(cluster: FakeClient, name: str, exactly: dict[str, Any]) -> None:
    meta = {"name": name, "namespace": NS}
    claim_spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    cluster.put(RESOURCE_CLAIMS, {"metadata": dict(meta), "spec": claim_spec, "status": {}})
    pod_spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "r", "resourceClaimName": name}],
        "schedulingGates": [{"name": ALLOCATION_GATE}],
    }
    cluster.put(PODS, {"metadata": dict(meta), "spec": pod_spec, "status": {"phase": "Pending"}})


def violations(cluster: FakeClient) -> list[str]:
    """Checked by the geometry of the hardware and not by what slices say."""
    held: dict[tuple[str, str], list[DeviceRequestAllocationResult]] = {}
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
        self.seed = seed
        self.chance = random.Random(seed)
        self.faults = random.Random(f"faults of {seed}")
        # Beside the others, which do not depend on how many kinds the controller reads for volumes.
        self.storage_faults = random.Random(f"faults of storage of {seed}")
        self.cluster = build()
        self.found: list[str] = []
        self.cluster.before, self.cluster.after = self.before, self.after
        self.names = iter(f"p{i}" for i in range(1000))
        self.pods: list[str] = []

    def before(self, verb: str, kind: str, name: str, subresource: str) -> None:
        roll = (self.storage_faults if kind in STORAGE else self.faults).random()
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
        if self.faults.random() < 0.07:
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
        self.set_policy(self.chance.choice(("n1", "n2")), self.chance.choice(POLICIES))

    def set_policy(self, node: str, spec: dict[str, Any] | None) -> None:
        if spec is None:
            if self.cluster.find(DEVICE_POLICIES, node):
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
        for restart in range(3):
            self.chance = random.Random(f"{self.seed}/{restart}")
            async with controller(self.cluster, self.seed):
                for step in range(self.chance.randint(4, 12)):
                    # What is there to choose from depends on the controller, and so may the number of draws.
                    self.chance = random.Random(f"{self.seed}/{restart}/{step}")
                    await asyncio.sleep(self.chance.random() * 0.1)
                    self.others()
        self.stop_faults()
        async with controller(self.cluster, self.seed):
            await self.settle()
            assert self.found == []
            count = len(self.cluster.writes)
            await pause(1.0)
            # An Event may be counted once more at any time.
            assert [w for w in self.cluster.writes[count:] if w[1] != "Event"] == []
            await self.serve_each_form()
            assert self.found == []

    async def serve_each_form(self) -> None:
        """Waits until a whole device, a partition and a share were given out, one after the other."""
        for name in self.pods:
            self.cluster.remove(PODS, name, NS)
            self.cluster.remove(RESOURCE_CLAIMS, name, NS)
        for form, (policy, selector) in FORMS.items():
            for node in ("n1", "n2"):
                self.set_policy(node, policy)
            await until(self.slices_are_right)
            await pause(0.1)  # the controller sees its own slices
            exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
            put_pod(self.cluster, form, {**exactly, "selectors": [{"cel": {"expression": selector}}]})
            await until(functools.partial(self.forms_of, form))
            assert self.forms_of(form) == {form}
            self.cluster.remove(PODS, form, NS)
            self.cluster.remove(RESOURCE_CLAIMS, form, NS)

    def forms_of(self, claim: str) -> set[str]:
        allocation = self.cluster.obj(RESOURCE_CLAIMS, claim, NS).status.allocation
        results = allocation.devices.results if allocation else ()
        return {"share" if r.share_id else "partition" if "-mig-" in r.device else "whole" for r in results}

    def slices_are_right(self) -> bool:
        try:
            self.check_slices()
        except AssertionError:
            return False
        return True

    async def settle(self) -> None:
        """Until all is as it should be and nothing is written; plugins ask for slices that are missing."""
        problem: AssertionError | None = None
        for _ in range(60):
            count = len(self.cluster.writes)
            self.report_unplaced()
            await pause(0.7)
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

    def report_unplaced(self) -> None:
        """As kube-scheduler ends a nomination whose claims are not allocated any more, with its report."""
        for pod in self.cluster.all(PODS):
            claim = self.cluster.find(RESOURCE_CLAIMS, pod.metadata.name, NS)
            lacks = claim is not None and not claim.get("status", {}).get("allocation")
            if pod.status.nominated_node_name and not pod.spec.scheduling_gates and lacks:
                self.cluster.edit(PODS, pod.metadata.name, {"status": {"nominatedNodeName": None}}, NS)

    def taken(self) -> AllocatedState:
        return AllocatedState.from_claims(self.cluster.all(RESOURCE_CLAIMS))

    def check_slices(self) -> None:
        slices = self.cluster.all(RESOURCE_SLICES)
        for inventory in self.cluster.all(DEVICE_INVENTORIES):
            node = inventory.spec.node_name
            mine = [s for s in slices if s.spec.node_name == node]
            state = self.taken().pool(PoolID(DRIVER, PoolName(node)))
            published = {d.name: d for s in mine for d in s.spec.devices}
            usage = Usage(frozenset(state.devices), frozenset(state.shares), published)
            matching = [p for p in self.cluster.all(DEVICE_POLICIES) if p.metadata.name == node]
            desired = build_slices(inventory, matching, usage)
            assert plan_slices(mine, desired, owner_of(self.cluster.obj(NODES, node))).empty, node

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


async def pause(seconds: float) -> None:
    """Sleep, and give the controller its turns on a busy machine as well: one for each step at least."""
    for _ in range(round(seconds / 0.02)):
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await pause(0.05)


@contextlib.asynccontextmanager
async def controller(cluster: FakeClient, seed: int) -> AsyncIterator[None]:
    timings = Timings(avoid=0.1, longest_avoid=0.3, drain=0.1, settle=0.02)
    # At rest nothing is written any more; turns of pods for which devices are set aside go on.
    config = ControllerConfig(drivers=(DRIVER,), leader_elect=False, timings=timings, starvation_seconds=0)
    task = asyncio.create_task(
        Controller(cluster, config, virtual_time.LoopClock(), answers_of=late(0.3, seed, restarts=0.05)).run()
    )
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("DRA_FAULT_SCHEDULES", 12, first=5))
def test_invariants_hold_after_every_schedule(seed: int) -> None:
    assert Quantity.parse("40Gi").value() == 40 * GIB

    async def main() -> None:
        async with asyncio.timeout(240):
            await Schedule(seed).play()

    virtual_time.run(main())
