"""Defaults by type: constants, and functions if one value depends on another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["CONSTANTS", "RULES"]

_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_WEBHOOK: Mapping[str, Any] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "timeoutSeconds": 10,
}
_MATCH = {"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"}

CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "resource.ExactDeviceRequest": {"allocationMode": "ExactCount"},
    "resource.DeviceSubRequest": {"allocationMode": "ExactCount"},
    "resource.DeviceToleration": {"operator": "Equal"},
    "core.PodSpec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    },
    "core.Container": {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    },
    "core.Probe": _PROBE,
    "core.ContainerPort": {"protocol": "TCP"},
    "core.ServicePort": {"protocol": "TCP"},
    "core.HTTPGetAction": {"path": "/", "scheme": "HTTP"},
    "core.ObjectFieldSelector": {"apiVersion": "v1"},
    "core.SecretVolumeSource": {"defaultMode": 420},
    "core.ConfigMapVolumeSource": {"defaultMode": 420},
    "core.DownwardAPIVolumeSource": {"defaultMode": 420},
    "core.ProjectedVolumeSource": {"defaultMode": 420},
    "core.ServiceAccountTokenProjection": {"expirationSeconds": 3600},
    "core.HostPathVolumeSource": {"type": ""},
    "core.Secret": {"type": "Opaque"},
    "core.ServiceSpec": {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"},
    "core.PersistentVolumeClaimSpec": {"volumeMode": "Filesystem"},
    "core.PersistentVolumeSpec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
    "storage.StorageClass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
    "apps.DeploymentSpec": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600},
    "apps.DeploymentStrategy": {"type": "RollingUpdate"},
    "apps.RollingUpdateDeployment": {"maxUnavailable": "25%", "maxSurge": "25%"},
    "apps.ReplicaSetSpec": {"replicas": 1},
    "apps.StatefulSetSpec": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
    },
    "apps.DaemonSetSpec": {"revisionHistoryLimit": 10},
    "apps.DaemonSetUpdateStrategy": {"type": "RollingUpdate"},
    "apps.RollingUpdateDaemonSet": {"maxUnavailable": 1, "maxSurge": 0},
    "batch.JobSpec": {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
    },
    "schedulingv1beta1.PodGroupSpec": {"disruptionMode": {"single": {}}},
    "schedulingv1alpha3.CompositePodGroupSpec": {"disruptionMode": {"single": {}}},
    "rbac.RoleRef": {"apiGroup": "rbac.authorization.k8s.io"},
    "admissionregistration.MatchResources": _MATCH,
    "admissionregistration.NamedRuleWithOperations": {"scope": "*"},
    "admissionregistration.RuleWithOperations": {"scope": "*"},
    "admissionregistration.ValidatingAdmissionPolicySpec": {"failurePolicy": "Fail"},
    "admissionregistration.MutatingAdmissionPolicySpec": {"failurePolicy": "Fail"},
    "admissionregistration.ValidatingWebhook": _WEBHOOK,
    "admissionregistration.MutatingWebhook": {**_WEBHOOK, "reinvocationPolicy": "Never"},
    "admissionregistration.ServiceReference": {"port": 443},
    "networking.NetworkPolicyPort": {"protocol": "TCP"},
}


def _count(raw: Raw, now: str) -> None:
    if raw["allocationMode"] == "ExactCount":
        raw.setdefault("count", 1)


def _time_added(raw: Raw, now: str) -> None:
    raw.setdefault("timeAdded", now)


def _pull_policy(raw: Raw, now: str) -> None:
    if "imagePullPolicy" not in raw:
        image = str(raw.get("image") or "").rpartition("/")[2]
        latest = "@" not in image and (":" not in image or image.endswith(":latest"))
        raw["imagePullPolicy"] = "Always" if latest else "IfNotPresent"


def _requests(raw: Raw, now: str) -> None:
    for name, value in (raw.get("limits") or {}).items():
        raw.setdefault("requests", {}).setdefault(name, value)


def _subject(raw: Raw, now: str) -> None:
    if raw.get("kind") in ("User", "Group"):
        raw.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _node_status(raw: Raw, now: str) -> None:
    if raw.get("capacity") and "allocatable" not in raw:
        raw["allocatable"] = dict(raw["capacity"])


def _rolling_deployment(raw: Raw, now: str) -> None:
    if raw.get("type") == "RollingUpdate":
        raw.setdefault("rollingUpdate", {"maxUnavailable": "25%", "maxSurge": "25%"})


def _rolling_daemon_set(raw: Raw, now: str) -> None:
    if raw.get("type") == "RollingUpdate":
        raw.setdefault("rollingUpdate", {"maxUnavailable": 1, "maxSurge": 0})


RULES: Mapping[str, Callable[[Raw, str], None]] = {
    "resource.ExactDeviceRequest": _count,
    "resource.DeviceSubRequest": _count,
    "resource.DeviceTaint": _time_added,
    "resourcev1beta2.DeviceTaint": _time_added,
    "core.Container": _pull_policy,
    "core.ResourceRequirements": _requests,
    "core.NodeStatus": _node_status,
    "rbac.Subject": _subject,
    "apps.DeploymentStrategy": _rolling_deployment,
    "apps.DaemonSetUpdateStrategy": _rolling_daemon_set,
}
