"""Members of a group are decided together: what one takes is chosen with the others in view."""

from __future__ import annotations

from typing import Any

import builders
import msgspec
import pytest

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
    Refuse,
    Settings,
    Wait,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, Uid
from dra_driver.api.names import (
    ALLOCATION_GATE,
    CONTROLLER_TAINT,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_SIZE_LABEL,
)
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice

OURS = DriverName("gpu.example.com")
NS = "default"
TAINT = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}


class SimulatedCluster:
    """Nodes with GPUs, and the decisions about pods."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(OURS,)), lambda: 0.0)
        self.now = 0.0
        self.see(DeviceClass, builders.device_class("gpu"))

    def see(self, kind: Any, body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def node(self, name: str, *models: str, cpu: str = "", rack: str = "") -> None:
        """A node with GPUs: model and memory each, such as ``A100-80``."""
        body = builders.node(name, labels={"rack": rack} if rack else {})
        if cpu:
            body["status"] = {"allocatable": {"cpu": cpu, "pods": "110"}}
        self.see(Node, body)
        devices = [
            builders.device(f"gpu-{i}", m.partition("-")[2] + "Gi", attributes={"model": m}, taints=[TAINT])
            for i, m in enumerate(models)
        ]
        self.see(ResourceSlice, builders.resource_slice(name, *devices, driver=OURS))

    def member(self, name: str, size: int, *models: str, cpu: str = "", domain: str = "") -> None:
        """A member of the group that wants one GPU of the first of these models that can be had."""

        def one(model: str) -> dict[str, Any]:
            expression = f'device.attributes["{OURS}"].model == "{model}"'
            # The API server writes the count.
            selectors = [{"cel": {"expression": expression}}]
            return {"deviceClassName": "gpu", "count": 1, "selectors": selectors}

        alternatives = [{"name": f"s{i}", **one(model)} for i, model in enumerate(models)]
        of: dict[str, Any] = {"exactly": {"deviceClassName": "gpu"}}
        if alternatives:
            of = {"firstAvailable": alternatives} if len(models) > 1 else {"exactly": one(models[0])}
        claim = builders.claim(name, uid=f"claim-{name}", requests=[{"name": "r", **of}])
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, claim)))
        container: dict[str, Any] = {"name": "main", "image": "x"}
        if cpu:
            container["resources"] = {"requests": {"cpu": cpu}}
        self.see(
            Pod,
            {
                "metadata": {
                    "name": name,
                    "namespace": NS,
                    "uid": f"pod-{name}",
                    "labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: str(size)},
                    "annotations": {GROUP_DOMAIN_ANNOTATION: domain} if domain else {},
                },
                "spec": {
                    "schedulingGates": [{"name": ALLOCATION_GATE}],
                    "containers": [container],
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                },
            },
        )

    def bound(self, name: str, node: str, cpu: str) -> None:
        """A pod without claims that runs on a node."""
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
        metadata = {"name": name, "namespace": NS, "uid": f"pod-{name}"}
        self.see(Pod, {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}})

    def gone(self, name: str) -> None:
        self.decisions.apply(ObjectGone(Pod, ObjectKey(NS, name)))

    def decide(self, name: str) -> PodAnswer:
        self.now += 1000.0
        return self.decisions.decide(PodQuestion(PodID(ObjectKey(NS, name), Uid(f"pod-{name}")), self.now))


def nodes_of(answer: PodAnswer) -> dict[str, str]:
    """Where each member goes."""
    assert isinstance(answer.decision, GroupWrite), answer.decision
    return {pod.key.name: write.node for pod, write in answer.decision.writes}


def refusal(answer: PodAnswer) -> str:
    assert isinstance(answer.decision, Refuse), answer.decision
    return answer.decision.message


@pytest.mark.parametrize(("large", "a100"), [("a", "b"), ("b", "a")])
def test_a_member_leaves_the_only_device_of_another_to_it(large: str, a100: str) -> None:
    """Whichever of them comes first by name."""
    world = SimulatedCluster()
    world.node("n1", "A100-80")
    world.node("n2", "H200-141")
    world.member(large, 2, "A100-80", "H200-141")
    world.member(a100, 2, "A100-80")
    assert nodes_of(world.decide("a")) == {large: "n2", a100: "n1"}


def test_the_domain_with_the_least_to_spare_is_taken() -> None:
    """Not the scarcest GPUs because their rack has the fewest nodes, or the first name."""
    world = SimulatedCluster()
    world.node("n1", "H200-141", "H200-141", rack="a")
    for name in ("n2", "n3"):
        world.node(name, "A100-80", "A100-80", rack="b")
    for name in ("x", "y"):
        world.member(name, 2, domain="rack")
    assert set(nodes_of(world.decide("x")).values()) <= {"n2", "n3"}


def two_zones() -> SimulatedCluster:
    """Racks of two GPUs in two zones; of each rack one GPU is of clique x, the other of y."""
    world = SimulatedCluster()
    for i, (zone, rack) in enumerate([("z", "a"), ("z", "b"), ("w", "c")]):
        body = builders.node(f"n{i}", labels={"zone": zone, "rack": rack})
        world.see(Node, body)
        devices = [
            builders.device(f"gpu-{k}", "80Gi", attributes={"model": "A", "clique": clique}, taints=[TAINT])
            for k, clique in enumerate("xy")
        ]
        world.see(ResourceSlice, builders.resource_slice(f"n{i}", *devices, driver=OURS))
    return world


@pytest.mark.parametrize(
    ("size", "domain", "nodes"),
    [
        (2, "zone,preferred:rack", {"n2"}),
        (4, "required:zone, preferred:rack", {"n0", "n1"}),
        (2, f"attribute:{OURS}/clique", {"n0", "n1"}),
        (3, f"preferred:attribute:{OURS}/clique", {"n0", "n1", "n2"}),
        (4, f"preferred:attribute:{OURS}/clique", {"n0", "n1"}),
    ],
)
def test_levels_are_required_or_preferred(size: int, domain: str, nodes: set[str]) -> None:
    world = two_zones()
    for i in range(size):
        world.member(f"m{i}", size, domain=domain)
    assert set(nodes_of(world.decide("m0")).values()) == nodes


def test_a_required_level_that_fails_is_named() -> None:
    world = two_zones()
    for i in range(4):
        world.member(f"m{i}", 4, domain=f"attribute:{OURS}/clique")
    assert f"3 of 4 members fit in the best of 2 domains of {OURS}/clique (x)" in refusal(world.decide("m0"))


@pytest.mark.parametrize(
    ("size", "where", "best"),
    [
        (4, "no nodes of one zone and one rack have", "all but 2 (w/c)"),
        (5, "no nodes of one zone have", "all but 1 (z)"),
        (7, "the cluster does not have", "all but 1"),
    ],
)
def test_of_several_levels_the_widest_one_that_fails_is_named(size: int, where: str, best: str) -> None:
    world = two_zones()
    for i in range(size):
        world.member(f"m{i}", size, domain="zone,rack")
    text = f"{where} free devices for all of them, at best for {best}"
    assert refusal(world.decide("m0")).endswith(text)


@pytest.mark.parametrize(
    "domain", ["often:rack", "required:", "a,b,c,d,e", "attribute:x/a,attribute:x/b", ","]
)
def test_a_domain_that_makes_no_sense_is_refused(domain: str) -> None:
    world = two_zones()
    world.member("m", 1, domain=domain)
    assert "group g: dra-driver.dev/group-domain: " in refusal(world.decide("m"))


@pytest.mark.parametrize("domain", ["preferred:rack", f"attribute:{OURS}/clique"])
def test_members_that_hold_devices_decide_for_the_others(domain: str) -> None:
    world = two_zones()
    for name in ("m0", "m1"):
        world.member(name, 2, domain=domain)
    first = world.decide("m0").decision
    assert isinstance(first, GroupWrite)
    before = {pod.key.name: write for pod, write in first.writes}
    # One allocation has been written when the controller is started anew.
    for claim, allocation in before["m0"].allocations:
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        world.decisions.apply(ClaimSeen(msgspec.structs.replace(claim, status=status)))
    again = world.decide("m1").decision
    assert isinstance(again, GroupWrite)
    assert [(p.key.name, w.node) for p, w in again.writes] == [("m1", before["m1"].node)]
    assert again.writes[0][1].allocations[0][1] == before["m1"].allocations[0][1]


def test_a_look_while_the_group_is_being_written_gives_nothing_back() -> None:
    """The devices that the rest is about to have are taken, by the rest."""
    world = SimulatedCluster()
    world.node("n1", "A100-80", "A100-80", "A100-80")
    for name in ("m0", "m1", "m2"):
        world.member(name, 3)
    first = world.decide("m0").decision
    assert isinstance(first, GroupWrite)
    for pod, write in first.writes:
        for claim, allocation in write.allocations:
            if pod.key.name == "m0":
                status = msgspec.structs.replace(claim.status, allocation=allocation)
                world.decisions.apply(ClaimSeen(msgspec.structs.replace(claim, status=status)))
            else:
                world.decisions.apply(ClaimAssumed(claim.key, claim.metadata.uid, allocation))
    for name in ("m0", "m1", "m2"):
        assert isinstance(world.decide(name).decision, Wait)


def test_members_share_the_cpu_of_nodes() -> None:
    world = SimulatedCluster()
    for name in ("n1", "n2"):
        world.node(name, *["A100-80"] * 4, cpu="8")
    for i in range(4):
        world.member(f"m{i}", 4, cpu="3")
    assert sorted(nodes_of(world.decide("m0")).values()) == ["n1", "n1", "n2", "n2"]


def test_a_refusal_says_how_many_members_fit() -> None:
    world = SimulatedCluster()
    world.node("n1", *["A100-80"] * 4, cpu="8")
    for i in range(3):
        world.member(f"m{i}", 3, cpu="3")
    assert "all 3 pods together: 2 of 3 members fit at the same time" in refusal(world.decide("m0"))


def test_cpu_that_becomes_free_has_a_refused_group_looked_at_again() -> None:
    """Although it changes nothing for a single member."""
    world = SimulatedCluster()
    world.node("n1", *["A100-80"] * 4, cpu="8")
    world.bound("other", "n1", "1")
    for i in range(2):
        world.member(f"m{i}", 2, cpu="4")
    assert "1 of 2 members" in refusal(world.decide("m0"))
    world.gone("other")
    assert nodes_of(world.decide("m0")) == {"m0": "n1", "m1": "n1"}


def test_members_with_claims_of_another_driver_go_where_those_can_go_too() -> None:
    world = SimulatedCluster()
    for name in ("n1", "n2"):
        world.node(name, "A100-80", "A100-80")
    world.see(DeviceClass, builders.device_class("nic", 'device.driver == "nic.example.com"'))
    nic = builders.device("nic-0")
    world.see(ResourceSlice, builders.resource_slice("n2", nic, driver="nic.example.com"))
    for name in ("a", "b"):
        world.member(name, 2)
    request = {"name": "r", "exactly": {"deviceClassName": "nic"}}
    claim = builders.claim("nic", uid="claim-nic", requests=[request])
    world.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, claim)))
    world.see(
        Pod,
        {
            "metadata": {
                "name": "a",
                "namespace": NS,
                "uid": "pod-a",
                "labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"},
            },
            "spec": {
                "schedulingGates": [{"name": ALLOCATION_GATE}],
                "containers": [{"name": "main", "image": "x"}],
                "resourceClaims": [{"name": n, "resourceClaimName": n} for n in ("a", "nic")],
            },
        },
    )
    assert nodes_of(world.decide("a"))["a"] == "n2"
