"""Devices that are lent to kube-scheduler: neither free nor ours to give back, in a pool that stays ours."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED

from controller.allocate.decide import (
    ClaimSeen,
    Decision,
    Decisions,
    ObjectSeen,
    PodID,
    PodQuestion,
    PoolChanged,
    Refuse,
    Settings,
    Write,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

NS = builders.NAMESPACE
POOL = PoolID(DRIVER, PoolName("n1"))
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}


class SimulatedCluster:
    """A node with two GPUs."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        self.seen(Node, builders.node("n1", allocatable=ROOM))
        self.publish()

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def publish(self, *bare: str) -> None:
        """Publish the GPUs, these of them without our taint and first."""
        names = sorted(("gpu-0", "gpu-1"), key=lambda name: name not in bare)
        devices = [builders.device(n, taints=[] if n in bare else [PROTECTED]) for n in names]
        self.seen(ResourceSlice, builders.resource_slice("n1", *devices))

    def lend(self, *devices: str) -> None:
        self.decisions.apply(PoolChanged(POOL, False, PoolPolicy(), frozenset(devices)))

    def claim(self, name: str, *requests: dict[str, Any], device: str = "") -> None:
        body = builders.claim(name, *requests, uid=f"uid-{name}")
        if device:
            body["status"] = builders.allocation(builders.result("n1", device))
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def ask(self, *claims: str) -> Decision:
        """Ask about a pod with these claims."""
        pod = f"of-{'-'.join(claims)}"
        self.seen(Pod, builders.pod(pod, *claims, uid=pod, gated=True))
        return self.decisions.decide(PodQuestion(PodID(ObjectKey(NS, pod), Uid(pod)), 0.0)).decision

    def gets(self, *claims: str) -> list[str]:
        answer = self.ask(*claims)
        if not isinstance(answer, Write):
            return []
        return [r.device for _, allocation in answer.allocations for r in allocation.devices.results]


@pytest.mark.parametrize("untainted", [False, True], ids=["still tainted", "untainted"])
def test_a_lent_device_is_not_allocated_and_its_pool_stays_ours(untainted: bool) -> None:
    world = SimulatedCluster()
    world.claim("one")
    world.claim("two", builders.request(count=2))
    world.claim("all", builders.request(count=None))
    assert world.gets("one") == ["gpu-0"]
    assert world.gets("two") == world.gets("all") == ["gpu-0", "gpu-1"]
    world.lend("gpu-0")
    if untainted:
        world.publish("gpu-0")
    assert world.gets("one") == ["gpu-1"]
    assert isinstance(world.ask("two"), Refuse)
    assert isinstance(world.ask("all"), Refuse)
    world.publish()
    world.lend()
    assert world.gets("two") == ["gpu-0", "gpu-1"]


def test_an_untainted_device_that_is_not_lent_makes_the_pool_kube_schedulers() -> None:
    world = SimulatedCluster()
    world.claim("one")
    world.lend("gpu-0")
    world.publish("gpu-1")
    assert world.gets("one") == []
    world.lend("gpu-0", "gpu-1")
    # Ours again, with nothing to give.
    assert isinstance(world.ask("one"), Refuse)


def test_nothing_is_given_back_that_is_held_of_a_lent_device() -> None:
    world = SimulatedCluster()
    world.claim("held", device="gpu-0")
    world.claim("more", builders.request(count=2))
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ["held"]
    world.lend("gpu-0")
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert not answer.undo


def test_admin_access_takes_nothing_of_a_lent_device() -> None:
    world = SimulatedCluster()
    world.claim("look", builders.request(count=None, adminAccess=True))
    world.lend("gpu-0")
    assert sorted(world.gets("look")) == ["gpu-0", "gpu-1"]


def test_what_is_taken_is_the_same_object_as_long_as_nothing_changes() -> None:
    """The allocator finds what has changed by comparing objects."""
    world = SimulatedCluster()
    claims = world.decisions._claims
    bare = claims.allocated
    world.lend("gpu-0")
    lent = claims.allocated
    assert set(lent.pool(POOL).devices) == {"gpu-0"}
    assert claims.allocated is lent
    assert not claims.held.pool(POOL).devices
    world.claim("held", device="gpu-1")
    assert set(claims.allocated.pool(POOL).devices) == {"gpu-0", "gpu-1"}
    assert set(claims.without({Uid("uid-held")}).pool(POOL).devices) == {"gpu-0"}
    world.claim("held")
    world.lend()
    assert claims.allocated.pools == bare.pools
