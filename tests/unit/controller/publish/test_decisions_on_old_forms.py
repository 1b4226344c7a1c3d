"""What kube-scheduler decided on while a pool was the controller's, or had another form, and writes later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import builders
import controller_harness as harness
import pytest
import virtual_time
from builders import DRIVER, device, request
from controller_harness import Harness, Scenario, pod
from open_cluster import ROOM, PolicedCluster, cluster_of

from controller.config import Timings
from dra_driver.api.core import NODES
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.ownership import PoolID

POOL = PoolID(DRIVER, PoolName("n1"))
HOUR = Timings().kept
PROFILE = {
    "name": "half.20gb",
    "placements": [{"start": 0, "size": 1}, {"start": 1, "size": 1}],
    "attributes": {"type": {"string": "mig"}},
    "capacity": {"memory": {"value": "20Gi"}},
}
PARTS, SHARES = {"partitions": {"profiles": ["*"]}}, {"share": {"maxShares": 2}}
THEIRS = {"allocator": "scheduler"}
FIRST, SECOND = "gpu-0-mig-half-20gb-0", "gpu-0-mig-half-20gb-1"
SHARE = {"shareID": "5d7a6f0e-0000-4000-8000-000000000000"}


def cluster_with_gpus(*nodes: str) -> PolicedCluster:
    """Return nodes with two GPUs each that can be cut into halves, and claims of kube-scheduler's pods."""
    cluster = cluster_of()
    for name in nodes:
        cluster.put(NODES, builders.node(name, uid=f"uid-{name}", allocatable=ROOM))
        gpus = [
            device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}, partitions=[PROFILE]) for i in range(2)
        ]
        cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *gpus))
    for name in ("late", "theirs", "more"):
        harness.claim(cluster, name, request())
    return cluster


def policy(cluster: PolicedCluster, spec: dict[str, Any]) -> None:
    """Have the one policy of all nodes say something else, in one write."""
    if cluster.find(DEVICE_POLICIES, "p") is not None:
        cluster.remove(DEVICE_POLICIES, "p")
    body = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "DevicePolicy", "metadata": {"name": "p"}}
    cluster.put(DEVICE_POLICIES, {**body, "spec": spec})


def run(cluster: PolicedCluster, scenario: Scenario, **config: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(20_000), harness.controlling(cluster, open_pools=True, **config) as made:
            await scenario(made)

    virtual_time.run(main())


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def published(cluster: PolicedCluster) -> set[str]:
    return {d.name for s in cluster.all(RESOURCE_SLICES) for d in s.spec.devices}


async def opened(cluster: PolicedCluster, devices: int) -> None:
    await until(lambda: cluster.record() == "open" and len(published(cluster)) == devices)


async def yielded(cluster: PolicedCluster) -> None:
    """Wait until kube-scheduler has the pool, and gets what it decides now."""
    await until(lambda: cluster.record() == "scheduler")
    await asyncio.sleep(12)


@pytest.mark.parametrize(
    ("before", "after", "late", "valid"),
    [
        (PARTS, THEIRS, (FIRST, {}), ("gpu-0", {})),
        (SHARES, THEIRS, ("gpu-0", SHARE), ("gpu-0", {})),
        ({}, THEIRS | SHARES, ("gpu-0", {}), ("gpu-0", SHARE)),
        ({}, THEIRS | {"hide": True}, ("gpu-0", {}), None),
    ],
    ids=["parts, then whole", "shares, then whole", "whole, then shares", "hidden"],
)
def test_a_decision_on_a_form_that_is_published_no_more_is_refused(
    before: dict[str, Any],
    after: dict[str, Any],
    late: tuple[str, dict[str, Any]],
    valid: tuple[str, dict[str, Any]] | None,
) -> None:
    """One edit of a policy changes the allocator and the form."""
    cluster = cluster_with_gpus("n1")
    policy(cluster, before or {"taints": []})

    async def scenario(h: Harness) -> None:
        await opened(cluster, 6 if before is PARTS else 2)
        policy(cluster, after)
        await yielded(cluster)
        if valid is not None:
            assert cluster.take("theirs", "n1", valid[0], **valid[1])
        assert not cluster.take("late", "n1", late[0], **late[1])
        # Long after nothing of that time can be under way any more.
        await asyncio.sleep(HOUR / 2)
        assert not cluster.take("late", "n1", late[0], **late[1])
        await asyncio.sleep(HOUR / 2)
        assert cluster.grants().admits_all(POOL)

    run(cluster, scenario)


def test_what_excludes_a_device_of_the_controllers_is_refused_until_that_is_free() -> None:
    cluster = cluster_with_gpus("n1")
    policy(cluster, PARTS)

    async def scenario(h: Harness) -> None:
        await opened(cluster, 6)
        part = request(selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].type == 'mig'"}}])
        harness.claim(cluster, "mine", part)
        pod(cluster, "p-mine", "mine")
        await until(lambda: h.devices("mine"))
        h.bind("p-mine", "n1")
        ((_, mine),) = h.devices("mine")
        gpu = mine.partition("-mig-")[0]
        other = next(name for name in ("gpu-0", "gpu-1") if name != gpu)
        policy(cluster, THEIRS | PARTS)
        await yielded(cluster)
        # Decided before kube-scheduler knew of the partition.
        assert not cluster.take("late", "n1", gpu)
        assert not cluster.take("late", "n1", mine)
        assert cluster.take("theirs", "n1", other)
        # What is free beside it is kube-scheduler's at once.
        assert cluster.take("more", "n1", SECOND if mine == FIRST else FIRST)
        cluster.remove(RESOURCE_CLAIMS, "more", builders.NAMESPACE)
        cluster.remove(RESOURCE_CLAIMS, "mine", builders.NAMESPACE)
        await asyncio.sleep(12)
        assert cluster.take("late", "n1", gpu)
        # What kube-scheduler has is not the controller's.
        assert not cluster.grants().kept & {(POOL, gpu)}

    run(cluster, scenario)


def test_what_is_published_no_more_is_refused_over_restarts_of_the_controller() -> None:
    """The change of the policy, and the one of the form, may each be seen by another process."""
    cluster = cluster_with_gpus("n1")
    policy(cluster, PARTS)

    async def before(h: Harness) -> None:
        await opened(cluster, 6)
        policy(cluster, {"taints": []})
        await opened(cluster, 2)

    async def handed_over(h: Harness) -> None:
        await yielded(cluster)
        assert not cluster.take("late", "n1", FIRST)
        assert cluster.take("theirs", "n1", "gpu-0")

    async def after(h: Harness) -> None:
        await asyncio.sleep(60)
        assert not cluster.take("late", "n1", SECOND)
        assert not cluster.take("late", "n1", "gpu-1-mig-half-20gb-0")
        assert cluster.take("more", "n1", "gpu-1")
        await asyncio.sleep(HOUR)
        assert cluster.grants().admits_all(POOL)

    async def later(h: Harness) -> None:
        await asyncio.sleep(60)
        assert cluster.grants().admits_all(POOL)

    run(cluster, before)
    policy(cluster, THEIRS)
    for scenario in (handed_over, after, later):
        run(cluster, scenario)


def test_what_kube_scheduler_has_got_itself_keeps_nothing_from_it_after_a_restart() -> None:
    cluster = cluster_with_gpus("n1")

    async def first(h: Harness) -> None:
        await opened(cluster, 2)
        policy(cluster, THEIRS | SHARES)
        await yielded(cluster)
        assert cluster.take("theirs", "n1", "gpu-0", **SHARE)
        pod(cluster, "p", "theirs", gated=False)
        h.bind("p", "n1")

    async def second(h: Harness) -> None:
        await asyncio.sleep(60)
        assert h.devices("theirs")
        assert cluster.take("more", "n1", "gpu-0", **SHARE)

    run(cluster, first)
    run(cluster, second)


def test_devices_of_a_pool_of_kube_scheduler_are_admitted_as_soon_as_they_are_published() -> None:
    cluster = cluster_with_gpus("n1")

    async def scenario(h: Harness) -> None:
        await opened(cluster, 2)
        policy(cluster, THEIRS)
        await yielded(cluster)
        assert not cluster.take("late", "n1", FIRST)
        policy(cluster, THEIRS | PARTS)
        await until(lambda: FIRST in published(cluster))
        await asyncio.sleep(1)
        assert cluster.take("late", "n1", FIRST)
        assert cluster.take("theirs", "n1", "gpu-1")

    run(cluster, scenario)
