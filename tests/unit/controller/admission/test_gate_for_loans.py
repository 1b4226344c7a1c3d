"""Which pods the policy gates where devices are lent: those that name claims, or extended resources."""

from __future__ import annotations

from typing import Any

import builders
import pytest
import yaml

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.cel.policies import compile_policy
from dra_driver.resourceclaim import extended_resources, uses_claims
from dra_driver.sim.assets import deploy_directory

NAMES = (
    "example.com/gpu",
    "deviceclass.resource.kubernetes.io/gpu",
    "cpu",
    "hugepages-2Mi",
    "kubernetes.io/batch-cpu",
    "node.kubernetes.io/x",
    "requests.example.com/gpu",
)


def condition(path: str) -> str:
    text = (deploy_directory("optional") / "lending" / path).read_text(encoding="utf-8")
    (policy,) = (d for d in yaml.safe_load_all(text) if d["kind"] == "MutatingAdmissionPolicy")
    (found,) = (c for c in policy["spec"]["matchConditions"] if c["name"] == "uses-claims")
    expression: str = found["expression"]
    return expression


def asking(name: str, *, init: bool = False) -> dict[str, Any]:
    wants = {"name": "c", "image": "i", "resources": {"requests": {name: "1"}}}
    body = builders.pod("p")
    if init:
        body["spec"]["initContainers"] = [wants]
    else:
        body["spec"]["containers"] = [wants]
    return body


@pytest.mark.parametrize("init", [False, True], ids=["container", "init container"])
@pytest.mark.parametrize("name", NAMES)
def test_a_pod_is_gated_where_a_class_could_serve_what_it_asks_for(name: str, init: bool) -> None:
    gates = compile_policy(condition("gating.yaml"), ["object"])
    body = asking(name, init=init)
    assert gates.value({"object": body}) is bool(extended_resources(codec.convert(Pod, body)))


@pytest.mark.parametrize("claims", [(), ("c",)])
def test_a_pod_is_gated_where_it_names_claims(claims: tuple[str, ...]) -> None:
    gates = compile_policy(condition("gating.yaml"), ["object"])
    body = builders.pod("p", *claims)
    assert gates.value({"object": body}) is uses_claims(codec.convert(Pod, body))
