"""From a pod behind our gate to a node that is added for it: embedded, and beside the real kube-scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from real_apiserver import binaries, real_apiserver
from real_scheduler import real_scheduler
from scheduling_world import NAMESPACE, SchedulingWorld, scheduling_world

from controller.allocate.decide import report_of
from dra_driver.api.core import NAMESPACES, PODS, Pod
from dra_driver.api.names import CANNOT_ALLOCATE, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS

pytestmark = [pytest.mark.slow, pytest.mark.long]

DELAY = 1.0
GROUP = "node-group"
SELECTOR = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": GROUP, "operator": "In", "values": ["gpus"]}]}]
}
both = pytest.mark.parametrize("kind", ["embedded", "real"])


async def policy(world: SchedulingWorld, **spec: Any) -> None:
    body = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "autoscaled"},
        "spec": {"nodeSelector": SELECTOR, **spec},
    }
    await world.api.create(DEVICE_POLICIES, body)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)


def is_unschedulable(pod: Pod) -> bool:
    """Return what the cluster autoscaler and Karpenter ask about a pod."""
    report = report_of(pod)
    waits = not (pod.spec.node_name or pod.status.nominated_node_name)
    return waits and report is not None and report.reason == "Unschedulable"


class Autoscaler:
    """In place of an autoscaler: adds a node for each pod that is reported as unschedulable, once.

    Attributes:
        seen: the pods, by name, with what was reported about them.
        protected: whether the devices of its nodes are allocated by the controller.
    """

    def __init__(self, world: SchedulingWorld, *, protected: bool) -> None:
        self.seen: dict[str, str] = {}
        self.protected = protected
        self._world = world

    async def run(self) -> None:
        while True:
            for pod in (await self._world.api.list(PODS, NAMESPACE)).items:
                name, report = pod.metadata.name, report_of(pod)
                if is_unschedulable(pod) and name not in self.seen and report is not None:
                    assert not pod.spec.scheduling_gates
                    self.seen[name] = report.message
                    labels = {GROUP: "gpus"}
                    await self._world.node(f"for-{name}", 1, labels=labels, protected=self.protected)
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def scaling(world: SchedulingWorld, *, protected: bool) -> AsyncIterator[Autoscaler]:
    autoscaler = Autoscaler(world, protected=protected)
    task = asyncio.create_task(autoscaler.run())
    try:
        yield autoscaler
    finally:
        task.cancel()
        await asyncio.wait({task})


async def named_class(world: SchedulingWorld) -> None:
    """Make the class name the driver: from zero nodes there is nothing else by which it is known."""
    expression = f'device.driver == "{builders.DRIVER}"'
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    await world.api.merge_patch(DEVICE_CLASSES, "gpu", {"spec": spec})


def play(kind: str, scenario: Callable[[SchedulingWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scheduling_world(kind) as world:
            await named_class(world)
            await world.node("cpu-only", gpus=0)
            await scenario(world)

    asyncio.run(main())


@both
def test_from_zero_nodes_of_kube_scheduler(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await policy(world, allocator="scheduler")
        async with (
            world.controller(scale_up_seconds=DELAY, reads_storage=False),
            scaling(world, protected=False) as autoscaler,
        ):
            for name in ("a", "b"):
                await world.claim(name)
                await world.pod(name, name)
            await world.until_bound(("a", "b"))
            assert CANNOT_ALLOCATE in autoscaler.seen["a"]
            nodes = {(await world.get(name)).spec.node_name for name in ("a", "b")}
            assert nodes == {"for-a", "for-b"}

    play(kind, scenario)


@both
def test_from_zero_nodes_of_this_controller(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await policy(world, autoscaled=True)
        async with (
            world.controller(scale_up_seconds=DELAY, reads_storage=False),
            scaling(world, protected=True) as autoscaler,
        ):
            await world.claim("a")
            await world.pod("a", "a")
            await world.until_bound(("a",))
            assert CANNOT_ALLOCATE in autoscaler.seen["a"]
            claim = await world.api.get(RESOURCE_CLAIMS, "a", NAMESPACE)
            assert claim.status.allocation is not None
            assert claim.status.allocation.devices.results[0].pool == "for-a"

    play(kind, scenario)


@both
def test_members_of_a_group_are_seen_together_and_start_together(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await policy(world, autoscaled=True)
        labels = {"labels": {GROUP_LABEL: "job", GROUP_SIZE_LABEL: "3"}}
        async with (
            world.controller(scale_up_seconds=DELAY, scale_up_pods=1, reads_storage=False),
            scaling(world, protected=True) as autoscaler,
        ):
            for name in ("a", "b", "c"):
                await world.claim(name)
                await world.pod(name, name, metadata=labels)
            await world.until_bound(("a", "b", "c"))
            assert sorted(autoscaler.seen) == ["a", "b", "c"]

    play(kind, scenario)


@both
def test_without_a_policy_about_such_nodes_no_pod_is_seen(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        async with (
            world.controller(scale_up_seconds=0.0, reads_storage=False),
            scaling(world, protected=True) as autoscaler,
        ):
            await world.claim("a")
            await world.pod("a", "a")
            await asyncio.sleep(5.0)
            assert (await world.get("a")).spec.scheduling_gates
            assert autoscaler.seen == {}

    play(kind, scenario)


@both
def test_a_controller_that_is_ended_in_between_goes_on(kind: str) -> None:
    async def scenario(world: SchedulingWorld) -> None:
        await policy(world, autoscaled=True)
        await world.claim("a")
        await world.pod("a", "a")
        async with world.controller(scale_up_seconds=DELAY, reads_storage=False):

            async def seen() -> bool:
                return is_unschedulable(await world.get("a"))

            await until(seen)
        await world.node("n1", 1, labels={GROUP: "gpus"})
        await asyncio.sleep(1.0)
        assert not (await world.get("a")).spec.node_name, "its devices are protected from kube-scheduler"
        async with world.controller(scale_up_seconds=DELAY, reads_storage=False):
            await world.until_bound(("a",))

    play(kind, scenario)


def test_the_plugin_of_kube_scheduler_takes_tainted_devices_without_the_gate_for_taints(
    tmp_path: Path,
) -> None:
    """So does the cluster autoscaler with that flag, which runs the plugin (docs/autoscaling.md)."""
    binaries()

    async def scenario() -> None:
        with real_apiserver(tmp_path) as server:
            api = await server.client()
            off = "--feature-gates=DRADeviceTaints=false"
            async with real_scheduler(server, tmp_path, off) as scheduler:
                world = SchedulingWorld(server.client, api, scheduler)
                await world.api.create(
                    NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
                )
                await world.api.create(DEVICE_CLASSES, builders.device_class("gpu"))
                await world.node("n1", 1)
                await world.claim("a")
                await world.pod("a", "a", gated=False)
                await world.until_bound(("a",))
            await api.close()

    asyncio.run(scenario())
