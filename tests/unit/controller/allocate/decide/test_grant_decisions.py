"""Which devices are granted for pods that only kube-scheduler can place with them."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER, PROTECTED

from controller.allocate.decide import (
    ClaimSeen,
    Decision,
    Decisions,
    DevicesSetAside,
    GrantDevices,
    GrantedDevices,
    GrantedNode,
    NodeTurnedDown,
    ObjectSeen,
    PodAnswer,
    PodID,
    PodPlacement,
    PodQuestion,
    PoolChanged,
    Proceed,
    Rank,
    Refuse,
    Settings,
    Wait,
    Write,
)
from controller.allocate.worker.sent_answers import Answer, decision_of, packed_answer
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

NS = builders.NAMESPACE
OTHER = "nic.example.com"
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
RESOURCE = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def pool(node: str) -> PoolID:
    return PoolID(DRIVER, PoolName(node))


class SimulatedCluster:
    """Two nodes with two GPUs each; on n2 there is a NIC, beside gpu-1."""

    def __init__(self, *, grants: bool = True) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,), grants=grants), lambda: 0.0)
        gpus = f'device.driver == "{DRIVER}"'
        self.seen(DeviceClass, builders.device_class("gpu", gpus, extendedResourceName=RESOURCE))
        self.seen(DeviceClass, builders.device_class("nic", f'device.driver == "{OTHER}"'))
        for name in ("n1", "n2"):
            self.node(name)
            gpus_there = [builders.device(f"gpu-{i}", attributes={"root": f"r{i}"}) for i in range(2)]
            self.seen(ResourceSlice, builders.resource_slice(name, *gpus_there))
            self.pool(name)
        nic = builders.device("nic-0", attributes={f"{DRIVER}/root": "r1"})
        self.seen(ResourceSlice, builders.resource_slice("n2", nic, driver=OTHER))

    def node(self, name: str, **allocatable: str) -> None:
        room = {**ROOM, **{k.replace("__", "/").replace("_", "."): v for k, v in allocatable.items()}}
        self.seen(Node, builders.node(name, allocatable=room))

    def pool(self, node: str, granted: frozenset[str] = frozenset(), *, blocked: bool = False) -> None:
        self.decisions.apply(PoolChanged(pool(node), blocked, PoolPolicy(), granted, open=True))

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def claim(self, name: str, *requests: dict[str, Any], status: Any = None, **more: Any) -> None:
        body = builders.claim(name, *requests, uid=f"uid-{name}", status=status, **more)
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def answer(self, name: str, *claims: str, now: float = 0.0, **spec: Any) -> PodAnswer:
        self.seen(Pod, builders.pod(name, *claims, uid=name, gated=True, **spec))
        return self.decisions.decide(PodQuestion(PodID(ObjectKey(NS, name), Uid(name)), now))

    def ask(self, name: str, *claims: str, **spec: Any) -> Decision:
        return self.answer(name, *claims, **spec).decision


def asking(amount: int, resource: str = RESOURCE) -> dict[str, Any]:
    """A pod whose container asks for an extended resource."""
    requests = {"cpu": "1", resource: str(amount)}
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}


def grant(key: str, node: str, *devices: str) -> GrantDevices:
    return GrantDevices((GrantedNode(node, (GrantedDevices(pool(node), key, devices),)),))


def of_pod(name: str) -> str:
    """The key of the extended resources of a pod."""
    return f"_pod_{NS}_{name}"


def of_claim(name: str) -> str:
    return f"_claim_uid-{name}"


def both(**more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return builders.request(**more), builders.request("nic", "nic")


@pytest.mark.parametrize("resource", [RESOURCE, IMPLICIT])
def test_devices_are_granted_for_extended_resources(resource: str) -> None:
    world = SimulatedCluster()
    world.claim("one", status=builders.allocation(builders.result("n1", "gpu-0")))
    # Best fit: the node that has less left.
    assert world.ask("a", **asking(1, resource)) == grant(of_pod("a"), "n1", "gpu-1")
    assert world.ask("b", **asking(2, resource)) == grant(of_pod("b"), "n2", "gpu-0", "gpu-1")
    assert isinstance(world.ask("c", **asking(3, resource)), Refuse)


def test_devices_are_granted_for_a_claim_over_two_drivers() -> None:
    world = SimulatedCluster()
    world.claim("both", *both())
    answer = world.ask("a", "both")
    assert isinstance(answer, GrantDevices)
    assert answer.node == "n2"
    # Under one root, which only one of the GPUs shares with the NIC.
    world.claim("aligned", *both(), constraints=[{"matchAttribute": f"{DRIVER}/root"}])
    assert world.ask("b", "aligned") == grant(of_claim("aligned"), "n2", "gpu-1")
    world.claim("taken", status=builders.allocation(builders.result("n2", "gpu-1")))
    refusal = world.ask("c", "aligned")
    assert isinstance(refusal, Refuse)
    assert [c.metadata.name for c in refusal.claims] == ["aligned"]


@pytest.mark.parametrize(("kind", "owner"), [("Job", "no key: /"), ("Job", "y" * 300), ("Pod", "a")])
def test_a_claim_marked_as_kube_schedulers_by_hand_gets_no_grant(kind: str, owner: str) -> None:
    """Its grant would be under a text that its author chose."""
    world = SimulatedCluster()
    metadata = {
        "annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": kind, "name": "p", "uid": owner, "controller": True}
        ],
    }
    world.claim("both", *both(), metadata=metadata)
    answer = world.ask("a", "both")
    if kind == "Pod":  # the pod itself
        assert answer == grant(of_pod("a"), "n2", "gpu-0")
        return
    assert isinstance(answer, Refuse)
    assert "make it without that" in answer.message


def test_members_of_a_group_get_no_grants_and_are_told_why() -> None:
    world = SimulatedCluster()
    for name in ("a", "b"):
        world.claim(name, *both())
        labels = {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}}
        world.seen(Pod, builders.pod(name, name, uid=name, gated=True, metadata=labels))
    refusal = world.decisions.decide(PodQuestion(PodID(ObjectKey(NS, "a"), Uid("a")), 0.0)).decision
    assert isinstance(refusal, Refuse)
    assert "use one claim for each" in refusal.message
    assert "devices are granted to kube-scheduler" in refusal.message
    assert "not for members of a group" in refusal.message


def test_claims_of_ours_go_along_with_extended_resources() -> None:
    """Each claim has its own grant, of the device that kube-scheduler takes for it."""
    world = SimulatedCluster()
    world.claim("own")
    answer = world.ask("a", "own", **asking(1))
    assert isinstance(answer, GrantDevices)
    granted = [(key, names) for one in answer.nodes for _, key, names in one.devices]
    assert granted == [(of_claim("own"), ("gpu-0",)), (of_pod("a"), ("gpu-1",))]


def test_nothing_is_granted_where_grants_are_off() -> None:
    world = SimulatedCluster(grants=False)
    world.claim("both", *both())
    world.claim("own")
    refusal = world.ask("a", "both")
    assert isinstance(refusal, Refuse)
    assert "mixes devices" in refusal.message
    assert isinstance(world.ask("b", "own", **asking(1)), Write)
    assert world.ask("c", **asking(1)) == Proceed()


def test_what_others_have_is_left_to_kube_scheduler() -> None:
    world = SimulatedCluster()
    assert world.ask("a", **asking(1, "example.com/unknown")) == Proceed()
    assert world.ask("b", **asking(1, "deviceclass.resource.kubernetes.io/nic")) == Proceed()
    world.claim("nic", builders.request("nic", "nic"))
    assert world.ask("c", "nic") == Proceed(theirs=True)
    world.claim("own")
    assert isinstance(world.ask("d", "own"), Write)


def test_devices_of_ours_are_granted_where_kube_scheduler_could_not_use_those_of_others() -> None:
    """It has reported the pod since: in its pool a decision has the device that is not written yet."""
    world = SimulatedCluster()
    world.decisions.apply(PoolChanged(pool("n1"), False, PoolPolicy()))
    pod_ = builders.pod("a", uid="a", **asking(2))
    question = PodQuestion(PodID(ObjectKey(NS, "a"), Uid("a")), 0.0)
    world.claim("one", status=builders.allocation(builders.result("n2", "nic-0", driver=OTHER)))
    world.seen(Pod, pod_)
    assert world.decisions.decide(question).decision == Proceed(theirs=True)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod_["status"]["conditions"] = [condition]
    world.seen(Pod, pod_)
    granted = grant(of_pod("a"), "n2", "gpu-0", "gpu-1")
    assert world.decisions.decide(question).decision == granted
    # What cannot be granted either is waited for: such a pod is looked at whenever something changes.
    world.pool("n2", blocked=True)
    assert isinstance(world.decisions.decide(question).decision, Refuse)
    world.pool("n2")
    assert world.decisions.decide(question).decision == granted
    world.claim("two", status=builders.allocation(builders.result("n2", "gpu-0")))
    assert isinstance(world.decisions.decide(question).decision, Refuse)


def test_what_kube_scheduler_chose_of_ours_is_granted_although_others_could_serve_the_claim() -> None:
    """It chooses the same again and again, and never what it may allocate."""
    world = SimulatedCluster()
    world.node("n3")
    nic = builders.device("nic-0")
    world.seen(ResourceSlice, builders.resource_slice("n3", builders.device("gpu-0")))
    world.seen(ResourceSlice, builders.resource_slice("n3", nic, driver=OTHER))
    world.claim("both", *both())
    assert world.ask("a", "both") == Proceed(theirs=True)
    refusal = (
        "add allocation and reservation to claim ns/both: is forbidden: "
        "ValidatingAdmissionPolicy 'dra-driver-grants' with binding 'dra-driver-grants' denied request: "
        f"these devices are allocated by the controller (turn 3) [{pool('n2')}/gpu-0]"
    )
    report = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": refusal}
    pod_ = builders.pod("a", "both", uid="a")
    pod_["status"]["conditions"] = [report]
    world.seen(Pod, pod_)
    decision = world.decisions.decide(PodQuestion(PodID(ObjectKey(NS, "a"), Uid("a")), 0.0)).decision
    assert isinstance(decision, GrantDevices)
    assert decision.node == "n2"


def test_a_node_whose_device_plugin_advertises_the_resource_is_left_out() -> None:
    world = SimulatedCluster()
    world.node("n1", example_com__gpu="2")
    for name in ("a", "b"):
        answer = world.ask(name, **asking(1))
        assert isinstance(answer, GrantDevices)
        assert answer.node == "n2"


def test_a_node_is_left_out_while_kube_scheduler_sees_there_what_is_granted_to_another_pod() -> None:
    world = SimulatedCluster()
    world.claim("both", *both())
    world.pool("n2", frozenset({"gpu-0"}))
    answer = world.ask("b", **asking(1))
    assert isinstance(answer, GrantDevices)
    assert answer.node == "n1"
    world.pool("n1", frozenset({"gpu-0"}))
    refusal = world.ask("a", "both")
    assert isinstance(refusal, Refuse)
    assert "granted for another pod" in refusal.message
    # Once it is allocated, kube-scheduler takes the next one, although the grant is not over yet.
    world.claim("taken", status=builders.allocation(builders.result("n2", "gpu-0")))
    assert world.ask("a", "both") == grant(of_claim("both"), "n2", "gpu-1")
    assert isinstance(world.ask("c", **asking(2)), Refuse)
    world.pool("n1")
    assert world.ask("c", **asking(2)) == grant(of_pod("c"), "n1", "gpu-0", "gpu-1")


def test_what_is_set_aside_is_not_granted() -> None:
    """kube-scheduler would take the first device, which is kept for a pod that has waited for long."""
    world = SimulatedCluster()
    key = ObjectKey(NS, "starving")
    for node in ("n1", "n2"):
        body = builders.allocation(builders.result(node, "gpu-0"))["allocation"]
        kept = codec.convert(AllocationResult, body)
        place = PodPlacement(PodID(key, Uid("starving")), node, (kept,))
        world.decisions.apply(DevicesSetAside(Rank(-1, "", key), (place,)))
        answer = world.ask("a", **asking(1))
        assert isinstance(answer, GrantDevices)
        assert answer.node != node


def test_a_node_where_a_grant_was_in_vain_is_left_out_for_a_while() -> None:
    world = SimulatedCluster()
    first = world.ask("a", **asking(1))
    assert isinstance(first, GrantDevices)
    world.decisions.apply(NodeTurnedDown(Uid("a"), first.node, 0.0))
    second = world.ask("a", now=1.0, **asking(1))
    assert isinstance(second, GrantDevices)
    assert second.node != first.node


@pytest.mark.parametrize("amount", [33, 10**6, 10**15, 10**18, 10**30])
def test_nothing_is_granted_for_an_amount_that_no_claim_can_have(amount: int) -> None:
    answer = SimulatedCluster().ask("a", **asking(amount))
    # What does not fit into 64 bits kube-scheduler does not count.
    assert isinstance(answer, Refuse if amount < 2**59 else Proceed)


def test_a_pod_of_many_containers_is_refused_or_served() -> None:
    world = SimulatedCluster()
    one = asking(1)["containers"][0]
    containers = [{**one, "name": f"c{i}"} for i in range(200)]
    refusal = world.ask("a", containers=containers)
    assert isinstance(refusal, Refuse)


def test_admin_access_needs_no_grant() -> None:
    """The API server admits it from everybody who may ask for it."""
    world = SimulatedCluster()
    world.claim("look", *both(adminAccess=True))
    assert world.ask("a", "look") == Proceed(theirs=True)


def test_a_pod_that_has_its_extended_resources_gets_no_more() -> None:
    world = SimulatedCluster()
    body = builders.pod("a", uid="a", **asking(1))
    body["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": []}
    world.seen(Pod, body)
    question = PodQuestion(PodID(ObjectKey(NS, "a"), Uid("a")), 0.0)
    # Before the claim is known: kube-scheduler deletes it when a binding fails.
    assert isinstance(world.decisions.decide(question).decision, GrantDevices)
    world.claim("made")
    assert isinstance(world.decisions.decide(question).decision, Proceed | Wait)


def test_the_answer_is_the_same_from_another_process() -> None:
    world = SimulatedCluster()
    answer = world.answer("a", **asking(2))
    received = codec.decode(Answer, packed_answer(answer, answer.version, 0, slow=False))
    assert decision_of(received, lambda _: None) == answer.decision
    assert isinstance(answer.decision, GrantDevices)


def test_nothing_is_granted_of_a_pool_that_is_tainted() -> None:
    """kube-scheduler would not take its devices, so a grant of them would be in vain."""
    world = SimulatedCluster()
    for node in ("n1", "n2"):
        gpu = builders.device("gpu-0", taints=[PROTECTED])
        world.seen(ResourceSlice, builders.resource_slice(node, gpu))
        world.decisions.apply(PoolChanged(pool(node), False, PoolPolicy()))
    refusal = world.ask("a", **asking(1))
    assert isinstance(refusal, Refuse)
    assert "no pool of the controller is open" in refusal.message
    assert "condition Published of the DeviceInventories says why" in refusal.message


def test_devices_that_kube_scheduler_would_not_take_for_a_pod_of_another_node_are_not_granted() -> None:
    """A pool that changes hands is no place for a grant, even where its devices look free."""
    world = SimulatedCluster()
    world.pool("n1", blocked=True)
    answer = world.ask("a", **asking(1))
    assert isinstance(answer, GrantDevices)
    assert answer.node == "n2"
    world.pool("n2", blocked=True)
    assert isinstance(world.ask("b", **asking(1)), Refuse)
