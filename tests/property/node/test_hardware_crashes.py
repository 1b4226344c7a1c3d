"""A crash at any change of a GPU, then restart and repetition: nothing leaks, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from crashing_gpus import Control, Gpu, Machine, MachineDaemons
from crashing_stores import Crash, Disk, DiskCheckpoints, DiskSpecs
from examples import examples
from fake_client import FakeClient
from hypothesis import given, settings
from hypothesis import strategies as st
from node_agent import DRIVER, NODE, claim
from nonempty import nonempty

from dra_driver.api.meta import PoolName
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.preparation import Checkpoint, ClaimState, NodeDevice, PartitionRecord
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.gpu.hardware import GpuHardware, daemons_of

GROUP = "dra-driver.dev/v1alpha1"


def _config(kind: str, **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": GROUP, "kind": kind, **fields}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def _claim(i: int, device: str, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body = claim(f"c{i}", *device.split(), uid=UIDS[i], **more)
    if config is not None:
        body["status"]["allocation"]["devices"]["config"] = [config]
    return body


UIDS = [f"00000000-0000-4000-8000-00000000000{i}" for i in range(10)]
SHARES = [f"10000000-0000-4000-8000-00000000000{i}" for i in range(8)]
CLAIMS = [
    # Two partitions of one GPU in two claims, and one claim with two that overlaps both.
    _claim(0, "gpu-0-mig-a-0"),
    _claim(1, "gpu-0-mig-a-4"),
    _claim(2, "gpu-0-mig-b-4 gpu-0-mig-b-6"),
    # Shares under MPS, one that refuses it, one that slices time.
    _claim(3, "gpu-1", shareID=SHARES[3]),
    _claim(4, "gpu-1", shareID=SHARES[4], consumedCapacity={"memory": "4Gi"}),
    _claim(5, "gpu-1", _config("ShareConfig", enforcement="None"), shareID=SHARES[5]),
    # A whole GPU with a time slice, and one where the place is a stranger's.
    _claim(
        6,
        "gpu-2",
        _config("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}),
    ),
    _claim(7, "gpu-3-mig-b-0"),
    # A partition under MPS.
    _claim(8, "gpu-0-mig-b-2", _config("MigConfig", sharing={"strategy": "MPS"})),
    # Admin access to the partition of the first one.
    _claim(9, "gpu-0-mig-a-0", adminAccess=True),
]


def _partition(gpu: str, name: str, profile: int, start: int, size: int) -> NodeDevice:
    record = PartitionRecord(gpu=gpu, profile=name, profile_id=profile, start=start, size=size)
    device = f"{gpu}-mig-{name}-{start}"
    return NodeDevice(
        device, f"U-{gpu}", f"U-{gpu}", partition=record, controllable=True, mps_directory=f"/mps/{device}"
    )


DEVICES = {
    d.name: d
    for d in [
        *(
            NodeDevice(
                f"gpu-{i}", f"U-gpu-{i}", f"U-gpu-{i}", controllable=True, mps_directory=f"/mps/gpu-{i}"
            )
            for i in range(4)
        ),
        *(_partition("gpu-0", "a", 9, start, 4) for start in (0, 4)),
        *(_partition("gpu-0", "b", 14, start, 2) for start in (0, 2, 4, 6)),
        _partition("gpu-3", "b", 14, 0, 2),
    ]
}
Call = tuple[str, int]
calls = st.lists(st.tuples(st.sampled_from(["prepare", "unprepare"]), st.integers(0, 9)), max_size=8)


def machine(disk: Disk) -> Machine:
    gpus = {f"U-gpu-{i}": Gpu() for i in range(4)}
    gpus["U-gpu-2"].compute = "prohibited"
    gpus["U-gpu-3"] = Gpu(mig=True, instances={(14, 0, 2): (1000, True, "stranger")})
    return Machine(disk, gpus)


class Scenario:
    """A node whose plugin dies and comes back."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.machine = machine(disk)
        self.executor = ThreadPoolExecutor(1)

    def preparer(self, control: type[Control] = Control) -> Preparer:
        kube = FakeClient()
        for body in CLAIMS:
            kube.put(RESOURCE_CLAIMS, body)
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=kube,
            reservations=DeviceReservations(DiskCheckpoints(self.disk)),
            specs=DiskSpecs(self.disk),
            devices=lambda: DEVICES,
            hardware=GpuHardware([control(self.machine)], MachineDaemons(self.machine), self.executor),
            timing=Timing(budget=5.0, patience=0.0),
        )

    async def call(self, to: Preparer, what: Call) -> object:
        verb, i = what
        if verb == "lose":
            # An administrator destroys what is on the GPU, or it was reset.
            self.machine.gpus[f"U-gpu-{i}"].instances.clear()
            return None
        reference = ClaimReference("ns", f"c{i}", UIDS[i])
        try:
            if verb == "unprepare":
                await to.unprepare(reference)
                return None
            return [d.device for d in await to.prepare(reference)]
        except PrepareError as e:
            return str(e)

    async def play(self, script: Sequence[Call]) -> list[object]:
        answers: list[object] = []
        alive: Preparer | None = None
        for what in script:
            while True:
                try:
                    if alive is None:
                        fresh = self.preparer()
                        await fresh.restore()
                        self.check()
                        alive = fresh
                    answers.append(await self.call(alive, what))
                    break
                except Crash:
                    alive = None
                except OSError:
                    pass  # the kubelet asks again
        while True:
            with contextlib.suppress(Crash):
                await self.preparer().restore()
                self.check()
                return answers

    def check(self) -> None:
        """After a start: every change of hardware belongs to a claim, and every claim has what it needs."""
        records = list(Checkpoint.decode(self.disk.checkpoint))
        assert {r.state for r in records} <= {ClaimState.COMPLETED}
        parts = {
            (d.uuid, (p.profile_id, p.start, p.size)): p.uuid
            for r in records
            for d in r.devices
            if (p := d.partition) is not None and not d.admin_access
        }
        there = {
            (uuid, place): f"MIG-{serial}"
            for uuid, gpu in self.machine.gpus.items()
            for place, (serial, whole, maker) in gpu.instances.items()
            if maker == "driver" and whole
        }
        assert parts == there
        for record in records:
            for device in record.devices:
                if device.partition is None:
                    continue
                assert device.partition.uuid.encode() in self.disk.specs.get(record.uid, b"") or (
                    # Whose partition is gone has no document.
                    device.admin_access and record.uid not in self.disk.specs
                )
                if device.admin_access and record.uid in self.disk.specs:
                    assert device.partition.uuid in there.values()
        wanted = [s for r in records for s in r.settings]
        assert self.machine.daemons.keys() == {device for r in records for device in daemons_of(r)}
        for uuid, gpu in self.machine.gpus.items():
            daemon = any(s.daemon for s in wanted if s.uuid == uuid)
            interval = next((s.time_slice for s in wanted if s.uuid == uuid and s.time_slice), "Default")
            untouched = "prohibited" if uuid == "U-gpu-2" else "default"
            mode = "exclusive-process" if daemon else "default" if interval != "Default" else untouched
            assert (gpu.compute, gpu.slice) == (mode, interval)
            assert gpu.mig == (uuid == "U-gpu-3" or any(s.partitioned for s in wanted if s.uuid == uuid))


def play(script: Sequence[Call], **trouble: Any) -> tuple[Scenario, list[object]]:
    world = Scenario(Disk(**trouble))
    try:
        return world, asyncio.run(world.play(script))
    finally:
        world.executor.shutdown()


@settings(max_examples=examples(120), deadline=None)
@given(script=calls, data=st.data())
def test_trouble_at_any_effect_changes_nothing_in_the_end(script: list[Call], data: st.DataObject) -> None:
    calm, expected = play(script)
    error = data.draw(st.booleans())
    world, answers = play(
        script,
        trouble_at=data.draw(st.integers(0, max(calm.disk.effects, 1))),
        after=not error and data.draw(st.booleans()),
        error=error,
    )
    if not error:
        assert answers == expected
    assert world.machine.state() == calm.machine.state()
    assert world.disk.claims() == calm.disk.claims()


FULL_LIFE: list[Call] = [
    *(("prepare", i) for i in (0, 1, 2, 3, 4, 5, 6, 7, 0, 3)),
    *(("unprepare", i) for i in (1, 0)),
    ("prepare", 2),
    ("prepare", 8),
    *(("unprepare", i) for i in (3, 2, 4, 8)),
    ("prepare", 5),
    *(("unprepare", i) for i in (5, 6, 7, 6)),
    *(("prepare", i) for i in (9, 0, 9)),
    *(("unprepare", i) for i in (9, 9)),
    ("prepare", 9),
    *(("unprepare", i) for i in (0, 9)),
]


def test_a_full_life() -> None:
    world, answers = play(FULL_LIFE)
    assert answers[:2] == [["gpu-0-mig-a-0"], ["gpu-0-mig-a-4"]]
    assert "gpu-0-mig-b-4 is held by another claim" in str(answers[2])
    assert "gpu-1 is held under MPS by another claim" in str(answers[5])
    assert "is taken: partition MIG-1000 (number 1000 at 0:2), not created by this driver" in str(answers[7])
    assert answers[12] == ["gpu-0-mig-b-4", "gpu-0-mig-b-6"]
    assert answers[13] == ["gpu-0-mig-b-2"]
    assert answers[18] == ["gpu-1"]
    assert "gpu-0-mig-a-0: there is no such partition of gpu-0 now" in str(answers[23])
    assert answers[24:26] == [["gpu-0-mig-a-0"]] * 2
    assert world.machine.state() == machine(Disk()).state()
    assert (world.disk.claims(), world.disk.specs) == ({}, {})


@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.long)])
def test_every_effect_of_a_full_life_with_hardware(each: int) -> None:
    calm, expected = play(FULL_LIFE)
    points = [(at, after) for at in range(calm.disk.effects) for after in (False, True)]
    for trouble_at, after in nonempty(points[::each]):
        world, answers = play(FULL_LIFE, trouble_at=trouble_at, after=after)
        assert answers == expected
        assert world.disk.trouble_at is None
        assert world.machine.state() == calm.machine.state()
        assert (world.disk.claims(), world.disk.specs) == ({}, {})


def test_instances_that_are_made_again_are_known_whatever_happens_meanwhile() -> None:
    script: list[Call] = [("prepare", 2), ("lose", 0), ("prepare", 2), ("unprepare", 2)]
    calm, expected = play(script)
    for trouble_at in nonempty(range(calm.disk.effects)):
        for after, error in ((False, False), (True, False), (False, True)):
            world, answers = play(script, trouble_at=trouble_at, after=after, error=error)
            assert answers == expected
            assert world.machine.state() == calm.machine.state()
            assert (world.disk.claims(), world.disk.specs) == ({}, {})


PLACE = (9, 0, 4)
ADMINISTRATOR = 2000


def administrator(gpu: Gpu, *, whole: bool = True) -> None:
    """Makes an instance at the place of the first claim, in place of what is there."""
    gpu.instances[PLACE] = (ADMINISTRATOR, whole, "administrator")
    gpu.mig = True


def test_what_is_made_at_the_place_of_an_interrupted_claim_is_kept() -> None:
    """The agent dies at any effect of a prepare, while the driver hangs, say; then somebody uses the GPU."""
    calm, _ = play([("prepare", 0)])
    assert calm.disk.effects > 6
    kept = 0
    for effect in range(calm.disk.effects):
        for after in (False, True):
            world = Scenario(Disk(trouble_at=effect, after=after))

            async def life(world: Scenario = world) -> bool:
                first = world.preparer()
                await first.restore()
                try:
                    await world.call(first, ("prepare", 0))
                except Crash:
                    gpu = world.machine.gpus["U-gpu-0"]
                    administrator(gpu)
                    await world.preparer().restore()
                    completed = any(
                        r.state is ClaimState.COMPLETED for r in Checkpoint.decode(world.disk.checkpoint)
                    )
                    assert completed or gpu.instances == {PLACE: (ADMINISTRATOR, True, "administrator")}
                    return not completed
                return False

            try:
                kept += asyncio.run(life())
            finally:
                world.executor.shutdown()
    assert kept > 6


def test_what_has_replaced_the_instance_of_a_claim_is_kept() -> None:
    world = Scenario(Disk())

    async def life() -> None:
        agent = world.preparer()
        await agent.restore()
        assert await world.call(agent, ("prepare", 0)) == ["gpu-0-mig-a-0"]
        administrator(world.machine.gpus["U-gpu-0"])
        assert "gone, and at its place is partition MIG-2000" in str(await world.call(agent, ("prepare", 0)))
        hardware = GpuHardware([Control(world.machine)], MachineDaemons(world.machine), world.executor)
        ((gpu, instance),) = await hardware.partitions.unmanaged(["U-gpu-0"], agent.claims)
        assert (gpu, instance.uuid) == ("U-gpu-0", "MIG-2000")
        await world.call(agent, ("unprepare", 0))
        assert world.machine.gpus["U-gpu-0"].instances == {PLACE: (ADMINISTRATOR, True, "administrator")}

    try:
        asyncio.run(life())
    finally:
        world.executor.shutdown()


class Raced(Control):
    """An administrator is faster: the place was free when the agent looked."""

    whole = True

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        administrator(self._machine.gpus[gpu], whole=self.whole)
        return super().begin_instance(gpu, profile_id, start, size)


@pytest.mark.parametrize("whole", [True, False])
def test_what_made_a_creation_fail_is_kept(whole: bool) -> None:
    world = Scenario(Disk())

    class Faster(Raced):
        pass

    Faster.whole = whole

    async def life() -> None:
        agent = world.preparer(Faster)
        await agent.restore()
        assert "the place is taken" in str(await world.call(agent, ("prepare", 0)))
        assert world.machine.gpus["U-gpu-0"].instances == {PLACE: (ADMINISTRATOR, whole, "administrator")}
        assert not list(Checkpoint.decode(world.disk.checkpoint))

    try:
        asyncio.run(life())
    finally:
        world.executor.shutdown()


def test_the_number_of_an_instance_is_durable_before_the_instance_can_be_used() -> None:
    """Without it a crash after the instance is whole would leave it to nobody."""
    world = Scenario(Disk())
    begun: list[int | None] = []

    class Observed(Control):
        def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
            (record,) = Checkpoint.decode(world.disk.checkpoint)
            partition = record.devices[0].partition
            assert partition is not None
            begun.append(partition.begun)
            assert self.instances(gpu)[0].uuid == ""
            return super().create_instance(gpu, profile_id, start, size)

    async def life() -> None:
        agent = world.preparer(Observed)
        await agent.restore()
        assert await world.call(agent, ("prepare", 0)) == ["gpu-0-mig-a-0"]

    try:
        asyncio.run(life())
    finally:
        world.executor.shutdown()
    assert begun == [1]
