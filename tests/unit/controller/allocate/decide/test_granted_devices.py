"""Devices that are granted to kube-scheduler: neither free nor ours to give back; their pool stays ours."""

from __future__ import annotations

from typing import Any

import builders
from builders import DRIVER

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
    """A node with two GPUs, whose pool is open."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        self.seen(Node, builders.node("n1", allocatable=ROOM))
        self.publish()
        self.grant()

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def publish(self) -> None:
        devices = [builders.device(name) for name in ("gpu-0", "gpu-1")]
        self.seen(ResourceSlice, builders.resource_slice("n1", *devices))

    def grant(self, *devices: str) -> None:
        """Say that the pool is open, and that these of its devices are granted."""
        self.decisions.apply(PoolChanged(POOL, False, PoolPolicy(), frozenset(devices), True))

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


def test_a_granted_device_is_not_allocated_and_its_pool_stays_ours() -> None:
    world = SimulatedCluster()
    world.claim("one")
    world.claim("two", builders.request(count=2))
    world.claim("all", builders.request(count=None))
    assert world.gets("one") == ["gpu-0"]
    assert world.gets("two") == world.gets("all") == ["gpu-0", "gpu-1"]
    world.grant("gpu-0")
    assert world.gets("one") == ["gpu-1"]
    assert isinstance(world.ask("two"), Refuse)
    assert isinstance(world.ask("all"), Refuse)
    world.grant()
    assert world.gets("two") == ["gpu-0", "gpu-1"]


def test_nothing_is_given_back_that_is_held_of_a_granted_device() -> None:
    world = SimulatedCluster()
    world.claim("held", device="gpu-0")
    world.claim("more", builders.request(count=2))
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ["held"]
    world.grant("gpu-0")
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert not answer.undo


def test_admin_access_takes_nothing_of_a_granted_device() -> None:
    world = SimulatedCluster()
    world.claim("look", builders.request(count=None, adminAccess=True))
    world.grant("gpu-0")
    assert sorted(world.gets("look")) == ["gpu-0", "gpu-1"]


def test_what_is_taken_is_the_same_object_as_long_as_nothing_changes() -> None:
    """The allocator finds what has changed by comparing objects."""
    world = SimulatedCluster()
    claims = world.decisions._claims
    bare = claims.allocated
    world.grant("gpu-0")
    granted = claims.allocated
    assert set(granted.pool(POOL).devices) == {"gpu-0"}
    assert claims.allocated is granted
    assert not claims.held.pool(POOL).devices
    world.claim("held", device="gpu-1")
    assert set(claims.allocated.pool(POOL).devices) == {"gpu-0", "gpu-1"}
    assert set(claims.without({Uid("uid-held")}).pool(POOL).devices) == {"gpu-0"}
    world.claim("held")
    world.grant()
    assert claims.allocated.pools == bare.pools
