"""What is installed to keep devices for the controller is compared part by part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from manifest_files import documents

from dra_driver.api import codec
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, RDMA_DRIVER_NAME
from dra_driver.api.server.admission import ValidatingPolicy, ValidatingPolicyBinding
from dra_driver.resourceclaim import guard_problem, turn_of_refusal
from dra_driver.sim.assets import deploy_directory

Body = dict[str, Any]
Change = Callable[[Body, Body], object]
INSTALLED = {d["kind"]: d for d in documents(deploy_directory("manifests") / "60-grants.yaml")}


def problem(
    change: Change = lambda _policy, _binding: None,
    drivers: tuple[str, ...] = (DEFAULT_DRIVER_NAME,),
    namespace: str = "dra-driver",
) -> str:
    """Return what is wrong with what the chart installs after a change of it."""
    kinds = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
    policy, binding = (copy.deepcopy(INSTALLED[kind]) for kind in kinds)
    change(policy, binding)
    return guard_problem(
        codec.convert(ValidatingPolicy, policy),
        codec.convert(ValidatingPolicyBinding, binding),
        drivers,
        namespace,
    )


def as_stored(policy: Body, binding: Body) -> None:
    """Do as an API server, which fills in what is not said."""
    match = policy["spec"]["matchConstraints"]
    match |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    for rule in match["resourceRules"]:
        rule["scope"] = "*"
    binding["spec"]["matchResources"] = {"namespaceSelector": {}, "objectSelector": {}}


def test_what_the_chart_installs_is_as_it_should_be() -> None:
    assert not problem()
    assert not problem(as_stored)
    assert not problem(drivers=(DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME))


def _spec(**changes: Any) -> Change:
    return lambda policy, _: policy["spec"].update(changes)


def _match(**changes: Any) -> Change:
    return lambda policy, _: policy["spec"]["matchConstraints"].update(changes)


def _rule(**changes: Any) -> Change:
    return lambda policy, _: policy["spec"]["matchConstraints"]["resourceRules"][0].update(changes)


def _bound(**changes: Any) -> Change:
    return lambda _, binding: binding["spec"].update(changes)


def _condition(policy: Body, _: Body) -> None:
    (condition,) = policy["spec"]["matchConditions"]
    condition["expression"] = (
        f"({condition['expression']}) && request.userInfo.username != 'system:kube-scheduler'"
    )


def _variable(policy: Body, _: Body) -> None:
    policy["spec"]["variables"][-1]["expression"] = "true"


def _validation(policy: Body, _: Body) -> None:
    (validation,) = policy["spec"]["validations"]
    validation["expression"] += " || true"


def _deleted(policy: Body, _: Body) -> None:
    policy["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "change",
    [
        _spec(failurePolicy="Ignore"),
        _spec(paramKind={"apiVersion": "v1", "kind": "Secret"}),
        _spec(matchConditions=[]),
        _spec(matchConditions=[{"name": "never", "expression": "false"}]),
        _spec(validations=[]),
        _spec(variables=[]),
        _match(namespaceSelector={"matchLabels": {"a": "b"}}),
        _match(objectSelector={"matchLabels": {"a": "b"}}),
        _match(excludeResourceRules=[{"resources": ["resourceclaims/status"]}]),
        _match(resourceRules=[]),
        _rule(operations=["CREATE"]),
        _rule(resources=["resourceclaims"]),
        _rule(apiVersions=["v1"]),
        _rule(apiGroups=["apps"]),
        _rule(resourceNames=["c"]),
        _rule(scope="Cluster"),
        _condition,
        _variable,
        _validation,
        _deleted,
        _bound(validationActions=["Audit"]),
        _bound(policyName="other"),
        _bound(paramRef={"name": "other", "namespace": "dra-driver", "parameterNotFoundAction": "Allow"}),
        _bound(paramRef={"name": GRANTS, "namespace": "other", "parameterNotFoundAction": "Allow"}),
        _bound(paramRef={"selector": {}, "namespace": "dra-driver", "parameterNotFoundAction": "Allow"}),
        _bound(matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}}),
        _bound(matchResources={"resourceRules": [{"resources": ["pods"]}]}),
    ],
)
def test_a_policy_that_may_admit_what_it_should_refuse_is_found(change: Change) -> None:
    assert GRANTS in problem(change)


def test_another_driver_or_namespace_is_not_kept() -> None:
    assert problem(drivers=(DEFAULT_DRIVER_NAME, "gpu.vendor.example"))
    assert problem(namespace="other")


def test_the_turn_is_that_of_our_policy_alone() -> None:
    text = "it is forbidden: ValidatingAdmissionPolicy '{}' with binding 'x' denied request: no (turn 12)"
    assert turn_of_refusal(text.format(GRANTS)) == 12
    assert turn_of_refusal(text.format("other")) is None
    assert turn_of_refusal("User cannot patch resource (turn 12)") is None
