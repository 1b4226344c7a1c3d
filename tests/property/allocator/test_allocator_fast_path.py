"""The way over classes of equal nodes gives what solving every node gives."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

import msgspec
from allocator_oracle import allocate_by_scan
from allocator_world import (
    allocated,
    annotated,
    claim,
    device,
    exactly,
    gpu_class,
    names,
    node,
    partitioned_pool,
    pool,
    snapshot,
    takes,
)
from examples import examples
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Budget,
    DoesNotFit,
    Failed,
    IndexUnfinished,
    NodePolicy,
    Outcome,
    PersistentMap,
    PoolPolicy,
    Snapshot,
    Strategy,
    allocate,
)

G = "gpu.example.com"
MODELS = {"small": "24Gi", "middle": "40Gi", "large": "80Gi"}
EXPRESSIONS = [
    f'device.attributes["{G}"].model == "large"',
    f'device.attributes["{G}"].model != "small"',
    f'device.attributes["{G}"].ecc',  # absent on some devices: an error there
    f'device.capacity["{G}"].memory.compareTo(quantity("30Gi")) >= 0',
    f'device.attributes["{G}"].uuid.endsWith("1")',
    f'device.attributes["{G}"].exists(k, k == "ecc")',
    f'"memory" in device.capacity["{G}"]',
    'device.driver == "gpu.example.com"',
]
RULES = st.sampled_from([PoolPolicy(s, n) for s in Strategy for n in NodePolicy])
# Far more than the nodes have columns and devices, and their classes requests.
MOST_PIECES = 1_500
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@st.composite
def gpus(draw: st.DrawFn, where: str) -> list[dict[str, Any]]:
    """Devices of one of a few machines, so that many nodes are equal but for what tells devices apart."""
    kind = draw(st.integers(0, 5))
    count = [4, 4, 2, 3, 3, 4][kind]
    made = []
    for i in range(count):
        model = ["large", "middle", ["large", "small"][i % 2], "small", "middle", "large"][kind]
        attributes: dict[str, Any] = {"model": model, "uuid": f"{where}-{i}", "numaNode": i // 2}
        if kind != 3:
            attributes["nvlinkGroup"] = f"{where}-{i % 2}"
        if kind in (0, 2) or (kind == 1 and i == 0):
            attributes["ecc"] = kind != 2
        fields: dict[str, Any] = {"attributes": attributes}
        if kind == 0 and i == 1:
            attributes["busy"] = True
        if kind == 4:
            fields["allowMultipleAllocations"] = True
        if kind == 5 and i == 0:
            fields["taints"] = [TAINT]
        if kind == 5 and i == 1:
            fields["bindingConditions"] = ["example.com/Ready"]
        made.append(device(f"{where}-gpu-{i}", MODELS[model], **fields))
    return made


@st.composite
def slices_of(draw: st.DrawFn, where: str) -> list[ResourceSlice]:
    match draw(st.integers(0, 9)):
        case 0 | 1:
            parts = [
                device(
                    f"{where}-g{g}-{name}",
                    memory,
                    attributes={"model": name, "uuid": f"{where}-{g}"},
                    consumesCounters=takes(f"g{g}", s=amount),
                )
                for g in range(2)
                for name, memory, amount in (
                    ("whole", "40Gi", "4"),
                    ("half-0", "20Gi", "2"),
                    ("half-1", "20Gi", "2"),
                    ("quarter", "10Gi", "1"),
                )
            ]
            whole = partitioned_pool(where, {"g0": {"s": "4"}, "g1": {"s": "4"}}, *parts)
            return whole if draw(st.integers(0, 9)) else whole[1:]
        case 2:
            shared = pool(where, *draw(gpus(where)))
            other = pool(
                where, device("nic", attributes={"numaNode": 0, "model": "nic"}), driver="nic.example.com"
            )
            return [shared, other]
        case _:
            return [pool(where, *draw(gpus(where)))]


@st.composite
def claims(draw: st.DrawFn, name: str) -> ResourceClaim:
    def one() -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if draw(st.booleans()):
            fields["selectors"] = [{"cel": {"expression": draw(st.sampled_from(EXPRESSIONS))}}]
        if draw(st.integers(0, 2)) == 0:
            fields["memory"] = draw(st.sampled_from(["8Gi", "20Gi", "32Gi", "64Gi"]))
        if draw(st.integers(0, 5)) == 0:
            fields["tolerations"] = [{"operator": "Exists"}]
        return exactly(draw(st.sampled_from([1, 1, 1, 1, 2, 3, None])), **fields)

    requests: list[dict[str, Any]] = []
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        if draw(st.integers(0, 4)) == 0:
            requests.append({"firstAvailable": [{"name": f"s{i}", **one()} for i in range(2)]})
        else:
            requests.append(one())
    if draw(st.integers(0, 9)) == 0:
        requests[0] = exactly(1, adminAccess=True)
    constraints = []
    if draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        name_ = draw(st.sampled_from(["model", "numaNode", "nvlinkGroup"]))
        constraints.append({kind: f"{G}/{name_}"})
    made = claim(name, *requests, constraints=constraints)
    topology = draw(
        st.sampled_from([None, None, None, "required:numaNode", "preferred:nvlinkGroup,preferred:numaNode"])
    )
    return made if topology is None else annotated(made, topology)


@st.composite
def worlds(draw: st.DrawFn) -> list[list[ResourceSlice]]:
    nodes = [draw(slices_of(f"n{i}")) for i in range(draw(st.integers(2, 7)))]
    if draw(st.integers(0, 4)) == 0:
        roaming = [device(f"r{i}", "80Gi", attributes={"model": "large", "uuid": f"r-{i}"}) for i in range(2)]
        nodes.append([pool("roaming", *roaming, nodeName=None, allNodes=True)])
    return nodes


def seen(outcome: Outcome) -> object:
    match outcome:
        case Allocated(where, results):
            return where, [names(r) for r in results], results
        case DoesNotFit():
            return "does not fit"
        case Failed(message, only_this_node, where):
            return message, only_this_node, where


class Change(NamedTuple):
    slices: list[ResourceSlice]
    gone: list[str]


class Nodes(NamedTuple):
    """Nodes change, and one of them goes."""


class Release(NamedTuple):
    which: int


class Question(NamedTuple):
    """A question, with rules for the pools in turns, and another one that is asked in between."""

    pod: list[ResourceClaim]
    rules: list[PoolPolicy]
    without_first: bool
    upkeep: int
    other: Other | None
    how: dict[str, Any]


class Other(NamedTuple):
    """Another question, which nobody waits for, asked once or each time."""

    claim: ResourceClaim
    each_time: bool


@st.composite
def steps_of(draw: st.DrawFn, number: int, nodes: int) -> Change | Nodes | Release | Question:
    match draw(st.integers(0, 9)):
        case 0:
            return Change(draw(slices_of(f"n{draw(st.integers(0, nodes - 1))}")), [])
        case 1:
            return Change([], [draw(st.sampled_from(["n0-gpu.example.com", "n1-0", "n1-1"]))])
        case 2:
            return Nodes()
        case 3 | 4:
            return Release(draw(st.integers(0, 5)))
        case _:
            return draw(questions(number, nodes))


@st.composite
def questions(draw: st.DrawFn, number: int, nodes: int) -> Question:
    pod = [draw(claims(f"c{number}-{k}")) for k in range(draw(st.sampled_from([1, 1, 2])))]
    how: dict[str, Any] = {}
    if draw(st.integers(0, 4)) == 0:
        how["nodes"] = [f"n{k}" for k in range(0, nodes, 2)]
    if draw(st.integers(0, 3)) == 0:
        how["policy"] = NodePolicy.SPREAD
    rules = draw(st.lists(RULES, min_size=1, max_size=8)) if draw(st.integers(0, 7)) < 4 else []
    other = Other(draw(claims("other")), draw(st.booleans())) if draw(st.integers(0, 3)) == 0 else None
    upkeep = draw(st.sampled_from([1, 7, 40, sys.maxsize, sys.maxsize]))
    return Question(pod, rules, draw(st.integers(0, 3)) == 0, upkeep, other, how)


def in_pieces(
    now: Snapshot, pod: list[ResourceClaim], upkeep: int, other: Other | None, **how: Any
) -> Outcome:
    """Ask until there is an answer, each time with so much upkeep."""
    for i in range(MOST_PIECES):
        if other is not None and (other.each_time or i == 0):
            with contextlib.suppress(IndexUnfinished):
                allocate(now, [other.claim], budget=Budget(upkeep_steps=upkeep), **how)
        try:
            return allocate(now, pod, budget=Budget(upkeep_steps=upkeep), **how)
        except IndexUnfinished:
            event("in pieces")
    raise AssertionError("no question gets further")


def same(
    now: Snapshot,
    pod: list[ResourceClaim],
    upkeep: int = sys.maxsize,
    other: Other | None = None,
    **how: Any,
) -> Outcome:
    fast, slow = in_pieces(now, pod, upkeep, other, **how), allocate_by_scan(now, pod, **how)
    event(type(fast).__name__)
    assert seen(fast) == seen(slow)
    if isinstance(fast, DoesNotFit):
        assert isinstance(slow, DoesNotFit)
        assert fast.summary() == slow.summary()
    return fast


@settings(max_examples=examples(250), deadline=None, derandomize=True)
@given(worlds(), st.data())
def test_equal_nodes_solved_once_give_what_every_node_gives(
    world: list[list[ResourceSlice]], data: st.DataObject
) -> None:
    # Everything is drawn before it is known what it leads to, so that any run draws the same.
    steps = [data.draw(steps_of(i, len(world))) for i in range(data.draw(st.integers(1, 7)))]
    now = snapshot(*world, classes=[gpu_class("nic")])
    held: list[tuple[str, Any]] = []
    for step in steps:
        match step:
            case Change(slices, gone):
                now = now.with_slices(slices, gone)
            case Nodes():
                now = now.with_nodes([node("n0", zone="x")], ["n1"])
            case Release(which):
                if held:
                    held.pop(which % len(held))
                    now = now.with_allocated(AllocatedState().with_allocations(held))
            case Question(pod, rules, without_first, upkeep, other, how):
                if rules:
                    cycle = {p: rules[i % len(rules)] for i, p in enumerate(pools_of(now))}
                    used = {p: r for p, r in cycle.items() if not (without_first and p.pool == "n0")}
                    how = {**how, "pools": PersistentMap(used)}
                outcome = same(now, pod, upkeep, other, **how)
                if isinstance(outcome, Allocated):
                    made = zip((str(c.key) for c in pod), outcome.results, strict=True)
                    held += made
                    now = now.with_allocated(AllocatedState().with_allocations(held))


@settings(max_examples=examples(120), deadline=None, derandomize=True)
@given(worlds(), st.lists(claims("c"), min_size=1, max_size=4))
def test_pools_of_one_strategy_are_that_strategy(
    world: list[list[ResourceSlice]], wanted: list[ResourceClaim]
) -> None:
    now = snapshot(*world, classes=[gpu_class("nic")])
    for strategy in Strategy:
        rules: PersistentMap[PoolID, PoolPolicy] = PersistentMap(
            {p: PoolPolicy(strategy) for p in pools_of(now)}
        )
        for one in wanted:
            assert seen(allocate(now, [one], pools=rules)) == seen(allocate(now, [one], strategy=strategy))


@settings(max_examples=examples(120), deadline=None, derandomize=True)
@given(worlds(), st.lists(claims("c"), min_size=1, max_size=5), st.lists(RULES, min_size=1, max_size=7))
def test_what_fits_does_not_depend_on_the_strategies_of_pools(
    world: list[list[ResourceSlice]], wanted: list[ResourceClaim], cycle: list[PoolPolicy]
) -> None:
    now = snapshot(*world, classes=[gpu_class("nic")])
    taken: list[ResourceClaim] = []
    rules: PersistentMap[PoolID, PoolPolicy] = PersistentMap(
        {p: cycle[i % len(cycle)] for i, p in enumerate(pools_of(now))}
    )
    for number, drawn in enumerate(wanted):
        meta = msgspec.structs.replace(drawn.metadata, name=f"c{number}", uid=f"uid-{number}")
        one = msgspec.structs.replace(drawn, metadata=meta)
        outcome = allocate(now, [one], pools=rules)
        best = allocate(now, [one])
        # An error of Kubernetes' search counts only where nothing else answers, as with best fit.
        if not isinstance(outcome, Failed):
            assert type(outcome) is type(best)
        if not isinstance(outcome, Allocated):
            continue
        used = {PoolID(r.driver, r.pool) for r in outcome.results[0].devices.results}
        present = {p.id for p in now.view(outcome.node).pools}
        if all(rules[p].strategy is Strategy.FIRST_FIT for p in present):
            event("first fit")
            alone = allocate(now, [one], strategy=Strategy.FIRST_FIT, nodes=[outcome.node])
            assert seen(alone) == seen(outcome)
        elif not any(rules[p].strategy is Strategy.FIRST_FIT for p in present):
            event("best fit")
            here: PersistentMap[PoolID, PoolPolicy] = PersistentMap({p: rules[p] for p in present})
            alone = allocate(now, [one], pools=here, nodes=[outcome.node])
            assert seen(alone) == seen(outcome)
        else:
            event(f"both on the node, {len(used)} used")
        taken.append(allocated(one, outcome.results[0]))
        now = now.with_allocated(AllocatedState.from_claims(taken))


def pools_of(now: Snapshot) -> list[PoolID]:
    return sorted({p.id for name in now.nodes for p in now.view(name).pools})


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(worlds(), st.lists(claims("c"), min_size=2, max_size=4))
def test_an_older_snapshot_gives_its_own_answers(
    world: list[list[ResourceSlice]], wanted: list[ResourceClaim]
) -> None:
    """Snapshots share what they know; each is answered for itself, in any order."""
    line = [snapshot(*world)]
    for one in wanted:
        outcome = allocate(line[-1], [one])
        if isinstance(outcome, Allocated):
            made = [(str(one.key), outcome.results[0])]
            line.append(line[-1].with_allocated(line[-1].allocated.with_allocations(made)))
    for now in (*reversed(line), *line):
        for one in wanted:
            same(now, [one])
