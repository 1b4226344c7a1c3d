"""Claims for devices of every vendor through the node agent: what the container is given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import hardware_support as hw
import pytest
from fake_client import FakeClient
from node_agent import add_claim, claim, inventory, running

from dra_driver import cdi
from dra_driver.discovery import open_backend
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc


@pytest.mark.parametrize(
    ("spec", "backend", "devices", "nodes"),
    [
        (
            "mi300x-cpx",
            "amdgpu",
            ("gpu-0000-05-00-0-cpx-0", "gpu-0000-27-00-0-cpx-7"),
            {"/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card15", "/dev/dri/renderD143"},
        ),
        (
            "flex",
            "intel",
            ("gpu-0000-9a-00-1",),
            {
                "/dev/dri/card2",
                "/dev/dri/renderD130",
                "/dev/dri/by-path/pci-0000:9a:00.1-card",
                "/dev/dri/by-path/pci-0000:9a:00.1-render",
            },
        ),
        (
            "connectx7",
            "rdma",
            ("nic-0000-1a-00-0", "nic-0000-9c-00-0"),
            {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"},
        ),
    ],
)
def test_a_container_gets_the_nodes_of_what_was_allocated(
    spec: str, backend: str, devices: tuple[str, ...], nodes: set[str], tmp_path: Path
) -> None:
    root = hw.machine(tmp_path, spec)
    opened = open_backend(backend, sysfs_root=root / "sys", dev_root=root / "dev", node_name="node-a")

    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", *devices))
        uid = body["metadata"]["uid"]
        async with running(tmp_path, kube, backend=opened, settings={"dev_root": root / "dev"}) as node:
            stored = inventory(kube)
            assert stored is not None
            assert set(devices) <= {d["name"] for d in stored["spec"]["devices"]}
            async with node.channel() as channel:
                request = dra_v1_pb2.NodePrepareResourcesRequest(
                    claims=[dra_v1_pb2.Claim(namespace="ns", name="one", uid=uid)]
                )
                answer = (await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request)).claims[
                    uid
                ]
            assert answer.error == ""
            (name,) = node.specs()
            document = cdi.decode((node.config.cdi_dir / name).read_bytes())
            assert cdi.validate(document) == ()
            given = {n.path for n in document.container_edits.device_nodes}
            given |= {n.path for d in document.devices for n in d.container_edits.device_nodes}
            assert given == nodes

    asyncio.run(main())
