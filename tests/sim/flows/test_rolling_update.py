"""The plugin is updated again and again while the stand-in kubelet calls it: no call fails, no slice goes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from fake_client import FakeClient
from kubelet_fakes import short_directory, until
from node_agent import DRIVER, NODE, Node, add_claim, claim, device, inventory, running

from dra_driver.api.core import NODES
from dra_driver.sim.kubelet.plugins import ClaimRef, PluginManager
from dra_driver.sim.kubelet.settings import KubeletSettings
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.config import Timings

SETTINGS = dataclasses.replace(KubeletSettings.quick(), registry_tick=0.02, wipe_delay=0.2)


# On a machine that others use too, nothing is quick; what is waited for here comes, or the test fails.
SECONDS = 60.0
# Short against an update, so that calls come at any time in it, without a processor that does nothing else.
BETWEEN_CALLS = 0.01
PATIENT = Timing(budget=40.0, patience=40.0)


@contextlib.contextmanager
def not_cut_off() -> Iterator[None]:
    """A connection that is closed under a call cancels the call; the task would end as if all were well."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is None or task.cancelling(), "the kubelet closed the connection of a call"
        raise


class Update:
    """A kubelet that calls again and again, and plugins that come and go."""

    def __init__(self, kube: FakeClient, manager: PluginManager) -> None:
        self.kube = kube
        self.manager = manager
        self.calls = 0
        self.endpoints: set[str] = set()
        self.finished = asyncio.Event()

    def made(self, calls: int) -> bool:
        return self.calls >= calls

    async def call(self, i: int) -> None:
        body = add_claim(self.kube, claim(f"claim-{i}", f"gpu-{i}"))
        reference = ClaimRef("ns", f"claim-{i}", body["metadata"]["uid"])
        while not self.finished.is_set():
            plugin = self.manager.plugin(DRIVER)
            assert plugin is not None, "between two instances there was none"
            with not_cut_off():
                (_, error) = (await plugin.prepare([reference]))[reference.uid]
            assert error == ""
            plugin = self.manager.plugin(DRIVER)
            assert plugin is not None
            with not_cut_off():
                error = (await plugin.unprepare([reference]))[reference.uid]
            assert error == ""
            self.endpoints.add(plugin.endpoint)
            self.calls += 2
            await asyncio.sleep(BETWEEN_CALLS)

    async def registered(self, node: Node) -> None:
        def newest() -> bool:
            plugin = self.manager.plugin(DRIVER)
            endpoint = str(node.config.dra_socket)
            return plugin is not None and plugin.connected and plugin.endpoint == endpoint

        await until(newest, SECONDS)


def test_a_call_under_way_is_answered_before_the_kubelet_lets_go_of_an_agent_that_ends() -> None:
    """The stand-in closes the connection of a plugin whose registrar is gone, as the real kubelet does."""

    async def main() -> None:
        kube = FakeClient()
        with short_directory() as root:
            (root / "registry").mkdir()

            async def wipe(driver: str) -> None:
                """Nothing is published."""

            manager = PluginManager(root / "registry", SETTINGS, wipe)
            watching = asyncio.create_task(manager.run())
            timing = Timing(budget=30.0)
            async with running(root, kube, [device(0)], timing=timing) as node:
                await until(lambda: manager.plugin(DRIVER) is not None, SECONDS)
                plugin = manager.plugin(DRIVER)
                assert plugin is not None
                body = add_claim(kube, claim("one", "gpu-0"))
                reference = ClaimRef("ns", "one", body["metadata"]["uid"])
                kube.down = True
                before = len(kube.calls)
                call = asyncio.create_task(plugin.prepare([reference]))
                # The agent has the call when it asks for the claim.
                await until(lambda: any(c.kind == "ResourceClaim" for c in kube.calls[before:]), SECONDS)
                node.stop.set()
                # Many rounds of the kubelet's look at its registry.
                await asyncio.sleep(20 * SETTINGS.registry_tick)
                kube.down = False
                await asyncio.wait([call], timeout=SECONDS)
                assert not call.cancelled(), "the kubelet closed the connection of the call"
                (_, error) = call.result()[reference.uid]
                assert error == ""
            assert not node.config.registrar_socket.exists()
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    asyncio.run(main())


def test_no_call_fails_during_updates() -> None:
    quick = Timings(handover=0.2)

    async def main() -> None:
        kube = FakeClient()
        kube.put(NODES, {"metadata": {"name": NODE}})
        wiped: list[str] = []

        async def wipe(driver: str) -> None:
            wiped.append(driver)

        with short_directory() as root:
            (root / "registry").mkdir()
            manager = PluginManager(root / "registry", SETTINGS, wipe)
            update = Update(kube, manager)
            devices = [device(i) for i in range(4)]
            watching = asyncio.create_task(manager.run())

            async def start(serial: int) -> tuple[Node, contextlib.AsyncExitStack]:
                stack = contextlib.AsyncExitStack()
                settings: dict[str, Any] = {"instance_id": f"pod-{serial}"}
                return await stack.enter_async_context(
                    running(root, kube, devices, settings=settings, timing=PATIENT, timings=quick)
                ), stack

            node, old = await start(0)
            await update.registered(node)
            await until(lambda: inventory(kube)["status"]["registration"]["registered"], SECONDS)  # type: ignore[index]
            async with asyncio.TaskGroup() as tasks:
                for i in range(4):
                    tasks.create_task(update.call(i))
                for serial in range(1, 4):
                    node, new = await start(serial)
                    await update.registered(node)
                    done = update.calls
                    await until(functools.partial(update.made, done + 8), SECONDS)
                    await old.aclose()
                    assert inventory(kube)["status"]["registration"]["registered"]  # type: ignore[index]
                    old = new
                update.finished.set()
            assert update.calls > 20
            assert len(update.endpoints) >= 3
            assert wiped == []
            await old.aclose()
            assert not inventory(kube)["status"]["registration"]["registered"]  # type: ignore[index]
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    asyncio.run(main())
