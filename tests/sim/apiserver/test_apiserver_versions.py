"""One object in several versions: v1beta1 and v1beta2 of resource.k8s.io are served beside v1."""

from __future__ import annotations

import pytest
from apiserver_client import APPLY, CLAIMS, JSON_PATCH, SLICES, Client, causes, claim, resource_slice, run

BETA1, BETA2 = "/apis/resource.k8s.io/v1beta1", "/apis/resource.k8s.io/v1beta2"
CLAIMS1 = f"{BETA1}/namespaces/default/resourceclaims"
FLAT = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c"},
    "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu"}]}},
}
REQUEST = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}


def test_a_claim_of_v1beta1_is_one_of_v1() -> None:
    async def scenario(client: Client) -> None:
        made = await client.create(CLAIMS1, FLAT)
        assert made["apiVersion"] == "resource.k8s.io/v1beta1"
        assert made["spec"]["devices"]["requests"] == [{"name": "gpu", **REQUEST}]
        assert "is deprecated in v1.35+" in client.warnings[0]
        _, new = await client.get(f"{CLAIMS}/c")
        assert new["apiVersion"] == "resource.k8s.io/v1"
        assert new["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": REQUEST}]
        _, old = await client.get(CLAIMS1)
        (item,) = old["items"]
        assert "apiVersion" not in item
        assert item["spec"] == made["spec"]
        _, deleted = await client.delete(f"{CLAIMS1}/c")
        assert deleted["spec"] == made["spec"]

    run(scenario)


def test_patches_are_of_the_version_of_their_path() -> None:
    async def scenario(client: Client) -> None:
        await client.create(CLAIMS, claim("c"))
        label = {"metadata": {"labels": {"a": "b"}}}
        code, answer = await client.patch(f"{CLAIMS1}/c", label)
        assert (code, answer["spec"]["devices"]["requests"][0]["deviceClassName"]) == (200, "gpu")
        count = [{"op": "replace", "path": "/spec/devices/requests/0/count", "value": 2}]
        code, answer = await client.patch(f"{CLAIMS1}/c", count, JSON_PATCH)
        assert (code, causes(answer)) == (422, {("spec", "Invalid")}), "claims are immutable"
        code, _ = await client.call(
            "PATCH", f"{CLAIMS1}/d?fieldManager=t", {**FLAT, "metadata": {"name": "d"}}, APPLY
        )
        assert code == 201
        _, new = await client.get(f"{CLAIMS}/d")
        assert new["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": REQUEST}]

    run(scenario)


def test_unknown_fields_are_those_of_the_version() -> None:
    async def scenario(client: Client) -> None:
        body = {**claim("c"), "apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim"}
        code, answer = await client.call("POST", f"{CLAIMS1}?fieldValidation=Strict", body)
        assert code == 400
        assert 'unknown field "spec.devices.requests[0].exactly"' in answer["message"]
        code, answer = await client.call("POST", CLAIMS, {**FLAT, "apiVersion": "resource.k8s.io/v1"})
        assert causes(answer) == {("spec.devices.requests[0]", "Required")}

    run(scenario)


@pytest.mark.parametrize(("base", "nested"), [(BETA1, True), (BETA2, False)])
def test_slices_and_their_watches_in_old_versions(base: str, nested: bool) -> None:
    async def scenario(client: Client) -> None:
        await client.create(SLICES, resource_slice("s"))
        async with client.watch(f"{base}/resourceslices?watch=true") as following:
            event = await following()
        assert event is not None
        (device,) = event["object"]["spec"]["devices"]
        assert event["object"]["apiVersion"] == base.removeprefix("/apis/")
        capacity = {"capacity": {"memory": {"value": "1Gi"}}}
        assert device == {"name": "d0", **({"basic": capacity} if nested else capacity)}

        sent = resource_slice("t")
        if nested:
            device = sent["spec"]["devices"][0]
            sent["spec"]["devices"] = [{"name": "d0", "basic": {"capacity": device["capacity"]}}]
        await client.create(f"{base}/resourceslices", sent)
        _, new = await client.get(f"{SLICES}/t")
        assert new["spec"]["devices"] == [{"name": "d0", **capacity}]

    run(scenario)


def test_v1_is_preferred() -> None:
    async def scenario(client: Client) -> None:
        _, group = await client.get("/apis/resource.k8s.io")
        assert [v["version"] for v in group["versions"]] == ["v1", "v1beta2", "v1beta1"]
        assert group["preferredVersion"]["version"] == "v1"

    run(scenario)
