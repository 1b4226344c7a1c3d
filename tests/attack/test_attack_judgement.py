"""The suite's own judgement: every bar can fail, and nothing passes because it was not measured."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import yaml
from attack_judgement import (
    BARS,
    DeviceWatch,
    Lag,
    Measured,
    findings,
    lag_between,
    lag_of,
    p999,
    quantile,
    table,
    together,
)

from controller.observe.metrics import Metrics
from dra_driver.sim.assets import deploy_directory


def test_the_bar_of_memory_is_half_of_what_the_chart_allows() -> None:
    values = yaml.safe_load((deploy_directory("helm") / "dra-driver" / "values.yaml").read_text())
    assert values["controller"]["resources"]["limits"]["memory"] == f"{2 * BARS.memory:.0f}Mi"


def lag(*delays: float) -> Lag:
    """Delays as a controller reports them."""
    metrics = Metrics()
    for delay in delays:
        metrics.observe_loop_lag(delay)
    found = lag_of(metrics.text().decode())
    assert found is not None
    return found


def good() -> Measured:
    waits, loops = [0.01, 0.02, 0.03], [lag(*[0.002] * 100)]
    return Measured(attack="a", honest=waits, lag=loops, probe=0.01, review=0.02, memory=200.0)


# --- the event loop ---


def test_metrics_of_the_controller_are_understood() -> None:
    found = lag(0.002, 0.04, 0.3)
    assert (found.samples, found.longest) == (3, 0.3)
    assert (found.buckets[0.05], found.buckets[0.25], found.buckets[0.5]) == (2, 2, 3)
    assert lag_of("# nothing\n") is None


@pytest.mark.parametrize(
    ("late", "expected"), [(0, 0.0025), (1, 0.0025), (2, 0.1)], ids=["none", "a thousandth", "more"]
)
def test_a_quantile_is_the_upper_bound_of_its_bucket(late: int, expected: float) -> None:
    assert quantile(lag(*[0.002] * (1000 - late), *[0.09] * late).buckets, 0.999) == expected


@pytest.mark.parametrize(("number", "late", "expected"), [(300, 1, 0.0025), (300, 2, 0.1), (3000, 4, 0.1)])
def test_one_late_sample_of_few_is_left_out(number: int, late: int, expected: float) -> None:
    assert p999(lag(*[0.002] * (number - late), *[0.09] * late).buckets) == expected


def test_late_samples_beside_many_attacks_add_up() -> None:
    rows = [Measured(attack="a", lag=[lag(*[0.002] * 299, 0.09), lag(0.002)]) for _ in range(10)]
    assert rows[0].lag_p999 == 0.0025
    assert p999(together(rows)) == 0.1


def test_without_samples_there_is_no_delay() -> None:
    assert p999(lag().buckets) == 0.0
    assert quantile(lag().buckets, 0.999) == 0.0


def test_only_what_came_in_between_counts() -> None:
    before = lag(3.0, 0.002)
    after = lag(3.0, 0.002, 0.04, 0.002)
    between = lag_between(before, after)
    assert between.samples == 2
    assert quantile(between.buckets, 1.0) == 0.05
    assert between.longest == 0.05  # of its bucket: the longest since the start is an older one
    assert lag_between(lag(0.002), lag(0.002, 0.3)).longest == 0.3
    assert lag_between(before, before).longest == 0.0
    assert lag_between(None, after).longest == 3.0


def test_the_bars_are_bounds_of_buckets() -> None:
    """Otherwise a quantile in the bucket of a bar would be rounded up over it."""
    bounds = lag(0.0).buckets.keys()
    assert {BARS.lag_p999, BARS.lag_longest} <= set(bounds)


# --- devices ---


def held(name: str, *devices: str, **more: Any) -> dict[str, Any]:
    results = [{"driver": "d", "pool": "n1", "device": device, "request": "r", **more} for device in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    return {"metadata": {"namespace": "ns", "name": name, "uid": f"uid of {name}"}, "status": status}


def test_a_device_in_two_claims_is_found_though_it_is_corrected_at_once() -> None:
    watch = DeviceWatch()
    watch.seen(held("a", "gpu-0", "gpu-1"))
    watch.seen(held("b", "gpu-1"))
    watch.seen(held("b"))
    watch.seen(held("a"), deleted=True)
    assert watch.doubled == ["d/n1/gpu-1 is held by ns/a and ns/b"]


@pytest.mark.parametrize("ends", [lambda: (held("a"), False), lambda: (held("a", "gpu-0"), True)])
def test_a_device_that_was_freed_may_be_held_again(ends: Any) -> None:
    watch = DeviceWatch()
    watch.seen(held("a", "gpu-0"))
    claim, deleted = ends()
    watch.seen(claim, deleted=deleted)
    watch.seen(held("b", "gpu-0"))
    watch.seen(held("b", "gpu-0"))
    assert watch.doubled == []


def test_admin_access_and_shares_exclude_nobody() -> None:
    watch = DeviceWatch()
    watch.seen(held("a", "gpu-0"))
    watch.seen(held("admin", "gpu-0", adminAccess=True))
    watch.seen(held("b", "gpu-1", shareID="1"))
    watch.seen(held("c", "gpu-1", shareID="2"))
    assert watch.doubled == []
    watch.seen(held("whole", "gpu-1"))
    assert len(watch.doubled) == 1


def test_a_claim_made_anew_is_another_holder() -> None:
    watch = DeviceWatch()
    watch.seen(held("a", "gpu-0"))
    again = held("a", "gpu-0")
    again["metadata"]["uid"] = "another"
    watch.seen(again)
    assert len(watch.doubled) == 1


def test_a_list_after_a_gap_forgets_what_is_gone() -> None:
    watch = DeviceWatch()
    watch.seen(held("a", "gpu-0"))
    watch.replace([held("b", "gpu-0")])
    assert watch.doubled == []
    watch.replace([held("b", "gpu-0"), held("c", "gpu-0")])
    assert len(watch.doubled) == 1


# --- bars ---


def test_a_controller_that_withstands_has_no_findings() -> None:
    assert findings(good()) == []


@pytest.mark.parametrize(
    ("violation", "finding"),
    [
        ({"honest": [1.1, 1.2, 1.3]}, "median"),
        ({"honest": [0.01, 0.01, 3.1]}, "worst"),
        ({"honest": [0.01, 0.01, math.inf]}, "worst"),
        ({"restarts": 1}, "restarts"),
        ({"lag": [lag(0.002), lag(*[0.06] * 2, *[0.002] * 998)]}, "lag p99.9"),
        ({"lag": [lag(*[0.002] * 5000, 0.26)]}, "longest lag"),
        ({"probe": 0.31}, "probe"),
        ({"review": 1.1}, "review"),
        ({"memory": 705.0}, "memory"),
        ({"doubled": ["gpu-0 is held by a and b"]}, "devices in two claims"),
        ({"problems": ["the API took nothing of it"]}, "the API took nothing of it"),
    ],
)
def test_each_bar_can_fail_alone(violation: dict[str, Any], finding: str) -> None:
    found = findings(dataclasses.replace(good(), **violation))
    assert [f.startswith(finding) for f in found] == [True], found


@pytest.mark.parametrize("unknown", ["lag", "probe", "review", "memory"])
def test_what_was_not_measured_is_a_finding(unknown: str) -> None:
    violation: dict[str, Any] = {unknown: None}
    assert findings(dataclasses.replace(good(), **violation))


def test_without_honest_claims_nothing_is_withstood() -> None:
    assert findings(dataclasses.replace(good(), honest=[])) == [
        "median was not measured",
        "worst was not measured",
    ]
    assert findings(dataclasses.replace(good(), lag=[]))


def test_the_table_has_a_line_per_attack() -> None:
    given_up = dataclasses.replace(good(), attack="b", honest=[math.inf], probe=None)
    lines = table([(good(), ()), (given_up, ["worst inf over 3 s"])]).splitlines()
    assert lines[1].split()[:4] == ["a", "3", "20", "30"]
    assert lines[1].endswith("pass")
    assert "never" in lines[2]
    assert "?" in lines[2]
    assert lines[2].endswith("FAIL: worst inf over 3 s")
