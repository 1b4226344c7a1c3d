"""The real cluster autoscaler with open pools: what it adds and removes, and what waiting pods are told.

``make autoscaler-test BIN=DIR AUTOSCALER=FILE``. Each test prints how long the answer took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from autoscaled import Autoscaled, autoscaled
from builders import claim, device_class, request
from granting_beside import NAMESPACE, OURS, cut_gpu, gpu

from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS
from dra_driver.resourceclaim import is_gated

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

DELAY = 1.0
CONTROL_SECONDS = 60.0
SICK = [{"reason": "Broken", "severity": "failed"}]

Scenario = Callable[[Autoscaled], Awaitable[None]]


def run(folder: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(570), autoscaled(folder) as world:
            await scenario(world)

    asyncio.run(main())


def told(question: str, seconds: float) -> None:
    print(f"\n{question}: {seconds:.1f} s")


async def begin(world: Autoscaled, machine_set: str, *devices: dict[str, Any], **sizes: Any) -> None:
    """Make a set of machines to which nodes may be added, and wait for those with which it begins."""
    await world.may_grow(machine_set)
    await world.machines.machine_set(machine_set, *devices, **sizes)
    replicas = sizes.get("replicas", 1)
    await world.sizes(machine_set, replicas)
    await world.beside.published(*await world.machines.nodes(machine_set))


async def begin_busy(world: Autoscaled) -> None:
    """Begin with one node, whose two GPUs are busy."""
    await begin(world, "gpus", gpu(0), gpu(1), least=1)
    await world.replica_set("pods", 2)
    await world.placed("pods", 2)


def growing(world: Autoscaled) -> Any:
    """Run a controller that shows pods after a moment."""
    return world.beside.controller(scale_up_seconds=DELAY)


def test_a_pod_for_which_all_gpus_are_busy_gets_one_node(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin_busy(world)
            async with world.autoscaler():
                began = time.monotonic()
                await world.scale("pods", 3)
                await world.sizes("gpus", 2)
                told("two GPUs busy and a third pod, one node", time.monotonic() - began)
                await world.placed("pods", 3)
                told("the third pod bound", time.monotonic() - began)
                await world.stays("gpus", 2)

    run(tmp_path, scenario)


def test_nine_pods_get_five_nodes_of_two(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin(world, "gpus", gpu(0), gpu(1), least=1)
            async with world.autoscaler():
                began = time.monotonic()
                await world.replica_set("pods", 9)
                await world.sizes("gpus", 5)
                told("nine pods, five nodes of two", time.monotonic() - began)
                await world.placed("pods", 9)
                told("nine pods bound", time.monotonic() - began)
                await world.stays("gpus", 5)
            assert world.machines.most["gpus"] == 5

    run(tmp_path, scenario)


def test_a_node_whose_pods_can_move_is_drained(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin(world, "gpus", *map(gpu, range(4)), replicas=2, least=1)
            await world.replica_set("more", 4)
            await world.placed("more", 4)
            await world.replica_set("few", 1)
            await world.placed("few", 1)
            await world.scale("more", 2)
            before = await world.placed("more", 2) | await world.placed("few", 1)
            assert len(set(before.values())) == 2
            async with world.autoscaler():
                seconds = await world.sizes("gpus", 1)
                told("a node that is used to a quarter or half, drained", seconds)
                after = await world.placed("more", 2) | await world.placed("few", 1)
            assert after.keys() != before.keys(), "pods had to move"
            assert set(after.values()) == set(await world.machines.nodes("gpus"))

    run(tmp_path, scenario)


def test_a_busy_gpu_and_an_unhealthy_one_get_one_node(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin(world, "gpus", gpu(0), gpu(1, health=SICK), least=1)
            await world.replica_set("pods", 1)
            await world.placed("pods", 1)
            async with world.autoscaler():
                began = time.monotonic()
                await world.scale("pods", 2)
                await world.sizes("gpus", 2)
                told("one GPU busy, the other unhealthy, one node", time.monotonic() - began)
                await world.placed("pods", 2)
                await world.stays("gpus", 2)

    run(tmp_path, scenario)


def test_pods_that_ask_for_extended_resources_get_a_node_and_grants(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin(world, "gpus", gpu(0), gpu(1), least=1)
            names = [f"p{i}" for i in range(3)]
            for name in names[:2]:
                await world.beside.pod(name, amount=1)
            await world.beside.bound(*names[:2])
            async with world.autoscaler():
                began = time.monotonic()
                await world.beside.pod(names[2], amount=1)
                await world.sizes("gpus", 2)
                told(
                    "two GPUs busy and a third pod with an extended resource, one node",
                    time.monotonic() - began,
                )
                await world.beside.bound(*names)
                told("that pod bound", time.monotonic() - began)
                await world.stays("gpus", 2)

    run(tmp_path, scenario)


def test_from_zero_nodes_and_back(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        api, machines = world.beside.world.api, world.machines
        # The template of Cluster API knows the type of devices, and nothing else.
        ours = f'device.driver == "{OURS}" && device.attributes["{OURS}"].type == "gpu"'
        await api.create(DEVICE_CLASSES, device_class("any", ours))
        await api.create(DEVICE_CLASSES, device_class("other", 'device.driver == "other.example.com"'))
        # For the pod of the controller, which asks for no device.
        await machines.machine_set("plain", most=1)
        await world.sizes("plain", 1)
        async with growing(world), world.autoscaler():
            await from_zero_without_us(world)
            await begin(world, "gpus", gpu(0), gpu(1), replicas=0)
            for round_ in ("first", "second"):
                began = time.monotonic()
                await api.create(RESOURCE_CLAIMS, claim(round_, request("gpu", "any"), namespace=NAMESPACE))
                await world.beside.pod(round_, round_)
                await world.beside.bound(round_)
                told(f"from zero nodes, the {round_} time, bound", time.monotonic() - began)
                assert await machines.replicas("gpus") == 1
                await world.beside.end(round_)
                told("back to zero", await world.sizes("gpus", 0))

    run(tmp_path, scenario)


async def from_zero_without_us(world: Autoscaled) -> None:
    """Have a node added for a claim of another driver, with a template like ours; skip where none comes."""
    await world.machines.machine_set("others", replicas=0, most=3, template=("other.example.com", 1))
    api = world.beside.world.api
    await api.create(RESOURCE_CLAIMS, claim("other", request("nic", "other"), namespace=NAMESPACE))
    await world.beside.pod("other", "other")
    end = time.monotonic() + CONTROL_SECONDS
    while time.monotonic() < end and not await world.events("TriggeredScaleUp"):
        said = await world.events("NotTriggerScaleUp")
        if any("cannot allocate all claims" in message for message in said):
            pytest.skip(
                "this autoscaler adds no node from zero for claims of any driver: autoscaler#10199, #10200"
            )
        await asyncio.sleep(0.5)
    await world.beside.end("other")


def test_the_node_of_a_running_pod_that_cannot_move_stays(tmp_path: Path) -> None:
    """Both nodes are cut into partitions; by devices alone there would be room for the pod of the second."""

    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await world.beside.policy("cut", "cut", partitions={"profiles": ["*"]})
            await begin(world, "gpus", cut_gpu(0), replicas=2, least=1, most=2)
            for name, profile in (("whole", "4g.40gb"), ("quarter", "1g.10gb")):
                selector = f'device.attributes["{OURS}"].profile == "{profile}"'
                part = request("part", "part", selectors=[{"cel": {"expression": selector}}])
                await world.replica_set(name, 1, part)
                await world.placed(name, 1)
            async with world.autoscaler():
                await world.stays("gpus", 2)
            assert world.machines.cut_off == []
            assert "quarter" in str([p.metadata.name for p in await world.pods("quarter")])

    run(tmp_path, scenario)


def group(name: str, size: int, domain: str = "") -> dict[str, Any]:
    """Return the metadata of the pods of a group."""
    annotations = {"annotations": {GROUP_DOMAIN_ANNOTATION: domain}} if domain else {}
    return {"labels": {GROUP_LABEL: name, GROUP_SIZE_LABEL: str(size)}, **annotations}


async def member(world: Autoscaled, name: str, metadata: dict[str, Any]) -> None:
    """Make a pod of a group, with a claim of its own."""
    api = world.beside.world.api
    await api.create(RESOURCE_CLAIMS, claim(name, request("gpu", "whole"), namespace=NAMESPACE))
    await world.beside.pod(name, name, metadata=metadata)


def test_a_group_gets_all_of_its_nodes_and_starts_as_a_whole(tmp_path: Path) -> None:
    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            await begin_busy(world)
            async with world.autoscaler():
                began = time.monotonic()
                names = [f"m{i}" for i in range(4)]
                for name in names:
                    await member(world, name, group("job", 4))
                await world.beside.bound(*names)
                told("a group of four beside busy GPUs, bound on two new nodes", time.monotonic() - began)
                await world.stays("gpus", 3)
            assert world.machines.most["gpus"] == 3

    run(tmp_path, scenario)


def test_a_group_whose_domain_is_full_is_told_why_no_node_comes(tmp_path: Path) -> None:
    """Each zone has one free GPU, and the group needs two in one: the autoscaler would see room for it."""

    async def scenario(world: Autoscaled) -> None:
        async with growing(world):
            for zone in ("a", "b"):
                await begin(world, zone, gpu(0), gpu(1), least=1, labels={"zone": zone})
                await world.replica_set(f"busy-{zone}", 1, nodeSelector={"zone": zone})
                await world.placed(f"busy-{zone}", 1)
            async with world.autoscaler():
                for name in ("m0", "m1"):
                    await member(world, name, group("job", 2, "zone"))

                async def is_said() -> bool:
                    return "no node is added" in await world.why("m0")

                told("a group without room in one zone, told why", await world.until("it is said", is_said))
                await world.stays("a", 1)
                await world.stays("b", 1, 1.0)
                assert all(is_gated(p) for p in await world.pods() if p.metadata.name in ("m0", "m1"))
                began = time.monotonic()
                await world.scale("busy-a", 0)
                await world.beside.bound("m0", "m1")
                told("after a GPU of the zone became free, bound", time.monotonic() - began)

    run(tmp_path, scenario)
