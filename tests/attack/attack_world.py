"""What an attack works with, and the table of all attacks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import attack_objects as objects
from attack_api import Api, Manifest, path_of
from attack_cluster import Controllers

__all__ = ["ATTACKS", "Attack", "AttackedCluster", "attack"]

TENANT = "tenant"


class AttackedCluster:
    """The cluster as one attack has it.

    Attributes:
        api: a client.
        controllers: both replicas.
        seed: of everything that is random in the attack.
        rng: made of it.
        nodes: number of honest nodes.
        notes: for people.
        problems: why the attack is none.
        struck: set when measuring is to begin.
        measure_from_strike: measure nothing of what was before ``strike``, as the attack ends a process
            itself.
        foreign_inventories: inventories, nodes or slices were written that have to go afterwards.
        namespaces: all that the attack writes to.
    """

    def __init__(self, api: Api, controllers: Controllers, seed: int, nodes: int) -> None:
        self.api = api
        self.controllers = controllers
        self.seed = seed
        self.rng = random.Random(seed)
        self.nodes = nodes
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.struck = asyncio.Event()
        self.measure_from_strike = False
        self.foreign_inventories = False
        self.namespaces = [TENANT]
        self._made = 0
        self._refused: list[str] = []

    def strike(self) -> None:
        """Let the measurement and the honest pods begin: what is prepared is done."""
        self.struck.set()

    async def create(self, manifests: Iterable[Manifest]) -> None:
        """Create objects of the tenant; what the API refuses is counted."""
        for status, answer in await self.api.create_all(manifests):
            if status == 201:
                self._made += 1
            else:
                self._refused.append(str(answer.get("message", answer))[:300])

    async def submit(self, *manifests: Manifest) -> None:
        """Create everything, pods last: only when they are there is anything to be decided."""
        await self.create(m for m in manifests if m["kind"] != "Pod")
        self.strike()
        await self.create(m for m in manifests if m["kind"] == "Pod")

    async def namespace(self, name: str, **labels: str) -> None:
        """Create a namespace, if it is not there yet."""
        self.namespaces.append(name)
        meta = {"name": name, "labels": labels}
        await self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    async def node(self, name: str, devices: Sequence[Manifest]) -> str:
        """Create a node of the attacker's, with an agent that is registered; return the inventory's path."""
        self.foreign_inventories = True
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"allocatable": {"pods": "9"}},
        }
        _, made = await self.api.create(body)
        inventory = objects.inventory(name, made["metadata"]["uid"], devices)
        await self.create([inventory])
        path = path_of(inventory)
        await self.register(path, 1)
        return path

    async def register(self, path: str, epoch: int, *, registered: bool = True) -> None:
        """Write the registration of an inventory as its agent does."""
        status = {"registration": {"registered": registered, "epoch": epoch}}
        await self.api.patch(f"{path}/status", {"status": status})

    async def ticks(self, per_second: float) -> AsyncIterator[int]:
        """Count at a steady rate until the attack is ended; a machine that is too slow never catches up."""
        number, due = 0, time.monotonic()
        while True:
            yield number
            number += 1
            due = max(due + 1 / per_second, time.monotonic())
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def verdict(self) -> tuple[list[str], list[str]]:
        """Return problems and notes: an attack of which the API took nothing attacks nobody."""
        problems, notes = list(self.problems), list(self.notes)
        if self._refused:
            notes.append(f"the API refused {len(self._refused)}, the first: {self._refused[0]}")
            if not self._made:
                problems.append("the API took nothing of it")
        return problems, notes


Run = Callable[[AttackedCluster], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        name: as on the command line.
        topic: the module that it is in.
        run: strikes, and goes on until it is cancelled or has nothing left to do.
        planted: beginning of the finding that it must lead to; empty for attacks that must lead to none.
    """

    name: str
    topic: str
    run: Run
    planted: str = ""

    @property
    def description(self) -> str:
        """What it tries."""
        return " ".join((self.run.__doc__ or "").split())


ATTACKS: dict[str, Attack] = {}
"""All attacks by name, in the order in which they are played."""


def attack(run: Run) -> Run:
    """Put a function into the table, under its own name."""
    return _register(run, "")


def planted(finding: str) -> Callable[[Run], Run]:
    """Put a violation into the table that must be found."""
    return lambda run: _register(run, finding)


def _register(run: Run, finding: str) -> Run:
    name = str(getattr(run, "__name__", "")).replace("_", "-")
    topic = run.__module__.rpartition(".")[2]
    if name in ATTACKS:
        raise ValueError(f"two attacks are called {name}")
    ATTACKS[name] = Attack(name, topic, run, finding)
    return run
