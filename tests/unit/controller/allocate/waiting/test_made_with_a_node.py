"""Pods that are made with ``spec.nodeName``, as anybody can: they wait in the order of all."""

from __future__ import annotations

import asyncio

import builders
from controller_harness import NS, Harness, claim, cluster_of, pod, request
from starvation_world import create, end, is_served, occupied, play

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube.clock import rfc3339


async def taken(h: Harness, count: int) -> None:
    for number in range(count):
        create(h, f"first-{number}")
    await asyncio.sleep(5.0)
    assert all(is_served(h, f"first-{number}") for number in range(count))


def test_they_go_after_pods_of_higher_priority_that_came_later() -> None:
    async def scenario(h: Harness) -> None:
        await taken(h, 1)
        for number in range(5):
            create(h, f"made-{number}", nodeName="n1", gated=False)
        await asyncio.sleep(5.0)
        create(h, "urgent", priority=10)
        await asyncio.sleep(5.0)
        end(h, "first-0")
        await asyncio.sleep(5.0)
        assert is_served(h, "urgent")
        assert not any(is_served(h, f"made-{number}") for number in range(5))

    play(cluster_of(n1=(40,)), scenario)


def test_they_do_not_take_the_turns_of_other_namespaces() -> None:
    async def scenario(h: Harness) -> None:
        await taken(h, 3)
        for number in range(20):
            create(h, f"made-{number:02}", nodeName="n1", gated=False)
        h.cluster.put(RESOURCE_CLAIMS, builders.claim("theirs", request(), namespace="other"))
        h.cluster.put(PODS, builders.pod("theirs", "theirs", namespace="other", gated=True, cpu="0"))
        await asyncio.sleep(5.0)
        for number in range(3):
            end(h, f"first-{number}")
        await asyncio.sleep(20.0)
        assert h.cluster.obj(RESOURCE_CLAIMS, "theirs", "other").status.allocation is not None
        assert sum(is_served(h, f"made-{number:02}") for number in range(20)) == 2

    play(cluster_of(n1=(40,) * 3), scenario)


def test_one_that_takes_the_name_of_another_was_not_bound() -> None:
    """The watch does not show the deletion in between; the pod seems to have got a node."""

    async def scenario(h: Harness) -> None:
        await occupied(h)
        create(h, "made")
        await asyncio.sleep(5.0)
        h.cluster.quiet.add("Pod")
        h.cluster.remove(PODS, "made", NS)
        now = {"creationTimestamp": rfc3339(h.clock.now())}
        pod(h.cluster, "made", "made", nodeName="n1", gated=False, metadata=now)
        h.cluster.expire()
        h.cluster.quiet.clear()
        h.cluster.wake()
        await asyncio.sleep(5.0)
        end(h, "a")
        await asyncio.sleep(5.0)
        assert not is_served(h, "made")
        end(h, "b")
        await asyncio.sleep(5.0)
        assert (is_served(h, "big"), is_served(h, "made")) == (True, False)

    play(cluster_of(n1=(40,) * 2), scenario)


def test_one_that_shares_the_claim_of_a_bound_pod_takes_nothing_for_others() -> None:
    """Its claims are those of a pod that kube-scheduler has bound, and one more."""

    async def scenario(h: Harness) -> None:
        await occupied(h)
        create(h, "bound", gated=False)
        h.cluster.edit(PODS, "bound", {"spec": {"nodeName": "n1"}}, NS)
        claim(h.cluster, "more")
        now = {"creationTimestamp": rfc3339(h.clock.now())}
        pod(h.cluster, "made", "bound", "more", nodeName="n1", gated=False, metadata=now)
        await asyncio.sleep(5.0)
        end(h, "a")
        await asyncio.sleep(5.0)
        assert (is_served(h, "bound"), is_served(h, "more")) == (True, False)
        end(h, "b")
        await asyncio.sleep(5.0)
        # "big" waits for both devices: one of them is the bound pod's.
        assert not is_served(h, "more")

    play(cluster_of(n1=(40,) * 2), scenario)
