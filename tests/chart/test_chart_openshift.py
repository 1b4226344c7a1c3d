"""The SecurityContextConstraints admit the driver's pods with any values, and little beyond them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chart_support import Chart, Object, Values

NVIDIA = {"seLinuxOptions": {"type": "spc_t"}}
CASES: list[dict[str, Any]] = [
    {},
    {"backends": ["simulated=mixed"]},
    {"nvidia": {"timeSlicing": True}},
    {"nvidia": {"mig": True}},
    {"nvidia": {"mps": True, "timeSlicing": True}},
    {"passthrough": {"enabled": True}},
    {"passthrough": {"enabled": True}, "nvidia": {"timeSlicing": True}},
    {"passthrough": {"enabled": True}, "nvidia": {"privileged": True}},
    {"hostProc": True},
    {"hostCgroups": False},
]


def constraints(objects: list[Object]) -> dict[str, Object]:
    return {user: o for o in objects if o["kind"] == "SecurityContextConstraints" for user in o["users"]}


def refusals(pod: Object, allowed: Object) -> Iterator[str]:
    """What the admission of OpenShift would refuse of a pod, as far as these fields go."""
    spec = pod["spec"]
    if spec.get("hostPID") and not allowed["allowHostPID"]:
        yield "hostPID"
    for volume in spec.get("volumes", ()):
        (kind,) = set(volume) - {"name"}
        if kind not in allowed["volumes"]:
            yield f"volume {kind}"
    for container in spec["containers"]:
        context = {**spec.get("securityContext", {}), **container["securityContext"]}
        if context.get("privileged") and not allowed["allowPrivilegedContainer"]:
            yield "privileged"
        if context.get("allowPrivilegeEscalation", True) and not allowed["allowPrivilegeEscalation"]:
            yield "allowPrivilegeEscalation"
        added = set(context.get("capabilities", {}).get("add", ()))
        if not context.get("privileged") and added - set(allowed["allowedCapabilities"]):
            yield f"capabilities {added}"
        if context["runAsUser"] == 0 and allowed["runAsUser"]["type"] != "RunAsAny":
            yield "root"
        if not context["readOnlyRootFilesystem"]:
            yield "readOnlyRootFilesystem"
        if "seccompProfile" in context and allowed["seccompProfiles"] not in (["runtime/default"], ["*"]):
            yield "seccompProfile"


@pytest.mark.parametrize("plugin", CASES, ids=str)
def test_the_pods_are_admitted(chart: Chart, plugin: dict[str, Any]) -> None:
    values: Values = {
        "openshift": {"securityContextConstraints": True},
        "kubeletPlugin": {**plugin, **NVIDIA},
        "rdma": {"enabled": True},
    }
    objects = chart.render(values, namespace="gpus")
    by_user = constraints(objects)
    assert set(by_user) == {
        "system:serviceaccount:gpus:dra-driver-controller",
        "system:serviceaccount:gpus:dra-driver-kubelet-plugin",
    }
    found = []
    for o in objects:
        if o["kind"] in ("Deployment", "DaemonSet"):
            pod = o["spec"]["template"]
            allowed = by_user[f"system:serviceaccount:gpus:{pod['spec']['serviceAccountName']}"]
            found += [f"{o['metadata']['name']}: {refusal}" for refusal in refusals(pod, allowed)]
    assert found == []


def test_little_is_allowed_where_little_is_asked_for(chart: Chart) -> None:
    objects = chart.render({"openshift": {"securityContextConstraints": True}})
    agent = constraints(objects)["system:serviceaccount:dra-driver:dra-driver-kubelet-plugin"]
    assert not agent["allowPrivilegedContainer"]
    assert not agent["allowHostPID"]
    assert agent["allowedCapabilities"] == []
    controller = constraints(objects)["system:serviceaccount:dra-driver:dra-driver-controller"]
    assert not controller["allowHostDirVolumePlugin"]
    assert controller["runAsUser"] == {"type": "MustRunAsNonRoot"}


def test_elsewhere_there_are_none(chart: Chart) -> None:
    assert constraints(chart.render()) == {}


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("gpu.nvidia.com", {"gpu.nvidia.com", "mig.nvidia.com", "mig.gpu.nvidia.com"}),
        ("gpu.dra-driver.dev", {"gpu.dra-driver.dev", "mig.gpu.dra-driver.dev"}),
    ],
)
def test_claims_for_the_classes_of_nvidias_driver_stay_as_they_are(
    chart: Chart, driver: str, expected: set[str]
) -> None:
    classes = {
        o["metadata"]["name"]: o for o in chart.render({"driverName": driver}) if o["kind"] == "DeviceClass"
    }
    assert {name for name in classes if name.startswith(("gpu.", "mig."))} == expected
    if "mig.nvidia.com" in classes:
        assert (
            classes["mig.nvidia.com"]["spec"]["selectors"]
            == classes["mig.gpu.nvidia.com"]["spec"]["selectors"]
        )
