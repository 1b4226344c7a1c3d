"""The plugin is updated again and again while the stand-in kubelet calls it: no call fails, no slice goes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest
from fake_kube import FakeKube
from kubelet_fakes import short_directory, until
from node_agent import DRIVER, NODE, Node, add_claim, claim, device, inventory, running

from dra_driver.api.core import NODES
from dra_driver.sim.kubelet.plugins import ClaimRef, PluginManager
from dra_driver.sim.kubelet.settings import KubeletSettings
from kubelet_plugin import plugin as plugin_module

SETTINGS = dataclasses.replace(KubeletSettings.quick(), registry_tick=0.02, wipe_delay=0.2)


class Update:
    """A kubelet that never stops calling, and plugins that come and go."""

    def __init__(self, kube: FakeKube, manager: PluginManager) -> None:
        self.kube = kube
        self.manager = manager
        self.calls = 0
        self.endpoints: set[str] = set()
        self.finished = asyncio.Event()

    async def call(self, i: int) -> None:
        body = add_claim(self.kube, claim(f"claim-{i}", f"gpu-{i}"))
        reference = ClaimRef("ns", f"claim-{i}", body["metadata"]["uid"])
        while not self.finished.is_set():
            plugin = self.manager.plugin(DRIVER)
            assert plugin is not None, "between two instances there was none"
            (_, error) = (await plugin.prepare([reference]))[reference.uid]
            assert error == ""
            plugin = self.manager.plugin(DRIVER)
            assert plugin is not None
            assert (await plugin.unprepare([reference]))[reference.uid] == ""
            self.endpoints.add(plugin.endpoint)
            self.calls += 2

    async def registered(self, node: Node) -> None:
        def newest() -> bool:
            plugin = self.manager.plugin(DRIVER)
            endpoint = str(node.config.dra_socket)
            return plugin is not None and plugin.connected and plugin.endpoint == endpoint

        await until(newest)


def test_no_call_fails_during_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_module, "HANDOVER_SECONDS", 0.2)

    async def main() -> None:
        kube = FakeKube()
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
                return await stack.enter_async_context(running(root, kube, devices, settings=settings)), stack

            node, old = await start(0)
            await update.registered(node)
            await until(lambda: inventory(kube)["status"]["registration"]["registered"])  # type: ignore[index]
            async with asyncio.TaskGroup() as tasks:
                for i in range(4):
                    tasks.create_task(update.call(i))
                for serial in range(1, 4):
                    node, new = await start(serial)
                    await update.registered(node)
                    done = update.calls
                    await until(lambda done=done: update.calls >= done + 8)  # type: ignore[misc]
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
