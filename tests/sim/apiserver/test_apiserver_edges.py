"""Corners of the API where a comparison with Kubernetes 1.36.2 once showed a difference."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver_client import (
    APPLY,
    CONFIG_MAPS,
    DRA,
    JSON_PATCH,
    MERGE,
    SLICES,
    STRATEGIC,
    Client,
    causes,
    claim,
    config_map,
    resource_slice,
    run,
)

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
PATH = f"{CONFIG_MAPS}/a"


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "code"),
    [
        ("POST", CONFIG_MAPS, b"null", "application/json", 422),
        ("PATCH", PATH, {"metadata": {"uid": "x"}}, MERGE, 422),
        ("PATCH", PATH, {"kind": "Other"}, MERGE, 422),
        ("PATCH", PATH, {"apiVersion": "x/v1"}, MERGE, 422),
        ("PATCH", PATH, {"kind": None}, MERGE, 200),
        ("PATCH", PATH, {"kind": "Other"}, STRATEGIC, 200),
        ("PATCH", PATH, [{"op": "replace", "path": "/data/new", "value": "1"}], JSON_PATCH, 200),
        ("PATCH", PATH, [{"op": "test", "path": "/metadata/nope", "value": None}], JSON_PATCH, 200),
        ("PATCH", PATH, [{"op": "replace", "path": "", "value": {}}], JSON_PATCH, 400),
        ("PATCH", PATH, {"data": {"$patch": "bogus"}}, STRATEGIC, 500),
        (
            "PATCH",
            PATH,
            {"metadata": {"$setElementOrder/finalizers": ["q"], "finalizers": ["a.com/q"]}},
            STRATEGIC,
            500,
        ),
        ("PATCH", f"{PATH}?fieldValidation=Strict", b'{"data":{},"data":{}}', MERGE, 422),
        ("PATCH", f"{PATH}?fieldManager=t", config_map("other"), APPLY, 400),
        ("GET", f"{PATH}?resourceVersion=abc", None, MERGE, 500),
        ("GET", f"{CONFIG_MAPS}?timeoutSeconds=x", None, MERGE, 400),
        ("DELETE", PATH, {"propagationPolicy": "Orphan", "orphanDependents": True}, "application/json", 422),
        ("DELETE", PATH, {"gracePeriodSeconds": "x"}, "application/json", 400),
        ("GET", f"{SLICES}?fieldSelector=metadata.namespace=x", None, MERGE, 400),
    ],
)
def test_answers(method: str, path: str, body: Any, content_type: str, code: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a", one="1"))
        answered, answer = await client.call(method, path, body, content_type)
        assert answered == code, answer

    run(scenario)


def test_a_deletion_with_a_body_does_not_look_at_its_query() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a"))
        assert (await client.delete(f"{PATH}?dryRun=All"))[0] == 200
        assert (await client.get(PATH))[0] == 200
        assert (await client.delete(f"{PATH}?dryRun=All", {"kind": "DeleteOptions", "apiVersion": "v1"}))[
            0
        ] == 200
        assert (await client.get(PATH))[0] == 404

    run(scenario)


def test_owners_named_twice_count_once_and_the_user_is_told() -> None:
    async def scenario(client: Client) -> None:
        body = config_map("a")
        body["metadata"]["ownerReferences"] = [OWNER, dict(OWNER)]
        made = await client.create(CONFIG_MAPS, body)
        assert len(made["metadata"]["ownerReferences"]) == 1
        assert "duplicate UID(s) observed: u" in client.warnings[0]
        body["metadata"] = {"name": "b", "ownerReferences": [{**OWNER, "kind": "Event"}]}
        code, answer = await client.call("POST", CONFIG_MAPS, body)
        assert (code, causes(answer)) == (422, {("metadata.ownerReferences", "Invalid")})

    run(scenario)


def test_warnings_come_with_errors_too() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a"))
        code, _ = await client.call("POST", CONFIG_MAPS, {**config_map("a"), "zzz": 1})
        assert (code, client.warnings) == (409, ['299 - "unknown field \\"zzz\\""'])

    run(scenario)


def test_cluster_wide_objects_lose_a_namespace() -> None:
    async def scenario(client: Client) -> None:
        body = resource_slice("s")
        body["metadata"]["namespace"] = "other"
        made = await client.create(SLICES, body)
        assert "namespace" not in made["metadata"]

    run(scenario)


def test_objects_that_are_not_there_have_no_uid() -> None:
    async def scenario(client: Client) -> None:
        lease = {"metadata": {"name": "l", "uid": "x"}, "spec": {}}
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
        assert (await client.call("PUT", path, lease))[0] == 409
        body = config_map("b")
        body["metadata"]["uid"] = "x"
        assert (await client.call("PATCH", f"{CONFIG_MAPS}/b?fieldManager=t", body, APPLY))[0] == 409

    run(scenario)


def test_a_changed_template_is_told_all_that_is_wrong() -> None:
    async def scenario(client: Client) -> None:
        path = f"{DRA}/namespaces/default/resourceclaimtemplates"
        made = await client.create(path, {"metadata": {"name": "t"}, "spec": {"spec": claim("c")["spec"]}})
        made["spec"]["spec"]["devices"]["requests"][0]["name"] = "A b"
        code, answer = await client.call("PUT", f"{path}/t", made)
        wrong = {("spec", "Invalid"), ("spec.spec.devices.requests[0].name", "Invalid")}
        assert (code, causes(answer)) == (422, wrong)

    run(scenario)


def test_an_empty_list_is_no_change_of_the_spec() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(f"{DRA}/deviceclasses", {"metadata": {"name": "c"}, "spec": {}})
        made["spec"]["config"] = []
        code, answer = await client.call("PUT", f"{DRA}/deviceclasses/c", made)
        assert (code, answer["metadata"]["generation"]) == (200, 1)

    run(scenario)
