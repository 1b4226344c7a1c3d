"""Rules in CustomResourceDefinitions: those that we ship work, broken ones are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from apiserver_client import Client, Raw, causes, run
from manifest_files import documents

from dra_driver.sim.assets import deploy_directory

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FILES = sorted((deploy_directory("manifests") / "crds").glob("*.yaml"))


def definition(**properties: Any) -> Raw:
    schema = {"type": "object", "properties": {"spec": {"type": "object", **properties}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_rules_of_our_own_definitions_compile(path: Any) -> None:
    async def scenario(client: Client) -> None:
        for body in documents(path):
            await client.create(CRDS, body)

    run(scenario)


def test_rules_that_cannot_be_compiled_are_refused_with_their_place() -> None:
    async def scenario(client: Client) -> None:
        body = definition(
            properties={"n": {"type": "integer"}}, **{"x-kubernetes-validations": [{"rule": "self.m > 1"}]}
        )
        code, answer = await client.call("POST", CRDS, body)
        where = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
        assert (code, causes(answer)) == (422, {(where, "Invalid")})

    run(scenario)


def test_items_of_keyed_lists_are_compared_with_what_they_were() -> None:
    item = {
        "type": "object",
        "properties": {"key": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["key"],
        "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n", "message": "only grows"}],
    }
    listed = {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["key"],
    }

    async def scenario(client: Client) -> None:
        await client.create(CRDS, definition(properties={"items": listed}))
        path = "/apis/example.com/v1/things"
        items = [{"key": "a", "n": 5}, {"key": "b", "n": 1}]
        thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
        made = await client.create(path, {**thing, "spec": {"items": items}})
        changed = copy.deepcopy(made)
        changed["spec"]["items"] = [{"key": "b", "n": 2}, {"key": "a", "n": 4}, {"key": "c", "n": 0}]
        code, answer = await client.call("PUT", f"{path}/t", changed)
        assert (code, causes(answer)) == (422, {("spec.items[1]", "Invalid")})
        changed["spec"]["items"][1]["n"] = 6
        assert (await client.call("PUT", f"{path}/t", changed))[0] == 200

    run(scenario)
