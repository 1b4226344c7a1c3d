"""Pods are not shown to autoscalers to which devices look free that would serve them. In virtual time.

An autoscaler computes with slices. In open pools it sees every device that no claim has as free, also where
that is of no use to a group, or set aside for another pod.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import virtual_time
from controller_harness import NS, Harness, Scenario, claim, controlling, pod, request
from fake_client import FakeClient
from group_members import member
from open_cluster import cluster_of

from dra_driver.api.core import NODES, PODS
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES

DELAY = 15.0
OPENS = 60.0
RESOURCE = "example.com/gpu"
SAID = "; no node is added for it as long as devices look free to an autoscaler"


def play(cluster: FakeClient, scenario: Scenario, **config: Any) -> None:
    cluster.put(
        DEVICE_POLICIES, {"metadata": {"name": "autoscaled", "generation": 1}, "spec": {"autoscaled": True}}
    )

    async def main() -> None:
        given: dict[str, Any] = {"open_pools": True, "starvation_seconds": 0.0, **config}
        async with controlling(cluster, **given) as harness:
            await asyncio.sleep(OPENS)
            await scenario(harness)

    virtual_time.run(main())


def about_pods(cluster: FakeClient) -> int:
    return sum(write.kind in ("Pod", "Event") for write in cluster.writes)


async def busy(h: Harness, name: str, node: str) -> None:
    """Have a pod run with a GPU of a node."""
    claim(h.cluster, name, request())
    pod(h.cluster, name, name, nodeSelector={"kubernetes.io/hostname": node})
    await asyncio.sleep(3)
    h.bind(name, node)


async def group_of_four(h: Harness) -> list[str]:
    """Have a group wait for four GPUs, of which three are free; return its members."""
    await busy(h, "a", "n1")
    names = [f"m{i}" for i in range(4)]
    for name in names:
        member(h.cluster, name, 4)
    return names


def test_a_group_is_shown_when_no_device_that_would_serve_a_member_looks_free() -> None:
    cluster = cluster_of("n1", "n2")

    async def scenario(h: Harness) -> None:
        names = await group_of_four(h)
        await asyncio.sleep(10 * DELAY)
        assert all(map(h.gates, names)), "three GPUs look free"
        for name in names:
            assert h.reason(name).reason == "FailedAllocation"
            assert SAID in h.reason(name).message
        writes = about_pods(cluster)
        await asyncio.sleep(300)
        assert about_pods(cluster) == writes, "it does not spin"
        for name, node in (("b", "n1"), ("c", "n2"), ("d", "n2")):
            await busy(h, name, node)
        await asyncio.sleep(10 * DELAY)
        assert not any(map(h.gates, names))
        for name in names:
            assert h.reason(name).reason == "WaitingForScaleUp"
            assert SAID not in h.reason(name).message

    play(cluster, scenario)


def test_a_pod_that_asks_for_an_extended_resource_is_shown_where_all_devices_are_busy() -> None:
    cluster = cluster_of("n1")
    cluster.edit(DEVICE_CLASSES, "gpu", {"spec": {"extendedResourceName": RESOURCE}})
    container = {"name": "c", "image": "i", "resources": {"requests": {RESOURCE: "1"}}}

    async def scenario(h: Harness) -> None:
        await busy(h, "a", "n1")
        await busy(h, "b", "n1")
        pod(cluster, "extended", containers=[container])
        await asyncio.sleep(3 * DELAY)
        assert not h.gates("extended")
        assert len(h.events("WaitingForScaleUp")) == 1

    play(cluster, scenario)


def test_devices_with_our_taint_do_not_look_free() -> None:
    cluster = cluster_of("n1", "n2")

    async def scenario(h: Harness) -> None:
        names = await group_of_four(h)
        await asyncio.sleep(3 * DELAY)
        assert not any(map(h.gates, names))

    play(cluster, scenario, open_pools=False)


def test_a_group_whose_domain_is_full_is_told_why_no_node_comes() -> None:
    cluster = cluster_of("n1", "n2")
    for name in ("n1", "n2"):
        cluster.edit(NODES, name, {"metadata": {"labels": {"rack": name}}})

    async def scenario(h: Harness) -> None:
        for node in ("n1", "n2"):
            await busy(h, f"on-{node}", node)
        for name in ("m0", "m1"):
            member(cluster, name, 2, domain="rack")
        await asyncio.sleep(10 * DELAY)
        for name in ("m0", "m1"):
            assert h.gates(name)
            assert SAID in h.reason(name).message
        cluster.remove(PODS, "on-n1", NS)
        h.deallocate("on-n1")
        await asyncio.sleep(DELAY)
        assert {node for name in ("m0", "m1") for node, _ in h.devices(name)} == {"n1"}

    play(cluster, scenario)


def test_members_of_which_each_needs_more_than_looks_free_are_shown() -> None:
    cluster = cluster_of("n1", "n2")

    async def scenario(h: Harness) -> None:
        for node in ("n1", "n2"):
            await busy(h, f"on-{node}", node)
        for name in ("m0", "m1"):
            member(cluster, name, 2, count=2)
        await asyncio.sleep(10 * DELAY)
        assert not h.gates("m0")
        assert not h.gates("m1")

    play(cluster, scenario)


@pytest.mark.parametrize("free", [True, False])
def test_a_pod_is_shown_where_only_what_is_set_aside_keeps_it_from_being_served(free: bool) -> None:
    """The large pod names its node, so no other one helps it; what becomes free there is kept for it."""
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        await busy(h, "a", "n1")
        claim(cluster, "large", request(count=2))
        pod(cluster, "large", "large", nodeSelector={"kubernetes.io/hostname": "n1"})
        if not free:
            await busy(h, "b", "n1")
        await asyncio.sleep(105)
        claim(cluster, "small", request())
        pod(cluster, "small", "small")
        await asyncio.sleep(5 * DELAY)
        assert bool(h.gates("small")) is free
        assert (SAID in h.reason("small").message) is free

    play(cluster, scenario, starvation_seconds=100.0)
