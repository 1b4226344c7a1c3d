"""A second driver by the chart: the page's values, its DaemonSet, what else has to know its name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from chart_support import ROOT, Chart, Object, Refused, named

from dra_driver import cel

PAGE = (ROOT / "docs" / "sdk.md").read_text()
(VALUES,) = (
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(extraDrivers:.*?)```", PAGE, re.DOTALL)
)
NAME = "npu.acme.example"


def with_driver(**changes: Any) -> dict[str, Any]:
    return {"extraDrivers": [{**VALUES["extraDrivers"][0], **changes}]}


def agent(objects: list[Object]) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = named(objects, "DaemonSet", "dra-driver-acme-plugin")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_the_values_of_the_page_make_a_driver(chart: Chart) -> None:
    objects = chart.render(VALUES)
    spec, container = agent(objects)
    assert container["command"] == ["dra-driver", "kubelet-plugin"]
    assert {f"--driver-name={NAME}", "--backend=acme", "--sysfs-root=/host/sys"} <= set(container["args"])
    assert container["image"] == "registry.example/acme-npu:1.0.0"
    assert spec["nodeSelector"] == {"acme.example/npu": "true"}
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    assert mounts["/host/sys/class"] is False
    assert f"/var/lib/kubelet/plugins/{NAME}" in mounts
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (selector,) = named(objects, "DeviceClass", NAME)["spec"]["selectors"]
    assert cel.validate_selector(selector["cel"]["expression"]) == []
    rules = named(objects, "ClusterRole", "dra-driver-acme-plugin")["rules"]
    assert [r["resourceNames"] for r in rules if r["resources"] == ["resourceclaims/driver"]] == [[NAME]]


def test_the_controller_serves_it_and_policies_know_it(chart: Chart) -> None:
    objects = chart.render({**VALUES, "publish": "controller"})
    (container,) = named(objects, "Deployment", "dra-driver-controller")["spec"]["template"]["spec"][
        "containers"
    ]
    assert f"--driver-name={NAME}" in container["args"]
    without = chart.render({})

    def knowing(found: list[Object], name: str) -> set[str]:
        return {
            o["metadata"]["name"]
            for o in found
            if "AdmissionPolicy" in o["kind"] and name in yaml.safe_dump(o)
        }

    # Whatever speaks of the NICs' driver by its name has to know every other driver too.
    assert knowing(objects, NAME) == knowing(without, "rdma.dra-driver.dev") != set()


def test_what_is_not_said_has_a_default(chart: Chart) -> None:
    driver = {"name": "acme", "driverName": NAME, "backends": ["acme=/x"]}
    objects = chart.render({"extraDrivers": [driver], "image": {"repository": "r/i", "tag": "t"}})
    spec, container = agent(objects)
    assert container["image"] == "r/i:t"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert all(m.get("readOnly") for m in container["volumeMounts"] if m["mountPath"].startswith("/host/"))
    (selector,) = named(objects, "DeviceClass", NAME)["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{NAME}"'


def test_more_than_one_and_privileged_ones(chart: Chart) -> None:
    other = {"name": "other", "driverName": "fpga.example.com", "backends": ["fpga"], "port": 9411}
    objects = chart.render(
        {
            "extraDrivers": [*with_driver(privileged=True)["extraDrivers"], other],
            "openshift": {"securityContextConstraints": True},
            "monitoring": {"serviceMonitor": True},
        }
    )
    assert agent(objects)[1]["securityContext"]["privileged"] is True
    assert named(objects, "DaemonSet", "dra-driver-other-plugin")
    constraints = named(objects, "SecurityContextConstraints", "dra-driver-acme-plugin")
    assert constraints["allowPrivilegedContainer"] is True
    monitors = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceMonitor"}
    assert {"dra-driver-acme-plugin", "dra-driver-other-plugin"} <= monitors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            with_driver(driverName="gpu.dra-driver.dev"),
            "gpu.dra-driver.dev is driverName as well",
        ),
        (with_driver(driverName="Acme"), "is no DNS name in lower case with a dot"),
        (with_driver(name="rdma"), "extraDrivers[0].name: rdma is taken"),
        (with_driver(backends=[]), "backends"),
        (
            {"extraDrivers": VALUES["extraDrivers"] * 2},
            "npu.acme.example is extraDrivers[0].driverName",
        ),
        (with_driver(wrong=1), "wrong"),
    ],
)
def test_values_that_cannot_be_are_refused(chart: Chart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused) as caught:
        chart.render(values)
    assert message in str(caught.value)
