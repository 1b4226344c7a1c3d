"""Grants as an API server applies them: whose new allocations it admits, at which size, and how soon.

The stand-in, and the real one (``DRA_K8S_BIN``). With ``-s`` they print what was measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from policy_cases import MERGE, NODE, SYSTEM, TENANT, THEIRS, allocation, result
from policy_world import COLLECTIONS, create, refusing_policy
from real_apiserver import real_apiserver

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, EXTENDED_RESOURCE_ANNOTATION
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import ApiError
from dra_driver.kube import KubeApi
from dra_driver.ownership import (
    MAX_GRANT_BYTES,
    MAX_LISTED,
    SHARE,
    VARIABLES,
    Grants,
    PoolID,
    admitted,
    grant_key,
    grant_key_of_pod,
)
from dra_driver.sim.apiserver import ApiServer

pytestmark = pytest.mark.slow

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
POLICY = "grants"
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{TENANT}/resourceclaims"
OURS = DriverName(DEFAULT_DRIVER_NAME)
POOL = PoolID(OURS, PoolName(NODE))
# Longest results of a claim, and longest names.
MOST_RESULTS = 32
SECONDS = 60.0
SHARE_ID = "00000000-0000-4000-8000-000000000001"

Body = dict[str, Any]


def policy(missing: str) -> list[Body]:
    """Return the policy and its binding; ``missing``: what is done where the object is not there."""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["resourceclaims/status"],
    }
    spec = {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": {"resourceRules": [rule]},
        "variables": [{"name": name, "expression": text} for name, text in VARIABLES.items()],
        "validations": [
            {
                "expression": admitted([OURS]),
                "reason": "Forbidden",
                "messageExpression": "'turn ' + (has(params.data) && '_turn' in params.data"
                " ? params.data['_turn'] : '')",
                "message": "no grant",
            }
        ],
    }
    binding = {
        "policyName": POLICY,
        "paramRef": {"name": POLICY, "namespace": SYSTEM, "parameterNotFoundAction": missing},
        "validationActions": ["Deny"],
    }
    version, metadata = "admissionregistration.k8s.io/v1", {"name": POLICY}
    kind = "ValidatingAdmissionPolicy"
    return [
        {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec},
        {"apiVersion": version, "kind": f"{kind}Binding", "metadata": metadata, "spec": binding},
    ]


class World:
    """An API server with the policy, and with claims of a tenant; every account is kube-scheduler's."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.claims: dict[str, ResourceClaim] = {}

    async def install(self, missing: str = "Allow") -> None:
        for name in (SYSTEM, TENANT):
            await create(
                self.api, "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", **named(name)}
            )
        await self.write(Grants())
        for body in policy(missing):
            await create(self.api, COLLECTIONS[body["kind"]], body)
        await self.claim("probe")
        await self.until("probe", [result(OURS, NODE)], POLICY)

    async def claim(self, name: str, *, extended_of: str = "") -> ResourceClaim:
        request = {"name": "gpu", "exactly": {"deviceClassName": "any"}}
        body: Body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": TENANT},
            "spec": {"devices": {"requests": [request]}},
        }
        if extended_of:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": extended_of, "controller": True}
            body["metadata"] |= {
                "ownerReferences": [owner],
                "annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"},
            }
        await create(self.api, CLAIMS, body)
        self.claims[name] = await self.api.get(RESOURCE_CLAIMS, name, TENANT)
        return self.claims[name]

    async def write(self, grants: Grants) -> None:
        """Write the object as a whole."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", **named(POLICY), "data": grants.data()}
        try:
            await self.api._call("PUT", f"{CONFIG_MAPS}/{POLICY}", body=body)
        except ApiError as e:
            if e.code != 404:
                raise
            await create(self.api, CONFIG_MAPS, body)

    async def patch(self, data: dict[str, str | None]) -> None:
        await self.api._call("PATCH", f"{CONFIG_MAPS}/{POLICY}", body={"data": data}, content_type=MERGE)

    async def allocate(self, claim: str, results: list[Body]) -> str:
        """Try to allocate a claim; return the policy that refuses it, "" if none does."""
        body = {"status": {"allocation": allocation(*results)}}
        path, query = f"{CLAIMS}/{claim}/status", {"dryRun": "All"}
        try:
            await self.api._call("PATCH", path, query=query, body=body, content_type=MERGE)
        except ApiError as e:
            return refusing_policy(e) or str(e)
        return ""

    async def keeps_shares(self) -> bool:
        """Return whether the API server keeps which share of a device a result is."""
        body = {"status": {"allocation": allocation({**result(THEIRS, NODE), "shareID": SHARE_ID})}}
        path, query = f"{CLAIMS}/probe/status", {"dryRun": "All"}
        kept = await self.api._call("PATCH", path, query=query, body=body, content_type=MERGE)
        return SHARE_ID.encode() in kept

    async def until(self, claim: str, results: list[Body], verdict: str) -> float:
        """Wait until the verdict is this one; return the seconds that it took."""
        began = time.perf_counter()
        while (found := await self.allocate(claim, results)) != verdict:
            assert time.perf_counter() < began + SECONDS, found
            await asyncio.sleep(0)
        return time.perf_counter() - began


def named(name: str) -> Body:
    return {"metadata": {"name": name}}


def run(
    kind: str, folder: Path, scenario: Callable[[World], Awaitable[None]], missing: str = "Allow"
) -> None:
    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[KubeApi]:
        if kind == "real":
            with real_apiserver(folder) as server:
                async with await server.client() as api:
                    yield api
        else:
            async with ApiServer() as started:
                path = folder / "kubeconfig"
                path.write_text(yaml.safe_dump(started.kubeconfig()))
                async with await KubeApi.connect(path) as api:
                    yield api

    async def main() -> None:
        async with asyncio.timeout(240), connected() as api:
            world = World(api)
            await world.install(missing)
            await scenario(world)

    asyncio.run(main())


def grants_of(count: int, pools: int) -> Grants:
    """Return so many grants of eight devices, and so many pools of kube-scheduler."""
    devices = frozenset((POOL, f"gpu-{i}") for i in range(8))
    uids = (f"{i:08}-0000-4000-8000-000000000000" for i in range(count))
    theirs = (PoolID(OURS, PoolName(f"ip-10-{i // 256}-{i % 256}-1")) for i in range(pools))
    return Grants({f"_claim_{uid}": devices for uid in uids}, frozenset(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_grant_lets_others_allocate_devices_of_ours(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        claim, other = await world.claim("c"), await world.claim("other")
        extended = await world.claim("e", extended_of="u-1")
        assert await world.allocate("c", [result(THEIRS, NODE)]) == ""
        of_pod = {grant_key_of_pod(TENANT, "u-1"): frozenset({(POOL, "gpu-2")})}
        granted = Grants({grant_key(claim): frozenset((POOL, f"gpu-{i}") for i in range(2)), **of_pod})
        await world.write(granted)
        await world.until("c", [result(OURS, NODE)], "")
        assert grant_key(extended) == f"_pod_{TENANT}_u-1"
        for name, devices, verdict in (
            ("c", (0, 1), ""),
            ("c", (0, 2), POLICY),
            (other.metadata.name, (0,), POLICY),
            ("e", (2,), ""),
            ("e", (0,), POLICY),
        ):
            results = [result(OURS, NODE, f"gpu-{i}") for i in devices]
            assert await world.allocate(name, results) == verdict, (name, devices)
        await world.write(Grants(of_pod))
        await world.until("c", [result(OURS, NODE)], POLICY)
        await world.write(Grants(exceptions=frozenset({POOL})))
        await world.until("other", [result(OURS, NODE)], "")

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_is_for_one_form_of_a_device(kind: str, tmp_path: Path) -> None:
    """Whoever decided on the whole of a device, before shares of it were given out, must not get it."""

    async def scenario(world: World) -> None:
        claim = await world.claim("c")
        whole, share = result(OURS, NODE), {**result(OURS, NODE), "shareID": SHARE_ID}
        if not await world.keeps_shares():
            pytest.skip("this API server drops shares (feature gate DRAConsumableCapacity)")
        for granted, admitted_, refused in (("gpu-0" + SHARE, share, whole), ("gpu-0", whole, share)):
            await world.write(Grants({grant_key(claim): frozenset({(POOL, granted)})}))
            await world.until("c", [admitted_], "")
            assert await world.allocate("c", [refused]) == POLICY

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("listed", ["pools", "kept", "free"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_object_is_within_the_budget_of_an_evaluation(
    kind: str, listed: str, tmp_path: Path
) -> None:
    """What an evaluation costs does not depend on how many grants there are, only on the claim's own."""

    async def scenario(world: World) -> None:
        claim = await world.claim("large")
        driver, pool = OURS, PoolName(".".join(["p" * 63] * 3 + ["p" * 61]))
        names = [f"{i:063}" for i in range(3 * MOST_RESULTS)]
        # Three nodes, each with the most devices of the longest names, beside others up to the limit.
        forms = frozenset((POOL, f"gpu-0000-07-{i:05}") for i in range(MAX_LISTED - 1))
        others = {
            "pools": grants_of(500, MAX_LISTED),
            "kept": Grants(exceptions=frozenset({PoolID(driver, pool)}), kept=forms),
            "free": Grants(free=forms),
        }[listed]
        own = {grant_key(claim): frozenset((PoolID(driver, pool), name) for name in names)}
        grants = replace(others, devices={**others.devices, **own})
        assert grants.fits
        size = sum(len(key) + len(text) for key, text in grants.data().items())
        assert size > 0.8 * MAX_GRANT_BYTES
        await world.write(grants)
        largest = [result(OURS, pool, name) for name in names[-MOST_RESULTS:]]
        took = await world.until("large", largest, "")
        assert await world.allocate("large", [*largest[1:], result(OURS, NODE, "gpu-0")]) == POLICY
        print(f"{kind}: {size} bytes, admitted after {took:.3f} s")

    run(kind, tmp_path, scenario)


def percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return ", ".join(
        f"{name} {value * 1e3:.1f} ms"
        for name, value in (
            ("median", statistics.median(ordered)),
            ("p95", ordered[int(len(ordered) * 0.95)]),
            ("most", ordered[-1]),
        )
    )


@pytest.mark.long
@pytest.mark.parametrize(("count", "pools"), [(0, 0), (100, 0), (100, 2500), (100, MAX_LISTED)])
def test_a_grant_applies_in_moments_and_so_does_its_end(count: int, pools: int, tmp_path: Path) -> None:
    """Its write and what others read of it, whatever else the object holds."""

    async def scenario(world: World) -> None:
        claim = await world.claim("c")
        key, line = grant_key(claim), f"{POOL}/gpu-0"
        await world.write(grants_of(count, pools))
        figures: tuple[list[float], ...] = ([], [], [], [])
        writes, granted, ended, verdicts = figures
        for i in range(12):
            for text, verdict, found in ((line, "", granted), (None, POLICY, ended)):
                began = time.perf_counter()
                await world.patch({key: text, "_turn": str(i)})
                writes.append(time.perf_counter() - began)
                found.append(await world.until("c", [result(OURS, NODE)], verdict))
                began = time.perf_counter()
                await world.allocate("c", [result(OURS, NODE)])
                verdicts.append(time.perf_counter() - began)
        for name, found in zip(
            ("write", "until granted", "until ended", "an allocation"), figures, strict=True
        ):
            print(f"{count} grants, {pools} pools: {name}: {percentiles(found)}")
        assert max(granted + ended) < 5.0  # the time that is waited for the end of a grant

    run("real", tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("missing", ["Allow", "Deny"])
def test_without_the_object_all_or_nothing_is_refused(missing: str, tmp_path: Path) -> None:
    """The API server looks for it before it evaluates anything, so the policy cannot tell drivers apart."""

    async def scenario(world: World) -> None:
        await world.api._call("DELETE", f"{CONFIG_MAPS}/{POLICY}")
        refused = POLICY if missing == "Deny" else ""
        if refused:
            await world.until("probe", [result(THEIRS, NODE)], refused)
        else:
            await world.until("probe", [result(OURS, NODE)], refused)
        for driver in (OURS, THEIRS):
            assert await world.allocate("probe", [result(driver, NODE)]) == refused
        await world.write(Grants())
        await world.until("probe", [result(OURS, NODE)], POLICY)
        await world.until("probe", [result(THEIRS, NODE)], "")

    run("real", tmp_path, scenario, missing)
