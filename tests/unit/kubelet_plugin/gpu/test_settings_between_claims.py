"""What belongs to the whole GPU is set back unless another claim is certain to do it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from crashing_gpus import Control, Gpu, Machine, MachineDaemons
from crashing_stores import Disk

from dra_driver.api.meta import PoolName, Uid
from dra_driver.preparation import ClaimState, DeviceSetting, Holdings, PreparedClaim, PreparedDevice
from kubelet_plugin.gpu.hardware import GpuHardware


def record(uid: str, setting: DeviceSetting) -> PreparedClaim:
    device = PreparedDevice(
        requests=("gpu",), pool=PoolName("node-a"), device="gpu-0", uuid="U", share_id=f"share-{uid}"
    )
    return PreparedClaim(
        uid=Uid(uid),
        namespace="ns",
        name=uid,
        state=ClaimState.STARTED,
        devices=(device,),
        settings=(setting,),
    )


@pytest.mark.parametrize(
    "setting",
    [
        DeviceSetting(device="gpu-0", uuid="U", daemon=True),
        DeviceSetting(device="gpu-0", uuid="U", time_slice="Long"),
        DeviceSetting(device="gpu-0", uuid="U", partitioned=True),
    ],
)
@pytest.mark.parametrize("durable", [False, True])
def test_a_claim_that_is_only_being_planned_inherits_no_setting(
    setting: DeviceSetting, durable: bool
) -> None:
    machine = Machine(Disk(), {"U": Gpu(compute="prohibited")})
    before = machine.state()

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            hardware = GpuHardware([Control(machine)], MachineDaemons(machine), executor)
            holdings = Holdings()
            first = await hardware.look(record("first", setting), holdings)
            holdings.take(first.uid, first.key, first.devices, first.settings)
            holdings.begun(first.uid)
            await hardware.configure(first)
            await hardware.start_daemons(first)
            during = machine.state()
            # The second one has taken its share, and the first one ends before the second one has looked.
            second = record("second", setting)
            holdings.take(second.uid, second.key, second.devices, second.settings)
            if durable:
                holdings.begun(second.uid)
            await hardware.stop_daemons(first, holdings)
            await hardware.restore(first, holdings)
            holdings.release(first.uid)
            assert machine.state() == (during if durable else before)
            if durable:
                return
            # It finds the GPU as it was, and leaves it so.
            second = await hardware.look(second, holdings)
            holdings.take(second.uid, second.key, second.devices, second.settings)
            await hardware.configure(second)
            await hardware.start_daemons(second)
            assert machine.state() == during
            await hardware.stop_daemons(second, holdings)
            await hardware.restore(second, holdings)
            assert machine.state() == before

    asyncio.run(main())


def test_two_claims_that_end_at_once_do_not_leave_a_setting_to_each_other() -> None:
    machine = Machine(Disk(), {"U": Gpu(compute="prohibited")})
    before = machine.state()
    setting = DeviceSetting(device="gpu-0", uuid="U", daemon=True)

    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            hardware = GpuHardware([Control(machine)], MachineDaemons(machine), executor)
            holdings = Holdings()
            both = []
            for uid in ("first", "second"):
                planned = await hardware.look(record(uid, setting), holdings)
                holdings.take(planned.uid, planned.key, planned.devices, planned.settings)
                holdings.begun(planned.uid)
                await hardware.configure(planned)
                await hardware.start_daemons(planned)
                both.append(planned)
            # Neither is released before both have undone what they needed.
            for ending in both:
                holdings.ending(ending.uid)
                await hardware.stop_daemons(ending, holdings)
            for ending in both:
                await hardware.restore(ending, holdings)
            assert machine.state() == before

    asyncio.run(main())
