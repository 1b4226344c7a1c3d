"""A backend that fails keeps what it found and costs no other; one whose driver has gone is told apart."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hardware_support as hw
import pytest
from fake_client import FakeClient
from node_agent import NODE, device, eventually, inventory, running

from dra_driver.api.core import NODES
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.cli import main
from dra_driver.discovery import HardwareAbsent, LastKnownGood, Problem
from dra_driver.errors import DiscoveryError
from dra_driver.hardware import DiscoveredDevice
from kubelet_plugin.devices.table import DeviceTable

ONE, TWO = device(1), device(2)
GONE = HardwareAbsent("a: the driver is not loaded")


class Fake:
    """Answers in turn; the last answer stays."""

    def __init__(self, name: str, *answers: Sequence[DiscoveredDevice] | BaseException) -> None:
        self.name = name
        self.answers = list(answers)
        self.problems: tuple[Problem, ...] = ()

    def discover(self) -> Sequence[DiscoveredDevice]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        pass


def reasons(devices: Sequence[DiscoveredDevice]) -> dict[str, list[str]]:
    return {d.device.name: [h.reason for h in d.device.health] for d in devices}


def test_an_error_leaves_what_was_found_as_it_was() -> None:
    kept = LastKnownGood(Fake("a", [ONE], DiscoveryError("a: driver says 999"), [ONE, TWO]))
    assert kept.look() == (ONE,)
    assert kept.look() == (ONE,)
    assert (kept.report.state, kept.report.message) == ("failed", "a: driver says 999")
    assert kept.look() == (ONE, TWO)
    assert (kept.report.state, kept.report.message) == ("ok", "")


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "a: a bug: SystemExit: 3"),
        (asyncio.CancelledError(), "a: a bug: CancelledError: "),
        (NoText(), "a: a bug: NoText: its text cannot be made (SystemExit)"),
    ],
)
def test_what_ends_a_thread_is_an_error_like_others(error: BaseException, message: str) -> None:
    kept = LastKnownGood(Fake("a", [ONE], error, [ONE, TWO]))
    kept.look()
    assert kept.look() == (ONE,)
    assert (kept.report.state, kept.report.message) == ("failed", message)
    assert kept.look() == (ONE, TWO)


def test_an_interrupted_command_ends() -> None:
    with pytest.raises(KeyboardInterrupt):
        LastKnownGood(Fake("a", KeyboardInterrupt())).look()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uuid": 5}, "device gpu-2: it cannot be .*got `int` - at `\\$.uuid`"),
        (
            {"material": ContainerEdits(device_nodes=(DeviceNode("/dev/x", file_mode="0666"),))},  # type: ignore[arg-type]
            "device gpu-2: it cannot be .*fileMode",
        ),
        ({"own_nodes": [1]}, "device gpu-2: it cannot be .*own_nodes"),
        ({"device": None}, "device [?]: it cannot be .*got `null` - at `\\$.device`"),
    ],
)
def test_a_device_whose_claims_could_not_be_recorded_is_not_found(
    changes: dict[str, Any], message: str
) -> None:
    kept = LastKnownGood(Fake("a", [ONE], [ONE, dataclasses.replace(TWO, **changes)]))
    kept.look()
    assert kept.look() == (ONE,)
    assert kept.report.state == "failed"
    assert re.match(message, kept.report.message)


def test_a_driver_that_vanished_keeps_new_pods_away_until_it_is_back() -> None:
    kept = LastKnownGood(Fake("a", [ONE], GONE, GONE, [ONE]), optional=True)
    kept.look()
    assert reasons(kept.look()) == {"gpu-1": ["DriverAbsent"]}
    assert reasons(kept.look()) == {"gpu-1": ["DriverAbsent"]}
    assert kept.report.state == "vanished"
    assert kept.devices[0].device.health[0].severity == "degraded"
    assert kept.devices[0].device.health[0].message == "a: the driver is not loaded"
    assert kept.look() == (ONE,)


def test_an_error_after_the_driver_vanished_is_only_an_error() -> None:
    kept = LastKnownGood(Fake("a", [ONE], GONE, DiscoveryError("a: busy")))
    kept.look()
    kept.look()
    assert kept.look() == (ONE,)
    assert kept.report.state == "failed"


@pytest.mark.parametrize(("optional", "state"), [(True, "absent"), (False, "failed")])
def test_hardware_that_never_was_is_an_answer_only_where_nobody_asked(optional: bool, state: str) -> None:
    kept = LastKnownGood(Fake("a", GONE), optional=optional)
    assert kept.look() == ()
    assert (kept.report.state, kept.answered) == (state, optional)


def test_a_bug_of_a_backend_is_an_error() -> None:
    kept = LastKnownGood(Fake("a", [ONE], KeyError("x")))
    kept.look()
    assert kept.look() == (ONE,)
    assert kept.report.message == "a: a bug: KeyError: 'x'"


def test_what_cannot_be_learned_is_reported() -> None:
    fake = Fake("a", [ONE])
    fake.problems = (Problem("gpu-1", "uuid", "unknown"),)
    kept = LastKnownGood(fake)
    kept.look()
    assert kept.report.problems == fake.problems


def test_one_broken_backend_costs_no_other() -> None:
    async def scans() -> None:
        good, bad = Fake("good", [ONE], [ONE, TWO]), Fake("bad", DiscoveryError("bad: broken"), [device(3)])
        table = DeviceTable([bad, good], optional=True)
        await table.scan()
        assert [d.uuid for d in table.devices] == ["GPU-1"]
        assert [r.state for r in table.reports] == ["failed", "ok"]
        assert not table.complete.is_set()
        await table.scan()
        assert [d.uuid for d in table.devices] == ["GPU-3", "GPU-1", "GPU-2"]
        assert table.complete.is_set()

    asyncio.run(scans())


class Simulated(Fake):
    simulated = True


def test_a_simulated_device_of_the_same_name_does_not_make_one_simulated() -> None:
    """A device of two backends is the first one's; a simulated one needs no nodes on the host."""

    async def scans() -> None:
        real, made_up = Fake("real", [ONE]), Simulated("made-up", [ONE, TWO])
        for backends, expected in (([real, made_up], False), ([made_up, real], True)):
            table = DeviceTable(backends)
            await table.scan()
            view = table.for_prepare
            assert (view["gpu-1"].simulated, view["gpu-2"].simulated) == (expected, True)

    asyncio.run(scans())


def test_trouble_alone_is_a_change() -> None:
    """The devices are the same, and yet the inventory and the metrics have news."""

    async def scans() -> None:
        table = DeviceTable([Fake("a", [ONE], DiscoveryError("a: broken"), [ONE])])
        counts = []
        for _ in range(4):
            await table.scan()
            counts.append(table.changes.count)
        assert counts == [1, 2, 3, 3]

    asyncio.run(scans())


def test_the_inventory_and_the_metrics_tell_of_trouble_and_of_its_end(tmp_path: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        kube.put(NODES, {"metadata": {"name": NODE}})
        fake = Fake("a", [ONE], GONE, GONE, DiscoveryError("a: broken"), [ONE])
        async with running(tmp_path, kube, backend=fake, settings={"metrics_address": "127.0.0.1:0"}) as node:

            def problems() -> list[str]:
                status = (inventory(kube) or {}).get("status", {})
                return [p["state"] for p in status.get("discovery", {}).get("problems", [])]

            def health() -> list[str]:
                (found,) = (inventory(kube) or {})["spec"]["devices"]
                return [h["reason"] for h in found.get("health", [])]

            await eventually(lambda: inventory(kube))
            assert (problems(), health()) == ([], [])
            await node.plugin._table.scan()
            await eventually(lambda: problems() == ["vanished"] and health() == ["DriverAbsent"])
            metrics = node.plugin.observation.metrics.render(()).decode()
            assert 'dra_driver_backend_state{backend="a",state="vanished"} 1.0' in metrics
            await node.plugin._table.scan()
            await node.plugin._table.scan()
            await eventually(lambda: problems() == ["failed"] and health() == [])
            await node.plugin._table.scan()
            await eventually(lambda: problems() == [])
            assert 'state="ok"} 1.0' in node.plugin.observation.metrics.render(()).decode()

    asyncio.run(life())


def test_a_backend_that_fails_at_the_start_withdraws_nothing(tmp_path: Path) -> None:
    """What the agent published before its restart stays, but nothing new goes there."""

    async def lives() -> None:
        kube = FakeClient()
        kube.put(NODES, {"metadata": {"name": NODE}})

        def health() -> dict[str, list[str]]:
            devices = (inventory(kube) or {}).get("spec", {}).get("devices", [])
            return {d["name"]: [h["reason"] for h in d.get("health", [])] for d in devices}

        first = [Fake("a", [ONE]), Fake("b", [TWO])]
        async with running(tmp_path, kube, backends=first):
            await eventually(lambda: health() == {"gpu-1": [], "gpu-2": []})
        second = [Fake("a", DiscoveryError("a: broken"), [ONE]), Fake("b", [TWO])]
        async with running(tmp_path, kube, backends=second) as node:
            await eventually(lambda: health() == {"gpu-2": [], "gpu-1": ["NotConfirmed"]})
            await node.plugin._table.scan()
            await eventually(lambda: health() == {"gpu-1": [], "gpu-2": []})

    asyncio.run(lives())


def test_the_command_shows_the_rest_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken library is not the absence of GPUs: a script must not take one for the other."""
    code = """
from dra_driver import sdk
class Backend:
    name = "acme"
    def discover(self): raise sdk.DiscoveryError("acme: firmware does not answer")
    def close(self): pass
def factory(arg, *, sysfs_root, dev_root, node_name): return Backend()
"""
    (tmp_path / "acme_broken.py").write_text(code)
    info = tmp_path / "acme_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dra_driver.backends]\nacme = acme_broken:factory\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    root = hw.machine(tmp_path / "hw", "arc")
    flags = ["--backend", "acme", "--backend", "intel", "--sysfs-root", f"{root}/sys"]
    assert main.main(["devices", *flags, "--dev-root", f"{root}/dev"]) == 1
    shown = capsys.readouterr()
    assert "A770" in shown.out
    assert "dra-driver devices: acme: firmware does not answer" in shown.err
    # Whoever reads JSON finds it there, and facts that could not be learned beside it.
    assert main.main(["devices", *flags, "--dev-root", f"{tmp_path}/none", "--output", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["devices"]) == 2
    assert answer["problems"][0] == {"backend": "acme", "message": "acme: firmware does not answer"}
    assert {p["subject"] for p in answer["problems"][1:]} == {"device node"}
