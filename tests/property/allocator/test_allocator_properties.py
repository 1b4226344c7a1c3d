"""Properties of the allocator over small random clusters."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from allocator_world import (
    Checker,
    allocated,
    claim,
    device,
    exactly,
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
    DoesNotFit,
    Failed,
    PersistentMap,
    PoolPolicy,
    Strategy,
    allocate,
)

MEMORY = st.sampled_from(["10Gi", "24Gi", "40Gi", "80Gi"])
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@st.composite
def plain_device(draw: st.DrawFn, name: str) -> dict[str, Any]:
    attributes: dict[str, str | int] = {"model": draw(st.sampled_from(["a", "b"]))}
    numa = draw(st.sampled_from([0, 1, None]))
    if numa is not None:
        attributes["numaNode"] = numa
    fields: dict[str, Any] = {"attributes": attributes}
    if draw(st.integers(0, 4)) == 0:
        fields["taints"] = [TAINT]
    if draw(st.integers(0, 3)) == 0:
        fields["allowMultipleAllocations"] = True
    return device(name, draw(MEMORY), **fields)


@st.composite
def one_pool(draw: st.DrawFn, node: str) -> list[ResourceSlice]:
    if draw(st.integers(0, 3)) == 0:
        partitions = [
            device(f"p{i}", f"{10 * n}Gi", attributes={"model": "p"}, consumesCounters=takes("cs", s=str(n)))
            for i, n in enumerate(draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4)))
        ]
        return partitioned_pool(node, {"cs": {"s": "4"}}, *partitions)
    return [pool(node, *(draw(plain_device(f"d{i}")) for i in range(draw(st.integers(1, 4)))))]


@st.composite
def one_request(draw: st.DrawFn, *, sub: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["memory"] = draw(MEMORY)
    if draw(st.integers(0, 2)) == 0:
        fields["tolerations"] = [{"operator": "Exists"}]
    if not sub and draw(st.integers(0, 5)) == 0:
        fields["adminAccess"] = True
    return exactly(draw(st.sampled_from([1, 1, 1, 2, 2, 3, None])), **fields)


@st.composite
def one_claim(draw: st.DrawFn, name: str) -> ResourceClaim:
    requests: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.integers(0, 3)) == 0:
            subs = [{"name": f"s{i}", **draw(one_request(sub=True))} for i in range(draw(st.integers(1, 2)))]
            requests.append({"firstAvailable": subs})
        else:
            requests.append(draw(one_request()))
    constraints = []
    if draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        constraints.append({kind: f"gpu.example.com/{draw(st.sampled_from(['model', 'numaNode']))}"})
    return claim(name, *requests, constraints=constraints)


@st.composite
def cluster(draw: st.DrawFn) -> list[ResourceSlice]:
    return [s for i in range(draw(st.integers(1, 3))) for s in draw(one_pool(f"n{i}"))]


@st.composite
def pods(draw: st.DrawFn) -> list[list[ResourceClaim]]:
    return [
        [draw(one_claim(f"c{p}-{c}")) for c in range(draw(st.integers(1, 2)))]
        for p in range(draw(st.integers(1, 3)))
    ]


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(cluster(), pods(), st.sampled_from(Strategy))
def test_every_allocation_is_valid(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]], strategy: Strategy
) -> None:
    now = snapshot(*slices)
    taken: list[ResourceClaim] = []
    for pod in arriving:
        outcome = allocate(now, pod, strategy=strategy)
        event(type(outcome).__name__)
        if not isinstance(outcome, Allocated):
            continue
        checker = Checker(slices, taken)
        assert checker.problems(outcome.node, pod, outcome.results) == []
        taken += [allocated(c, r) for c, r in zip(pod, outcome.results, strict=True)]
        now = now.with_allocated(AllocatedState.from_claims(taken))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(cluster(), pods(), st.sampled_from(Strategy), st.data())
def test_a_refusal_says_later_what_it_would_have_said_at_once(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]], strategy: Strategy, data: st.DataObject
) -> None:
    """Whatever the caller has given is changed in between, as far as Python lets it."""
    now = snapshot(*slices)
    known = sorted({PoolID(s.spec.driver, s.spec.pool.name) for s in slices})
    usable = data.draw(st.sets(st.sampled_from(known)))
    for pod in arriving:
        claims, nodes = list(pod), {"n0", "n1"}
        pools: PersistentMap[PoolID, PoolPolicy] = PersistentMap((p, PoolPolicy(strategy)) for p in usable)
        withheld = {p: "allocated by somebody else" for p in known if p not in usable}
        at_once, later = (
            allocate(now, claims, strategy=strategy, nodes=nodes, pools=pools, withheld=withheld)
            for _ in range(2)
        )
        assert type(at_once) is type(later)
        event(type(later).__name__)
        if not isinstance(at_once, DoesNotFit) or not isinstance(later, DoesNotFit):
            continue
        said = at_once.summary(holders=True), at_once.brief(), at_once.reasons
        claims.clear()
        nodes ^= {"n0", "n2"}
        withheld.clear()
        assert (later.summary(holders=True), later.brief(), later.reasons) == said


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(cluster(), pods(), st.lists(st.sampled_from(Strategy), min_size=3, max_size=3))
def test_pools_of_both_strategies_serve_what_one_strategy_serves(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]], strategies: list[Strategy]
) -> None:
    now = snapshot(*slices)
    rules: PersistentMap[PoolID, PoolPolicy] = PersistentMap(
        {
            PoolID(s.spec.driver, s.spec.pool.name): PoolPolicy(strategies[int(s.spec.pool.name[1:])])
            for s in slices
        }
    )
    taken: list[ResourceClaim] = []
    for pod in arriving:
        outcome, best = allocate(now, pod, pools=rules), allocate(now, pod)
        event(type(outcome).__name__)
        if isinstance(outcome, Failed):
            continue  # the search of Kubernetes ends in an error, where best fit looks further
        assert type(outcome) is type(best)
        if not isinstance(outcome, Allocated):
            continue
        assert Checker(slices, taken).problems(outcome.node, pod, outcome.results) == []
        taken += [allocated(c, r) for c, r in zip(pod, outcome.results, strict=True)]
        now = now.with_allocated(AllocatedState.from_claims(taken))


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(cluster(), pods())
def test_best_fit_finds_something_wherever_first_fit_does(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]]
) -> None:
    now = snapshot(*slices)
    for pod in arriving:
        for node in now.nodes:
            first = allocate(now, pod, strategy=Strategy.FIRST_FIT, nodes=[node])
            best = allocate(now, pod, strategy=Strategy.BEST_FIT, nodes=[node])
            if isinstance(first, Failed):
                assert not isinstance(best, DoesNotFit)
            else:
                assert type(first) is type(best)
        outcome = allocate(now, pod)
        if isinstance(outcome, Allocated):
            made = zip((str(c.key) for c in pod), outcome.results, strict=True)
            now = now.with_allocated(now.allocated.with_allocations(made))


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(cluster(), pods())
def test_allocating_and_freeing_restores_the_state(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]]
) -> None:
    start = snapshot(*slices)
    before = [allocate(start, pod) for pod in arriving]
    for pod, outcome in zip(arriving, before, strict=True):
        if isinstance(outcome, Allocated):
            made = [allocated(c, r) for c, r in zip(pod, outcome.results, strict=True)]
            allocate(start.with_allocated(AllocatedState.from_claims(made)), pod)
    after = [allocate(start.with_allocated(AllocatedState()), pod) for pod in arriving]
    assert [o for o in before if isinstance(o, Allocated)] == [o for o in after if isinstance(o, Allocated)]


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(cluster(), pods(), st.randoms(use_true_random=False))
def test_the_order_in_which_objects_arrive_does_not_matter(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]], random: Any
) -> None:
    shuffled = list(slices)
    random.shuffle(shuffled)
    for pod in arriving:
        one, other = allocate(snapshot(*slices), pod), allocate(snapshot(*shuffled), pod)
        assert type(one) is type(other)
        if isinstance(one, Allocated):
            assert one == other


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(st.lists(st.tuples(MEMORY, st.booleans()), min_size=1, max_size=8), MEMORY)
def test_a_single_device_is_the_smallest_that_fits(gpus: list[tuple[str, bool]], asked: str) -> None:
    def size(text: str) -> int:
        return int(text.removesuffix("Gi"))

    slices = [pool(f"n{i}", device("d", memory)) for i, (memory, _) in enumerate(gpus)]
    holder = claim("holder", exactly())
    taken = []
    for i, (_, busy) in enumerate(gpus):
        if busy:
            outcome = allocate(snapshot(*slices), [holder], nodes=[f"n{i}"])
            assert isinstance(outcome, Allocated)
            taken.append(allocated(holder, outcome.results[0]))
    free = [size(memory) for memory, busy in gpus if not busy and size(memory) >= size(asked)]
    outcome = allocate(snapshot(*slices, taken=taken), [claim("c", exactly(memory=asked))])
    if free:
        assert isinstance(outcome, Allocated)
        assert size(gpus[int(outcome.node[1:])][0]) == min(free)
    else:
        assert isinstance(outcome, DoesNotFit)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(MEMORY, st.sampled_from("ab")), min_size=2, max_size=6),
    st.lists(MEMORY, min_size=2, max_size=3),
    st.booleans(),
)
def test_several_devices_leave_as_little_unused_as_possible(
    gpus: list[tuple[str, str]], asked: list[str], same_model: bool
) -> None:
    def size(text: str) -> int:
        return int(text.removesuffix("Gi"))

    devices = [device(f"d{i}", memory, attributes={"model": m}) for i, (memory, m) in enumerate(gpus)]
    constraints = [{"matchAttribute": "gpu.example.com/model"}] if same_model else []
    wanted = claim("c", *(exactly(memory=amount) for amount in asked), constraints=constraints)
    possible = [
        sum(size(memory) for memory, _ in chosen)
        for chosen in permutations(gpus, len(asked))
        if all(size(has) >= size(want) for (has, _), want in zip(chosen, asked, strict=True))
        and (not same_model or len({m for _, m in chosen}) == 1)
    ]
    outcome = allocate(snapshot(pool("n", *devices)), [wanted])
    assert isinstance(outcome, Allocated) == bool(possible)
    if isinstance(outcome, Allocated):
        taken = [int(r.device[1:]) for r in outcome.results[0].devices.results]
        assert sum(size(gpus[i][0]) for i in taken) == min(possible)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(cluster(), pods())
def test_a_refusal_always_has_reasons(
    slices: list[ResourceSlice], arriving: list[list[ResourceClaim]]
) -> None:
    now = snapshot(*slices)
    for pod in arriving:
        outcome = allocate(now, pod)
        if isinstance(outcome, DoesNotFit):
            assert {r.node for r in outcome.reasons} == set(now.nodes)
            assert all(r.exclusions for r in outcome.reasons)
            assert outcome.summary().startswith(f"{outcome.headline}: ")
