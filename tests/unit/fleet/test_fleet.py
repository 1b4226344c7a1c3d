"""The fleet as people see it: kept up to date object by object, it is what one would build anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import builders
from builders import DRIVER

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.fleet import Fleet, PoolView
from dra_driver.ownership import PoolID


def slice_of(
    node: str,
    *devices: dict[str, Any],
    generation: int = 1,
    name: str = "",
    counters: Sequence[dict[str, Any]] = (),
) -> ResourceSlice:
    name = name or f"{node}-{generation}"
    body = builders.resource_slice(
        node, *devices, name=name, generation=generation, sharedCounters=list(counters)
    )
    return codec.convert(ResourceSlice, body)


def device(name: str, **more: Any) -> dict[str, Any]:
    return builders.device(name, attributes={"model": "A", "type": "gpu"}, **more)


def claim_of(
    name: str, *results: tuple[str, str, dict[str, Any]], pods: tuple[str, ...] = ()
) -> ResourceClaim:
    found = [builders.result(pool, d, **more) for pool, d, more in results]
    users = {"reservedFor": [{"resource": "pods", "name": p, "uid": p} for p in pods]}
    status = {**builders.allocation(*found), **users} if results else {}
    return codec.convert(ResourceClaim, builders.claim(name, namespace="ns", uid=name, status=status))


def pod_of(name: str, claim: str) -> Pod:
    return codec.convert(Pod, builders.pod(name, claim, namespace="ns"))


def view(fleet: Fleet, node: str = "n1") -> PoolView:
    found = fleet.pool(PoolID(DRIVER, PoolName(node)))
    assert found is not None
    return found


def states(fleet: Fleet, node: str = "n1") -> dict[str, str]:
    return {d.name: d.state for d in view(fleet, node).devices}


def test_a_device_says_who_holds_it() -> None:
    fleet = Fleet([DRIVER])
    fleet.put_slice(slice_of("n1", device("a"), device("b"), device("c")))
    fleet.put_claim(claim_of("whole", ("n1", "a", {}), pods=("p", "o")))
    fleet.put_claim(claim_of("share", ("n1", "b", {"shareID": "s", "consumedCapacity": {"memory": "8Gi"}})))
    fleet.put_claim(claim_of("admin", ("n1", "c", {"adminAccess": True})))
    assert states(fleet) == {"a": "allocated", "b": "shared", "c": "free"}
    a, b, c = view(fleet).devices
    assert [(h.claim, h.pods) for h in a.holders] == [("ns/whole", ("o", "p"))]
    assert b.holders[0].share == {"memory": "8Gi"}
    assert c.holders[0].admin


def test_a_partition_is_blocked_by_what_its_gpu_lacks() -> None:
    counters = [{"name": "g", "counters": {"compute": {"value": "7"}}}]

    def part(name: str, size: int) -> dict[str, Any]:
        return device(
            name, consumesCounters=[{"counterSet": "g", "counters": {"compute": {"value": str(size)}}}]
        )

    fleet = Fleet([DRIVER])
    fleet.put_slice(slice_of("n1", part("whole", 7), part("half", 4), part("small", 3)))
    fleet.put_slice(slice_of("n1", name="counters", counters=counters))
    assert set(states(fleet).values()) == {"free"}
    fleet.put_claim(claim_of("c", ("n1", "half", {})))
    assert states(fleet) == {"whole": "blocked", "half": "allocated", "small": "free"}
    fleet.remove_claim(claim_of("c"))
    assert set(states(fleet).values()) == {"free"}


def test_health_is_told_by_the_inventory() -> None:
    fleet = Fleet([DRIVER])
    taint = {"key": "dra-driver.dev/unhealthy", "effect": "NoExecute", "value": "failed"}
    fleet.put_slice(slice_of("n1", device("a", taints=[taint])))
    assert view(fleet).devices[0].problems == ("dra-driver.dev/unhealthy=failed:NoExecute",)
    health = [{"reason": "XidError", "severity": "failed", "message": "Xid 79"}]
    spec = {"nodeName": "n1", "driver": DRIVER, "devices": [{"name": "a", "health": health}]}
    fleet.put_inventory(codec.convert(DeviceInventory, {"metadata": {"name": "i"}, "spec": spec}))
    seen = view(fleet)
    assert seen.devices[0].problems == ("XidError: Xid 79",)
    assert seen.devices[0].state == "unhealthy"
    assert seen.notes == ("the kubelet does not know the node's plugin",)


def test_devices_that_stay_with_claims_that_are_gone_are_named_and_the_names_bounded() -> None:
    fleet = Fleet([DRIVER])
    fleet.put_slice(slice_of("n1", device("a")))
    health = [{"reason": "ClaimGoneInUse", "severity": "degraded", "message": "a claim is gone"}]
    spec = {
        "nodeName": "n1",
        "driver": DRIVER,
        "devices": [{"name": f"gpu-{i}", "health": health} for i in range(6)] + [{"name": "free"}],
    }
    status = {"registration": {"registered": True, "epoch": 1}}
    body = {"metadata": {"name": "i"}, "spec": spec, "status": status}
    fleet.put_inventory(codec.convert(DeviceInventory, body))
    assert view(fleet).notes == (
        *(f"gpu-{i}: a claim is gone" for i in range(4)),
        "2 more devices stay with claims that are gone",
    )


def test_a_change_concerns_its_pools_only() -> None:
    told: list[PoolID | None] = []
    fleet = Fleet([DRIVER], told.append)
    for node in ("n1", "n2", "n3"):
        fleet.put_slice(slice_of(node, device("a")))
    del told[:]
    fleet.put_claim(claim_of("c", ("n2", "a", {})))
    assert told == [PoolID(DRIVER, PoolName("n2"))]
    del told[:]
    fleet.put_claim(claim_of("c", ("n3", "a", {})))
    assert set(told) == {PoolID(DRIVER, PoolName("n2")), PoolID(DRIVER, PoolName("n3"))}
    assert len(told) == 2


def test_nothing_is_kept_of_a_pool_that_is_gone() -> None:
    fleet = Fleet((DRIVER,))
    for i in range(5):
        slice_ = slice_of(f"short-lived-{i}", device("gpu-0"))
        fleet.put_slice(slice_)
        pool = PoolID(DRIVER, PoolName(f"short-lived-{i}"))
        assert fleet.pool(pool) is not None
        fleet.remove_slice(slice_)
        assert fleet.pool(pool) is None  # a reader is told that it is gone
    assert fleet._views == {}


def test_other_drivers_are_ignored() -> None:
    told: list[PoolID | None] = []
    fleet = Fleet(["other.example.com"], told.append)
    fleet.put_slice(slice_of("n1", device("a")))
    fleet.put_claim(claim_of("c", ("n1", "a", {})))
    assert (fleet.views(), told) == ([], [])


def test_waiting_claims_know_their_pods() -> None:
    fleet = Fleet([DRIVER])
    fleet.put_claim(claim_of("b"))
    fleet.put_claim(claim_of("a"))
    fleet.put_pod(pod_of("p", "b"))
    waiting, total = fleet.waiting(lambda claim, users: "no room" if list(users) else "")
    assert [(w.claim, w.pods, w.reason) for w in waiting] == [
        ("ns/a", (), "no pod uses it"),
        ("ns/b", ("p",), "no room"),
    ]
    assert total == 2
    assert len(fleet.waiting(lambda *_: "", limit=1)[0]) == 1
    fleet.remove_pod(pod_of("p", "b"))
    fleet.put_claim(claim_of("b", ("n1", "a", {})))
    assert [w.claim for w in fleet.waiting(lambda *_: "")[0]] == ["ns/a"]


def test_the_most_urgent_of_those_that_wait_come_first() -> None:
    fleet = Fleet([DRIVER])

    def first(limit: int = 1) -> list[str]:
        return [w.claim for w in fleet.waiting(lambda *_: "", limit)[0]]

    def pod(name: str, claim: str, priority: int) -> Pod:
        body = builders.pod(name, claim, namespace="ns", uid=f"{name}-{priority}", priority=priority)
        return codec.convert(Pod, body)

    for name in "abc":
        fleet.put_claim(claim_of(name))
    assert first() == ["ns/a"]
    fleet.put_pod(pod("p", "b", 5))
    assert first() == ["ns/b"]
    fleet.put_pod(pod("q", "c", 9))
    assert first() == ["ns/c"]
    assert [str(key) for key in fleet.waiting_keys()] == ["ns/c", "ns/b", "ns/a"]
    fleet.remove_pod(pod("q", "c", 9))
    assert first() == ["ns/b"]
    fleet.put_claim(claim_of("b", ("n1", "a", {})))
    assert first() == ["ns/a"]
    key = next(iter(fleet.waiting_keys()))
    fleet.remove_claim(claim_of("a"))
    assert first() == ["ns/c"]
    assert fleet.waiting_claim(key, lambda *_: "") is None  # it has gone meanwhile


def test_step_by_step_is_the_same_as_at_once() -> None:
    """Any order of changes ends in what a fleet shows that is given the last state alone."""
    chance = random.Random(7)
    fleet = Fleet([DRIVER])
    slices: dict[str, ResourceSlice] = {}
    claims: dict[str, ResourceClaim] = {}
    for step in range(400):
        node = f"n{chance.randrange(4)}"
        if chance.random() < 0.3:
            new = slice_of(
                node, *(device(d) for d in "abc"[: chance.randrange(1, 4)]), generation=step, name=node
            )
            if chance.random() < 0.2 and node in slices:
                fleet.remove_slice(slices.pop(node))
            else:
                slices[node] = new
                fleet.put_slice(new)
        else:
            name = f"c{chance.randrange(6)}"
            results: list[tuple[str, str, dict[str, Any]]] = [
                (node, chance.choice("abc"), {})
            ] * chance.randrange(3)
            if chance.random() < 0.2 and name in claims:
                fleet.remove_claim(claims.pop(name))
            else:
                claims[name] = claim_of(name, *results)
                fleet.put_claim(claims[name])
        if step % 3 == 0:
            fleet.views()
            fleet.waiting(lambda *_: "", limit=2)
    fresh = Fleet([DRIVER])
    for item in slices.values():
        fresh.put_slice(item)
    for holder in claims.values():
        fresh.put_claim(holder)
    assert fleet.views() == fresh.views()
    assert fleet.waiting(lambda *_: "") == fresh.waiting(lambda *_: "")
