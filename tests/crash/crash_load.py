"""Claims that change hands in parallel while agents die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from crash_processes import Agent
from crash_script import GPUS, MIG_MPS, SHORT, SLICE, UNENFORCED, VM
from crash_world import CrashedNode
from faults import Plan


class Load:
    """Devices change hands between two claims each, in parallel, on whichever agent is ``current``.

    Args:
        hardware: claims that change GPUs.
        pairs: how many pairs of claims there are at most.
    """

    # A call that fails so often although nothing is killed any more does not get any further.
    TRIES = 20

    def __init__(self, world: CrashedNode, seed: int, *, hardware: bool, pairs: int) -> None:
        self.world = world
        self._hardware = hardware
        self.chance = random.Random(seed)
        self.current: Agent | None = None
        self._pairs = pairs
        self.back = asyncio.Event()
        self.finished = asyncio.Event()

    async def run(self, killer: Callable[[Load], Awaitable[None]]) -> None:
        """Until the killer has ended and every device has been given back."""
        if self._hardware:
            self._add_hardware()
        else:
            self._pairs = min(self._pairs, len(GPUS))
            for i, gpu in enumerate(GPUS[: self._pairs]):
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
        self._pairs = min(self._pairs, len(pairs))
        for i, (one, two) in enumerate(pairs[: self._pairs]):
            for name, claim in (("one", one), ("two", two)):
                more = dict(claim)
                self.world.add(f"{name}-{i}", more.pop("device"), **more)

    def use(self, agent: Agent) -> None:
        """Calls go there from now on."""
        self.current = agent
        self.back.set()

    async def _again(self, call: Callable[[Agent], Awaitable[bool]]) -> None:
        tries = 0
        while True:
            await self.back.wait()
            assert self.current is not None
            undisturbed = self.finished.is_set()
            if await call(self.current):
                return
            tries += undisturbed
            if tries > self.TRIES:
                self.world.violate("no progress", self.world.errors())
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
