"""Small random clusters and pods, and the best answer for a pod found by trying everything.

It shares no code with the allocator, so that it can be its oracle: alternatives first (request by request, in
the order of the claims), then the least unused memory. What it knows of a cluster is what the generator put
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from random import Random
from typing import Any

from allocator_world import claim, device, exactly, partitioned_pool, pool, takes

from dra_driver.api.resource import ResourceClaim, ResourceSlice

MEMORY = (10, 24, 40, 80)
MODELS = ("a", "b")
_NUMA = "gpu.example.com/numaNode"
_MODEL = "gpu.example.com/model"


@dataclass(frozen=True)
class Thing:
    """A device as the generator made it; amounts in Gi.

    Attributes:
        taken: whether another claim holds it.
        shared: whether it can be shared.
        units: what it takes of its pool's counter.
    """

    node: str
    name: str
    memory: int
    model: str
    numa: int | None
    taken: bool = False
    shared: bool = False
    units: int = 0


@dataclass(frozen=True)
class Want:
    """An alternative of a request: so many devices with at least so much memory, of one model or any."""

    count: int
    memory: int
    model: str = ""

    def suits(self, thing: Thing) -> bool:
        """Return whether the device by itself can serve it."""
        return (
            not thing.taken and thing.memory >= self.memory and (not self.model or thing.model == self.model)
        )

    def takes(self, thing: Thing) -> int:
        """Return what it takes of the memory: all of a device that is shared, if it names no amount."""
        return thing.memory if thing.shared and not self.memory else self.memory

    def unused(self, thing: Thing) -> int:
        """Return the memory of the device that it does not ask for."""
        return thing.memory - self.takes(thing)

    def raw(self) -> dict[str, Any]:
        """Return it as the API writes it."""
        fields: dict[str, Any] = {}
        if self.model:
            expression = f'device.attributes["gpu.example.com"].model == "{self.model}"'
            fields["selectors"] = [{"cel": {"expression": expression}}]
        return exactly(self.count, f"{self.memory}Gi" if self.memory else "", **fields)


@dataclass(frozen=True)
class DeviceConstraint:
    """A constraint between all devices of a claim."""

    attribute: str
    same: bool

    def holds(self, things: Sequence[Thing]) -> bool:
        """Return whether the devices satisfy it."""
        values = [t.model if self.attribute == _MODEL else t.numa for t in things]
        if None in values:
            return False
        return len(set(values)) <= 1 if self.same else len(set(values)) == len(values)


@dataclass(frozen=True)
class Wish:
    """A claim: its requests, each a list of alternatives, and its constraints."""

    requests: tuple[tuple[Want, ...], ...]
    rules: tuple[DeviceConstraint, ...] = ()

    def made(self, name: str) -> ResourceClaim:
        """Return the claim."""
        requests: list[dict[str, Any]] = [
            r[0].raw()
            if len(r) == 1
            else {"firstAvailable": [{"name": f"s{i}", **w.raw()} for i, w in enumerate(r)]}
            for r in self.requests
        ]
        kinds = {True: "matchAttribute", False: "distinctAttribute"}
        return claim(name, *requests, constraints=[{kinds[r.same]: r.attribute} for r in self.rules])


@dataclass
class SmallCluster:
    """A small cluster.

    Attributes:
        units: what is left of the counter of each node that has partitions.
    """

    things: list[Thing] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    units: dict[str, int] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return sorted({t.node for t in self.things})

    @property
    def taken(self) -> list[Thing]:
        """Devices that another claim holds."""
        return [t for t in self.things if t.taken]


def random_world(random: Random) -> SmallCluster:
    """Return a cluster of one to three nodes with two to four devices each."""
    world = SmallCluster()
    for n in range(random.choice((1, 1, 2, 3))):
        node = f"n{n}"
        if random.random() < 0.15:
            _partitions(world, node, random)
            continue
        shared = random.random() < 0.1
        things = [
            Thing(
                node,
                f"d{i}",
                random.choice(MEMORY),
                random.choice(MODELS),
                random.choice((0, 1, None) if random.random() < 0.2 else (0, 1)),
                taken=not shared and random.random() < 0.15,
                shared=shared,
            )
            for i in range(random.randint(2, 4))
        ]
        world.things += things
        world.slices.append(pool(node, *map(_raw, things)))
    return world


def _partitions(world: SmallCluster, node: str, random: Random) -> None:
    things = [
        Thing(node, f"p{i}", 10 * units, random.choice(MODELS), random.choice((0, 1)), units=units)
        for i, units in enumerate(random.choices((1, 2, 4), k=random.randint(2, 4)))
    ]
    world.things += things
    world.units[node] = 4
    world.slices += partitioned_pool(node, {"cs": {"s": "4"}}, *map(_raw, things))


def _raw(thing: Thing) -> dict[str, Any]:
    attributes: dict[str, Any] = {"model": thing.model}
    if thing.numa is not None:
        attributes["numaNode"] = thing.numa
    fields: dict[str, Any] = {"attributes": attributes}
    if thing.shared:
        fields["allowMultipleAllocations"] = True
    if thing.units:
        fields["consumesCounters"] = takes("cs", s=str(thing.units))
    return device(thing.name, f"{thing.memory}Gi", **fields)


def random_pod(random: Random) -> list[Wish]:
    """Return the claims of a pod: one to three requests in all, most of them with alternatives."""
    wishes = []
    for _ in range(random.choice((1, 1, 1, 2))):
        requests = []
        for _ in range(random.choice((1, 2, 2, 3))):
            number = random.choice((1, 2, 2, 3))
            requests.append(tuple(_want(random) for _ in range(number)))
        rules: tuple[DeviceConstraint, ...] = ()
        if random.random() < 0.25:
            rules = (DeviceConstraint(random.choice((_MODEL, _NUMA)), same=random.random() < 0.6),)
        wishes.append(Wish(tuple(requests), rules))
    return wishes


def _want(random: Random) -> Want:
    memory = random.choice((0, 0, 10, 20, 40, 64))
    return Want(random.choice((1, 1, 1, 1, 2)), memory, random.choice(("", "", *MODELS)))


@dataclass(frozen=True, order=True)
class Best:
    """The best answer: the alternative of each request, and the unused memory in Gi."""

    ranks: tuple[int, ...]
    waste: int


def random_group(random: Random) -> list[list[Wish]]:
    """Return the claims, mostly one, of two to four pods, some of which want the same."""
    kinds = []
    for _ in range(random.choice((1, 2, 2, 3))):
        number = random.choice((1, 1, 1, 2))
        wants = tuple(_want(random) for _ in range(number))
        rules = (DeviceConstraint(_MODEL, same=True),) if random.random() < 0.15 else ()
        kinds.append([Wish((wants,), rules)])
        if random.random() < 0.15:
            kinds[-1].append(Wish(((_want(random),),)))
    return [random.choice(kinds) for _ in range(random.choice((2, 3, 3, 4)))]


def within(world: SmallCluster, nodes: Sequence[str], model: str = "") -> SmallCluster:
    """Return the part of a cluster that has these nodes, and only devices of a model if one is named."""
    things = [t for t in world.things if t.node in nodes and (not model or t.model == model)]
    return SmallCluster(things, [], world.units)


def fewest_nodes(world: SmallCluster, group: Sequence[Sequence[Wish]]) -> int | None:
    """Return on how few nodes all members fit at the same time, by trying everything; None if they do not."""
    known: dict[tuple[str, tuple[int, ...]], bool] = {}

    def holds(node: str, members: tuple[int, ...]) -> bool:
        if (node, members) not in known:
            pod = [wish for m in members for wish in group[m]]
            known[node, members] = _on_node(world, node, pod) is not None
        return known[node, members]

    best: int | None = None
    for places in product(world.nodes, repeat=len(group)):
        on = {n: tuple(m for m, place in enumerate(places) if place == n) for n in set(places)}
        if (best is None or len(on) < best) and all(holds(n, ms) for n, ms in on.items()):
            best = len(on)
    return best


def best_answer(world: SmallCluster, pod: Sequence[Wish]) -> Best | None:
    """Return the best answer over all nodes, by trying everything; None if nothing fits."""
    found = [best for node in world.nodes if (best := _on_node(world, node, pod)) is not None]
    return min(found, default=None)


def _on_node(world: SmallCluster, node: str, pod: Sequence[Wish]) -> Best | None:
    things = [t for t in world.things if t.node == node]
    requests = [request for wish in pod for request in wish.requests]
    for ranks in product(*(range(len(request)) for request in requests)):
        wants = [request[rank] for request, rank in zip(requests, ranks, strict=True)]
        wastes = [
            sum(w.unused(t) for w, ts in zip(wants, chosen, strict=True) for t in ts)
            for chosen in _choices(things, wants, Counter(), world.units.get(node, 0))
            if _hold(pod, chosen)
        ]
        if wastes:
            return Best(ranks, min(wastes))
    return None


def _choices(
    things: Sequence[Thing], wants: Sequence[Want], used: Counter[Thing], units: int
) -> Iterator[tuple[tuple[Thing, ...], ...]]:
    """Iterate over the sets of devices for each request that exclude each other by no device and counter.

    Args:
        things: of the node.
        wants: the requests that are still to be served.
        used: what the requests before use of each device: memory of shared ones, 1 of all others.
        units: what they leave of the counter.
    """
    if not wants:
        yield ()
        return
    want = wants[0]
    for chosen in combinations([t for t in things if want.suits(t)], want.count):
        needs = Counter({t: want.takes(t) if t.shared else 1 for t in chosen})
        now = used + needs
        left = units - sum(t.units for t in chosen)
        if left < 0 or any(now[t] > (t.memory if t.shared else 1) for t in chosen):
            continue
        for rest in _choices(things, wants[1:], now, left):
            yield (chosen, *rest)


def _hold(pod: Sequence[Wish], chosen: Sequence[Sequence[Thing]]) -> bool:
    position = 0
    for wish in pod:
        things = [t for ts in chosen[position : position + len(wish.requests)] for t in ts]
        position += len(wish.requests)
        if not all(rule.holds(things) for rule in wish.rules):
            return False
    return True


def random_wish(random: Random) -> Wish:
    """Return a claim of which several copies may fit: one or two requests, seldom with alternatives."""
    requests = []
    for _ in range(random.choice((1, 1, 1, 2))):
        number = random.choice((1, 1, 1, 2))
        requests.append(
            tuple(
                Want(random.choice((1, 1, 2)), random.choice((20, 40, 64)), random.choice(("", "", *MODELS)))
                for _ in range(number)
            )
        )
    rules = (DeviceConstraint(random.choice((_MODEL, _NUMA)), same=random.random() < 0.7),)
    return Wish(tuple(requests), rules if random.random() < 0.4 else ())


def most_copies(world: SmallCluster, wish: Wish) -> int:
    """Return how many copies of a claim fit at the same time, by trying everything."""
    found = 0
    for node in world.nodes:
        copies = 1
        while _on_node(world, node, [wish] * copies) is not None:
            copies += 1
        found += copies - 1
    return found
