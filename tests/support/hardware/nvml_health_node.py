"""A node agent on the NVML stub that sees a GPU fall ill, in a process of its own.

It prepares two partitions of one GPU and the other GPU as a whole, lets the first GPU report XID 79, then has
its library opened anew. What the kubelet is told after each is a JSON line.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from fake_client import FakeClient
from node_agent import add_claim, claim, eventually, nvidia_nodes, running

from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.cli import common
from dra_driver.discovery import open_backend
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc

DEVICES = ("gpu-0000-07-00-0-mig-3g-40gb-4", "gpu-0000-07-00-0-mig-1g-10gb-0", "gpu-0000-08-00-0")


async def _told(node: Any, kube: FakeClient) -> dict[str, Any]:
    async with node.channel() as channel:
        stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
        message = await stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest()).read()
    conditions = {}
    for device in DEVICES:
        stored = kube.raw(RESOURCE_CLAIMS, device, "ns")
        conditions[device] = [
            [c["status"], c["reason"]] for d in stored["status"].get("devices", ()) for c in d["conditions"]
        ]
    metrics = node.plugin.observation.metrics.render(await node.plugin.observation.samples()).decode()
    return {
        "stream": {d.device.device_name: d.health for d in message.devices},
        "conditions": conditions,
        "xids": [x for x in metrics.splitlines() if x.startswith("dra_driver_device_xid_errors_total")],
    }


async def main(root: Path) -> None:
    """Lives."""
    common.configure_logging("error", "json")
    kube = FakeClient()
    backend = open_backend("nvml", sysfs_root=root / "sys", dev_root=root / "dev", node_name="node-a")
    settings = {"procfs_root": root / "proc", "dev_root": root / "dev"}
    nvidia_nodes(root)
    async with running(root, kube, backend=backend, settings=settings) as node:
        for device in DEVICES:
            body = add_claim(kube, claim(device, device))
            reference = dra_v1_pb2.Claim(namespace="ns", name=device, uid=body["metadata"]["uid"])
            async with node.channel() as channel:
                answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                    dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
                )
            assert not answer.claims[reference.uid].error, answer
        print(json.dumps(await _told(node, kube)))
        config = root / "nvml.conf"
        before = config.read_text()
        # The lines of the second GPU begin with the second "gpu".
        first, _, second = before.rpartition("gpu\n")
        temporary = root / "nvml.conf.new"
        temporary.write_text(f"{first}event 1 8 79\ngpu\n{second}")
        temporary.rename(config)
        await eventually(lambda: len(kube.applied) == 2)
        print(json.dumps(await _told(node, kube)))
        await asyncio.get_running_loop().run_in_executor(None, backend.close)
        await node.plugin._table.scan()
        await eventually(lambda: len(kube.applied) == 4)
        print(json.dumps(await _told(node, kube)))
