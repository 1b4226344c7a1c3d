"""What is lent for a pod: devices that kube-scheduler takes, wherever there are any."""

from __future__ import annotations

import itertools
import random
from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED
from examples import share

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import PoolName
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID, is_controller_taint
from dra_driver.structured import (
    AllocatedState,
    Budget,
    DeviceID,
    LoanChoice,
    NoLoan,
    PersistentMap,
    PoolPolicy,
    Snapshot,
    choose_loans,
    scheduler_takes,
)

OTHER = "nic.example.com"
ROOT = "root"
STANDARD = "resource.kubernetes.io/pcieRoot"
BROKEN = {"key": "broken", "effect": "NoSchedule"}
NODES = ("n1", "n2")
CLASSES = [
    codec.convert(DeviceClass, builders.device_class(name, f'device.driver == "{driver}"'))
    for name, driver in (("gpu", DRIVER), ("nic", OTHER))
]
NODE_OBJECTS = [codec.convert(Node, builders.node(name)) for name in NODES]


def _root(rng: random.Random, *, lists: bool) -> str | list[str]:
    if not lists or rng.random() < 0.3:
        return rng.choice("ab")
    return rng.sample("abc", rng.choice([1, 2, 2, 3]))


class MixedCluster:
    """Two nodes with GPUs of ours, some cut into halves or taken or broken, and NICs of another driver.

    With ``lists`` the NICs are at several PCIe roots, and are to have one in common with the GPUs.
    """

    def __init__(self, rng: random.Random, *, cut: bool, lists: bool = False) -> None:
        name_of_root = STANDARD if lists else ROOT
        self.slices: list[dict[str, Any]] = []
        self.taken: list[tuple[DeviceID, str]] = []
        for node in NODES:
            devices, sets = [], []
            for i in range(rng.randrange(1, 4)):
                name, root = f"gpu-{i}", rng.choice("ab")
                sets.append({"name": name, "counters": {"memory": {"value": "2"}}})
                halves = cut and rng.random() < 0.5
                for part, amount in (("", 2), ("-x", 1), ("-y", 1))[: 3 if halves else 1]:
                    taints = [PROTECTED] + [BROKEN] * (rng.random() < 0.1)
                    uses = [{"counterSet": name, "counters": {"memory": {"value": str(amount)}}}]
                    more: dict[str, Any] = {"consumesCounters": uses} if halves else {}
                    # kube-scheduler looks at devices in this order: small ones do not always come first.
                    devices.append(
                        builders.device(name + part, taints=taints, attributes={name_of_root: root}, **more)
                    )
                if rng.random() < 0.2:
                    taken = name + ("-x" if halves else "")
                    self.taken.append((DeviceID(DRIVER, PoolName(node), taken), "default/other"))
            if rng.random() < 0.5:
                rng.shuffle(devices)
            count = 2 if cut else 1
            self.slices.append(builders.resource_slice(node, *devices, name=f"{node}-0", count=count))
            if cut:
                self.slices.append(
                    builders.resource_slice(node, name=f"{node}-1", count=2, sharedCounters=sets)
                )
            nics = [
                builders.device(f"nic-{i}", attributes={name_of_root: _root(rng, lists=lists)})
                for i in range(rng.randrange(0, 5 if lists else 3))
            ]
            if nics:
                self.slices.append(builders.resource_slice(node, *nics, driver=OTHER, name=f"{node}-nic"))
        wanted = builders.request(count=rng.choice([1, 1, 2, None]))
        requests = [wanted]
        aligned: dict[str, Any] = {}
        if lists:
            nic = builders.request("nic", "nic", count=rng.choice([1, 1, 2]))
            requests.insert(rng.randrange(2), nic)
            aligned = {"constraints": [{"matchAttribute": STANDARD}]}
        elif rng.random() < 0.6:
            requests.insert(rng.randrange(2), builders.request("nic", "nic"))
            if rng.random() < 0.7:
                aligned = {"constraints": [{"matchAttribute": f"{DRIVER}/{ROOT}", "requests": ["gpu"]}]}
        self.claims = [codec.convert(ResourceClaim, builders.claim("c", *requests, uid="c", **aligned))]
        if rng.random() < 0.3:
            self.claims.append(codec.convert(ResourceClaim, builders.claim("d", uid="d")))

    def snapshot(self, lent: dict[PoolID, frozenset[str]] | None = None) -> Snapshot:
        """The cluster as it is, or as it is published with devices lent."""
        bodies = [self._with(body, lent or {}) for body in self.slices]
        return Snapshot.build(
            slices=[codec.convert(ResourceSlice, b) for b in bodies],
            classes=CLASSES,
            nodes=NODE_OBJECTS,
            allocated=AllocatedState().with_devices(self.taken),
        )

    def _with(self, body: dict[str, Any], lent: dict[PoolID, frozenset[str]]) -> dict[str, Any]:
        spec = body["spec"]
        names = lent.get(PoolID(spec["driver"], spec["pool"]["name"]), frozenset())
        if not names or "devices" not in spec:
            return body
        devices = sorted(spec["devices"], key=lambda d: d["name"] not in names)
        bare = [
            {**d, "taints": [t for t in d["taints"] if t != PROTECTED]} if d["name"] in names else d
            for d in devices
        ]
        return {**body, "spec": {**spec, "devices": bare}}

    def serves(self, node: str, devices: frozenset[str]) -> bool:
        """Return whether kube-scheduler takes devices that are lent, and of ours no others."""
        pool = PoolID(DRIVER, PoolName(node))
        found = scheduler_takes(self.snapshot({pool: devices}), self.claims, node)
        if isinstance(found, str):
            return False
        return {d.device for of in found for d in of if d.driver == DRIVER} <= devices

    def free(self, node: str) -> list[str]:
        taken = {d.device for d, _ in self.taken if d.pool == node}
        of_node = next(s for s in self.slices if s["spec"]["nodeName"] == node)
        return [d["name"] for d in of_node["spec"]["devices"] if d["name"] not in taken]

    def has_choice(self, node: str) -> bool:
        """Return whether anything at all can be lent on a node that serves."""
        free = self.free(node)
        return any(
            self.serves(node, frozenset(devices))
            for size in range(1, len(free) + 1)
            for devices in itertools.combinations(free, size)
        )

    def choose(self) -> LoanChoice | NoLoan:
        found = self.choices_of(1)
        if isinstance(found, NoLoan):
            return found
        (choice,) = found
        return choice

    def choices_of(self, most: int) -> tuple[LoanChoice, ...] | NoLoan:
        snapshot = self.snapshot()
        ours = {PoolID(DRIVER, PoolName(n)) for n in NODES}
        others = {PoolID(s["spec"]["driver"], PoolName(s["spec"]["pool"]["name"])) for s in self.slices}
        return choose_loans(
            snapshot,
            self.claims,
            nodes=NODES,
            most=most,
            ours=ours,
            pools=PersistentMap((p, PoolPolicy()) for p in sorted(ours | others)),
            slices=[codec.convert(ResourceSlice, s) for s in self.slices],
            rules=(),
            held=snapshot.allocated,
            budget=Budget(),
        )


@pytest.mark.parametrize("form", ["whole", "cut", "whole beside lists", "cut beside lists"])
@pytest.mark.parametrize("batch", share(range(4), 1))
def test_devices_are_lent_that_kube_scheduler_takes_wherever_there_are_any(batch: int, form: str) -> None:
    lent = none = 0
    for seed in range(25 * batch, 25 * batch + 25):
        world = MixedCluster(random.Random(seed), cut="cut" in form, lists="lists" in form)
        found = world.choose()
        if isinstance(found, LoanChoice):
            lent += 1
            ((pool, devices),) = found.devices.items()
            assert pool.pool == found.node
            assert devices <= set(world.free(found.node)), seed
            assert world.serves(found.node, devices), seed
            # Not one more than it takes: each of them is kept from everybody else.
            assert not any(world.serves(found.node, devices - {d}) for d in devices), seed
        else:
            none += 1
            assert not any(map(world.has_choice, NODES)), (seed, found.why())
    assert lent
    assert none


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_what_is_lent_on_several_nodes_serves_on_each_of_them(cut: bool) -> None:
    several = 0
    for seed in range(40):
        world = MixedCluster(random.Random(seed), cut=cut)
        found = world.choices_of(3)
        if isinstance(found, NoLoan):
            continue
        assert found[0] == world.choose(), seed
        names = [one.node for one in found]
        assert len(set(names)) == len(names)
        several += len(found) > 1
        for one in found:
            ((pool, devices),) = one.devices.items()
            assert pool.pool == one.node
            assert world.serves(one.node, devices), seed
        # A node that is left out has nothing that would serve. What is chosen on the others was tried above.
        assert not any(world.has_choice(node) for node in NODES if node not in names), seed
    assert several


def test_lent_devices_lose_our_taint_alone() -> None:
    world = MixedCluster(random.Random(1), cut=False)
    world.slices[0]["spec"]["devices"][0]["taints"] = [PROTECTED, BROKEN]
    assert all(
        is_controller_taint(t) or t.key == "broken"
        for s in world.snapshot().index.devices(PoolID(DRIVER, PoolName("n1")))
        for t in s.device.taints
    )
    found = world.choose()
    assert isinstance(found, NoLoan) or "gpu-0" not in found.devices.get(
        PoolID(DRIVER, PoolName("n1")), frozenset()
    )


def test_nothing_is_lent_where_kube_scheduler_fails_on_counters_that_are_over_committed() -> None:
    """It takes no device of a pool with such a counter, whichever counters that device consumes."""
    world = MixedCluster(random.Random(0), cut=False)

    def part(name: str, counters: str, amount: int) -> dict[str, Any]:
        uses = [{"counterSet": counters, "counters": {"memory": {"value": str(amount)}}}]
        return builders.device(name, taints=[PROTECTED], consumesCounters=uses)

    devices = [part("gpu-0", "gpu-0", 2), part("gpu-0-x", "gpu-0", 1), part("gpu-1-x", "gpu-1", 1)]
    sets = [{"name": f"gpu-{i}", "counters": {"memory": {"value": "2"}}} for i in range(2)]
    world.slices = [
        builders.resource_slice("n1", *devices, name="n1-0", count=2),
        builders.resource_slice("n1", name="n1-1", count=2, sharedCounters=sets),
    ]
    world.claims = [codec.convert(ResourceClaim, builders.claim("c", uid="c"))]
    world.taken = []
    assert isinstance(world.choose(), LoanChoice)
    # Two claims that hold what excludes each other: our own search goes on with the other GPU.
    world.taken = [(DeviceID(DRIVER, PoolName("n1"), n), f"default/{n}") for n in ("gpu-0", "gpu-0-x")]
    found = world.choose()
    assert isinstance(found, NoLoan)
    assert found.why().startswith("kube-scheduler would not find them on node n1")
