"""CDI documents of prepared claims follow their devices: reboots, drivers loaded anew, devices exchanged."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crashing_stores import Crash, Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from node_agent import DRIVER, NODE, add_claim, claim
from paths import GOLDEN

from dra_driver import cdi
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import DeviceAttribute
from dra_driver.errors import PrepareError
from dra_driver.preparation import Checkpoint, NodeDevice, PartitionRecord
from dra_driver.preparation.sharing import read_only_pipes
from kubelet_plugin.claims.locks import NodeLock, StateLock
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.gpu.hardware import Hardware
from kubelet_plugin.gpu.no_hardware import NoHardware

OLD, NEW = "550.54.15", "570.86.10"
UIDS = [Uid(f"00000000-0000-4000-8000-00000000000{i}") for i in range(3)]
NODES: dict[str, Callable[[int], tuple[str, ...]]] = {
    "nvidia": lambda n: (f"/dev/nvidia{n}", "/dev/nvidiactl"),
    "amd": lambda n: ("/dev/kfd", f"/dev/dri/card{n}", f"/dev/dri/renderD{128 + n}"),
    "intel": lambda n: (f"/dev/dri/card{n}", f"/dev/dri/renderD{128 + n}"),
    "rdma": lambda n: (f"/dev/infiniband/uverbs{n}", "/dev/infiniband/rdma_cm"),
}


def device(i: int, minor: int, *, vendor: str = "nvidia", uuid: str = "", version: str = OLD) -> NodeDevice:
    """Device ``i`` with the nodes of a minor number."""
    library = f"/usr/lib64/libcuda.so.{version}"
    identity = uuid or f"GPU-{i}"
    return NodeDevice(
        f"gpu-{i}",
        identity,
        identity,
        edits=cdi.ContainerEdits(
            env=("VENDOR=yes",),
            device_nodes=tuple(cdi.DeviceNode(path=p) for p in NODES[vendor](minor)),
            mounts=(cdi.Mount(host_path=library, container_path=library, options=("ro", "bind")),),
        ),
        attributes={"driverVersion": DeviceAttribute(version_value=version)},
    )


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


class Scenario:
    """A node whose agent ends and starts, and whose devices change."""

    def __init__(self, *devices: NodeDevice) -> None:
        self.disk = Disk()
        self.kube = FakeClient()
        self.metadata = Metadata()
        self.boot = "one"
        self.known = True
        self.looked = math.inf
        self.looks = 0
        self.place(*devices)
        for i, uid in enumerate(UIDS):
            add_claim(self.kube, claim(f"c{i}", f"gpu-{i}", uid=uid))

    def place(self, *devices: NodeDevice) -> None:
        """From now on these are the node's devices."""
        self.devices = {d.name: d for d in devices}

    def preparer(self, hardware: Hardware | None = None, node_lock: NodeLock | None = None) -> Preparer:
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=self.kube,
            reservations=DeviceReservations(
                DiskCheckpoints(self.disk), node_lock=node_lock, boot_id=self.boot
            ),
            specs=DiskSpecs(self.disk),
            devices=lambda: self.devices,
            looked=lambda: self.looked,
            look=self.look,
            hardware=hardware,
            timing=Timing(budget=2.0, patience=0.0),
            metadata=self.metadata,
            metadata_directory="/metadata",
            complete=lambda: self.known,
        )

    def look(self) -> None:
        self.looks += 1

    async def started(self, hardware: Hardware | None = None) -> Preparer:
        """A new agent that has looked at the hardware."""
        preparer = self.preparer(hardware)
        await preparer.restore()
        await preparer.renew()
        return preparer

    def nodes(self) -> dict[int, set[str]]:
        """Numbered nodes by claim, as the container runtime reads them."""
        return {i: {n for n in _nodes(self.spec(i)) if n[-1].isdigit()} for i in range(3) if self.spec(i)}

    def spec(self, i: int) -> cdi.Spec | None:
        data = self.disk.specs.get(UIDS[i])
        return None if data is None else cdi.decode(data)

    def true(self) -> bool:
        """Whether every document names the nodes of its device, and only these."""
        wanted = {i: {n.path for n in d.edits.device_nodes} for i, d in enumerate(self.devices.values())}
        return all(
            _nodes(spec) == wanted[i] for i in range(3) if (spec := self.spec(i)) is not None and i in wanted
        )


def _nodes(spec: cdi.Spec | None) -> set[str]:
    edits = [] if spec is None else [spec.container_edits, *(d.container_edits for d in spec.devices)]
    return {n.path for e in edits for n in e.device_nodes}


def _mounts(spec: cdi.Spec | None) -> set[str]:
    edits = [] if spec is None else [spec.container_edits, *(d.container_edits for d in spec.devices)]
    return {m.host_path for e in edits for m in e.mounts}


def reference(i: int) -> ClaimReference:
    return ClaimReference("ns", f"c{i}", UIDS[i])


async def two_prepared(vendor: str = "nvidia") -> tuple[Scenario, Preparer]:
    """Claims of devices 0 and 1, whose nodes are 0 and 1."""
    world = Scenario(device(0, 0, vendor=vendor), device(1, 1, vendor=vendor))
    preparer = await world.started()
    for i in (0, 1):
        await preparer.prepare(reference(i))
    assert world.true()
    return world, preparer


# --- a reboot -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", NODES)
def test_after_a_reboot_that_swaps_minors_no_two_claims_have_one_node(vendor: str) -> None:
    async def main() -> None:
        world, _ = await two_prepared(vendor)
        before = world.nodes()
        world.boot = "two"
        world.place(device(0, 1, vendor=vendor), device(1, 0, vendor=vendor))
        preparer = await world.started()
        assert world.nodes() == {}  # nobody has asked since the reboot
        await preparer.prepare(reference(0))
        assert world.nodes() == {0: before[1]}
        await preparer.prepare(reference(1))
        assert world.nodes() == {0: before[1], 1: before[0]}

    asyncio.run(main())


def test_after_a_reboot_a_claim_is_read_from_the_api_server_again() -> None:
    """A pod was deleted by force, and its claim is allocated another device for the next one."""

    async def main() -> None:
        world, _ = await two_prepared()
        world.boot = "two"
        add_claim(world.kube, claim("c0", "gpu-2", uid=UIDS[0]))
        world.place(*world.devices.values(), device(2, 2))
        preparer = await world.started()
        (prepared,) = await preparer.prepare(reference(0))
        assert prepared.device == "gpu-2"

    asyncio.run(main())


def test_a_reboot_leaves_nothing_that_holds_a_device_or_keeps_a_claim_from_ending() -> None:
    async def main() -> None:
        world, _ = await two_prepared()
        world.boot = "two"
        world.place()
        world.known = False
        preparer = await world.started()
        assert world.disk.specs == {}
        assert world.metadata.files == {}
        assert preparer.claims == ()
        assert [c.uid for c in await preparer.prepared()] == UIDS[:2]  # to be compared with the API server
        world.kube.down = True
        for i in (0, 1, 2):
            await preparer.unprepare(reference(i))
        assert world.disk.claims() == {}
        # Another claim of the device does not wait for the one that a reboot has ended.
        world.kube.down = False
        world.place(device(0, 0))
        add_claim(world.kube, claim("other", "gpu-0", uid=UIDS[2]))
        await preparer.prepare(ClaimReference("ns", "other", UIDS[2]))

    asyncio.run(main())


def test_a_version_without_ended_records_undoes_them() -> None:
    async def main() -> None:
        world, _ = await two_prepared()
        world.boot = "two"
        await world.started()
        # Such a version undoes what has begun, and there is nothing to be undone.
        assert set(world.disk.claims().values()) == {"PrepareStarted"}
        for record in Checkpoint.decode(world.disk.checkpoint):
            assert not record.touches_hardware
            assert record.spec is None

    asyncio.run(main())


class Broken(NoHardware):
    """Sets what it is asked for, and does not set it back while it is broken."""

    def __init__(self) -> None:
        self.broken = True
        self.undone: list[str] = []

    async def look(self, record: Any, holdings: Any) -> Any:
        return record

    async def restore(self, record: Any, holdings: Any) -> None:
        if self.broken:
            raise PrepareError("the GPU does not answer")
        self.undone.append("settings")

    async def restore_drivers(self, record: Any) -> None:
        self.undone.append("drivers")


def controllable(minor: int) -> NodeDevice:
    """Device 0, with settings that a claim of it has to have set back."""
    return dataclasses.replace(device(0, minor), controllable=True, partitioning="MIG mode")


async def rebooted_and_not_given_back(hardware: Broken) -> tuple[Scenario, Preparer]:
    """A claim of device 0, whose node is 7 since the reboot."""
    world = Scenario(controllable(0))
    preparer = await world.started(hardware)
    await preparer.prepare(reference(0))
    world.boot = "two"
    world.place(controllable(7))
    return world, await world.started(hardware)


def test_what_cannot_be_given_back_after_a_reboot_is_tried_again_and_stays_of_the_boot_before() -> None:
    async def main() -> None:
        hardware = Broken()
        world, _ = await rebooted_and_not_given_back(hardware)
        assert world.disk.specs == {}, "it was in force again"
        await world.started(hardware)
        assert world.disk.specs == {}, "it was in force again"
        hardware.broken = False
        preparer = await world.started(hardware)
        assert hardware.undone == ["settings"]
        assert preparer.claims == ()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_a_call_undoes_as_after_a_reboot_what_could_not_be_given_back_at_the_start(call: str) -> None:
    """At the address of a function that was bound for the claim may be another one now."""

    async def main() -> None:
        hardware = Broken()
        world, preparer = await rebooted_and_not_given_back(hardware)
        with pytest.raises(PrepareError, match="the GPU does not answer"):
            await getattr(preparer, call)(reference(0))
        assert set(world.disk.claims()) == {UIDS[0]}
        hardware.broken = False
        world.kube.calls.clear()
        await getattr(preparer, call)(reference(0))
        assert hardware.undone[-1:] == ["settings"]
        assert "drivers" not in hardware.undone, "the reboot has bound them to what they were before"
        if call == "prepare":
            assert world.kube.calls, "it may have been allocated anew"
            assert world.nodes() == {0: {"/dev/nvidia7"}}
        else:
            assert world.disk.claims() == {}

    asyncio.run(main())


# --- the same boot ------------------------------------------------------------------------------------------

Noticed = Callable[[Scenario, Preparer], Awaitable[object]]


async def _restart(world: Scenario, _: Preparer) -> None:
    await world.started()


async def _prepare(_: Scenario, preparer: Preparer) -> None:
    for i in (0, 1):
        await preparer.prepare(reference(i))


NOTICED: dict[str, Noticed] = {
    "at the start": _restart,
    "when it is prepared again": _prepare,
    "when discovery finds it": lambda _, preparer: preparer.renew(),
    "now and then": lambda _, preparer: preparer.tidy(),
}


class Hanging(NoHardware):
    """Does not come back for one claim."""

    def __init__(self) -> None:
        self.uid = Uid("")
        self.asked, self.back = asyncio.Event(), asyncio.Event()

    async def locate(self, record: Any) -> Any:
        if record.uid == self.uid:
            self.asked.set()
            await self.back.wait()
        return record


@pytest.mark.parametrize("busy", [0, 1])
@pytest.mark.parametrize("look", ["tidy", "renew"])
def test_a_call_that_does_not_end_keeps_no_other_claim_from_being_followed(look: str, busy: int) -> None:
    async def main() -> None:
        hardware = Hanging()
        world = Scenario(device(0, 0), device(1, 1))
        preparer = await world.started(hardware)
        for i in (0, 1):
            await preparer.prepare(reference(i))
        hardware.uid = UIDS[busy]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(preparer.prepare(reference(busy)))
            await hardware.asked.wait()
            world.place(device(0, 2), device(1, 3))
            await getattr(preparer, look)()
            assert world.nodes() == {busy: {f"/dev/nvidia{busy}"}, 1 - busy: {f"/dev/nvidia{3 - busy}"}}
            hardware.back.set()
        await preparer.renew()
        assert world.true()

    asyncio.run(main())


def test_nothing_is_unsettled_of_a_claim_that_is_unprepared() -> None:
    async def main() -> None:
        world, preparer = await two_prepared()
        world.place(device(0, 0, uuid="GPU-new"), device(1, 1))
        await preparer.renew()
        assert preparer.unsettled
        await preparer.unprepare(reference(0))
        assert not preparer.unsettled

    asyncio.run(main())


def test_a_claim_that_another_instance_has_prepared_meanwhile_stays_prepared(tmp_path: Path) -> None:
    """Its containers may run: it is not made again, which would undo it where that fails."""

    class Fails(NoHardware):
        async def look(self, record: Any, holdings: Any) -> Any:
            raise PrepareError("the GPU does not answer")

    async def main() -> None:
        world = Scenario(device(0, 0))
        other = world.preparer(node_lock=StateLock(tmp_path / "state.lock"))
        preparer = world.preparer(Fails(), node_lock=StateLock(tmp_path / "state.lock"))
        for instance in (other, preparer):
            await instance.restore()
        read = world.kube.get

        async def slow(*args: Any, **more: Any) -> Any:
            world.kube.get = read  # type: ignore[method-assign]
            await other.prepare(reference(0))
            return await read(*args, **more)

        world.kube.get = slow  # type: ignore[method-assign]
        (prepared,) = await preparer.prepare(reference(0))
        assert prepared.device == "gpu-0"
        assert world.disk.claims() == {UIDS[0]: "PrepareCompleted"}

    asyncio.run(main())


@pytest.mark.parametrize("vendor", NODES)
@pytest.mark.parametrize("noticed", NOTICED)
def test_minors_that_are_swapped_without_a_reboot_are_followed(noticed: str, vendor: str) -> None:
    async def main() -> None:
        world, preparer = await two_prepared(vendor)
        before = world.nodes()
        world.kube.down = True
        world.place(device(0, 1, vendor=vendor), device(1, 0, vendor=vendor))
        await NOTICED[noticed](world, preparer)
        assert world.nodes() == {0: before[1], 1: before[0]}
        # What is in the checkpoint is what is in the file.
        again = {c.uid: c.spec for c in Checkpoint.decode(world.disk.checkpoint)}
        assert again == {UIDS[i]: world.spec(i) for i in (0, 1)}

    asyncio.run(main())


@pytest.mark.parametrize("noticed", NOTICED)
def test_another_version_of_the_driver_is_followed(noticed: str) -> None:
    async def main() -> None:
        world, preparer = await two_prepared()
        assert f"/usr/lib64/libcuda.so.{OLD}" in _mounts(world.spec(0))
        world.kube.down = True
        world.place(device(0, 0, version=NEW), device(1, 1, version=NEW))
        await NOTICED[noticed](world, preparer)
        for i in (0, 1):
            mounts = _mounts(world.spec(i))
            assert f"/usr/lib64/libcuda.so.{NEW}" in mounts
            assert f"/usr/lib64/libcuda.so.{OLD}" not in mounts
            assert f"/metadata/{UIDS[i]}/gpu/metadata.json" in mounts
            assert NEW.encode() in world.metadata.files[UIDS[i]]["gpu"]

    asyncio.run(main())


@pytest.mark.parametrize("noticed", NOTICED)
def test_a_device_that_was_replaced_is_handed_out_by_nobody(noticed: str) -> None:
    async def main() -> None:
        world, preparer = await two_prepared()
        world.place(device(0, 0, uuid="GPU-new"), device(1, 1))
        if noticed == "when it is prepared again":
            with pytest.raises(PrepareError, match="the hardware now says 'GPU-new': it was replaced"):
                await preparer.prepare(reference(0))
        else:
            await NOTICED[noticed](world, preparer)
        assert set(world.nodes()) == {1}
        # A restart before the hardware was looked at does not bring it back.
        world.known = False
        here, world.devices = world.devices, {}
        again = world.preparer()
        await again.restore()
        assert set(world.nodes()) == {1}
        world.known, world.devices = True, here
        await again.renew()
        assert set(world.nodes()) == {1}
        with pytest.raises(PrepareError, match="it was replaced; delete the pod to get another device"):
            await again.prepare(reference(0))
        world.kube.down = True
        await again.unprepare(reference(0))

    asyncio.run(main())


def test_a_device_that_was_replaced_while_the_machine_was_off_is_refused() -> None:
    async def main() -> None:
        world, _ = await two_prepared()
        world.boot = "two"
        world.place(device(0, 0, uuid="GPU-new"), device(1, 1))
        for _ in range(2):
            preparer = await world.started()
            with pytest.raises(PrepareError, match="with uuid 'GPU-0', but the hardware now says 'GPU-new'"):
                await preparer.prepare(reference(0))
        assert world.nodes() == {}
        world.place(device(0, 5), device(1, 1))
        await preparer.prepare(reference(0))
        assert world.nodes() == {0: {"/dev/nvidia5"}}

    asyncio.run(main())


def test_documents_wait_for_devices_that_are_not_known_yet_and_leave_those_that_are_gone() -> None:
    async def main() -> None:
        world, _ = await two_prepared()
        here, contents = world.devices, dict(world.disk.specs)
        world.known, world.devices = False, {}
        preparer = await world.started()
        assert world.disk.specs == contents, "in the same boot they are the best that is known"
        del world.disk.specs[UIDS[0]]
        world.disk.specs[UIDS[1]] = b"{}"
        preparer = await world.started()
        assert world.disk.specs == {}, "nothing is written from memory"
        with pytest.raises(PrepareError, match="device gpu-0 is not on this node now") as refused:
            await preparer.prepare(reference(0))
        assert refused.value.retryable
        world.known, world.devices = True, here
        await preparer.renew()
        assert world.disk.specs == contents
        world.place(device(1, 0))
        await preparer.renew()
        assert set(world.nodes()) == {1}, "gpu-0 is gone, and its number is another's"
        world.place(device(0, 1), device(1, 0))
        await preparer.renew()
        assert world.nodes() == {0: {"/dev/nvidia1"}, 1: {"/dev/nvidia0"}}
        assert not preparer.unsettled

    asyncio.run(main())


def test_a_device_whose_node_is_not_known_now_gets_no_document_without_one() -> None:
    async def main() -> None:
        world, preparer = await two_prepared()
        blind = device(0, 0)
        edits = cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/nvidiactl"),))
        world.place(dataclasses.replace(blind, edits=edits), device(1, 1))
        await preparer.renew()
        assert set(world.nodes()) == {1}
        world.place(blind, device(1, 1))
        await preparer.renew()
        assert set(world.nodes()) == {0, 1}

    asyncio.run(main())


# --- what another instance has prepared ---------------------------------------------------------------------


async def _seen_by_two(lock: Path, stale: NodeDevice | None) -> tuple[Scenario, Preparer]:
    """A claim that another instance prepared after this one had looked at its device, and found ``stale``."""
    world = Scenario(device(0, 0))
    other, here = (world.preparer(node_lock=StateLock(lock)) for _ in range(2))
    await other.restore()
    await here.restore()
    await here.renew()
    world.looked = asyncio.get_running_loop().time()
    await asyncio.sleep(0.01)
    await other.prepare(reference(0))
    world.place(*([] if stale is None else [stale]))
    await here.prepared()  # the records of both
    return world, here


STALE = {"was away": None, "had another node": device(0, 7), "had no node": device(0, 0, vendor="rdma")}


@pytest.mark.parametrize("noticed", ["when discovery finds it", "now and then"])
@pytest.mark.parametrize("stale", STALE)
def test_an_older_look_leaves_the_document_of_another_instance(
    stale: str, noticed: str, tmp_path: Path
) -> None:
    async def main() -> None:
        world, here = await _seen_by_two(tmp_path / "lock", STALE[stale])
        written = dict(world.disk.specs)
        await NOTICED[noticed](world, here)
        assert world.disk.specs == written
        assert (world.looks, here.unsettled) == (1, True)
        # The look that was asked for finds the device as the other instance did.
        world.place(device(0, 0))
        world.looked = asyncio.get_running_loop().time()
        await here.renew()
        assert world.disk.specs == written
        assert (world.looks, here.unsettled) == (1, False)

    asyncio.run(main())


def test_a_later_look_renews_and_withdraws_the_document_of_another_instance(tmp_path: Path) -> None:
    async def main() -> None:
        world, here = await _seen_by_two(tmp_path / "lock", None)
        await here.renew()
        assert world.nodes() == {0: {"/dev/nvidia0"}}
        world.looked = asyncio.get_running_loop().time()
        world.place(device(0, 7))
        await here.renew()
        assert world.nodes() == {0: {"/dev/nvidia7"}}
        # The record is this instance's own by now.
        world.looked = asyncio.get_running_loop().time()
        world.place()
        await here.renew()
        assert world.nodes() == {}

    asyncio.run(main())


def test_what_this_instance_prepared_is_judged_by_the_next_look() -> None:
    async def main() -> None:
        world = Scenario(device(0, 0))
        preparer = await world.started()
        await preparer.prepare(reference(0))
        await asyncio.sleep(0.01)
        world.looked = asyncio.get_running_loop().time()
        world.place()
        await preparer.renew()
        assert world.nodes() == {}

    asyncio.run(main())


# --- crashes ------------------------------------------------------------------------------------------------


def troubles() -> Iterator[dict[str, bool]]:
    yield {"after": False, "error": False}
    yield {"after": True, "error": False}
    yield {"after": False, "error": True}


async def _disturbed(world: Scenario, boot: str, at: int, trouble: dict[str, bool]) -> bool:
    """Swaps the minors in another life of the agent; says whether the trouble came."""
    world.boot = boot
    world.place(device(0, 1), device(1, 0))
    world.disk.trouble_at = world.disk.effects + at
    world.disk.after, world.disk.error = trouble["after"], trouble["error"]
    try:
        preparer = await world.started()
        for i in (0, 1):
            await preparer.prepare(reference(i))
    except (Crash, OSError):
        pass
    came = world.disk.trouble_at is None
    world.disk.trouble_at = None
    return came


@pytest.mark.parametrize("boot", [pytest.param("one", marks=pytest.mark.long), "two"])
def test_a_crash_or_an_error_at_any_effect_leaves_no_document_of_before(boot: str) -> None:
    async def main() -> int:
        lives = 0
        for trouble in troubles():
            for at in range(100):
                world, _ = await two_prepared()
                came = await _disturbed(world, boot, at, trouble)
                world.kube.down = boot == "one"
                preparer = await world.started()
                assert world.true(), (at, trouble)
                assert {c.standing.name for c in Checkpoint.decode(world.disk.checkpoint)} <= (
                    {"COMPLETED"} if boot == "one" else {"COMPLETED", "ENDED"}
                )
                for i in (0, 1):
                    await preparer.prepare(reference(i))
                assert world.true()
                assert world.nodes() == {0: {"/dev/nvidia1"}, 1: {"/dev/nvidia0"}}
                for i in (0, 1):
                    await preparer.unprepare(reference(i))
                assert (world.disk.claims(), world.disk.specs) == ({}, {})
                if not came:
                    break
                lives += 1
            else:
                raise AssertionError("there is no end of effects")
        return lives

    # Two records and two files; after a reboot these are removed and the boot is noted, then all is made.
    assert asyncio.run(main()) >= 3 * 4


# --- what the version before has written --------------------------------------------------------------------

BEFORE = GOLDEN / "checkpoints" / "before_boots_in_records.json"


def older(boot: str) -> Scenario:
    """A node on which the version before has prepared two GPUs, a share under MPS, and a partition."""
    world = Scenario(*(_golden_device(i, i, OLD) for i in range(4)), _golden_partition(OLD))
    world.disk.checkpoint = BEFORE.read_bytes()
    for record in Checkpoint.decode(world.disk.checkpoint):
        assert record.spec is not None
        world.disk.specs[record.uid] = cdi.encode(record.spec)
    world.boot = boot
    return world


def _golden_device(i: int, minor: int, version: str) -> NodeDevice:
    found = device(i, minor, version=version)
    edits = cdi.ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        device_nodes=found.edits.device_nodes,
        mounts=found.edits.mounts,
    )
    return dataclasses.replace(found, edits=edits, model="A100", memory="40Gi", controllable=True)


def _golden_partition(version: str) -> NodeDevice:
    gpu = _golden_device(3, 3, version)
    nodes = tuple(n for n in gpu.edits.device_nodes if n.path == "/dev/nvidiactl")
    edits = cdi.ContainerEdits(env=gpu.edits.env, device_nodes=nodes, mounts=gpu.edits.mounts)
    record = PartitionRecord(gpu="gpu-3", profile="1g.5gb", profile_id=19, start=0, size=1)
    return dataclasses.replace(gpu, name="gpu-3-mig-1g-5gb-0", edits=edits, partition=record, memory="5Gi")


def test_records_of_the_version_before_are_followed_too() -> None:
    async def main() -> None:
        world = older("one")
        before = {i: world.spec(i) for i in range(3)}
        world.kube.down = True
        await world.started()
        for i in range(3):
            now, was = world.spec(i), before[i]
            assert now is not None
            assert was is not None
            assert _contents(now) == _contents(_with_read_only_pipes(was))
        world.place(
            *(_golden_device(i, {0: 1, 1: 0, 2: 4, 3: 3}[i], NEW) for i in range(4)), _golden_partition(NEW)
        )
        await world.started()
        pair, mps, mig = (world.spec(i) for i in range(3))
        assert pair is not None
        assert mps is not None
        assert mig is not None
        assert [[n.path for n in d.container_edits.device_nodes] for d in pair.devices] == [
            ["/dev/nvidia1"],
            ["/dev/nvidia0"],
        ]
        assert pair.devices[0].container_edits.env == (before[0] or pair).devices[0].container_edits.env
        assert f"/metadata/{UIDS[0]}/gpu/metadata.json" not in _mounts(pair)  # it was elsewhere then
        assert f"/plugins/metadata/{UIDS[0]}/gpu/metadata.json" in _mounts(pair)
        assert "/state/mps/gpu-2/pipe" in _mounts(mps)
        assert "/dev/nvidia4" in _nodes(mps)
        assert any(
            v.startswith("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=") for v in mps.devices[0].container_edits.env
        )
        assert _nodes(mig) == {"/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap7"}
        assert "DRA_MIG__GPU__0_UUID=MIG-1" in mig.devices[0].container_edits.env
        for spec in (pair, mps, mig):
            assert f"/usr/lib64/libcuda.so.{NEW}" in _mounts(spec)
            assert f"/usr/lib64/libcuda.so.{OLD}" not in _mounts(spec)

    asyncio.run(main())


def _with_read_only_pipes(spec: cdi.Spec) -> cdi.Spec:
    """Return what becomes of a document of the version before, whose containers could write there."""
    devices = [
        msgspec.structs.replace(d, container_edits=read_only_pipes(d.container_edits)) for d in spec.devices
    ]
    return msgspec.structs.replace(spec, devices=tuple(devices))


def _contents(spec: cdi.Spec) -> Any:
    """All but the record in the annotation."""
    return (spec.cdi_version, spec.kind, spec.container_edits, spec.devices)


def test_records_of_the_version_before_are_of_the_boot_that_is_noted_beside_them() -> None:
    async def main() -> None:
        world = older("two")
        world.place()
        world.known = False
        preparer = await world.started()
        assert world.disk.specs == {}
        assert preparer.claims == ()
        # Also when the boot is noted already, by an agent that was killed before it could end anything.
        world = older("two")
        world.disk.checkpoint = Checkpoint.decode(world.disk.checkpoint).with_boot_id("two").encode()
        assert {c.boot_id for c in Checkpoint.decode(world.disk.checkpoint)} == {"one"}
        preparer = await world.started()
        assert world.disk.specs == {}
        assert preparer.claims == ()

    asyncio.run(main())
