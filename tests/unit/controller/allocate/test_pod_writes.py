"""Of a pod the controller changes its own gate and the nominated node, and nothing of its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import virtual_time
from builders import NAMESPACE as NS
from fake_client import FakeClient, unreachable

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.writer import Writer
from dra_driver.api.core import PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import Conflict, Forbidden
from dra_driver.kube import Informer


class World:
    """A pod with a gate of ours and one of another controller."""

    def __init__(self, *gates: str) -> None:
        self.cluster = FakeClient()
        self.put(*gates)
        self.pod = self.now()
        cache = AssumeCache(Informer(self.cluster, RESOURCE_CLAIMS), Journal(), Signal())
        self.writer = Writer(self.cluster, cache, virtual_time.LoopClock())

    def put(self, *gates: str, uid: str = "uid-p") -> None:
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
        self.cluster.put(PODS, {"metadata": {"name": "p", "namespace": NS, "uid": uid}, "spec": spec})

    def now(self) -> Pod:
        return self.cluster.obj(PODS, "p", NS)

    def gates(self) -> list[str]:
        return [gate.name for gate in self.now().spec.scheduling_gates]

    def replaced(self, *gates: str) -> None:
        self.cluster.remove(PODS, "p", NS)
        self.put(*gates, uid="another")

    def ungate(self) -> None:
        asyncio.run(self.writer.ungate(self.pod))

    def nominate(self, node: str) -> str:
        return asyncio.run(self.writer.nominate(self.pod, node))


@pytest.mark.parametrize("others", [[], ["another.dev/gate"]])
def test_only_our_gate_is_removed(others: list[str]) -> None:
    w = World(ALLOCATION_GATE, *others)
    w.ungate()
    assert w.gates() == others


def test_the_gate_of_a_pod_that_is_gone_or_was_replaced_is_left() -> None:
    w = World(ALLOCATION_GATE)
    w.replaced(ALLOCATION_GATE)
    w.ungate()
    assert w.gates() == [ALLOCATION_GATE]
    w.cluster.remove(PODS, "p", NS)
    w.ungate()


def test_a_conflict_about_the_gate_of_the_same_pod_is_reported() -> None:
    w = World(ALLOCATION_GATE)

    def conflict(verb: str, *_: str) -> None:
        if verb == "patch":
            raise Conflict("again and again", code=409, reason="Conflict")

    w.cluster.before = conflict
    with pytest.raises(Conflict):
        w.ungate()


def test_a_node_is_nominated_and_the_nomination_cleared() -> None:
    w = World(ALLOCATION_GATE)
    assert w.nominate("n1") == w.now().metadata.resource_version
    assert w.now().status.nominated_node_name == "n1"
    w.nominate("")
    assert "nominatedNodeName" not in w.cluster.raw(PODS, "p", NS)["status"]


def test_what_kube_scheduler_has_said_of_a_pod_meanwhile_is_not_overwritten() -> None:
    w = World()
    w.cluster.edit(PODS, "p", {"status": {"nominatedNodeName": "n2"}}, NS)
    assert w.nominate("n1") == ""
    assert w.now().status.nominated_node_name == "n2"
    w.pod = w.now()
    assert w.nominate("n1")
    assert w.now().status.nominated_node_name == "n1"


def test_a_gated_pod_is_nominated_although_others_write_it() -> None:
    w = World(ALLOCATION_GATE)
    w.cluster.edit(PODS, "p", {"metadata": {"labels": {"l": "x"}}}, NS)
    assert w.nominate("n1") == w.now().metadata.resource_version


def refused(*_: str) -> None:
    raise Forbidden("no", code=403, reason="Forbidden")


def test_a_pod_that_cannot_be_nominated_is_found_by_kube_scheduler_all_the_same() -> None:
    w = World(ALLOCATION_GATE)
    w.replaced(ALLOCATION_GATE)
    assert w.nominate("n1") == ""
    assert not w.now().status.nominated_node_name
    problems: list[Callable[..., None]] = [refused, unreachable]
    for problem in problems:
        w.cluster.before = problem
        assert w.nominate("n1") == ""
    w.cluster.before = lambda *_: None
    w.cluster.remove(PODS, "p", NS)
    assert w.nominate("n1") == ""
