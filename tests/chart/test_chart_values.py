"""Values that are wrong are refused, and the refusal says what and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from chart_support import CHART, Chart, Refused
from nonempty import nonempty

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Of earlier versions: they are refused with what to do instead.
GONE = ("lending", "lendingScanBudget")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"allocater": "scheduler"}, "Additional property allocater is not allowed"),
        ({"kubeletPlugin": {"nvidia": {"migs": True}}}, "Additional property migs is not allowed"),
        ({"allocator": "both"}, 'allocator must be one of the following: "controller", "scheduler"'),
        (
            {"controller": {"leaderElect": False}},
            "controller.leaderElect: false lets every replica work at once; controller.replicas is 2",
        ),
        ({"admissionPolicies": {"fenceWithoutPod": "maybe"}}, '"refuse", "allow"'),
        (
            {"admissionPolicies": {"gate": False}},
            "admissionPolicies.gate: false lets kube-scheduler try pods with devices that it cannot have",
        ),
        ({"admissionPolicies": {"gateNamespaces": "some"}}, '"labelled", "all"'),
        *(
            ({"controller": {"lending": mode}}, f"controller.lending: {mode}: devices are not lent any more")
            for mode in ("on", "ending", "off")
        ),
        ({"controller": {"lendingScanBudget": 2}}, "leave the value out: set controller.grantScanBudget"),
        ({"controller": {"replicas": 0}}, "Must be greater than or equal to 1"),
        ({"controller": {"port": 70000}}, "Must be less than or equal to 65535"),
        ({"image": {"digest": "latest"}}, "image.digest"),
        ({"driverName": "GPU"}, "driverName: GPU is no DNS name in lower case with a dot"),
        ({"kubeletPlugin": {"backends": ["=x"]}}, "=x is no backend: expected NAME or NAME=ARGUMENT"),
        *(
            ({"kubeletPlugin": {"backends": [backend]}}, f"kubeletPlugin.backends: {backend}: {said}")
            for backend, said in (
                (
                    "nvidia",
                    "there is no such backend; allowed are amdgpu, intel, intel=integrated, nvml, nvml=mig",
                ),
                ("acme", "there is no such backend"),
                (
                    "simulated=nope",
                    "there is no such machine; allowed are simulated=PROFILE with arc, assorted",
                ),
                ("simulated", "there is no such machine"),
                ("nvml=migs", "allowed are nvml, nvml=mig"),
                ("amdgpu=x", "allowed is amdgpu"),
                ("generic", "a file is missing; allowed is generic=PATH"),
            )
        ),
        ({"kubeletPlugin": {"backends": ["nvidia"]}}, "(the one for nvidia is nvml)"),
        (
            {"extraDrivers": [{"name": "a", "driverName": "a.example.com", "backends": ["simulated=nope"]}]},
            "extraDrivers[0].backends: simulated=nope: there is no such machine",
        ),
        (
            {"rdma": {"enabled": True}, "kubeletPlugin": {"backends": ["nvml", "rdma=umad"]}},
            'rdma.enabled publishes them already, leave rdma out of ["nvml","rdma=umad"]',
        ),
        *(
            ({"controller": {"shapes": {"big": shape}}}, f"controller.shapes.big: {said}")
            for shape, said in (
                ("8 gpuu", "8 gpuu is not understood; expected [COUNT] KIND [profile NAME]"),
                ("gpu memory lots", "gpu memory lots is not understood"),
                ("gpu same", "gpu same is not understood"),
                ("33 gpu", "33 gpu asks for 33 devices; a claim can have 32"),
                ("gpu model A model B", "gpu model A model B: model is given twice"),
                ("{devices", "{devices is no JSON"),
                ("{}", "asks for nothing: devices.requests is empty"),
                ({"devices": {}}, "asks for nothing: devices.requests is empty"),
                (
                    {"devices": {"requests": [{"name": "r", "exactly": {"allocationMode": "All"}}]}},
                    "request r: allocationMode All; only numbers of devices can be counted",
                ),
            )
        ),
        (
            {
                "controller": {"enabled": False, "shapes": {"a": "gpu"}},
                "publish": "node",
                "allocator": "scheduler",
            },
            "controller.shapes: controller.enabled is false, so that nothing counts them",
        ),
        ({"controller": {"web": True, "port": 8090}}, "controller.port: 8090 is the port of the page"),
        ({"webhooks": {"clientNames": ["x"]}}, "webhooks.clientNames: needs webhooks.clientCA"),
        (
            {
                "admissionPolicies": {"gateNamespaces": "labelled"},
                "deviceClasses": {"nvidia": {"extendedResourceName": "nvidia.com/gpu"}},
            },
            "gateNamespaces is labelled. Set gateNamespaces: all, so that pools are open",
        ),
        (
            {"allocator": "scheduler", "deviceClasses": {"nvidia": {"extendedResourceName": "gpu"}}},
            "gpu is no name of an extended resource: expected DOMAIN/NAME such as nvidia.com/gpu",
        ),
        (
            {
                "allocator": "scheduler",
                "deviceClasses": {"gpu": {"extendedResourceName": "a.kubernetes.io/gpu"}},
            },
            "outside kubernetes.io",
        ),
        (
            {
                "allocator": "scheduler",
                "deviceClasses": {
                    "gpu": {"extendedResourceName": "example.com/gpu"},
                    "amd": {"extendedResourceName": "example.com/gpu"},
                },
            },
            "has the same name; a name stands for one class",
        ),
        (
            {
                "allocator": "scheduler",
                "deviceClasses": {"amd": {"create": False, "extendedResourceName": "a.b/c"}},
            },
            "needs deviceClasses.amd.create: true",
        ),
        (
            {"kubeletPlugin": {"backends": ["amdgpu"], "nvidia": {"mig": True}}},
            'mig: true has no effect without the backend nvml; kubeletPlugin.backends is ["amdgpu"]',
        ),
        (
            {"kubeletPlugin": {"backends": ["simulated=mixed"], "passthrough": {"enabled": True}}},
            "passthrough.enabled: true has no effect on simulated devices",
        ),
        (
            {"kubeletPlugin": {"passthrough": {"enabled": True, "classNamespaces": []}}},
            "kubeletPlugin.passthrough.classNamespaces: Array must have at least 1 items",
        ),
        (
            {"kubeletPlugin": {"passthrough": {"classNamespaces": ["*", "vms"]}}},
            "stands for every namespace; name it alone",
        ),
        ({"kubeletPlugin": {"passthrough": {"claimNamespaces": ["VMs"]}}}, "claimNamespaces.0"),
        (
            {"allocator": "scheduler", "deviceClasses": {"vfio": {"extendedResourceName": "a.b/c"}}},
            "there is no such class without kubeletPlugin.passthrough.enabled",
        ),
        ({"publish": "node"}, "publish: node leaves allocation to kube-scheduler; allocator is controller"),
        ({"controller": {"enabled": False}}, "leaves nobody to publish ResourceSlices; set publish: node"),
        ({"kubeletPlugin": {"maxSurge": 0}}, "are both 0: no pod could be replaced"),
        ({"kubeletPlugin": {"maxUnavailable": "10%"}}, "one of them must be 0"),
        (
            {"rdma": {"enabled": True, "driverName": "gpu.dra-driver.dev"}},
            "two plugins cannot register one name",
        ),
        (
            {"kubeletPlugin": {"nodes": "nfd", "backends": ["amdgpu", "simulated=mixed"]}},
            "nfd chooses nodes by their hardware",
        ),
        (
            {"admissionPolicies": {"tolerantClasses": ["nic.example.com", "mig.gpu.dra-driver.dev"]}},
            "mig.gpu.dra-driver.dev is a class of gpu.dra-driver.dev, this chart's driver",
        ),
        (
            {"driverName": "a.example.com", "admissionPolicies": {"tolerantClasses": ["a.example.com"]}},
            "a.example.com is a class of a.example.com, this chart's driver",
        ),
        ({"admissionPolicies": {"tolerantClasses": ["a'b"]}}, "Does not match pattern"),
        (
            {"kubeletPlugin": {"nodes": "nfd", "backends": ["generic=/x"]}},
            "nfd knows the hardware of the backends",
        ),
    ],
)
def test_wrong_values_are_refused_with_the_reason(chart: Chart, values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refusal:
        chart.render(values)
    assert said in str(refusal.value)


def test_open_pools_need_what_sets_the_gate(chart: Chart) -> None:
    """Before Kubernetes 1.36 that is the webhook alone."""
    without = ("--set", "webhooks.enabled=false")
    older = ("template", "dra-driver", str(CHART), "--kube-version", "1.35.0", *without)
    with pytest.raises(Refused) as refusal:
        chart.run(*older)
    assert (
        "webhooks.enabled: false leaves nothing that sets the scheduling gate on Kubernetes v1.35.0"
        in str(refusal.value)
    )
    assert "set labelled, and label the namespaces" in str(refusal.value)
    chart.run(*older, "--set", "admissionPolicies.gateNamespaces=labelled")
    chart.run(*older, "--set", "publish=node,allocator=scheduler,controller.enabled=false")
    chart.render({"webhooks": {"enabled": False}})


def objects(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "properties" in part:
        yield path, part
        for name, below in part["properties"].items():
            yield from objects(below, f"{path}.{name}")
    if "items" in part:
        yield from objects(part["items"], f"{path}[]")


def test_the_schema_leaves_nothing_open_that_is_ours() -> None:
    # Parts of Kubernetes' own objects, which the API server checks.
    kubernetes = (
        ".extraEnv[]", ".extraVolumes[]", ".extraVolumeMounts[]",
        ".deviceClass.selectors[]", ".deviceClass.config[]",
    )  # fmt: skip
    for path, part in nonempty(objects(SCHEMA)):
        if not path.endswith(kubernetes):
            assert part["additionalProperties"] is False, path


def test_schema_and_defaults_name_the_same_values() -> None:
    def same(part: Mapping[str, Any], values: Any, path: str) -> None:
        if part.get("required"):
            # Helm itself adds global.
            assert set(part["properties"]) - {"global", *GONE} == set(values) == set(part["required"]), path
            for name, value in values.items():
                same(part["properties"][name], value, f"{path}.{name}")

    same(SCHEMA, VALUES, "")
