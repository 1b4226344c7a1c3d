"""Device metadata files of claims (KEP-5304)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from node_agent import DRIVER, NODE, Node, add_claim, claim, device, running

from dra_driver.api.names import POD_CLAIM_ANNOTATION
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc


async def call(node: Node, body: dict[str, Any], verb: str = "Prepare") -> None:
    meta = body["metadata"]
    request = getattr(dra_v1_pb2, f"Node{verb}ResourcesRequest")(
        claims=[dra_v1_pb2.Claim(namespace="ns", name=meta["name"], uid=meta["uid"])]
    )
    async with node.channel() as channel:
        answer = await getattr(dra_v1_pb2_grpc.DRAPluginStub(channel), f"Node{verb}Resources")(request)
    assert answer.claims[meta["uid"]].error == ""


def mounts(node: Node) -> list[dict[str, Any]]:
    (name,) = node.specs()
    spec = json.loads((node.config.cdi_dir / name).read_bytes())
    return [m for d in spec["devices"] for m in d["containerEdits"].get("mounts", [])]


def files(node: Node) -> list[str]:
    root = node.config.metadata_dir
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_containers_read_what_they_were_given(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("mine", "gpu-0"))
        uid = body["metadata"]["uid"]
        async with running(tmp_path, kube, [device(0)]) as node:
            await call(node, body)
            (mount,) = mounts(node)
            assert mount["containerPath"] == (
                f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mine/gpu/{DRIVER}-metadata.json"
            )
            assert "ro" in mount["options"]
            file = Path(mount["hostPath"])
            assert file == node.config.metadata_dir / uid / "gpu" / "metadata.json"
            assert file.stat().st_mode & 0o777 == 0o644
            newest, oldest = [json.loads(line) for line in file.read_text().splitlines()]
            assert newest["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
            assert oldest["apiVersion"] == "metadata.resource.k8s.io/v1alpha1"
            assert {**newest, "apiVersion": ""} == {**oldest, "apiVersion": ""}
            assert newest["kind"] == "DeviceMetadata"
            assert newest["metadata"] == {"name": "mine", "namespace": "ns", "uid": uid, "generation": 1}
            (request,) = newest["requests"]
            assert request["name"] == "gpu"
            (found,) = request["devices"]
            assert (found["driver"], found["pool"], found["name"]) == (DRIVER, NODE, "gpu-0")
            assert found["attributes"] == {"model": {"string": "A100"}, "uuid": {"string": "GPU-0"}}
            await call(node, body, "Unprepare")
            assert files(node) == []
            assert list(node.config.metadata_dir.iterdir()) == []

    asyncio.run(main())


@pytest.mark.parametrize("pod_claim", ["gpu-claim", "../../../etc", "a/b", "x" * 64, ""])
def test_claims_of_templates_are_found_by_the_name_in_the_pod(tmp_path: Path, pod_claim: str) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = claim("made-xyz", "gpu-0")
        body["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: pod_claim}
        add_claim(kube, body)
        async with running(tmp_path, kube, [device(0)]) as node:
            await call(node, body)
            (mount,) = mounts(node)
            place = mount["containerPath"].removeprefix("/var/run/kubernetes.io/dra-device-attributes/")
            # What is no name of a claim in a pod never becomes part of a path.
            wanted = (
                "resourceclaimtemplates/gpu-claim" if pod_claim == "gpu-claim" else "resourceclaims/made-xyz"
            )
            assert place == f"{wanted}/gpu/{DRIVER}-metadata.json"

    asyncio.run(main())


def test_a_restart_mends_files_and_removes_those_of_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("mine", "gpu-0"))
        async with running(tmp_path, kube, [device(0)]) as node:
            await call(node, body)
            (name,) = files(node)
            file = node.config.metadata_dir / name
            content = file.read_bytes()
            file.write_bytes(b"")
            stray = node.config.metadata_dir / "0000" / "gpu" / "metadata.json"
            stray.parent.mkdir(parents=True)
            stray.write_bytes(b"{}")
        async with running(tmp_path, kube, [device(0)]) as node:
            assert files(node) == [name]
            assert file.read_bytes() == content

    asyncio.run(main())


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("mine", "gpu-0"))
        async with running(tmp_path, kube, [device(0)], settings={"device_metadata": False}) as node:
            await call(node, body)
            assert mounts(node) == []
            assert not node.config.metadata_dir.exists()

    asyncio.run(main())
