"""What happens while an answer is on its way from the worker."""

from __future__ import annotations

import asyncio

from controller_harness import NS, Harness, claim, cluster_of, node, pod, pool, run
from late_answers import late

from dra_driver.api.core import PODS


def test_what_appears_while_a_refusal_is_on_its_way_is_not_overlooked() -> None:
    cluster = cluster_of()

    async def scenario(h: Harness) -> None:
        claim(cluster, "c")
        pod(cluster, "p", "c")
        await asyncio.sleep(0.1)
        node(cluster, "n1")
        pool(cluster, "n1", 40)
        await asyncio.sleep(5.0)
        assert h.devices("c") == [("n1", "gpu-0")]

    run(cluster, scenario, late(1.0, seed=1))


def test_a_pod_that_is_deleted_meanwhile_takes_nothing() -> None:
    cluster = cluster_of(n1=(40,))

    async def scenario(h: Harness) -> None:
        for name in ("first", "second"):
            claim(cluster, name)
            pod(cluster, name, name)
        await asyncio.sleep(0.01)
        # Both are asked about; one of them has the device, as far as the worker knows.
        cluster.remove(PODS, "first", NS)
        await asyncio.sleep(5.0)
        assert h.devices("first") == []
        assert h.devices("second") == [("n1", "gpu-0")]

    run(cluster, scenario, late(1.0, seed=2))


def test_many_pods_for_few_devices_are_served_whatever_the_order_of_answers() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(40, 40))

    async def scenario(h: Harness) -> None:
        for i in range(8):
            claim(cluster, f"c{i}")
            pod(cluster, f"p{i}", f"c{i}")
        await asyncio.sleep(20.0)
        held = h.held()
        assert len(held) == len(set(held)) == 4

    run(cluster, scenario, late(0.5, seed=3, restarts=0.2))
