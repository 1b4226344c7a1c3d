"""Whole GPUs as bare PCI functions: bound to vfio-pci for a claim, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from fake_pci import FakePci
from node_agent import (
    DRIVER,
    NODE,
    QUICK,
    Node,
    add_claim,
    claim,
    configuration,
    device,
    eventually,
    inventory,
    running,
)

from dra_driver.api import names
from dra_driver.api.inventory import DeviceHealth
from dra_driver.api.meta import PoolName
from dra_driver.api.parameters import KernelDriver, decode_parameters
from dra_driver.api.resource import RESOURCE_CLAIMS, DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core.pci_binding import VFIO, PciFunctions
from dra_driver.errors import InvalidParameters, PrepareError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.preparation import Holdings, PreparedClaim, plan
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import NoDaemons

ONE, TWO = "0000:3b:00.0", "0000:86:00.0"
CONFIG = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "driver": "vfio-pci"}

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


# --- the bus ------------------------------------------------------------------------------------------------


def functions(pci: FakePci) -> PciFunctions:
    return PciFunctions(pci.sysfs, pci.dev, pci.proc, write=pci.write)


def test_it_is_bound_and_given_back(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    bus = functions(pci)
    for _ in range(2):
        bus.check(ONE, VFIO, {ONE})
        bus.bind(ONE, VFIO)
        assert (pci.driver(ONE), pci.override(ONE)) == (VFIO, VFIO)
        assert (pci.dev / "vfio/12").exists()
    for _ in range(2):
        assert bus.restore(ONE, VFIO, "nvidia") == ""
        assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "")


@pytest.mark.parametrize("stop", range(4))
def test_a_crash_at_any_write_can_be_undone_and_repeated(tmp_path: Path, stop: int) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    left = stop

    def write(path: Path, text: str) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        pci.write(path, text)

    dying = PciFunctions(pci.sysfs, pci.dev, pci.proc, write=write)
    if stop < 3:
        with pytest.raises(KeyboardInterrupt):
            dying.bind(ONE, VFIO)
    else:
        dying.bind(ONE, VFIO)
    bus = functions(pci)
    assert bus.restore(ONE, VFIO, "nvidia") == ""
    assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "")
    bus.bind(ONE, VFIO)
    assert pci.driver(ONE) == VFIO


def test_what_cannot_go_well_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    audio = "0000:3b:00.1"
    pci = FakePci(tmp_path).build(
        {
            ONE: ("nvidia", "12"),
            audio: ("snd_hda_intel", "12"),
            "0000:3a:00.0": ("pcieport", "12"),
            TWO: ("nvidia", ""),
        }
    )
    bus = functions(pci)
    with pytest.raises(PrepareError, match=r"0000:3b:00\.1 \(driver snd_hda_intel\)"):
        bus.check(ONE, VFIO, {ONE})
    bus.check(ONE, VFIO, {ONE, audio})
    with pytest.raises(PrepareError, match="IOMMU is off"):
        bus.check(TWO, VFIO, {TWO})
    with pytest.raises(PrepareError, match="modprobe uio"):
        bus.check(ONE, "uio", {ONE})
    with pytest.raises(PrepareError, match="no PCI function"):
        bus.check("0000:ff:00.0", VFIO, set())
    (pci.sysfs / "bus/pci/devices" / ONE / "sriov_numvfs").write_text("4\n")
    with pytest.raises(PrepareError, match="virtual functions"):
        bus.check(ONE, VFIO, {ONE, audio})


def test_a_driver_that_is_gone_is_told_and_keeps_nobody(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    bus = functions(pci)
    bus.bind(ONE, VFIO)
    (pci.sysfs / "bus/pci/drivers/nvidia").rmdir()
    assert "nvidia does not take it" in bus.restore(ONE, VFIO, "nvidia")
    assert pci.driver(ONE) == ""
    assert "not there" in bus.restore("0000:ff:00.0", VFIO, "nvidia")


def test_what_was_bound_to_vfio_before_stays_so(tmp_path: Path) -> None:
    """A node whose administrator has set its GPUs aside for virtual machines."""
    pci = FakePci(tmp_path).build({ONE: (VFIO, "12")})
    (pci.sysfs / "bus/pci/devices" / ONE / "modalias").write_text("nvidia")
    bus = functions(pci)
    assert bus.restore(ONE, VFIO, VFIO) == ""
    assert pci.driver(ONE) == VFIO


def test_an_override_of_somebody_else_stays(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    pci.write(pci.sysfs / "bus/pci/devices" / ONE / "driver_override", "nvidia")
    assert functions(pci).restore(ONE, VFIO, "nvidia") == ""
    assert (pci.driver(ONE), pci.override(ONE)) == ("nvidia", "nvidia")


@pytest.mark.parametrize(
    "text", ["", ".", "..", f"../devices/{ONE}", f"{ONE}/", f"{ONE}\n", "0000:3b:00.0\0"]
)
def test_what_is_no_address_leads_nowhere(tmp_path: Path, text: str) -> None:
    bus = functions(FakePci(tmp_path).build({ONE: ("nvidia", "12")}))
    for step in (
        lambda: bus.check(text, VFIO, set()),
        lambda: bus.bind(text, VFIO),
        lambda: bus.restore(text, VFIO, "nvidia"),
    ):
        with pytest.raises(PrepareError, match="no PCI address"):
            step()
    bus.bind(ONE, VFIO)
    with pytest.raises(PrepareError, match="no name of a kernel driver"):
        bus.restore(ONE, VFIO, "../../devices")


def test_processes_with_the_node_open_are_seen(tmp_path: Path) -> None:
    bus = functions(FakePci(tmp_path).build({}))
    fds = tmp_path / "proc/4711/fd"
    fds.mkdir(parents=True)
    (fds / "3").symlink_to("/dev/nvidia0")
    (tmp_path / "proc/4711/comm").write_text("trainer\n")
    assert bus.users({"/dev/nvidia0"}) == ["4711 (trainer)"]
    assert bus.users({"/dev/nvidia1"}) == []


def test_a_character_device_has_the_number_of_the_binding(tmp_path: Path) -> None:
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12"), TWO: (VFIO, "40")}, iommufd=True)
    bus = functions(pci)
    assert bus.iommufd
    assert bus.cdev(ONE) == ""
    bus.bind(ONE, VFIO)
    assert (bus.cdev(ONE), bus.cdev(TWO)) == ("vfio1", "vfio0")
    assert bus.nodes(ONE) == ("/dev/vfio/12", "/dev/vfio/devices/vfio1")
    bus.restore(TWO, VFIO, "nvidia")
    bus.restore(ONE, VFIO, "nvidia")
    assert (bus.cdev(ONE), bus.nodes(ONE)) == ("", ("/dev/vfio/12",))


def test_a_kernel_may_show_the_folder_of_a_character_device_that_it_does_not_make(tmp_path: Path) -> None:
    """Linux 6.1 to 6.5, and later ones without CONFIG_VFIO_DEVICE_CDEV."""
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")}, iommufd=True, cdevs=False)
    bus = functions(pci)
    bus.bind(ONE, VFIO)
    assert list((pci.sysfs / "bus/pci/devices" / ONE / "vfio-dev").iterdir())
    assert bus.cdev(ONE) == ""


# --- the agent ----------------------------------------------------------------------------------------------


class Machine:
    """GPUs that discovery finds while NVIDIA's driver has them, as NVML does."""

    name = "test"

    def __init__(self, root: Path, **kernel: Any) -> None:
        self.pci = FakePci(root).build({ONE: ("nvidia", "12"), TWO: ("nvidia", "40")}, **kernel)
        self.open = 0
        self.health: tuple[DeviceHealth, ...] = ()
        self.gpus = {ONE: self._gpu(0, ONE), TWO: self._gpu(1, TWO)}
        for node in ("nvidiactl", "nvidia0", "nvidia1"):
            (self.pci.dev / node).touch()

    @staticmethod
    def _gpu(index: int, address: str) -> DiscoveredDevice:
        found = device(index)
        more = {
            "type": DeviceAttribute(string_value="gpu"),
            names.PCI_BUS_ID: DeviceAttribute(string_value=address),
        }
        changed = msgspec.structs.replace(found.device, attributes={**found.device.attributes, **more})
        nodes = (DeviceNode("/dev/nvidiactl"), DeviceNode(f"/dev/nvidia{index}"))
        material = ContainerEdits(device_nodes=nodes, env=("NVIDIA_VISIBLE_DEVICES=void",))
        return DiscoveredDevice(device=changed, uuid=found.uuid, material=material)

    def discover(self) -> Sequence[DiscoveredDevice]:
        return [d for address, d in self.gpus.items() if self.pci.driver(address) == "nvidia"]

    def close(self) -> None:
        """Nothing is open."""


def passed_through(*devices: str, **more: Any) -> dict[str, Any]:
    parameters = {**CONFIG, **more.pop("parameters", {})}
    body = claim(more.pop("name", "vm"), *devices, **more)
    opaque = {"driver": DRIVER, "parameters": parameters}
    by_class = {"source": "FromClass", "requests": ["gpu"], "opaque": opaque}
    body["status"]["allocation"]["devices"]["config"] = [by_class]
    return body


def nodes_of(node: Node, body: dict[str, Any]) -> list[list[str]]:
    """Paths of the device nodes that each device of a claim brings into a container."""
    edits = [d["containerEdits"] for d in spec_of(node, body)["devices"]]
    return [[n["path"] for n in e.get("deviceNodes", ())] for e in edits]


async def call(node: Node, verb: str, body: dict[str, Any]) -> str:
    reference = dra_v1_pb2.Claim(**{k: body["metadata"][k] for k in ("namespace", "name", "uid")})
    async with node.channel() as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        if verb == "prepare":
            answer: Any = await stub.NodePrepareResources(
                dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
            )
        else:
            answer = await stub.NodeUnprepareResources(
                dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
            )
    return str(answer.claims[reference.uid].error)


def agent(root: Path, kube: FakeClient, machine: Machine, timing: Timing = QUICK, **settings: Any) -> Any:
    places = {"sysfs_root": machine.pci.sysfs, "dev_root": machine.pci.dev, "procfs_root": machine.pci.proc}
    return running(
        root,
        kube,
        backend=machine,
        functions=functions(machine.pci),
        timing=timing,
        settings={"passthrough": True, **places, **settings},
    )


async def planned(kube: FakeClient, machine: Machine, *names_: str) -> PreparedClaim:
    """The record of a claim before anything is done for it."""
    body = add_claim(kube, passed_through(*names_))
    table = DeviceTable([machine], passthrough=True)
    await table.scan()
    table.published({d.device.name: d.uuid for d in table.devices})
    found = await kube.get(RESOURCE_CLAIMS, body["metadata"]["name"], body["metadata"]["namespace"])
    return plan(found, found.metadata.uid, driver=DRIVER, pool=PoolName(NODE), devices=table.for_prepare)


def spec_of(node: Node, body: dict[str, Any]) -> dict[str, Any]:
    file = node.config.cdi_dir / f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json"
    spec: dict[str, Any] = json.loads(file.read_bytes())
    return spec


def listed(kube: FakeClient) -> dict[str, list[str]]:
    found = inventory(kube) or {"spec": {"devices": []}}
    return {d["name"]: [h["reason"] for h in d.get("health", ())] for d in found["spec"]["devices"]}


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
        async with agent(tmp_path, kube, machine) as node:
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
        kube, machine = FakeClient(), Machine(tmp_path, **kernel)
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
        kube, machine = FakeClient(), Machine(tmp_path, **kernel)
        async with agent(tmp_path, kube, machine) as node:
            parameters = {"iommu": {"backendPolicy": "IommuFDOnly"}}
            body = add_claim(kube, passed_through("gpu-0", parameters=parameters))
            assert reason in await call(node, "prepare", body)
            assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")
            assert node.plugin._preparer.claims == ()

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


VM_CLASS = {"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": CONFIG}}
VM_CLAIM = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": CONFIG}}
PLAIN = {**CONFIG, "driver": "Default"}
PLAIN_CLAIM = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": PLAIN}}
PLAIN_CLASS = {**VM_CLASS, "opaque": {"driver": DRIVER, "parameters": PLAIN}}
OTHER_CLASS = {**VM_CLASS, "requests": ["elsewhere"]}


@pytest.mark.parametrize(
    ("configs", "allowed", "outcome"),
    [
        ((VM_CLASS,), {}, VFIO),
        ((VM_CLAIM,), {}, "own parameters ask for passthrough"),
        ((VM_CLAIM, {**VM_CLAIM, "source": ""}), {}, "own parameters ask for passthrough"),
        ((OTHER_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        ((PLAIN_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        # Of several parameters of a class the last one holds.
        ((VM_CLASS, PLAIN_CLASS, VM_CLAIM), {}, "own parameters ask for passthrough"),
        # A claim may say how it wants to have what its class gives, and may not want it.
        ((VM_CLASS, VM_CLAIM), {}, VFIO),
        ((VM_CLASS, PLAIN_CLAIM), {}, "nvidia"),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("ns",)}, VFIO),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("*",)}, VFIO),
        ((VM_CLAIM,), {"passthrough_claim_namespaces": ("other",)}, "own parameters ask for passthrough"),
        ((VM_CLASS,), {"passthrough_class_namespaces": ("ns", "vms")}, VFIO),
        ((VM_CLASS,), {"passthrough_class_namespaces": ("vms",)}, "namespace ns is none of those"),
        (
            (VM_CLASS,),
            {"passthrough_class_namespaces": ("vms",), "passthrough_claim_namespaces": ("ns",)},
            VFIO,
        ),
    ],
)
def test_whose_claims_may_have_it(
    tmp_path: Path, configs: Sequence[dict[str, Any]], allowed: dict[str, Any], outcome: str
) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = claim("vm", "gpu-0")
        body["status"]["allocation"]["devices"]["config"] = list(configs)
        kube.put(RESOURCE_CLAIMS, body)
        async with agent(tmp_path, kube, machine, **allowed) as node:
            error = await call(node, "prepare", body)
            if outcome in (VFIO, "nvidia"):
                assert (error, machine.pci.driver(ONE)) == ("", outcome)
            else:
                assert outcome in error
                assert (machine.pci.driver(ONE), machine.pci.override(ONE)) == ("nvidia", "")

    asyncio.run(scenario())


def test_who_only_looks_on_needs_no_permission(tmp_path: Path) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = claim("look", "gpu-0", adminAccess=True)
        body["status"]["allocation"]["devices"]["config"] = [VM_CLAIM]
        add_claim(kube, body)
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            assert machine.pci.driver(ONE) == "nvidia"

    asyncio.run(scenario())


def test_namespaces_are_checked_at_the_start(tmp_path: Path) -> None:
    wrong = configuration(
        tmp_path,
        passthrough=True,
        passthrough_class_namespaces=("Vms",),
        passthrough_claim_namespaces=("*", "vms", ""),
    )
    assert [f.partition(":")[0] for f in wrong.findings()] == [
        "--passthrough-class-namespace 'Vms'",
        "--passthrough-claim-namespace ''",
    ]
    (finding,) = configuration(tmp_path, passthrough_claim_namespaces=("vms",)).findings()
    assert finding == "--passthrough-claim-namespace: has no effect without --passthrough"


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
        async with agent(tmp_path, kube, machine, Timing(budget=60, patience=60)) as node:
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


def test_real_sysfs_attributes_are_written_in_one_piece(tmp_path: Path) -> None:
    """On plain files: what would reach the kernel."""
    pci = FakePci(tmp_path).build({ONE: ("nvidia", "12")})
    for name in ("drivers/nvidia/unbind", "drivers_probe"):
        (pci.sysfs / "bus/pci" / name).touch()
    with pytest.raises(PrepareError, match="was to be bound to vfio-pci, but is bound to nvidia"):
        PciFunctions(pci.sysfs, pci.dev, pci.proc).bind(ONE, VFIO)
    assert (pci.sysfs / "bus/pci/drivers/nvidia/unbind").read_text() == ONE
    assert (pci.sysfs / "bus/pci/drivers_probe").read_text() == ONE
    assert pci.override(ONE).startswith(VFIO)
