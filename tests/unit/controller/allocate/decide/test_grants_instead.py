"""Grants in place of our own choice: for pods that came back, or that demand what we do not look at."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER

from controller.allocate.decide import (
    EVERYWHERE,
    ClaimSeen,
    Decision,
    Decisions,
    GrantDevices,
    NodeTurnedDown,
    ObjectSeen,
    PodID,
    PodQuestion,
    PoolChanged,
    Refuse,
    Settings,
    VolumesKnown,
    Write,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.names import CANNOT_ALLOCATE, GRANTS
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.api.storage import PersistentVolumeClaim, StorageClass
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

NS = builders.NAMESPACE
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}
NEWER: dict[str, Any] = {"newer": {"expression": "device.isNice"}}
SOME_NAMESPACES = {"matchLabels": {"team": "a"}}


def pool(node: str) -> PoolID:
    return PoolID(DRIVER, PoolName(node))


class SimulatedCluster:
    """Nodes with one GPU each."""

    def __init__(self, *nodes: str, grants: bool = True) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,), grants=grants), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        for name in nodes or ("n1", "n2"):
            self.seen(Node, builders.node(name, allocatable=ROOM))
            gpu = builders.device("gpu-0", attributes={"type": "gpu"})
            self.seen(ResourceSlice, builders.resource_slice(name, gpu))
            self.pool(name)

    def pool(self, node: str, granted: frozenset[str] = frozenset(), *, blocked: bool = False) -> None:
        self.decisions.apply(PoolChanged(pool(node), blocked, PoolPolicy(), granted, open=True))

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def claim(self, name: str = "c", *requests: dict[str, Any], **more: Any) -> None:
        body = builders.claim(name, *requests, uid=f"uid-{name}", **more)
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def pod(self, name: str = "p", report: str = "", reason: str = "Unschedulable", **spec: Any) -> None:
        spec.setdefault("gated", True)
        body = builders.pod(name, "c", uid=name, **spec)
        if report:
            condition = {"type": "PodScheduled", "status": "False", "reason": reason}
            body["status"]["conditions"] = [{**condition, "message": report}]
        self.seen(Pod, body)

    def turned_down(self, *nodes: str, at: float = 0.0) -> None:
        for node in nodes:
            self.decisions.apply(NodeTurnedDown(Uid("p"), node, at))

    def ask(self, now: float = 0.0, *, grants: bool = True) -> Decision:
        question = PodQuestion(PodID(ObjectKey(NS, "p"), Uid("p")), now, grants=grants)
        return self.decisions.decide(question).decision


def nodes(decision: Decision) -> list[str]:
    assert isinstance(decision, GrantDevices), decision
    return [one.node for one in decision.nodes]


def world_of(*names: str, **spec: Any) -> SimulatedCluster:
    world = SimulatedCluster(*names)
    world.claim()
    world.pod(**spec)
    return world


def test_the_first_choice_is_ours_and_a_pod_that_came_back_gets_grants_on_a_few_other_nodes() -> None:
    world = world_of("n1", "n2", "n3", "n4", "n5")
    assert isinstance(world.ask(), Write)
    world.turned_down("n2")
    found = world.ask(1.0)
    assert nodes(found) == ["n1", "n3", "n4"]
    assert isinstance(found, GrantDevices)
    assert found.instead
    assert not found.slow
    assert {p.pool for p in found.pools} == {"n1", "n3", "n4"}
    # Where nothing may be granted, one node after the other is tried.
    assert isinstance(world.ask(1.0, grants=False), Write)


def test_nothing_is_granted_on_a_node_where_something_is() -> None:
    world = world_of("n1", "n2", "n3")
    world.turned_down("n1")
    world.pool("n2", frozenset({"gpu-0"}))
    assert nodes(world.ask(1.0)) == ["n3"]
    world.pool("n3", frozenset({"gpu-0"}))
    assert isinstance(world.ask(1.0), Refuse)


def test_a_pod_for_which_no_node_would_do_is_tried_by_us() -> None:
    world = SimulatedCluster()
    world.claim()
    world.pod(gated=False, report="0/2 nodes are available: 2 node(s) didn't match pod affinity rules.")
    world.turned_down(EVERYWHERE)
    assert isinstance(world.ask(1.0), Refuse)
    assert isinstance(world.ask(700.0), Write)
    world.pod(gated=False, report=f"0/2 nodes are available: 2 {CANNOT_ALLOCATE}.")
    assert nodes(world.ask(701.0)) == ["n1", "n2"]


def test_claims_that_other_pods_use_are_ours_alone() -> None:
    world = world_of("n1", "n2", "n3")
    world.turned_down("n1")
    world.pod("other")
    assert isinstance(world.ask(1.0), Write)
    body = builders.pod("other", "c", uid="other")
    body["status"]["phase"] = "Succeeded"
    world.seen(Pod, body)
    assert nodes(world.ask(1.0)) == ["n2", "n3"]


def test_a_grant_that_ends_does_not_make_its_node_suit_again() -> None:
    world = world_of("n1")
    world.turned_down("n1")
    for granted in (frozenset({"gpu-0"}), frozenset[str]()):
        world.pool("n1", granted)
        assert isinstance(world.ask(1.0), Refuse)
    world.pool("n1", blocked=True)
    world.pool("n1")
    assert nodes(world.ask(1.0)) == ["n1"]


# --- what only kube-scheduler looks at ----------------------------------------------------------------------


def term(**more: Any) -> dict[str, Any]:
    labels = {"matchLabels": {"app": "a"}}
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels, **more}


def required(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(*keys: str) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": list(keys)}]}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": selector}]}


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        (required("podAntiAffinity", term()), True),
        (required("podAntiAffinity", term(namespaceSelector={})), True),
        (required("podAntiAffinity", term(namespaceSelector=SOME_NAMESPACES)), False),
        (required("podAffinity", term(namespaceSelector=SOME_NAMESPACES)), False),
        (required("podAntiAffinity", *[term()] * 33), False),
        (spread("a"), True),
        (spread(*(f"a{i}" for i in range(600))), False),
        ({"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(600)]}, False),
    ],
    ids=[
        "anti",
        "all namespaces",
        "some namespaces",
        "near some",
        "many terms",
        "spread",
        "wide",
        "tolerant",
    ],
)
def test_devices_are_granted_for_what_we_do_not_look_at(spec: dict[str, Any], known: bool) -> None:
    world = world_of("n1", "n2", **spec)
    found = world.ask()
    if known:
        assert isinstance(found, Write)
    else:
        assert len(nodes(found)) == 2
        assert isinstance(world.ask(grants=False), Write)


@pytest.mark.parametrize("provisioner", ["disks.example.com", "kubernetes.io/no-provisioner"])
def test_devices_are_granted_for_a_pod_whose_volume_is_to_be_made(provisioner: str) -> None:
    made = provisioner == "disks.example.com"
    world = SimulatedCluster()
    mode = {"volumeBindingMode": "WaitForFirstConsumer"}
    world.seen(StorageClass, {"metadata": {"name": "s"}, "provisioner": provisioner, **mode})
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    data = {"name": "data", "namespace": NS}
    world.seen(PersistentVolumeClaim, {"metadata": data, "spec": {**asked, "storageClassName": "s"}})
    world.decisions.apply(VolumesKnown(True))
    world.claim()
    world.pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    found = world.ask()
    # Whether a volume is there our own look finds out; whether one can be made its driver knows alone.
    if not made:
        assert isinstance(found, Refuse)
        return
    assert len(nodes(found)) == 2
    assert isinstance(found, GrantDevices)
    assert found.slow


# --- claims of a later version ------------------------------------------------------------------------------


def test_a_claim_that_is_newer_than_we_are_gets_a_grant_by_what_we_understand() -> None:
    world = SimulatedCluster()
    small = {"cel": {"expression": 'device.attributes["gpu.example.com"].type == "gpu"'}}
    world.claim("c", builders.request(selectors=[small, NEWER]), constraints=[{"sameSwitch": "leaf"}])
    world.pod()
    found = world.ask(grants=False)
    assert len(nodes(found)) == 2
    assert isinstance(found, GrantDevices)
    assert not found.instead
    none = {"cel": {"expression": 'device.attributes["gpu.example.com"].type == "nic"'}}
    world.claim("c", builders.request(selectors=[none, NEWER]))
    assert isinstance(world.ask(), Refuse)


def test_a_claim_that_is_not_understood_enough_is_refused_with_the_reason() -> None:
    world = SimulatedCluster()
    request = builders.request(selectors=[NEWER])
    request["exactly"]["allocationMode"] = "Fraction"
    world.claim("c", request)
    world.pod()
    refusal = world.ask()
    assert isinstance(refusal, Refuse)
    assert "unknown allocation mode 'Fraction'" in refusal.message


def test_a_claim_that_is_newer_than_we_are_is_refused_where_nothing_is_granted() -> None:
    world = SimulatedCluster(grants=False)
    world.claim("c", builders.request(selectors=[NEWER]))
    world.pod()
    refusal = world.ask()
    assert isinstance(refusal, Refuse)
    assert "needs a newer controller: spec.devices.requests[0].exactly.selectors[0].newer" in refusal.message


# --- what kube-scheduler has chosen itself ------------------------------------------------------------------


def refusal(*devices: str) -> str:
    named = " ".join(f"{DRIVER}/{one}" for one in devices)
    return (
        f'running PreBind plugin "DynamicResources": add allocation and reservation to claim {NS}/c: '
        f"ValidatingAdmissionPolicy '{GRANTS}' denied request: the controller's (turn 7) [{named}]"
    )


def test_a_pod_is_granted_what_kube_scheduler_has_chosen_for_it() -> None:
    unknown = required("podAffinity", term(namespaceSelector=SOME_NAMESPACES))
    world = world_of(*(f"n{i}" for i in range(1, 9)), **unknown)
    assert len(nodes(world.ask())) == 3
    world.pod(gated=False, report=refusal("n7/gpu-0"), reason="SchedulerError", **unknown)
    assert nodes(world.ask()) == ["n7"]
    # Unless something of that is granted to another pod, or was in vain there.
    world.pool("n7", frozenset({"gpu-0"}))
    assert nodes(world.ask()) == ["n1", "n2", "n3"]
    world.pool("n7")
    world.turned_down("n7")
    assert nodes(world.ask(1.0)) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("lands", ["chosen", "taken", "of another pool", "shared", "on two nodes"])
def test_the_device_that_kube_scheduler_has_chosen_is_granted_to_a_claim_that_we_do_not_understand(
    lands: str,
) -> None:
    world = SimulatedCluster("n1", "n2")
    more = {"allowMultipleAllocations": True} if lands == "shared" else {}
    gpus = [builders.device(f"gpu-{i}", "8Gi", attributes={"type": "gpu"}, **more) for i in range(3)]
    world.seen(ResourceSlice, builders.resource_slice("n2", *gpus))
    world.claim("c", builders.request(selectors=[NEWER]))
    world.pod()
    if lands == "taken":
        world.claim("d", status=builders.allocation(builders.result("n2", "gpu-2")))
    chosen = {"of another pool": ["n9/gpu-2"], "on two nodes": ["n2/gpu-2", "n1/gpu-0"]}.get(
        lands, ["n2/gpu-2"]
    )
    world.pod(gated=False, report=refusal(*chosen), reason="SchedulerError")
    found = world.ask()
    assert isinstance(found, GrantDevices)
    granted = [(str(one.pool.pool), one.names) for node in found.nodes for one in node.devices]
    assert (granted == [("n2", ("gpu-2",))]) is (lands == "chosen"), granted
