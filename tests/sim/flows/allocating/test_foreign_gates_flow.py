"""A queue holds a pod back; others run on the devices that it asks for."""

from __future__ import annotations

import asyncio

import cluster_support as support
import pytest

from dra_driver.api.core import PODS
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = pytest.mark.sim

KUEUE = "kueue.x-k8s.io/admission"


def test_a_pod_that_is_held_back_leaves_its_devices_to_others_until_it_is_let_go() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        held = support.gpu_pod("held", claim="six", schedulingGates=[{"name": KUEUE}])
        await support.apply(cluster, support.claim("six", 6), held)
        for name in ("a", "b"):
            await support.apply(cluster, support.claim(name, 4), support.gpu_pod(name, claim=name))
        for name in ("a", "b"):
            await support.phase(cluster, name, "Running")
        for name in ("a", "b"):
            await support.delete(cluster, name)
            await support.gone(cluster, name)
        # All eight are free, and still it gets none.
        await asyncio.sleep(0.5)
        six = next(c for c in await support.claims(cluster) if c.metadata.name == "six")
        assert six.status.allocation is None
        pod = await support.pod(cluster, "held")
        assert pod is not None
        gates = [{"name": g.name} for g in pod.spec.scheduling_gates if g.name != KUEUE]
        await cluster.api.merge_patch(PODS, "held", {"spec": {"schedulingGates": gates or None}}, "default")
        await support.phase(cluster, "held", "Running")

    support.run(scenario, support.config("dgx-h100"))
