"""Pools that are the controller's without a taint: the API server refuses what others allocate from them."""

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
    Proceed,
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


class SimulatedCluster:
    """Two nodes, of which n2 has two GPUs; no device has a taint."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        for name, number in (("n1", 1), ("n2", 2)):
            self.seen(Node, builders.node(name, allocatable={"pods": "110"}))
            gpus = [builders.device(f"gpu-{i}") for i in range(number)]
            self.seen(ResourceSlice, builders.resource_slice(name, *gpus))

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def pool(self, node: str, *, is_open: bool, blocked: bool = False) -> None:
        pool = PoolID(DRIVER, PoolName(node))
        self.decisions.apply(PoolChanged(pool, blocked, PoolPolicy(), open=is_open))

    def ask(self, count: int = 1) -> Decision:
        body = builders.claim("c", builders.request(count=count), uid="uid-c")
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))
        self.seen(Pod, builders.pod("p", "c", uid="p", gated=True))
        return self.decisions.decide(PodQuestion(PodID(ObjectKey(NS, "p"), Uid("p")), 0.0)).decision


def test_an_open_pool_is_ours_whatever_its_taints_are() -> None:
    world = SimulatedCluster()
    assert world.ask() == Proceed(theirs=True)
    world.pool("n1", is_open=True)
    answer = world.ask()
    assert isinstance(answer, Write)
    assert answer.node == "n1"
    world.pool("n1", is_open=False)
    assert world.ask() == Proceed(theirs=True)


def test_free_devices_of_an_open_pool_are_not_kube_schedulers() -> None:
    """It sees them as free, and the API server refuses it: a pod that waits for them waits with us."""
    world = SimulatedCluster()
    world.pool("n2", is_open=True, blocked=True)
    refusal = world.ask(2)
    assert isinstance(refusal, Refuse)
    assert not refusal.elsewhere
    world.pool("n2", is_open=False)
    world.pool("n1", is_open=True)
    refusal = world.ask(2)
    assert isinstance(refusal, Refuse)
    assert refusal.elsewhere
