"""The estimate of what a look for devices costs kube-scheduler, beside what was measured."""

from __future__ import annotations

import pytest

from dra_driver.structured import look_seconds, scan_seconds


@pytest.mark.parametrize(("pools", "measured"), [(0, 42e-6), (100, 0.62e-3), (1_000, 18e-3), (5_000, 560e-3)])
def test_a_look_at_a_node_costs_what_was_measured(pools: int, measured: float) -> None:
    assert 0.9 < look_seconds(2 * pools, pools) / measured < 1.5


# Claims a second over all nodes: 310, 27.9 and 4.8.
@pytest.mark.parametrize(("nodes", "measured"), [(100, 1 / 310), (1_000, 1 / 27.9), (5_000, 1 / 4.8)])
def test_a_look_at_a_fleet_without_counters_costs_what_was_measured(nodes: int, measured: float) -> None:
    assert 0.9 < scan_seconds(nodes, nodes, 0) / measured < 1.5


def test_it_grows_with_everything_that_costs() -> None:
    base = scan_seconds(10, 100, 20)
    assert scan_seconds(11, 100, 20) > base
    assert scan_seconds(10, 101, 20) > base
    assert scan_seconds(10, 100, 21) > base
    assert scan_seconds(0, 0, 20) == 0
