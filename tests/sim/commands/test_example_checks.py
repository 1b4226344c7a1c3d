"""What the checks on example pods accept and refuse, and which manifests are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import Device, DeviceRequestAllocationResult
from dra_driver.errors import ConfigurationError
from dra_driver.sim import assets
from dra_driver.sim.cdi_reader import ContainerView, DeviceView
from dra_driver.sim.demo import checks as example_checks
from dra_driver.sim.demo import examples, report
from dra_driver.sim.demo.examples import AllocatedDevice, Example, Expectation, Outcome
from dra_driver.sim.objects import RunPod


def outcome(
    *devices: AllocatedDevice, phase: str = "Running", name: str = "p", node: str = "n1", **expect: Any
) -> Outcome:
    pod = codec.convert(
        RunPod,
        {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {
                "nodeName": node,
                "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
                "containers": [{"name": "main"}],
            },
            "status": {"phase": phase},
        },
    )
    return Outcome(Example(ObjectKey("ns", name), Expectation(**expect), "x.yaml"), pod, list(devices))


def device(
    name: str, memory: str = "40Gi", model: str = "A", claim: str = "c", share: str = "", **result_more: Any
) -> AllocatedDevice:
    found = codec.convert(
        Device,
        {
            "name": name,
            "taints": [{"key": "sick", "effect": "NoSchedule"}] if name == "sick" else [],
            "attributes": {"model": {"string": model}, "uuid": {"string": f"GPU-{name}"}},
            "capacity": {"memory": {"value": memory}},
        },
    )
    shared = {"shareID": "s", "consumedCapacity": {"memory": share}} if share else {}
    body = {"request": "r", "driver": "d", "pool": "n1", "device": name, **shared, **result_more}
    result = codec.convert(DeviceRequestAllocationResult, body)
    return AllocatedDevice(claim, result, found)


def seen(*names: str) -> dict[str, ContainerView]:
    env = {f"DRA_C__R__{i}_DEVICE": n for i, n in enumerate(names)}
    env |= {f"DRA_C__R__{i}_UUID": f"GPU-{n}" for i, n in enumerate(names)}
    return {"main": ContainerView(env=env)}


def pod_expecting(text: str) -> str:
    metadata = {"name": "p", "annotations": {examples.EXPECT_ANNOTATION: text}}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


def findings(one: Outcome, *others: Outcome) -> str:
    return "; ".join(example_checks.verify(one, [one, *others]))


def test_what_is_as_promised() -> None:
    one = outcome(device("a"), devices=1, min_memory="32Gi", same_attributes=["model"])
    assert findings(one) == ""
    one.containers = seen("a")
    assert findings(one) == ""
    shared = outcome(device("a"), devices=1, shares_claim_with="q")
    assert findings(shared, outcome(device("a"), name="q", devices=1)) == ""


@pytest.mark.parametrize(
    ("one", "finding"),
    [
        (outcome(device("a"), devices=2), "has 1 devices instead of 2"),
        (outcome(device("a"), min_devices=2), "has 1 devices, fewer than 2"),
        (outcome(device("a"), devices=1, phase="Failed"), "is Failed"),
        (outcome(device("a", "24Gi"), devices=1, min_memory="32Gi"), "has 24Gi memory, less than 32Gi"),
        (
            outcome(device("a"), device("b", model="B"), devices=2, same_attributes=["model"]),
            "different model: A, B",
        ),
        (outcome(device("a"), devices=1, shares_claim_with="q"), "which is no example"),
        (outcome(device("a"), devices=1, same_device_as="q"), "which is no example"),
        (outcome(device("a"), devices=1, requests=["other"]), "is served by r instead of other"),
        (outcome(device("a"), devices=1, attributes={"model": "B"}), "has the model 'A' instead of 'B'"),
        (outcome(device("a"), devices=1, without_attributes=["model"]), "has the model 'A'"),
        (outcome(device("a"), devices=1, tainted="sick"), "device a has no taint sick"),
        (outcome(device("a"), devices=1, admin_access=True), "allocated with admin access False"),
        (outcome(device("a", adminAccess=True), devices=1), "allocated with admin access True"),
        (outcome(device("a"), devices=1, consumed_memory="1Gi"), "has no share of the memory of a"),
        (outcome(device("a", share="2Gi"), devices=1, consumed_memory="1Gi"), "has 2Gi of the memory of a"),
        (outcome(unschedulable=True, phase="Running"), "although it cannot be satisfied"),
        (outcome(unschedulable=True, phase="Pending"), "without a reason"),
    ],
)
def test_what_is_not_as_promised(one: Outcome, finding: str) -> None:
    assert finding in findings(one)


def test_a_container_that_sees_another_device() -> None:
    one = outcome(device("a"), devices=1)
    one.containers = seen("b")
    assert "sees no DRA_*_DEVICE=a" in findings(one)
    assert "does not see the UUID GPU-a" in findings(one)


def test_everything_that_can_be_promised_at_once() -> None:
    expect: dict[str, Any] = {
        "devices": 1,
        "requests": ["r"],
        "attributes": {"model": "A"},
        "without_attributes": ["busy"],
        "tainted": "sick",
        "consumed_memory": "1024Mi",
        "env": {"DRA_C__R__0_UUID": "GPU-*"},
        "gpu_settings": {"slice": "Long"},
        "same_device_as": "q",
    }
    one = outcome(device("sick", share="1Gi"), **expect)
    one.containers = seen("sick")
    one.gpu_settings = {"GPU-sick": {"slice": "Long"}}
    other = outcome(device("sick", share="1Gi"), name="q", **expect)
    assert "uses the claim of q" in findings(one, other)
    one.gpu_settings = {"GPU-sick": {"slice": "Short"}}
    assert "is set to slice 'Short' instead of 'Long'" in findings(one, other)
    one.containers = {"main": ContainerView(env={})}
    assert "sees DRA_C__R__0_UUID=None instead of GPU-*" in findings(one, other)


def test_a_device_that_no_slice_shows() -> None:
    one = outcome(dataclasses.replace(device("a"), device=None), devices=1)
    assert "in no ResourceSlice" in findings(one)


def test_sharing_on_another_node() -> None:
    one = outcome(device("a"), devices=1, shares_claim_with="q")
    assert "runs on n1, but q on n2" in findings(one, outcome(device("a"), name="q", node="n2", devices=1))


def test_a_device_in_two_claims_is_found() -> None:
    first, second = outcome(device("a", claim="c1")), outcome(device("a", claim="c2"))
    assert example_checks.twice_allocated([first, second]) == ["d/n1/a is allocated to c1 and c2"]
    assert example_checks.twice_allocated([first, first]) == []


def test_the_projects_own_examples_can_be_read() -> None:
    objects, pods = examples.load_manifests(assets.deploy_directory("examples"))
    assert objects[0]["kind"] == "Namespace"
    assert len(pods) >= 5
    assert any(p.expect.unschedulable for p in pods)
    assert {o["kind"] for o in examples.setup_objects(objects)} == {
        "Namespace",
        "DevicePolicy",
        "DeviceClass",
    }
    folders = {p.source for p in pods}
    assert len(folders) == 18
    # Everything that a pod's claim needs is in the pod's own folder.
    for pod in pods:
        assert pod.source.partition("-")[0].isdecimal()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("- 1", "every document needs apiVersion, kind and metadata.name"),
        ("{apiVersion: v1, kind: Secret, metadata: {name: s}}", "v1 Secret cannot be applied here"),
        (pod_expecting('{"x": 1}'), "annotation demo.dra-driver.dev/expect"),
        (pod_expecting('{"minMemory": "lots"}'), "annotation demo.dra-driver.dev/expect"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        examples.load_manifests(tmp_path)


def test_a_directory_without_manifests_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigurationError, match="a directory with"):
            examples.load_manifests(directory)


@pytest.mark.parametrize("width", [100, 160])
def test_the_table_fits_its_width_and_loses_nothing(width: int) -> None:
    partition = "gpu-0004-05-00-0-mig-1g-10gb-0"
    of = outcome(device(partition, model="A100-SXM4-80GB"), name="b200-or-two-a100", node="node1")
    of.example = dataclasses.replace(of.example, source="06-h100-or-two-a100")
    identity = f"MIG-{'0123456789' * 4}"
    nodes = [f"/dev/nvidia{i}" for i in range(3)]
    view = ContainerView(env={"DRA_GPU__PART__0_DEVICE": identity})
    view.devices = [DeviceView(path, path, "c", 1, i, "rw") for i, path in enumerate(nodes)]
    of.containers = {"main": view}
    waiting = outcome(phase="Pending", name="waits", node="")
    text = report.table([of, waiting], width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:3] == ["EXAMPLE", "AND", "POD"]
    assert lines[1].startswith("06 b200-or-two-a100  node1      gpu-0004-05-00-0-")
    assert lines[-1].split() == ["waits", "(Pending)", "-", "-"]
    whole = "".join(text.split())
    for word in (*nodes, "A100-SXM4-80GB", "40Gi"):
        assert word in whole
    assert all(part in whole for part in ("DRA_GPU__PART__0_DEVICE", "MIG-0123"))
