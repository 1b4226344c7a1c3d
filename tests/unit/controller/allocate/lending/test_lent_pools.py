"""What is lent of pools: units with all their devices, as publishing says and as inventories note."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
from builders import DRIVER, PROTECTED
from controller_harness import Harness, claim, cluster_of, pod, run
from fake_client import FakeClient

from controller.allocate.decide import Change, PoolChanged
from controller.allocate.signal import Signal
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, AllocationResult
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

POOL = PoolID(DRIVER, PoolName("n1"))
OTHERS = "nic.example.com"


def cut_gpu(*bare: str) -> dict[str, Any]:
    """A GPU that is published whole and as two halves, and one that is not cut; some without our taint."""
    uses = {"gpu-0": 2, "gpu-0-a": 1, "gpu-0-b": 1}
    devices = [
        builders.device(
            name,
            consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": str(amount)}}}],
            taints=[] if name in bare else [PROTECTED],
        )
        for name, amount in uses.items()
    ]
    whole = builders.device("gpu-1", taints=[] if "gpu-1" in bare else [PROTECTED])
    return builders.resource_slice("n1", *devices, whole)


def noting(*names: str, driver: str = DRIVER, node: str = "n1", name: str = "") -> dict[str, Any]:
    body = builders.inventory(node, driver=driver)
    body["status"]["publication"] = {"lent": [{"unit": n, "devices": [n]} for n in names]}
    if name:
        body["metadata"]["name"] = name
    return body


class SimulatedCluster:
    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster
        self.changes: list[Change] = []
        self.slices = Informer(cluster, RESOURCE_SLICES)
        self.inventories = Informer(cluster, DEVICE_INVENTORIES)
        classes = Informer(cluster, DEVICE_CLASSES)
        changed: Signal[[PoolID]] = Signal()
        of_pool = lambda pool: [s for s in self.slices.items() if s.spec.pool.name == pool.pool]  # noqa: E731
        self.states = PoolStates(PoolPolicy(), self.changes.append, changed, of_pool)
        self.owners = CurrentOwners([DRIVER], self.states, self.slices, classes)
        changed.listen(self.owners.pool_changed)
        self.states.follow(self.inventories, self.slices)
        self.informers = (self.slices, self.inventories, classes)

    def owns(self, device: str, **more: Any) -> bool:
        body = builders.allocation(builders.result("n1", device, **more))["allocation"]
        return self.owners.are_ours(codec.convert(AllocationResult, body))

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0.005)


def played(cluster: FakeClient, scenario: Any) -> None:
    async def main() -> None:
        world = SimulatedCluster(cluster)
        tasks = [asyncio.create_task(i.run()) for i in world.informers]
        try:
            for informer in world.informers:
                await asyncio.wait_for(informer.synced.wait(), 60)
            await scenario(world)
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(main())


def test_a_unit_is_lent_as_a_whole_and_its_pool_stays_ours() -> None:
    cluster = FakeClient()
    cluster.put(RESOURCE_SLICES, cut_gpu())

    async def scenario(world: SimulatedCluster) -> None:
        assert world.owns("gpu-0-b")
        version = world.owners.version
        world.states.set_lent(POOL, {"gpu-0-a"})
        unit = frozenset({"gpu-0", "gpu-0-a", "gpu-0-b"})
        assert world.changes == [PoolChanged(POOL, False, PoolPolicy(), unit)]
        cluster.put(RESOURCE_SLICES, cut_gpu("gpu-0-a"))
        await world.settle()
        assert not world.owns("gpu-0-b")
        assert world.owns("gpu-0-b", adminAccess=True)
        assert world.owns("gpu-1")
        assert world.owners.version == version
        # An untainted device that is not lent: nothing of the pool is ours until that is known.
        cluster.put(RESOURCE_SLICES, cut_gpu("gpu-0-a", "gpu-1"))
        await world.settle()
        assert not world.owns("gpu-1", adminAccess=True)
        assert world.owners.version > version
        version = world.owners.version
        world.states.set_lent(POOL, {"gpu-0-a", "gpu-1"})
        assert world.owns("gpu-1", adminAccess=True)
        assert world.owners.version > version
        cluster.put(RESOURCE_SLICES, cut_gpu())
        await world.settle()
        world.states.set_lent(POOL, ())
        assert world.owns("gpu-0-b")

    played(cluster, scenario)


def test_a_unit_follows_what_is_published_of_it() -> None:
    cluster = FakeClient()

    async def scenario(world: SimulatedCluster) -> None:
        world.states.set_lent(POOL, {"gpu-0"})
        assert world.states.lent(POOL) == {"gpu-0"}
        cluster.put(RESOURCE_SLICES, cut_gpu())
        await world.settle()
        assert world.states.lent(POOL) == {"gpu-0", "gpu-0-a", "gpu-0-b"}

    played(cluster, scenario)


def test_what_an_inventory_notes_is_lent_before_anybody_says_so() -> None:
    cluster = FakeClient()
    cluster.put(RESOURCE_SLICES, cut_gpu("gpu-0-a"))
    cluster.put(DEVICE_INVENTORIES, noting("gpu-0-a"))
    # A node that speaks of the pool of another one is not believed.
    cluster.put(DEVICE_INVENTORIES, noting("gpu-1", name="n2"))

    async def scenario(world: SimulatedCluster) -> None:
        assert world.states.lent(POOL) == {"gpu-0", "gpu-0-a", "gpu-0-b"}
        assert world.owns("gpu-1")
        world.states.set_lent(POOL, {"gpu-1"})
        world.states.set_lent(POOL, ())
        assert not world.owns("gpu-0")
        cluster.put(RESOURCE_SLICES, cut_gpu())
        cluster.put(DEVICE_INVENTORIES, noting())
        await world.settle()
        assert world.owns("gpu-0")

    played(cluster, scenario)


def test_a_controller_allocates_beside_what_is_noted_to_be_lent() -> None:
    cluster = cluster_of(n1=(40, 40))
    cluster.edit(RESOURCE_SLICES, f"n1-{DRIVER}", {"spec": bare_first()})
    cluster.put(DEVICE_INVENTORIES, noting("gpu-0", node="n1"))
    claim(cluster, "c")
    claim(cluster, "d")
    pod(cluster, "p", "c")
    pod(cluster, "q", "d")

    async def scenario(h: Harness) -> None:
        assert sorted(h.devices("c") + h.devices("d")) == [("n1", "gpu-1")]
        assert sorted(h.gates("p") + h.gates("q")) == ["dra-driver.dev/allocation"]

    run(cluster, scenario)


def bare_first() -> dict[str, Any]:
    """The content of a slice whose first device is lent."""
    devices = [builders.device("gpu-0", "40Gi"), builders.device("gpu-1", "40Gi", taints=[PROTECTED])]
    spec: dict[str, Any] = builders.resource_slice("n1", *devices)["spec"]
    return spec
