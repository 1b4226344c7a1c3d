"""Replays arrivals on simulated time with the real allocator, under one strategy.

A claim that does not fit waits. Whenever devices are freed the claims that wait are tried again, the oldest
first; one that does not fit holds up no other one, as in the controller without priorities.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dra_driver.api.resource import ResourceClaim
from dra_driver.cli.described_fleet import FleetObjects
from dra_driver.cli.simulation.workload import Arrival
from dra_driver.errors import InvalidInput
from dra_driver.fleet import RequestShape, ShapeCount, count_shapes
from dra_driver.ownership import is_controller_taint
from dra_driver.structured import Allocated, Cluster, Failed, Strategy, allocate

__all__ = ["Played", "Sample", "play", "sizes_of", "weights_of"]

Progress = Callable[[float, int], None]
"""Called with the simulated time in seconds and the number of claims that have come."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one moment.

    Attributes:
        at: seconds from the start.
        counts: of the shapes.
        waiting: claims that wait.
        in_use: devices that are allocated, partitions by their part of the memory.
    """

    at: float
    counts: tuple[ShapeCount, ...]
    waiting: int
    in_use: float


@dataclass(slots=True)
class Played:
    """What became of the claims.

    Attributes:
        strategy: that the devices were chosen by.
        waits: seconds that the claims of each shape have waited, by its name; those that still wait at the
            end have waited until then at least.
        refused: claims that would not fit if the fleet were empty.
        waiting: claims that still wait at the end.
        in_use: mean part of the devices that was allocated.
        samples: at regular times.
    """

    strategy: Strategy
    waits: dict[str, list[float]] = field(default_factory=dict)
    refused: int = 0
    waiting: int = 0
    in_use: float = 0.0
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class _Queue:
    """Claims of one shape that wait, in the order in which they came.

    Attributes:
        nodes: where the next one may fit: those where devices were freed since the last refusal; None for
            all of them.
    """

    claims: deque[tuple[int, Arrival, ResourceClaim]] = field(default_factory=deque)
    nodes: set[str] | None = None

    @property
    def may_fit(self) -> bool:
        return bool(self.claims) and self.nodes != set()


def play(
    fleet: FleetObjects,
    arrivals: Sequence[Arrival],
    strategy: Strategy,
    *,
    until: float,
    shapes: Sequence[RequestShape] = (),
    every: float = 3600.0,
    progress: Progress = lambda _at, _number: None,
) -> Played:
    """Replay arrivals on an empty fleet.

    Args:
        fleet: that the claims are allocated on.
        arrivals: in the order of their times.
        strategy: how devices are chosen.
        until: the end, in seconds.
        shapes: that are counted now and then.
        every: seconds between two samples.
        progress: is told how far it has got.

    Raises:
        InvalidInput: a claim asks for something that does not exist, such as a DeviceClass.
    """
    return _Replay(fleet, strategy, shapes).run(arrivals, until, every, progress)


class _Replay:
    def __init__(self, fleet: FleetObjects, strategy: Strategy, shapes: Sequence[RequestShape]) -> None:
        self._cluster = Cluster(slices=fleet.slices, classes=fleet.classes, nodes=fleet.nodes)
        self._cluster.prepare()
        self._shapes = shapes
        self._strategy = strategy
        self._weights, self._total = weights_of(fleet)
        # By what they ask for: claims with equal specs fit or do not fit together.
        self._queues: dict[bytes, _Queue] = {}
        self._possible: dict[bytes, bool] = {}
        self._ends: list[tuple[float, int, str, str, float]] = []
        self._in_use = 0.0
        self._area = self._since = 0.0
        self._number = 0
        self._played = Played(strategy)

    def run(self, arrivals: Sequence[Arrival], until: float, every: float, progress: Progress) -> Played:
        played = self._played
        samples = 0
        for arrival in (*arrivals, None):
            at = until if arrival is None else min(arrival.at, until)
            while samples * every <= at:
                self._advance(samples * every)
                played.samples.append(self._sample(samples * every))
                progress(samples * every, self._number)
                samples += 1
            self._advance(at)
            if arrival is None or arrival.at > until:
                break
            self._arrive(arrival)
        self._advance(until)
        for queue in self._queues.values():
            for _, arrival, _claim in queue.claims:
                played.waits.setdefault(arrival.shape.name, []).append(until - arrival.at)
                played.waiting += 1
        played.in_use = self._area / (until * self._total) if until and self._total else 0.0
        return played

    def _sample(self, at: float) -> Sample:
        counts = count_shapes(self._cluster.snapshot, self._shapes, ignore_taint=is_controller_taint)
        waiting = sum(len(q.claims) for q in self._queues.values())
        return Sample(at, counts, waiting, self._in_use)

    def _pass(self, at: float) -> None:
        self._area += self._in_use * (at - self._since)
        self._since = at

    def _advance(self, until: float) -> None:
        """Let the claims end that end by then, and begin those for which that makes room."""
        while self._ends and self._ends[0][0] <= until:
            at, _, uid, node, weight = heapq.heappop(self._ends)
            self._pass(at)
            self._in_use -= weight
            self._cluster.free(uid)
            wide = bool(self._cluster.snapshot.index.cluster_wide.pools)
            for queue in self._queues.values():
                if wide:
                    queue.nodes = None
                elif queue.nodes is not None:
                    queue.nodes.add(node)
            self._begin_waiting(at)
        self._pass(until)

    def _arrive(self, arrival: Arrival) -> None:
        self._number += 1
        claim = arrival.shape.claim(arrival.name, "default")
        key = repr(arrival.shape.spec).encode()
        if not self._is_possible(key, claim):
            self._played.refused += 1
            return
        queue = self._queues.setdefault(key, _Queue())
        queue.claims.append((self._number, arrival, claim))
        self._begin_waiting(arrival.at)

    def _is_possible(self, key: bytes, claim: ResourceClaim) -> bool:
        """Return whether a claim fits on the empty fleet.

        Raises:
            InvalidInput: it asks for something that does not exist.
        """
        known = self._possible.get(key)
        if known is None:
            empty = self._cluster.snapshot.with_allocated(type(self._cluster.snapshot.allocated)())
            outcome = allocate(empty, [claim], strategy=self._strategy, ignore_taint=is_controller_taint)
            if isinstance(outcome, Failed):
                raise InvalidInput(f"{claim.metadata.name}: {outcome.message}")
            known = self._possible[key] = isinstance(outcome, Allocated)
        return known

    def _begin_waiting(self, at: float) -> None:
        """Allocate to the claims that wait, the oldest first, where one may fit."""
        while queues := [q for q in self._queues.values() if q.may_fit]:
            queue = min(queues, key=lambda q: q.claims[0][0])
            _, arrival, claim = queue.claims[0]
            outcome = allocate(
                self._cluster.snapshot,
                [claim],
                strategy=self._strategy,
                nodes=queue.nodes,
                ignore_taint=is_controller_taint,
            )
            if not isinstance(outcome, Allocated):
                queue.nodes = set()
                continue
            queue.claims.popleft()
            self._pass(at)
            self._cluster.commit([claim], outcome)
            weight = sum(
                self._weights.get((r.driver, r.pool, r.device), 0.0)
                for r in outcome.results[0].devices.results
            )
            self._in_use += weight
            uid = claim.metadata.uid
            heapq.heappush(self._ends, (at + arrival.seconds, self._number, uid, outcome.node, weight))
            self._played.waits.setdefault(arrival.shape.name, []).append(at - arrival.at)


def sizes_of(fleet: FleetObjects, shapes: Sequence[RequestShape]) -> list[float]:
    """Return how many devices a claim of each shape takes on the empty fleet, partitions by their part.

    Raises:
        InvalidInput: a shape asks for something that does not exist, or fits on no empty node.
    """
    cluster = Cluster(slices=fleet.slices, classes=fleet.classes, nodes=fleet.nodes)
    weights, _ = weights_of(fleet)
    sizes = []
    for shape in shapes:
        outcome = allocate(cluster.snapshot, [shape.claim()], ignore_taint=is_controller_taint)
        if not isinstance(outcome, Allocated):
            why = outcome.message if isinstance(outcome, Failed) else outcome.brief()
            raise InvalidInput(f"{shape.name} does not fit on the empty fleet: {why}")
        results = outcome.results[0].devices.results
        sizes.append(sum(weights.get((r.driver, r.pool, r.device), 1.0) for r in results))
    return sizes


def weights_of(fleet: FleetObjects) -> tuple[dict[tuple[str, str, str], float], float]:
    """Return what each device counts for, and the sum of the fleet.

    A device counts 1; a partition counts the part of the memory that it has of the largest device that takes
    from the same counters.
    """
    weights: dict[tuple[str, str, str], float] = {}
    total = 0.0
    largest: dict[tuple[str, str], int] = {}
    every = [(s.spec, d) for s in fleet.slices for d in s.spec.devices]
    for spec, device in every:
        memory = device.capacity.get("memory")
        for consumed in device.consumes_counters:
            key = (spec.pool.name, consumed.counter_set)
            largest[key] = max(largest.get(key, 0), memory.value.nano if memory is not None else 0)
    for spec, device in every:
        memory = device.capacity.get("memory")
        sets = [(spec.pool.name, c.counter_set) for c in device.consumes_counters]
        whole = max((largest[key] for key in sets), default=0)
        weight = memory.value.nano / whole if whole and memory is not None else 1.0
        weights[spec.driver, spec.pool.name, device.name] = weight
        if not sets:
            total += 1
    return weights, total + len(largest)
