"""What the controller's account may evict and delete, judged by the real API server (``DRA_K8S_BIN``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from policy_cases import CORE, MERGE, PODS, TENANT, Write, pod
from policy_world import COLLECTIONS, FENCE, Accounts, create, settled, world
from real_apiserver import RealApiServer, real_apiserver

from dra_driver.sim.assets import deploy_directory

EVICTIONS, DELETIONS = "dra-driver-controller-evictions", "dra-driver-controller-deletions"
STATUS = "dra-driver-controller-pods-status"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_apiserver(tmp_path_factory.mktemp("real")) as started:
        yield started


async def install(made: Accounts) -> None:
    """Add the rights and policies of preemption, and put the one that differs in its place."""
    for path in sorted((deploy_directory("optional") / "preemption").glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            collection = COLLECTIONS[body["kind"]].format(namespace=body["metadata"].get("namespace", ""))
            await create(made.admin, collection, body)
            name = body["metadata"]["name"]
            if body["kind"] != "ServiceAccount":
                await made.admin._call("PATCH", f"{collection}/{name}", body=body, content_type=MERGE)


def evict(by: str, name: str, options: dict[str, Any], refused: str = "") -> Write:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": TENANT},
        "deleteOptions": options,
    }
    return Write(f"evicts with {options}", by, "POST", f"{PODS}/{name}/eviction", body, refused)


def mark(reason: str, others: list[dict[str, Any]], refused: str = "") -> Write:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    body = {"status": {"conditions": [*others, condition]}}
    return Write(f"marks {reason}", "controller", "PATCH", f"{PODS}/gated/status", body, refused, MERGE)


def test_pods_are_evicted_by_version_and_deleted_after_they_were_marked(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []

        async def expect(write: Write, *, dry_run: bool = True) -> None:
            verdict = await made.send(write, dry_run=dry_run)
            if verdict != write.refused:
                found.append((f"{write.by} {write.what}", write.refused, verdict))

        raw = yaml.safe_load(await made.admin._call("GET", f"{PODS}/gated"))
        uid, version = raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]
        both = {"preconditions": {"uid": uid, "resourceVersion": version}}
        # It takes a moment until a policy is known.
        await settled(made, evict("controller", "gated", {}, EVICTIONS))
        delete = Write("deletes", "controller", "DELETE", f"{PODS}/gated", {}, DELETIONS)
        await settled(made, delete)
        await expect(evict("controller", "gated", {}, EVICTIONS))
        await expect(evict("controller", "gated", {"preconditions": {"uid": uid}}, EVICTIONS))
        await expect(evict("controller", "gated", both | {"gracePeriodSeconds": 0}, EVICTIONS))
        await expect(evict("controller", "gated", both))
        await settled(made, evict("standby", "gated", both, f"{FENCE}-preemption"))
        await expect(evict("standby", "gated", both, f"{FENCE}-preemption"))
        await expect(delete)
        others = raw["status"].get("conditions") or []
        await expect(mark("Whatever", others, STATUS))
        await expect(mark("PreemptionByDRADriver", others), dry_run=False)
        await expect(Write("deletes", "controller", "DELETE", f"{PODS}/gated", {}))
        label = {"metadata": {"labels": {"dra-driver.dev/preemptible": "false"}}}
        await made.admin._call("PATCH", f"{PODS}/gated", body=label, content_type=MERGE)
        await expect(delete)
        await made.admin._call("PATCH", f"{CORE}/namespaces/{TENANT}", body=label, content_type=MERGE)
        await create(made.admin, PODS, pod("other", TENANT))
        meta = yaml.safe_load(await made.admin._call("GET", f"{PODS}/other"))["metadata"]
        both = {"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        refused = evict("controller", "other", both, EVICTIONS)
        await settled(made, refused)
        await expect(refused)
        return found

    async def main() -> list[tuple[str, str, str]]:
        async with await server.client() as admin, world(server.client, admin) as made:
            await install(made)
            return await scenario(made)

    assert asyncio.run(main()) == []
