"""A node whose GPUs are taken from their driver and given back: its PCI bus, and claims that ask for that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from fake_client import FakeClient
from fake_pci import FakePci
from node_agent import DRIVER, NODE, PATIENT, Node, add_claim, claim, device, inventory, running

from dra_driver.api import names
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.api.resource import RESOURCE_CLAIMS, DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core.bus.pci_binding import PciFunctions
from dra_driver.hardware import DiscoveredDevice
from dra_driver.preparation import PreparedClaim, plan
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.devices.table import DeviceTable

ONE, TWO = "0000:3b:00.0", "0000:86:00.0"
SOUND = "0000:3b:00.1"
CONFIG = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "driver": "vfio-pci"}


def functions(pci: FakePci) -> PciFunctions:
    return PciFunctions(pci.sysfs, pci.dev, pci.proc, write=pci.write)


class Machine:
    """GPUs that discovery finds while NVIDIA's driver has them, as NVML does."""

    name = "test"

    def __init__(
        self, root: Path, others: Mapping[str, tuple[str, str]] | None = None, **kernel: Any
    ) -> None:
        gpus = {ONE: ("nvidia", "12"), TWO: ("nvidia", "40")}
        self.pci = FakePci(root).build({**gpus, **(others or {})}, **kernel)
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


def agent(root: Path, kube: FakeClient, machine: Machine, timing: Timing = PATIENT, **settings: Any) -> Any:
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
