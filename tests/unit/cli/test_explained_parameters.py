"""What ``dra-driver explain`` says of opaque parameters: the webhook's words, or that none were checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builders
import pytest
from example_driver import install_example

from controller.admission.installed_kinds import installed_kinds
from controller.admission.review import judge, read_review
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.cli import explain
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.explaining.targets import parse_target
from dra_driver.cli.main import main

DRIVER = "npu.acme.example"
NPU = {"apiVersion": "acme.example/v1", "kind": "NpuConfig"}
GPU = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig"}
NVIDIA = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
PATH = "spec.devices.config[0].opaque.parameters"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in install_example(tmp_path / "site"):
        monkeypatch.syspath_prepend(place)
    explain._installed_kinds.cache_clear()


@pytest.fixture(autouse=True)
def forgotten() -> None:
    explain._installed_kinds.cache_clear()


def config(parameters: dict[str, Any], driver: str = DRIVER) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def asking(name: str, *configs: dict[str, Any]) -> dict[str, Any]:
    raw = builders.claim(name, requests=[builders.request("gpu", memory="32Gi")])
    raw["spec"]["devices"]["config"] = list(configs)
    return raw


def said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *claims: dict[str, Any], **of_class: Any
) -> tuple[int, str, dict[str, Any]]:
    """Return the exit status, the text, and the same as data."""
    class_ = builders.device_class("gpu")
    class_["spec"] |= of_class
    slices = builders.resource_slice("n1", builders.device("gpu-0", "40Gi"), builders.device("gpu-1", "40Gi"))
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [class_, slices, *claims]}))
    status = main(["explain", "-f", str(file)])
    text = capsys.readouterr().out
    assert main(["explain", "-f", str(file), "-o", "json"]) == status
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, text, data


@pytest.mark.usefixtures("installed")
def test_a_third_partys_parameters_are_refused_in_the_words_of_the_webhook(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = asking("one", config({**NPU, "powerLimit": 500, "volts": 1}))
    status, text, data = said(tmp_path, capsys, claim)
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"},
            "object": claim,
        },
    }
    request = read_review(json.dumps(review).encode())
    judged = judge(request, {DRIVER}, kinds=installed_kinds(), others={DRIVER})
    assert judged.response.status is not None
    assert data["claims"][0]["wrongParameters"] == judged.response.status.message.split("; ")
    assert status == 1
    assert not data["fits"]
    assert data["claims"][0]["fits"], "the devices are there"
    assert f"{PATH}: NpuConfig: powerLimit: expected int <= 400" in text
    assert f"{PATH}: NpuConfig: volts: unknown field" in text


@pytest.mark.usefixtures("installed")
def test_right_parameters_are_not_worth_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, data = said(tmp_path, capsys, asking("one", config({**NPU, "powerLimit": 250})))
    assert status == 0
    assert "parameters" not in text
    assert "Parameters" not in json.dumps(data)


def test_what_no_installed_package_knows_is_said_not_to_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = config({**NPU, "powerLimit": 500})
    status, text, data = said(tmp_path, capsys, *(asking(name, wrong) for name in "abcde"))
    assert status == 0
    assert data["fits"]
    note = f"{PATH}: acme.example/v1 NpuConfig for driver {DRIVER}: not checked, because no package"
    assert text.count(note) == 1, "claims of which the same is said are one line"
    assert "and 2 more: " in text
    assert all(note in c["uncheckedParameters"][0] for c in data["claims"])


def test_a_pod_is_explained_with_the_parameters_of_its_claims() -> None:
    manifests = Manifests(
        classes=[codec.convert(DeviceClass, builders.device_class("gpu"))],
        claims=[
            codec.convert(ResourceClaim, asking("one", config({**GPU, "surprise": 1}))),
            codec.convert(ResourceClaim, asking("other", config({**GPU, "amazement": 1}))),
        ],
        pods=[codec.convert(Pod, builders.pod("train", "one"))],
    )
    found = explain.explained(manifests, [parse_target("pod/train")], "default")
    assert "GpuConfig: surprise: unknown field" in str(found)
    assert "amazement" not in str(found)
    assert not found.fits


def test_our_own_kinds_and_those_of_a_class_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = config({**GPU, "surprise": 1}, "gpu.dra-driver.dev")
    status, text, _ = said(tmp_path, capsys, asking("one"), config=[wrong])
    assert status == 1
    assert "DeviceClass gpu: spec.config[0].opaque.parameters: GpuConfig: surprise: unknown field" in text


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.intel.com"])
@pytest.mark.parametrize("parameters", [{}, {**NVIDIA, "x": 1}])
def test_the_parameters_of_other_drivers_are_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], driver: str, parameters: dict[str, Any]
) -> None:
    status, text, _ = said(tmp_path, capsys, asking("one", config(parameters, driver)))
    assert status == 0
    assert f"for driver {driver}: not checked" in text
