"""What is granted for a pod: what kube-scheduler picks by itself, of what is free for us, too."""

from __future__ import annotations

import itertools
import random
from typing import Any

import builders
import pytest
from builders import DRIVER
from examples import share

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import (
    AllocatedState,
    Budget,
    DeviceID,
    GrantChoice,
    NoGrant,
    PersistentMap,
    PoolPolicy,
    Snapshot,
    choose_grants,
    scheduler_takes,
)
from dra_driver.structured.search.upstream import scheduler_picks

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
Of = tuple[frozenset[DeviceID], ...]


def of_ours(node: str) -> PoolID:
    return PoolID(DRIVER, PoolName(node))


class OpenCluster:
    """Slices as they are published, what claims have, and what is kept for others besides.

    Args:
        slices: of both nodes.
        claims: of the pod.
    """

    def __init__(self, slices: list[dict[str, Any]], *claims: dict[str, Any]) -> None:
        self.slices = [codec.convert(ResourceSlice, s) for s in slices]
        self.claims = [codec.convert(ResourceClaim, c) for c in claims]
        self.held = AllocatedState()
        self.kept: list[tuple[DeviceID, str]] = []
        self.used = {PoolID(s.spec.driver, s.spec.pool.name) for s in self.slices}

    def seen(self, held: AllocatedState) -> Snapshot:
        """Return the cluster, with what is allocated."""
        return Snapshot.build(slices=self.slices, classes=CLASSES, nodes=NODE_OBJECTS, allocated=held)

    def choices(
        self, most: int = 1, taken: AllocatedState | None = None
    ) -> tuple[GrantChoice, ...] | NoGrant:
        """Return what is granted."""
        return choose_grants(
            self.seen(taken or self.held.with_devices(self.kept)),
            self.claims,
            nodes=NODES,
            most=most,
            ours={of_ours(n) for n in NODES},
            pools=PersistentMap((p, PoolPolicy()) for p in sorted(self.used)),
            slices=self.slices,
            rules=(),
            held=self.held,
            budget=Budget(),
        )

    def choice(self) -> GrantChoice:
        """Return what is granted on the one node."""
        found = self.choices()
        assert not isinstance(found, NoGrant), found.why()
        (one,) = found
        return one

    def taken(self, node: str, held: AllocatedState | None = None) -> Of | None:
        """Return what kube-scheduler takes of ours on a node, by claim; None: the pod does not fit there."""
        found = scheduler_takes(self.seen(self.held if held is None else held), self.claims, node)
        if isinstance(found, str):
            return None
        return tuple(frozenset(d for d in of if d.driver == DRIVER) for of in found)

    def may_be_granted(self, node: str) -> bool:
        """Return whether what kube-scheduler takes on a node is free for us, too."""
        now = self.taken(node)
        return now is not None and now == self.taken(node, self.held.with_devices(self.kept))


def _root(rng: random.Random, *, lists: bool) -> str | list[str]:
    if not lists or rng.random() < 0.3:
        return rng.choice("ab")
    return rng.sample("abc", rng.choice([1, 2, 2, 3]))


def mixed(rng: random.Random, *, cut: bool, lists: bool) -> OpenCluster:
    """Return two nodes with GPUs of ours, some cut, taken, kept or broken, and with NICs of others.

    With ``lists`` the NICs are at several PCIe roots, and are to have one in common with the GPUs.
    """
    name_of_root = STANDARD if lists else ROOT
    slices: list[dict[str, Any]] = []
    taken: list[tuple[DeviceID, str]] = []
    kept: list[tuple[DeviceID, str]] = []
    for node in NODES:
        devices, sets = [], []
        for i in range(rng.randrange(1, 4)):
            name, root = f"gpu-{i}", rng.choice("ab")
            sets.append({"name": name, "counters": {"memory": {"value": "2"}}})
            halves = cut and rng.random() < 0.5
            for part, amount in (("", 2), ("-x", 1), ("-y", 1))[: 3 if halves else 1]:
                uses = [{"counterSet": name, "counters": {"memory": {"value": str(amount)}}}]
                more: dict[str, Any] = {"consumesCounters": uses} if halves else {}
                taints = [BROKEN] * (rng.random() < 0.1)
                # kube-scheduler looks at devices in this order: small ones do not always come first.
                devices.append(
                    builders.device(name + part, taints=taints, attributes={name_of_root: root}, **more)
                )
            one = DeviceID(DRIVER, PoolName(node), name + ("-x" if halves else ""))
            if rng.random() < 0.2:
                taken.append((one, "default/other"))
            elif rng.random() < 0.15:
                kept.append((one, "another pod"))
        if rng.random() < 0.5:
            rng.shuffle(devices)
        count = 2 if cut else 1
        slices.append(builders.resource_slice(node, *devices, name=f"{node}-0", count=count))
        if cut:
            slices.append(builders.resource_slice(node, name=f"{node}-1", count=2, sharedCounters=sets))
        nics = [
            builders.device(f"nic-{i}", attributes={name_of_root: _root(rng, lists=lists)})
            for i in range(rng.randrange(0, 5 if lists else 3))
        ]
        if nics:
            slices.append(builders.resource_slice(node, *nics, driver=OTHER, name=f"{node}-nic"))
    requests = [builders.request(count=rng.choice([1, 1, 2, None]))]
    aligned: dict[str, Any] = {}
    if lists:
        nic = builders.request("nic", "nic", count=rng.choice([1, 1, 2]))
        requests.insert(rng.randrange(2), nic)
        aligned = {"constraints": [{"matchAttribute": STANDARD}]}
    elif rng.random() < 0.6:
        requests.insert(rng.randrange(2), builders.request("nic", "nic"))
        if rng.random() < 0.7:
            aligned = {"constraints": [{"matchAttribute": f"{DRIVER}/{ROOT}", "requests": ["gpu"]}]}
    claims = [builders.claim("c", *requests, uid="c", **aligned)]
    if rng.random() < 0.3:
        claims.append(builders.claim("d", uid="d"))
    world = OpenCluster(slices, *claims)
    world.held = AllocatedState().with_devices(taken)
    world.kept = kept
    return world


FORMS = ["whole", "cut", "whole beside lists", "cut beside lists"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", share(range(4), 1))
def test_exactly_what_kube_scheduler_picks_is_granted_wherever_it_is_free_for_us(
    batch: int, form: str
) -> None:
    granted = none = kept = 0
    for seed in range(25 * batch, 25 * batch + 25):
        world = mixed(random.Random(seed), cut="cut" in form, lists="lists" in form)
        found = world.choices(2)
        served = set() if isinstance(found, NoGrant) else {one.node for one in found}
        assert served == {n for n in NODES if world.may_be_granted(n)}, seed
        if isinstance(found, NoGrant):
            none += 1
            kept += any(world.taken(n) is not None for n in NODES)
            continue
        granted += 1
        for one in found:
            assert one.claims == world.taken(one.node), seed
            assert one.devices.isdisjoint(d for d, _ in world.kept), seed
    assert granted
    assert none
    # Not every batch has such a case.
    assert kept or batch or "lists" in form


def test_the_node_is_our_choice_and_the_devices_are_not() -> None:
    """Best fit takes the node that has less left; there kube-scheduler takes the first device."""
    slices = [
        builders.resource_slice("n1", *(builders.device(f"gpu-{i}", "80Gi") for i in range(3))),
        builders.resource_slice("n2", builders.device("gpu-0", "80Gi"), builders.device("gpu-1", "10Gi")),
    ]
    world = OpenCluster(slices, builders.claim("c", uid="c"))
    found = world.choice()
    assert found == GrantChoice("n2", (frozenset({DeviceID(DRIVER, PoolName("n2"), "gpu-0")}),))


def test_a_device_is_granted_to_the_claim_that_gets_it() -> None:
    slices = [builders.resource_slice("n1", *(builders.device(f"gpu-{i}") for i in range(3)))]
    world = OpenCluster(slices, builders.claim("c", uid="c"), builders.claim("d", uid="d"))
    found = world.choice()
    assert [[d.device for d in of] for of in found.claims] == [["gpu-0"], ["gpu-1"]]


def test_why_nothing_is_granted() -> None:
    slices = [builders.resource_slice("n1", *(builders.device(f"gpu-{i}") for i in range(2)))]
    world = OpenCluster(slices, builders.claim("c", uid="c"))
    world.kept = [(DeviceID(DRIVER, PoolName("n1"), "gpu-0"), "another pod")]
    found = world.choices()
    assert isinstance(found, NoGrant)
    assert (
        "on node n1: kube-scheduler would take gpu.example.com/n1/gpu-0, which is kept for others"
        in found.why()
    )
    assert not found.new_node
    world.kept = [(DeviceID(DRIVER, PoolName("n1"), "gpu-1"), "another pod")]
    assert not isinstance(world.choices(), NoGrant)
    world.held = world.held.with_devices([(DeviceID(DRIVER, PoolName("n1"), "gpu-0"), "default/other")])
    found = world.choices()
    assert isinstance(found, NoGrant)
    assert found.new_node


def test_what_needs_no_grant_gets_none() -> None:
    """Admin access, which the API server admits; and devices of others."""
    slices = [
        builders.resource_slice("n1", builders.device("gpu-0"), builders.device("gpu-1")),
        builders.resource_slice("n1", builders.device("nic-0"), driver=OTHER, name="n1-nic"),
    ]
    look = builders.claim("look", builders.request(adminAccess=True), uid="look")
    nic = builders.claim("nic", builders.request("nic", "nic"), uid="nic")
    world = OpenCluster(slices, look, builders.claim("c", uid="c"), nic)
    found = world.choice()
    assert [len(of) for of in found.claims] == [0, 1, 0]


def test_a_node_is_left_out_where_kube_scheduler_would_take_a_device_of_a_pool_that_is_not_used() -> None:
    """Of our pools those that are changing hands: the API server refuses what kube-scheduler takes there."""
    other = f'device.driver in ["{DRIVER}", "{OTHER}"]'
    slices = [
        builders.resource_slice("n1", builders.device("gpu-0")),
        builders.resource_slice("n1", builders.device("gpu-0"), driver="a.example.com", name="a"),
    ]
    both = [{"cel": {"expression": other.replace(OTHER, "a.example.com")}}]
    world = OpenCluster(slices, builders.claim("c", builders.request(selectors=both), uid="c"))
    wide = codec.convert(DeviceClass, builders.device_class("gpu", "true"))
    CLASSES.append(wide)
    try:
        world.used.remove(PoolID(DriverName("a.example.com"), PoolName("n1")))
        found = world.choices()
        assert isinstance(found, NoGrant)
        assert "a.example.com/n1/gpu-0, of a pool that is not used now" in found.why()
    finally:
        CLASSES.remove(wide)


# --- shares -------------------------------------------------------------------------------------------------


def shared(rng: random.Random) -> tuple[OpenCluster, list[tuple[DeviceID, str]]]:
    """Return nodes with GPUs of which claims have shares, and the shares that are taken, each of 2Gi."""
    slices = [
        builders.resource_slice(
            n,
            *(
                builders.device(f"gpu-{i}", "8Gi", allowMultipleAllocations=True)
                for i in range(rng.randrange(1, 4))
            ),
        )
        for n in NODES
    ]
    shares = [
        (DeviceID(DRIVER, PoolName(s["spec"]["nodeName"]), d["name"]), f"default/other-{i}-{k}")
        for i, s in enumerate(slices)
        for d in s["spec"]["devices"]
        for k in range(rng.randrange(4))
    ]

    def request(name: str) -> dict[str, Any]:
        if rng.random() < 0.3:
            parts = [
                builders.request(f"s{i}", memory=m)
                for i, m in enumerate(rng.sample(["6Gi", "4Gi", "2Gi"], 2))
            ]
            return {"name": name, "firstAvailable": [{"name": p["name"], **p["exactly"]} for p in parts]}
        return builders.request(name, count=rng.choice([1, 1, 2]), memory=rng.choice(["2Gi", "4Gi"]))

    names = [f"r{i}" for i in range(rng.choice([1, 1, 2]))]
    claims = [builders.claim("c", *map(request, names), uid="c")]
    if rng.random() < 0.3:
        claims.append(builders.claim("d", request("r"), uid="d"))
    world = OpenCluster(slices, *claims)
    world.held = held_shares(shares)
    return world, shares


def test_a_share_that_is_kept_for_others_is_not_granted() -> None:
    """kube-scheduler, which does not know of it, would take the larger alternative."""
    slices = [builders.resource_slice("n1", builders.device("gpu-0", "8Gi", allowMultipleAllocations=True))]
    parts = [builders.request(f"s{i}", memory=f"{m}Gi") for i, m in enumerate((6, 4))]
    request = {"name": "r", "firstAvailable": [{"name": p["name"], **p["exactly"]} for p in parts]}
    world = OpenCluster(slices, builders.claim("c", request, uid="c"))
    assert not isinstance(world.choices(), NoGrant)
    device = DeviceID(DRIVER, PoolName("n1"), "gpu-0")
    kept = held_shares([(device, "default/kept")] * 2)
    found = world.choices(taken=kept)
    assert isinstance(found, NoGrant)
    assert "kept for others" in found.why()


def held_shares(shares: list[tuple[DeviceID, str]]) -> AllocatedState:
    state = AllocatedState().with_devices((), shares)
    for device, _ in shares:
        state = state.with_capacity({device: {"memory": Quantity.parse("2Gi")}})
    return state


@pytest.mark.parametrize("batch", share(range(4), 1))
def test_shares_that_kube_scheduler_does_not_know_are_never_given_away_by_a_grant(batch: int) -> None:
    """Whatever it has seen of the shares of others: what the API server admits has room beside them all."""
    admitted = refused = none = 0
    for seed in range(40 * batch, 40 * batch + 40):
        world, shares = shared(random.Random(seed))
        found = world.choices(2)
        if isinstance(found, NoGrant):
            none += 1
            continue
        for one in found:
            of_node = [s for s in shares if s[0].pool == one.node]
            for size in range(len(of_node) + 1):
                for known in itertools.islice(itertools.combinations(of_node, size), 30):
                    stale = held_shares(list(known))
                    taken = world.taken(one.node, stale)
                    if taken is None or not all(t <= g for t, g in zip(taken, one.claims, strict=True)):
                        refused += 1
                        continue
                    admitted += 1
                    assert not over_committed(world, one.node, stale, of_node), (seed, known)
    assert admitted
    assert refused
    assert none


def over_committed(
    world: OpenCluster, node: str, stale: AllocatedState, shares: list[tuple[DeviceID, str]]
) -> bool:
    """Return whether what kube-scheduler takes with an old view is too much beside all shares."""
    picked = scheduler_picks(world.seen(stale), world.claims, node)
    assert not isinstance(picked, str)
    used: dict[DeviceID, Quantity] = {}
    amounts = [(d, Quantity.parse("2Gi")) for d, _ in shares]
    amounts += [(p.entry.id, (p.consumed or {})["memory"]) for of in picked for p in of]
    for device, amount in amounts:
        used[device] = used[device] + amount if device in used else amount
    return any(amount > Quantity.parse("8Gi") for amount in used.values())
