"""The patches that the embedded API server understands, and who owns which field."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver_client import (
    APPLY,
    CLAIMS,
    CONFIG_MAPS,
    JSON_PATCH,
    PODS,
    STRATEGIC,
    Client,
    Raw,
    causes,
    claim,
    config_map,
    pod,
    run,
)

from dra_driver.sim.apiserver.objects.fields import struct_type
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.writing.managed import Manager, record_update
from dra_driver.sim.apiserver.writing.patches import json_patch, merge_patch, strategic_merge


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "remove", "path": "/a/1"}], {"a": [1]}),
        ([{"op": "replace", "path": "/a", "value": {"x~y/z": 1}}], {"a": {"x~y/z": 1}}),
        ([{"op": "copy", "from": "/a/0", "path": "/b"}], {"a": [1, 2], "b": 1}),
        ([{"op": "move", "from": "/a", "path": "/b"}], {"b": [1, 2]}),
        ([{"op": "test", "path": "/a/1", "value": 2}], {"a": [1, 2]}),
        ([{"op": "add", "path": "", "value": {}}], {}),
    ],
)
def test_json_patch(operations: list[Raw], result: Raw) -> None:
    before: Raw = {"a": [1, 2]}
    assert json_patch(before, operations) == result
    assert before == {"a": [1, 2]}


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/a", "value": 1}],
        [{"op": "remove", "path": "/nope"}],
        [{"op": "add", "path": "/a/9", "value": 1}],
        [{"op": "nope", "path": "/a"}],
        [{"path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}],
        {},
        ["x"],
    ],
)
def test_a_json_patch_that_does_not_apply(operations: Any) -> None:
    with pytest.raises(StatusError):
        json_patch({"a": [1, 2]}, operations)


def test_merge_patch_removes_with_null() -> None:
    assert merge_patch({"a": {"b": 1, "c": 2}, "d": 1}, {"a": {"b": None, "x": {"y": None}}, "d": None}) == {
        "a": {"c": 2, "x": {}}
    }


def test_strategic_merge_by_key() -> None:
    old = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}
    patch = {
        "spec": {
            "containers": [
                {"name": "b", "image": "2"},
                {"name": "c", "image": "3"},
                {"name": "a", "$patch": "delete"},
            ]
        }
    }
    merged = strategic_merge(old, patch, struct_type("core.Pod"))
    assert merged["spec"]["containers"] == [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]


def test_strategic_merge_of_sets_and_replacement() -> None:
    node = struct_type("core.Pod")
    old = {"metadata": {"finalizers": ["a"]}, "spec": {"nodeSelector": {"x": "1"}}}
    patch = {"metadata": {"finalizers": ["b"]}, "spec": {"nodeSelector": {"$patch": "replace", "y": "2"}}}
    merged = strategic_merge(old, patch, node)
    assert merged["metadata"]["finalizers"] == ["b", "a"]
    assert merged["spec"]["nodeSelector"] == {"y": "2"}
    merged = strategic_merge(merged, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, node)
    assert merged["metadata"]["finalizers"] == ["b"]


def test_an_item_without_its_merge_key() -> None:
    with pytest.raises(StatusError):
        strategic_merge(
            {"spec": {"containers": [{"name": "a"}]}},
            {"spec": {"containers": [{"image": "x"}]}},
            struct_type("core.Pod"),
        )


def test_patches_may_not_move_an_object() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("m"))
        for patch in ({"metadata": {"name": "x"}}, {"metadata": {"namespace": "x"}}):
            assert (await client.patch(f"{CONFIG_MAPS}/m", patch))[0] == 400
        assert (await client.patch(f"{CONFIG_MAPS}/m", {"kind": "Secret"}))[0] == 422
        assert (await client.patch(f"{CONFIG_MAPS}/m", {}, "text/plain"))[0] == 415
        assert (await client.patch(f"{CONFIG_MAPS}/nope", {}))[0] == 404

    run(scenario)


def test_json_patch_with_a_tested_version() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(CONFIG_MAPS, config_map("m", a="1"))
        version = made["metadata"]["resourceVersion"]
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/data/b", "value": "2"},
        ]
        assert (await client.patch(f"{CONFIG_MAPS}/m", patch, JSON_PATCH))[0] == 200
        assert (await client.patch(f"{CONFIG_MAPS}/m", patch, JSON_PATCH))[0] == 422

    run(scenario)


def test_strategic_merge_of_conditions() -> None:
    async def scenario(client: Client) -> None:
        await client.create(PODS, pod("p"))
        for type_ in ("Ready", "Initialized", "Ready"):
            status = {"status": {"conditions": [{"type": type_, "status": "True"}]}}
            await client.patch(f"{PODS}/p/status", status, STRATEGIC)
        found = (await client.get(f"{PODS}/p"))[1]["status"]["conditions"]
        assert [c["type"] for c in found] == ["Initialized", "Ready"]

    run(scenario)


async def _apply(client: Client, path: str, manager: str, body: Raw, force: bool = False) -> tuple[int, Any]:
    force_parameter = "&force=true" if force else ""
    return await client.patch(f"{path}?fieldManager={manager}{force_parameter}", body, APPLY)


def test_apply_creates_shares_and_removes() -> None:
    async def scenario(client: Client) -> None:
        path = f"{CONFIG_MAPS}/m"
        assert (await _apply(client, path, "one", config_map("m", a="1", b="1")))[0] == 201
        assert (await _apply(client, path, "two", config_map("m", a="1", c="1")))[0] == 200
        code, answer = await _apply(client, path, "one", config_map("m"))
        assert (code, answer["data"]) == (200, {"a": "1", "c": "1"})
        version = answer["metadata"]["resourceVersion"]
        code, answer = await _apply(client, path, "one", config_map("m"))
        assert answer["metadata"]["resourceVersion"] == version

    run(scenario)


def test_apply_conflicts_with_other_owners_unless_forced() -> None:
    async def scenario(client: Client) -> None:
        path = f"{CONFIG_MAPS}/m"
        await client.create(CONFIG_MAPS, config_map("m", a="1"))
        code, answer = await _apply(client, path, "one", config_map("m", a="2"))
        assert (code, causes(answer)) == (409, {(".data.a", "FieldManagerConflict")})
        code, answer = await _apply(client, path, "one", config_map("m", a="2"), force=True)
        assert (code, answer["data"]) == (200, {"a": "2"})
        managers = {m["manager"]: m["fieldsV1"] for m in answer["metadata"]["managedFields"]}
        assert managers == {"one": {"f:data": {"f:a": {}}}}

    run(scenario)


def test_two_managers_of_one_claim_s_status() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CLAIMS, claim("c"))
        meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
        device = {"driver": "gpu.example.com", "pool": "n1", "device": "d0"}
        allocation = {"devices": {"results": [{"request": "r0", **device}]}}
        path = f"{CLAIMS}/c/status"
        assert (await _apply(client, path, "alloc", {**meta, "status": {"allocation": allocation}}))[0] == 200
        code, both = await _apply(client, path, "driver", {**meta, "status": {"devices": [device]}})
        assert (code, set(both["status"])) == (200, {"allocation", "devices"})
        code, left = await _apply(client, path, "driver", meta)
        assert set(left["status"]) == {"allocation"}
        code, left = await _apply(client, path, "alloc", meta)
        assert not left["status"]

    run(scenario)


def test_what_apply_refuses() -> None:
    async def scenario(client: Client) -> None:
        path = f"{CONFIG_MAPS}/m"
        body = config_map("m")
        assert (await client.patch(path, body, APPLY))[0] == 422  # no manager
        assert (await _apply(client, path, "x", {"metadata": {"name": "m"}}))[0] == 400
        assert (await _apply(client, path, "x", config_map("other")))[0] == 400
        assert (await _apply(client, path, "x", {**body, "nonsense": 1}))[0] == 500
        assert (await _apply(client, path, "x", {**body, "data": {"a": 1}}))[0] == 500
        assert (await _apply(client, f"{CLAIMS}/nope/status", "x", {}))[0] == 400

    run(scenario)


def test_apply_reads_yaml() -> None:
    async def scenario(client: Client) -> None:
        text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  day: 2026-01-01\n"
        code, answer = await client.call("PATCH", f"{CONFIG_MAPS}/m?fieldManager=x", text, APPLY)
        assert (code, answer["data"]) == (201, {"day": "2026-01-01"})

    run(scenario)


class CountedItem(dict[str, str]):
    """An item of a list that counts how often it is asked for its fields."""

    asked = 0

    def get(self, *arguments: Any) -> Any:
        CountedItem.asked += 1
        return super().get(*arguments)


def test_owners_of_a_long_list_are_found_without_searching_it_for_each_item() -> None:
    """A pod with 1,000 scheduling gates took the API server a second, and others waited."""
    many = 300
    gates = [CountedItem(name=f"example.com/{i}") for i in range(many)]
    made: Raw = {"metadata": {"name": "p"}, "spec": {"schedulingGates": gates}}
    record_update(struct_type("core.Pod"), None, made, Manager("kubectl", "v1", "", "now"))
    assert len(made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:schedulingGates"]) == many
    assert CountedItem.asked < 10 * many
