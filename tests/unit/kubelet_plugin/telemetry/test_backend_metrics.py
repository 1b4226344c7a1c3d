"""Metrics of backends of third parties: prefixed, bounded, and no danger to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from prometheus_client.core import Metric

from dra_driver.hardware import BackendMetric
from kubelet_plugin.telemetry.backend_metrics import MOST_NAMES, MOST_VALUES, backend_families, measured
from kubelet_plugin.telemetry.metrics import Metrics, Sources

NOTHING: Any = Sources(
    devices=tuple, claims=tuple, failures=dict, registrations=lambda: 0, registered=lambda: False
)


class Source:
    def __init__(self, told: Any) -> None:
        self._told = told

    def metrics(self) -> Sequence[BackendMetric]:
        if isinstance(self._told, BaseException):
            raise self._told
        told: Sequence[BackendMetric] = self._told
        return told


def test_they_are_served_with_the_backends_name() -> None:
    told = [
        BackendMetric("links", "Links trained anew", 3, {"npu": "npu0"}, counter=True),
        BackendMetric("links", "", 4, {"npu": "npu1"}, counter=True),
        BackendMetric("fan_rpm", "Turns", 1200),
    ]
    text = Metrics(NOTHING).render((), {"acme-2": measured(Source(told))}).decode()
    assert "# HELP dra_driver_backend_acme_2_links_total Links trained anew\n" in text
    assert 'dra_driver_backend_acme_2_links_total{npu="npu1"} 4.0\n' in text
    assert "# TYPE dra_driver_backend_acme_2_fan_rpm gauge\n" in text
    assert "dra_driver_registered 0.0" in text


@pytest.mark.parametrize(
    "bad",
    [
        None,
        BackendMetric("Upper", "", 1),
        BackendMetric("nan", "", float("nan")),
        BackendMetric("text", "", "many"),  # type: ignore[arg-type]
        BackendMetric("labels", "", 1, {"a-b": "c"}),
        BackendMetric("labels", "", 1, ["a"]),  # type: ignore[arg-type]
        BackendMetric("labels", "", 1, {f"l{i}": "" for i in range(9)}),
    ],
)
def test_what_is_no_metric_is_left_out(bad: Any) -> None:
    assert [m.name for m in measured(Source([bad, BackendMetric("good", "", 1)]))] == ["good"]


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1)])
def test_a_backend_that_fails_costs_its_own_metrics(error: BaseException) -> None:
    assert measured(Source(error)) == ()


def families(*told: BackendMetric) -> list[Metric]:
    return list(backend_families({"acme": told}))


def test_names_and_values_are_few() -> None:
    def endless() -> Iterator[BackendMetric]:
        while True:
            yield BackendMetric("one", "", 1)

    assert len(measured(Source(endless()))) == MOST_VALUES
    assert len(families(*(BackendMetric(f"n{i}", "", i) for i in range(MOST_NAMES + 9)))) == MOST_NAMES


def test_values_that_do_not_go_together_are_left_out() -> None:
    (family,) = families(
        BackendMetric("x", "", 1, {"a": "1"}),
        BackendMetric("x", "", 2, {"a": "1"}),
        BackendMetric("x", "", 3, {"b": "1"}),
        BackendMetric("x", "", 4, {"a": "y" * 1000}),
    )
    assert [(s.labels["a"][:3], len(s.labels["a"]), s.value) for s in family.samples] == [
        ("1", 1, 1),
        ("yyy", 128, 4),
    ]
