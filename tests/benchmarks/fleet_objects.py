"""Nodes, pods, inventories and claims of the size that they have in real clusters: for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dra_driver.api import codec
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import API_VERSION, inventory_name
from dra_driver.discovery.registry import open_backend

NAMESPACE = "default"
NODES = "/api/v1/nodes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
INVENTORIES = "/apis/dra-driver.dev/v1alpha1/deviceinventories"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates"
CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME}}]}}
_TIME = "2026-01-01T00:00:00Z"


def node_name(i: int) -> str:
    """Of the i-th node."""
    return f"ip-10-{i // 65536}-{i // 256 % 256}-{i % 256}.eu-central-1.compute.internal"


def _managed(manager: str, fields: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _owned(value: Any) -> Any:
    """``fieldsV1`` of a value."""
    if isinstance(value, dict):
        return {".": {}, **{f"f:{k}": _owned(v) for k, v in value.items()}}
    return {}


def node(i: int) -> dict[str, Any]:
    """A node as its kubelet keeps it: conditions, 50 images, managed fields; 14 kB."""
    name = node_name(i)
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "p5.48xlarge",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": f"eu-central-1{'abc'[i % 3]}",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{x}": "true" for x in ("AVX2", "AVX512F", "AMXINT8")},
    }
    amounts = {
        "cpu": "192",
        "ephemeral-storage": "3812345678901",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "2097152000Ki",
        "pods": "250",
    }
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "lastHeartbeatTime": _TIME,
            "lastTransitionTime": _TIME,
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says about {kind} what kubelets say about it, in a sentence of this length",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
    ]
    images = [
        {
            "names": [
                f"registry.example.com/team-{x % 7}/service-{x}@sha256:{x:064x}",
                f"registry.example.com/team-{x % 7}/service-{x}:v1.{x}.0",
            ],
            "sizeBytes": 100_000_000 + x,
        }
        for x in range(50)
    ]
    info = {
        "machineID": f"{i:032x}",
        "systemUUID": f"{i:032x}",
        "bootID": f"{i:032x}",
        "kernelVersion": "6.12.20-amd64",
        "osImage": "Debian GNU/Linux 13 (trixie)",
        "containerRuntimeVersion": "containerd://2.1.4",
        "kubeletVersion": "v1.36.2",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": info,
        "images": images,
    }
    by_type = {f'k:{{"type":"{c["type"]}"}}': _owned(c) for c in conditions}
    fields = {"f:status": {"f:conditions": by_type, "f:images": {}, "f:nodeInfo": _owned(info)}}
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            "managedFields": [
                _managed("kubelet", {"f:metadata": {"f:labels": _owned(labels)}}),
                _managed("kubelet", fields, "status"),
            ],
        },
        "spec": {"providerID": f"aws:///eu-central-1a/i-{i:017x}", "podCIDR": "10.244.0.0/24"},
        "status": status,
    }


def pod(name: str, on: str = "", claim: dict[str, str] | None = None, cpu: str = "250m") -> dict[str, Any]:
    """A pod as a Deployment makes it, 4 kB; ``claim`` is its entry of ``resourceClaims``, and gated."""
    env = [{"name": f"SETTING_{x}", "value": f"value-of-the-setting-{x}"} for x in range(20)]
    container: dict[str, Any] = {
        "name": "main",
        "image": f"registry.example.com/team/service@sha256:{1:064x}",
        "imagePullPolicy": "IfNotPresent",
        "env": env,
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": cpu, "memory": "512Mi"},
            "limits": {"memory": "512Mi"},
            **({"claims": [{"name": "gpu"}]} if claim else {}),
        },
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
        ],
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "serviceAccountName": "default",
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": f"node.kubernetes.io/{x}", "operator": "Exists", "effect": "NoExecute"}
            for x in ("not-ready", "unreachable")
        ],
        "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": []}}],
    }
    if on:
        spec["nodeName"] = on
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", **claim}]
        spec["schedulingGates"] = [{"name": ALLOCATION_GATE}]
    fields = {"f:spec": {"f:containers": {'k:{"name":"main"}': _owned(container)}, **_owned(spec)}}
    return {
        "metadata": {
            "name": name,
            "labels": {"app": name.rpartition("-")[0], "pod-template-hash": "6d4b75cb6d"},
            "annotations": {"example.com/checksum": f"{1:064x}"},
            "managedFields": [_managed("kube-controller-manager", fields)],
        },
        "spec": spec,
    }


def running(on: str) -> dict[str, Any]:
    """Status of a running pod."""
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "hostIP": "10.0.0.1",
        "podIP": "10.244.0.7",
        "startTime": _TIME,
        "conditions": [{"type": k, "status": "True", "lastTransitionTime": _TIME} for k in kinds],
        "containerStatuses": [
            {
                "name": "main",
                "ready": True,
                "restartCount": 0,
                "started": True,
                "image": "registry.example.com/team/service",
                "imageID": f"registry.example.com/team/service@sha256:{1:064x}",
                "containerID": f"containerd://{1:064x}",
                "state": {"running": {"startedAt": _TIME}},
            }
        ],
        "message": f"on {on}",
    }


def claim(name: str) -> dict[str, Any]:
    """A claim for one GPU."""
    return {"metadata": {"name": name}, "spec": CLAIM_SPEC}


def inventories(profile: str = "dgx-h100") -> Callable[[int, str], dict[str, Any]]:
    """Makes inventories of a simulated machine: by number of the node and UID of the Node object."""
    backend = open_backend(
        f"simulated={profile}", sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="x"
    )
    text = codec.encode([found.device for found in backend.discover()]).decode()
    backend.close()

    def make(i: int, uid: str) -> dict[str, Any]:
        name = node_name(i)
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        return {
            "apiVersion": API_VERSION,
            "kind": "DeviceInventory",
            "metadata": {"name": inventory_name(name, DEFAULT_DRIVER_NAME), "ownerReferences": [owner]},
            "spec": {
                "nodeName": name,
                "driver": DEFAULT_DRIVER_NAME,
                "devices": json.loads(text.replace('"GPU-', f'"GPU-{i:08x}-')),
            },
        }

    return make


def busy_pods(number: int, nodes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pods that run already and use no devices."""
    for i in range(number):
        yield PODS, pod(f"service-{i % 97}-{i}", on=node_name(i % nodes))
