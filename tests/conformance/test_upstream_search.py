"""What kube-scheduler takes, with its defects, against the recorded results of Kubernetes 1.36."""

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.structured import AllocatedState, DeviceID, Features, Snapshot, scheduler_takes

DATA = Path(__file__).parent / "data"
FILES = {
    "quirk": DATA / "allocator_quirk_cases.json.gz",
    "random": DATA / "allocator_random_cases.json.gz",
    "lists": DATA / "allocator_list_cases.json.gz",
    "upstream": Path(__file__).parents[3] / "shared/corpus/allocator/upstream_cases.json.gz",
}


@cache
def load(name: str) -> list[dict[str, Any]]:
    path = FILES[name]
    if not path.exists():
        pytest.skip(f"the {name} cases are not part of this repository; they are expected at {path}")
    cases: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["cases"]
    return cases


def device_id(raw: dict[str, str]) -> DeviceID:
    return DeviceID(DriverName(raw["driver"]), PoolName(raw["pool"]), raw["device"])


def snapshot_of(case: dict[str, Any]) -> Snapshot:
    held = [
        [(device_id(d), d.get("claim", "")) for d in case.get(name) or []]
        for name in ("already_allocated_devices", "allocated_shared_device_ids")
    ]
    capacity = {
        device_id(d): {n: Quantity.parse(q) for n, q in d["capacity"].items()}
        for d in case.get("allocated_capacity") or []
    }
    return Snapshot.build(
        slices=[codec.convert(ResourceSlice, s) for s in case["slices"] or []],
        classes=[codec.convert(DeviceClass, c) for c in case["classes"] or []],
        nodes=[codec.convert(Node, n) for n in case["nodes"] or []],
        allocated=AllocatedState().with_devices(*held).with_capacity(capacity),
        features=replace(Features.from_names(case.get("features") or {}), admin_access_in_use=False),
    )


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("quirk", 1),
        ("random", 10),
        pytest.param("random", 1, marks=pytest.mark.long),
        ("lists", 6),
        pytest.param("lists", 1, marks=pytest.mark.long),
        ("upstream", 1),
    ],
)
def test_the_same_devices_are_taken_in_every_case_that_was_recorded(name: str, each: int) -> None:
    points = defects = 0
    for case in load(name):
        # Cases with a defect are few, and the reason for this search.
        if case["go_quirks"]:
            defects += 1
        elif points % each and each > 1:
            points += 1
            continue
        snapshot = snapshot_of(case)
        claims = [codec.convert(ResourceClaim, c) for c in case["claims"] or []]
        for number, pod in enumerate(case["pods"]):
            for node in snapshot.nodes:
                recorded = case["per_node"][number][node]["results"]
                taken = scheduler_takes(snapshot, [claims[i] for i in pod], node)
                expected = recorded and tuple(
                    tuple(device_id(r) for r in claim["results"] or ()) for claim in recorded
                )
                assert (None if isinstance(taken, str) else taken) == (
                    None if recorded is None else tuple(expected)
                ), f"{case['name']}, pod {number}, {node}: {taken}"
        points += 1
    assert points > 30
    assert name == "upstream" or defects > 5
