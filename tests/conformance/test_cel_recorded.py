"""Selectors against recorded outcomes of Kubernetes 1.36.

The cases of our own are in ``data/``; those of Kubernetes' own table are read from beside the repository
where they are at hand. Category ``quantity_alias`` and nondeterministic cases record defects of the original.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nonempty import nonempty

from dra_driver import cel
from dra_driver.api import codec
from dra_driver.api.resource import Device

HERE = Path(__file__).parent
OWN = HERE / "data" / "cel_cases.json.gz"
# Random expressions over attributes with lists (KEP-5491).
LISTS = HERE / "data" / "cel_list_cases.json.gz"
ALL = HERE.parents[2] / "shared" / "corpus" / "cel" / "cel_cases.json.gz"

# Of so many cases in a row, the first one is played by default; all are in the long run.
SHARES = [4, pytest.param(1, marks=pytest.mark.long)]
# Loops up to the limit of the cost, counted step by step: these few take longer than all others together.
DEAR = ("limits/015", "upstream/expensive/lists=false", "upstream/expensive/lists=true")
DEAR_AS_WELL = [False, pytest.param(True, marks=pytest.mark.long)]


@cache
def cases(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as f:
        found: list[dict[str, Any]] = json.load(f)["cases"]
    return nonempty(c for c in found if c["category"] != "quantity_alias" and not c.get("nondeterministic"))


def environment(case: dict[str, Any]) -> cel.Environment:
    return cel.Environment(
        new=case["env"] == "new",
        list_type_attributes=case["features"]["listTypeAttributes"],
        consumable_capacity=case["features"]["consumableCapacity"],
    )


def view(case: dict[str, Any]) -> cel.DeviceView:
    raw = case["device"]
    fields = {
        "name": "device",
        "attributes": raw["attributes"] or {},
        "capacity": raw["capacity"] or {},
        "allowMultipleAllocations": raw.get("allowMultipleAllocations"),
    }
    lists = case["features"]["listTypeAttributes"]
    return cel.DeviceView(raw["driver"], codec.convert(Device, fields), list_attributes=lists)


@cache
def compiled(expression: str, where: cel.Environment) -> cel.Selector:
    """Compile an expression once for all tests."""
    return cel.compile_selector(expression, environment=where)


def selector_of(case: dict[str, Any]) -> cel.Selector:
    return compiled(case["expression"], environment(case))


def outcome(case: dict[str, Any]) -> tuple[bool, bool, bool | None]:
    """Compile error, runtime error, match."""
    try:
        return False, False, selector_of(case).matches(view(case))
    except cel.CelCompileError:
        return True, False, None
    except cel.CelRuntimeError:
        return False, True, None


def disagreements(recorded: Iterable[dict[str, Any]]) -> list[str]:
    found = []
    for case in recorded:
        wanted = case["expect"]
        got = outcome(case)
        if got != (wanted["compile_error"], wanted["runtime_error"], wanted["match"]):
            found.append(f"{case['name']}: {case['expression']!r} gives {got}")
    return found


@pytest.mark.parametrize("dear", DEAR_AS_WELL)
def test_every_outcome_of_our_own_cases_agrees(dear: bool) -> None:
    recorded = cases(OWN)
    assert len(recorded) > 1300
    assert disagreements(c for c in recorded if (c["name"] in DEAR) == dear) == []


def test_every_outcome_of_our_own_cases_with_lists_agrees() -> None:
    recorded = cases(LISTS)
    assert len(recorded) > 700
    assert disagreements(recorded) == []


@pytest.mark.parametrize("dear", DEAR_AS_WELL)
def test_every_outcome_of_kubernetes_own_table_agrees(dear: bool) -> None:
    if not ALL.exists():
        pytest.skip(f"the recorded cases of Kubernetes' own table are not beside the repository ({ALL.name})")
    ours = {c["name"] for c in cases(OWN)}
    recorded = [c for c in cases(ALL) if c["name"] not in ours]
    assert disagreements(c for c in recorded if (c["name"] in DEAR) == dear) == []


def test_what_validation_would_refuse_agrees() -> None:
    wrong = []
    for case in cases(OWN):
        reasons = {f.reason for f in cel.validate_selector(case["expression"], environment=environment(case))}
        got = ("TooLong" in reasons, "TooExpensive" in reasons)
        wanted = (
            bool(case["expect"]["validation_too_long"]),
            bool(case["expect"]["validation_too_expensive"]),
        )
        if got != wanted:
            wrong.append(f"{case['name']}: {got}")
    assert wrong == []


def test_the_estimated_cost_is_the_recorded_one() -> None:
    wrong = []
    count = 0
    for case in cases(OWN) + cases(LISTS):
        if case["expect"]["compile_error"]:
            continue
        count += 1
        selector = selector_of(case)
        if selector.max_cost != case["expect"]["max_cost"]:
            wrong.append(case["name"])
    assert wrong == []
    assert count > 1000


@pytest.mark.parametrize("each", SHARES)
def test_an_evaluation_changes_nothing(each: int) -> None:
    for case in cases(OWN)[::each]:
        if outcome(case)[0]:
            continue
        selector = selector_of(case)
        device = view(case)
        results = []
        for _ in range(2):
            before = selector.projection_key(device)
            try:
                results.append(selector.matches(device))
            except cel.CelRuntimeError as e:
                results.append(str(e))  # type: ignore[arg-type]
            assert selector.projection_key(device) == before, case["name"]
        assert results[0] == results[1], case["name"]
        assert vars_of(device) == vars_of(view(case)), case["name"]


def vars_of(device: cel.DeviceView) -> tuple[object, ...]:
    capacity = {
        d: {n: (q.nano, q.scale, q.is_big) for n, q in names.items()} for d, names in device.capacity.items()
    }
    return (device.attributes, capacity, device.driver, device.allow_multiple_allocations, device.error)


@pytest.mark.parametrize("each", SHARES)
def test_an_evaluation_that_is_counted_has_the_same_outcome(each: int) -> None:
    # A list that the evaluation puts together makes it count, whatever else the expression is.
    counted = 0
    for case in cases(OWN)[::each]:
        plain = outcome(case)
        expression = f"cel.bind(counted_, [device.driver], {case['expression']})"
        if plain[0] or len(expression) > cel.MAX_EXPRESSION_LENGTH:
            continue
        got = outcome({**case, "expression": expression})
        # One level deeper an expression may be too deep.
        if got[0]:
            continue
        counted += 1
        assert got == plain, case["name"]
    assert counted > 1000 // each
