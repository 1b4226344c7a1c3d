"""Partitions that no claim holds: what of them is destroyed at a start, where that is wanted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from node_agent import NODE, Node, add_claim, claim, eventually, running

from dra_driver.api.core import EVENTS, NODES
from dra_driver.discovery import open_backend
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc
from kubelet_plugin.gpu.owned_partitions import FILE, MANAGER_LABELS, owner

FREE, HELD = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
MANAGED = {"metadata": {"name": NODE, "labels": {MANAGER_LABELS[0]: "all-1g.10gb"}}}


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder)


def agent(root: Path, state: Path, kube: FakeClient, **more: Any) -> AbstractAsyncContextManager[Node]:
    roots = {"sysfs_root": root / "sys", "dev_root": root / "dev"}
    backend = open_backend("simulated=dgx-h100", **roots, node_name=NODE)
    return running(root, kube, backend=backend, settings={"state_dir": state, **more})


def control(node: Node) -> Any:
    return next(c for c in node.plugin._setup.controls if c is not None)


def uuid_of(node: Node, name: str) -> str:
    return next(d.uuid for d in node.plugin._table.devices if d.device.name == name)


def made(node: Node) -> dict[str, int]:
    """How many partitions there are, by the name of their GPU."""
    found = {d.device.name: len(control(node).instances(d.uuid)) for d in node.plugin._table.devices}
    return {name: count for name, count in found.items() if count}


async def leave_some(root: Path, state: Path, kube: FakeClient) -> tuple[str, str]:
    """A claim's partition and one that is nobody's; returns the UUIDs of the latter's GPU and of itself."""
    body = add_claim(kube, claim("one", f"{HELD}-mig-3g-40gb-0"))
    async with agent(root, state, kube) as node:
        reference = dra_v1_pb2.Claim(namespace="ns", name="one", uid=body["metadata"]["uid"])
        async with node.channel() as channel:
            answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
            )
        assert answer.claims[body["metadata"]["uid"]].error == ""
        gpu = uuid_of(node, FREE)
        control(node).set_partitioning(gpu, True)
        instance = control(node).create_instance(gpu, 9, 0, 4)
        return gpu, str(instance.uuid)


def test_a_partition_that_is_nobodys_is_destroyed_where_that_is_wanted(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        async with agent(tmp_path, state, kube) as node:
            assert made(node) == {FREE: 1, HELD: 1}
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node) == {HELD: 1}
            await eventually(lambda: "PartitionDestroyed" in {e.reason for e in kube.all(EVENTS)})

    asyncio.run(life())


@pytest.mark.parametrize("listed", ["gpu", "instance"])
def test_what_the_administrator_lists_stays(tmp_path: Path, state: Path, listed: str) -> None:
    async def life() -> None:
        kube = FakeClient()
        gpu, instance = await leave_some(tmp_path, state, kube)
        (state / FILE).write_text(f"# of team a\n{gpu if listed == 'gpu' else instance}  # node 7\n\n")
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node) == {FREE: 1, HELD: 1}

    asyncio.run(life())


def test_a_list_that_cannot_be_understood_keeps_everything(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        (state / FILE).write_text("all of them\n")
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node) == {FREE: 1, HELD: 1}

    asyncio.run(life())


def test_what_a_manager_of_the_node_made_stays(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        kube.put(NODES, MANAGED)
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node) == {FREE: 1, HELD: 1}

    asyncio.run(life())


def test_nothing_is_destroyed_while_the_owner_cannot_be_learned(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        kube.down = True
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node) == {FREE: 1, HELD: 1}

    asyncio.run(life())


def test_nothing_is_destroyed_where_records_of_claims_were_lost(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        for file in state.glob("checkpoint.json*"):
            file.write_text("garbage")
        async with agent(tmp_path, state, kube, destroy_unowned_partitions=True) as node:
            assert made(node).get(FREE) == 1

    asyncio.run(life())


def test_nothing_is_destroyed_beside_another_agent(tmp_path: Path, state: Path) -> None:
    """During an update: what the other one prepares just now may not be known here."""

    async def life() -> None:
        kube = FakeClient()
        await leave_some(tmp_path, state, kube)
        async with (
            agent(tmp_path, state, kube, instance_id="a"),
            agent(tmp_path, state, kube, instance_id="b", destroy_unowned_partitions=True) as node,
        ):
            assert made(node) == {FREE: 1, HELD: 1}

    asyncio.run(life())


@pytest.mark.parametrize("text", ["two words\n", "\0\n", "x" * 200, "-x\n"])
def test_a_list_is_read_strictly(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    instance = GpuInstance(instance_id=1, profile_id=9, start=0, size=4, uuid="MIG-1", device_nodes=())
    with pytest.raises(PrepareError, match="expected one per line"):
        owner("GPU-1", instance, labels={}, file=tmp_path / FILE)
