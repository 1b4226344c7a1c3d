"""ValidatingAdmissionPolicies: which requests they concern, and what they answer."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver_client import CONFIG_MAPS, Client, run

GROUP = "/apis/admissionregistration.k8s.io/v1"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
HIDDEN = {"matchLabels": {"hidden": "yes"}}


async def install(client: Client, spec: dict[str, Any], **binding: Any) -> None:
    metadata = {"name": "p"}
    constraints = {"resourceRules": [RULE], **spec.pop("constraints", {})}
    body = {"validations": [{"expression": "false"}], "matchConstraints": constraints, **spec}
    await client.create(f"{GROUP}/validatingadmissionpolicies", {"metadata": metadata, "spec": body})
    bound = {"policyName": "p", "validationActions": ["Deny"], **binding}
    await client.create(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": metadata, "spec": bound})


async def attempt(client: Client, **labels: str) -> tuple[int, Any]:
    return await client.call("POST", CONFIG_MAPS, {"metadata": {"name": "c", "labels": labels}})


@pytest.mark.parametrize(
    ("spec", "binding", "labels", "code"),
    [
        ({}, {}, {}, 422),
        ({"validations": [{"expression": "true"}]}, {}, {}, 201),
        ({"matchConditions": [{"name": "m", "expression": "object.metadata.name == 'd'"}]}, {}, {}, 201),
        ({"constraints": {"resourceRules": [{**RULE, "operations": ["UPDATE"]}]}}, {}, {}, 201),
        ({"constraints": {"excludeResourceRules": [RULE]}}, {}, {}, 201),
        ({"constraints": {"objectSelector": HIDDEN}}, {}, {}, 201),
        ({"constraints": {"objectSelector": HIDDEN}}, {}, {"hidden": "yes"}, 422),
        ({"constraints": {"namespaceSelector": HIDDEN}}, {}, {}, 201),
        ({}, {"matchResources": {"objectSelector": HIDDEN}}, {}, 201),
        ({}, {"validationActions": ["Audit"]}, {}, 201),
        ({"validations": [{"expression": "object.no.such == 1"}]}, {}, {}, 422),
        ({"validations": [{"expression": "object.no.such == 1"}], "failurePolicy": "Ignore"}, {}, {}, 201),
    ],
)
def test_what_a_policy_concerns(
    spec: dict[str, Any], binding: dict[str, Any], labels: dict[str, str], code: int
) -> None:
    async def scenario(client: Client) -> None:
        await install(client, dict(spec), **binding)
        answer = await attempt(client, **labels)
        assert answer[0] == code, answer

    run(scenario)


def test_the_answer_has_the_reason_and_the_message_of_the_validation() -> None:
    async def scenario(client: Client) -> None:
        validation = {
            "expression": "variables.name != 'c'",
            "reason": "Forbidden",
            "message": "no",
            "messageExpression": "'not ' + variables.name + ', ' + request.userInfo.username",
        }
        variables = [{"name": "name", "expression": "object.metadata.name"}]
        await install(client, {"validations": [validation], "variables": variables})
        code, status = await attempt(client)
        said = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: not c, kubernetes-admin"
        assert (code, status["reason"]) == (403, "Forbidden")
        assert status["message"] == f'configmaps "c" is forbidden: {said}'

    run(scenario)


def test_a_policy_without_a_binding_and_one_that_was_changed() -> None:
    async def scenario(client: Client) -> None:
        await install(client, {})
        assert (await attempt(client))[0] == 422
        patch = {"spec": {"validations": [{"expression": "true"}]}}
        assert (await client.patch(f"{GROUP}/validatingadmissionpolicies/p", patch))[0] == 200
        assert (await attempt(client))[0] == 201
        assert (
            await client.patch(
                f"{GROUP}/validatingadmissionpolicies/p", {"spec": {"validations": [{"expression": "false"}]}}
            )
        )[0] == 200
        await client.delete(f"{GROUP}/validatingadmissionpolicybindings/p")
        code, _ = await client.call("POST", CONFIG_MAPS, {"metadata": {"name": "d"}})
        assert code == 201

    run(scenario)
