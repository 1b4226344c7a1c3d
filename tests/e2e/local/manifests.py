"""The driver's own manifests, for a node without GPUs that cannot pull images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from local.node_files import NodeFiles

# Of a liveness probe, until it has a container killed.
PATIENT_PROBES = 60
# Of deploy/optional. The folders there take the place of others: see ``LocalCluster.turn_on``.
OPTIONAL = ("publish-node.yaml", "rdma.yaml")
# Where the API server does not serve MutatingAdmissionPolicies: they put the gate on pods.
WEBHOOKS = "webhooks.yaml"
# The policy that keeps the devices of open pools for the controller, and its binding.
GRANTS = "dra-driver-grants"


def has_webhooks(deploy: Path) -> bool:
    """Whether there are manifests of webhooks, as not in every version before."""
    return (deploy / "optional" / WEBHOOKS).exists()


def has_grants(deploy: Path) -> bool:
    """Whether a version has open pools, and the policy that keeps them."""
    return any(GRANTS in file.read_text(encoding="utf-8") for file in (deploy / "manifests").glob("*.yaml"))


def load(deploy: Path, *, policies: bool) -> list[dict[str, Any]]:
    """All documents that are installed, of the folder ``deploy``.

    Args:
        policies: whether the API server serves MutatingAdmissionPolicies; if not, webhooks take their place.
    """
    files = sorted((deploy / "manifests").rglob("*.yaml")) + [deploy / "optional" / name for name in OPTIONAL]
    if not policies and has_webhooks(deploy):
        files.append(deploy / "optional" / WEBHOOKS)
    documents = [d for file in files for d in yaml.safe_load_all(file.read_text(encoding="utf-8")) if d]
    return [d for d in documents if policies or not d["kind"].startswith("MutatingAdmissionPolicy")]


def adapt(documents: Iterable[dict[str, Any]], image: str, node: NodeFiles) -> list[dict[str, Any]]:
    """The documents with our image, and the node agents with simulated hardware; all else as it was.

    The controller handles every driver that a node agent among the documents publishes for.
    Changes the documents in place.

    Raises:
        ValueError: no node agent is among them, so that the hardware would have gone nowhere.
    """
    adapted = list(documents)
    controllers: list[dict[str, Any]] = []
    drivers: list[str] = []
    for document in adapted:
        if document["kind"] not in ("DaemonSet", "Deployment"):
            continue
        pod = document["spec"]["template"]["spec"]
        for container in pod["containers"]:
            container["image"] = image
            container["imagePullPolicy"] = "Never"
            if "livenessProbe" in container:
                # On a busy machine a process needs minutes to start; killed before, it never does.
                container["livenessProbe"] = {
                    **container["livenessProbe"],
                    "failureThreshold": PATIENT_PROBES,
                }
            if container["command"][:2] == ["dra-driver", "controller"]:
                controllers.append(container)
            if container["command"][:2] == ["dra-driver", "kubelet-plugin"]:
                drivers += [a.partition("=")[2] for a in container["args"] if a.startswith("--driver-name=")]
                container["args"] = [*container["args"], *node.arguments(drivers[-1])]
                mount = {"name": "e2e-files", "mountPath": str(node.folder), "readOnly": True}
                # As the agent sees the host's files: the driver that a container brings lies there.
                host = {**mount, "mountPath": f"/host{node.folder}"}
                container["volumeMounts"] = [*container["volumeMounts"], mount, host]
                volume = {"name": "e2e-files", "hostPath": {"path": str(node.folder), "type": "Directory"}}
                pod["volumes"] = [*(v for v in pod["volumes"] if v["name"] != "e2e-files"), volume]
    if not drivers:
        raise ValueError("no container of the manifests runs [dra-driver, kubelet-plugin]")
    for container in controllers:
        others = [a for a in container["args"] if not a.startswith("--driver-name=")]
        container["args"] = [*others, *(f"--driver-name={d}" for d in drivers)]
    return adapted
