"""``dra-driver controller``: flags, health, orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import virtual_time
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.meta import DriverName
from dra_driver.cli.main import main
from dra_driver.cli.processes.controller import settle
from dra_driver.errors import ConfigurationError


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"drivers": ()}, "at least one"),
        ({"drivers": ("GPU",)}, "'GPU'"),
        ({"drivers": ("a" * 64,)}, "63"),
        ({"drivers": ("a.b", "a.b")}, "twice"),
        ({"namespace": "A"}, "--namespace"),
        ({"health_port": 70000}, "70000"),
        ({"workers": 0}, "--workers"),
        ({"group_seconds": -1.0}, "--group-timeout -1"),
        ({"binding_seconds": 1.0}, "--binding-timeout 1"),
        ({"group_labels": ("kueue", "volcano")}, "--group-labels 'volcano': must be none, or some of kueue"),
        ({"schedulers": ()}, "--scheduler-name"),
        ({"schedulers": ("A",)}, "--scheduler-name 'A'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], finding: str) -> None:
    with pytest.raises(ConfigurationError, match=finding):
        ControllerConfig(**settings)


def test_all_findings_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ControllerConfig(drivers=(DriverName("GPU"),), namespace="A", workers=0)
    assert len(caught.value.findings) == 3


def test_bad_usage_is_exit_2_with_a_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["controller", "--driver-name", "Bad_Name", "--kubeconfig", "x"]) == 2
    assert "Bad_Name" in capsys.readouterr().err
    missing = tmp_path / "none"
    assert main(["controller", "--kubeconfig", str(missing)]) == 2
    assert f"kubeconfig {missing}: no such file" in capsys.readouterr().err


def test_health_is_served_and_the_end_is_clean() -> None:
    async def scenario() -> None:
        config = ControllerConfig(leader_elect=False, health_port=0)
        controller = Controller(FakeClient(), config)
        task = asyncio.create_task(controller.run())
        await asyncio.wait_for(controller.ready.wait(), 60)
        assert controller.health_address is not None
        host, port = controller.health_address
        async with aiohttp.ClientSession() as session:
            for path in ("healthz", "readyz"):
                async with session.get(f"http://{host}:{port}/{path}") as response:
                    assert response.status == 200
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not controller.ready.is_set()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = ControllerConfig(leader_elect=False, health_port=port)
        with pytest.raises(ConfigurationError, match=str(port)):
            await Controller(FakeClient(), config).run()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())


def test_the_webhooks_have_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["controller", "--help"])
    text = capsys.readouterr().out
    for flag in ("port", "host", "service", "secret", "client-ca", "client-name", "url"):
        assert f"--admission-{flag} " in text
    assert main(["controller", "--admission-port", "0", "--admission-url", "http://x"]) == 2
    assert "--admission-url 'http://x': must be https://" in capsys.readouterr().err


@contextlib.asynccontextmanager
async def settling(leads: asyncio.Event, ready: asyncio.Event) -> AsyncIterator[None]:
    task = asyncio.create_task(settle(leads, ready))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not any(function.__module__ == settle.__module__ for function in gc.callbacks)


def looked_at(things: list[list[int]]) -> int:
    """How many of these a full collection would look at."""
    seen = {id(found) for found in gc.get_objects()}
    return sum(id(thing) in seen for thing in things)


def test_the_collector_looks_at_full_caches_no_more() -> None:
    async def main() -> None:
        leads, ready = asyncio.Event(), asyncio.Event()
        page = [[i] for i in range(1_000)]
        async with settling(leads, ready):
            # A standby has caches as well, and lags as much.
            assert looked_at(page) == 0
            leads.set()
            cache = [[i] for i in range(1_000)]
            await asyncio.sleep(0.3)
            # While they are filled it looks at none of it either.
            assert looked_at(cache) == 0
            cache += [[i] for i in range(1_000)]
            ready.set()
            await asyncio.sleep(0.1)
            assert looked_at(cache) == 0
            # What comes later it looks at once.
            later = [[i] for i in range(1_000)]
            assert looked_at(later) == len(later)
            gc.collect()
            assert looked_at(later) == 0
            # Cycles of that become garbage, too.
            gone = weakref.finalize(self_referring := Cycle(), lambda: None)
            del self_referring
            gc.freeze()
            await asyncio.sleep(3601)
            assert not gone.alive
            assert looked_at(later) == 0

    virtual_time.run(main())


def test_a_full_collection_looks_at_few_objects_however_many_come() -> None:
    """One that looked at 70,000 at a time held the event loop for 60 ms in a burst of pods."""
    looks: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looks.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    async def main() -> None:
        leads, ready = asyncio.Event(), asyncio.Event()
        leads.set()
        ready.set()
        before = gc.get_threshold()
        async with settling(leads, ready):
            await asyncio.sleep(1)
            gc.collect()  # by what this one leaves it is decided when the next one is worth it
            gc.callbacks.append(look)
            kept = [[[i] for i in range(3)] for _ in range(50_000)]
            gc.callbacks.remove(look)
            assert len(kept) == 50_000
        assert gc.get_threshold() == before

    virtual_time.run(main())
    assert looks
    assert max(looks) < 30_000


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_what_fills_caches_for_long_is_collected() -> None:
    async def main() -> None:
        leads, ready = asyncio.Event(), asyncio.Event()
        leads.set()
        async with settling(leads, ready):
            await asyncio.sleep(120)
            # An API server that answers after two minutes: until then the collector works as ever.
            filled = [[i] for i in range(1_000)]
            await asyncio.sleep(10)
            assert looked_at(filled) == len(filled)
            ready.set()
            await asyncio.sleep(1)
            assert looked_at(filled) == 0

    virtual_time.run(main())
