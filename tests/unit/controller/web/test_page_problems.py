"""The problems of the fleet on the page: the same that ``status`` shows, of few pools at a time."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER

from controller.web.problems import MOST_PROBLEMS, PageProblems
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.fleet import Fleet, Problem
from dra_driver.ownership import PoolID

SICK = {
    "reason": "RowRemapPending",
    "severity": "degraded",
    "message": "rows",
    "since": "2026-11-29T00:00:00Z",
}


def sick_inventory(node: str) -> dict[str, Any]:
    return builders.inventory(node, builders.device("gpu-0", "40Gi") | {"health": [SICK]})


def test_of_a_large_fleet_only_what_changed_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    found = PageProblems(lambda: 1_800_000_000.0)
    fleet = Fleet({DRIVER}, lambda pool: found.changed(pool) if pool is not None else None)
    looked: list[PoolID] = []
    look = fleet.pool_problems

    def counting(key: PoolID, *, answers: bool = True) -> tuple[Problem, ...]:
        looked.append(key)
        return look(key, answers=answers)

    monkeypatch.setattr(fleet, "pool_problems", counting)
    for i in range(1000):
        fleet.put_node(codec.convert(Node, builders.node(f"n{i}", uid=f"uid-n{i}")))
        fleet.put_inventory(codec.convert(DeviceInventory, sick_inventory(f"n{i}")))
    problems, total = found.look(fleet, lambda *_: "")
    assert (len(problems), total, len(looked)) == (MOST_PROBLEMS, 1000, 1000)
    looked.clear()
    well = builders.inventory("n7", builders.device("gpu-0", "40Gi"))
    fleet.put_inventory(codec.convert(DeviceInventory, well))
    assert found.look(fleet, lambda *_: "")[1] == 999
    assert looked == [PoolID(DriverName(DRIVER), PoolName("n7"))]
