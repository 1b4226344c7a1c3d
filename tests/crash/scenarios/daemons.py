"""Sharing daemons as processes of their own: they outlive agents, and may be killed themselves."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crash_gpus import due, of_daemons
from crash_script import MIG_MPS, Life, Step
from crash_world import NODE, CrashedNode
from machines.nvml import NvmlMachine

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.discovery import open_backend
from dra_driver.errors import DraError
from scenarios.kills import plans

CONTROL = "nvidia-cuda-mps-control"
_SHARES = ("one", "two", "three", "four")


async def die_too(world: CrashedNode, chance: random.Random) -> None:
    """Kill agents and daemons while shares of GPUs come and go; an agent that starts starts daemons anew."""
    machine = world.machine
    assert isinstance(machine, NvmlMachine)
    machine.show_mounts()
    # Each daemon has a server, as with a client; those of some worlds end only if they are killed.
    machine.tools.write_mps(server=True, hangs=chance.random() < 0.3)
    _populate(world, "gpu-0000-43-00-0", "gpu-0000-52-00-0")
    world.add("partition", "gpu-0000-1b-00-0-mig-1g-10gb-6", parameters=MIG_MPS)
    life = Life(world, plans(chance, 4))
    await life.begin()
    for step in _script(chance, (*_SHARES, "partition")):
        if chance.random() < 0.2 and machine.daemons():
            await _kill_a_daemon(world, machine, chance)
            await life.restart()
        await life.do(step)
    await life.finish()


async def _kill_a_daemon(world: CrashedNode, machine: NvmlMachine, chance: random.Random) -> None:
    world.figures.faults += 1
    device, pid = chance.choice(sorted(machine.daemons().items()))
    os.kill(pid, signal.SIGKILL)
    await world.eventually("a killed daemon runs on", lambda: machine.daemons().get(device) != pid)


async def of_nvidia(world: CrashedNode, chance: random.Random) -> None:
    """Kill agents while shares of a real GPU come and go under NVIDIA's own daemon."""
    gpu = RealGpus.gpu()
    _populate(world, gpu, gpu)
    life = Life(world, plans(chance, 4))
    await life.begin()
    for step in _script(chance, _SHARES):
        if chance.random() < 0.2:
            await life.restart()
        await life.do(step)
    await life.finish()


def _populate(world: CrashedNode, first: str, second: str) -> None:
    for name, gpu in zip(_SHARES, (first, first, second, second), strict=True):
        world.add(name, gpu, share=True)


def _script(chance: random.Random, names: Sequence[str]) -> Iterator[Step]:
    """Yield prepares and unprepares in random order, until everything is unprepared."""
    prepared: set[str] = set()
    for _ in range(20):
        name = chance.choice(names)
        yield Step("unprepare" if name in prepared else "prepare", name)
        prepared ^= {name}
    for name in sorted(prepared):
        yield Step("unprepare", name)


def why_not() -> str:
    """Return why NVIDIA's daemons cannot be had on this computer; empty if they can."""
    if shutil.which(CONTROL) is None:
        return f"there is no {CONTROL} in PATH"
    try:
        RealGpus.gpu()
    except (DraError, LookupError) as e:
        return f"NVML finds no GPU: {e}"
    return ""


class RealGpus:
    """The GPUs of this computer; implements ``Machine`` as far as sharing them changes anything."""

    driver = DEFAULT_DRIVER_NAME

    def __init__(self, root: Path, _node: str) -> None:
        self._folder = root / "state/mps"

    @staticmethod
    def gpu() -> str:
        """Return the name of the first GPU.

        Raises:
            DraError: NVML is not there.
            LookupError: it has no GPU.
        """
        roots = {"sysfs_root": Path("/sys"), "procfs_root": Path("/proc"), "dev_root": Path("/dev")}
        backend = open_backend("nvml", **roots, node_name=NODE)
        try:
            return str(backend.discover()[0].device.name)
        finally:
            backend.close()

    def arguments(self) -> Sequence[str]:
        return ("--backend=nvml", f"--mps-control={CONTROL}", "--mps-launcher=session", "--host-root=/")

    def environment(self) -> Mapping[str, str]:
        return {}

    def boot(self, chance: random.Random) -> None:
        pass

    def swap(self) -> None:
        pass

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        return "" if nodes else f"{device['device']}: no device nodes"

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        _, daemons = due({}, records)
        folders = self._folder.iterdir() if self._folder.is_dir() else ()
        yield from of_daemons(daemons, {p.name for p in folders if self._say(p, "get_server_list")})

    def close(self) -> None:
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            self._say(folder, "quit -t 1")

    @staticmethod
    def _say(folder: Path, words: str) -> bool:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")}
        done = subprocess.run([CONTROL], input=words, text=True, env=environment, capture_output=True)
        return done.returncode == 0 and "Cannot find MPS control daemon" not in done.stdout
