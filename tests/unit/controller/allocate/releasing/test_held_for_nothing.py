"""Allocations that are to go and cannot for the moment, or not for this pod: they are looked at again."""

from __future__ import annotations

import asyncio

from controller_harness import NS, Harness, claim, cluster_of, nothing, pod, pool, run

from dra_driver.api.core import PODS
from dra_driver.api.names import CANNOT_ALLOCATE, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES

NOWHERE = "0/1 nodes are available: 1 node(s) had untolerated taint(s)."


def test_what_a_pod_holds_of_a_pool_that_is_away_is_given_back_when_it_is_there_again() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario(h: Harness) -> None:
        assert h.devices("c")
        (slice_,) = cluster.all(RESOURCE_SLICES)
        cluster.remove(RESOURCE_SLICES, slice_.metadata.name)
        await h.quiet()
        h.report("p", NOWHERE)
        await asyncio.sleep(10)
        assert h.devices("c")
        pool(cluster, "n1", 40)
        await asyncio.sleep(10)
        assert h.devices("c") == []

    run(cluster, scenario)


def test_a_shared_claim_is_given_back_when_the_last_pod_that_could_be_placed_with_it_goes() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "shared")
    for name in ("p", "q"):
        pod(cluster, name, "shared")

    async def scenario(h: Harness) -> None:
        h.report("p", NOWHERE)
        await asyncio.sleep(10)
        assert h.devices("shared")  # for the other one
        cluster.remove(PODS, "q", NS)
        await asyncio.sleep(10)
        assert h.devices("shared") == []

    run(cluster, scenario)


def test_a_shared_claim_is_given_back_when_the_other_pod_loses_its_own() -> None:
    cluster = cluster_of(n1=(40, 40), n2=(80,))
    for name in ("shared", "own"):
        claim(cluster, name)
    pod(cluster, "p", "shared")
    pod(cluster, "q", "shared", "own")

    async def scenario(h: Harness) -> None:
        h.report("p", NOWHERE)
        await asyncio.sleep(5)
        assert len(h.held()) == 2
        # The device of its own claim goes, so there is none on the node of the shared one.
        pool(cluster, "n1", 40)
        h.deallocate("own")
        h.report("q", f"0/2 nodes are available: 2 {CANNOT_ALLOCATE}.")
        await asyncio.sleep(15)
        assert (h.devices("shared"), h.devices("own")) == ([], [])

    run(cluster, scenario)


def test_a_claim_is_given_back_when_another_is_generated_in_its_place() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in ("first", "second"):
        claim(cluster, name)
    pod(cluster, "p", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])

    def name_claim(name: str) -> None:
        statuses = [{"name": "gpu", "resourceClaimName": name}]
        cluster.edit(PODS, "p", {"status": {"resourceClaimStatuses": statuses}}, NS)

    async def scenario(h: Harness) -> None:
        name_claim("first")
        await asyncio.sleep(5)
        assert h.devices("first")
        name_claim("second")
        await asyncio.sleep(10)
        assert h.devices("first") == []
        assert h.devices("second")

    run(cluster, scenario)


def test_a_pod_of_which_a_claim_is_gone_holds_nothing_after_a_restart() -> None:
    cluster = cluster_of(n1=(40, 40))
    for name in ("there", "gone"):
        claim(cluster, name)
    pod(cluster, "p", "there", "gone")
    run(cluster, nothing)
    cluster.remove(RESOURCE_CLAIMS, "gone", NS)

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(10)
        assert h.devices("there") == []
        claim(cluster, "gone")
        await h.quiet(2)
        assert h.devices("there")
        assert h.devices("gone")

    run(cluster, scenario)


def test_a_group_of_which_a_claim_is_gone_holds_nothing_after_its_time() -> None:
    cluster = cluster_of(n1=(40, 40))
    metadata = {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}}
    for name in ("p", "q"):
        claim(cluster, name)
        pod(cluster, name, name, metadata=metadata)
    run(cluster, nothing)
    cluster.remove(RESOURCE_CLAIMS, "q", NS)

    async def scenario(h: Harness) -> None:
        assert h.devices("p")
        await asyncio.sleep(10)
        assert h.devices("p") == []

    run(cluster, scenario, group_seconds=5.0)
