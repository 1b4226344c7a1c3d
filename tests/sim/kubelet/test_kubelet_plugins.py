"""The stand-in kubelet meets plugins as the recorded kubelet does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kubelet_fakes import FakePlugin, short_directory, until

from dra_driver.sim.kubelet.plugins import ClaimRef, DeviceHealth, PluginManager, choose_service
from dra_driver.sim.kubelet.settings import KubeletSettings

SETTINGS = dataclasses.replace(
    KubeletSettings.quick(), registry_tick=0.02, registration_backoff=0.05, wipe_delay=0.3, health_retry=0.05
)
CLAIM = ClaimRef("ns", "c", "u1")


class Scenario:
    def __init__(self, directory: Path, settings: KubeletSettings) -> None:
        self.directory = directory
        self.registry = directory / "r"
        self.registry.mkdir()
        self.wiped: list[str] = []
        self.health: list[DeviceHealth] = []
        self.manager = PluginManager(self.registry, settings, self._wipe, self._health)

    async def _wipe(self, driver: str) -> None:
        self.wiped.append(driver)

    def _health(self, driver: str, devices: Sequence[DeviceHealth]) -> None:
        self.health.extend(devices)

    def plugin(self, **more: Any) -> FakePlugin:
        return FakePlugin(self.directory, self.registry, **more)

    async def registered(self, driver: str = "a.example.com") -> None:
        def connected() -> bool:
            plugin = self.manager.plugin(driver)
            return plugin is not None and plugin.connected

        await until(connected)


@contextlib.asynccontextmanager
async def world(settings: KubeletSettings = SETTINGS) -> AsyncIterator[Scenario]:
    with short_directory() as directory:
        made = Scenario(directory, settings)
        task = asyncio.create_task(made.manager.run())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["v1.DRAPlugin"], "v1.DRAPlugin"),
        (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
        (["v1alpha1.DRAResourceHealth", "v1.DRAPlugin"], "v1.DRAPlugin"),
    ],
)
def test_the_first_supported_entry_wins(offered: list[str], chosen: str) -> None:
    assert choose_service("a", "/x", offered) == chosen


@pytest.mark.parametrize(
    "offered", [["1.0.0"], ["v1"], ["v1alpha4.Node"], ["v1alpha1.DRAResourceHealth"], []]
)
def test_lists_without_a_supported_entry_are_refused(offered: list[str]) -> None:
    with pytest.raises(ValueError, match="invalid supported gRPC versions of DRA driver plugin a"):
        choose_service("a", "/x", offered)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_registers_and_calls_the_version_that_it_chose(version: str) -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin(versions=(f"{version}.DRAPlugin",))
            await plugin.start()
            await w.registered()
            found = w.manager.plugin("a.example.com")
            assert found is not None
            devices, error = (await found.prepare([CLAIM]))["u1"]
            assert (devices[0].device, devices[0].requests, error) == ("dev-0", ("g",), "")
            assert await found.unprepare([CLAIM]) == {"u1": ""}
            # The stream of health begins when the kubelet comes to it.
            names = [name for name, _ in plugin.calls if name != "Watch"]
            assert names[0] == "GetInfo"
            assert names[-2:] == [f"Prepare {version}", f"Unprepare {version}"]
            assert plugin.notes() == [(True, "")]
            await plugin.stop()

    asyncio.run(scenario())


def test_a_refusal_is_told_and_tried_again_with_growing_delays() -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin(type="FooPlugin")
            await plugin.start()
            await until(lambda: len(plugin.notes()) >= 3)
            registered, text = plugin.notes()[0]
            assert not registered
            assert text.startswith(
                "RegisterPlugin error -- no handler registered for plugin type: FooPlugin at socket"
            )
            times = [t for name, t in plugin.calls if name == "GetInfo"]
            assert times[2] - times[1] > times[1] - times[0]
            await plugin.stop()

    asyncio.run(scenario())


def test_get_info_that_fails_is_tried_again() -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin(get_info_failures=2)
            await plugin.start()
            await w.registered()
            assert [name for name, _ in plugin.calls].count("GetInfo") == 3
            await plugin.stop()

    asyncio.run(scenario())


def test_a_removed_socket_deregisters_and_wipes_later() -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin()
            await plugin.start()
            await w.registered()
            plugin.reg_socket.unlink()
            await until(lambda: w.manager.plugin("a.example.com") is None)
            assert w.wiped == []
            await until(lambda: w.wiped == ["a.example.com"])
            await plugin.stop()

    asyncio.run(scenario())


def test_a_lost_connection_wipes_and_a_return_in_time_does_not() -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin()
            await plugin.start()
            await w.registered()
            await plugin.stop(keep_registration=True)
            found = w.manager.plugin("a.example.com")
            assert found is not None
            await until(lambda: not found.connected)
            again = w.plugin(instance="")
            again.reg_socket = w.directory / "elsewhere.sock"  # only the driver's own socket comes back
            await again.start()
            await w.registered()
            await asyncio.sleep(SETTINGS.wipe_delay * 1.5)
            assert w.wiped == []
            await again.stop()
            await until(lambda: w.wiped == ["a.example.com"])
            await plugin.stop()

    asyncio.run(scenario())


def test_the_newest_connected_instance_gets_the_calls() -> None:
    async def scenario() -> None:
        async with world() as w:
            old, new = w.plugin(instance="1"), w.plugin(instance="2")
            await old.start()
            await w.registered()
            await new.start()
            await until(lambda: bool(new.notes()))
            await until(lambda: w.manager.plugin("a.example.com").endpoint == str(new.dra_socket))  # type: ignore[union-attr]
            await new.stop()
            await until(lambda: w.manager.plugin("a.example.com").endpoint == str(old.dra_socket))  # type: ignore[union-attr]
            await asyncio.sleep(SETTINGS.wipe_delay * 1.5)
            assert w.wiped == []
            await old.stop()

    asyncio.run(scenario())


def test_the_health_stream_is_open_from_the_start_and_opened_again() -> None:
    async def scenario() -> None:
        async with world() as w:
            plugin = w.plugin()
            await plugin.start()
            await w.registered()
            await until(lambda: ("Watch", None) in plugin.calls)
            plugin.health.put_nowait(False)
            await until(lambda: bool(w.health))
            assert w.health[0] == DeviceHealth("pool", "dev-0", "Unhealthy", "")
            await plugin.stop()

    asyncio.run(scenario())


def test_sockets_in_subdirectories_count_and_hidden_ones_do_not() -> None:
    async def scenario() -> None:
        async with world() as w:
            (w.registry / "sub").mkdir()
            hidden, nested = w.plugin(instance="h", driver="h.example.com"), w.plugin(instance="n")
            hidden.reg_socket = w.registry / ".hidden.sock"
            nested.reg_socket = w.registry / "sub" / "noextension"
            await hidden.start()
            await nested.start()
            await w.registered()
            assert w.manager.drivers == {"a.example.com"}
            await hidden.stop()
            await nested.stop()

    asyncio.run(scenario())
