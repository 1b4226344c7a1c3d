"""Whole flows with the real plugin and the real controller: what goes wrong, and what must come of it."""

from __future__ import annotations

import asyncio
import os
import signal

import cluster_support as support
import pytest

from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.cluster import ClusterFailed, EmbeddedCluster
from dra_driver.sim.kubelet import KubeletSettings
from dra_driver.sim.node import SimNode

pytestmark = pytest.mark.sim


def node_of(cluster: EmbeddedCluster) -> SimNode:
    return next(iter(cluster.nodes.values()))


def test_a_pod_that_ends_gives_its_device_back_before_it_is_deleted() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("short", command="sleep 2; exit 0"))
        running = await support.phase(cluster, "short", "Running")
        assert any(k.endswith("_UUID") for k in support.environment(cluster, running))
        await support.phase(cluster, "short", "Succeeded")
        await support.no_claims(cluster)
        assert node_of(cluster).leftovers() == []

    support.run(scenario)


def test_force_deleted_pods_are_unprepared_all_the_same() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("forced"))
        await support.phase(cluster, "forced", "Running")
        await support.delete(cluster, "forced", grace=0)
        await support.gone(cluster, "forced")
        await support.no_claims(cluster)

        async def clean() -> bool:
            return node_of(cluster).leftovers() == []

        await cluster.wait_for("the node to be clean", clean)

    support.run(scenario)


def test_devices_of_a_pod_that_was_deleted_by_force_go_to_nobody_while_it_has_processes() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node, everything = node_of(cluster), 4
        await support.apply(cluster, support.claim("c", everything), support.gpu_pod("forced", claim="c"))
        uid = (await support.phase(cluster, "forced", "Running")).metadata.uid
        node.kubelet.runtime.stubborn.add(uid)
        await support.delete(cluster, "forced", grace=0)
        await support.gone(cluster, "forced")

        async def kept() -> bool:
            devices = (await support.inventory(cluster, node)).spec.devices
            return all("ClaimGoneInUse" in [h.reason for h in d.health] for d in devices)

        await cluster.wait_for("the inventory to say why no device is to be had", kept)
        await cluster.api.delete(RESOURCE_CLAIMS, "c", "default")
        await support.no_claims(cluster)
        await support.apply(cluster, support.claim("d", everything), support.gpu_pod("next", claim="d"))
        await asyncio.sleep(1.5)
        waiting = await support.pod(cluster, "next")
        assert waiting is not None
        assert waiting.status.phase == "Pending"
        assert node.leftovers()
        node.kubelet.runtime.stubborn.clear()
        node.kubelet.runtime.stop_sandbox(uid)
        await support.phase(cluster, "next", "Running")

    support.run(scenario)


def test_a_plugin_that_dies_loses_its_slices_and_gets_them_back_when_it_returns() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node = node_of(cluster)
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("p"))
        pod = await support.phase(cluster, "p", "Running")
        epoch = (await support.inventory(cluster, node)).status.registration.epoch
        files = sorted(path.name for path in node.layout.cdi.iterdir())
        assert files

        await cluster.kill_plugin(node.name)
        await support.slices_gone(cluster)
        await asyncio.sleep(1.0)
        assert await support.slice_count(cluster) == 0, "devices of a dead plugin must not be advertised"

        await cluster.start_process(node.plugin)
        await cluster.ready()
        assert (await support.inventory(cluster, node)).status.registration.epoch > epoch
        assert sorted(path.name for path in node.layout.cdi.iterdir()) == files
        still = await support.pod(cluster, "p")
        assert still is not None
        assert (still.metadata.uid, still.status.phase) == (pod.metadata.uid, "Running")

    support.run(scenario)


@pytest.mark.long
def test_a_plugin_that_returns_in_time_keeps_its_slices() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node = node_of(cluster)
        await cluster.kill_plugin(node.name)
        await cluster.start_process(node.plugin)
        await cluster.ready()
        await asyncio.sleep(KubeletSettings.quick().wipe_delay + 0.5)
        assert await support.slice_count(cluster) > 0

    support.run(scenario, support.config(settings=KubeletSettings.quick()))  # 3 s to come back


def test_a_kubelet_restart_wipes_slices_and_the_plugin_asks_for_them_again() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node = node_of(cluster)
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("p"))
        pod = await support.phase(cluster, "p", "Running")
        before = (await support.inventory(cluster, node)).status.registration.epoch
        await cluster.restart_kubelet(node.name)

        async def asked_again() -> bool:
            return (await support.inventory(cluster, node)).status.registration.epoch > before

        await cluster.wait_for("a new epoch", asked_again)
        await cluster.ready()
        still = await support.pod(cluster, "p")
        assert still is not None
        assert (still.metadata.uid, still.status.phase) == (pod.metadata.uid, "Running")
        await support.delete(cluster, "p")
        await support.gone(cluster, "p")
        await support.no_claims(cluster)
        assert node.leftovers() == []

    support.run(scenario)


def test_a_pod_waits_for_a_plugin_that_is_away_and_says_so() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        node = node_of(cluster)
        await support.apply(
            cluster, support.TEMPLATE, support.claim("c"), support.gpu_pod("first", claim="c")
        )
        await support.phase(cluster, "first", "Running")
        node.plugin.signal(signal.SIGSTOP)  # hangs: the deletion has to wait for it
        await support.delete(cluster, "first")
        await asyncio.sleep(0.5)
        assert await support.pod(cluster, "first") is not None
        node.plugin.signal(signal.SIGCONT)
        await support.gone(cluster, "first")
        assert node.leftovers() == []

    support.run(scenario)


def test_containers_restarted_in_place_see_their_devices_again() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        looping = support.gpu_pod("loop", command="sleep 0.3; exit 1", restartPolicy="Always")
        await support.apply(cluster, support.TEMPLATE, looping)
        pod = await support.phase(cluster, "loop", "Running")
        first = support.environment(cluster, pod)

        async def restarted() -> bool:
            sandbox = node_of(cluster).kubelet.runtime.sandboxes[pod.metadata.uid]
            return "main" in sandbox.containers and sandbox.containers["main"].restarts >= 2

        await cluster.wait_for("two restarts", restarted)
        assert support.environment(cluster, pod) == first

    support.run(scenario)


def test_two_pods_share_one_claim_and_the_last_one_gives_it_back() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.claim("c"), *(support.gpu_pod(n, claim="c") for n in "ab"))
        first, second = [await support.phase(cluster, n, "Running") for n in "ab"]
        assert support.environment(cluster, first) == support.environment(cluster, second)
        await support.delete(cluster, "a")
        await support.gone(cluster, "a")

        async def given_back() -> bool:
            claim = await cluster.api.get(RESOURCE_CLAIMS, "c", "default")
            return [r.name for r in claim.status.reserved_for] == ["b"]

        await cluster.wait_for("the claim to be reserved for the other pod alone", given_back)
        assert len(node_of(cluster).leftovers()) > 0
        await support.delete(cluster, "b")
        await support.gone(cluster, "b")

        async def free() -> bool:
            found = await cluster.api.get(RESOURCE_CLAIMS, "c", "default")
            return found.status.allocation is None and not found.metadata.finalizers

        await cluster.wait_for("the claim to be free", free)
        assert node_of(cluster).leftovers() == []

    support.run(scenario)


def test_what_waits_starts_when_a_device_is_free() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.claim("all", 4), support.gpu_pod("all", claim="all"))
        await support.phase(cluster, "all", "Running")
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("waits"))
        await asyncio.sleep(0.5)
        waiting = await support.pod(cluster, "waits")
        assert waiting is not None
        assert waiting.status.phase == "Pending"
        await support.delete(cluster, "all")
        await support.phase(cluster, "waits", "Running")

    support.run(scenario)


def test_kube_scheduler_can_allocate_instead() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await support.apply(cluster, support.TEMPLATE, support.gpu_pod("p"))
        pod = await support.phase(cluster, "p", "Running")
        assert any(k.endswith("_UUID") for k in support.environment(cluster, pod))
        await support.delete(cluster, "p")
        await support.gone(cluster, "p")
        await support.no_claims(cluster)
        assert node_of(cluster).leftovers() == []

    support.run(scenario, support.config(allocator="scheduler"))


def test_a_process_that_dies_is_reported_with_the_end_of_its_log() -> None:
    async def scenario() -> None:
        async with EmbeddedCluster(support.config()) as cluster:
            await cluster.ready()
            assert cluster.controller.pid is not None
            os.kill(cluster.controller.pid, signal.SIGKILL)

            async def never() -> bool:
                return False

            with pytest.raises(ClusterFailed, match="controller ended with status -9"):
                await cluster.wait_for("nothing", never)

    asyncio.run(scenario())
