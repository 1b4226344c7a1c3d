"""What KubeVirt needs: it finds the device of a claim by its metadata file, and its node by the group."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_client import FakeClient
from node_agent import DRIVER, Node, add_claim
from passthrough_node import ONE, TWO, Machine, agent, call, nodes_of, passed_through, spec_of
from paths import PROJECT

from dra_driver import cel
from dra_driver.api.names import POD_CLAIM_ANNOTATION
from dra_driver.api.own.parameters import KernelDriver, decode_parameters

BASE = "/var/run/kubernetes.io/dra-device-attributes"
PAGE = PROJECT / "docs/kubevirt.md"


def container_files(node: Node, body: dict[str, Any]) -> dict[str, str]:
    """The files that a container with the whole claim sees, by path."""
    edits = [d["containerEdits"] for d in spec_of(node, body)["devices"]]
    mounts = [m for e in edits for m in e.get("mounts", ())]
    return {m["containerPath"]: Path(m["hostPath"]).read_text() for m in mounts}


def pci_address(files: dict[str, str], place: str, request: str) -> str:
    """As ``GetPCIAddressForClaim`` of KubeVirt's ``pkg/dra/utils.go``: one file, one device."""
    folder = f"{BASE}/{place}/{request}/"
    (text,) = [t for path, t in files.items() if path.startswith(folder) and path.endswith("-metadata.json")]
    documents = [json.loads(line) for line in text.splitlines()]
    known = next(d for d in documents if d["apiVersion"] == "metadata.resource.k8s.io/v1alpha1")
    (wanted,) = [r for r in known["requests"] if r["name"] == request]
    (device,) = wanted["devices"]
    assert "mdevUUID" not in device["attributes"]
    return str(device["attributes"]["resource.kubernetes.io/pciBusID"]["string"])


@pytest.mark.parametrize("template", [True, False])
def test_a_virtual_machine_finds_its_gpus(tmp_path: Path, template: bool) -> None:
    async def scenario() -> None:
        kube, machine = FakeClient(), Machine(tmp_path)
        body = passed_through("gpu-0", "gpu-1")
        results = body["status"]["allocation"]["devices"]["results"]
        for i, result in enumerate(results):
            result["request"] = f"gpu{i}"
        body["status"]["allocation"]["devices"]["config"][0]["requests"] = ["gpu0", "gpu1"]
        if template:
            body["metadata"]["annotations"] = {POD_CLAIM_ANNOTATION: "gpu-claim"}
        add_claim(kube, body)
        async with agent(tmp_path, kube, machine) as node:
            assert await call(node, "prepare", body) == ""
            files = container_files(node, body)
            place = "resourceclaimtemplates/gpu-claim" if template else "resourceclaims/vm"
            assert [pci_address(files, place, f"gpu{i}") for i in range(2)] == [ONE, TWO]
            # It gives its user the nodes in /dev/vfio, beginning with this one.
            assert nodes_of(node, body) == [
                ["/dev/vfio/vfio", "/dev/vfio/12"],
                ["/dev/vfio/vfio", "/dev/vfio/40"],
            ]

    asyncio.run(scenario())


def documents() -> Iterator[dict[str, Any]]:
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        yield from yaml.safe_load_all(block)


def test_the_objects_of_the_page_belong_together() -> None:
    by_kind = {d["kind"]: d for d in documents() if "kind" in d}
    template, machine = (
        by_kind["ResourceClaimTemplate"],
        by_kind["VirtualMachine"]["spec"]["template"]["spec"],
    )
    (claim,) = machine["resourceClaims"]
    (gpu,) = machine["domain"]["devices"]["gpus"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert (gpu["claimName"], gpu["requestName"]) == (claim["name"], request["name"])
    assert request["exactly"]["deviceClassName"] == f"vfio.{DRIVER}"
    class_ = by_kind["DeviceClass"]["spec"]
    for selector in (*class_["selectors"], *request["exactly"]["selectors"]):
        assert cel.validate_selector(selector["cel"]["expression"]) == []
    parameters = json.dumps(class_["config"][0]["opaque"]["parameters"]).encode()
    assert decode_parameters(parameters, DRIVER).driver is KernelDriver.VFIO_PCI
    (limit,) = by_kind["ResourceQuota"]["spec"]["hard"]
    assert limit == f"vfio.{DRIVER}.deviceclass.resource.k8s.io/devices"
