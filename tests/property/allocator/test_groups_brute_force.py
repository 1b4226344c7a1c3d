"""Groups against an exhaustive search: served where that is possible, on as few nodes as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from allocator_world import Checker, node, snapshot
from brute_force import MODELS, SmallCluster, Wish, fewest_nodes, random_group, random_world, within
from builders import DRIVER
from examples import share

from dra_driver.api.meta import PoolName
from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import (
    AllocatedState,
    DeviceID,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Snapshot,
    allocate_group,
)

_GROUPS_PER_CLUSTER = 5


def cluster(world: SmallCluster, racks: dict[str, str]) -> Snapshot:
    """The cluster with its racks, and what others hold."""
    held = [(DeviceID(DRIVER, PoolName(t.node), t.name), "default/holder") for t in world.taken]
    nodes = [node(name, rack=rack) for name, rack in racks.items()]
    now = snapshot(*world.slices, nodes=nodes)
    return now.with_allocated(AllocatedState().with_devices(held))


def wrong_with(
    world: SmallCluster, members: Sequence[Sequence[ResourceClaim]], found: GroupAllocated
) -> list[str]:
    """Everything that is wrong with an answer, if nothing else were allocated."""
    wrong: list[str] = []
    for name in found.nodes:
        on_it = [i for i, m in enumerate(found.members) if m is not None and m.node == name]
        claims = [c for i in on_it for c in members[i]]
        results = [r for i in on_it if (m := found.members[i]) is not None for r in m.results]
        wrong += Checker(world.slices, []).problems(name, claims, results)
    held = {(t.node, t.name) for t in world.taken}
    given = {(r.pool, r.device) for m in found.members if m for x in m.results for r in x.devices.results}
    return wrong + [f"{device} is in use" for device in given & held]


@dataclass(frozen=True)
class Case:
    """A group on a cluster, with what it asks of topology.

    Attributes:
        level: "rack" (a label), "model" (an attribute of devices), or empty.
        least: number of members that must fit.
    """

    world: SmallCluster
    racks: dict[str, str]
    group: Sequence[Sequence[Wish]]
    level: str
    required: bool
    least: int

    @property
    def levels(self) -> list[Level]:
        match self.level:
            case "rack":
                return [Level(label="rack", required=self.required)]
            case "model":
                return [Level(attribute="gpu.example.com/model", required=self.required)]
            case _:
                return []

    def domains(self) -> list[SmallCluster]:
        """The parts of the cluster of which one has to hold the group."""
        nodes = self.world.nodes
        match self.level:
            case "rack":
                values = sorted(set(self.racks.values()))
                return [within(self.world, [n for n in nodes if self.racks[n] == v]) for v in values]
            case "model":
                return [within(self.world, nodes, model) for model in MODELS]
            case _:
                return [self.world]

    def fewest(self, members: int) -> int | None:
        """On how few nodes of a domain the first members fit; None if they do not."""
        found = [fewest_nodes(domain, self.group[:members]) for domain in self.domains()]
        return min((f for f in found if f is not None), default=None)


def differences(seed: int, cases: int) -> list[str]:
    """The cases in which the answer for a group is wrong."""
    random = Random(seed)
    found: list[str] = []
    for number in range(cases):
        if number % _GROUPS_PER_CLUSTER == 0:
            world = random_world(random)
            racks = {name: random.choice("ab") for name in world.nodes}
            now = cluster(world, racks)
        group = random_group(random)
        level = random.choice(("", "", "rack", "model"))
        least = random.randint(1, len(group)) if random.random() < 0.3 else len(group)
        case = Case(world, racks, group, level, random.random() < 0.7, least)
        problem = _difference(case, now)
        if problem:
            found.append(f"{problem}: {case}")
    return found


def _difference(case: Case, now: Snapshot) -> str:
    members = [[w.made(f"m{i}-{k}") for k, w in enumerate(wishes)] for i, wishes in enumerate(case.group)]
    group = [GroupMember(tuple(m)) for m in members]
    outcome = allocate_group(now, group, levels=case.levels, least=case.least)
    insisted = case if case.required else replace(case, level="")
    numbers = range(len(members), case.least - 1, -1)
    most = next((n for n in numbers if insisted.fewest(n) is not None), None)
    if isinstance(outcome, GroupRefused):
        if most is not None:
            return f"refused ({outcome.summary()}), though {most} members fit"
        where = insisted if outcome.level is not None else replace(case, level="")
        held = next((n for n in range(case.least, 0, -1) if where.fewest(n) is not None), 0)
        return "" if outcome.held == held else f"{held} members fit, the refusal says {outcome.held}"
    assert isinstance(outcome, GroupAllocated), outcome
    if wrong := wrong_with(case.world, members, outcome):
        return f"wrong: {wrong}"
    served = sum(m is not None for m in outcome.members)
    if served != most or None in outcome.members[:served]:
        return f"{served} members are served, {most} fit"
    fewest = case.fewest(served)
    if case.level and outcome.domains[0]:
        given = {
            (r.pool, r.device) for m in outcome.members if m for x in m.results for r in x.devices.results
        }
        if not any(given <= {(t.node, t.name) for t in domain.things} for domain in case.domains()):
            return "not all in one domain"
    if case.level and bool(outcome.domains[0]) != (fewest is not None):
        return f"domain {outcome.domains}, fewest nodes in one {fewest}"
    want = fewest if fewest is not None else insisted.fewest(served)
    alternatives = any(len(request) > 1 for wishes in case.group for w in wishes for request in w.requests)
    # With alternatives, earlier ones are worth more nodes.
    have = len(outcome.nodes)
    return "" if have == want or alternatives else f"{have} nodes in place of {want}"


@pytest.mark.parametrize("seed", share(range(3), 1))
def test_a_group_is_served_where_that_is_possible_on_as_few_nodes_as_possible(seed: int) -> None:
    assert differences(seed, 150) == []


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_group_is_served_where_that_is_possible_in_20_000_cases(seed: int) -> None:
    assert differences(seed, 2_000) == []
