"""What Kubernetes 1.37 brings, from its API to allocations, beside the stand-in for kube-scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED, container
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceRequestAllocationResult,
    device_taint_rules,
)
from dra_driver.api.scheduling import pod_groups
from dra_driver.sim.apiserver import RELEASES

pytestmark = pytest.mark.slow

Body = dict[str, Any]
RULES = device_taint_rules("v1")


@contextlib.asynccontextmanager
async def world_of_1_37() -> AsyncIterator[SchedulingWorld]:
    """A server of 1.37 with all its gates on, and a controller."""
    gates = RELEASES["1.37"]
    async with (
        asyncio.timeout(120),
        scheduling_world("embedded", kubernetes="1.37", gates=gates) as world,
        world.controller(),
    ):
        yield world


def run(scenario: Callable[[SchedulingWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        async with world_of_1_37() as world:
            await scenario(world)

    asyncio.run(main())


async def node(
    world: SchedulingWorld, name: str, *devices: Body, counters: Body | None = None, **spec: Any
) -> None:
    """Make a node with devices from which the controller allocates; ``spec`` of their slice."""
    await world.node(name, 0)
    await world.api.delete(RESOURCE_SLICES, f"{name}-{DRIVER}")
    protected = [{**device, "taints": [PROTECTED]} for device in devices]
    made = [builders.resource_slice(name, *protected, count=2 if counters else 1, **spec)]
    if counters:
        sets = [{"name": "gpu", "counters": counters}]
        made.append(builders.resource_slice(name, name=f"{name}-counters", count=2, sharedCounters=sets))
    for body in made:
        await world.api.create(RESOURCE_SLICES, body)


async def claim(
    world: SchedulingWorld, name: str, *requests: Body, constraints: list[Body] | None = None
) -> None:
    body = builders.claim(name, *requests, namespace=NAMESPACE)
    if constraints:
        body["spec"]["devices"]["constraints"] = constraints
    await world.api.create(RESOURCE_CLAIMS, body)


def named(name: str) -> list[Body]:
    return [{"cel": {"expression": f"device.attributes['{DRIVER}'].name == '{name}'"}}]


async def results(world: SchedulingWorld, name: str) -> list[DeviceRequestAllocationResult]:
    found = await world.api.get(RESOURCE_CLAIMS, name, NAMESPACE)
    return list(found.status.allocation.devices.results) if found.status.allocation is not None else []


async def devices(world: SchedulingWorld, name: str) -> list[str]:
    return [f"{r.pool}/{r.device}" for r in await results(world, name)]


async def waiting(world: SchedulingWorld, pod: str, *parts: str) -> str:
    """Wait for an Event of a pod that waits which has all of these parts; return it."""
    while True:
        for event in (await world.api.list(EVENTS, NAMESPACE)).items:
            about = event.involved_object.name == pod
            if about and event.type == "Warning" and all(part in event.message for part in parts):
                assert not (await world.get(pod)).spec.node_name
                return event.message
        await asyncio.sleep(0.05)


def test_derived_attributes_join_devices_of_different_names() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        found = [
            builders.device("gpu-0", attributes={"kind": "gpu", "numa": 0}),
            builders.device("gpu-1", attributes={"kind": "gpu", "numa": 1}),
            builders.device("nic-0", attributes={"kind": "nic", "place": "numa1"}),
        ]
        await node(world, "n1", *found)
        here = f"device.attributes['{DRIVER}']"
        expressions = {"gpu": f"'numa' + string({here}.numa)", "nic": f"{here}.place"}
        requests = [
            builders.request(
                kind,
                selectors=[{"cel": {"expression": f"{here}.kind == '{kind}'"}}],
                derivedAttributes=[{"name": "derived/numa", "expression": expression}],
            )
            for kind, expression in expressions.items()
        ]
        await claim(world, "pair", *requests, constraints=[{"matchAttribute": "derived/numa"}])
        await world.pod("pair", "pair")
        await world.until_bound(["pair"])
        assert await devices(world, "pair") == ["n1/gpu-1", "n1/nic-0"]

    run(scenario)


def test_partitions_without_a_common_group_wait_for_each_other() -> None:
    def part(name: str, *groups: str) -> Body:
        consumed = {
            "counterSet": "gpu",
            "counters": {"slices": {"value": "1"}},
            "compatibilityGroups": [*groups],
        }
        return builders.device(name, attributes={"name": name}, consumesCounters=[consumed])

    async def scenario(world: SchedulingWorld) -> None:
        parts = [part("a", "left"), part("b", "right"), part("both", "left", "right")]
        await node(world, "n1", *parts, counters={"slices": {"value": "7"}})
        for name in ("a", "both"):
            await claim(world, name, builders.request(selectors=named(name)))
            await world.pod(name, name)
        await world.until_bound(["a", "both"])
        await claim(world, "b", builders.request(selectors=named("b")))
        await world.pod("b", "b")
        await waiting(world, "b", "compatib")
        await world.api.delete(PODS, "a", NAMESPACE, grace_period_seconds=0)
        free = {"status": {"reservedFor": None, "allocation": None}}
        await world.api.merge_patch(RESOURCE_CLAIMS, "a", free, NAMESPACE, subresource="status")
        await world.until_bound(["b"])
        assert await devices(world, "b") == ["n1/b"]

    run(scenario)


def test_operations_to_skip_are_copied_into_the_allocation() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        skipped = ["NodePrepareResources", "NodeUnprepareResources"]
        await node(world, "n1", builders.device("gpu-0"), skipNodeOperations=skipped)
        await claim(world, "c")
        await world.pod("p", "c")
        await world.until_bound(["p"])
        (result,) = await results(world, "c")
        assert result.skip_node_operations == tuple(skipped)

    run(scenario)


def test_what_devices_take_of_a_node_is_no_room_for_others() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await node(world, "n1", builders.device("gpu-0"))
        await world.pod("first", gated=False, containers=[container("100m")])
        await world.until_bound(["first"])
        taken = {
            "resourceClaimName": "theirs",
            "mapping": [{"name": "cpu", "quantity": "6"}],
            "overhead": [{"name": "cpu", "perPod": "500m"}],
        }
        status = {"status": {"nodeAllocatableResourceClaimStatuses": [taken]}}
        await world.api.merge_patch(PODS, "first", status, NAMESPACE, subresource="status")
        await claim(world, "c")
        await world.pod("second", "c", containers=[container("1500m")])
        await waiting(world, "second", "cpu")
        assert await devices(world, "c") == []
        taken["mapping"] = [{"name": "cpu", "quantity": "5"}]
        await world.api.merge_patch(PODS, "first", status, NAMESPACE, subresource="status")
        await world.until_bound(["second"])
        assert await devices(world, "c") == ["n1/gpu-0"]

    run(scenario)


def test_devices_that_count_as_resources_of_the_node_need_a_newer_controller() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        counted = {"cpu": {"mapping": {"deviceMultiplier": "2"}}}
        await node(world, "n1", builders.device("gpu-0", nodeAllocatableResources=counted))
        await claim(world, "c")
        await world.pod("p", "c")
        await waiting(world, "p", "newer controller", "nodeAllocatableResources")
        assert await devices(world, "c") == []

    run(scenario)


def test_taint_rules_of_v1_are_respected() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await node(world, "n1", builders.device("gpu-0"))
        selector = {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}
        taint = {"key": "example.com/sick", "effect": "NoSchedule"}
        body = {
            "apiVersion": RULES.api_version,
            "kind": "DeviceTaintRule",
            "metadata": {"name": "sick"},
            "spec": {"deviceSelector": selector, "taint": taint},
        }
        await world.api.create(RULES, body)
        await claim(world, "c")
        await world.pod("p", "c")
        await waiting(world, "p", "example.com/sick")
        await world.api.delete(RULES, "sick")
        await world.until_bound(["p"])
        assert await devices(world, "c") == ["n1/gpu-0"]

    run(scenario)


async def group(world: SchedulingWorld, version: str, least: int, **spec: Any) -> None:
    kind = pod_groups(version)
    body = {
        "apiVersion": kind.api_version,
        "kind": "PodGroup",
        "metadata": {"name": "job", "namespace": NAMESPACE},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
    }
    await world.api.create(kind, body, NAMESPACE)


async def members(world: SchedulingWorld, *names: str) -> None:
    for name in names:
        await world.claim(name)
        await world.pod(name, name, schedulingGroup={"podGroupName": "job"})


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3"])
def test_a_pod_group_is_placed_once_its_least_number_is_there(version: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for name in ("n1", "n2"):
            await node(world, name, builders.device("gpu-0"))
        await group(world, version, 3)
        await members(world, "a", "b")
        await asyncio.sleep(0.5)
        assert [await devices(world, name) for name in "ab"] == [[], []]
        fewer = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        await world.api.merge_patch(pod_groups(version), "job", fewer, NAMESPACE)
        await world.until_bound(["a", "b"])
        assert sorted([*await devices(world, "a"), *await devices(world, "b")]) == ["n1/gpu-0", "n2/gpu-0"]

    run(scenario)


def test_a_part_of_a_composite_group_waits_with_the_reason() -> None:
    async def scenario(world: SchedulingWorld) -> None:
        for name in ("n1", "n2"):
            await node(world, name, builders.device("gpu-0"))
        reference = {"workloadName": "w", "templateName": "t"}
        await group(world, "v1beta1", 2, parentCompositePodGroupName="all", workloadRef=reference)
        await members(world, "a", "b")
        found = await waiting(world, "a", "parentCompositePodGroupName")
        assert "needs a newer controller" in found
        assert [await devices(world, name) for name in "ab"] == [[], []]

    run(scenario)
