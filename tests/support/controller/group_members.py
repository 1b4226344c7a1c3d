"""Members of groups on a fake cluster, and what kube-scheduler does with them."""

from __future__ import annotations

from typing import Any

from controller_harness import NS, Harness, claim, pod, request
from fake_client import FakeClient

from dra_driver.api.core import NODES, PODS
from dra_driver.api.names import (
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.api.resource import RESOURCE_CLAIMS

__all__ = ["allocate", "allocated", "member", "racks"]


def member(
    cluster: FakeClient,
    name: str,
    size: int | str = 3,
    *,
    on: str = "pod",
    group: str = "job",
    count: int = 1,
    least: int | str = "",
    domain: str = "",
    some_run: str = "",
    **spec: Any,
) -> None:
    """Make a pod with a claim, of which one carries the labels (``on``)."""
    labels = {GROUP_LABEL: group, GROUP_SIZE_LABEL: str(size), GROUP_MIN_LABEL: str(least)}
    annotations = {GROUP_DOMAIN_ANNOTATION: domain, GROUP_SOME_RUN_ANNOTATION: some_run}
    metadata = {
        "labels": {k: v for k, v in labels.items() if v},
        "annotations": {k: v for k, v in annotations.items() if v},
    }
    claim(cluster, name, request(count=count))
    if on == "claim":
        cluster.edit(RESOURCE_CLAIMS, name, {"metadata": metadata}, NS)
    pod(cluster, name, name, **spec)
    if on == "pod":
        cluster.edit(PODS, name, {"metadata": metadata}, NS)


def allocate(cluster: FakeClient, name: str, node: str, device: str) -> None:
    """Allocate a claim, as a controller did that has ended."""
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": node, "device": device}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {"allocation": allocation}}, NS)


def allocated(h: Harness, names: str) -> str:
    """Return those of the names whose claims are allocated."""
    return "".join(name for name in names if h.devices(name))


def racks(cluster: FakeClient, **names: str) -> None:
    """Label nodes with their racks."""
    for name, rack in names.items():
        cluster.edit(NODES, name, {"metadata": {"labels": {"rack": rack}}})
