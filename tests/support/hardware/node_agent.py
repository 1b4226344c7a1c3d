"""What the tests of the node agent share: devices, claims, a plugin on directories of its own, a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
from fake_client import FakeClient

from dra_driver.api.core import NODES
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, InventoryDevice, inventory_name
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import RESOURCE_CLAIMS, DeviceAttribute, DeviceCapacity
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.hardware import DiscoveredDevice
from dra_driver.wire import health_v1alpha1_pb2, pluginregistration_pb2, pluginregistration_pb2_grpc
from kubelet_plugin.app import Plugin
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.config import Configuration, Timings

NODE = "node-a"
DRIVER = "gpu.dra-driver.dev"
# What is waited for comes, however busy the machine is.
PATIENT = Timing(budget=60.0, patience=60.0)
# For calls that are to be refused, and no others: what they wait for does not come.
IMPATIENT = Timing(budget=60.0, patience=0.2)
# Many tests end while there is no API server.
SOON_GONE = Timings(withdrawal=0.3)


def device(index: int, *, uuid_: str = "", memory: str = "40Gi") -> DiscoveredDevice:
    """A GPU as discovery reports it."""
    identity = uuid_ or f"GPU-{index}"
    return DiscoveredDevice(
        device=InventoryDevice(
            name=f"gpu-{index}",
            attributes={
                "uuid": DeviceAttribute(string_value=identity),
                "model": DeviceAttribute(string_value="A100"),
            },
            capacity={"memory": DeviceCapacity(value=Quantity.parse(memory))},
        ),
        uuid=identity,
        material=ContainerEdits(device_nodes=(DeviceNode("/dev/ctl"), DeviceNode(f"/dev/gpu{index}"))),
    )


def nvidia_nodes(root: Path) -> None:
    """Eight GPUs in ``root/dev``, and the capabilities that ``root/proc`` has numbers for, as files."""
    names = [f"nvidia{n}" for n in range(8)]
    table = root / "proc/driver/nvidia-caps/mig-minors"
    lines = table.read_text().splitlines() if table.exists() else []
    names += [f"nvidia-caps/nvidia-cap{line.split()[1]}" for line in lines]
    (root / "dev").mkdir(exist_ok=True)
    if not (root / "dev/nvidia-caps").is_file():
        (root / "dev/nvidia-caps").mkdir(exist_ok=True)
    for name in names:
        if not (root / "dev" / name).parent.is_dir():
            continue  # the test wants no capability nodes on the host
        (root / "dev" / name).touch()


class Backend:
    """Devices that a test sets."""

    name = "test"
    simulated = True

    def __init__(self, devices: Sequence[DiscoveredDevice]) -> None:
        self.devices = tuple(devices)
        self.closed = False

    def discover(self) -> Sequence[DiscoveredDevice]:
        return self.devices

    def close(self) -> None:
        self.closed = True


def claim(
    name: str,
    *devices: str,
    uid: str = "",
    driver: str = DRIVER,
    pool: str = NODE,
    request: str = "gpu",
    **more: Any,
) -> dict[str, Any]:
    """An allocated claim as the API server has it; more goes into each result."""
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or str(uuid.uuid4())},
        "spec": {"devices": {"requests": [{"name": request, "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": request, "driver": driver, "pool": pool, "device": d, **more}
                        for d in devices
                    ]
                }
            }
        },
    }


def add_claim(kube: FakeClient, body: dict[str, Any]) -> dict[str, Any]:
    """Stores a claim."""
    return kube.put(RESOURCE_CLAIMS, body)


def inventory(kube: FakeClient) -> dict[str, Any] | None:
    """The node's inventory as stored."""
    return kube.find(DEVICE_INVENTORIES, inventory_name(NODE, DRIVER))


def configuration(root: Path, **more: Any) -> Configuration:
    """Directories below ``root``."""
    return Configuration(
        node_name=NODE,
        driver_name=DRIVER,
        plugins_dir=root / "plugins",
        registry_dir=root / "registry",
        cdi_dir=root / "cdi",
        **{
            "rescan_seconds": 3600.0,
            "pod_resources_socket": root / "pod-resources.sock",
            "cgroup_root": root / "cgroup",
            **more,
        },
    )


async def eventually(condition: Any, seconds: float = 60.0) -> Any:
    """Waits until ``condition()`` is true, and gives what it gave."""
    async with asyncio.timeout(seconds):
        while not (value := condition()):
            await asyncio.sleep(0.01)
        return value


HealthStream = grpc.aio.UnaryStreamCall[
    health_v1alpha1_pb2.NodeWatchResourcesRequest, health_v1alpha1_pb2.NodeWatchResourcesResponse
]


async def next_health(stream: HealthStream) -> health_v1alpha1_pb2.NodeWatchResourcesResponse | None:
    """The next message of the health stream; None when the agent has ended it."""
    message = await stream.read()
    return message if isinstance(message, health_v1alpha1_pb2.NodeWatchResourcesResponse) else None


class Node:
    """A running plugin and a kubelet's side of its sockets."""

    def __init__(self, plugin: Plugin, kube: FakeClient, config: Configuration, stop: asyncio.Event) -> None:
        self.plugin = plugin
        self.kube = kube
        self.config = config
        self.stop = stop

    @contextlib.asynccontextmanager
    async def channel(self, path: Path | None = None) -> AsyncIterator[grpc.aio.Channel]:
        """To the DRA socket, or another one."""
        async with grpc.aio.insecure_channel(f"unix:{path or self.config.dra_socket}") as channel:
            yield channel

    async def register(self) -> pluginregistration_pb2.PluginInfo:
        """What the kubelet does when it finds the registrar."""
        async with self.channel(self.config.registrar_socket) as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(pluginregistration_pb2.InfoRequest())
            await stub.NotifyRegistrationStatus(
                pluginregistration_pb2.RegistrationStatus(plugin_registered=True)
            )
            return info

    def specs(self) -> list[str]:
        """Names in the CDI directory."""
        return sorted(p.name for p in self.config.cdi_dir.iterdir())


@contextlib.asynccontextmanager
async def running(
    root: Path, kube: FakeClient, devices: Sequence[DiscoveredDevice] = (), **more: Any
) -> AsyncIterator[Node]:
    """A plugin that is ready; it has ended when the block ends.

    ``more``: ``timing``, ``timings``, ``intervals``, ``backend`` or ``backends`` in place of the devices,
    ``functions`` of a PCI bus, ``settings`` of the configuration.
    """
    if kube.find(NODES, NODE) is None:
        kube.put(NODES, {"metadata": {"name": NODE}})
    config = configuration(root, **more.get("settings", {}))
    assert config.findings() == ()
    plugin = Plugin(
        config,
        client=kube,
        backends=more.get("backends") or [more.get("backend") or Backend(devices)],
        timing=more.get("timing", PATIENT),
        timings=more.get("timings", SOON_GONE),
        intervals=more.get("intervals"),
        settle_seconds=0.05,
        functions=more.get("functions"),
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(plugin.run(stop))
        ready = tasks.create_task(plugin.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not task.done():
            try:
                if not kube.down:
                    table = plugin._table
                    await eventually(lambda: all(d.published_uuid for d in table.for_prepare.values()))
                yield Node(plugin, kube, config, stop)
            finally:
                stop.set()
