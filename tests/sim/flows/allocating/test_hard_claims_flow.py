"""Claims that are made to be hard, beside honest ones, with the real controller as a process."""

from __future__ import annotations

import cluster_support as support
import pytest
from hostile_claims import attacks

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.names import ALLOCATOR_LABEL
from dra_driver.kube.leader import LEASES
from dra_driver.sim.cluster import EmbeddedCluster

HOSTILE = "hostile"
REASONS = ("FailedAllocation", "DecisionLimit", "DecisionDelayed")

pytestmark = [pytest.mark.sim, pytest.mark.slow]


@pytest.mark.long
def test_honest_pods_run_beside_claims_that_are_made_to_be_hard() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        before = await lease(cluster)
        labels = {ALLOCATOR_LABEL: "controller"}
        namespace = {"metadata": {"name": HOSTILE, "labels": labels}}
        await support.apply(cluster, {"apiVersion": "v1", "kind": "Namespace", **namespace})
        for manifests in attacks().values():
            for manifest in manifests:
                manifest["metadata"]["namespace"] = HOSTILE
            await support.apply(cluster, *manifests)
        for i in range(6):
            await support.apply(cluster, support.claim(f"honest-{i}", 1 + i % 2))
            await support.apply(cluster, support.gpu_pod(f"honest-{i}", claim=f"honest-{i}"))
            await support.phase(cluster, f"honest-{i}", "Running")
        # A freed device has everything looked at again.
        await support.delete(cluster, "honest-0")
        await support.gone(cluster, "honest-0")
        await support.apply(cluster, support.claim("last"), support.gpu_pod("last", claim="last"))
        await support.phase(cluster, "last", "Running")
        # The same process leads as before: it neither ended nor missed a renewal.
        assert await lease(cluster) == before
        hard = {m["metadata"]["name"] for ms in attacks().values() for m in ms}
        pods = {p.metadata.name: p for p in (await cluster.api.list(PODS, HOSTILE)).items}
        assert not [name for name in hard if pods[name].spec.node_name]

        # Events say why each waits.
        async def reported() -> bool:
            events = (await cluster.api.list(EVENTS, HOSTILE)).items
            about = {e.involved_object.name for e in events if e.reason in REASONS}
            return hard <= about

        await cluster.wait_for("an Event on each hard pod", reported)

    async def lease(cluster: EmbeddedCluster) -> list[object]:
        held = [x for x in (await cluster.api.list(LEASES)).items if x.spec.holder_identity]
        return [(x.metadata.name, x.spec.holder_identity, x.spec.lease_transitions) for x in held]

    support.run(scenario, support.config(*["dgx-h100"] * 6))
