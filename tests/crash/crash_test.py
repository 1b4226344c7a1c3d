"""Kills real node agents at every durable step of prepare and unprepare, and looks at what is left.

``make crash-test``: a thousand kills and more. ``--kills N`` for fewer, ``--seed S`` for another run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import structlog
from crash_world import Agent, Figures, ForkServer, Scenario, summary, worlds
from faults import Plan

GPUS = tuple(f"gpu-0000-{bus}-00-0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
ERRORS = ("ENOSPC", "EIO", "EROFS")


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
SLICE = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}}
SHORT = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Short"}}}
MIG_MPS = {"kind": "MigConfig", "sharing": {"strategy": "MPS"}}
VM = {"kind": "GpuConfig", "driver": "vfio-pci"}
UNENFORCED = {"kind": "ShareConfig", "enforcement": "None"}


def populate(world: Scenario) -> None:
    """The claims of the scripts."""
    gpu = GPUS[0]
    world.add("mig", f"{gpu}-mig-2g-20gb-0")
    world.add("pair", f"{gpu}-mig-1g-10gb-4", f"{gpu}-mig-1g-10gb-5")
    world.add("overlap", f"{gpu}-mig-3g-40gb-0")
    world.add("mig-mps", f"{gpu}-mig-1g-10gb-6", parameters=MIG_MPS)
    world.add("share", GPUS[1], share=True)
    world.add("other-share", GPUS[1], share=True)
    world.add("slice", GPUS[2], parameters=SLICE)
    world.add("vm", GPUS[3], GPUS[4], parameters=VM)
    world.add("a", GPUS[0])
    world.add("b", GPUS[1], GPUS[2])
    world.add("c", GPUS[0])
    world.add("never", GPUS[3])


async def play(
    world: Scenario,
    plans: Sequence[Plan],
    power: random.Random | None = None,
    script: Sequence[Step] = SCRIPT,
) -> None:
    """Plays the script; each plan is one life, and after the last one nothing happens any more.

    With ``power``, what kills is a power failure: unsynced writes may be undone, and the kubelet prepares
    again what it had prepared.
    """
    populate(world)
    left = list(plans)
    agent = await alive(world, left)
    for step in script:
        if step.verb == "swap":
            world.swap()
            continue
        claim = world.claims[step.claim]
        tries = 0
        while True:
            if step.verb == "damage":
                (world.cdi / claim.file).write_bytes(b"{}")
                break
            call = world.prepare if step.verb == "prepare" else world.unprepare
            if await call(agent, claim):
                break
            tries += 1
            if tries > 60:
                world.violate("no progress", f"{step}: {world.errors()}")
            if await gone(agent):
                await world.ended(agent)
                agent = await alive(world, left) if power is None else await boot(world, power)
    await world.stop(agent)
    if any(plan.error for plan in plans):
        # What could not be removed while the disk refused is removed at the next start.
        last = await alive(world, [])
        await world.stop(last)
    world.check(idle=True)


async def boot(world: Scenario, chance: random.Random) -> Agent:
    """After a power failure: no container runs, and those that shall are prepared again."""
    world.figures.power_failures += 1
    running = [c for c in world.claims.values() if c.acknowledged == "prepared"]
    world.power_failure(chance)
    for claim in running:
        claim.under_way = True
    agent = await alive(world, [])
    for claim in running:
        if not await world.prepare(agent, claim):
            world.violate("lost claims", f"{claim.name} cannot be prepared again: {world.errors()}")
    return agent


async def alive(world: Scenario, left: list[Plan]) -> Agent:
    """Starts agents until one lives, and looks at what the one before left."""
    while True:
        plan = left.pop(0) if left else None
        agent = await world.start(plan)
        if agent is not None:
            if plan is None or not plan.error:
                world.check()
            return agent


async def gone(agent: Agent) -> bool:
    """Whether the agent has ended; a connection breaks a little before its process is reaped."""
    try:
        async with asyncio.timeout(0.05):
            await asyncio.shield(agent.ended)
    except TimeoutError:
        return False
    return True


async def count_steps(forks: ForkServer, script: Sequence[Step]) -> tuple[list[str], int]:
    """The steps of an undisturbed life, and how many a restart in the middle takes at most."""
    figures = Figures()
    steps: list[str] = []
    async with worlds(forks, figures, "count") as world:
        await play(world, (), script=script)
        steps = world.steps()
    if figures.texts:
        raise SystemExit(f"without any fault: {figures.texts}")
    return steps, 14 if script is SCRIPT else 24


class Load:
    """Eight devices change hands between two claims each, in parallel, on whichever agent is ``current``."""

    def __init__(self, world: Scenario, seed: int, *, hardware: bool) -> None:
        self.world = world
        self._hardware = hardware
        self.chance = random.Random(seed)
        self.current: Agent | None = None
        self._pairs = len(GPUS)
        self.back = asyncio.Event()
        self.finished = asyncio.Event()

    async def run(self, killer: Callable[[Load], Awaitable[None]]) -> None:
        """Until the killer has ended and every device has been given back."""
        if self._hardware:
            self._add_hardware()
        else:
            for i, gpu in enumerate(GPUS):
                self.world.add(f"one-{i}", gpu)
                self.world.add(f"two-{i}", gpu)
        try:
            async with asyncio.TaskGroup() as tasks:
                for i in range(self._pairs):
                    tasks.create_task(self._hand_over(i))
                await killer(self)
                self.finished.set()
        except* AssertionError as group:
            raise group.exceptions[0] from None
        assert self.current is not None
        await self.world.stop(self.current)
        self.world.check(idle=True)

    def _add_hardware(self) -> None:
        """Claims that meet on GPUs: some exclude each other, some share what belongs to the GPU."""
        a, b, c, d, e, f, *_, last = GPUS
        pairs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
            ({"device": f"{a}-mig-3g-40gb-0"}, {"device": f"{a}-mig-2g-20gb-2"}),
            ({"device": f"{a}-mig-1g-10gb-4"}, {"device": f"{a}-mig-3g-40gb-4", "parameters": MIG_MPS}),
            ({"device": b, "share": True}, {"device": b, "share": True}),
            ({"device": b, "share": True}, {"device": b, "share": True, "parameters": UNENFORCED}),
            ({"device": c, "parameters": SLICE}, {"device": c, "parameters": SHORT}),
            ({"device": d}, {"device": f"{d}-mig-7g-80gb-0"}),
            ({"device": e, "parameters": VM}, {"device": e}),
            ({"device": f, "parameters": VM}, {"device": f, "parameters": SHORT}),
            ({"device": f"{last}-mig-1g-10gb-0"}, {"device": f"{last}-mig-1g-20gb-0"}),
        )
        for i, (one, two) in enumerate(pairs):
            for name, claim in (("one", one), ("two", two)):
                more = dict(claim)
                self.world.add(f"{name}-{i}", more.pop("device"), **more)
        self._pairs = i + 1

    def use(self, agent: Agent) -> None:
        """Calls go there from now on."""
        self.current = agent
        self.back.set()

    async def _again(self, call: Callable[[Agent], Awaitable[bool]]) -> None:
        while True:
            await self.back.wait()
            assert self.current is not None
            if await call(self.current):
                return
            await asyncio.sleep(0.001)

    async def _hand_over(self, i: int) -> None:
        world = self.world
        one, two = world.claims[f"one-{i}"], world.claims[f"two-{i}"]
        while not self.finished.is_set():
            await self._again(lambda a: world.prepare(a, one))
            async with asyncio.TaskGroup() as both:
                both.create_task(self._again(lambda a: world.prepare(a, two)))
                await asyncio.sleep(self.chance.random() * 0.01)
                both.create_task(self._again(lambda a: world.unprepare(a, one)))
            await self._again(lambda a: world.unprepare(a, two))


async def one_at_a_time(load: Load, kills: int) -> None:
    """Some die while they start, some by step, most at any moment under load."""
    world, chance = load.world, load.chance
    goal = world.kills + kills
    while world.kills < goal:
        plan = Plan(kill_at=chance.randrange(60)) if chance.random() < 0.3 else Plan()
        agent = await world.start(plan)
        if agent is None:
            continue
        world.check()
        load.use(agent)
        await asyncio.wait([agent.ended], timeout=chance.random() * 0.12)
        load.back.clear()
        agent.kill()
        await world.ended(agent)
    last = await world.start()
    assert last is not None
    world.check()
    load.use(last)


async def rolling(load: Load, kills: int) -> None:
    """Two instances share the directories; the new one or the old one is killed while both work."""
    world, chance = load.world, load.chance
    goal = world.kills + kills
    serial = 0
    dead: set[str] = set()
    name = before_name = ""
    while load.current is None or world.kills < goal:
        serial += 1
        name = f"pod-{serial}"
        plan = Plan(kill_at=chance.randrange(40)) if chance.random() < 0.3 else Plan()
        gone_before = set(dead)
        fresh = await world.start(plan, name)
        if fresh is None:
            dead.add(name)
            continue
        world.check_sockets(gone_before)
        before = load.current
        load.use(fresh)
        # The old one still has calls under way, the new one already gets them.
        await asyncio.wait([fresh.ended], timeout=chance.random() * 0.05)
        if before is None:
            before_name = name
            continue
        pairs = [(before, before_name), (fresh, name)]
        if chance.random() < 0.6 and not fresh.ended.done():
            pairs.reverse()
        if pairs[0][0].ended.done():
            pairs.reverse()
        (survivor, survivor_name), (victim, victim_name) = pairs
        load.use(survivor)
        victim.kill()
        await world.ended(victim)
        dead.add(victim_name)
        before_name = survivor_name
    # Nothing of the dead is in the way of an instance that starts while the other works.
    last = await world.start(None, "pod-last")
    assert last is not None
    world.check_sockets(dead)
    assert load.current is not None
    before = load.current
    load.use(last)
    if before.ended.done():
        await world.ended(before)
    else:
        await world.stop(before)


Run = Callable[[Scenario], Awaitable[None]]
# A script, the steps of an undisturbed life, and how many a restart takes at most.
Counted = tuple[Sequence[Step], list[str], int]


def matrix(scripts: Sequence[Counted], kills: int, seed: int) -> list[tuple[str, Run]]:
    """All runs: every step, every pair of step and step of the restart, torn writes, errors, load."""
    chance = random.Random(seed)
    runs: list[tuple[str, Run]] = []
    for counted in scripts:
        runs += disturbed(counted, kills // len(scripts), chance)
    chance.shuffle(runs)
    each = 25 if kills > 200 else 5
    for i in range(max(2, kills * 45 // 100 // each)):
        killer = rolling if i % 3 == 1 else one_at_a_time
        hardware = i % 2 == 0
        name = f"{killer.__name__} {i}{' with hardware' if hardware else ''}"
        load = partial(under_load, seed=seed + i, killer=partial(killer, kills=each), hardware=hardware)
        runs.append((name, load))
    return runs


def disturbed(counted: Counted, kills: int, chance: random.Random) -> list[tuple[str, Run]]:
    """The runs of one script."""
    script, steps, restart = counted
    n = len(steps)
    runs: list[tuple[str, Run]] = []
    of = "" if script is SCRIPT else "with hardware: "

    def add(name: str, *plans: Plan) -> None:
        runs.append((of + name, lambda world: play(world, plans, script=script)))

    for k in range(n):
        add(f"kill at {k}", Plan(kill_at=k))
        if steps[k].endswith("write"):
            add(f"torn write at {k}", Plan(kill_at=k, torn=True))
        if script is SCRIPT or k % 3 == 0:
            fails = partial(play, plans=(Plan(kill_at=k),), power=random.Random(k), script=script)
            runs.append((f"{of}power failure at {k}", fails))
    nested = [(k, j) for k in range(1, n) for j in range(restart)]
    chance.shuffle(nested)
    for k, j in nested[: max(0, kills * 4 // 10 // 2)]:
        add(f"kill at {k}, then at {j}", Plan(kill_at=k), Plan(kill_at=j))
    faulty = [(e, k, count, where) for e in ERRORS for k in range(n) for count, where in PATTERNS]
    chance.shuffle(faulty)
    for error, k, count, where in faulty[: max(4, kills // 8)]:
        plan = Plan(error=error, error_at=k, error_count=count, read_only=where)
        add(f"{error} at {k}+{count} {where}", plan)
        later = k + chance.randrange(1, 12)
        kill = Plan(error=error, error_at=k, error_count=count, read_only=where, kill_at=later)
        add(f"{error} at {k}+{count} {where}, kill at {later}", kill)
    return runs


async def under_load(
    world: Scenario, seed: int, killer: Callable[[Load], Awaitable[None]], *, hardware: bool
) -> None:
    """One run of ``Load``."""
    await Load(world, seed, hardware=hardware).run(killer)


# How many steps in a row fail, and where: a moment, a while, a directory that became read-only.
PATTERNS = ((1, ""), (3, ""), (12, ""), (25, "cdi"), (25, "state"), (25, "gpu"), (25, "metadata"))


async def run(kills: int, seed: int, jobs: int, *, quiet: bool = False) -> Figures:
    """Run the matrix and return the figures; where ``kills`` is small, a part of it."""
    figures = Figures()
    started = time.monotonic()
    async with ForkServer() as forks:
        scripts = [(script, *await count_steps(forks, script)) for script in (SCRIPT, GPU_SCRIPT)]
        queue, spare = matrix(scripts, kills, seed), []
        if kills < 100:
            # A short run takes a part of the matrix, always some load of both kinds, and more of the matrix
            # where agents ended before they could be killed.
            part = kills * 4 // 5
            queue, spare = [*queue[:part], *queue[-2:]], queue[part:-2]
        total = len(queue)
        queue.reverse()
        spare.reverse()

        told, shown, done = [0], [started], 0

        async def work() -> None:
            nonlocal done
            while queue or (spare and figures.kills < kills):
                name, one = (queue or spare).pop()
                async with worlds(forks, figures, name) as world:
                    await one(world)
                done += 1
                if not quiet and time.monotonic() > shown[0] + 15:
                    shown[0] = time.monotonic()
                    bad = sum(figures.violations.values())
                    print(
                        f"{time.monotonic() - started:6.1f} s  runs {done}/{max(total, done)}  "
                        f"kills {figures.kills}  violations {bad}",
                        flush=True,
                    )
                while not quiet and len(figures.texts) > told[0]:
                    print(figures.texts[told[0]], flush=True)
                    told[0] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(jobs):
                tasks.create_task(work())
        if not quiet:
            counts = [len(steps) for _, steps, _ in scripts]
            print(f"durable steps of the scripts: {counts[0]}, with hardware {counts[1]}")
    return figures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 2) + 2, help="nodes side by side")
    args = parser.parse_args()
    import logging

    # The API server's connections break whenever an agent is killed.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    started = time.monotonic()
    figures = asyncio.run(run(args.kills, args.seed, args.jobs))
    enough = figures.kills >= args.kills
    clean = not figures.violations and not figures.texts
    for line in summary(figures, time.monotonic() - started):
        print(line)
    if not enough:
        print(f"only {figures.kills} kills of {args.kills}")
    print("passed" if clean and enough else "FAILED")
    return 0 if clean and enough else 1


if __name__ == "__main__":
    sys.exit(main())
