"""What a node's credential may not do; only a real API server has RBAC and admission policies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dra_driver.api.core import NODES
from dra_driver.api.names import DEFAULT_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import DraError
from dra_driver.kube import KubeApi

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.environ.get("CLUSTER", "embedded") == "embedded",
        reason="the embedded API server has neither RBAC nor this admission policy",
    ),
]

OTHER = "dra-e2e-other-node"
ACCOUNT = "dra-driver-kubelet-plugin"


@pytest.fixture(scope="module")
def node(background: Background, cluster: Cluster) -> Iterator[str]:
    """The real node; beside it stands one that has no kubelet."""
    found = [n.metadata.name for n in background.run(cluster.api.list(NODES)).items]
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    background.run(cluster.api.create(NODES, {**body, "spec": {"unschedulable": True, "taints": [taint]}}))
    try:
        yield found[0]
    finally:
        background.run(cluster.api.delete(NODES, OTHER))


@pytest.fixture(scope="module")
def stranger(
    background: Background, cluster: Cluster, node: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KubeApi]:
    """A client with the node agent's credential of the other node."""

    async def token() -> str:
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        uid = (await cluster.api.get(NODES, OTHER)).metadata.uid
        reference = {"kind": "Node", "apiVersion": "v1", "name": OTHER, "uid": uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": None, "expirationSeconds": 600, "boundObjectRef": reference},
        }
        answer = yaml.safe_load(await cluster.api._call("POST", path, body=body))
        return str(answer["status"]["token"])

    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"][0]["user"] = {"token": background.run(token())}
    file = tmp_path_factory.mktemp("stranger") / "kubeconfig"
    file.write_text(yaml.safe_dump(config))

    async def connect() -> KubeApi:
        return await KubeApi.connect(file)

    api = background.run(connect())
    yield api
    background.run(api.close())


def inventory(node: str, owner: str) -> dict[str, Any]:
    return {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DeviceInventory",
        "metadata": {"name": f"{owner}.{DEFAULT_DRIVER_NAME}"},
        "spec": {"nodeName": node, "driver": DEFAULT_DRIVER_NAME, "devices": []},
    }


async def refusal(attempt: Any) -> str:
    try:
        await attempt
    except DraError as e:
        return str(e)
    return "it was allowed"


def test_a_node_agent_writes_its_own_inventory(
    background: Background, cluster: Cluster, stranger: KubeApi
) -> None:
    async def scenario() -> None:
        await stranger.create(DEVICE_INVENTORIES, inventory(OTHER, OTHER))
        await cluster.api.delete(DEVICE_INVENTORIES, f"{OTHER}.{DEFAULT_DRIVER_NAME}")

    background.run(scenario())


def test_a_node_agent_may_not_write_anything_of_another_node(
    background: Background, cluster: Cluster, stranger: KubeApi, node: str
) -> None:
    async def scenario() -> None:
        name = f"{node}.{DEFAULT_DRIVER_NAME}"
        before = await cluster.api.get(DEVICE_INVENTORIES, name)
        changed: dict[str, Any] = {"spec": {"devices": []}}
        attempts = {
            "update": stranger.merge_patch(DEVICE_INVENTORIES, name, changed),
            "delete": stranger.delete(DEVICE_INVENTORIES, name),
            "create": stranger.create(DEVICE_INVENTORIES, inventory(node, OTHER)),
        }
        for what, attempt in attempts.items():
            assert "may not" in (said := await refusal(attempt)) or "forbidden" in said.lower(), (
                f"{what}: {said}"
            )
        after = await cluster.api.get(DEVICE_INVENTORIES, name)
        assert after.metadata.uid == before.metadata.uid
        assert after.spec == before.spec

    background.run(scenario())


def test_a_node_agent_has_no_write_access_to_slices_and_claims(
    background: Background, cluster: Cluster, stranger: KubeApi
) -> None:
    async def scenario() -> None:
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        said = await refusal(stranger.delete(RESOURCE_SLICES, slices[0].metadata.name))
        assert "forbidden" in said.lower()
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "x", "namespace": "default"},
            "spec": {"devices": {}},
        }
        assert "forbidden" in (await refusal(stranger.create(RESOURCE_CLAIMS, claim))).lower()

    background.run(scenario())
