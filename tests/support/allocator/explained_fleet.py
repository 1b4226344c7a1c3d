"""A small fleet for ``dra-driver explain``, with its claims and pods."""

from __future__ import annotations

import builders

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.cli.allocator.manifests import Manifests


def fleet(*claims: dict[str, object], pods: tuple[dict[str, object], ...] = ()) -> Manifests:
    """Three nodes with two GPUs each, the last of which is the largest; a class for all."""
    slices = [
        builders.resource_slice(f"n{i}", *(builders.device(f"gpu-{j}", f"{40 * (i + j)}Gi") for j in (0, 1)))
        for i in (1, 2, 3)
    ]
    return Manifests(
        slices=[codec.convert(ResourceSlice, s) for s in slices],
        classes=[codec.convert(DeviceClass, builders.device_class("gpu"))],
        claims=[codec.convert(ResourceClaim, c) for c in claims],
        pods=[codec.convert(Pod, p) for p in pods],
    )


def asking(name: str, memory: str, namespace: str = "ns") -> dict[str, object]:
    request = builders.request("gpu", memory=memory)
    return builders.claim(name, namespace=namespace, requests=[request])


def pod_of(name: str, claim: str, owner: str, kind: str, **labels: str) -> dict[str, object]:
    raw = builders.pod(name, claim, namespace="ns")
    reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": "u", "controller": True}
    raw["metadata"] |= {"ownerReferences": [reference], "labels": labels}
    return raw
