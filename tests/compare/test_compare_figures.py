"""How writes are counted, and what is printed of them."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from compare_audit import count
from compare_report import Figure, Row, figures_table, writes_table


def entry(
    agent: str, verb: str, resource: str, subresource: str = "", *, namespace: str = "n", code: int = 200
) -> str:
    about = {"resource": resource, "namespace": namespace}
    if subresource:
        about["subresource"] = subresource
    return json.dumps(
        {"userAgent": agent, "verb": verb, "objectRef": about, "responseStatus": {"code": code}}
    )


def test_writes_of_a_namespace_are_counted_by_writer_and_refused_ones_are_not() -> None:
    scheduler = "kube-scheduler/v1.36.2 (linux/amd64) kubernetes/1234/scheduler"
    lines = [
        entry(scheduler, "create", "pods", "binding", code=201),
        entry(scheduler, "create", "pods", "binding", code=409),
        entry(scheduler, "create", "pods", "binding", namespace="other"),
        entry("dra-driver-controller", "patch", "pods"),
        json.dumps({"userAgent": "x", "verb": "create", "responseStatus": {}}),
    ]
    assert count(lines, "n") == {
        ("kube-scheduler", "create pods/binding"): 1,
        ("dra-driver-controller", "patch pods"): 1,
    }


@pytest.mark.parametrize(
    ("figure", "ours", "alone", "ratio", "met"),
    [
        (Figure("", "s", ratio=1.5, speed=True), 20.0, 40.0, 2.0, True),
        (Figure("", "s", ratio=1.5, speed=True), 40.0, 40.0, 1.0, False),
        (Figure("", "s", ratio=1.5), 4.0, 2.0, 2.0, False),
        (Figure("", "s", ratio=1.5), 3.0, 2.0, 1.5, True),
        (Figure("", "s", most=2), 2.5, 0.1, 25.0, False),
        (Figure("", "s", most=2), 1.0, None, None, True),
        (Figure("", "s", most=2), None, 1.0, None, None),
        (Figure("", "s", ratio=1.5), 1.0, 0.0, None, None),
        (Figure("", "s"), 1.0, 2.0, 0.5, None),
    ],
)
def test_a_bar_is_met_or_missed_or_cannot_be_told(
    figure: Figure, ours: float | None, alone: float | None, ratio: float | None, met: bool | None
) -> None:
    row = Row(figure, ours, alone)
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.met is met


def test_tables_are_markdown_with_columns_of_one_width() -> None:
    rows = [
        Row(Figure("pods bound", "s", ratio=1.5, speed=True), 20.0, 40.0),
        Row(Figure("x", ""), None, 1.0),
    ]
    lines = figures_table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "pods bound",
        "20.0 s",
        "40.0 s",
        "2.00 × as fast",
        "at least 1.5: met",
    ]
    written = Counter({("kube-scheduler", "create pods/binding"): 5})
    lines = writes_table(written, Counter(), 10).splitlines()
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == ["all", "", "0.50", "–"]
