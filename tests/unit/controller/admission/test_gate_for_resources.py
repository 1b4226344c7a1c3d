"""Which pods get the gate where pools may be open: the policy and the webhook say the same, case by case."""

from __future__ import annotations

from typing import Any

import builders
import msgspec
import pytest
import yaml

from controller.admission.review import gate
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.server.admission import AdmissionRequest, GroupVersionKind
from dra_driver.cel.policies import compile_policy
from dra_driver.resourceclaim import (
    NAMES_CLAIMS,
    NAMES_CLAIMS_OR_RESOURCES,
    extended_resources,
    uses_claims,
)
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


def condition(folder: str, part: str) -> str:
    text = (deploy_directory(folder) / part).read_text(encoding="utf-8")
    (policy,) = (d for d in yaml.safe_load_all(text) if d["kind"] == "MutatingAdmissionPolicy")
    (found,) = (c for c in policy["spec"]["matchConditions"] if c["name"] == "uses-claims")
    expression: str = found["expression"]
    return expression


def test_the_policies_say_what_the_webhook_says() -> None:
    def words(expression: str) -> str:
        return "".join(expression.split())

    assert words(condition("optional", "labelled-namespaces.yaml")) == words(NAMES_CLAIMS)
    assert words(condition("manifests", "gate-policy/gating.yaml")) == words(NAMES_CLAIMS_OR_RESOURCES)


def by_policy(body: dict[str, Any]) -> bool:
    expression = condition("manifests", "gate-policy/gating.yaml")
    return compile_policy(expression, ["object"]).value({"object": body}) is True


def by_webhook(body: dict[str, Any], *, resources: bool = True) -> bool:
    request = AdmissionRequest(
        uid="u",
        kind=GroupVersionKind(version="v1", kind="Pod"),
        operation="CREATE",
        object=msgspec.Raw(msgspec.json.encode(body)),
    )
    return gate(request, resources=resources).outcome == "gated"


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
    body = asking(name, init=init)
    wanted = bool(extended_resources(codec.convert(Pod, body)))
    assert (by_policy(body), by_webhook(body)) == (wanted, wanted)
    assert not by_webhook(body, resources=False)


@pytest.mark.parametrize("claims", [(), ("c",)])
def test_a_pod_is_gated_where_it_names_claims(claims: tuple[str, ...]) -> None:
    body = builders.pod("p", *claims)
    wanted = uses_claims(codec.convert(Pod, body))
    assert {by_policy(body), by_webhook(body), by_webhook(body, resources=False)} == {wanted}


@pytest.mark.parametrize("resources", [False, True])
def test_a_pod_with_a_node_is_not_gated(resources: bool) -> None:
    body = asking("example.com/gpu")
    body["spec"]["nodeName"] = "n1"
    assert not by_webhook(body, resources=resources)
