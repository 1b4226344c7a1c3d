"""What a running controller makes of an API server that is upgraded, or taken back to an older version."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import virtual_time
from builders import DRIVER, device, request
from builders import NAMESPACE as NS
from fake_client import FakeClient
from inline_answers import inline

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Device
from dra_driver.errors import ServerBusy
from dra_driver.kube.features import KeptFields
from dra_driver.resourceslice import ServerFeatures
from dra_driver.sim.apiserver.objects.releases import COUNTERS_TOGETHER, served
from dra_driver.sim.apiserver.writing.registry import Registry


def old(raw: dict[str, Any]) -> None:
    """What a server with the gates off stores of a new slice."""
    if raw["kind"] != "ResourceSlice":
        return
    raw["spec"].pop("sharedCounters", None)
    for each in raw["spec"].get("devices", ()):
        for field in ("taints", "consumesCounters", "allowMultipleAllocations"):
            each.pop(field, None)


# --- what counts --------------------------------------------------------------------------------------------


class Looks:
    """Looks at a server that answers as it is told, a look whenever ``at`` says that time is over."""

    def __init__(self) -> None:
        self.cluster = FakeClient()
        self.time = 0.0
        self.changes: list[ServerFeatures] = []
        self.kept = KeptFields(self.cluster, DriverName(DRIVER), self, 30.0, changed=self.changes.append)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def look(
        self, strip: Callable[[dict[str, Any]], None] | None, after: float = 30.0
    ) -> ServerFeatures:
        self.cluster.strip = strip
        self.time += after
        return await self.kept.now()

    def asked(self) -> int:
        return sum(c.verb == "dry-run" for c in self.cluster.calls)


def test_a_field_counts_as_dropped_at_once_and_as_kept_after_three_looks() -> None:
    async def scenario() -> None:
        looks = Looks()
        assert (await looks.look(None)).taints
        dropped = await looks.look(old)
        assert (dropped.taints, dropped.counters, dropped.multi_allocation) == (False, False, False)
        assert not (await looks.look(None)).taints
        assert not (await looks.look(None)).taints
        assert (await looks.look(None)).taints
        assert [c.taints for c in looks.changes] == [False, True]

    asyncio.run(scenario())


def test_counters_stay_where_they_are_until_all_servers_want_them_elsewhere() -> None:
    """From 1.34 to 1.35: counters leave the slices of their devices."""

    async def scenario() -> None:
        looks = Looks()
        looks.cluster.registry = Registry(
            looks.cluster.registry.store, looks.cluster.clock, served("1.36", [COUNTERS_TOGETHER])
        )
        assert (await looks.look(None)).together
        looks.cluster.registry = Registry(
            looks.cluster.registry.store, looks.cluster.clock, served("1.36", ())
        )
        for _ in range(2):
            between = await looks.look(None)
            assert (between.counters, between.together) == (True, True)
        after = await looks.look(None)
        assert (after.counters, after.together) == (True, False)
        assert [c.together for c in looks.changes] == [False]

    asyncio.run(scenario())


def test_servers_that_answer_by_turns_are_an_old_one() -> None:
    async def scenario() -> None:
        looks = Looks()
        for turn in range(12):
            await looks.look(None if turn % 3 else old)
        assert looks.kept.known is not None
        assert not looks.kept.known.taints
        assert looks.changes == []

    asyncio.run(scenario())


def test_a_server_is_asked_only_so_often_unless_in_doubt() -> None:
    async def scenario() -> None:
        looks = Looks()
        await looks.look(None)
        once = looks.asked()
        assert (await looks.look(old, after=29.0)).taints
        assert looks.asked() == once
        looks.kept.doubt()
        assert not (await looks.look(old, after=0.0)).taints
        assert looks.asked() > once

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_keeps_what_it_kept_unless_in_doubt() -> None:
    async def scenario() -> None:
        looks = Looks()

        def away(*_: str) -> None:
            raise ServerBusy("starting", code=503)

        looks.cluster.before = away
        with contextlib.suppress(ServerBusy):
            await looks.look(None)
            raise AssertionError("nothing is known yet")
        looks.cluster.before = lambda *_: None
        await looks.look(None)
        looks.cluster.before = away
        assert (await looks.look(None)).taints
        looks.kept.doubt()
        with contextlib.suppress(ServerBusy):
            await looks.look(None)
            raise AssertionError("it is in doubt")

    asyncio.run(scenario())


# --- the controller -----------------------------------------------------------------------------------------


class Harness:
    def __init__(self, cluster: FakeClient, controller: Controller) -> None:
        self.cluster = cluster
        self.controller = controller

    async def until(self, condition: Callable[[], object], seconds: float = 200.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.1)

    def devices(self) -> dict[str, Device]:
        slices = self.cluster.all(RESOURCE_SLICES)
        newest = max((s.spec.pool.generation for s in slices), default=0)
        return {d.name: d for s in slices if s.spec.pool.generation == newest for d in s.spec.devices}

    def tainted(self) -> set[bool]:
        return {any(t.key == CONTROLLER_TAINT for t in d.taints) for d in self.devices().values()}

    def noted(self) -> str:
        return self.cluster.obj(DEVICE_INVENTORIES, f"n1.{DRIVER}").status.publication.allocator

    def published(self) -> str:
        conditions = self.cluster.obj(DEVICE_INVENTORIES, f"n1.{DRIVER}").status.conditions
        return next((c.reason for c in conditions if c.type == "Published"), "")

    def device_of(self, name: str) -> str:
        allocation = self.cluster.obj(RESOURCE_CLAIMS, name, NS).status.allocation
        return allocation.devices.results[0].device if allocation else ""


def cluster_with(*devices: dict[str, Any]) -> FakeClient:
    cluster = FakeClient()
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    cluster.put(NODES, builders.node("n1", uid="uid-n1"))
    cluster.put(DEVICE_INVENTORIES, builders.inventory("n1", *devices))
    return cluster


def gpus(number: int) -> list[dict[str, Any]]:
    return [device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}) for i in range(number)]


def run(cluster: FakeClient, scenario: Callable[[Harness], Awaitable[None]]) -> None:
    async def main() -> None:
        settings = ControllerConfig(drivers=(DRIVER,), leader_elect=False)
        controller = Controller(cluster, settings, virtual_time.LoopClock(), answers_of=inline)
        task = asyncio.create_task(controller.run())
        try:
            async with asyncio.timeout(2000):
                await controller.ready.wait()
                await scenario(Harness(cluster, controller))
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    virtual_time.run(main())


def allocated_by_scheduler(cluster: FakeClient, name: str, gpu: str) -> None:
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, request("r")))
    found = builders.allocation(builders.result("n1", gpu, request="r"))
    cluster.edit(RESOURCE_CLAIMS, name, {"status": {**found, **builders.reserved(name)}}, NS)


def test_an_upgrade_gives_the_pools_to_the_controller_without_a_restart() -> None:
    cluster = cluster_with(*gpus(2))
    cluster.strip = old
    allocated_by_scheduler(cluster, "theirs", "gpu-0")

    async def scenario(h: Harness) -> None:
        await h.until(lambda: (h.noted(), h.published()) == ("scheduler", "FeatureGateDisabled"))
        assert h.tainted() == {False}
        cluster.strip = None
        await h.until(lambda: (h.noted(), h.published(), h.tainted()) == ("controller", "Published", {True}))
        # One that begins to wait now is the controller's; what kube-scheduler has given stays given.
        cluster.put(RESOURCE_CLAIMS, builders.claim("ours", request("r")))
        cluster.put(PODS, builders.pod("ours", "ours", gated=True))
        await h.until(lambda: h.device_of("ours") == "gpu-1")
        assert h.device_of("theirs") == "gpu-0"
        assert 'gate="DRADeviceTaints"} 0.0' in h.controller.metrics.text().decode()

    run(cluster, scenario)


def test_a_rollback_gives_the_pools_to_kube_scheduler_before_the_next_minute_is_over() -> None:
    cluster = cluster_with(*gpus(2))

    async def scenario(h: Harness) -> None:
        await h.until(lambda: h.noted() == "controller")
        cluster.put(RESOURCE_CLAIMS, builders.claim("ours", request("r")))
        cluster.put(PODS, builders.pod("ours", "ours", gated=True))
        await h.until(lambda: h.device_of("ours"))
        cluster.edit(RESOURCE_CLAIMS, "ours", {"status": builders.reserved("ours")}, NS)
        held = h.device_of("ours")
        cluster.strip = old
        seen: set[tuple[str, bool]] = set()

        def drained() -> bool:
            seen.update((h.noted(), tainted) for tainted in h.tainted())
            return (h.noted(), h.tainted()) == ("scheduler", {False})

        await h.until(drained, 60.0)
        assert ("controller", False) not in seen, "kube-scheduler could allocate before the pool was drained"
        await h.until(lambda: h.published() == "FeatureGateDisabled", 60.0)
        assert set(h.devices()) == {"gpu-0", "gpu-1"}
        assert h.device_of("ours") == held
        assert 'gate="DRADeviceTaints"} 1.0' in h.controller.metrics.text().decode()

    run(cluster, scenario)
