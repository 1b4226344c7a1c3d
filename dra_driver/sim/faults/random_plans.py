"""Random plans: the same seed gives the same plan, whose text can be kept if it finds a bug."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dra_driver.sim.faults.plan import (
    Drop,
    Error,
    Expire,
    Fault,
    FaultPlan,
    FullDisk,
    Jump,
    Kill,
    Latency,
    Lose,
    Reset,
    Stall,
    Target,
    Timing,
    Traffic,
)

__all__ = ["random_plan"]

_Maker = Callable[[random.Random, float, tuple[str, ...]], Fault]

_CODES = (409, 429, 500, 503, 504)
_WRITES = ("create", "update", "patch", "apply", "delete")


def random_plan(
    seed: int,
    *,
    seconds: float = 10.0,
    faults: int = 6,
    agents: Sequence[str] = (),
    nodes: Sequence[str] = (),
    processes: bool = False,
) -> FaultPlan:
    """Return a plan whose every fault is over after ``seconds``; the cluster must recover afterwards.

    Args:
        seed: seed of the plan, and of what happens by chance in it.
        seconds: time after which all faults are over.
        faults: number of statements.
        agents: prefixes of the ``User-Agent`` whose requests are disturbed; all clients if empty.
        nodes: names of the nodes whose plugins and kubelets are killed and whose disks are filled.
        processes: whether the controller and the API server are killed, too.
    """
    # Not for secrets.
    rng = random.Random(seed)  # noqa: S311
    makers: list[_Maker] = [_request, _request, _request, _watch, _watch, _jump]
    makers += [_process(nodes, controller=processes)] * 2 if nodes or processes else []
    made = tuple(rng.choice(makers)(rng, seconds, tuple(agents)) for _ in range(faults))
    return FaultPlan(made, seed)


def _span(rng: random.Random, seconds: float) -> Timing:
    at = round(rng.uniform(0, seconds * 0.7), 2)
    return Timing(at=at, duration=round(rng.uniform(0.1, max(0.2, seconds - at)), 2))


def _moments(rng: random.Random, seconds: float) -> Timing:
    at = round(rng.uniform(0.1, seconds * 0.7), 2)
    return Timing(at=at, every=round(rng.uniform(0.3, seconds / 2 + 0.3), 2), until=round(seconds + 0.1, 2))


def _request(rng: random.Random, seconds: float, agents: tuple[str, ...]) -> Fault:
    verbs = tuple(sorted(rng.sample(_WRITES, rng.randint(1, len(_WRITES)))))
    if rng.random() < 0.4:
        verbs = ()
    traffic = Traffic(verbs, (), agents, float(rng.choice((10, 25, 50, 100))))
    timing = _span(rng, seconds)
    match rng.randrange(5):
        case 0:
            low = round(rng.uniform(0.01, 0.2), 2)
            return Latency(low, round(low + rng.uniform(0, 0.5), 2), traffic, timing)
        case 1:
            return Reset(traffic, timing)
        case 2:
            return Lose(traffic, timing)
        case _:
            return Error(rng.choice(_CODES), traffic, timing)


def _watch(rng: random.Random, seconds: float, agents: tuple[str, ...]) -> Fault:
    traffic = Traffic(("watch",), (), agents)
    match rng.randrange(4):
        case 0:
            return Stall(traffic, _span(rng, seconds))
        case 1:
            return Expire(Traffic(("watch",)), _moments(rng, seconds))
        case _:
            return Drop(traffic, _moments(rng, seconds))


def _jump(rng: random.Random, seconds: float, agents: tuple[str, ...]) -> Fault:
    jump = rng.choice((-3600.0, -30.0, -5.0, 5.0, 30.0, 3600.0))
    return Jump(jump, Timing(at=round(rng.uniform(0.1, seconds * 0.9), 2)))


def _process(nodes: Sequence[str], *, controller: bool) -> _Maker:
    targets = [Target(part, node) for node in nodes for part in ("plugin", "kubelet")]
    targets += [Target("controller"), Target("apiserver")] if controller else []

    def make(rng: random.Random, seconds: float, agents: tuple[str, ...]) -> Fault:
        timing = _span(rng, seconds)
        if nodes and rng.random() < 0.3:
            return FullDisk(rng.choice(nodes), timing)
        return Kill(rng.choice(targets), timing)

    return make
