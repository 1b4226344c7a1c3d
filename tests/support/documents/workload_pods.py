"""Pods of workloads (``deploy/workloads``) as their controllers would make them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from paths import PROJECT

__all__ = ["WORKLOADS", "manifests", "objects_of"]

WORKLOADS: Final = PROJECT / "deploy" / "workloads"
# What the embedded API server does not have, or nothing looks at.
_NOT_RUN: Final = {"Service"}


def manifests() -> list[Path]:
    """Return the folders of the workloads, in their order."""
    return sorted(path for path in WORKLOADS.iterdir() if path.is_dir())


def objects_of(folder: Path, image: str, command: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a workload, with pods in place of what makes pods.

    Args:
        folder: of the workload.
        image: for all containers, in place of the real one.
        command: for the shell of the image, in place of the real one.
    """
    for path in sorted(folder.glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            pods = list(_pods(body))
            for pod in pods:
                yield _standing_in(pod, image, command)
            if not pods and body["kind"] not in _NOT_RUN:
                yield body


def _pods(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    meta, spec = body["metadata"], body.get("spec", {})
    if body["kind"] == "Pod":
        yield copy.deepcopy(body)
    elif body["kind"] == "Deployment":
        yield from _copies(meta["name"], meta, spec["template"], spec["replicas"])
    elif body["kind"] == "Job":
        yield from _copies(meta["name"], meta, spec["template"], spec.get("parallelism", 1))
    elif body["kind"] == "JobSet":
        for job in spec["replicatedJobs"]:
            for index in range(job["replicas"]):
                inner = job["template"]["spec"]
                name = f"{meta['name']}-{job['name']}-{index}"
                yield from _copies(name, meta, inner["template"], inner["parallelism"])
    elif body["kind"] == "RayCluster":
        yield from _copies(f"{meta['name']}-head", meta, spec["headGroupSpec"]["template"], 1)
        for group in spec["workerGroupSpecs"]:
            name = f"{meta['name']}-{group['groupName']}"
            yield from _copies(name, meta, group["template"], group["replicas"])


def _copies(
    name: str, meta: dict[str, Any], template: dict[str, Any], number: int
) -> Iterator[dict[str, Any]]:
    for index in range(number):
        pod = copy.deepcopy(template)
        own = {"name": f"{name}-{index}", "namespace": meta["namespace"]}
        yield {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod.get("metadata", {}), **own}}


def _standing_in(pod: dict[str, Any], image: str, command: str) -> dict[str, Any]:
    pod["spec"]["restartPolicy"] = "Never"
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    pod["spec"].pop("volumes", None)
    for container in pod["spec"]["containers"]:
        # A node of two processors has no room for what the real programs need.
        resources = {"claims": container.get("resources", {}).get("claims", [])}
        kept = {"name": container["name"], "resources": resources}
        container.clear()
        container.update(kept, image=image, command=["sh", "-c", command])
    return pod
