"""Events, conditions and ``explain`` say the same of a pod that waits."""

from __future__ import annotations

import asyncio

from controller_harness import NS, Harness, claim, cluster_of, pod, request, run

from dra_driver.api.core import NODES, PODS
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.explain import explained
from dra_driver.cli.explaining.targets import parse_target


def test_events_conditions_and_explain_have_one_source() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40,))
    claim(cluster, "many", request(count=3))
    pod(cluster, "train", "many")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(5)
        await h.quiet()
        said = h.reason("train").message
        assert said.startswith("needs 3 ")
        assert said.endswith(" together: n1 has 2 free · n2 has 1 free")
        assert said in h.events("FailedAllocation")
        manifests = Manifests(
            nodes=list(cluster.all(NODES)),
            slices=list(cluster.all(RESOURCE_SLICES)),
            classes=list(cluster.all(DEVICE_CLASSES)),
            claims=list(cluster.all(RESOURCE_CLAIMS)),
            pods=list(cluster.all(PODS)),
        )
        found = str(explained(manifests, [parse_target("pod/train")], NS))
        assert f"{NS}/many does not fit: {said.partition(': ')[0]}\n" in found
        assert found.count("needs 3 ") == 1
        assert "n1 (2), n2 (1)" in found

    run(cluster, scenario)
