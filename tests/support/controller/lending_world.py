"""The publishing side of the controller alone, as a process that lends devices and can be killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import builders
import virtual_time
from builders import DRIVER, device
from fake_client import FakeClient

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.config import ControllerConfig, LendingMode, Timings
from controller.publish.gates import PoolGates
from controller.publish.known_claims import KnownClaims
from controller.publish.lending import FirstRead
from controller.publish.loans import PoolLoans
from controller.publish.publisher import POOL_INDEX, Publisher, pool_of
from controller.publish.recalls import RecallWriter
from dra_driver.api.core import CONFIG_MAPS, NODES
from dra_driver.api.meta import PoolName
from dra_driver.api.names import RECALLED_DEVICES, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, Publication
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceSlice
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ownership import PoolID, Recalls, devices_in, unprotected_devices
from dra_driver.ports import KubeClient
from dra_driver.publishing.loans import LoanState

__all__ = ["INVENTORY", "NODE", "POOL", "LendingCluster", "Process", "process", "world_of"]

NODE = "n1"
POOL = PoolID(DRIVER, PoolName(NODE))
INVENTORY = f"{NODE}.{DRIVER}"
TIMINGS = Timings(drain=15.0, closing=5.0, lent=120.0, recalled=3600.0)


class LendingCluster:
    """What the API server has.

    Attributes:
        cluster: one node with some GPUs.
    """

    def __init__(self, count: int) -> None:
        self.cluster = FakeClient()
        self.cluster.put(NODES, builders.node(NODE, uid=f"uid-{NODE}"))
        self.count = count
        self.inventory(1)
        name = {"name": RECALLED_DEVICES, "namespace": SYSTEM_NAMESPACE}
        self.cluster.put(CONFIG_MAPS, {"metadata": name})

    def inventory(self, epoch: int) -> None:
        """Do as the node's agent: describe the node, and be registered."""
        gpus = [device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}) for i in range(self.count)]
        self.cluster.put(DEVICE_INVENTORIES, builders.inventory(NODE, *gpus, epoch=epoch))

    def publication(self) -> Publication:
        """Return what is noted."""
        return self.cluster.obj(DEVICE_INVENTORIES, INVENTORY).status.publication

    def noted(self) -> dict[str, tuple[str, ...]]:
        """Return the note of what is lent."""
        return {one.unit: one.devices for one in self.publication().lent}

    def slices(self) -> tuple[ResourceSlice, ...]:
        """Return the slices."""
        return tuple(self.cluster.all(RESOURCE_SLICES))

    def untainted(self) -> frozenset[str]:
        """Return the devices that kube-scheduler can allocate."""
        return unprotected_devices(self.slices())

    def recalls(self) -> Recalls:
        """Return what is recalled."""
        data = self.cluster.obj(CONFIG_MAPS, RECALLED_DEVICES, SYSTEM_NAMESPACE).data
        return Recalls.of_data(data or {})

    def recalled(self) -> frozenset[str]:
        """Return the devices of the pool that are recalled."""
        return frozenset(name for pool, name in self.recalls().devices if pool == POOL)


class Process:
    """A controller that publishes and lends.

    Args:
        world: what the API server has.
        client: of this process.
        mode: whether it lends.

    Attributes:
        loans: what a test lends with.
        told: what the allocator was told to leave alone, newest last.
    """

    def __init__(self, world: LendingCluster, client: KubeClient, mode: LendingMode) -> None:
        clock = virtual_time.LoopClock()
        self.world = world
        self.told: list[frozenset[str]] = []
        self.inventories = Informer(client, DEVICE_INVENTORIES)
        self.slices = Informer(client, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        self.nodes = Informer(client, NODES)
        self.claims = Informer(client, RESOURCE_CLAIMS)
        self.assume_cache = AssumeCache(self.claims, Journal(), Signal())
        self.gates = PoolGates(clock, inventories=self.inventories, slices=self.slices)
        self.loans = PoolLoans(
            mode,
            TIMINGS,
            clock,
            self.gates,
            inventories=self.inventories,
            slices=self.slices,
            slices_of=self.seen,
            blocked=self._blocked,
        )
        self._recorder = EventRecorder(client, "test", clock)
        self.publisher = Publisher(
            client,
            ControllerConfig(drivers=(DRIVER,), timings=TIMINGS),
            clock,
            self._recorder,
            inventories=self.inventories,
            slices=self.slices,
            nodes=self.nodes,
            gates=self.gates,
            loans=self.loans,
            assume_cache=self.assume_cache,
        )
        self.recalls = RecallWriter(client, clock, SYSTEM_NAMESPACE, self.loans, self.gates, TIMINGS.recalled)
        self._first_read = FirstRead(KnownClaims(client, self.assume_cache), self.loans, TIMINGS.drain)
        self._mode = mode

    def _blocked(self, pool: PoolID, names: Collection[str]) -> None:
        if pool == POOL:
            self.told.append(frozenset(names))

    def seen(self, pool: PoolID = POOL) -> tuple[ResourceSlice, ...]:
        """Return the slices as this process sees them."""
        return self.slices.by_index(POOL_INDEX, pool)

    def blocked(self, name: str) -> bool:
        """Return whether the allocator must leave a device alone."""
        names = self.told[-1] if self.told else frozenset()
        return self.gates.blocked(POOL) or name in devices_in(self.seen(), names)

    def state(self, unit: str) -> LoanState:
        """Return the state of a unit."""
        loan = self.loans.loans(POOL).get(unit)
        return loan.state if loan is not None else LoanState.OURS

    async def run(self) -> None:
        """Work until cancelled."""
        informers = (self.inventories, self.slices, self.nodes, self.claims)
        try:
            async with asyncio.TaskGroup() as group:
                for informer in informers:
                    group.create_task(informer.run())
                group.create_task(self._recorder.run())
                for informer in informers:
                    await informer.synced.wait()
                group.create_task(self.publisher.run())
                if self._mode is not LendingMode.OFF:
                    group.create_task(self.recalls.run())
                    group.create_task(self._first_read.run())
        finally:
            self.publisher.queue.close()


def world_of(count: int = 2) -> LendingCluster:
    """Return a world of one node with so many GPUs, each a unit by itself."""
    return LendingCluster(count)


@contextlib.asynccontextmanager
async def process(
    world: LendingCluster, *, client: KubeClient | None = None, mode: LendingMode = LendingMode.ON
) -> AsyncIterator[Process]:
    """Run a process; it is killed when the block ends."""
    made = Process(world, client or world.cluster, mode)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
