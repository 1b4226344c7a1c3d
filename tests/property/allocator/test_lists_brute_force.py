"""Constraints over lists in attributes, against trying everything and against solving every node."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
from allocator_oracle import allocate_by_scan
from allocator_world import annotated, claim, device, exactly, names, pool, snapshot

from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import Allocated, DoesNotFit, Snapshot, Strategy, allocate, scheduler_takes

ROOT, RAIL = "resource.kubernetes.io/pcieRoot", "gpu.example.com/rail"
Values = frozenset[object]


class FewNodes:
    """A few nodes; which device has which values, and a claim for devices with common or different ones."""

    def __init__(self, random: Random) -> None:
        self.devices: dict[str, dict[str, Values]] = {}
        slices = []
        for n in range(random.choice((1, 2, 3))):
            made = []
            for i in range(random.randint(2, 5)):
                raw: dict[str, Any] = {}
                if random.random() < 0.9:
                    raw[ROOT] = self._value(random, "abcd")
                if random.random() < 0.9:
                    raw["rail"] = self._value(random, (0, 1, 2, True)[: 3 + (random.random() < 0.05)])
                made.append(device(f"d{i}", random.choice(("10Gi", "20Gi")), attributes=raw))
                self.devices[f"n{n}/d{i}"] = {
                    name: frozenset((type(v), v) for v in (of if isinstance(of, list) else [of]))
                    for name, of in ((ROOT, raw.get(ROOT, [])), (RAIL, raw.get("rail", [])))
                }
            slices.append(pool(f"n{n}", *made))
        self.snapshot: Snapshot = snapshot(*slices)
        counts = random.choice(((2,), (3,), (1, 1), (2, 1), (1, 1, 1)))
        self.number = sum(counts)
        self.rules = [
            (random.random() < 0.7, random.choice((ROOT, RAIL))) for _ in range(random.choice((1, 1, 2)))
        ]
        constraints = [{"matchAttribute" if same else "distinctAttribute": name} for same, name in self.rules]
        self.claim: ResourceClaim = claim("c", *map(exactly, counts), constraints=constraints)

    @staticmethod
    def _value(random: Random, of: Any) -> Any:
        if random.random() < 0.4:
            return random.choice(of)
        first = random.choice(of)
        same = [v for v in of if type(v) is type(first)]
        return [first, *random.sample(same, random.randrange(len(same)))]

    def holds(self, chosen: tuple[str, ...]) -> bool:
        """Whether the devices satisfy the constraints, as KEP-5491 has them."""
        for same, name in self.rules:
            values = [self.devices[d][name] for d in chosen]
            if not all(values):
                return False
            if same and not frozenset.intersection(*values):
                return False
            if not same and any(a & b for a, b in combinations(values, 2)):
                return False
        return True

    def fits(self) -> bool:
        """Whether devices of one node satisfy the claim, by trying everything."""
        nodes = {d.partition("/")[0] for d in self.devices}
        return any(
            self.holds(chosen)
            for node in nodes
            for chosen in combinations([d for d in self.devices if d.startswith(f"{node}/")], self.number)
        )


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 20))])
def test_devices_with_common_or_different_values_are_found_where_there_are_any(batch: int) -> None:
    found = none = taken = 0
    for seed in range(60 * batch, 60 * batch + 60):
        world = FewNodes(Random(seed))
        expected = world.fits()
        for strategy in Strategy:
            outcome = allocate(world.snapshot, [world.claim], strategy=strategy)
            assert isinstance(outcome, Allocated if expected else DoesNotFit), (seed, strategy, outcome)
            if isinstance(outcome, Allocated):
                assert world.holds(tuple(names(outcome.results[0]))), (seed, strategy)
        best = allocate(world.snapshot, [world.claim])
        scan = allocate_by_scan(world.snapshot, [world.claim])
        if isinstance(best, Allocated):
            assert isinstance(scan, Allocated)
            assert (best.node, names(best.results[0])) == (scan.node, names(scan.results[0])), seed
        # kube-scheduler may fail where there is an answer, never succeed where there is none.
        for node in world.snapshot.nodes:
            answer = scheduler_takes(world.snapshot, [world.claim], node)
            if not isinstance(answer, str) and all(same for same, _ in world.rules):
                assert world.holds(tuple(f"{d.pool}/{d.device}" for d in answer[0])), seed
                taken += 1
        found += expected
        none += not expected
    assert min(found, none, taken) > 5


def test_devices_with_lists_are_close_where_they_have_a_value_in_common() -> None:
    def fit(wish: str, *roots: object) -> list[str]:
        made = [device(f"d{i}", attributes={ROOT: root}) for i, root in enumerate(roots)]
        outcome = allocate(snapshot(pool("n", *made)), [annotated(claim("c", exactly(2)), wish)])
        assert isinstance(outcome, Allocated), outcome
        return names(outcome.results[0])

    for wish in ("preferred:pcieRoot", "required:pcieRoot"):
        assert fit(wish, "a", "b", ["c", "b"]) == ["n/d1", "n/d2"]
        assert fit(wish, ["a", "b"], ["c", "d"], ["e", "d"]) == ["n/d1", "n/d2"]
    assert fit("preferred:pcieRoot", ["a", "b"], ["c", "d"]) == ["n/d0", "n/d1"]


def test_a_refusal_names_the_values_that_devices_lack_in_common() -> None:
    made = [device("d0", attributes={ROOT: ["a", "b"]}), device("d1", attributes={ROOT: ["c"]})]
    one = claim("c", exactly(2), constraints=[{"matchAttribute": ROOT}])
    outcome = allocate(snapshot(pool("n", *made)), [one])
    assert isinstance(outcome, DoesNotFit)
    assert f"2 devices, the same {ROOT}" in str(outcome.reasons)
    assert "absent" not in str(outcome.reasons)
