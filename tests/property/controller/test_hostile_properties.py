"""Random selectors and claims that the API accepts cost no more work and memory than is counted for them.

Work is measured in calls of functions, in Python and in C, which do not depend on the machine.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import work_counter
from allocator_world import claim, device, exactly, pool, snapshot
from examples import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dra_driver import cel
from dra_driver.api.resource import Device, DeviceAttribute
from dra_driver.structured import Snapshot, allocate
from dra_driver.structured.model.budget import Budget

DRIVER = "gpu.example.com"
OF = f'device.attributes["{DRIVER}"]'
MIB = 1 << 20
# Measured: a unit is a call or two; a call in C may be as long as it is paid for. What is done once, such as
# making a table that all selectors share, is in the least: a few milliseconds.
CALLS_PER_UNIT, CALLS_AT_LEAST = 6, 5_000
CALLS_PER_STEP = 120
# Units after which the caller pays no longer, so that examples stay quick.
PAID = 100_000


class EnoughError(Exception):
    pass


def calls_of(run: Callable[[], object]) -> int:
    def until_enough() -> None:
        with contextlib.suppress(EnoughError):
            run()

    return work_counter.calls(until_enough)


# --- selectors ----------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
SMALL = st.integers(0, 9).map(str)
COUNT = st.sampled_from(["1", "7", "40", "300", "3000"])
TEXTS = st.sampled_from(
    ['""', '"a"', '"ab,c"', '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"', '"é€"', f"{OF}.uuid"]
)
PATTERNS = st.sampled_from(
    ["a*", "(a|b)+c", ".{60}", "[^a]{9,40}x", r"\\pL+", "(?i)[a-z0-9]{3}", "(.?){30}a"]
)


def _typed(
    inner: st.SearchStrategy[tuple[str, str, str, str]],
) -> st.SearchStrategy[tuple[str, str, str, str]]:
    """Return (number, text, list of numbers or texts, truth) made of smaller ones."""
    pair, name = st.tuples(inner, inner), st.sampled_from(NAMES)

    def numbers(x: tuple[Any, Any]) -> st.SearchStrategy[str]:
        (n, t, ls, _), (m, u, _, b) = x
        return st.sampled_from(
            [f"({n} + {m})", f"{t}.size()", f"{ls}.size()", f"({b} ? {n} : {m})", f"{t}.indexOf({u})"]
        )

    def texts(x: tuple[Any, Any]) -> st.SearchStrategy[str]:
        (n, t, ls, _), (_, u, _, _) = x
        return st.sampled_from(
            [
                f"({t} + {u})",
                f"{t}.replace({u}, {t})",
                f'{t}.replace("", "xxxxxxxx")',
                f'"%s-%d-%s".format([{t}, {n}, {ls}])',
                f"{ls}.map(x, string(x)).join({t})",
                f"strings.quote({t})",
                f"string({n})",
                f"cel.bind(v, {t}, v + v + v + v)",
                f'{t}.find("[a-x]+")',
                f"{t}.upperAscii()",
            ]
        )

    def lists(x: tuple[Any, Any], v: str) -> st.SearchStrategy[str]:
        (n, t, ls, b), (_, u, ks, _) = x
        return st.sampled_from(
            [
                f"({ls}.map({v}, string({v})) + {t}.split({u}))",
                f"{ls}.map({v}, [{v}, {v}])",
                f"{ls}.filter({v}, {b})",
                f"[{ls}, {ls}]",
                f"cel.bind(w, {ls}, [w, w, w])",
                f"lists.range(100).map({v}, {t})",
                f"{ks}.map({v}, {ls})",
                f'{t}.findAll("a")',
                f"[{n}, {n}].distinct()",
                f'{t}.split("")',
            ]
        )

    def truths(x: tuple[Any, Any], v: str, pattern: str) -> st.SearchStrategy[str]:
        (n, t, ls, b), (m, u, ks, c) = x
        return st.sampled_from(
            [
                f"({n} < {m})",
                f"{t}.contains({u})",
                f'{t}.matches("{pattern}")',
                f"{t}.matches({u})",
                f"{ls}.all({v}, {c} || true)",
                f"{ls}.exists({v}, {b} && dyn({v}) == dyn({n}))",
                f"({ls} == {ks})",
                f"(dyn({n}) in {ls})",
                f"({n} in [1, 2, 3, 9007199254740993])",
                f"({b} && {c})",
                f"({b} || {c})",
                f"isQuantity({t})",
                f"isSemver({t})",
                f'({t} + "1h" != "" && duration({t} + "1h") > duration("1s"))',
                f"(dyn({ls}).indexOf(dyn({n})) >= 0)",
                f"[{ls}].exists({v}, {v} == {ls})",
                f"({ls}.transformMap(i, {v}, i) == {{}})",
                f"isURL({t})",
                f"timestamp({n}).getHours({t}) == 0",
            ]
        )

    return st.tuples(pair, name, PATTERNS).flatmap(
        lambda x: st.tuples(numbers(x[0]), texts(x[0]), lists(x[0], x[1]), truths(x[0], x[1], x[2]))
    )


LEAF = st.tuples(
    SMALL,
    TEXTS,
    COUNT.map(lambda n: f"lists.range({n})"),
    st.sampled_from(["true", "false", f'{OF}.uuid != ""']),
)
SELECTORS = st.recursive(LEAF, _typed, max_leaves=12).map(lambda parts: parts[3])
HELD_BACK = [HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large]


def a_view() -> cel.DeviceView:
    attributes = {"uuid": DeviceAttribute(string_value="GPU-0000-0000"), "x": DeviceAttribute(int_value=3)}
    return cel.DeviceView(DRIVER, Device(name="gpu-0", attributes=attributes))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=HELD_BACK)
@given(SELECTORS)
@example(
    'cel.bind(l, lists.range(3000).map(x, ""), cel.bind(m, [l], '
    "lists.range(900).all(x, m.indexOf(dyn(1)) < 0)))"
)
def test_an_evaluation_does_no_more_work_than_it_counts(expression: str) -> None:
    try:
        selector = cel.compile_selector(expression)
    except cel.CelCompileError:
        return
    view, paid = a_view(), 0

    def pay(units: int) -> None:
        nonlocal paid
        paid += units
        if paid > PAID:
            raise EnoughError

    cost = 0

    def run() -> None:
        nonlocal cost
        cost = selector.evaluate(view, pay).cost

    calls = calls_of(run)
    # What was not paid for is a part of 25,000 units at most.
    counted = cost or paid + 25_000
    assert calls <= CALLS_AT_LEAST + CALLS_PER_UNIT * counted, (calls, counted)
    paid = 0
    tracemalloc.start()
    try:
        selector.evaluate(view, pay)
    except EnoughError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MIB + 48 * counted, (peak, counted)


# --- questions ----------------------------------------------------------------------------------------------


def fleet() -> Snapshot:
    return snapshot(
        *(
            pool(
                f"n{n:02}",
                *(
                    device(f"gpu-{k}", f"{40 + k % 2}Gi", attributes={"uuid": f"GPU-{n:02}-{k}", "x": k % 5})
                    for k in range(8)
                ),
            )
            for n in range(20)
        )
    )


CHEAP = st.one_of(
    st.integers(4, 7).map(lambda i: f'{OF}.uuid.charAt({i}) != "~"'),
    st.integers(0, 9).map(lambda i: f"{OF}.x < {i}"),
    st.integers(1, 60).map(lambda n: " && ".join(f"!has({OF}.n{n}x{j})" for j in range(n))),
    st.integers(0, 9).map(lambda i: f"{OF}.all(k, k != 'n{i}')"),
    st.integers(1, 5).map(lambda n: f"{OF}.uuid" + '.replace("", "xxxxxxxx")' * n + ' != ""'),
)


@st.composite
def claims(draw: st.DrawFn) -> Any:
    def alternative() -> dict[str, Any]:
        selectors: Any = [{"cel": {"expression": e}} for e in draw(st.lists(CHEAP, max_size=4))]
        return exactly(draw(st.integers(1, 5)), **({"selectors": selectors} if selectors else {}))

    requests: list[dict[str, Any]] = []
    for i in range(draw(st.integers(1, 6))):
        subs = [{"name": f"s{j}", **alternative()} for j in range(draw(st.integers(1, 6)))]
        requests.append({"name": f"r{i}", "firstAvailable": subs})
    constraint = draw(st.sampled_from([None, "matchAttribute", "distinctAttribute"]))
    return claim("c", *requests, constraints=[{constraint: f"{DRIVER}/x"}] if constraint else [])


@settings(max_examples=examples(40), deadline=None, suppress_health_check=HELD_BACK)
@given(claims(), st.sampled_from([500, 5_000, 20_000]))
def test_a_question_does_no_more_work_than_its_budget(wanted: Any, steps: int) -> None:
    cluster = fleet()
    for _ in range(2):
        calls = calls_of(lambda: allocate(cluster, [wanted], budget=Budget(steps, steps)))
        # What nodes are is looked at once, and an answer is made of what was found, whatever is left.
        assert calls <= 60_000 + CALLS_PER_STEP * steps
