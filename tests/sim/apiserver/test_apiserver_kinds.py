"""Kinds of the embedded API server: custom ones, discovery, tables, namespaces, who gets in."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_client import (
    CLAIMS,
    CONFIG_MAPS,
    MERGE,
    PODS,
    SLICES,
    Client,
    Raw,
    causes,
    claim,
    config_map,
    pod,
    resource_slice,
    run,
)

from dra_driver.api import resource
from dra_driver.errors import ConfigurationError, DraError
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.objects.status import StatusError

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def _definition(**version: Any) -> Raw:
    spec_schema = {
        "type": "object",
        "required": ["node"],
        "properties": {
            "node": {"type": "string", "maxLength": 5},
            "count": {"type": "integer", "minimum": 1, "default": 1},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "ports": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}}},
            },
        },
        "x-kubernetes-validations": [{"rule": "self.node != 'bad'", "message": "no bad nodes"}],
    }
    status_schema = {"type": "object", "properties": {"phase": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec_schema, "status": status_schema}}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Node", "type": "string", "jsonPath": ".spec.node"}
                    ],
                    **version,
                }
            ],
        },
    }


def _widget(name: str = "w", **spec: Any) -> Raw:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"node": "a", **spec},
    }


def test_a_definition_is_served_at_once_and_withdrawn_with_its_objects() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.get("/apis/example.com/v1"))[0] == 404
        made = await client.create(DEFINITIONS, _definition())
        assert {c["type"] for c in made["status"]["conditions"]} == {"NamesAccepted", "Established"}
        _, listed = await client.get("/apis/example.com/v1")
        assert [r["name"] for r in listed["resources"]] == ["widgets", "widgets/status"]
        await client.create(WIDGETS, _widget())
        await client.delete(f"{DEFINITIONS}/widgets.example.com")
        assert (await client.get(WIDGETS))[0] == 404
        await client.create(DEFINITIONS, _definition())
        assert (await client.get(WIDGETS))[1]["items"] == []

    run(scenario)


def test_custom_objects_are_pruned_defaulted_and_checked() -> None:
    async def scenario(client: Client) -> None:
        await client.create(DEFINITIONS, _definition())
        made = await client.create(WIDGETS, _widget(extra=1, free={"anything": [1]}))
        assert made["spec"] == {"node": "a", "count": 1, "free": {"anything": [1]}}
        assert client.warnings == ['299 - "unknown field \\"spec.extra\\""']
        not_checked = ("<nil>", "Invalid")
        for spec, expected in (
            ({"node": "bad"}, {("spec", "Invalid")}),
            ({"node": "too long"}, {("spec.node", "TooLong"), not_checked}),
            ({"node": None}, {("spec.node", "TypeInvalid"), not_checked}),
            ({"node": 5}, {("spec.node", "TypeInvalid"), not_checked}),
            ({"count": 0}, {("spec.count", "Invalid")}),
            ({"ports": [{"name": "a"}, {"name": "a"}]}, {("spec.ports[1]", "Duplicate")}),
        ):
            code, answer = await client.call("POST", WIDGETS, _widget("x", **spec))
            assert (code, causes(answer)) == (422, expected), spec
        code, _ = await client.call("POST", WIDGETS, {"metadata": {"name": "x"}, "spec": {"node": "a"}})
        assert code == 400  # custom objects must say what they are

    run(scenario)


def test_custom_objects_have_their_own_rules_for_writing() -> None:
    async def scenario(client: Client) -> None:
        await client.create(DEFINITIONS, _definition())
        await client.create(WIDGETS, _widget())
        code, answer = await client.call("PUT", f"{WIDGETS}/w", _widget())
        assert (code, causes(answer)) == (422, {("metadata.resourceVersion", "Invalid")})
        code, answer = await client.patch(f"{WIDGETS}/w", {}, "application/strategic-merge-patch+json")
        assert code == 415
        code, answer = await client.patch(f"{WIDGETS}/w", {"spec": {"count": 2}, "status": {"phase": "X"}})
        assert (answer["metadata"]["generation"], "status" in answer) == (2, False)
        code, answer = await client.patch(
            f"{WIDGETS}/w/status",
            {"spec": {"count": 9}, "status": {"phase": "Y"}, "metadata": {"labels": {"a": "b"}}},
        )
        assert answer["spec"]["count"] == 2
        assert answer["status"] == {"phase": "Y"}
        assert "labels" not in answer["metadata"]
        _, answer = await client.delete(f"{WIDGETS}/w")
        assert answer["kind"] == "Status"

    run(scenario)


def test_a_definition_that_cannot_be() -> None:
    async def scenario(client: Client) -> None:
        bad = _definition(storage=False, schema={"openAPIV3Schema": {"type": "string"}})
        bad["metadata"]["name"] = "other"
        code, answer = await client.call("POST", DEFINITIONS, bad)
        assert (code, causes(answer)) == (
            422,
            {
                ("metadata.name", "Invalid"),
                ("spec.versions", "Invalid"),
                ("spec.versions[0].schema.openAPIV3Schema.type", "Invalid"),
            },
        )

    run(scenario)


def test_two_versions_of_one_kind() -> None:
    async def scenario(client: Client) -> None:
        definition = _definition()
        first = definition["spec"]["versions"][0]
        definition["spec"]["versions"].append({**first, "name": "v2", "storage": False})
        await client.create(DEFINITIONS, definition)
        await client.create(WIDGETS, _widget())
        _, shown = await client.get(f"{WIDGETS.replace('v1', 'v2')}/w")
        assert shown["apiVersion"] == "example.com/v2"
        _, listed = await client.get(WIDGETS.replace("v1", "v2"))
        assert listed["items"][0]["apiVersion"] == "example.com/v2"
        _, patched = await client.patch(f"{WIDGETS.replace('v1', 'v2')}/w", {"spec": {"count": 3}})
        assert patched["apiVersion"] == "example.com/v2"
        _, shown = await client.get(f"{WIDGETS}/w")
        assert (shown["apiVersion"], shown["spec"]["count"]) == ("example.com/v1", 3)

    run(scenario)


def test_tables() -> None:
    async def scenario(client: Client) -> None:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        await client.create(CLAIMS, claim("c"))
        _, table = await client.get(CLAIMS, Accept=accept)
        assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "State", "Age"]
        assert table["rows"][0]["cells"][:2] == ["c", "pending"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        await client.create(DEFINITIONS, _definition())
        await client.create(WIDGETS, _widget())
        _, table = await client.get(WIDGETS, Accept=accept)
        assert table["rows"][0]["cells"] == ["w", "a"]
        await client.create(PODS, pod("p", schedulingGates=[{"name": "a.b/c"}]))
        _, table = await client.get(PODS, Accept=accept)
        assert table["rows"][0]["cells"][:4] == ["p", "0/1", "SchedulingGated", "0"]
        async with client.watch(f"{PODS}?watch=true", Accept=accept) as following:
            event = await following()
            assert event is not None
            assert event["object"]["rows"][0]["cells"][0] == "p"

    run(scenario)


def test_forms_of_the_answer() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("m", a="1"))
        _, text = await client.get(f"{CONFIG_MAPS}/m", Accept="application/yaml")
        assert yaml.safe_load(text)["data"] == {"a": "1"}
        assert (await client.get(CONFIG_MAPS, Accept="text/html"))[0] == 406
        assert (await client.get(CONFIG_MAPS, Accept="application/vnd.kubernetes.protobuf,*/*"))[0] == 200

    run(scenario)


def test_discovery_lists_what_is_served() -> None:
    async def scenario(client: Client) -> None:
        aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        _, found = await client.get("/apis", Accept=aggregated)
        groups = {g["metadata"]["name"]: g["versions"] for g in found["items"]}
        claims = next(
            r for r in groups["resource.k8s.io"][0]["resources"] if r["resource"] == "resourceclaims"
        )
        assert [s["subresource"] for s in claims["subresources"]] == ["status"]
        _, legacy = await client.get("/apis")
        assert {g["name"] for g in legacy["groups"]} == set(groups)
        for group, versions in groups.items():
            for version in versions:
                root = f"apis/{group}/{version['version']}"
                assert (await client.get(f"/{root}"))[0] == 200
                _, document = await client.get(f"/openapi/v3/{root}")
                assert document["openapi"].startswith("3.")
        assert (await client.get("/apis/nothing.example.com"))[0] == 404
        assert (await client.get("/version"))[1]["minor"] == "36"

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/nonsenses", 404),
        ("GET", "/apis/nonsense.example.com/v1/x", 404),
        ("GET", "/nonsense", 404),
        ("POST", "/api/v1/configmaps", 405),
        ("PUT", CONFIG_MAPS, 405),
        ("PATCH", "/api/v1/nodes", 405),
        ("DELETE", "/api/v1/configmaps", 405),
        ("POST", f"{CONFIG_MAPS}/m", 405),
        ("POST", f"{CONFIG_MAPS}/m/status", 404),
        ("GET", f"{CONFIG_MAPS}/a/b/c/d", 404),
        ("POST", f"{PODS}/p/log", 405),
    ],
)
def test_paths_and_methods_that_are_not(method: str, path: str, code: int) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.call(method, path, {}, MERGE if method == "PATCH" else "application/json"))[
            0
        ] == code

    run(scenario)


def test_a_deleted_namespace_takes_its_content_along() -> None:
    async def scenario(client: Client) -> None:
        await client.create("/api/v1/namespaces", {"metadata": {"name": "ns"}})
        path = CONFIG_MAPS.replace("default", "ns")
        held = config_map("held")
        held["metadata"]["finalizers"] = ["example.com/hold"]
        await client.create(path, held)
        await client.create(path, config_map("m"))
        async with client.watch(
            f"{path}?watch=true&resourceVersion={client.server.store.version}"
        ) as following:
            _, answer = await client.delete("/api/v1/namespaces/ns")
            assert answer["status"]["phase"] == "Terminating"
            code, answer = await client.call("POST", path, config_map("late"))
            assert (code, causes(answer)) == (403, {("metadata.namespace", "NamespaceTerminating")})
            assert {(await following() or {})["type"] for _ in range(2)} == {"MODIFIED", "DELETED"}
        assert (await client.get("/api/v1/namespaces/ns"))[0] == 200
        await client.patch(f"{path}/held", {"metadata": {"finalizers": None}})
        assert (await client.get("/api/v1/namespaces/ns"))[0] == 404

    run(scenario)


def test_a_token_keeps_others_out() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.get("/readyz"))[0] == 200
        assert (await client.get(CONFIG_MAPS))[0] == 401
        assert (await client.get(CONFIG_MAPS, Authorization="Bearer wrong"))[0] == 401
        assert (await client.get(CONFIG_MAPS, Authorization="Bearer s3cret"))[0] == 200

    run(scenario, token="s3cret")


def test_bodies_have_a_limit() -> None:
    async def scenario(client: Client) -> None:
        code, _ = await client.call("POST", CONFIG_MAPS, b" " * (3 * 1024 * 1024 + 1))
        assert code == 413
        code, answer = await client.call("POST", CONFIG_MAPS, config_map("m", a="x" * (1024 * 1024 + 1)))
        assert (code, causes(answer)) == (422, {("", "TooLong")})

    run(scenario)


def test_the_kubeconfig_is_its_owner_s_alone(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        path = tmp_path / "kubeconfig"
        client.server.write_kubeconfig(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        written = yaml.safe_load(path.read_text())
        assert written["clusters"][0]["cluster"]["server"] == client.server.url
        with pytest.raises(ConfigurationError, match="nowhere"):
            client.server.write_kubeconfig(tmp_path / "nowhere" / "kubeconfig")

    run(scenario)


def test_a_port_that_is_taken() -> None:
    async def scenario(client: Client) -> None:
        port = int(client.server.url.rpartition(":")[2])
        with pytest.raises(DraError, match="cannot listen"):
            await ApiServer().start(port=port)

    run(scenario)


def test_installing_objects_in_process() -> None:
    async def scenario(client: Client) -> None:
        device_class = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {},
        }
        await client.server.install([device_class])
        await client.server.install([{**device_class, "metadata": {"name": "gpu", "labels": {"a": "b"}}}])
        found = client.server.store.get(resource.DEVICE_CLASSES, "gpu")
        assert found is not None
        assert found.metadata.labels == {"a": "b"}
        assert [c.metadata.name for c in client.server.store.list(resource.DEVICE_CLASSES)] == ["gpu"]
        with pytest.raises(StatusError):
            await client.server.install([{"apiVersion": "v9", "kind": "Nothing"}])

    run(scenario)


def test_a_taint_rule_without_effect_tells_what_it_would_do() -> None:
    async def scenario(client: Client) -> None:
        rules = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
        await client.create(SLICES, resource_slice("s"))
        rule = {
            "metadata": {"name": "t"},
            "spec": {"deviceSelector": {}, "taint": {"key": "a", "effect": "None"}},
        }
        await client.create(rules, rule)
        condition = (await client.get(f"{rules}/t"))[1]["status"]["conditions"][0]
        assert condition["reason"] == "NoEffect"
        assert condition["message"].startswith("1 published device selected. 0 allocated devices selected.")
        assert "deprecated" in client.warnings[0]

    run(scenario)
