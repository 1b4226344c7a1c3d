"""What an index of all nodes costs: no question pays for it, and it can be built in pieces."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allocator_world import claim, device, exactly, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import (
    Allocated,
    Budget,
    DoesNotFit,
    Failed,
    GroupAllocated,
    GroupMember,
    IndexUnfinished,
    NodePolicy,
    Outcome,
    PersistentMap,
    PoolID,
    PoolPolicy,
    Snapshot,
    allocate,
    allocate_group,
    prepare,
)
from dra_driver.structured.index.fleet import Bounds, Fleet

DOMAIN = "gpu.example.com"
OF = f'device.attributes["{DOMAIN}"]'
NODES = 120


def selected(expression: str, count: int | None = 1) -> dict[str, Any]:
    return exactly(count, selectors=[{"cel": {"expression": expression}}])


def gpus(n: int) -> list[dict[str, Any]]:
    shared = {"model": "large" if n == NODES - 1 else "small", "rack": f"r{n % 7}", "zone": f"z{n % 3}"}
    return [device(f"gpu-{k}", "40Gi", attributes={**shared, "uuid": f"GPU-{n:03}-{k}"}) for k in range(2)]


def whole_gpus() -> Snapshot:
    cluster = snapshot(*(pool(f"n{n:03}", *gpus(n)) for n in range(NODES)))
    prepare(cluster)
    return cluster


def partitions() -> Snapshot:
    def parts(n: int) -> list[dict[str, Any]]:
        return [
            device(
                f"p{k}", "10Gi", attributes={"profile": "1g", "n": n % 5}, consumesCounters=takes("g", s="1")
            )
            for k in range(2)
        ]

    cluster = snapshot(*(partitioned_pool(f"n{n:03}", {"g": {"s": "2"}}, *parts(n)) for n in range(NODES)))
    prepare(cluster)
    return cluster


LARGE = claim("large", selected(f'{OF}.model == "large"'))
SAME_RACK = [{"matchAttribute": f"{DOMAIN}/rack"}]
KINDS: dict[str, tuple[Callable[[], Snapshot], ResourceClaim]] = {
    "single": (whole_gpus, LARGE),
    "several": (whole_gpus, claim("two", exactly(2), constraints=SAME_RACK)),
    "all": (whole_gpus, claim("all", selected(f'{OF}.model != ""', None))),
    "partition": (partitions, claim("part", selected(f'{OF}.profile == "1g"'))),
    "a serial number": (whole_gpus, claim("serial", selected(f'{OF}.uuid.endsWith("{NODES - 1}-1")'))),
    "everything": (whole_gpus, claim("every", selected(f'{OF}.exists(k, k == "uuid")'))),
}


def in_pieces(
    cluster: Snapshot, wanted: ResourceClaim, upkeep: int = 40
) -> Iterator[Outcome | IndexUnfinished]:
    """What a question is answered that is asked until there is an answer."""
    for _ in range(1_000):
        try:
            yield allocate(cluster, [wanted], budget=Budget(400, upkeep_steps=upkeep))
            return
        except IndexUnfinished as e:
            yield e


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_question_of_a_kind_does_not_pay_for_the_index(kind: str) -> None:
    made, wanted = KINDS[kind]
    # Far less than a step for each node and column.
    outcome = allocate(made(), [wanted], budget=Budget(2 * NODES))
    assert isinstance(outcome, Allocated), outcome
    assert outcome == allocate(made(), [wanted])


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_not_known_yet_is_neither_a_refusal_nor_given_up(kind: str) -> None:
    made, wanted = KINDS[kind]
    outcomes = list(in_pieces(made(), wanted))
    assert len(outcomes) > 3
    assert all(isinstance(o, IndexUnfinished) for o in outcomes[:-1])
    assert outcomes[-1] == allocate(made(), [wanted])


def test_what_is_not_known_yet_says_how_far_it_is() -> None:
    *unfinished, _ = in_pieces(whole_gpus(), KINDS["several"][1])
    left = [e.left for e in unfinished if isinstance(e, IndexUnfinished)]
    assert left[-1] < left[0] < NODES
    done = NODES - left[0]
    text = f"the allocator is still preparing its index of 120 nodes for such claims, {done} of them are done"
    assert str(unfinished[0]) == text


def test_upkeep_does_not_use_up_the_seconds_of_a_question() -> None:
    ticks = itertools.count()
    budget = Budget(seconds=8.0, clock=lambda: float(next(ticks)))
    assert isinstance(allocate(whole_gpus(), [LARGE], budget=budget), Allocated)
    assert next(ticks) > 12
    assert budget.seconds < 8


def test_upkeep_ends_by_the_clock() -> None:
    ticks = itertools.count()
    cluster = whole_gpus()
    with pytest.raises(IndexUnfinished):
        allocate(
            cluster, [LARGE], budget=Budget(clock=lambda: next(ticks) / 10, seconds=1e9, upkeep_seconds=0.5)
        )
    assert next(ticks) < 20
    # Without any, nothing is done.
    with pytest.raises(IndexUnfinished):
        allocate(cluster, [LARGE], budget=Budget(clock=lambda: 0.0, upkeep_seconds=0.0))


def test_a_group_waits_for_the_index_as_well() -> None:
    cluster = whole_gpus()
    members = [GroupMember((claim(f"m{i}", selected(f'{OF}.rack == "r3"')),)) for i in range(3)]
    with pytest.raises(IndexUnfinished):
        allocate_group(cluster, members, budget=Budget(upkeep_steps=40))
    for _ in range(100):
        try:
            found = allocate_group(cluster, members, budget=Budget(upkeep_steps=40))
        except IndexUnfinished:
            continue
        assert isinstance(found, GroupAllocated)
        return
    raise AssertionError("it gets no further")


def test_one_index_is_built_at_a_time_and_each_is_finished() -> None:
    cluster = whole_gpus()
    # Each needs an index of its own; none of these questions is asked again.
    for i in range(30):
        other = claim(f"c{i}", selected(f'{OF}.uuid.endsWith("{i}-0")'))
        with pytest.raises(IndexUnfinished):
            allocate(cluster, [other], budget=Budget(upkeep_steps=5))
    kept = cluster.memory.of(Fleet)
    assert len(kept._indexes) <= 2
    assert isinstance(list(in_pieces(cluster, LARGE))[-1], Allocated)
    assert isinstance(list(in_pieces(cluster, KINDS["a serial number"][1]))[-1], Allocated)


def asked_by(owner: str, cluster: Snapshot, suffix: str, upkeep: int) -> Outcome:
    """Ask for a device by the end of its serial number, which needs an index of its own."""
    wanted = claim(f"c-{suffix}", selected(f'{OF}.uuid.endsWith("{suffix}")'))
    return allocate(cluster, [wanted], budget=Budget(upkeep_steps=upkeep, owner=owner))


def test_the_index_of_one_owner_does_not_wait_for_those_of_others() -> None:
    """Before, whoever asked for a new kind of device waited for all indexes that a tenant had begun."""
    cluster = whole_gpus()
    kept, pieces = cluster.memory.of(Fleet), 0
    for i in range(1_000):
        for tenant in range(3):
            with contextlib.suppress(IndexUnfinished):
                asked_by(f"tenant-{tenant}", cluster, f"{i}-0", 20)
        assert len(kept._building) <= 4
        pieces += 1
        with contextlib.suppress(IndexUnfinished):
            assert isinstance(asked_by("honest", cluster, "7-1", 20), Allocated)
            break
    # As many as it takes alone.
    alone = whole_gpus()
    wanted = claim("c", selected(f'{OF}.uuid.endsWith("7-1")'))
    assert pieces <= 1 + sum(1 for _ in in_pieces(alone, wanted, upkeep=20))


def test_few_indexes_are_built_at_the_same_time() -> None:
    cluster = whole_gpus()
    kept = cluster.memory.of(Fleet)
    for i in range(40):
        with pytest.raises(IndexUnfinished):
            asked_by(f"tenant-{i}", cluster, f"{i}-0", 5)
    assert len(kept._building) == 8
    # And one at a time where there is no room.
    cluster = whole_gpus()
    kept = cluster.memory.of(Fleet)
    kept._bounds = Bounds(indexes=-(1 << 20))
    for i in range(40):
        with pytest.raises(IndexUnfinished):
            asked_by(f"tenant-{i}", cluster, f"{i}-0", 5)
    assert len(kept._building) == 1


def test_owners_that_need_the_same_index_build_it_together() -> None:
    cluster = whole_gpus()
    assert isinstance(list(in_pieces(cluster, LARGE))[-1], Allocated)  # one to be extended
    wanted = {
        f"t{i}": claim(f"c{i}", selected(f'{OF}.{name} != "x"')) for i, name in enumerate(("rack", "zone"))
    }
    wanted["t2"] = wanted["t0"]
    left = dict(wanted)
    for _ in range(1_000):
        for owner, one in list(left.items()):
            with contextlib.suppress(IndexUnfinished):
                found = allocate(cluster, [one], budget=Budget(upkeep_steps=20, owner=owner))
                assert isinstance(found, Allocated)
                del left[owner]
    assert not left
    assert not cluster.memory.of(Fleet)._building
    for one in wanted.values():
        assert allocate(cluster, [one]) == allocate(whole_gpus(), [one])


def test_an_index_that_is_being_built_does_not_make_room_for_others() -> None:
    cluster, wanted = whole_gpus(), KINDS["a serial number"][1]
    rules: PersistentMap[PoolID, PoolPolicy] = PersistentMap(
        {p.id: PoolPolicy() for name in cluster.nodes for p in cluster.view(name).pools}
    )
    for pools in (None, rules):
        for name in ("rack", "zone", "model"):
            allocate(cluster, [claim(name, selected(f'{OF}.{name} != "x"'))], pools=pools)
    kept = cluster.memory.of(Fleet)
    pieces = in_pieces(cluster, wanted)
    while not kept._building:
        next(pieces)
    assert len(kept._indexes) == 3
    # From now on there is no room for any.
    kept._bounds = Bounds(indexes=-(1 << 20))
    for _ in pieces:
        assert sum(kept._building.owner(index) is not None for index in kept._indexes.values()) <= 1
    assert len(kept._indexes) < 3
    assert isinstance(allocate(cluster, [wanted]), Allocated)


def test_other_claims_are_answered_while_an_index_is_being_built() -> None:
    cluster = whole_gpus()
    building = 0
    for _ in in_pieces(cluster, KINDS["a serial number"][1]):
        building += len(cluster.memory.of(Fleet)._building)
        found = allocate(cluster, [claim("any", exactly())], budget=Budget(upkeep_steps=20))
        assert isinstance(found, Allocated)
    assert building > 3
    for i, _ in enumerate(in_pieces(cluster, LARGE)):
        # Not known yet, so that an index is looked for.
        other = claim("other", exactly(1, f"{i + 1}Mi"))
        found = allocate(cluster, [other], budget=Budget(upkeep_steps=20))
        assert isinstance(found, Allocated)


def test_attributes_that_no_device_has_need_no_index() -> None:
    cluster = whole_gpus()
    for i in range(50):
        absent = claim("c", selected(f"!has({OF}.n{i})"), constraints=[{"matchAttribute": f"{DOMAIN}/m{i}"}])
        # Compiling is the question's own work.
        budget = Budget(upkeep_steps=20)
        assert isinstance(allocate(cluster, [absent], budget=budget), DoesNotFit)
    assert len(cluster.memory.of(Fleet)._indexes) == 1


def test_an_attribute_that_a_device_gets_later_is_seen() -> None:
    cluster = whole_gpus()
    has = claim("has", selected(f'has({OF}.fresh) && {OF}.fresh == "yes"'))
    equal = claim("equal", exactly(2), constraints=[{"matchAttribute": f"{DOMAIN}/fresh"}])
    for wanted in (has, equal):
        assert isinstance(allocate(cluster, [wanted]), DoesNotFit)
    fresh = [device(f"gpu-{k}", "40Gi", attributes={"fresh": "yes"}) for k in range(2)]
    changed = cluster.with_slices([pool("n007", *fresh)])
    for wanted in (has, equal):
        outcome = allocate(changed, [wanted])
        assert isinstance(outcome, Allocated)
        assert outcome.node == "n007"


def test_a_larger_device_does_not_build_every_index_anew() -> None:
    cluster = whole_gpus()
    allocate(cluster, [LARGE])
    grown = cluster.with_slices([pool("n003", device("gpu-0", "80Gi", attributes={"model": "large"}))])
    budget = Budget(upkeep_steps=40)
    assert isinstance(allocate(grown, [claim("huge", exactly(1, "60Gi"))], budget=budget), Allocated)
    assert isinstance(allocate(grown, [LARGE], budget=Budget(upkeep_steps=40)), Allocated)


def test_a_capacity_that_only_absent_devices_have_costs_nothing_until_they_are_back() -> None:
    def accelerator(cores: str) -> list[Any]:
        amounts = {"memory": {"value": "20Gi"}, "cores": {"value": cores}}
        return [pool("n0", device("gpu-0", capacity=amounts))]

    small = pool("n1", device("gpu-0", "40Gi"))
    never = snapshot([small]).with_nodes([node("n0")])
    there = never.with_slices(accelerator("8"))
    gone = there.with_slices([], ["n0-gpu.example.com"])
    allocate(there, [claim("one", exactly(1, "8Gi"))])
    # What is known of the accelerator is kept. An older snapshot has never had a device with cores.
    for without in (gone, never):
        for amount in ("10Gi", "15Gi"):
            outcome = allocate(without, [claim("c", exactly(1, amount))])
            assert isinstance(outcome, Allocated)
            assert outcome.node == "n1"
    for cores in ("8", "900"):
        back = gone.with_slices(accelerator(cores))
        for amount in ("10Gi", "15Gi"):
            wanted = claim("c", exactly(1, amount))
            outcome = allocate(back, [wanted])
            assert isinstance(outcome, Allocated)
            assert outcome.node == "n0"
            assert outcome == allocate(snapshot(accelerator(cores), [small]), [wanted])


def test_what_partitions_make_impossible_is_measured_anew_beside_larger_devices() -> None:
    def partitioned(name: str, whole: int, takes_all: int) -> list[Any]:
        return partitioned_pool(
            name,
            {"g": {"s": str(takes_all)}},
            device("whole", f"{whole}Gi", consumesCounters=takes("g", s=str(takes_all))),
            device("quarter", "10Gi", consumesCounters=takes("g", s="1")),
        )

    small = claim("small", exactly(1, "5Gi"))
    cluster = snapshot(partitioned("n1", 20, 2))
    allocate(cluster, [small])
    # On n0 more becomes impossible, although it is less of the largest device that there is now.
    more = [*partitioned("n0", 40, 4), pool("n2", device("huge", "900Gi"))]
    grown = cluster.with_nodes([node("n0"), node("n2")]).with_slices(more)
    outcome = allocate(grown, [small])
    assert isinstance(outcome, Allocated)
    assert outcome.node == "n1"


def test_selectors_that_cost_too_much_on_the_whole_fleet_are_given_up_for_that_reason() -> None:
    cluster = whole_gpus()
    cluster.memory.put(Fleet(Bounds(evaluation_steps=2_000)))
    prepare(cluster)
    wanted = claim("slow", selected(f"lists.range(300).all(i, {OF}.uuid != string(i))"))
    for pieces in range(1_000):
        try:
            outcome = allocate(cluster, [wanted], budget=Budget(upkeep_steps=500))
            # Evaluating it counts as upkeep, so it is done in pieces like everything else.
            assert pieces > 1
            break
        except IndexUnfinished:
            pass
    assert isinstance(outcome, Failed)
    assert outcome.gave_up
    assert "the selectors are too expensive to be evaluated on every device" in outcome.message
    # From then on this costs little, and nobody else waits for it.
    again = Budget(upkeep_steps=500)
    assert isinstance(allocate(cluster, [wanted], budget=again), Failed)
    assert again.upkeep < 100
    assert isinstance(list(in_pieces(cluster, LARGE))[-1], Allocated)


def in_turns(cluster: Snapshot, wanted: list[ResourceClaim], upkeep: int, most: int = 400) -> list[Outcome]:
    """Ask each question in turns until it has an answer, and answers no longer."""
    answers: dict[int, Outcome] = {}
    for _ in range(most):
        for i, one in enumerate(wanted):
            with contextlib.suppress(IndexUnfinished):
                outcome = allocate(cluster, [one], budget=Budget(upkeep_steps=upkeep))
                answers.setdefault(i, outcome)
        if len(answers) == len(wanted):
            return [answers[i] for i in range(len(wanted))]
    raise AssertionError(f"only {len(answers)} of {len(wanted)} questions get an answer")


@pytest.mark.parametrize("kind", KINDS)
def test_each_question_gets_further_whatever_upkeep_it_may_do(kind: str) -> None:
    made, wanted = KINDS[kind]
    cluster = made()
    # A single column of a single node costs more.
    assert list(in_pieces(cluster, wanted, upkeep=1))[-1] == allocate(made(), [wanted])


def test_an_evaluation_that_costs_more_than_all_upkeep_of_a_question_is_done() -> None:
    cluster = snapshot(*(pool(f"n{n}", *gpus(n)) for n in range(4)))
    # Whatever attributes the device has, so it is evaluated for each.
    slow = f'lists.range(200).all(i, {OF}.uuid != string(i)) && {OF}.exists(k, k == "rack")'
    wanted = claim("slow", selected(slow))
    whole = Budget()
    expected = allocate(cluster, [wanted], budget=whole)
    assert isinstance(expected, Allocated)
    again = snapshot(*(pool(f"n{n}", *gpus(n)) for n in range(4)))
    # Nothing is evaluated twice, so that it costs no more than this in pieces.
    again.memory.put(Fleet(Bounds(evaluation_steps=whole.upkeep)))
    prepare(again)
    asked = list(in_pieces(again, wanted, upkeep=1))
    assert asked[-1] == expected
    assert len(asked) > 8


def test_attributes_that_tell_too_many_nodes_apart_together_are_not_tried_together_again() -> None:
    def attributes(n: int) -> dict[str, Any]:
        return {"row": f"r{n % 20}", "column": f"c{n // 20}"}

    cluster = snapshot(
        *(pool(f"n{n:03}", device("gpu", "40Gi", attributes=attributes(n))) for n in range(300))
    )
    prepare(cluster)
    rows, columns = (claim(a, selected(f'{OF}.{a} == "{a[0]}7"')) for a in ("row", "column"))
    # Too little for as many nodes as it takes to see that there are too many layouts.
    assert isinstance(list(in_pieces(cluster, rows, upkeep=40))[-1], Allocated)
    assert isinstance(list(in_pieces(cluster, columns, upkeep=40))[-1], Allocated)


def test_requests_that_alone_take_more_room_than_there_is_are_put_in_order_all_the_same() -> None:
    cluster = many_kinds()
    cluster.memory.put(Fleet(Bounds(request_classes=2_000)))
    prepare(cluster)
    # Of one device and of several.
    wanted = [claim(f"c{n}", exactly(n)) for n in (1, 2, 3)]
    assert all(isinstance(o, Allocated) for o in in_turns(cluster, wanted, upkeep=33))


def test_indexes_that_alone_take_more_room_than_there_is_do_not_replace_each_other_unused() -> None:
    cluster = many_kinds()
    cluster.memory.put(Fleet(Bounds(indexes=-(1 << 20))))
    # To put the classes in order for them takes longer than to classify the nodes.
    requests = [
        {"firstAvailable": [{"name": f"s{k}", **exactly(1, f"{k + 1}Gi")} for k in range(8)]},
        exactly(2),
    ]
    wanted = claim("c", *requests)
    # Of one policy, and of the other.
    answers: dict[NodePolicy, Outcome] = {}
    for _ in range(40):
        for policy in NodePolicy:
            with contextlib.suppress(IndexUnfinished):
                answers[policy] = allocate(cluster, [wanted], policy=policy, budget=Budget(upkeep_steps=45))
    assert all(isinstance(answers.get(policy), Allocated) for policy in NodePolicy)


def many_kinds() -> Snapshot:
    """Return a cluster of nodes that are all different."""
    return snapshot(
        *(
            pool(
                f"n{n:02}",
                *(device(f"gpu-{k}", f"{40 + n}Gi", attributes={"uuid": f"{n}-{k}"}) for k in range(8)),
            )
            for n in range(40)
        )
    )


def test_claims_that_name_what_no_device_has_do_not_undo_the_work_of_others() -> None:
    cluster = many_kinds()
    prepare(cluster)
    wanted = claim("any", exactly(2))
    for i in range(40):
        absent = [{"matchAttribute": f"{DOMAIN}/a{i}-{n}"} for n in range(4_200)]
        with contextlib.suppress(IndexUnfinished):
            allocate(cluster, [claim("absent", constraints=absent)], budget=Budget(upkeep_steps=1))
        with contextlib.suppress(IndexUnfinished):
            assert isinstance(allocate(cluster, [wanted], budget=Budget(upkeep_steps=20)), Allocated)
            return
    raise AssertionError("no question gets further")


def test_an_attribute_is_seen_however_many_were_absent_before() -> None:
    cluster = whole_gpus()
    absent = [{"matchAttribute": f"{DOMAIN}/a{n}"} for n in range(5_000)]
    allocate(cluster, [claim("absent", constraints=absent)])
    equal = claim("equal", exactly(2), constraints=[{"matchAttribute": f"{DOMAIN}/fresh"}])
    assert isinstance(allocate(cluster, [equal]), DoesNotFit)
    fresh = [device(f"gpu-{k}", "40Gi", attributes={"fresh": "yes"}) for k in range(2)]
    assert isinstance(allocate(cluster.with_slices([pool("n007", *fresh)]), [equal]), Allocated)


def unfinished(cluster: Snapshot, wanted: ResourceClaim) -> Fleet:
    """Ask until classes are in order in part."""
    kept = cluster.memory.of(Fleet)
    pieces = in_pieces(cluster, wanted, upkeep=45)
    while not kept._unfinished:
        assert isinstance(next(pieces), IndexUnfinished)
    return kept


def test_what_is_in_order_in_part_is_forgotten_with_other_largest_amounts() -> None:
    cluster, wanted = many_kinds(), claim("any", exactly())
    kept = unfinished(cluster, wanted)
    assert kept.weight > kept._indexed + kept._request_classes.weight + kept._shared.weight
    grown = cluster.with_nodes([node("n99")]).with_slices([pool("n99", device("huge", "9000Gi"))])
    outcome = allocate(grown, [wanted])
    assert isinstance(outcome, Allocated)
    assert outcome.node == "n00"


def test_what_is_in_order_in_part_is_forgotten_with_its_index() -> None:
    cluster = many_kinds()
    cluster.memory.put(Fleet(Bounds(indexes=-(1 << 20))))
    wanted = claim("any", exactly())
    kept = unfinished(cluster, wanted)
    assert isinstance(allocate(cluster, [wanted], policy=NodePolicy.SPREAD), Allocated)
    # The index that there has been an answer from takes the place of the other one.
    assert len(kept._indexes) == 1
    assert isinstance(list(in_pieces(cluster, wanted))[-1], Allocated)


def test_an_index_that_is_used_all_the_time_is_not_the_one_that_makes_room() -> None:
    cluster = snapshot(*(pool(f"n{n}", *gpus(n)) for n in range(4)))
    often, *others = (claim(f"c{i}", selected(f'!{OF}.exists(k, k == "a{i}")')) for i in range(30))
    allocate(cluster, [often])
    for other in others:
        allocate(cluster, [other])
        assert isinstance(allocate(cluster, [often], budget=Budget(upkeep_steps=0)), Allocated)
