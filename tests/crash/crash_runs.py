"""Runs of the crash test side by side, each on a node of its own, and their figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from crash_figures import Figures
from crash_matrix import SCRIPTS, Script, matrix
from crash_processes import ForkServer
from crash_script import count_steps
from crash_world import CrashedNode, worlds
from machines import nvml
from machines.simulated import SimulatedMachine
from scenarios import Hardware, Scenario


@dataclass(frozen=True)
class Run:
    """One run; a violation ends it."""

    name: str
    play: Callable[[CrashedNode], Awaitable[None]]
    forks: ForkServer
    figures: Figures
    hardware: Hardware = SimulatedMachine
    flags: tuple[str, ...] = ()


class Runs:
    """A queue of runs.

    Args:
        spare: runs that are taken while there are fewer kills than ``kills``.
    """

    def __init__(
        self, queue: Sequence[Run], spare: Sequence[Run] = (), kills: int = 0, *, quiet: bool = False
    ) -> None:
        self._queue = list(reversed(queue))
        self._spare = list(reversed(spare))
        self._wanted = kills
        self._quiet = quiet
        self._all = {id(r.figures): r.figures for r in (*queue, *spare)}
        self._started = self._shown = time.monotonic()
        self._done = 0
        self._told: set[str] = set()
        self._total = len(queue)

    async def play(self, jobs: int) -> None:
        """Play all of them, so many side by side."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(jobs):
                tasks.create_task(self._work())

    def _kills(self) -> int:
        return sum(f.kills for f in self._all.values())

    async def _work(self) -> None:
        while self._queue or (self._spare and self._kills() < self._wanted):
            run = (self._queue or self._spare).pop()
            async with worlds(run.forks, run.figures, run.name, run.hardware, run.flags) as world:
                await run.play(world)
            self._done += 1
            if not self._quiet:
                self._show()

    def _show(self) -> None:
        texts = [text for f in self._all.values() for text in f.texts if text not in self._told]
        self._told.update(texts)
        for text in texts:
            print(text, flush=True)
        if time.monotonic() > self._shown + 15:
            self._shown = time.monotonic()
            bad = sum(sum(f.violations.values()) for f in self._all.values())
            runs = f"{self._done}/{max(self._total, self._done)}"
            seconds = time.monotonic() - self._started
            text = f"{seconds:6.1f} s  runs {runs}  kills {self._kills()}  violations {bad}"
            print(text, flush=True)


async def kill_at_every_step(
    kills: int, seed: int, jobs: int, *, quiet: bool = False, of: Sequence[Script] = SCRIPTS
) -> Figures:
    """Run the matrix of kills in these scripts, where ``kills`` is small a part of it; return its figures."""
    figures = Figures()
    async with ForkServer() as forks:
        scripts = [(s, *await count_steps(forks, s.steps, s.hardware)) for s in of]
        queue = [Run(d.name, d.play, forks, figures, d.hardware) for d in matrix(scripts, kills, seed)]
        spare: list[Run] = []
        if kills < 100:
            # A short run takes a part of the matrix, always some load of both kinds, and more of the matrix
            # where agents ended before they could be killed.
            part = kills * 4 // 5
            queue, spare = [*queue[:part], *queue[-2:]], queue[part:-2]
        await Runs(queue, spare, kills, quiet=quiet).play(jobs)
        if not quiet:
            counts = ", ".join(f"{script.of} {len(steps)}" for script, steps, _ in scripts)
            print(f"durable steps of the scripts: {counts}")
    return figures


async def play_scenarios(
    scenarios: Sequence[Scenario], times: int, seed: int, jobs: int, *, quiet: bool = False
) -> dict[str, Figures]:
    """Play each scenario so many times on each of its machines; return its figures by name."""
    figures = {s.name: Figures() for s in scenarios}
    async with (
        ForkServer() as plain,
        ForkServer({"LD_LIBRARY_PATH": str(nvml.library())}) as stubbed,
    ):
        queue = []
        for scenario in scenarios:
            for hardware in scenario.hardware:
                forks = stubbed if hardware is nvml.NvmlMachine else plain
                for n in range(times):
                    name = f"{scenario.name} {hardware.__name__} {n} (seed {seed})"
                    play = _with_chance(scenario, f"{seed} {name}")
                    queue.append(Run(name, play, forks, figures[scenario.name], hardware, scenario.flags))
        random.Random(seed).shuffle(queue)
        await Runs(queue, quiet=quiet).play(jobs)
    return figures


def _with_chance(scenario: Scenario, seed: str) -> Callable[[CrashedNode], Awaitable[None]]:
    return lambda world: scenario.play(world, random.Random(seed))
