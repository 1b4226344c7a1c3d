"""Backends that need longer to prepare a device than the kubelet waits."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from crashing_stores import Disk
from fake_client import FakeClient
from npu_backend import Npu, given, node, run
from slow_npu import WAIT, SlowNpu, prepared, still

from dra_driver import cdi, sdk
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.errors import PrepareError, StillPreparing
from dra_driver.hardware import DeviceWork
from dra_driver.preparation import (
    BindingRecord,
    Checkpoint,
    ClaimState,
    Holdings,
    NodeDevice,
    PreparedClaim,
)
from kubelet_plugin.extensions.calls import BackendCalls
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu.no_hardware import NoHardware


def device(path: str) -> NodeDevice:
    edits = cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path=path),))
    return NodeDevice("acme-0", "U", "U", prepared_by="acme", simulated=True, edits=edits)


def test_it_goes_on_between_the_calls_of_the_kubelet() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        assert await still(preparer, reference) == (
            "device acme-0: backend acme still prepares it: 0 s of at most 60 s"
        )
        assert set(disk.claims().values()) == {"PrepareStarted"}
        assert not disk.specs
        await still(preparer, reference)
        await preparer.tidy()
        # Another claim for the device waits, and its refusal undoes nothing.
        with pytest.raises(PrepareError, match="acme-0"):
            await preparer.prepare(given(kube, "other", "acme-0"))
        npu.finish.set()
        await prepared(preparer, reference)
        assert npu.calls == ["plan acme-0", "prepare acme-0"]
        assert set(disk.claims().values()) == {"PrepareCompleted"}
        assert len(disk.specs) == 1
        assert preparer.failures == {}
        # Asked again it is prepared again, as every claim.
        await preparer.prepare(reference)
        assert npu.calls[2:] == ["prepare acme-0"]
        await preparer.unprepare(reference)
        assert not npu.set
        assert not disk.claims()

    run(scenario)


def test_what_has_ended_in_between_is_not_done_twice() -> None:
    """The second device begins when the first one has it; neither is prepared again for the other."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0", "acme-1")
        await still(preparer, reference)
        npu.finish.set()
        second = threading.Event()
        npu.in_prepare = lambda: None if "acme-1" not in npu.set else (second.wait(30), None)[1]
        await still(preparer, reference)
        await still(preparer, reference)
        second.set()
        await prepared(preparer, reference)
        assert [c for c in npu.calls if c.startswith("prepare")] == ["prepare acme-0", "prepare acme-1"]

    run(scenario)


def test_a_failure_in_between_is_told_and_undone() -> None:
    npu = SlowNpu()

    def fails() -> None:
        raise sdk.PrepareError("the bitstream does not fit")

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        npu.in_prepare = fails
        npu.finish.set()
        with pytest.raises(PrepareError, match="the bitstream does not fit"):
            await prepared(preparer, reference)
        assert npu.calls[-1] == "unprepare acme-0"
        assert not npu.set
        assert not disk.claims()
        assert preparer.failures == {"backend": 1}

    run(scenario)


def test_one_that_takes_longer_than_it_has_planned_is_undone() -> None:
    npu = SlowNpu(seconds=1)

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        with pytest.raises(PrepareError, match="no answer after 1 s"):
            await prepared(preparer, reference)
        npu.finish.set()
        await prepared(preparer, reference, PrepareError)
        assert npu.calls.count("unprepare acme-0") == 1

    run(scenario)


def test_a_pod_that_is_deleted_meanwhile_waits_for_the_end_and_undoes_it() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        with pytest.raises(PrepareError, match="an earlier call has not returned yet"):
            await preparer.unprepare(reference)
        assert disk.claims()
        npu.finish.set()
        async with asyncio.timeout(30):
            while disk.claims():
                try:
                    await preparer.unprepare(reference)
                except PrepareError:
                    await asyncio.sleep(0.02)
        assert npu.calls[-1] == "unprepare acme-0"
        assert not npu.set

    run(scenario)


def test_what_could_not_be_undone_is_not_prepared_for_long_again_meanwhile() -> None:
    """The kubelet's next attempt to end the claim would wait for the end of that, up to an hour."""
    npu = SlowNpu()

    def fails() -> None:
        raise sdk.PrepareError("the network is away", retryable=True)

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        npu.finish.set()
        await prepared(preparer, reference)
        npu.finish.clear()
        npu.in_unprepare = fails
        with pytest.raises(PrepareError, match="the network is away"):
            await preparer.unprepare(reference)
        await preparer.tidy()
        await preparer.renew()
        assert npu.calls[-1] == "unprepare acme-0"
        # Another pod may want the claim after all.
        npu.finish.set()
        await prepared(preparer, reference)
        assert npu.calls[-1] == "prepare acme-0"
        await preparer.tidy()
        npu.in_unprepare = lambda: None
        await preparer.unprepare(reference)
        assert not disk.claims()

    run(scenario)


@pytest.mark.parametrize("released", ["", "the driver is being updated"])
def test_a_claim_that_is_wanted_after_all_is_followed_again(released: str) -> None:
    """What is at work goes on where its end could not even be asked for, and is undone otherwise."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        changed = {"acme-0": device("/dev/npu0")}
        effects = BackendEffects([npu], seconds=WAIT)
        preparer = node(disk, kube, npu, effects=effects, changed=changed)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        effects.released = released
        with pytest.raises(PrepareError, match=released or "an earlier call has not returned yet"):
            await preparer.unprepare(reference)
        effects.released = ""
        npu.finish.set()
        await prepared(preparer, reference, PrepareError)
        assert npu.calls.count("prepare acme-0") == (1 if released else 2)
        changed["acme-0"] = device("/dev/npu7")
        await preparer.renew()
        (document,) = disk.specs.values()
        assert b"/dev/npu7" in document

    run(scenario)


def test_an_agent_that_is_killed_meanwhile_undoes_it_and_begins_anew() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        reference = given(kube, "one", "acme-0")
        await still(node(disk, kube, npu, seconds=WAIT), reference)
        found, other = copy.copy(disk), Npu()
        again = node(found, kube, other)
        await again.restore()
        assert other.calls == ["unprepare acme-0"]
        assert not found.claims()
        await again.prepare(reference)
        assert other.calls[1:] == ["plan acme-0", "prepare acme-0"]
        npu.finish.set()

    run(scenario)


def test_what_another_instance_has_written_ends_what_this_one_had_begun() -> None:
    """During a rolling update the new instance may have undone it; its result counts for nothing then."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        effects = BackendEffects([npu], seconds=WAIT)
        preparer = node(disk, kube, npu, effects=effects)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        npu.finish.set()
        (record,) = Checkpoint.decode(disk.checkpoint)
        assert effects.is_preparing(record)
        effects.forget()
        assert not effects.is_preparing(record)
        await prepared(preparer, reference, PrepareError)
        twice = ["plan acme-0", "prepare acme-0"]
        assert npu.calls == [*twice, "unprepare acme-0", *twice]

    run(scenario)


class Bound(NoHardware):
    """Hands a device over as a function whose character device is known only when it is bound."""

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        found = InventoryDevice(name="acme-0")
        return self._with(record, BindingRecord(address="0000:1b:00.0", driver="vfio-pci", found=found))

    async def bind_drivers(self, record: PreparedClaim) -> PreparedClaim:
        binding = record.devices[0].binding
        assert binding is not None
        return self._with(record, msgspec.structs.replace(binding, cdev="vfio3"))

    def _with(self, record: PreparedClaim, binding: BindingRecord) -> PreparedClaim:
        (device,) = record.devices
        return msgspec.structs.replace(record, devices=(msgspec.structs.replace(device, binding=binding),))


def test_what_was_made_before_is_recorded_while_it_goes_on() -> None:
    """Another agent goes by the record if this one ends meanwhile."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT, hardware=Bound())
        await still(preparer, given(kube, "one", "acme-0"))
        (record,) = Checkpoint.decode(disk.checkpoint)
        assert record.state is ClaimState.STARTED
        binding = record.devices[0].binding
        assert binding is not None
        assert binding.cdev == "vfio3"
        npu.finish.set()

    run(scenario)


def test_two_instances_do_not_work_on_one_device_at_once(tmp_path: Path) -> None:
    old, new = SlowNpu(), Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        locks = tmp_path / "backends"
        reference = given(kube, "one", "acme-0")
        first = node(disk, kube, old, effects=BackendEffects([old], locks=locks, seconds=WAIT))
        await still(first, reference)
        second = node(copy.copy(disk), kube, new, effects=BackendEffects([new], locks=locks, seconds=WAIT))
        await second.restore()
        assert new.calls == [], "the other instance's work has not ended"
        assert [c.state for c in second.claims] == [ClaimState.STARTED]
        old.finish.set()
        async with asyncio.timeout(30):
            while second.claims:
                await second.tidy()
                await asyncio.sleep(0.02)
        assert new.calls == ["unprepare acme-0"]
        assert (locks / "acme-0.lock").stat().st_mode & 0o777 == 0o600

    run(scenario)


def test_a_lock_that_cannot_be_had_refuses_the_claim(tmp_path: Path) -> None:
    npu = Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        locks = tmp_path / "not-there" / "backends"
        preparer = node(disk, kube, npu, effects=BackendEffects([npu], locks=locks))
        with pytest.raises(PrepareError, match="device acme-0 cannot be locked"):
            await preparer.prepare(given(kube, "one", "acme-0"))
        assert npu.calls == ["plan acme-0"]
        locks.parent.mkdir()
        await preparer.prepare(given(kube, "two", "acme-1"))

    run(scenario)


def test_its_device_may_have_another_node_when_the_work_has_ended() -> None:
    """What had that node's number before may be another claim's device by then."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        changed = {"acme-0": device("/dev/npu0")}
        preparer = node(disk, kube, npu, seconds=WAIT, changed=changed)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        changed["acme-0"] = device("/dev/npu7")
        npu.finish.set()
        await prepared(preparer, reference)
        (document,) = disk.specs.values()
        assert b"/dev/npu7" in document
        assert b"/dev/npu0" not in document

    run(scenario)


def test_a_device_that_the_work_takes_off_its_bus_is_waited_for() -> None:
    npu, there = SlowNpu(), True

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        nonlocal there
        preparer = node(disk, kube, npu, seconds=WAIT, looked=lambda: there)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        there = False
        assert "still prepares it" in await still(preparer, reference)
        npu.finish.set()
        async with asyncio.timeout(30):
            while "is not on this node now" not in await still(preparer, reference):
                await asyncio.sleep(0.02)
        await preparer.tidy()
        assert set(disk.claims().values()) == {"PrepareStarted"}
        assert not disk.specs
        there = True
        await preparer.prepare(reference)
        assert npu.calls == ["plan acme-0", "prepare acme-0"]

    run(scenario)


def test_a_device_that_is_exchanged_meanwhile_is_not_handed_out() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        changed: dict[str, NodeDevice] = {}
        preparer = node(disk, kube, npu, seconds=WAIT, changed=changed)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        npu.finish.set()
        changed["acme-0"] = NodeDevice("acme-0", "V", "V", prepared_by="acme", simulated=True)
        with pytest.raises(PrepareError, match="it was replaced"):
            await prepared(preparer, reference)
        assert not npu.set
        assert not disk.claims()
        assert not disk.specs

    run(scenario)


def test_no_work_begins_on_a_device_that_was_exchanged_meanwhile() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        changed: dict[str, NodeDevice] = {}
        preparer = node(disk, kube, npu, seconds=WAIT, changed=changed)
        reference = given(kube, "one", "acme-0", "acme-1")
        await still(preparer, reference)
        changed["acme-1"] = NodeDevice("acme-1", "V", "V", prepared_by="acme", simulated=True)
        npu.finish.set()
        with pytest.raises(PrepareError, match="it was replaced"):
            await prepared(preparer, reference)
        assert "prepare acme-1" not in npu.calls

    run(scenario)


def test_a_look_at_all_claims_waits_for_none_of_them() -> None:
    """After a start of the agent the hardware is not looked at again before all claims were."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        npu.finish.set()
        first = node(disk, kube, npu)
        for i in range(2):
            await first.prepare(given(kube, f"claim-{i}", f"acme-{i}"))
        npu.finish.clear()
        again = node(disk, kube, npu, seconds=60)
        async with asyncio.timeout(30):
            await again.restore()
        assert npu.calls[-2:] == ["prepare acme-0", "prepare acme-1"], "both are at work"
        npu.finish.set()
        async with asyncio.timeout(30):
            while again.unsettled:
                await again.renew()
        assert len(npu.calls) == 6

    run(scenario)


def test_what_a_backend_does_to_its_settings_does_not_end_its_work() -> None:
    class Taking(SlowNpu):
        def prepare_device(self, work: sdk.DeviceWork) -> None:
            assert isinstance(work.settings, dict)
            super().prepare_device(replace(work, settings={"watts": work.settings.pop("watts")}))

    npu = Taking()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0")
        await still(preparer, reference)
        await still(preparer, reference)
        npu.finish.set()
        await prepared(preparer, reference)
        assert npu.calls == ["plan acme-0", "prepare acme-0"]

    run(scenario)


def test_many_that_take_long_leave_room_to_undo_others() -> None:
    hold = threading.Event()

    def waits(_: DeviceWork) -> None:
        hold.wait(30)

    def work(device: str) -> DeviceWork:
        return DeviceWork(claim_uid="uid", namespace="ns", claim="one", device=device, uuid="U")

    async def scenario() -> None:
        calls, undone = BackendCalls("acme", threads=2, spare=1), list[str]()
        try:
            for device in ("acme-0", "acme-1"):
                with pytest.raises(StillPreparing):
                    await calls.go_on(device, 0.01, 60, waits, work(device))
            with pytest.raises(PrepareError, match="2 calls have not returned yet"):
                await calls.go_on("acme-2", 0.01, 60, lambda _: None, work("acme-2"))
            await calls.undo("acme-2", 5, lambda w: undone.append(w.device), work("acme-2"))
            assert undone == ["acme-2"]
        finally:
            hold.set()
            calls.close()

    asyncio.run(scenario())


def test_what_could_not_begin_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor keeps what it is given even where it cannot start a thread for it."""
    npu = Npu()

    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        preparer = node(disk, kube, npu)
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuses)
            with pytest.raises(PrepareError, match="can't start new thread"):
                await preparer.prepare(given(kube, "one", "acme-0"))
        await preparer.prepare(given(kube, "two", "acme-1"))
        assert npu.calls == ["plan acme-1", "prepare acme-1"]

    run(scenario)


@pytest.mark.parametrize("seconds", [0, 0.5, 3601, -1, True, "60", float("nan"), float("inf"), [1]])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    npu = SlowNpu(seconds)

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        with pytest.raises(PrepareError, match="allowed are numbers from 1 to 3600, or None"):
            await node(disk, kube, npu).prepare(given(kube, "one", "acme-0"))
        assert not disk.claims()

    run(scenario)


def test_a_prepared_claim_whose_device_is_prepared_again_for_long_stays_as_it_is() -> None:
    """After a start of the agent a backend may have to load everything anew; the kubelet waits for it."""
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        reference = given(kube, "one", "acme-0")
        npu.finish.set()
        await node(disk, kube, npu, seconds=WAIT).prepare(reference)
        npu.finish.clear()
        again = node(disk, kube, npu, seconds=WAIT)
        await again.restore()
        await again.renew()
        assert again.unsettled
        await still(again, reference)
        assert set(disk.claims().values()) == {"PrepareCompleted"}
        assert len(disk.specs) == 1
        npu.finish.set()
        await prepared(again, reference)
        await again.renew()
        assert not again.unsettled
        assert [c.split()[0] for c in npu.calls] == ["plan", "prepare", "prepare"]

    run(scenario)
