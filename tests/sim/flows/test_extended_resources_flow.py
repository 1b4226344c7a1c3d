"""Pods that ask for GPUs by an extended resource name, on pools that the scheduler allocates."""

from __future__ import annotations

from typing import Any

import cluster_support as support
import pytest

from dra_driver.api.core import Pod
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, ResourceClaim
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim

GPU = "vendor.example/gpu"
IMPLICIT = f"deviceclass.resource.kubernetes.io/{DEFAULT_DRIVER_NAME}"


def asking_pod(name: str, resource: str, *amounts: int) -> dict[str, Any]:
    """A pod whose containers want that many of the resource each; the first is ``main``."""
    pod = support.gpu_pod(name)
    main = pod["spec"]["containers"][0]
    del pod["spec"]["resourceClaims"]
    names = ["main", *(f"other{i}" for i in range(1, len(amounts)))]
    pod["spec"]["containers"] = [
        {**main, "name": n, "resources": {"limits": {resource: str(amount)}} if amount else {}}
        for n, amount in zip(names, amounts, strict=True)
    ]
    return pod


async def map_class(cluster: EmbeddedCluster) -> None:
    patch = {"spec": {"extendedResourceName": GPU}}
    await cluster.api.merge_patch(DEVICE_CLASSES, DEFAULT_DRIVER_NAME, patch)


async def only_claim(cluster: EmbeddedCluster) -> ResourceClaim:
    (claim,) = await support.claims(cluster)
    return claim


def uuids(cluster: EmbeddedCluster, found: Any, container: str) -> set[str]:
    sandbox = cluster.nodes[found.spec.node_name].kubelet.runtime.sandboxes[found.metadata.uid]
    return {v for k, v in sandbox.containers[container].view.env.items() if k.endswith("_UUID")}


def test_containers_get_their_share_of_one_claim_and_it_goes_with_the_pod() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await map_class(cluster)
        await support.apply(cluster, asking_pod("p", GPU, 1, 2, 0))
        found = await support.phase(cluster, "p", "Running")
        claim = await only_claim(cluster)

        assert claim.metadata.name.startswith("p-extended-resources-")
        assert claim.metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert [(o.name, o.controller) for o in claim.metadata.owner_references or ()] == [("p", True)]
        requests = claim.spec.devices.requests or ()
        assert [(r.name, r.exactly.count) for r in requests if r.exactly is not None] == [
            ("container-0-request-0", 1),
            ("container-1-request-0", 2),
        ]
        assert [ref.uid for ref in claim.status.reserved_for] == [found.metadata.uid]
        status = found.status.extended_resource_claim_status
        assert status is not None
        assert status.resource_claim_name == claim.metadata.name
        assert [(m.container_name, m.request_name) for m in status.request_mappings] == [
            ("main", "container-0-request-0"),
            ("other1", "container-1-request-0"),
        ]

        shares = [uuids(cluster, found, name) for name in ("main", "other1", "other2")]
        assert [len(share) for share in shares] == [1, 2, 0]
        assert not shares[0] & shares[1]

        await support.delete(cluster, "p")
        await support.gone(cluster, "p")
        await support.no_claims(cluster)
        assert next(iter(cluster.nodes.values())).leftovers() == []

    support.run(scenario, support.config(allocator="scheduler"))


def test_a_class_serves_the_resource_that_bears_its_name() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, asking_pod("p", IMPLICIT, 1))
        found = await support.phase(cluster, "p", "Running")
        assert len(uuids(cluster, found, "main")) == 1

    support.run(scenario, support.config(allocator="scheduler"))


def test_a_pod_that_finds_no_devices_waits_without_a_claim_and_gets_those_that_come_free() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await map_class(cluster)
        await support.apply(cluster, asking_pod("first", GPU, 3))
        await support.phase(cluster, "first", "Running")
        await support.apply(cluster, asking_pod("second", GPU, 2))

        async def refused() -> str | None:
            pod = await support.pod(cluster, "second")
            conditions = pod.status.conditions if pod is not None else ()
            said = {c.get("reason"): str(c.get("message")) for c in conditions if c.get("status") == "False"}
            return said.get("Unschedulable")

        assert "cannot allocate all claims" in await cluster.wait_for("the refusal", refused)
        assert len(await support.claims(cluster)) == 1
        await support.delete(cluster, "first")
        await support.phase(cluster, "second", "Running")

    support.run(scenario, support.config(allocator="scheduler"))


def test_a_claim_left_from_an_earlier_attempt_is_replaced() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        # The class does not map the resource yet, so the pod waits and there is time to leave a claim behind.
        await support.apply(cluster, asking_pod("p", GPU, 1))

        async def refused() -> Pod | None:
            found = await support.pod(cluster, "p")
            return found if found is not None and found.status.conditions else None

        pod = await cluster.wait_for("the refusal", refused)
        left = support.claim("left")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod.metadata.uid, "controller": True}
        left["metadata"]["ownerReferences"] = [owner]
        left["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
        left["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        await cluster.api.create(RESOURCE_CLAIMS, left, "default")
        await map_class(cluster)
        await support.phase(cluster, "p", "Running")
        assert (await only_claim(cluster)).metadata.name.startswith("p-extended-resources-")

    support.run(scenario, support.config(allocator="scheduler"))


def test_our_taint_keeps_the_scheduler_from_pools_that_the_controller_allocates() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, asking_pod("p", IMPLICIT, 1), support.TEMPLATE, support.gpu_pod("other"))
        await support.phase(cluster, "other", "Running")
        waiting = await support.pod(cluster, "p")
        assert waiting is not None
        assert waiting.status.phase == "Pending"
        assert not waiting.spec.node_name

    support.run(scenario, support.config(open_pools=False))
