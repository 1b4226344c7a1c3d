"""Pods that are being deleted: whose end is waited for, and whose is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_harness import NS, Harness, cluster_of
from group_members import member
from preemption_world import create, evictions, holder, play, runs, served, until

from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube.clock import rfc3339

LATER, BEFORE = 10_000.0, -10_000.0


def deleted(h: Harness, name: str, seconds: float) -> None:
    """Have a pod be deleted, with a grace period that ends so many seconds from now."""
    at = rfc3339(h.clock.now() + seconds)
    h.cluster.edit(PODS, name, {"metadata": {"deletionTimestamp": at, "finalizers": ["example.com/x"]}}, NS)


@pytest.mark.parametrize("seconds", [LATER, BEFORE], ids=["hours to go", "overdue for hours"])
def test_the_end_of_a_pod_that_is_not_near_is_not_waited_for(seconds: float) -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "stuck", priority=1)
        await holder(h, "other", priority=2)
        deleted(h, "stuck", seconds)
        create(h, "high", priority=100)
        await until(lambda: evictions(h) == ["other"], seconds=100)

    play(cluster_of(n1=(80, 80)), scenario, ends=None)


def test_a_pod_that_is_overdue_for_a_while_is_waited_for() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "slow", priority=1)
        await holder(h, "other", priority=2)
        deleted(h, "slow", -10.0)
        create(h, "high", priority=100)
        await asyncio.sleep(200)
        assert evictions(h) == []
        await until(lambda: evictions(h) == ["other"], seconds=700)

    play(cluster_of(n1=(80, 80)), scenario, ends=None)


@pytest.mark.parametrize("status", [{"phase": "Failed"}, {"phase": "Succeeded"}])
def test_a_finalizer_alone_keeps_no_devices(status: dict[str, Any]) -> None:
    """The controller-manager deallocates what a pod has whose containers have ended."""

    async def scenario(h: Harness) -> None:
        await holder(h, "ended", priority=1)
        await holder(h, "other", priority=2)
        deleted(h, "ended", BEFORE)
        h.cluster.edit(PODS, "ended", {"status": status}, NS)
        create(h, "high", priority=100)
        await asyncio.sleep(200)
        assert evictions(h) == []
        h.cluster.remove(RESOURCE_CLAIMS, "ended", NS)
        await until(lambda: served(h, "high"))
        assert evictions(h) == []

    play(cluster_of(n1=(80, 80)), scenario, ends=None)


def test_a_victim_that_does_not_end_is_replaced_after_the_round() -> None:
    async def scenario(h: Harness) -> None:
        await holder(h, "stuck", priority=1)
        await holder(h, "other", priority=2)
        create(h, "high", priority=100)
        await until(lambda: evictions(h) == ["stuck"])
        await asyncio.sleep(290)
        assert evictions(h) == ["stuck"]
        await until(lambda: evictions(h) == ["stuck", "other"], seconds=700)
        await asyncio.sleep(1_000)
        assert evictions(h) == ["stuck", "other"]

    play(cluster_of(n1=(80, 80)), scenario, ends=None)


def test_a_group_goes_although_one_of_its_members_does_not_end() -> None:
    """As where the node of that one does not answer."""

    async def scenario(h: Harness) -> None:
        for name in ("low-0", "low-1"):
            member(h.cluster, name, 2, group="low", priority=1)
        for name in ("low-0", "low-1"):
            await runs(h, name)
        deleted(h, "low-0", BEFORE)
        create(h, "high", priority=100)
        await until(lambda: evictions(h) == ["low-1"])

    play(cluster_of(n1=(80, 80)), scenario, ends=None)
