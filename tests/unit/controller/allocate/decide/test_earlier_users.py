"""Claims that pods share, of which kube-scheduler sees one already: what must serve that one, too."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED

from controller.allocate.decide import (
    ClaimSeen,
    Decision,
    Decisions,
    ObjectGone,
    ObjectSeen,
    PodID,
    PodQuestion,
    Refuse,
    Settings,
    Write,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice

NS = builders.NAMESPACE
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
TYPO = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": '0/2 nodes are available: persistentvolumeclaim "data-o" not found. not found',
}


class SimulatedCluster:
    """Two nodes with two devices each; pods of lower names are older."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        for name in ("n1", "n2"):
            self.seen(Node, builders.node(name, allocatable=ROOM))
            devices = [builders.device(f"gpu-{i}", taints=[PROTECTED]) for i in range(2)]
            self.seen(ResourceSlice, builders.resource_slice(name, *devices))
        self.claim("shared")
        self.claim("impossible", 5)

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def claim(self, name: str, count: int = 1, *, on: str = "") -> None:
        body = builders.claim(name, builders.request(count=count), uid=f"uid-{name}")
        if on:
            fields = [{"key": "metadata.name", "operator": "In", "values": [on]}]
            selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
            body["status"] = builders.allocation(builders.result(on, "gpu-0"), nodeSelector=selector)
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def pod(self, name: str, *claims: str, status: dict[str, Any] | None = None, **more: Any) -> None:
        body = builders.pod(name, *claims, uid=f"uid-{name}", **more)
        body["status"].update(status or {})
        self.seen(Pod, body)

    def ask(self, name: str) -> Decision:
        key = ObjectKey(NS, name)
        return self.decisions.decide(PodQuestion(PodID(key, Uid(f"uid-{name}")), 0.0)).decision


def test_nothing_is_allocated_that_kube_scheduler_would_deallocate_for_the_pod_before() -> None:
    world = SimulatedCluster()
    world.pod("a", "shared", "impossible")
    world.pod("b", "shared")
    answer = world.ask("b")
    assert isinstance(answer, Refuse)
    assert "kube-scheduler looks first at pod a, which shares claim shared" in answer.message
    world.decisions.apply(ObjectGone(Pod, ObjectKey(NS, "a")))
    assert isinstance(world.ask("b"), Write)


@pytest.mark.parametrize(
    "first",
    [
        {"gated": True},
        {"nodeName": "n1"},
        {"priority": -1},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}},
        {"status": {"phase": "Failed"}},
        {"status": {"conditions": [TYPO]}},
    ],
    ids=["gated", "bound", "of lower priority", "being deleted", "ended", "fails before claims"],
)
def test_a_pod_that_kube_scheduler_does_not_look_at_first_keeps_nothing_from_others(
    first: dict[str, Any],
) -> None:
    world = SimulatedCluster()
    world.pod("a", "shared", "impossible", **first)
    world.pod("b", "shared")
    assert isinstance(world.ask("b"), Write)


def test_what_serves_both_is_allocated_where_both_can_go() -> None:
    world = SimulatedCluster()
    world.pod("a", "shared", nodeSelector={"kubernetes.io/hostname": "n2"})
    world.pod("b", "shared")
    answer = world.ask("b")
    assert isinstance(answer, Write)
    assert answer.node == "n2"


def test_what_serves_both_is_allocated_where_the_first_pod_has_a_claim_already() -> None:
    world = SimulatedCluster()
    world.claim("there", on="n2")
    world.pod("a", "shared", "there")
    world.pod("b", "shared")
    answer = world.ask("b")
    assert isinstance(answer, Write)
    assert answer.node == "n2"


def test_the_first_pod_itself_is_served() -> None:
    world = SimulatedCluster()
    world.claim("own")
    world.pod("a", "shared", "own")
    world.pod("b", "shared")
    assert isinstance(world.ask("b"), Refuse)
    assert isinstance(world.ask("a"), Write)


def test_members_of_a_group_do_not_wait_for_each_other_but_for_pods_before_them() -> None:
    world = SimulatedCluster()
    labels = {"metadata": {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}}}
    world.claim("own")
    world.pod("b", "shared", "own", **labels)
    world.pod("c", "shared", **labels)
    assert not isinstance(world.ask("c"), Refuse)
    world.pod("a", "shared", "impossible")
    answer = world.ask("c")
    assert isinstance(answer, Refuse)
    assert "kube-scheduler looks first at pod a" in answer.message
    world.decisions.apply(ObjectGone(Pod, ObjectKey(NS, "a")))
    assert not isinstance(world.ask("c"), Refuse)
