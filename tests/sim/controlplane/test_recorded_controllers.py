"""The stand-in scheduler, controllers and kubelet do what was recorded of the real ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import recorded_cases
from examples import one_of
from once import once_in_a_run

pytestmark = pytest.mark.sim

CASES = recorded_cases.load_cases()
# Cases take a second or two each, mostly waiting: several worlds play at the same time.
WORLDS = 8
# The recordings depend on how fast the real programs were, and a busy machine is slower.
ATTEMPTS = 4
# The default run plays one of so many cases, the long tests all others.
EACH = 3
LEFT_OUT = {
    "alloc/allocated-node-does-not-fit-cpu-two-nodes": "a Ready node is tainted, nothing recorded says why",
    "alloc/devicetaintrule-NoSchedule-ignored-and-scheduler-crash": "DeviceTaintRules are not followed",
}


async def play_all(cases: list[dict[str, Any]]) -> Mapping[str, list[str]]:
    waiting, results = list(cases), dict[str, list[str]]()

    async def worker() -> None:
        async with recorded_cases.world() as (url, kubelet), aiohttp.ClientSession() as session:
            while waiting:
                case = waiting.pop(0)
                for _ in range(ATTEMPTS):
                    results[case["name"]] = await recorded_cases.Player(session, url, kubelet).play(case)
                    if not results[case["name"]]:
                        break

    async with asyncio.timeout(280), asyncio.TaskGroup() as group:
        for _ in range(WORLDS):
            group.create_task(worker())
    return results


def results(tmp_path_factory: pytest.TempPathFactory, rest: bool) -> Mapping[str, list[str]]:
    """The differences of each case of the default run, or of each other one.

    Processes of a run that share these tests play the cases once.
    """

    def play(folder: Path) -> None:
        played = [c for i, c in enumerate(CASES) if bool(i % EACH) == rest and c["name"] not in LEFT_OUT]
        (folder / "results.json").write_text(json.dumps(asyncio.run(play_all(played))))

    folder = once_in_a_run(tmp_path_factory, f"recorded-controllers-{rest}", play)
    differences: Mapping[str, list[str]] = json.loads((folder / "results.json").read_text())
    return differences


@pytest.mark.parametrize("number", one_of(EACH, range(len(CASES))), ids=[c["name"] for c in CASES])
def test_as_recorded(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    name = CASES[number]["name"]
    if name in LEFT_OUT:
        pytest.skip(LEFT_OUT[name])
    assert results(tmp_path_factory, bool(number % EACH))[name] == []
