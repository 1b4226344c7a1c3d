"""What is asked of hardware, files and backends for a claim, in which order, and what counts as a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from node_agent import DRIVER, NODE, add_claim, claim
from npu_backend import given, run
from npu_backend import node as node_with
from slow_npu import WAIT, SlowNpu, prepared, still

from dra_driver import cdi, sdk
from dra_driver.api.meta import PoolName, Uid
from dra_driver.errors import PrepareError
from dra_driver.preparation import NodeDevice, PreparedClaim
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.gpu.no_hardware import NoHardware

UID = Uid("00000000-0000-4000-8000-000000000001")
REFERENCE = ClaimReference("ns", "c", UID)
# A whole GPU whose partitioning mode a claim sets, and one that nothing is set of.
SET = NodeDevice(
    "gpu-0", "G", "G", edits=cdi.ContainerEdits(env=("G=0",)), controllable=True, partitioning="MIG mode"
)
PLAIN = NodeDevice("gpu-0", "G", "G", edits=cdi.ContainerEdits(env=("G=0",)))
MADE = ["configure", "create_partitions", "start_daemons", "bind_drivers"]
MADE_AGAIN = ["configure", "drop_missing_partitions", "create_partitions", "start_daemons", "bind_drivers"]
UNDONE = ["stop_daemons", "destroy_partitions", "restore"]


class Recording(NoHardware):
    """Does whatever it is asked, and notes that with how many claims were recorded then."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.asked: list[str] = []
        self.recorded: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in {*MADE_AGAIN, *UNDONE, "restore_drivers", "forgotten"}:
            return super().__getattribute__(name)
        self.asked.append(name)
        self.recorded.append(len(self._disk.claims()))
        return super().__getattribute__(name)

    async def look(self, record: PreparedClaim, holdings: Any) -> PreparedClaim:
        return record

    def calls(self) -> list[str]:
        """Return what was asked since the last call of this."""
        calls, self.asked[:], self.recorded[:] = list(self.asked), [], []
        return calls


class Metadata:
    """Implements ``metadata_directory.Metadata`` in memory."""

    def __init__(self) -> None:
        self.files: dict[Uid, dict[str, bytes]] = {}

    async def write(self, uid: Uid, content: Any) -> None:
        self.files[uid] = dict(content)

    async def remove(self, uid: Uid) -> None:
        self.files.pop(uid, None)

    async def ours(self) -> set[Uid]:
        return set(self.files)


class World:
    """A node with one device, and the claim of it."""

    def __init__(self, device: NodeDevice, directory: str = "", **body: Any) -> None:
        self.disk, self.kube, self.metadata = Disk(), FakeClient(), Metadata()
        self.hardware = Recording(self.disk)
        self._device, self._directory = device, directory
        add_claim(self.kube, claim("c", "gpu-0", uid=UID, **body))

    def agent(self, boot_id: str = "") -> Preparer:
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=self.kube,
            reservations=DeviceReservations(DiskCheckpoints(self.disk), boot_id=boot_id),
            specs=DiskSpecs(self.disk),
            devices=lambda: {"gpu-0": self._device},
            hardware=self.hardware,
            timing=Timing(budget=2.0, patience=0.0),
            metadata=self.metadata,
            metadata_directory=self._directory,
        )


def test_hardware_is_asked_in_the_order_of_the_table_and_given_back_after_the_record() -> None:
    async def main() -> None:
        world = World(SET)
        agent, hardware = world.agent(), world.hardware
        await agent.prepare(REFERENCE)
        assert hardware.calls() == MADE
        await agent.prepare(REFERENCE)
        assert hardware.calls() == MADE_AGAIN
        await agent.unprepare(REFERENCE)
        # Discovery may have the device again only when no record says that a claim has it.
        assert dict(zip(hardware.asked, hardware.recorded, strict=True)) == {
            "restore_drivers": 1,
            **dict.fromkeys(UNDONE, 1),
            "forgotten": 0,
        }
        assert hardware.calls() == ["restore_drivers", *UNDONE, "forgotten"]

    asyncio.run(main())


def test_what_a_reboot_has_ended_is_given_back_to_discovery_too() -> None:
    async def main() -> None:
        world = World(SET)
        await world.agent("one").prepare(REFERENCE)
        world.hardware.calls()
        agent = world.agent("two")
        await agent.restore()
        assert world.hardware.calls() == [*UNDONE, "forgotten"]
        # Nothing of it is left to be asked about.
        await agent.unprepare(REFERENCE)
        assert world.hardware.calls() == []
        assert world.disk.claims() == {}

    asyncio.run(main())


def test_hardware_is_not_asked_for_a_claim_that_changes_none() -> None:
    async def main() -> None:
        world = World(PLAIN)
        agent = world.agent()
        for _ in range(2):
            await agent.prepare(REFERENCE)
        await agent.tidy()
        agent = world.agent()
        await agent.restore()
        await agent.unprepare(REFERENCE)
        assert world.hardware.calls() == []

    asyncio.run(main())


@pytest.mark.parametrize("directory", ["", "/metadata"])
def test_metadata_is_written_where_it_has_a_directory(directory: str) -> None:
    async def main() -> None:
        world = World(PLAIN, directory)
        agent = world.agent()
        await agent.prepare(REFERENCE)
        assert bool(world.metadata.files) is bool(directory)
        await agent.unprepare(REFERENCE)
        assert not world.metadata.files

    asyncio.run(main())


def test_a_claim_that_has_nothing_of_ours_has_no_document() -> None:
    async def main() -> None:
        world = World(PLAIN, driver="other.example.com")
        agent = world.agent()
        for _ in range(2):
            assert await agent.prepare(REFERENCE) == ()
        await agent.tidy()
        assert world.disk.specs == {}
        await agent.unprepare(REFERENCE)
        assert world.disk.claims() == {}

    asyncio.run(main())


def away() -> None:
    raise sdk.PrepareError("the network is away", retryable=True)


@pytest.mark.parametrize(("trouble", "counted"), [(None, 0), (away, 1)], ids=["it takes long", "it fails"])
def test_a_backend_that_fails_is_counted_and_one_that_takes_long_is_not(
    trouble: Callable[[], None] | None, counted: int
) -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        agent = node_with(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        for _ in range(2):
            await still(agent, reference)
        assert agent.failures == {}
        if trouble is not None:
            npu.in_prepare = trouble
        npu.finish.set()
        if counted:
            with pytest.raises(PrepareError, match="the network is away"):
                await prepared(agent, reference)
        else:
            await prepared(agent, reference)
        assert agent.failures == ({"backend": counted} if counted else {})

    run(scenario)
