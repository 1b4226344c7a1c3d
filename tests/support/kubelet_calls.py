"""The calls of the kubelet to a node agent, in both versions of the API."""

from __future__ import annotations

import json
from typing import Any

from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

VERSIONS = {
    "v1": (dra_v1_pb2, dra_v1_pb2_grpc),
    "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc),
}


async def prepare(node: Any, *claims: dict[str, Any], version: str = "v1") -> Any:
    """Ask a node agent to prepare claims; return its answers by UID."""
    pb, rpc = VERSIONS[version]
    async with node.channel() as channel:
        request = pb.NodePrepareResourcesRequest(claims=[reference(pb, c) for c in claims])
        return (await rpc.DRAPluginStub(channel).NodePrepareResources(request)).claims


async def unprepare(node: Any, *claims: dict[str, Any], version: str = "v1") -> Any:
    """Ask a node agent to unprepare claims; return its answers by UID."""
    pb, rpc = VERSIONS[version]
    async with node.channel() as channel:
        request = pb.NodeUnprepareResourcesRequest(claims=[reference(pb, c) for c in claims])
        return (await rpc.DRAPluginStub(channel).NodeUnprepareResources(request)).claims


def reference(pb: Any, body: dict[str, Any]) -> Any:
    """Return a claim as the kubelet names it."""
    meta = body["metadata"]
    return pb.Claim(namespace=meta.get("namespace", ""), name=meta["name"], uid=meta["uid"])


def checkpointed(node: Any) -> dict[str, Any]:
    """Return the claims that the checkpoint of a node agent holds, by UID."""
    claims: dict[str, Any] = json.loads(node.config.checkpoint.read_bytes())["payload"]["claims"]
    return claims
