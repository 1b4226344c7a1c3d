"""Allocations that keep a pod, or a group, from its other devices: given back, or left to another pod."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED

from controller.allocate.decide import (
    ClaimAssumed,
    ClaimSeen,
    Decision,
    Decisions,
    ObjectSeen,
    PodID,
    PodQuestion,
    PoolChanged,
    Refuse,
    Settings,
    Wait,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

NS = builders.NAMESPACE
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
ALLOCATION = builders.allocation(builders.result("n1", "gpu-0"))
HELD = codec.convert(AllocationResult, ALLOCATION["allocation"])


class SimulatedCluster:
    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        self.seen(Node, builders.node("n1", allocatable=ROOM))
        devices = [builders.device(f"gpu-{i}", taints=[PROTECTED]) for i in range(2)]
        self.seen(ResourceSlice, builders.resource_slice("n1", *devices))

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def claim(self, name: str, count: int = 1, *, allocated: bool = False) -> None:
        body = builders.claim(name, builders.request(count=count), uid=f"uid-{name}")
        if allocated:
            body["status"] = ALLOCATION
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        self.seen(Pod, builders.pod(name, *claims, uid=f"uid-{name}", gated=True, **more))

    def ask(self, name: str, now: float = 0.0) -> Decision:
        return self.decisions.decide(
            PodQuestion(PodID(ObjectKey(NS, name), Uid(f"uid-{name}")), now)
        ).decision


@pytest.mark.parametrize("written", [False, True], ids=["being written", "written"])
def test_a_shared_claim_is_left_to_a_pod_whose_other_claims_are_being_written(written: bool) -> None:
    world = SimulatedCluster()
    world.claim("shared", allocated=True)
    world.claim("never", 5)
    world.claim("own", allocated=written)
    world.pod("waits", "never", "shared")
    world.pod("other", "shared", "own")
    answer = world.ask("waits")
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ([] if written else ["shared"])
    world.decisions.apply(ClaimAssumed(ObjectKey(NS, "own"), Uid("uid-own"), HELD))
    answer = world.ask("waits")
    assert isinstance(answer, Refuse)
    assert not answer.undo


def test_a_group_that_is_not_complete_gives_back_devices_of_a_pool_that_was_not_ours_for_a_while() -> None:
    world = SimulatedCluster()
    world.claim("a", allocated=True)
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}
    world.pod("a", "a", metadata={"labels": labels})
    pool = PoolID(DRIVER, PoolName("n1"))
    world.decisions.apply(PoolChanged(pool, True, PoolPolicy()))
    # No event leads to a look at a pod that only waits when the pool is ours again.
    answer = world.ask("a", 100.0)
    assert isinstance(answer, Wait)
    assert answer.poll > 0
    world.decisions.apply(PoolChanged(pool, False, PoolPolicy()))
    answer = world.ask("a", 100.0 + answer.poll)
    assert isinstance(answer, Wait)
    assert answer.poll > 0
    answer = world.ask("a", 200.0)
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ["a"]
