"""What is granted of pools: units with all their devices."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
from builders import DRIVER
from fake_client import FakeClient

from controller.allocate.decide import Change, PoolChanged
from controller.allocate.signal import Signal
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, AllocationResult
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

POOL = PoolID(DRIVER, PoolName("n1"))


def cut_gpu() -> dict[str, Any]:
    """A GPU that is published whole and as two halves, and one that is not cut."""
    uses = {"gpu-0": 2, "gpu-0-a": 1, "gpu-0-b": 1}
    devices = [
        builders.device(
            name,
            consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": str(amount)}}}],
        )
        for name, amount in uses.items()
    ]
    whole = builders.device("gpu-1")
    return builders.resource_slice("n1", *devices, whole)


class SimulatedCluster:
    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster
        self.changes: list[Change] = []
        self.slices = Informer(cluster, RESOURCE_SLICES)
        classes = Informer(cluster, DEVICE_CLASSES)
        changed: Signal[[PoolID]] = Signal()
        of_pool = lambda pool: [s for s in self.slices.items() if s.spec.pool.name == pool.pool]  # noqa: E731
        self.states = PoolStates(PoolPolicy(), self.changes.append, changed, of_pool)
        self.owners = CurrentOwners([DRIVER], self.states, self.slices, classes)
        changed.listen(self.owners.pool_changed)
        self.states.follow(self.slices)
        self.informers = (self.slices, classes)

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


def test_a_unit_is_granted_as_a_whole_and_its_pool_stays_ours() -> None:
    cluster = FakeClient()
    cluster.put(RESOURCE_SLICES, cut_gpu())

    async def scenario(world: SimulatedCluster) -> None:
        assert not world.owns("gpu-0-b")
        version = world.owners.version
        world.states.set_open(POOL, True)
        assert world.owns("gpu-0-b")
        assert world.owners.version > version
        version = world.owners.version
        world.changes.clear()
        world.states.set_granted(POOL, {"gpu-0-a"})
        unit = frozenset({"gpu-0", "gpu-0-a", "gpu-0-b"})
        assert world.changes == [PoolChanged(POOL, False, PoolPolicy(), unit, True)]
        assert not world.owns("gpu-0-b")
        assert world.owns("gpu-0-b", adminAccess=True)
        assert world.owns("gpu-1")
        assert world.owners.version == version
        world.states.set_granted(POOL, ())
        assert world.owns("gpu-0-b")
        world.states.set_open(POOL, False)
        assert not world.owns("gpu-0-b")
        assert world.owners.version > version

    played(cluster, scenario)


def test_a_unit_follows_what_is_published_of_it() -> None:
    cluster = FakeClient()

    async def scenario(world: SimulatedCluster) -> None:
        world.states.set_granted(POOL, {"gpu-0"})
        assert world.states.granted(POOL) == {"gpu-0"}
        cluster.put(RESOURCE_SLICES, cut_gpu())
        await world.settle()
        assert world.states.granted(POOL) == {"gpu-0", "gpu-0-a", "gpu-0-b"}

    played(cluster, scenario)
