"""The calls of the kubelet to a node agent, in both versions of the API."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
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
    claims: dict[str, Any] = records(node.config.checkpoint)
    return claims


def records(path: Path) -> dict[str, Any]:
    """Return the claims that a checkpoint holds, by UID, read without the product's code.

    The file counts where it is; otherwise the document before it does, with the journal's changes.
    """
    if path.exists():
        return dict(json.loads(path.read_bytes())["payload"]["claims"])
    document = json.loads(path.with_name(f"{path.name}.previous").read_bytes())
    claims = dict(document["payload"]["claims"])
    last = document["checksum"]
    for line in path.with_name(f"{path.name}.journal").read_bytes().split(b"\n")[:-1]:
        digest, _, entry = line.partition(b" ")
        assert digest.decode() == hashlib.sha256(last.encode() + b" " + entry).hexdigest()
        last = digest.decode()
        for uid, record in json.loads(entry)["claims"].items():
            if record is None:
                claims.pop(uid, None)
            else:
                claims[uid] = record
    return claims
