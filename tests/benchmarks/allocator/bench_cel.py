"""Selectors: what people write, and the longest that hostile ones keep an evaluation or a compilation busy.

The baseline of hostile selectors is the evaluation of an honest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hostile_selectors import DRIVER, HOSTILE, MEMORY, MODEL, binds

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceAttribute, DeviceCapacity

Row = dict[str, Any]
BASELINE = f'{MODEL} == "A100" && {MEMORY}.compareTo(quantity("40Gi")) >= 0'
HONEST = {
    "a model": f'{MODEL} == "A100"',
    "one of some models": f'{MODEL} in ["A100", "H100"]',
    "a pattern": f'{MODEL}.matches("^A[0-9]+$")',
    "any attribute": f'device.attributes["{DRIVER}"].exists(k, k == "model")',
    "a sum": f'{MEMORY}.sub(quantity("8Gi")).isLessThan(quantity("400Ti"))',
}
COMPILED = {
    "a thousand terms": " && ".join(["true"] * 1200),
    "five hundred sums": " && ".join(["1 + 1 + 1 == 3"] * 550),
    "folds": " && ".join(["[1].all(x, [x] == [1])"] * 400),
    "macros that double": "optional.of(1)" + ".optMap(x, x)" * 200 + ".hasValue()",
    "types that double": binds("{1: 1}", "{@: @}", 60, "true"),
    "a pattern that expands": '"a".matches("(' + "ab" * 2000 + '){1000}")',
    "a pattern of many instructions": '"a".matches("' + "|".join(f".{{{i}}}" for i in range(60)) + '")',
}


def a_view() -> cel.DeviceView:
    attributes = {"model": DeviceAttribute(string_value="A100"), "index": DeviceAttribute(int_value=3)}
    capacity = {"memory": DeviceCapacity(value=Quantity.parse("160Ti"))}
    return cel.DeviceView(DRIVER, Device(name="gpu-0", attributes=attributes, capacity=capacity))


def microseconds(work: Callable[[], object], times: int) -> float:
    """The shortest of five runs."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            work()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


def compiled(expression: str) -> float:
    start = time.perf_counter()
    try:
        cel.compile_selector(expression)
    except cel.CelCompileError:
        pass
    return (time.perf_counter() - start) * 1000


def run() -> list[Row]:
    view = a_view()
    rows: list[Row] = []
    for name, expression in HONEST.items():
        selector = cel.compile_selector(expression)
        value = microseconds(lambda selector=selector: selector.matches(view), 10_000)  # type: ignore[misc]
        rows.append({"name": f"honest: {name}", "value": round(value, 2), "unit": "us"})
    honest = cel.compile_selector(BASELINE)
    baseline = microseconds(lambda: honest.matches(view), 10_000)
    hostile: list[tuple[float, int, str]] = []
    for name, expression in HOSTILE.items():
        selector = cel.compile_selector(expression)
        start = time.perf_counter()
        outcome = selector.evaluate(view)
        hostile.append(((time.perf_counter() - start) * 1e6, outcome.cost, name))
    hostile.sort(reverse=True)
    rows += [
        {
            "name": f"hostile: {name} (cost {cost})",
            "value": round(value),
            "unit": "us",
            "baseline": round(baseline, 2),
            "baseline_of": "one model and one capacity",
        }
        for value, cost, name in hostile[:12]
    ]
    worst = max(value / cost for value, cost, _ in hostile if cost > 100_000)
    rows.append({"name": "hostile: longest for a unit of cost", "value": round(worst, 3), "unit": "us"})
    for name, expression in COMPILED.items():
        rows.append({"name": f"compile: {name}", "value": round(compiled(expression), 1), "unit": "ms"})
    return rows
