"""What a question may cost, whatever claims ask for."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
import work_counter
from allocator_world import claim, device, exactly, node, pool, snapshot

from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import (
    Allocated,
    DoesNotFit,
    Failed,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Snapshot,
    Strategy,
    allocate,
    allocate_group,
    prepare,
)
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.model.budget import Budget, BudgetExhausted

DOMAIN = "gpu.example.com"


def fleet(nodes: int, *, gpus: int = 8, values: int = 7) -> Snapshot:
    """Nodes that a selector on the uuid can tell apart, with fewer values of ``x`` than devices."""
    return snapshot(
        *(
            pool(
                f"n{n:03}",
                *(
                    device(f"gpu-{k}", "80Gi", attributes={"uuid": f"GPU-{n:03}-{k:03}", "x": k % values})
                    for k in range(gpus)
                ),
            )
            for n in range(nodes)
        )
    )


def selector(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def hard(requests: int = 8, alternatives: int = 8, **devices: Any) -> ResourceClaim:
    """8^8 combinations, which a constraint refuses one by one, with selectors on characters of the uuid."""

    def sub(i: int) -> dict[str, Any]:
        at = f'device.attributes["{DOMAIN}"].uuid.charAt({4 + i % 5})'
        return {"name": f"s{i}", **exactly(1), **selector(f'{at} != "z"')}

    wanted = [
        {"name": f"r{r}", "firstAvailable": [sub(i) for i in range(alternatives)]} for r in range(requests)
    ]
    return claim("hard", *wanted, constraints=[{"distinctAttribute": f"{DOMAIN}/x"}], **devices)


@pytest.mark.long
@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("nodes", [1, 60])
def test_a_question_costs_no_more_on_many_nodes_than_on_one(strategy: Strategy, nodes: int) -> None:
    cluster = fleet(nodes)
    for _ in ("anew", "again"):
        budget = Budget()
        outcome = allocate(cluster, [hard()], strategy=strategy, budget=budget)
        assert isinstance(outcome, Failed)
        assert outcome.gave_up
        assert "gave up" in outcome.message
        assert budget.left >= 0


def test_the_clock_ends_a_question() -> None:
    ticks = count()
    budget = Budget(10**9, 10**9, seconds=100.0, clock=lambda: float(next(ticks)))
    outcome = allocate(fleet(3), [hard()], budget=budget)
    assert isinstance(outcome, Failed)
    assert outcome.gave_up
    assert next(ticks) < 110


def test_what_is_used_up_stays_used_up() -> None:
    budget = Budget(100)
    with pytest.raises(BudgetExhausted):
        budget.spend(101)
    assert budget.exhausted
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            budget.spend()
    assert budget.spent == 100


def test_an_answer_is_better_than_none() -> None:
    # Many nodes, each of another kind: there is no time to solve them all.
    cluster = snapshot(
        *(
            pool(
                f"n{n}",
                *(device(f"d{k}", f"{40 + n}Gi", attributes={"x": k % (5 + n % 3)}) for k in range(8)),
            )
            for n in range(40)
        )
    )
    wanted = claim("c", exactly(4), constraints=[{"distinctAttribute": f"{DOMAIN}/x"}])
    whole = allocate(cluster, [wanted])
    assert isinstance(whole, Allocated)
    steps = Budget()
    allocate(cluster, [wanted], budget=steps)
    for part in (3, 30):
        cut = allocate(
            cluster.with_allocated(cluster.allocated), [wanted], budget=Budget(steps.spent // part + 400)
        )
        assert isinstance(cut, Allocated | Failed)
        if isinstance(cut, Failed):
            assert cut.gave_up


def test_an_answer_is_not_lost_because_the_search_took_everything() -> None:
    cluster = fleet(1, values=8)
    for steps in range(1, 400, 7):
        outcome = allocate(fleet(1, values=8), [hard(2, 2)], budget=Budget(steps))
        assert isinstance(outcome, Allocated) or (isinstance(outcome, Failed) and outcome.gave_up), steps
    # What was cut short is worked out by the next question.
    for _ in range(3):
        allocate(cluster, [hard(2, 2)], budget=Budget(60))
    assert isinstance(allocate(cluster, [hard(2, 2)]), Allocated)


def test_a_question_that_was_cut_short_gets_further_the_next_time() -> None:
    cluster = fleet(60)
    wanted = claim("c", exactly(1, **selector(f'device.attributes["{DOMAIN}"].uuid.endsWith("059-007")')))

    def until_answered() -> Iterator[object]:
        for _ in range(40):
            outcome = allocate(cluster, [wanted], budget=Budget(120))
            yield outcome
            if isinstance(outcome, Allocated):
                return

    outcomes = list(until_answered())
    assert isinstance(outcomes[-1], Allocated)
    assert outcomes[-1].node == "n059"
    assert len(outcomes) > 2
    assert all(isinstance(o, Failed) and o.gave_up for o in outcomes[:-1])


def test_honest_claims_do_not_pay_for_the_expressions_of_others() -> None:
    cluster = fleet(100)
    honest = claim("honest", exactly(1, **selector(f'device.attributes["{DOMAIN}"].x == 3')))
    allocate(cluster, [hard()])
    assert isinstance(allocate(cluster, [honest]), Allocated)
    index = cluster.memory.of(Fleet)
    indexes = [columns for columns, _ in index._indexes]
    assert not any({c[0] for c in columns} >= {"attribute", "expression"} for columns in indexes)


def test_a_claim_without_selectors_does_not_use_the_index_of_an_expression() -> None:
    cluster = fleet(70)
    expression = f'device.attributes["{DOMAIN}"].uuid.endsWith("7")'
    assert isinstance(allocate(cluster, [claim("c", exactly(1, **selector(expression)))]), Allocated)
    assert isinstance(allocate(cluster, [claim("plain", exactly(1))]), Allocated)
    columns = {kinds for of, _ in cluster.memory.of(Fleet)._indexes for kinds in [tuple(c[0] for c in of)]}
    assert columns == {("expression",), ()}


def test_indexes_of_expressions_make_room_before_those_of_attributes() -> None:
    cluster = fleet(3)
    honest = claim("honest", exactly(1, **selector(f'device.attributes["{DOMAIN}"].x == 3')))
    allocate(cluster, [honest])
    kept = cluster.memory.of(Fleet)._indexes
    first = next(iter(kept.values()))
    for i in range(60):
        expression = f'device.attributes["{DOMAIN}"].all(k, k != "{i}")'
        allocate(cluster, [claim("c", exactly(1, **selector(expression)))])
    assert first in kept.values()
    assert len(kept) <= 16


def test_what_is_known_is_charged_where_there_is_much_of_it() -> None:
    # Every name is a column of every node, although no device has any of them.
    names = " && ".join(f'!has(device.attributes["{DOMAIN}"].n{i})' for i in range(180))
    cluster, budget = fleet(50), Budget()
    prepare(cluster)
    # Compiling it would cost more steps than all the rest.
    cluster.selectors.references(names)
    asked = [claim("c", exactly(1, **selector(names)))]
    calls = work_counter.calls(lambda: allocate(cluster, asked, budget=budget))
    assert calls < 120 * (budget.spent + budget.upkeep)


def test_expressions_that_no_claim_asks_for_any_more_are_forgotten() -> None:
    cluster = fleet(3)
    for i in range(200):
        expression = f'device.attributes["{DOMAIN}"].uuid.charAt(6) == "{i}" && size(device.attributes) > 0'
        allocate(cluster, [claim("c", exactly(1, **selector(expression)))])
    assert len(cluster.memory.of(Fleet)._columns.known) < 40


def test_all_members_of_a_group_share_a_budget() -> None:
    names = [f"n{i:03}" for i in range(60)]
    cluster = snapshot(
        *(pool(name, *(device(f"d{k}", "80Gi") for k in range(8))) for name in names),
        nodes=[node(name, host=name) for name in names],
    )

    def gang(size: int) -> Sequence[GroupMember]:
        return [GroupMember((claim(f"m{i}", exactly(1)),)) for i in range(size)]

    outcome = allocate_group(cluster, gang(9), levels=[Level(label="host")], budget=Budget(200))
    assert isinstance(outcome, Failed)
    assert outcome.gave_up
    assert isinstance(allocate_group(cluster, gang(9), levels=[Level(label="host")]), GroupRefused)
    assert isinstance(allocate_group(cluster, gang(8), levels=[Level(label="host")]), GroupAllocated)


@pytest.mark.parametrize("strategy", Strategy)
def test_more_requests_than_devices_are_refused_without_a_search(strategy: Strategy) -> None:
    nine = [
        {"name": f"r{r}", "firstAvailable": [{"name": f"s{i}", **exactly(1)} for i in range(8)]}
        for r in range(9)
    ]
    budget = Budget()
    outcome = allocate(fleet(10), [claim("c", *nine)], strategy=strategy, budget=budget)
    assert isinstance(outcome, DoesNotFit)
    assert outcome.summary() == "needs 9 gpu together: 10 nodes have 8 free each"
    assert budget.spent < 10_000


def test_requests_for_different_devices_are_matched_and_not_only_counted() -> None:
    # Four devices for four requests, of which three want the two with x = 0 or 1.
    of = [exactly(1, **selector(f'device.attributes["{DOMAIN}"].x < 2')) for _ in range(3)]
    cluster = fleet(1, gpus=4)
    budget = Budget()
    assert isinstance(allocate(cluster, [claim("c", exactly(1), *of)], budget=budget), DoesNotFit)
    assert budget.spent < 500
    assert isinstance(allocate(cluster, [claim("c", exactly(1), exactly(1), *of[:2])]), Allocated)


def test_thousands_of_requests_for_one_shared_device_are_given_up() -> None:
    shared = device("d", "800Gi", allowMultipleAllocations=True)
    claims = [claim(f"c{i}", *(exactly(1, "1Mi") for _ in range(32))) for i in range(40)]
    outcome = allocate(snapshot(pool("n", shared)), claims)
    assert isinstance(outcome, Allocated | Failed)


def test_the_best_answer_so_far_survives_the_end_of_the_budget() -> None:
    # Nodes of many classes that are equally good are compared one after the other.
    def gpus(n: int) -> list[dict[str, Any]]:
        return [device(f"d{k}", "40Gi", attributes={"model": f"m{n}"}) for k in range(3)]

    cluster = snapshot(*(pool(f"n{n:02}", *gpus(n)) for n in range(12)))
    wanted = claim("c", exactly(2, **selector(f'device.attributes["{DOMAIN}"].model != "z"')))
    assert isinstance(allocate(cluster, [wanted]), Allocated)
    # By now each class is solved, so that an answer is at hand after the first of them.
    whole = Budget()
    assert isinstance(allocate(cluster, [wanted], budget=whole), Allocated)
    assert whole.spent > 40
    for steps in range(32, whole.spent):
        assert isinstance(allocate(cluster, [wanted], budget=Budget(steps)), Allocated), steps
