"""What calls and looks at claims wait for, and for how long; what they do not ask and what they forget."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from crashing_gpus import Control, Gpu, Machine, MachineDaemons
from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from node_agent import DRIVER, NODE, add_claim, claim
from npu_backend import Npu, given, run
from npu_backend import node as node_with
from slow_npu import WAIT, SlowNpu, still

from dra_driver import cdi, sdk
from dra_driver.api.meta import PoolName, Uid
from dra_driver.errors import PrepareError
from dra_driver.preparation import NodeDevice, PreparedClaim
from kubelet_plugin.claims.locks import NodeLock, StateLock
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reallocation import NothingInUse
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu.hardware import GpuHardware, Hardware
from kubelet_plugin.gpu.no_hardware import NoHardware

UIDS = [Uid(f"00000000-0000-4000-8000-00000000000{i}") for i in range(2)]
TIMING = Timing(budget=40.0, patience=10.0)


def gpu(i: int, **changes: Any) -> NodeDevice:
    edits = cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path=f"/dev/gpu{i}"),))
    return dataclasses.replace(NodeDevice(f"gpu-{i}", f"G{i}", f"G{i}", edits=edits), **changes)


def reference(i: int) -> ClaimReference:
    return ClaimReference("ns", f"c{i}", UIDS[i])


class Scenario:
    """A node with two GPUs, and a claim of each of them."""

    def __init__(self, *devices: str) -> None:
        self.disk, self.kube = Disk(), FakeClient()
        self.devices = {d.name: d for d in (gpu(0), gpu(1))}
        for i, device in enumerate(devices or ("gpu-0", "gpu-1")):
            add_claim(self.kube, claim(f"c{i}", device, uid=UIDS[i]))

    def agent(
        self, timing: Timing = TIMING, hardware: Hardware | None = None, node_lock: NodeLock | None = None
    ) -> Preparer:
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=self.kube,
            reservations=DeviceReservations(DiskCheckpoints(self.disk), node_lock=node_lock),
            specs=DiskSpecs(self.disk),
            devices=lambda: self.devices,
            hardware=hardware,
            timing=timing,
        )


async def seconds_of(call: Any) -> float:
    """Return after how many seconds a call has ended, one way or the other."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    with contextlib.suppress(PrepareError):
        await call
    return loop.time() - since


# --- a claim that is prepared already -----------------------------------------------------------------------


def test_a_device_that_comes_back_is_waited_for_when_its_claim_is_prepared_again() -> None:
    async def main() -> None:
        world = Scenario()
        agent = world.agent()
        (before,) = await agent.prepare(reference(0))
        device = world.devices.pop("gpu-0")
        asyncio.get_running_loop().call_later(3.2, lambda: world.devices.update({"gpu-0": device}))
        assert await agent.prepare(reference(0)) == (before,)
        # It has looked twice a second.
        assert asyncio.get_running_loop().time() == pytest.approx(3.5)

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [(Timing(budget=40.0, patience=5.1), 5.0), (Timing(budget=3.1, patience=10.0), 3.0)],
)
def test_a_device_that_does_not_come_back_is_waited_for_as_long_as_a_call_may(
    timing: Timing, seconds: float
) -> None:
    async def main() -> None:
        world = Scenario()
        agent = world.agent(timing)
        await agent.prepare(reference(0))
        del world.devices["gpu-0"]
        assert await seconds_of(agent.prepare(reference(0))) == pytest.approx(seconds)
        with pytest.raises(PrepareError, match="gpu-0 is not on this node now"):
            await agent.prepare(reference(0))

    virtual_time.run(main())


def test_a_device_that_was_exchanged_is_not_waited_for() -> None:
    async def main() -> None:
        world = Scenario()
        agent = world.agent()
        await agent.prepare(reference(0))
        world.devices["gpu-0"] = gpu(0, uuid="G7", published_uuid="G7")
        with pytest.raises(PrepareError, match="it was replaced"):
            await agent.prepare(reference(0))
        assert asyncio.get_running_loop().time() == 0

    virtual_time.run(main())


class Counting(BackendEffects):
    """Counts how often it is asked to go on."""

    asked = 0

    async def go_on(self, record: PreparedClaim, *, asked: bool = True) -> None:
        self.asked += 1
        await super().go_on(record, asked=asked)


def test_a_backend_is_waited_for_once_in_a_call() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        effects = Counting([npu], seconds=WAIT)
        agent = node_with(disk, kube, npu, effects=effects, timing=Timing(budget=60.0, patience=60.0))
        claim = given(kube, "one", "acme-0")
        for calls in (1, 2):
            await still(agent, claim)
            assert effects.asked == calls
        npu.finish.set()

    run(scenario)


# --- a device that another claim holds ----------------------------------------------------------------------


def test_a_call_goes_on_at_once_when_the_holder_is_unprepared() -> None:
    async def main() -> None:
        agent = Scenario("gpu-0", "gpu-0").agent()
        await agent.prepare(reference(0))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(seconds_of(agent.prepare(reference(1))))
            await asyncio.sleep(0.7)
            await agent.unprepare(reference(0))
        assert waiting.result() == pytest.approx(0.7)
        assert [c.uid for c in agent.claims] == [UIDS[1]]

    virtual_time.run(main())


def test_a_device_that_stays_held_is_waited_for_as_long_as_a_call_may() -> None:
    async def main() -> None:
        agent = Scenario("gpu-0", "gpu-0").agent(Timing(budget=40.0, patience=1.7))
        await agent.prepare(reference(0))
        assert await seconds_of(agent.prepare(reference(1))) == pytest.approx(1.7)
        assert [c.uid for c in agent.claims] == [UIDS[0]]

    virtual_time.run(main())


def test_a_device_that_another_agent_releases_is_found_free_half_a_second_later(tmp_path: Path) -> None:
    async def main() -> None:
        world = Scenario("gpu-0", "gpu-0")
        old, new = (world.agent(node_lock=StateLock(tmp_path / "state.lock")) for _ in range(2))
        await old.prepare(reference(0))
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(seconds_of(new.prepare(reference(1))))
            await asyncio.sleep(0.7)
            await old.unprepare(reference(0))
        assert waiting.result() < 1.5
        assert [c.uid for c in new.claims] == [UIDS[1]]

    virtual_time.run(main())


# --- looks at claims ----------------------------------------------------------------------------------------


class EndsTheOther(NoHardware):
    """Has the other claim unprepared while the first one is looked at."""

    agent: Preparer | None = None

    async def locate(self, record: PreparedClaim) -> PreparedClaim:
        if (agent := self.agent) is not None:
            self.agent = None
            await agent.unprepare(reference(1 - UIDS.index(record.uid)))
        return record


def test_a_claim_without_a_file_that_ends_while_another_is_looked_at_is_none_to_be_removed() -> None:
    async def main() -> None:
        world, hardware = Scenario(), EndsTheOther()
        agent = world.agent(hardware=hardware)
        for i in (0, 1):
            await agent.prepare(reference(i))
        world.disk.specs.clear()
        hardware.agent = agent
        await agent.tidy()
        (left,) = world.disk.claims()
        assert set(world.disk.specs) == {left}

    virtual_time.run(main())


def test_a_claim_that_another_agent_has_unprepared_is_not_followed_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        world = Scenario()
        old, new = (world.agent(node_lock=StateLock(tmp_path / "state.lock")) for _ in range(2))
        await old.prepare(reference(0))
        world.devices["gpu-0"] = gpu(0, uuid="G7", published_uuid="G7")
        await old.renew()
        assert old.unsettled
        await new.unprepare(reference(0))
        await old.prepared()
        await old.renew()
        assert not old.unsettled

    virtual_time.run(main())


# --- claims that are in use ---------------------------------------------------------------------------------


class Used(NothingInUse):
    """Says that containers use whatever is asked about."""

    async def check_unprepare(self, record: PreparedClaim) -> None:
        raise PrepareError("its devices stay with it", retryable=True)


def unable() -> None:
    raise sdk.PrepareError("the network is away", retryable=True)


def test_what_a_failed_prepare_has_left_is_undone_whatever_seems_to_use_it() -> None:
    """No container was started with it; what is seen is somebody else's process."""
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        agent, claim = node_with(disk, kube, npu, in_use=Used()), given(kube, "one", "acme-0")
        npu.in_prepare = npu.in_unprepare = unable
        with pytest.raises(PrepareError, match="the network is away"):
            await agent.prepare(claim)
        assert set(disk.claims().values()) == {"PrepareStarted"}
        npu.in_unprepare = lambda: None
        await agent.unprepare(claim)
        assert disk.claims() == {}
        npu.in_prepare = lambda: None
        await agent.prepare(claim)
        with pytest.raises(PrepareError, match="its devices stay with it"):
            await agent.unprepare(claim)

    run(scenario)


def test_what_a_reboot_has_left_is_undone_whatever_seems_to_use_it() -> None:
    """No container has outlived it."""
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        claim = given(kube, "one", "acme-0")
        await node_with(disk, kube, npu, boot_id="one").prepare(claim)
        npu.in_unprepare = unable
        agent = node_with(disk, kube, npu, boot_id="two", in_use=Used())
        await agent.restore()
        assert set(disk.claims().values()) == {"PrepareCompleted"}
        npu.in_unprepare = lambda: None
        await agent.unprepare(claim)
        assert disk.claims() == {}

    run(scenario)


# --- settings of a GPU that claims share --------------------------------------------------------------------


def test_the_last_of_several_shares_sets_the_gpu_back_to_what_the_first_one_found() -> None:
    disk, kube = Disk(), FakeClient()
    machine = Machine(disk, {"G": Gpu(compute="prohibited")})
    before = machine.state()
    shared = NodeDevice("gpu-0", "G", "G", controllable=True, mps_directory="/mps/gpu-0")
    for i, uid in enumerate(UIDS):
        add_claim(kube, claim(f"c{i}", "gpu-0", uid=uid, shareID=f"10000000-0000-4000-8000-00000000000{i}"))

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            agent = Preparer(
                driver=DRIVER,
                pool=PoolName(NODE),
                client=kube,
                reservations=DeviceReservations(DiskCheckpoints(disk)),
                specs=DiskSpecs(disk),
                devices=lambda: {"gpu-0": shared},
                hardware=GpuHardware([Control(machine)], MachineDaemons(machine), executor),
            )
            for i in (0, 1):
                await agent.prepare(reference(i))
            assert machine.gpus["G"].compute == "exclusive-process"
            for i in (0, 1):
                await agent.unprepare(reference(i))
            assert machine.state() == before

    asyncio.run(main())
