"""Whole GPUs as bare PCI functions: bound to vfio-pci for a claim, and back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from node_agent import DRIVER, IMPATIENT, add_claim, claim, eventually, inventory
from passthrough_node import (
    CONFIG,
    ONE,
    TWO,
    Machine,
    agent,
    call,
    listed,
    passed_through,
    planned,
    spec_of,
)

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.api.own.parameters import KernelDriver, decode_parameters
from dra_driver.api.resource import DeviceAttribute
from dra_driver.discovery.core.bus.pci_binding import VFIO, PciFunctions
from dra_driver.errors import InvalidParameters
from dra_driver.hardware import DiscoveredDevice, PartitioningMode
from dra_driver.preparation import Holdings
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import NoDaemons

# --- parameters ---------------------------------------------------------------------------------------------


def read(**fields: Any) -> Any:
    return decode_parameters(json.dumps({**CONFIG, **fields}).encode(), DRIVER)


def test_the_field_names_a_kernel_driver() -> None:
    assert read().driver is KernelDriver.VFIO_PCI
    assert read(driver="Default").driver is KernelDriver.DEFAULT
    with pytest.raises(InvalidParameters, match="driver: expected Default, vfio-pci; got 'nouveau'"):
        read(driver="nouveau")
    with pytest.raises(InvalidParameters, match="goes with sharing strategy None only"):
        read(sharing={"strategy": "MPS"})
    with pytest.raises(InvalidParameters, match="unknown field"):
        read(kind="MigConfig")


# --- the agent ----------------------------------------------------------------------------------------------


def test_a_claim_has_its_gpu_through_vfio_and_gives_it_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            assert machine.pci.driver(ONE) == VFIO
            (made,) = spec_of(node, body)["devices"]
            nodes = [n["path"] for n in made["containerEdits"]["deviceNodes"]]
            assert nodes == ["/dev/vfio/vfio", "/dev/vfio/12"]
            assert f"DRA_VM__GPU__0_PCI_ADDRESS={ONE}" in made["containerEdits"]["env"]
            # The driver does not see it any more, and nobody takes it for lost.
            await eventually(lambda: listed(kube) == {"gpu-0": ["PassedThrough"], "gpu-1": []})
            assert await call(node, "prepare", body) == ""
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")
            await eventually(lambda: listed(kube) == {"gpu-0": [], "gpu-1": []})
            assert node.specs() == []

    asyncio.run(scenario())


def test_it_stays_in_the_inventory_over_a_restart_and_comes_back_after_a_reboot(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        boot = machine.pci.proc / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        body = add_claim(kube, passed_through("gpu-0"))
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
        # Without the flag nothing new is passed through, and what is prepared is kept and undone.
        async with agent(tmp_path, kube, machine, passthrough=False) as node:
            await eventually(lambda: listed(kube) == {"gpu-0": ["PassedThrough"], "gpu-1": []})
            assert machine.pci.driver(ONE) == VFIO
            other = add_claim(kube, passed_through("gpu-1", name="other"))
            assert "runs without --passthrough" in await call(node, "prepare", other)
        machine.pci.reboot()
        boot.write_text("two\n")
        async with agent(tmp_path, kube, machine) as node:
            await eventually(lambda: listed(kube) == {"gpu-0": [], "gpu-1": []})
            assert machine.pci.driver(ONE) == "nvidia"
            assert await call(node, "prepare", body) == ""
            assert machine.pci.driver(ONE) == VFIO

    asyncio.run(scenario())


def test_what_can_be_handed_over_is_published(tmp_path: Path) -> None:
    """So that a DeviceClass finds it; by the agent alone, whatever a backend says."""
    third = "0000:af:00.0"

    def published(kube: FakeClient) -> dict[str, bool | None]:
        found = (inventory(kube) or {"spec": {"devices": []}})["spec"]["devices"]
        return {d["name"]: d["attributes"].get("passthrough", {}).get("bool") for d in found}

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path, {third: ("nvidia", "")})
        machine.gpus[third] = boasting = machine._gpu(2, third)
        boast = {**boasting.device.attributes, "passthrough": DeviceAttribute(bool_value=True)}
        changed = msgspec.structs.replace(boasting.device, attributes=boast)
        machine.gpus[third] = dataclasses.replace(boasting, device=changed)
        async with agent(tmp_path, kube, machine) as node:
            assert published(kube) == {"gpu-0": True, "gpu-1": True, "gpu-2": None}
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            await eventually(lambda: listed(kube)["gpu-0"] == ["PassedThrough"])
            assert published(kube) == {"gpu-0": True, "gpu-1": True, "gpu-2": None}
            assert await call(node, "unprepare", body) == ""
        async with agent(tmp_path, kube, machine, passthrough=False):
            await eventually(lambda: published(kube) == {"gpu-0": None, "gpu-1": None, "gpu-2": None})

    asyncio.run(scenario())


def test_a_gpu_in_mig_mode_is_refused(tmp_path: Path) -> None:
    """Instances of it may be other claims', and its driver would end them all."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        mode = PartitioningMode("MIG mode", DeviceHealth(reason="MigEnabled", severity="info"))
        machine.gpus[ONE] = dataclasses.replace(machine.gpus[ONE], partitioning=mode)
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            error = await call(node, "prepare", body)
            assert "cannot be bound to vfio-pci: its MIG mode is on" in error
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")

    asyncio.run(scenario())


def test_a_reboot_leaves_nothing_to_be_given_back(tmp_path: Path) -> None:
    """What has the address now may be another function, which an administrator has set aside since."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        boot = machine.pci.proc / "sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one\n")
        body = add_claim(kube, passed_through("gpu-0"))
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
        # A reboot ends the threads of the agent as well: one may still be looking at the binding.
        node.plugin._setup.executor.shutdown(wait=True)
        (machine.pci.sysfs / "bus/pci/devices" / ONE / "modalias").write_text(VFIO)
        machine.pci.reboot()
        boot.write_text("two\n")
        async with agent(tmp_path, kube, machine) as node:
            assert machine.pci.driver(ONE) == VFIO
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == (VFIO, "")
            assert node.plugin._preparer.claims == ()

    asyncio.run(scenario())


def test_a_function_that_is_in_another_group_by_now_is_given_by_its_own(tmp_path: Path) -> None:
    """Taken out and put in again: the kernel numbers groups as they come."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = add_claim(kube, passed_through("gpu-0"))
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            assert "/dev/vfio/12" in json.dumps(spec_of(node, body)["devices"])
        group = machine.pci.sysfs / "bus/pci/devices" / ONE / "iommu_group"
        group.unlink()
        group.symlink_to(machine.pci.sysfs / "kernel/iommu_groups/41")
        (machine.pci.dev / "vfio/41").touch()
        kube.down = True
        async with agent(tmp_path, kube, machine) as node:
            text = json.dumps(spec_of(node, body)["devices"])
            assert "/dev/vfio/41" in text
            assert "/dev/vfio/12" not in text

    asyncio.run(scenario())


def test_what_is_in_use_or_shared_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        fds = machine.pci.proc / "4711/fd"
        fds.mkdir(parents=True)
        (fds / "3").symlink_to("/dev/nvidia0")
        async with agent(tmp_path, kube, machine, IMPATIENT) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert "in use by process 4711" in await call(node, "prepare", body)
            assert machine.pci.driver(ONE) == "nvidia"
            assert node.plugin._preparer.claims == ()
            (fds / "3").unlink()
            share = {"shareID": "5a1f0e5e-0000-4000-8000-000000000001"}
            shared = add_claim(kube, passed_through("gpu-0", name="share", **share))
            assert "was given a share" in await call(node, "prepare", shared)
            plain = add_claim(kube, claim("plain", "gpu-0"))
            assert await call(node, "prepare", plain) == ""
            assert "is held by another claim" in await call(node, "prepare", body)
            assert machine.pci.driver(ONE) == "nvidia"

    asyncio.run(scenario())


def test_two_gpus_of_one_group_go_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        group = machine.pci.sysfs / "kernel/iommu_groups/12"
        link = machine.pci.sysfs / "bus/pci/devices" / TWO / "iommu_group"
        link.unlink()
        link.symlink_to(group)
        (group / "devices" / TWO).symlink_to(link.parent)
        async with agent(tmp_path, kube, machine) as node:
            alone = add_claim(kube, passed_through("gpu-0"))
            assert f"{TWO} (driver nvidia)" in await call(node, "prepare", alone)
            both = add_claim(kube, passed_through("gpu-0", "gpu-1", name="both"))
            assert await call(node, "prepare", both) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(TWO)) == (VFIO, VFIO)
            assert await call(node, "unprepare", both) == ""
            assert (machine.pci.driver(ONE), machine.pci.driver(TWO)) == ("nvidia", "nvidia")

    asyncio.run(scenario())


def test_a_virtual_machine_that_does_not_end_holds_up_nobody_else(tmp_path: Path) -> None:
    """The kernel would wait for it inside the write, and every other call for that."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        fds = machine.pci.proc / "4711/fd"
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            fds.mkdir(parents=True)
            (fds / "3").symlink_to("/dev/vfio/12")
            assert "in use by process 4711" in await call(node, "unprepare", body)
            assert machine.pci.driver(ONE) == VFIO
            assert [c.name for c in node.plugin._preparer.claims] == ["vm"]
            (fds / "3").unlink()
            assert await call(node, "unprepare", body) == ""
            assert machine.pci.driver(ONE) == "nvidia"

    asyncio.run(scenario())


def test_who_comes_next_gets_the_nodes_of_the_device(tmp_path: Path) -> None:
    """Planned while another claim has the device under vfio-pci, as when its pod was deleted by force."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        async with agent(tmp_path, kube, machine) as node:
            before = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", before) == ""
            await eventually(lambda: listed(kube) == {"gpu-0": ["PassedThrough"], "gpu-1": []})
            after = add_claim(kube, claim("next", "gpu-0"))
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(call(node, "prepare", after))
                await asyncio.sleep(0.3)
                assert await call(node, "unprepare", before) == ""
            assert waiting.result() == ""
            text = json.dumps(spec_of(node, after))
            assert "/dev/nvidia0" in text
            assert "/dev/nvidiactl" in text

    asyncio.run(scenario())


def test_it_is_never_missing_on_its_way_back(tmp_path: Path) -> None:
    """Looked at while it was away, and asked for when it is back: a gap would withdraw it."""

    async def scenario() -> None:
        machine = Machine(tmp_path)
        away = [machine.gpus[ONE]]
        looked: list[list[str]] = []

        class Returning:
            name = "test"

            def discover(self) -> Sequence[DiscoveredDevice]:
                found = [machine.gpus[TWO]] if away else list(machine.gpus.values())
                away.clear()
                return found

            def close(self) -> None:
                """Nothing is open."""

        table = DeviceTable([Returning()], elsewhere=lambda: tuple(away), passthrough=True)
        for away_then in (True, False):
            await table.scan()
            looked.append(sorted(d.device.name for d in table.devices))
            assert table.for_prepare["gpu-0"].away is away_then
        assert looked == [["gpu-0", "gpu-1"]] * 2

    asyncio.run(scenario())


def test_a_node_for_virtual_machines_keeps_its_binding(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        machine.pci.write(machine.pci.sysfs / "bus/pci/drivers/nvidia/unbind", ONE)
        machine.pci._bind(ONE, VFIO)
        machine.discover = lambda: list(machine.gpus.values())  # type: ignore[method-assign]
        async with agent(tmp_path, kube, machine) as node:
            body = add_claim(kube, passed_through("gpu-0"))
            assert await call(node, "prepare", body) == ""
            assert await call(node, "prepare", body) == ""
            assert await call(node, "unprepare", body) == ""
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == (VFIO, "")

    asyncio.run(scenario())


def test_each_device_has_the_time_of_a_call(tmp_path: Path) -> None:
    """Eight GPUs that need four seconds each must not look like a library that hangs."""

    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        written: list[Path] = []
        calls: list[int] = []

        class Counting(ThreadPoolExecutor):
            def submit(self, *args: Any, **kwargs: Any) -> Any:
                before = len(written)
                future = super().submit(*args, **kwargs)
                future.add_done_callback(lambda _: calls.append(len(written) - before))
                return future

        def write(path: Path, text: str) -> None:
            if path.name == "unbind":
                written.append(path)
            machine.pci.write(path, text)

        bus = PciFunctions(machine.pci.sysfs, machine.pci.dev, machine.pci.proc, write=write)
        with Counting(1) as executor:
            hardware = GpuHardware([], NoDaemons(), executor, bindings=Bindings(bus))
            record = await planned(kube, machine, "gpu-0", "gpu-1")
            record = await hardware.look(record, Holdings())
            await hardware.bind_drivers(record)
            assert (machine.pci.driver(ONE), machine.pci.driver(TWO)) == (VFIO, VFIO)
            await hardware.restore_drivers(record)
            assert (machine.pci.driver(ONE), machine.pci.driver(TWO)) == ("nvidia", "nvidia")
        assert len(written) == 4
        assert max(calls) == 1

    asyncio.run(scenario())
