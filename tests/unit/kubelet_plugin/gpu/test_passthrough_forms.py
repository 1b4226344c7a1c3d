"""Passthrough in all its forms: IOMMU groups and IOMMUFD, cards with several functions, overrides."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from node_agent import DRIVER, NODE, add_claim, eventually
from passthrough_node import (
    ONE,
    SOUND,
    TWO,
    Machine,
    agent,
    call,
    functions,
    nodes_of,
    passed_through,
    planned,
)

from dra_driver.api.meta import PoolName
from dra_driver.discovery.core.bus.pci_binding import VFIO, PciFunctions
from dra_driver.errors import DriverRefused, PrepareError
from dra_driver.preparation import PreparedDevice
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import NoDaemons


@pytest.mark.parametrize(
    ("kernel", "policy", "expected"),
    [
        ({"iommufd": True}, "LegacyOnly", ["/dev/vfio/vfio", "/dev/vfio/12"]),
        ({"iommufd": True}, "PreferIommuFD", ["/dev/iommu", "/dev/vfio/devices/vfio0"]),
        ({"iommufd": True}, "IommuFDOnly", ["/dev/iommu", "/dev/vfio/devices/vfio0"]),
        ({"iommufd": False}, "PreferIommuFD", ["/dev/vfio/vfio", "/dev/vfio/12"]),
        ({"iommufd": True, "cdevs": False}, "PreferIommuFD", ["/dev/vfio/vfio", "/dev/vfio/12"]),
        ({"iommufd": False, "cdevs": True}, "PreferIommuFD", ["/dev/vfio/vfio", "/dev/vfio/12"]),
    ],
)
def test_iommufd_where_the_claim_asks_for_it_and_the_kernel_has_it(
    tmp_path: Path, kernel: dict[str, bool], policy: str, expected: list[str]
) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, None, **kernel)
        async with agent(tmp_path, kube, machine) as node:
            with_api = add_claim(
                kube, passed_through("gpu-0", parameters={"iommu": {"backendPolicy": policy}})
            )
            assert await call(node, "prepare", with_api) == ""
            assert nodes_of(node, with_api) == [expected]
            assert await call(node, "unprepare", with_api) == ""
            iommu = {"backendPolicy": policy, "enableAPIDevice": False}
            alone = add_claim(kube, passed_through("gpu-0", name="alone", parameters={"iommu": iommu}))
            assert await call(node, "prepare", alone) == ""
            assert nodes_of(node, alone) == [expected[1:]]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            {"iommufd": False},
            "asks for IommuFDOnly, but this node has no /dev/iommu: IOMMUFD needs Linux 6.6",
        ),
        ({"iommufd": True, "cdevs": False}, "gives PCI function 0000:3b:00.0 no character device"),
    ],
)
def test_iommufd_and_nothing_else_is_refused_where_the_kernel_has_none(
    tmp_path: Path, kernel: dict[str, bool], reason: str
) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, None, **kernel)
        async with agent(tmp_path, kube, machine) as node:
            parameters = {"iommu": {"backendPolicy": "IommuFDOnly"}}
            body = add_claim(kube, passed_through("gpu-0", parameters=parameters))
            assert reason in await call(node, "prepare", body)
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")
            assert node.plugin._preparer.claims == ()

    asyncio.run(scenario())


def test_the_sound_of_a_card_goes_with_it_and_comes_back(tmp_path: Path) -> None:
    """Its driver would keep the IOMMU group from being passed through."""

    async def scenario() -> None:
        kube = FakeClient()
        machine = Machine(tmp_path, {SOUND: ("snd_hda_intel", "12")}, sound={SOUND})
        player = machine.pci.proc / "4711/fd"
        player.mkdir(parents=True)
        (machine.pci.sysfs / "bus/pci/devices" / SOUND / "sound/card0/pcmC0D3p").mkdir(parents=True)
        (player / "3").symlink_to("/dev/snd/pcmC0D3p")
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert "in use by process 4711" in await call(node, "prepare", body)
            assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == ("nvidia", "snd_hda_intel")
            (player / "3").unlink()
            assert await call(node, "prepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == (VFIO, VFIO)
            assert nodes_of(node, body) == [["/dev/vfio/vfio", "/dev/vfio/12"]]
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == ("nvidia", "snd_hda_intel")
            assert (machine.pci.override(ONE), machine.pci.override(SOUND)) == ("", "")

    asyncio.run(scenario())


def test_sound_that_an_administrator_has_bound_stays_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, {SOUND: (VFIO, "12")}, sound={SOUND})
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == ("nvidia", VFIO)

    asyncio.run(scenario())


@pytest.mark.parametrize(("left", "expected"), [("nvidia", "nvidia"), (VFIO, "")])
def test_an_override_is_put_back_unless_it_was_left_behind(tmp_path: Path, left: str, expected: str) -> None:
    """One that names another driver than the function has would keep that from taking it."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        machine.pci.write(machine.pci.sysfs / "bus/pci/devices" / ONE / "driver_override", left)
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", expected)

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["drivers/nvidia/unbind", "drivers_probe"])
def test_a_write_that_hangs_is_refused_and_what_it_did_is_undone(tmp_path: Path, where: str) -> None:
    """The kernel waits in it as long as it takes; the claim and the function are not forgotten meanwhile."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        go_on = threading.Event()

        def write(path: Path, text: str) -> None:
            if str(path).endswith(where) and not go_on.is_set():
                assert go_on.wait(60)
            machine.pci.write(path, text)

        bus = PciFunctions(machine.pci.sysfs, machine.pci.dev, machine.pci.proc, write=write)
        body = add_claim(kube, passed_through("gpu-0"))
        reference = ClaimReference("ns", body["metadata"]["name"], body["metadata"]["uid"])
        with ThreadPoolExecutor(2) as executor:
            table = DeviceTable([machine], passthrough=True)
            await table.scan()
            table.published({d.device.name: d.uuid for d in table.devices})
            disk = Disk()
            preparer = Preparer(
                driver=DRIVER,
                pool=PoolName(NODE),
                client=kube,
                reservations=DeviceReservations(DiskCheckpoints(disk)),
                specs=DiskSpecs(disk),
                devices=lambda: table.for_prepare,
                hardware=GpuHardware([], NoDaemons(), executor, bindings=Bindings(bus), call_seconds=5.0),
                timing=Timing(budget=12.0, patience=0.0),
            )
            try:
                await preparer.restore()
                for call_ in (preparer.prepare, preparer.prepare, preparer.unprepare):
                    with pytest.raises(PrepareError, match="does not answer after 5 s") as caught:
                        await call_(reference)
                    assert caught.value.retryable
                    assert disk.claims() == {reference.uid: "PrepareStarted"}
            finally:
                go_on.set()
            await eventually(lambda: machine.pci.driver(ONE) == VFIO)
            assert [d.device for d in await _until_it_answers(preparer, reference)] == ["gpu-0"]
            await preparer.unprepare(reference)
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")
            assert disk.claims() == {}

    asyncio.run(scenario())


async def _until_it_answers(preparer: Preparer, reference: ClaimReference) -> Sequence[PreparedDevice]:
    """The kubelet asks again; the call that hung has to be seen to have ended first."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await preparer.prepare(reference)
            except PrepareError as e:
                if not e.retryable:
                    raise
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("stop", range(13))
def test_a_crash_at_any_write_for_a_card_can_be_undone(tmp_path: Path, stop: int) -> None:
    async def scenario() -> None:
        kube = FakeClient()
        machine = Machine(tmp_path, {SOUND: ("snd_hda_intel", "12")}, sound={SOUND})
        machine.pci.write(machine.pci.sysfs / "bus/pci/devices" / SOUND / "driver_override", "snd_hda_intel")
        left = stop

        def write(path: Path, text: str) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            machine.pci.write(path, text)

        record = Bindings(functions(machine.pci)).look(await planned(kube, machine, "gpu-0"))
        dying = Bindings(PciFunctions(machine.pci.sysfs, machine.pci.dev, machine.pci.proc, write=write))

        def life() -> None:
            dying.bind(record)
            dying.restore(record)

        if stop < 12:
            with pytest.raises(KeyboardInterrupt):
                life()
        else:
            life()
        whole = Bindings(functions(machine.pci))
        whole.restore(record)
        drivers = {a: (machine.pci.driver(a), machine.pci.override(a)) for a in (ONE, SOUND)}
        assert drivers == {ONE: ("nvidia", ""), SOUND: ("snd_hda_intel", "snd_hda_intel")}
        whole.bind(record)
        assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == (VFIO, VFIO)

    asyncio.run(scenario())


def test_a_driver_that_takes_nothing_back_keeps_a_pod_from_ending_for_two_minutes(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube = FakeClient()
        machine = Machine(tmp_path, {SOUND: ("snd_hda_intel", "12")}, sound={SOUND})
        seconds, refuses = 0.0, True

        def write(path: Path, text: str) -> None:
            if path.name == "bind" and text == SOUND and refuses:
                raise OSError(errno.EIO, "Input/output error")
            machine.pci.write(path, text)

        bus = PciFunctions(machine.pci.sysfs, machine.pci.dev, machine.pci.proc, write=write)
        bindings = Bindings(bus, now=lambda: seconds)
        record = bindings.look(await planned(kube, machine, "gpu-0"))
        for _ in range(2):  # the second claim is waited for as long
            bindings.bind(record)
            for _ in range(12):
                with pytest.raises(DriverRefused, match="snd_hda_intel does not take it back"):
                    bindings.restore(record)
                assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == ("nvidia", "")
                seconds += 10
            assert bindings.restore(record)
            assert (machine.pci.driver(ONE), machine.pci.driver(SOUND)) == ("nvidia", "")
        with pytest.raises(DriverRefused):
            bindings.restore(record)
        refuses = False
        assert bindings.restore(record)
        assert machine.pci.driver(SOUND) == "snd_hda_intel"

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["LegacyOnly", "PreferIommuFD"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_function_that_somebody_has_unbound_is_bound_again(
    tmp_path: Path, policy: str, restarted: bool
) -> None:
    """Its node is gone with the binding, and comes back with the next one."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, iommufd=True)
        body = add_claim(kube, passed_through("gpu-0", parameters={"iommu": {"backendPolicy": policy}}))
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            before = nodes_of(node, body)
            machine.pci.write(machine.pci.sysfs / "bus/pci/drivers/vfio-pci/unbind", ONE)
            if not restarted:
                assert await call(node, "prepare", body) == ""
                assert machine.pci.driver(ONE) == VFIO
                assert nodes_of(node, body) == before
        async with agent(tmp_path, kube, machine) as node:
            assert machine.pci.driver(ONE) == VFIO
            assert nodes_of(node, body) == before

    asyncio.run(scenario())


def test_a_document_follows_the_character_device_over_bindings(tmp_path: Path) -> None:
    """Bound anew by somebody else while the agent was away: the function has another number."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, iommufd=True)
        parameters = {"iommu": {"backendPolicy": "PreferIommuFD"}}
        body = add_claim(kube, passed_through("gpu-0", "gpu-1", parameters=parameters))
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            assert nodes_of(node, body) == [["/dev/iommu", f"/dev/vfio/devices/vfio{i}"] for i in (0, 1)]
        unbind, probe = (
            machine.pci.sysfs / "bus/pci" / p for p in ("drivers/vfio-pci/unbind", "drivers_probe")
        )
        for address in (ONE, TWO):
            machine.pci.write(unbind, address)
        for address in (TWO, ONE):
            machine.pci.write(probe, address)
        kube.down = True
        async with agent(tmp_path, kube, machine) as node:
            assert nodes_of(node, body) == [["/dev/iommu", f"/dev/vfio/devices/vfio{i}"] for i in (1, 0)]
            (record,) = node.plugin._preparer.claims
            assert [d.binding.cdev for d in record.devices if d.binding] == ["vfio1", "vfio0"]
            fds = machine.pci.proc / "4711/fd"
            fds.mkdir(parents=True)
            (fds / "3").symlink_to("/dev/vfio/devices/vfio1")
            assert "in use by process 4711" in await call(node, "unprepare", body)
            (fds / "3").unlink()
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(TWO)) == ("nvidia", "nvidia")

    asyncio.run(scenario())
