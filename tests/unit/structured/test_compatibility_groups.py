"""Compatibility groups (KEP-5963): every allocation keeps the rule, and none that keeps it is missed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from allocator_oracle import allocate_by_scan

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DoesNotFit,
    Snapshot,
    Strategy,
    allocate,
    scheduler_takes,
)

Groups = Sequence[str]


def partition(name: str, amount: int, *sets: tuple[str, Groups], model: str = "a") -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {"model": {"string": model}},
        "consumesCounters": [
            {
                "counterSet": of,
                "counters": {"slices": {"value": str(amount)}},
                **({"compatibilityGroups": list(groups)} if groups else {}),
            }
            for of, groups in sets
        ],
    }


def cluster(
    *devices: dict[str, Any], sets: Iterable[str] = ("g",), nodes: Iterable[str] = ("n1",)
) -> Snapshot:
    slices = []
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
        spec = {"driver": "gpu.example.com", "nodeName": node, "pool": pool}
        counters = [{"name": of, "counters": {"slices": {"value": "4"}}} for of in sets]
        slices += [
            {"metadata": {"name": f"{node}-devices"}, "spec": {**spec, "devices": list(devices)}},
            {"metadata": {"name": f"{node}-counters"}, "spec": {**spec, "sharedCounters": counters}},
        ]
    return Snapshot.build(
        nodes=[Node(metadata=ObjectMeta(name=node)) for node in nodes],
        slices=[codec.convert(ResourceSlice, s) for s in slices],
        classes=[DeviceClass(metadata=ObjectMeta(name="gpu"))],
        allocated=AllocatedState(),
    )


def claim(name: str, count: int = 1, model: str = "") -> ResourceClaim:
    cel = {"cel": {"expression": f'device.attributes["gpu.example.com"].model == "{model}"'}}
    exactly = {"deviceClassName": "gpu", "count": count, **({"selectors": [cel]} if model else {})}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return codec.convert(ResourceClaim, {"metadata": {"name": name, "namespace": "d"}, "spec": spec})


def devices_of(outcome: object) -> list[str]:
    assert isinstance(outcome, Allocated), outcome
    return [r.device for result in outcome.results for r in result.devices.results]


def keeps_the_rule(devices: Iterable[dict[str, Any]]) -> bool:
    """Say of devices that are allocated together whether they may be: written down as the API says it."""
    of: dict[str, list[set[str]]] = {}
    taken: dict[str, int] = {}
    for device in devices:
        for c in device["consumesCounters"]:
            of.setdefault(c["counterSet"], []).append(set(c.get("compatibilityGroups", ())))
            taken[c["counterSet"]] = taken.get(c["counterSet"], 0) + int(c["counters"]["slices"]["value"])
    for groups in of.values():
        if any(groups) and not set.intersection(*groups):
            return False
    return all(amount <= 4 for amount in taken.values())


def test_pairs_that_share_groups_are_not_enough_all_have_to_share_one() -> None:
    pairwise = cluster(*(partition(n, 1, ("g", n)) for n in ("ab", "bc", "ac")))
    assert len(devices_of(allocate(pairwise, [claim("c", 2)]))) == 2
    assert isinstance(allocate(pairwise, [claim("c", 3)]), DoesNotFit)
    common = cluster(*(partition(n, 1, ("g", n)) for n in ("ab", "bc", "bd")))
    assert len(devices_of(allocate(common, [claim("c", 3)]))) == 3


def test_what_is_allocated_counts_also_of_other_claims_and_without_groups() -> None:
    now = cluster(
        partition("plain", 1, ("g", "")), partition("a", 1, ("g", "a")), partition("b", 1, ("g", ""))
    )
    first = allocate(now, [claim("first")], nodes=["n1"])
    assert devices_of(first) == ["plain"]
    assert isinstance(first, Allocated)
    held = now.with_allocated(now.allocated.with_allocations([("d/first", first.results[0])]))
    assert devices_of(allocate(held, [claim("second")])) == ["b"]
    both = allocate(held, [claim("second"), claim("third")])
    assert isinstance(both, DoesNotFit)
    assert "compatibility groups" not in both.summary()  # two devices are too many, whichever is chosen
    rest = held.with_slices(
        [
            codec.convert(
                ResourceSlice, {"metadata": {"name": "n1-devices"}, "spec": spec_of(held, "plain", "a")}
            )
        ]
    )
    refused = allocate(rest, [claim("second")])
    assert isinstance(refused, DoesNotFit)
    assert "excluded by the compatibility groups of partitions in use (counter set g)" in refused.summary()


def spec_of(now: Snapshot, *names: str) -> dict[str, Any]:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    devices = [codec.plain(e.device) for e in now.view("n1").pools[0].devices if e.id.device in names]
    return {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices}


def test_devices_that_differ_in_groups_alone_do_not_stand_for_one_another() -> None:
    now = cluster(partition("a", 1, ("g", "a")), partition("b", 1, ("g", "")), partition("c", 1, ("g", "")))
    for strategy in Strategy:
        assert devices_of(allocate(now, [claim("c", 2)], strategy=strategy)) == ["b", "c"]
    assert devices_of(allocate_by_scan(now, [claim("c", 2)])) == ["b", "c"]


def test_nodes_that_differ_in_groups_alone_do_not_stand_for_one_another() -> None:
    apart = cluster(partition("a", 1, ("g", "a")), partition("b", 1, ("g", "b")), nodes=("n1",))
    together = cluster(partition("a", 1, ("g", "a")), partition("b", 1, ("g", "a")), nodes=("n2",))
    now = Snapshot.build(
        nodes=[*apart.nodes.values(), *together.nodes.values()],
        slices=[s for part in (apart, together) for s in slices_of(part)],
        classes=[DeviceClass(metadata=ObjectMeta(name="gpu"))],
        allocated=AllocatedState(),
    )
    outcome = allocate(now, [claim("c", 2)])
    assert isinstance(outcome, Allocated)
    assert outcome.node == "n2"


def slices_of(now: Snapshot) -> list[ResourceSlice]:
    return [slice_ for _, slice_ in now.index._by_name.values()]


def test_sets_are_not_compared_with_one_another() -> None:
    now = cluster(partition("a", 1, ("g", "a")), partition("b", 1, ("h", "b")), sets=("g", "h"))
    assert sorted(devices_of(allocate(now, [claim("c", 2)]))) == ["a", "b"]


@pytest.mark.parametrize("seed", range(60))
def test_every_answer_keeps_the_rule_and_none_is_missed(seed: int) -> None:
    random = Random(seed)
    choices = ("", "", "a", "b", "ab", "bc", "ac")
    devices = []
    for i in range(random.randint(3, 6)):
        sets = random.choice((("g",), ("g",), ("h",), ("g", "h")))
        of = [(name, random.choice(choices)) for name in sets]
        devices.append(partition(f"d{i}", random.choice((1, 1, 2)), *of, model=random.choice("xy")))
    by_name = {d["name"]: d for d in devices}
    now = cluster(*devices, sets=("g", "h"), nodes=("n1", "n2"))
    held: dict[str, list[str]] = {"n1": [], "n2": []}
    for step in range(6):
        asked = [
            claim(f"c{step}-{k}", random.choice((1, 1, 2)), random.choice(("", "x", "y")))
            for k in range(random.choice((1, 1, 2)))
        ]
        outcome = allocate(now, asked)
        scanned = allocate_by_scan(now, asked)
        first = allocate(now, asked, strategy=Strategy.FIRST_FIT)
        assert outcome.__class__ is scanned.__class__ is first.__class__
        if isinstance(outcome, Allocated):
            assert isinstance(scanned, Allocated)
            assert (outcome.node, outcome.results) == (scanned.node, scanned.results)
            assert keeps_the_rule(by_name[n] for n in (*held[outcome.node], *devices_of(outcome)))
            held[outcome.node] += devices_of(outcome)
            given = [(str(c.key), r) for c, r in zip(asked, outcome.results, strict=True)]
            now = now.with_allocated(now.allocated.with_allocations(given))
            continue
        assert not any(possible(asked, by_name, held[node]) for node in held)
        assert all(isinstance(scheduler_takes(now, asked, node), str) for node in held)


def possible(asked: Sequence[ResourceClaim], devices: dict[str, Any], held: Sequence[str]) -> bool:
    """Return whether some choice of free devices serves the claims beside what is held."""
    wanted: list[str] = []
    for one in asked:
        (request,) = one.spec.devices.requests or ()
        assert request.exactly is not None
        texts = [s.cel.expression for s in request.exactly.selectors if s.cel is not None]
        wanted += [texts[0][-2] if texts else ""] * request.exactly.count
    free = [name for name in devices if name not in held]
    return any(
        all(
            not m or devices[n]["attributes"]["model"]["string"] == m
            for n, m in zip(chosen, wanted, strict=True)
        )
        and keeps_the_rule(devices[n] for n in (*held, *chosen))
        for chosen in itertools.permutations(free, len(wanted))
    )
