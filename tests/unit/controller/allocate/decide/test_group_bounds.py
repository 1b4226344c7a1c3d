"""What a refused group costs: bounds before the search, and no new look before something helps."""

from __future__ import annotations

from typing import Any

import builders
import msgspec

from controller.allocate.decide import (
    ClaimAssumed,
    ClaimSeen,
    Decisions,
    GroupWrite,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodID,
    PodQuestion,
    Proceed,
    Refuse,
    Settings,
    Wait,
    Write,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, Uid
from dra_driver.api.names import (
    ALLOCATION_GATE,
    CONTROLLER_TAINT,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
)
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice

OURS = DriverName("gpu.example.com")
NS = "default"
OF = f'device.attributes["{OURS}"]'
TAINT = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}


class SimulatedCluster:
    """Nodes with GPUs and a NIC each, and the decisions about them; the clock for work stands still."""

    def __init__(self, nodes: int, gpus: int, nodes_per_rack: int = 1) -> None:
        self.decisions = Decisions(Settings(drivers=(OURS,)), lambda: 0.0)
        self.now = 0.0
        self.held: dict[str, ResourceClaim] = {}
        self.decisions.apply(ObjectSeen(codec.convert(DeviceClass, builders.device_class("gpu"))))
        for i in range(nodes):
            self.node(f"n{i:03}", f"r{i // nodes_per_rack:03}")
            self.devices(f"n{i:03}", gpus)

    def node(self, name: str, rack: str) -> None:
        body = builders.node(name, labels={"rack": rack, "kubernetes.io/hostname": name})
        self.decisions.apply(ObjectSeen(codec.convert(Node, body)))

    def devices(self, node: str, gpus: int) -> None:
        def device(name: str, kind: str, numa: int) -> dict[str, Any]:
            attributes = {"kind": kind, "numa": numa}
            return builders.device(name, attributes=attributes, taints=[TAINT])

        found = [device(f"gpu-{k}", "gpu", k % 2) for k in range(gpus)]
        body = builders.resource_slice(node, *found, device("nic", "nic", 0), driver=OURS)
        self.decisions.apply(ObjectSeen(codec.convert(ResourceSlice, body)))

    def pod(self, name: str, count: int, of: str = "gpu", **metadata: Any) -> None:
        selectors = [{"cel": {"expression": f'{OF}.kind == "{of}"'}}]
        request = {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count, "selectors": selectors}}
        same = [{"matchAttribute": f"{OURS}/numa"}]
        claim = {
            "metadata": {"name": name, "namespace": NS, "uid": f"claim-{name}"},
            "spec": {"devices": {"requests": [request], "constraints": same}},
        }
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, claim)))
        pod = {
            "metadata": {"name": name, "namespace": NS, "uid": f"pod-{name}", **metadata},
            "spec": {
                "schedulingGates": [{"name": ALLOCATION_GATE}],
                "containers": [{"name": "main", "image": "x"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            },
        }
        self.decisions.apply(ObjectSeen(codec.convert(Pod, pod)))

    def group(self, size: int, count: int, domain: str) -> None:
        for i in range(size):
            self.pod(
                f"m{i:03}",
                count,
                labels={GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(size)},
                annotations={GROUP_DOMAIN_ANNOTATION: domain},
            )

    def decide(self, name: str = "m000") -> PodAnswer:
        self.now += 1000.0
        return self.decisions.decide(PodQuestion(PodID(ObjectKey(NS, name), Uid(f"pod-{name}")), self.now))

    def take(self, name: str, of: str, count: int = 1) -> str:
        """Allocate to a pod by itself; return the node."""
        self.pod(name, count, of)
        decision = self.decide(name).decision
        assert isinstance(decision, Write)
        for claim, allocation in decision.allocations:
            self.held[name] = claim
            self.decisions.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
        return decision.node

    def free(self, name: str) -> None:
        claim = self.held.pop(name)
        self.decisions.apply(ClaimAssumed(claim.key, claim.metadata.uid, None))


def refusal(answer: PodAnswer) -> str:
    assert isinstance(answer.decision, Refuse)
    return answer.decision.message


def test_what_nodes_are_is_not_for_the_first_pod_to_pay() -> None:
    world = SimulatedCluster(300, gpus=8)
    world.pod("first", 1)
    answer = world.decide("first")
    assert isinstance(answer.decision, Write)
    # Two columns that no other claim has asked for, on each node.
    assert answer.steps is not None
    assert answer.steps < 3_000
    world.node("n300", "new")
    world.devices("n300", 8)
    world.pod("next", 1)
    answer = world.decide("next")
    assert answer.steps is not None
    assert answer.steps < 200


def test_a_group_that_no_domain_has_devices_for_is_refused_without_a_search() -> None:
    for nodes, per_rack, size, domain in ((200, 1, 9, "kubernetes.io/hostname"), (240, 7, 57, "rack")):
        world = SimulatedCluster(nodes, gpus=8, nodes_per_rack=per_rack)
        world.take("other", "gpu")
        world.group(size, 1, domain)
        answer = world.decide()
        assert (
            f"all {size} pods together on nodes of one {domain}: no nodes of one {domain} have free devices "
            "for all of them, at best for all but 1" in refusal(answer)
        )
        # A search costs 30 steps for each member and domain.
        assert answer.steps is not None
        assert answer.steps < 200
        world.free("other")
        again = world.decide()
        assert again.steps is None or again.steps < 200


def test_domains_with_too_few_devices_are_passed_over() -> None:
    world = SimulatedCluster(100, gpus=2)
    world.node("large", "large")
    world.devices("large", 8)
    world.group(4, 1, "kubernetes.io/hostname")
    answer = world.decide()
    assert isinstance(answer.decision, GroupWrite)
    assert {write.node for _, write in answer.decision.writes} == {"large"}
    assert answer.steps is not None
    assert answer.steps < 1_000


def contended() -> SimulatedCluster:
    """A group that fits one node by number, but not by its NUMA nodes, and other pods beside it."""
    world = SimulatedCluster(6, gpus=4, nodes_per_rack=6)
    for i in range(6):
        assert world.take(f"nic-{i}", "nic")
    held = world.take("held", "gpu")
    assert held == "n000"
    # Of the four GPUs of each node two are of one NUMA node: three of one do not exist.
    world.group(2, 3, "rack")
    return world


def test_a_refusal_is_remembered_until_something_changes_that_helps() -> None:
    world = contended()
    first = world.decide()
    assert first.steps is not None
    text = refusal(first)
    searched = first.steps

    def looks() -> int:
        answer = world.decide()
        assert refusal(answer) == text
        return answer.steps or 0

    assert looks() == 0
    # Devices that no member can use become free, pods come and go, nodes report other labels' values.
    world.free("nic-0")
    assert looks() < searched // 2
    world.free("nic-3")
    assert looks() < searched // 2
    world.pod("somebody", 1)
    world.decisions.apply(ObjectGone(Pod, ObjectKey(NS, "somebody")))
    assert looks() < searched // 2


def test_a_refusal_of_members_that_would_join_is_remembered_as_well() -> None:
    world = contended()
    labels = {GROUP_LABEL: "e", GROUP_SIZE_LABEL: "3", GROUP_MIN_LABEL: "1"}
    domain = {GROUP_DOMAIN_ANNOTATION: "rack"}
    world.pod("e0", 1, labels=labels, annotations=domain)
    assert isinstance(world.decide("e0").decision, Wait)  # for those that may be coming
    decision = world.decide("e0").decision
    assert isinstance(decision, GroupWrite)
    for claim, allocation in decision.writes[0][1].allocations:
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        world.decisions.apply(ClaimSeen(msgspec.structs.replace(claim, status=status)))
    for name in ("e1", "e2"):
        world.pod(name, 3, labels=labels, annotations=domain)
    first = world.decide("e1")
    assert "group e, 1 of 1 to 3 pods have devices, 1 more on nodes of one rack" in refusal(first)
    assert first.steps is not None
    assert isinstance(world.decide("e0").decision, Proceed)
    for nic in ("nic-0", "nic-3"):
        world.free(nic)
        again = world.decide("e2")
        assert refusal(again) == refusal(first)
        assert (again.steps or 0) < first.steps // 2
    world.devices("n003", 12)
    assert isinstance(world.decide("e2").decision, GroupWrite)


def test_a_device_that_helps_has_the_group_looked_at_again() -> None:
    world = SimulatedCluster(2, gpus=4, nodes_per_rack=2)
    assert world.take("a", "gpu", 2) == world.take("b", "gpu") == "n000"
    world.group(4, 2, "rack")
    assert "at best for all but 2" in refusal(world.decide())
    world.free("b")
    assert isinstance(world.decide().decision, Refuse)
    world.free("a")
    assert isinstance(world.decide().decision, GroupWrite)


def test_a_node_a_class_or_a_pool_that_changes_has_the_group_looked_at_again() -> None:
    world = contended()
    refusal(world.decide())
    world.devices("n003", 12)
    assert isinstance(world.decide().decision, GroupWrite)

    world = contended()
    refusal(world.decide())
    world.node("n100", "new")
    world.devices("n100", 12)
    assert isinstance(world.decide().decision, GroupWrite)

    world = SimulatedCluster(1, gpus=8)
    others = codec.convert(DeviceClass, builders.device_class("gpu", f'{OF}.kind == "nic"'))
    world.decisions.apply(ObjectSeen(others))
    world.group(2, 2, "rack")
    refusal(world.decide())
    world.decisions.apply(ObjectSeen(codec.convert(DeviceClass, builders.device_class("gpu", "true"))))
    assert isinstance(world.decide().decision, GroupWrite)


def test_members_that_share_a_claim_are_not_counted_twice() -> None:
    world = SimulatedCluster(1, gpus=1)
    for name in ("a", "b"):
        body = {
            "metadata": {
                "name": name,
                "namespace": NS,
                "uid": f"pod-{name}",
                "labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"},
            },
            "spec": {
                "schedulingGates": [{"name": ALLOCATION_GATE}],
                "containers": [{"name": "main", "image": "x"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
            },
        }
        world.decisions.apply(ObjectSeen(codec.convert(Pod, body)))
    claim = builders.claim("shared", uid="u", requests=[builders.request("r", deviceClassName="gpu")])
    world.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, claim)))
    assert isinstance(world.decide("a").decision, GroupWrite)
