"""Devices that a backend prepares for longer than the kubelet waits, and agents that end meanwhile.

Several claims come and go at the same time. The kubelet asks for each of them again and again, gives up on
calls, and deletes pods whose devices are still being prepared.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from itertools import chain

import short_waits
from crash_processes import Agent
from crash_script import NPUS
from crash_world import Claim, CrashedNode
from faults import Plan
from machines.slow import SlowMachine

# That an answer may be late on a busy computer.
_LATE_SECONDS = 20.0
_EVENTS = 8
# In which every claim has to get ready once nothing goes wrong any more.
_CALM_SECONDS = 90.0


async def one_agent(world: CrashedNode, chance: random.Random) -> None:
    """Kill agents, one after the other, while a slow backend prepares and undoes devices for its claims."""
    await _Node(world, chance, most=1).run()


async def two_agents(world: CrashedNode, chance: random.Random) -> None:
    """Kill one or both of two agents while they have a slow backend prepare and undo devices side by side."""
    await _Node(world, chance, most=2).run()


class _Node:
    """Agents that come and go, and a kubelet that asks whichever is there.

    Args:
        most: so many agents run at once.
    """

    def __init__(self, world: CrashedNode, chance: random.Random, most: int) -> None:
        assert isinstance(world.machine, SlowMachine)
        self._machine = world.machine
        self._world = world
        self._chance = chance
        self._most = most
        # A document of a device whose node has changed waits for the backend to have looked at the device.
        world.withdraws = True
        world.call_seconds = short_waits.CALL_SECONDS + _LATE_SECONDS
        self._agents: dict[str, Agent] = {}
        self._serial = 0
        self._dead: set[str] = set()
        self._watts: dict[str, int] = {}
        # Claims whose devices have to be as the tool leaves them, at any moment.
        self._sound: set[str] = set()
        # Of claims that are being unprepared.
        self._ending: dict[str, tuple[str, ...]] = {}
        # Whom a call went to that may not have ended; a later one would be overtaken by it elsewhere.
        self._asked: dict[str, Agent] = {}
        self._boots = 0
        self._there = asyncio.Event()
        self._calm = asyncio.Event()

    async def run(self) -> None:
        """Let things happen, and then every claim get ready and end."""
        self._populate()
        self._machine.stir(self._chance)
        await self._start()
        try:
            async with asyncio.TaskGroup() as tasks:
                served = [tasks.create_task(self._serve(claim)) for claim in self._world.claims.values()]
                for _ in range(_EVENTS):
                    await asyncio.sleep(self._chance.random() * 1.2)
                    await self._happen()
                await self._become_calm(served)
        except* AssertionError as group:
            raise group.exceptions[0] from None
        for name in tuple(self._agents):
            await self._stop(name)
        # What a killed one has left is removed by the next one that starts.
        await self._start(last=True)
        for name in tuple(self._agents):
            await self._stop(name)
        self._world.check(idle=True)
        if left := sorted(p.name for p in self._world.state.glob("instance*.lock")):
            self._world.violate("leaked locks of agents", f"{left}")

    async def _become_calm(self, served: Collection[asyncio.Task[None]]) -> None:
        self._machine.calm()
        self._calm.set()
        end = asyncio.get_running_loop().time() + _CALM_SECONDS
        while not all(task.done() for task in served):
            await asyncio.wait(served, timeout=0.2)
            # Those that were to be killed at a step still are.
            await self._bury()
            while not self._agents:
                await self._start(last=True)
            if asyncio.get_running_loop().time() > end:
                waiting = [c.name for c in self._world.claims.values() if c.under_way]
                self._world.violate("no progress", f"{waiting}: {self._world.errors()}")
        self._look()

    def _populate(self) -> None:
        first, shared, other, cut = NPUS
        self._add("firmware", 250, first)
        self._add("lower", 120, first)
        self._add("pair", 200, other, first)
        self._add("share", 300, shared, share=True)
        self._add("other-share", 310, shared, share=True)
        self._add("half", 90, f"{cut}-slice-half-0")
        self._add("other-half", 80, f"{cut}-slice-half-1")
        self._add("whole", 400, cut)

    def _add(self, name: str, watts: int, *devices: str, share: bool = False) -> None:
        parameters = {"apiVersion": "acme.example/v1", "kind": "NpuConfig", "powerLimit": watts}
        self._world.add(name, *devices, share=share, parameters=parameters)
        self._watts[name] = watts

    # --- the kubelet ----------------------------------------------------------------------------------------

    async def _serve(self, claim: Claim) -> None:
        """Prepare and unprepare a claim until nothing happens any more, and then once more."""
        chance = self._chance
        last = False
        while not last:
            last = self._calm.is_set()
            boots = self._boots
            if await self._prepare(claim, deletable=not last):
                await self._sleep(0.8)
                while boots != self._boots or chance.random() < 0.4:
                    # For another pod, or after a power failure, which not every pod has outlived.
                    if chance.random() < 0.3:
                        break
                    boots = self._boots
                    if await self._call(self._world.prepare, claim):
                        self._is_sound(claim)
                    await self._sleep(0.3)
            await self._unprepare(claim)

    async def _prepare(self, claim: Claim, *, deletable: bool) -> bool:
        while not await self._call(self._world.prepare, claim):
            if deletable and self._chance.random() < 0.15:
                return False
            await self._sleep(0.6)
        self._is_sound(claim)
        return True

    async def _unprepare(self, claim: Claim) -> None:
        self._sound.discard(claim.name)
        # When this fails, the record says still that the claim is prepared, and what was undone may be made
        # again. If the device left its bus in that, nothing but the kubelet's next call would bring it back.
        self._ending[claim.name] = claim.devices
        self._machine.keep(chain(*self._ending.values()))
        while not await self._call(self._world.unprepare, claim):
            await self._sleep(0.6)
        del self._ending[claim.name]
        self._machine.keep(chain(*self._ending.values()))

    async def _call(self, call: Callable[..., Awaitable[bool]], claim: Claim) -> bool:
        agent = self._asked.get(claim.name)
        if agent is None or agent.ended.done():
            await self._there.wait()
            agent = self._chance.choice(list(self._agents.values()))
        gives_up = not self._calm.is_set() and self._chance.random() < 0.15
        boots = self._boots
        done = await call(agent, claim, self._chance.random() + 0.02 if gives_up else None)
        self._asked.pop(claim.name, None)
        if claim.goes_on:
            self._asked[claim.name] = agent
        # What was answered before the power failed does not count after it.
        return done and boots == self._boots

    def _is_sound(self, claim: Claim) -> None:
        self._sound.add(claim.name)
        self._look()

    def _look(self) -> None:
        """See that what is prepared is as the tool leaves it, and that no two have worked on one device."""
        for name in self._sound:
            claim = self._world.claims[name]
            if text := self._machine.unfinished(claim.uid, claim.devices, self._watts[name]):
                self._world.violate("half-prepared claims", f"{name}: {text}")
        for kind, text in self._machine.work():
            self._world.violate(kind, text)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(self._chance.random() * seconds)

    # --- what happens ---------------------------------------------------------------------------------------

    async def _happen(self) -> None:
        chance = self._chance
        self._look()
        await self._bury()
        self._machine.stir(chance)
        if self._most > 1 and chance.random() < 0.6:
            await self._add_one()
        happens = (
            self._kill,
            self._kill,
            self._end,
            self._add_one,
            self._fail_power,
            self._restart,
            self._swap,
            self._refuse_writes,
        )
        await chance.choice(happens)()
        while not self._agents:
            await self._start()
        self._look()

    async def _bury(self) -> None:
        """Notice the agents that have ended as they were to."""
        for name, agent in tuple(self._agents.items()):
            if agent.ended.done():
                await self._buried(name)

    async def _buried(self, name: str) -> None:
        agent = self._agents.pop(name)
        if not self._agents:
            self._there.clear()
        await self._world.ended(agent)
        self._dead.add(name)

    async def _kill(self) -> None:
        if self._agents:
            name = self._chance.choice(list(self._agents))
            self._agents[name].kill()
            await self._buried(name)

    async def _end(self) -> None:
        """SIGTERM, while calls still come, to another one as soon as there is one."""
        if not self._agents:
            return
        name = self._chance.choice(list(self._agents))
        if len(self._agents) > 1 and self._chance.random() < 0.5:
            # The kubelet asks the other one at once.
            await self._world.stop(self._agents.pop(name), killed=True)
        else:
            await self._stop(name)

    async def _stop(self, name: str) -> None:
        await self._world.stop(self._agents[name], killed=True)
        del self._agents[name]
        if not self._agents:
            self._there.clear()

    async def _add_one(self) -> None:
        while len(self._agents) < self._most:
            await self._start()

    async def _fail_power(self) -> None:
        await self._kill_all()
        self._world.figures.power_failures += 1
        self._boots += 1
        self._sound.clear()
        self._world.prepared()
        self._world.power_failure(self._chance)
        await self._start()

    async def _restart(self) -> None:
        """Start on what all that ran have left."""
        await self._kill_all()
        await self._start()

    async def _swap(self) -> None:
        self._world.figures.faults += 1
        self._world.swap()

    async def _refuse_writes(self) -> None:
        self._world.figures.faults += 1
        disk = self._world.faults / "disk"
        disk.write_text(self._chance.choice(("ENOSPC state create", "EIO state all", "EROFS cdi all")))
        await self._sleep(1.5)
        disk.unlink()

    async def _kill_all(self) -> None:
        for agent in self._agents.values():
            agent.kill()
        for name in tuple(self._agents):
            await self._buried(name)
        # The last step has been made: nobody was killed by one.
        with self._world.log.open("a") as log:
            log.write("between\n")

    async def _start(self, *, last: bool = False) -> None:
        """Start one more agent. One that is alone has undone by then what those before it have left."""
        alone = not self._agents
        if alone:
            self._machine.calm()
        plan = Plan()
        if not last and self._chance.random() < 0.3:
            plan = Plan(kill_at=self._chance.randrange(80), torn=self._chance.random() < 0.3)
        self._serial += 1
        name = f"pod-{self._serial}" if self._most > 1 else ""
        dead = set(self._dead)
        agent = await self._world.start(plan, name, beside=True)
        if agent is None:
            self._dead.add(name)
            return
        if self._most > 1:
            self._world.check_sockets(dead)
        if alone:
            # Work that is looked at again by a call that nobody waits for takes its moment.
            await self._world.settled(agent)
        self._agents[name] = agent
        self._there.set()
        if not self._calm.is_set():
            self._machine.stir(self._chance)
