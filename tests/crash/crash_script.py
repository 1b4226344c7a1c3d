"""What the kubelet asks for in a crash test, and a life of agents that get it done."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crash_figures import Figures
from crash_processes import Agent, ForkServer
from crash_world import SETTLED_SECONDS, CrashedNode, worlds
from faults import Plan
from machines import Machine, acme
from machines.simulated import SimulatedMachine

from dra_driver.api.names import RDMA_DRIVER_NAME
from kubelet_plugin.config import Timings

GPUS = tuple(f"gpu-0000-{bus}-00-0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
NPUS = tuple(f"npu-0000-3b-0{n}-0" for n in range(acme.NPUS))
NICS = tuple(f"nic-0000-{bus}-00-0" for bus in ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc"))


@dataclass(frozen=True)
class Step:
    """One thing that the kubelet (or somebody on the node) does."""

    verb: str
    claim: str


# Whole lives of claims of one and two devices, repeated calls, a device that changes hands, a damaged file,
# device nodes that are other GPUs' from then on (also at each boot), unprepare of what was never prepared.
SCRIPT = tuple(
    Step(*words.split())
    for words in (
        "prepare a",
        "prepare b",
        "prepare a",
        "swap nodes",
        "unprepare a",
        "prepare c",
        "unprepare never",
        "damage b",
        "prepare b",
        "unprepare c",
        "unprepare b",
        "unprepare b",
    )
)


# Two partitions of one GPU and a third that overlaps the first, shares under one daemon, a time slice, two
# GPUs bound to another driver, a partition with a daemon of its own; each outlives another one, so that what
# they share is counted.
GPU_SCRIPT = tuple(
    Step(*words.split())
    for words in (
        "prepare mig",
        "prepare pair",
        "prepare share",
        "prepare other-share",
        "prepare slice",
        "prepare vm",
        "swap nodes",
        "unprepare mig",
        "prepare share",
        "prepare vm",
        "prepare overlap",
        "unprepare share",
        "prepare mig-mps",
        "unprepare other-share",
        "unprepare pair",
        "unprepare slice",
        "unprepare vm",
        "unprepare overlap",
        "unprepare mig-mps",
    )
)
# The stub of NVML has no kernel that binds drivers.
NVML_SCRIPT = tuple(step for step in GPU_SCRIPT if step.claim != "vm")
# What a third party's driver does: power limits, of one NPU and of two at once, and halves of NPUs; what a
# claim has set is set back before the next one has the NPU.
ACME_SCRIPT = tuple(
    Step(*words.split())
    for words in (
        "prepare limit",
        "prepare half",
        "prepare pair",
        "prepare other-half",
        "prepare limit",
        "unprepare half",
        "swap nodes",
        "unprepare limit",
        "prepare lower",
        "prepare half",
        "prepare pair",
        "unprepare other-half",
        "unprepare half",
        "prepare whole",
        "unprepare pair",
        "prepare c",
        "unprepare lower",
        "unprepare whole",
        "unprepare c",
    )
)
SLICE = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}}
SHORT = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Short"}}}
MIG_MPS = {"kind": "MigConfig", "sharing": {"strategy": "MPS"}}
VM = {"kind": "GpuConfig", "driver": "vfio-pci"}
UNENFORCED = {"kind": "ShareConfig", "enforcement": "None"}


def populate(world: CrashedNode) -> None:
    """The claims of the scripts."""
    if world.driver == RDMA_DRIVER_NAME:
        _populate_plain(world, NICS)
        return
    if world.driver == acme.DRIVER:
        _populate_npus(world)
        return
    gpu = GPUS[0]
    world.add("mig", f"{gpu}-mig-2g-20gb-0")
    world.add("pair", f"{gpu}-mig-1g-10gb-4", f"{gpu}-mig-1g-10gb-5")
    world.add("overlap", f"{gpu}-mig-3g-40gb-0")
    world.add("mig-mps", f"{gpu}-mig-1g-10gb-6", parameters=MIG_MPS)
    world.add("share", GPUS[1], share=True)
    world.add("other-share", GPUS[1], share=True)
    world.add("slice", GPUS[2], parameters=SLICE)
    world.add("vm", GPUS[3], GPUS[4], parameters=VM)
    _populate_plain(world, GPUS)


def _populate_npus(world: CrashedNode) -> None:
    first, second, third, last = NPUS
    world.add("limit", first, parameters=_limit(250))
    world.add("lower", first, parameters=_limit(120))
    world.add("c", second)
    world.add("pair", second, third, parameters=_limit(200))
    world.add("half", f"{last}-slice-half-0")
    world.add("other-half", f"{last}-slice-half-1")
    world.add("whole", last, parameters=_limit(400))


def _limit(watts: int) -> dict[str, object]:
    return {"apiVersion": "acme.example/v1", "kind": "NpuConfig", "powerLimit": watts}


def _populate_plain(world: CrashedNode, devices: Sequence[str]) -> None:
    world.add("a", devices[0])
    world.add("b", devices[1], devices[2])
    world.add("c", devices[0])
    world.add("never", devices[3])


def script_of(world: CrashedNode, chance: random.Random) -> Sequence[Step]:
    """Return a script for the hardware of a world: what all devices can, or what GPUs can besides."""
    if world.driver == acme.DRIVER:
        return ACME_SCRIPT
    if world.driver == RDMA_DRIVER_NAME or chance.random() < 0.3:
        return SCRIPT
    return GPU_SCRIPT if isinstance(world.machine, SimulatedMachine) else NVML_SCRIPT


class Life:
    """An agent that is there whenever it is wanted, and a kubelet that repeats its calls until they succeed.

    Args:
        plans: of the first agents, one each; after the last one nothing happens any more.
        power: what kills is a power failure: unsynced writes may be undone, and the kubelet prepares again
            what it had prepared.
        reboots: what kills is a reboot.
    """

    # A call that fails so often does not get any further.
    TRIES = 60

    def __init__(
        self,
        world: CrashedNode,
        plans: Sequence[Plan] = (),
        power: random.Random | None = None,
        reboots: random.Random | None = None,
    ) -> None:
        self.world = world
        self._left = list(plans)
        self._power = power
        self._reboots = reboots
        self._agent: Agent | None = None
        # Whether something may end that agent.
        self._planned = False

    @property
    def agent(self) -> Agent:
        """The agent that runs."""
        assert self._agent is not None
        return self._agent

    async def begin(self) -> None:
        """Start agents until one lives, and look at what the one before left."""
        while True:
            plan = self._left.pop(0) if self._left else None
            started = time.monotonic()
            agent = await self.world.start(plan)
            if agent is not None:
                self._agent = agent
                self._planned = plan is not None
                if plan is not None and plan.error:
                    return
                took = time.monotonic() - started
                if took > Timings().first_scan:
                    # On a machine so slow the kubelet is let in before all documents are written anew.
                    await self.world.settled(agent, max(SETTLED_SECONDS, 3 * took))
                else:
                    self.world.check()
                return

    async def try_to_begin(self) -> None:
        """Start one agent, on a node that may be in no state for it; if it ends, there is none."""
        agent = await self.world.start(refusable=True)
        if agent is not None:
            self._agent = agent

    async def do(self, step: Step) -> None:
        """Make a step, however often it takes."""
        if step.verb == "swap":
            self.world.swap()
            return
        claim = self.world.claims[step.claim]
        if step.verb == "damage":
            self.world.file(claim).write_bytes(b"{}")
            return
        call = self.world.prepare if step.verb == "prepare" else self.world.unprepare
        tries = 0
        while not await call(self.agent, claim):
            tries += 1
            if tries > self.TRIES:
                self.world.violate("no progress", f"{step}: {self.world.errors()}")
            if await gone(self.agent):
                await self.world.ended(self.agent)
                await self._revive()

    async def kill(self) -> None:
        """End the agent by SIGKILL."""
        self.agent.kill()
        await self.world.ended(self.agent)

    async def restart(self) -> None:
        """Kill the agent, do to the machine what kills do in this life, and start another one."""
        await self.kill()
        await self._revive()

    async def renew(self) -> None:
        """End the agent in order, if its plan does not kill it meanwhile, and start another one."""
        await self.world.stop(self.agent, killed=self._planned)
        await self.begin()

    async def finish(self) -> None:
        """End the agent in order; nothing is prepared any more, so nothing may be left."""
        # The plan of each agent that is left may kill it while it folds its journal.
        while self._planned and not await self.world.stop(self.agent, killed=True):
            await self._revive()
        if not self._planned:
            await self.world.stop(self.agent)
        self.world.check(idle=True)

    async def _revive(self) -> None:
        world = self.world
        running: Sequence[str] = ()
        if self._power is not None:
            world.figures.power_failures += 1
            running = world.prepared()
            world.power_failure(self._power)
        elif self._reboots is not None:
            world.figures.faults += 1
            running = world.reboot(self._reboots)
        await self.begin()
        for name in running:
            if await world.prepare(self.agent, world.claims[name]):
                continue
            if not await gone(self.agent):
                world.violate("lost claims", f"{name} cannot be prepared again: {world.errors()}")
            await self.do(Step("prepare", name))


async def play(
    world: CrashedNode,
    plans: Sequence[Plan],
    power: random.Random | None = None,
    script: Sequence[Step] = SCRIPT,
) -> None:
    """Play the script; see ``Life`` for the rest."""
    populate(world)
    life = Life(world, plans, power)
    await life.begin()
    for step in script:
        await life.do(step)
    if any(plan.error for plan in plans):
        # What could not be removed while the disk refused is removed at the next start.
        await life.renew()
    await life.finish()


async def gone(agent: Agent) -> bool:
    """Whether the agent has ended; a connection breaks a little before its process is reaped."""
    try:
        async with asyncio.timeout(0.05):
            await asyncio.shield(agent.ended)
    except TimeoutError:
        return False
    return True


async def count_steps(
    forks: ForkServer, script: Sequence[Step], machine: Callable[[Path, str], Machine]
) -> tuple[list[str], int]:
    """The steps of an undisturbed life, and how many a restart in the middle takes at most."""
    figures = Figures()
    steps: list[str] = []
    async with worlds(forks, figures, "count", machine) as world:
        await play(world, (), script=script)
        steps = world.steps()
    if figures.texts:
        raise SystemExit(f"without any fault: {figures.texts}")
    return steps, 14 if script is SCRIPT else 24
