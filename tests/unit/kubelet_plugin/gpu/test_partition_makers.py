"""Backends of third parties that cut devices into partitions, and do it wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cut_npu import CutNpu, dev, half_claim
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import IMPATIENT, Node, add_claim, running

from dra_driver import sdk
from kubelet_plugin.claims.leftovers import Leftovers

Scenario = Callable[[Node, dict[str, Any]], Awaitable[None]]


def play(root: Path, scenario: Scenario, *backends: CutNpu, **more: Any) -> None:
    """Plays a scenario with a running agent, and a claim of the first half of ``S0``."""

    async def life() -> None:
        kube = FakeClient()
        one = add_claim(kube, half_claim("one", "S0", 0))
        settings = {"dev_root": dev(root), **more}
        async with running(root, kube, backends=list(backends), settings=settings, timing=IMPATIENT) as node:
            await scenario(node, one)

    asyncio.run(life())


async def prepared(node: Node, body: dict[str, Any]) -> str:
    """The error of a call to prepare; empty if it was prepared."""
    error: str = (await prepare(node, body))[body["metadata"]["uid"]].error
    return error


async def unprepared(node: Node, body: dict[str, Any]) -> str:
    error: str = (await unprepare(node, body))[body["metadata"]["uid"]].error
    return error


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class Refused(sdk.PrepareError):
    """Of a third party, which has not called our constructor."""

    def __init__(self) -> None:
        Exception.__init__(self, "no\nroom")


ERRORS = {
    "SystemExit: 3": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration: end": StopIteration("end"),
    "NoText: its text cannot be told (SystemExit)": NoText(),
    "OSError: [Errno 5] \\udcff": OSError(5, "\udcff"),
    "no room": Refused(),
    "ValueError: xxx": ValueError("x" * 100_000),
}


def raising(error: BaseException) -> Callable[..., Any]:
    def raise_it(*_: object) -> Any:
        raise error

    return raise_it


@pytest.mark.parametrize("text", ERRORS)
@pytest.mark.parametrize("where", ["in_partitions", "in_create", "in_destroy"])
def test_whatever_a_maker_raises_refuses_one_claim(tmp_path: Path, where: str, text: str) -> None:
    npu = CutNpu()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        ending = where == "in_destroy"
        assert not ending or not await prepared(node, one)
        good = getattr(npu, where)
        setattr(npu, where, raising(ERRORS[text]))
        async with asyncio.timeout(10):
            error = await (unprepared if ending else prepared)(node, one)
        assert error.startswith(f"device S0: {text}")
        assert len(error) < 500
        setattr(npu, where, good)
        assert not await unprepared(node, one)
        assert npu.left == []

    play(tmp_path, scenario, npu)


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3)])
def test_a_maker_that_raises_when_leftovers_are_looked_for_does_not_end_the_agent(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    npu = CutNpu()
    run = Leftovers.run
    monkeypatch.setattr(Leftovers, "run", lambda leftovers: run(leftovers, 0.01, 0.01, 0.01))
    asked = asyncio.Event()

    async def scenario(node: Node, one: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()

        def fail(*_: object) -> Any:
            loop.call_soon_threadsafe(asked.set)
            raise error

        good, npu.in_partitions = npu.in_partitions, fail
        await asked.wait()
        npu.in_partitions = good
        assert not await prepared(node, one)

    play(tmp_path, scenario, npu)
