"""PodGroups beside kube-scheduler: the stand-in, and the real one with its alpha gates on.

The variable ``DRA_K8S_BIN`` names the folder with its program, and those of the API server and etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders import container
from placement_judge import judging
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import PODS
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.scheduling import pod_groups

pytestmark = pytest.mark.slow

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
POD_GROUPS = pod_groups("v1alpha2")
# kube-scheduler waits for so long for the pods of a group, by what is written there.
HELD_SECONDS = 30.0

Scenario = Callable[[SchedulingWorld], Awaitable[None]]


def run(kind: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(400),
            scheduling_world(kind, pod_groups=True) as world,
            judging(world.api, NAMESPACE, HELD_SECONDS),
        ):
            await scenario(world)

    asyncio.run(main())


async def pod_group(world: SchedulingWorld, name: str, least: int, **spec: Any) -> None:
    body = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
    }
    await world.api.create(POD_GROUPS, body, NAMESPACE)


async def members(world: SchedulingWorld, group: str, number: int, *claims: str, **spec: Any) -> list[str]:
    """Make pods of a group, each with a claim of its own; return their names."""
    names = [f"{group}-{i}" for i in range(number)]
    for name in names:
        await world.claim(name)
        await world.pod(name, name, *claims, schedulingGroup={"podGroupName": group}, **spec)
    return names


async def bound(world: SchedulingWorld) -> set[str]:
    return {p.metadata.name for p in (await world.api.list(PODS, NAMESPACE)).items if p.spec.node_name}


async def held(world: SchedulingWorld) -> set[str]:
    claims = (await world.api.list(RESOURCE_CLAIMS, NAMESPACE)).items
    return {c.metadata.name for c in claims if c.status.allocation is not None}


async def remove(world: SchedulingWorld, names: list[str]) -> None:
    """Delete pods, and free their claims as the controller-manager does when they are gone."""
    for name in names:
        await world.api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
        free = {"status": {"reservedFor": None, "allocation": None}}
        await world.api.merge_patch(RESOURCE_CLAIMS, name, free, NAMESPACE, subresource="status")


def of_group(names: set[str], group: str) -> set[str]:
    return {name for name in names if name.startswith(f"{group}-")}


async def one_then_the_other(world: SchedulingWorld, groups: dict[str, list[str]]) -> None:
    """Wait until one group runs; see that the other holds nothing; remove the first, and wait again."""
    async with asyncio.timeout(120):
        while not (now := await bound(world)):
            await asyncio.sleep(0.1)
    first = next(group for group in groups if of_group(now, group))
    (second,) = groups.keys() - {first}
    await world.until_bound(groups[first])
    assert not of_group(await bound(world), second)
    assert not of_group(await held(world), second)
    await remove(world, groups[first])
    await world.until_bound(groups[second])


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_pod_groups_of_three_on_four_devices_one_runs_then_the_other(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for i in range(2):
            await world.node(f"n{i}", gpus=2)
        async with world.controller():
            for group in "xy":
                await pod_group(world, group, 3)
            groups = {group: await members(world, group, 3) for group in "xy"}
            await one_then_the_other(world, groups)

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_with_sidecars_go_where_there_is_room_for_all_of_them(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        # Of the nodes with eight CPUs one is nearly full.
        await world.node("n0", gpus=3)
        await world.node("n1", gpus=3)
        await world.pod("filler", gated=False, nodeName="n0", containers=[container("6")])
        async with world.controller():
            await pod_group(world, "g", 3)
            sidecar = {**container("1"), "name": "sidecar", "restartPolicy": "Always"}
            names = await members(world, "g", 3, containers=[container("1")], initContainers=[sidecar])
            await world.until_bound(names)
            nodes = [(await world.get(name)).spec.node_name for name in names]
            assert nodes.count("n0") <= 1

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_controller_that_ends_in_between_leaves_no_part_of_a_group(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for i in range(2):
            await world.node(f"n{i}", gpus=2)
        groups: dict[str, list[str]] = {}
        for group in "xy":
            await pod_group(world, group, 3)
            groups[group] = await members(world, group, 3)
        for _ in range(6):
            async with world.controller():
                # Allocations are written one after the other, and so are gates.
                async with asyncio.timeout(60):
                    while not await held(world):
                        await asyncio.sleep(0.001)
            if await bound(world):
                break
        async with world.controller():
            await one_then_the_other(world, groups)

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_of_the_group_is_shared_by_all_its_pods(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await world.node("n0", gpus=3)
        await world.node("n1", gpus=4)
        async with world.controller():
            await world.claim("shared")
            await pod_group(world, "g", 3, resourceClaims=[{"name": "c1", "resourceClaimName": "shared"}])
            names = await members(world, "g", 3, "shared")
            await world.until_bound(names)
            assert {(await world.get(name)).spec.node_name for name in names} == {"n1"}
            claim = await world.api.get(RESOURCE_CLAIMS, "shared", NAMESPACE)
            if kind == "real":  # the stand-in has the gate DRAWorkloadResourceClaims off
                assert [(r.resource, r.name) for r in claim.status.reserved_for] == [("podgroups", "g")]

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_the_annotation_keeps_the_pods_on_nodes_of_one_value(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for i, rack in enumerate(("r1", "r2", "r2")):
            await world.node(f"n{i}", gpus=2, labels={"rack": rack})
        async with world.controller():
            await pod_group(world, "g", 3)
            metadata = {"annotations": {GROUP_DOMAIN_ANNOTATION: "rack"}}
            names = await members(world, "g", 3, metadata=metadata)
            await world.until_bound(names)
            assert {(await world.get(name)).spec.node_name for name in names} == {"n1", "n2"}

    run(kind, scenario)
