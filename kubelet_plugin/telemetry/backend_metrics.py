"""Metrics of backends of third parties, bounded: what they give is not believed to be few, or well formed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_driver.hardware import BackendMetric
from dra_driver.ports import MetricsSource

__all__ = ["MOST_NAMES", "MOST_VALUES", "backend_families", "measured"]

MOST_NAMES: Final = 32
MOST_VALUES: Final = 1000
_MOST_LABELS: Final = 8
_TEXT: Final = 200
_LABEL_VALUE: Final = 128
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

log = structlog.get_logger(__name__)


def measured(source: MetricsSource) -> Sequence[BackendMetric]:
    """Return what a backend measures, without what is no metric. Blocks; does not raise."""
    try:
        told: Iterable[object] = source.metrics()
        taken = [m for _, m in zip(range(MOST_VALUES), told, strict=False)]
        return [m for m in taken if isinstance(m, BackendMetric) and _is_sound(m)]
    except BaseException as e:  # also SystemExit: nothing that a backend raises ends the agent
        log.warning("a backend could not be measured", error=f"{type(e).__name__}: {e}")
        return ()


def backend_families(told: Mapping[str, Sequence[BackendMetric]]) -> Iterator[Metric]:
    """Return metrics for Prometheus, by the names of their backends; of two with one name the first.

    All values of one name have the labels, the text and the kind of the first of them; those that have other
    labels are left out, and so are repeated ones.
    """
    for backend, metrics in sorted(told.items()):
        prefix = f"dra_driver_backend_{re.sub(r'[^a-z0-9_]', '_', backend.lower())}_"
        by_name: dict[str, list[BackendMetric]] = {}
        for metric in metrics:
            if metric.name in by_name or len(by_name) < MOST_NAMES:
                by_name.setdefault(metric.name, []).append(metric)
        for name, values in by_name.items():
            yield _family(prefix + name, values)


def _family(name: str, values: Sequence[BackendMetric]) -> Metric:
    first = values[0]
    labels = sorted(first.labels)
    kind = CounterMetricFamily if first.counter else GaugeMetricFamily
    family = kind(name, first.text[:_TEXT], labels=labels)
    seen: set[tuple[str, ...]] = set()
    for value in values:
        key = tuple(str(value.labels.get(label, ""))[:_LABEL_VALUE] for label in labels)
        if sorted(value.labels) == labels and key not in seen:
            seen.add(key)
            family.add_metric(key, value.value)
    return family


def _is_sound(metric: BackendMetric) -> bool:
    """Return whether a third party's code returned what the fields say."""
    given: tuple[object, ...] = (metric.name, metric.text, metric.value, metric.labels)
    match given:
        case (str(name), str(), int() | float() as value, Mapping() as labels):
            names = [name, *labels]
            return (
                not math.isnan(value)
                and len(labels) <= _MOST_LABELS
                and all(isinstance(n, str) and _NAME.fullmatch(n) is not None for n in names)
            )
        case _:
            return False
