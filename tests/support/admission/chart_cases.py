"""The combinations of values that matter: each choice alone, and together those that meet in one object."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

BACKENDS: tuple[list[str], ...] = (
    [],
    ["nvml"],
    ["amdgpu"],
    ["intel"],
    ["simulated=mixed"],
    ["generic=/etc/dra-driver/devices.yaml"],
    ["nvml", "amdgpu"],
)
NVIDIA = ("timeSlicing", "mig", "mps", "privileged")
ALL_MONITORING = {
    "serviceMonitor": True,
    "prometheusRule": True,
    "dashboard": True,
    "labels": {"release": "prometheus"},
}
EXTENDED = {
    "nvidia": {"extendedResourceName": "nvidia.com/gpu"},
    "amd": {"extendedResourceName": "amd.com/gpu"},
}


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """A name and the values."""
    yield "defaults", {}
    for allocator, rdma, replicas, network in itertools.product(
        ("controller", "scheduler"), (False, True), (1, 2), (False, True)
    ):
        yield (
            f"{allocator}-rdma={rdma}-replicas={replicas}-network={network}",
            {
                "allocator": allocator,
                "rdma": {"enabled": rdma},
                "controller": {"replicas": replicas},
                "networkPolicy": {"enabled": network},
                "monitoring": ALL_MONITORING if network else {},
            },
        )
    for backends in BACKENDS:
        yield f"backends={','.join(backends)}", {"kubeletPlugin": {"backends": backends}}
    for feature in NVIDIA:
        yield f"nvidia-{feature}", {"kubeletPlugin": {"nvidia": {feature: True}}}
    npus = {"name": "acme", "driverName": "npu.acme.example", "backends": ["acme"]}
    fpgas = {"name": "fpga", "driverName": "fpga.example.com", "backends": ["fpga=x"], "privileged": True}
    yield "extra-drivers", {"extraDrivers": [npus, fpgas], "rdma": {"enabled": True}}
    yield "passthrough", {"kubeletPlugin": {"passthrough": {"enabled": True}}}
    yield (
        "passthrough-mps",
        {
            "kubeletPlugin": {
                "nvidia": {"mps": True},
                "passthrough": {"enabled": True, "classNamespaces": ["a", "b"], "claimNamespaces": ["*"]},
            }
        },
    )
    for feature in ("serviceMonitor", "prometheusRule", "dashboard"):
        yield f"monitoring-{feature}", {"monitoring": {feature: True}, "rdma": {"enabled": True}}
    yield "extended", {"deviceClasses": EXTENDED}
    yield "extended-of-kube-scheduler", {"allocator": "scheduler", "deviceClasses": EXTENDED}
    for feature in ("validate", "accounts", "fence"):
        yield f"no-{feature}", {"admissionPolicies": {feature: False}}
    labelled: dict[str, Any] = {"gateNamespaces": "labelled"}
    yield "labelled", {"admissionPolicies": labelled}
    yield "no-gate", {"admissionPolicies": labelled | {"gate": False}}
    yield "labelled-without-webhooks", {"admissionPolicies": labelled, "webhooks": {"enabled": False}}
    yield "fence-without-pod", {"admissionPolicies": {"fenceWithoutPod": "allow"}}
    yield "no-leader-election", {"controller": {"replicas": 1, "leaderElect": False}}
    yield "tolerant-classes", {"admissionPolicies": {"tolerantClasses": ["nic.example.com", "b"]}}
    yield (
        "rbac",
        {
            "httpAuthorization": "rbac",
            "controller": {"web": True},
            "rdma": {"enabled": True},
            "networkPolicy": {"pageFrom": [{"namespaceSelector": {}}]},
            "monitoring": ALL_MONITORING,
        },
    )
    for webhooks in (True, False):
        yield f"webhooks={webhooks}", {"webhooks": {"enabled": webhooks}, "networkPolicy": {"enabled": True}}
    for controller in (True, False):
        yield (
            f"publish-node-controller={controller}",
            {
                "publish": "node",
                "allocator": "scheduler",
                "controller": {"enabled": controller},
                "rdma": {"enabled": True},
                "networkPolicy": {"enabled": True},
                "monitoring": ALL_MONITORING,
            },
        )
    yield "first-fit", {"strategy": "first-fit", "nodePolicy": "spread"}
    for keep in (True, False):
        yield f"crds-keep={keep}", {"crds": {"keep": keep}}
    yield "no-crds", {"crds": {"install": False}}
    for name in ("own", "nvidia", "none"):
        yield f"node-labels-{name}", {"controller": {"nodeLabels": name}}
    yield "not-in-view", {"aggregateToView": False}
    yield "no-group-labels", {"controller": {"groupLabels": []}}
    yield (
        "other-driver",
        {"driverName": "gpu.nvidia.com", "rdma": {"enabled": True, "driverName": "nic.example.com"}},
    )
    for mode, violates in (("off", False), ("on", False), ("on", True)):
        values = {"preemption": mode, "preemptionViolatesBudgets": violates}
        yield f"preemption={mode}-violates={violates}", {"controller": values}
    yield "everything", EVERYTHING


EVERYTHING: dict[str, Any] = {
    "image": {
        "repository": "registry.example.com:5000/team/dra-driver",
        "digest": "sha256:" + "a" * 64,
        "pullPolicy": "Always",
        "pullSecrets": ["one", "two"],
    },
    "allocator": "scheduler",
    "logLevel": "debug",
    "deviceClasses": EXTENDED | {"intel": {"create": False}},
    "webhooks": {"port": 10443, "url": "https://controller.example.com:10443/admission"},
    "controller": {
        "replicas": 3,
        "web": True,
        "otlpEndpoint": "http://collector.example.com:4318",
        "extraArgs": ["--health-host=0.0.0.0"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "nodeSelector": {"role": "infra"},
        "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"example.com/a": "true"},
    },
    "kubeletPlugin": {
        "backends": ["nvml", "intel=integrated"],
        "nvidia": {
            "runtimeClassName": "nvidia",
            "driverRoot": "/home/kubernetes/bin/nvidia",
            "destroyUnownedPartitions": True,
            "timeSlicing": True,
            "mig": True,
            "mps": True,
            "privileged": True,
        },
        "nodes": "nfd",
        "kubeletDir": "/data/kubelet",
        "cdiDir": "/etc/cdi-dra",
        "port": 9500,
        "rescanInterval": 12.5,
        "scanDeadline": 45.5,
        "maxSurge": 0,
        "maxUnavailable": "10%",
        "extraArgs": ["--no-device-metadata"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/etc/more", "readOnly": True}],
        "nodeSelector": {"gpu": "true"},
        "tolerations": [],
        "seLinuxOptions": {"type": "spc_t"},
        "podAnnotations": {"example.com/a": "true"},
    },
    "rdma": {"enabled": True, "nodes": "nfd", "port": 9600, "nodeSelector": {"nic": "true"}},
    "monitoring": ALL_MONITORING | {"interval": "1m"},
    "networkPolicy": {
        "enabled": True,
        "apiServerPorts": [6443],
        "metricsFrom": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
    },
}
