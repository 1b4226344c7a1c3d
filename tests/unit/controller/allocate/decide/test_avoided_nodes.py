"""For how long nodes are left out for a pod that kube-scheduler turned down."""

import itertools
import tracemalloc

import builders
import msgspec
import pytest

from controller.allocate.decide.nodes.node_backoff import EVERYWHERE, NodeBackoff, changed_node
from controller.allocate.decide.nodes.reports import has_no_node
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod, PodStatus
from dra_driver.api.meta import Uid

POD = Uid("p")
NOWHERE = "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."


def test_each_refusal_on_a_node_doubles_the_time_up_to_a_limit() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    assert [nodes.add(POD, "a", 100.0) for _ in range(3)] == [15.0, 30.0, 60.0]
    assert nodes.nodes(POD, 101.0) == {"a": pytest.approx(59.0)}
    assert nodes.nodes(POD, 160.0) == {}
    assert max(nodes.add(POD, "a", 160.0) for _ in range(100)) == 600.0


def test_other_nodes_that_were_tried_do_not_double_it() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    assert [nodes.add(POD, f"n{i}", float(i)) for i in range(8)] == [15.0] * 8
    assert set(nodes.nodes(POD, 16.5)) == {f"n{i}" for i in range(2, 8)}


def test_what_changes_on_a_node_ends_its_avoidance_for_all_pods_and_no_other_one() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    for pod in ("p", "q"):
        for node in ("a", "b"):
            nodes.add(Uid(pod), node, 0.0)
            nodes.add(Uid(pod), node, 0.0)
    nodes.reset("a")
    assert set(nodes.nodes(Uid("p"), 0.0)) == set(nodes.nodes(Uid("q"), 0.0)) == {"b"}
    assert nodes.add(POD, "a", 0.0) == 15.0
    nodes.forget(POD)
    nodes.reset("a")
    nodes.reset("b")
    assert nodes.nodes(Uid("q"), 0.0) == {}


def test_a_pod_that_no_node_suits_is_left_out_but_on_nodes_that_change() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    pod = _pod("Pending", "")
    uid = pod.metadata.uid
    assert nodes.add(uid, EVERYWHERE, 0.0) == 600.0
    assert nodes.avoided(pod, ["a", "b", "c"], 0.0) == {"a", "b", "c"}
    nodes.reset("b")
    assert nodes.avoided(pod, ["a", "b", "c"], 0.0) == {"a", "c"}
    nodes.add(uid, "b", 1.0)
    assert nodes.avoided(pod, ["a", "b", "c"], 1.0) == {"a", "b", "c"}
    nodes.has_node(uid)  # it is b that has changed, as far as is known
    assert nodes.avoided(pod, ["a", "b", "c"], 1.0) == {"a", "b", "c"}
    assert nodes.recent(uid, 1.0) == {"b"}
    nodes.add(uid, EVERYWHERE, 1.0)
    nodes.has_node(uid)
    assert set(nodes.avoided(pod, ["a", "b", "c"], 1.0)) == {"b"}
    nodes.forget(uid)
    assert nodes.avoided(pod, ["a", "b", "c"], 1.0) == {}.keys()


def test_attempts_in_vain_where_no_node_suits_are_ever_rarer() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    pod, uid, now, rests = _reported(NOWHERE), Uid("uid-p"), 0.0, []
    nodes.add(uid, EVERYWHERE, now)
    for _ in range(6):
        nodes.reset("b")
        while "b" in nodes.avoided(pod, ["a", "b"], now):
            now += 10.0
        rests.append(now)
        nodes.add(uid, EVERYWHERE, now)
    assert [b - a for a, b in itertools.pairwise(rests)] == [60.0, 120.0, 240.0, 480.0, 600.0]
    # It says when more nodes may be tried, with and without one that has changed.
    assert nodes.nodes(uid, now) == {EVERYWHERE: 600.0}
    nodes.reset("a")
    assert nodes.nodes(uid, now + 1.0) == {EVERYWHERE: 599.0}
    # Once claims are missing they are given at once, on what has changed.
    nodes.has_node(uid)
    assert nodes.avoided(_reported("1 cannot allocate all claims."), ["a", "b"], now) == {"b"}


def test_only_the_report_is_known_of_a_pod_at_first() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    pod = _reported(NOWHERE)
    assert nodes.avoided(pod, ["a", "b"], 0.0) == {"a", "b"}
    assert set(nodes.avoided(pod, ["a", "b"], 600.0)) == set()
    nodes.reset("a")
    assert nodes.avoided(pod, ["a", "b"], 1.0) == {"b"}
    assert set(nodes.avoided(_reported("1 cannot allocate all claims."), ["a", "b"], 1.0)) == {"b"}
    nodes.forget(pod.metadata.uid)
    assert set(nodes.avoided(_reported("1 cannot allocate all claims."), ["a", "b"], 1.0)) == set()


def test_changed_nodes_are_kept_once_however_many_pods_no_node_suits() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    names = [f"n{i}" for i in range(500)]
    for i in range(500):
        nodes.add(Uid(f"p{i}"), EVERYWHERE, 0.0)
    tracemalloc.start()
    try:
        for name in names:
            nodes.reset(name)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 500 * len(names)  # bytes; a set for each pod would be fifty times that
    pod = _reported(NOWHERE, "late")
    assert nodes.avoided(pod, names, 1.0) == set(names)  # it is known only now
    nodes.reset("n7")
    assert nodes.avoided(pod, names, 1.0) == set(names) - {"n7"}
    nodes.node_gone("n7")  # another one may have its name
    assert nodes.avoided(pod, names, 1.0) == set(names)


def test_pods_of_one_replica_set_rest_together() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    first, second = (_reported(NOWHERE, name, "owner") for name in ("first", "second"))
    for pod in (first, second):
        nodes.seen(pod)
        nodes.add(pod.metadata.uid, EVERYWHERE, 0.0)
    nodes.reset("a")
    assert nodes.avoided(second, ["a"], 0.0) == set()
    nodes.add(first.metadata.uid, EVERYWHERE, 1.0)
    assert nodes.avoided(second, ["a"], 2.0) == {"a"}
    nodes.forget(first.metadata.uid)
    assert nodes.avoided(second, ["a"], 2.0) == {"a"}
    nodes.has_node(second.metadata.uid)
    assert nodes.avoided(second, ["a"], 2.0) == set()


@pytest.mark.parametrize(
    ("message", "reason", "expected"),
    [
        (NOWHERE, "Unschedulable", True),
        (NOWHERE, "SchedulerError", False),
        ("0/2 nodes are available: 1 Too many pods, 1 cannot allocate all claims.", "Unschedulable", False),
        ("0/2 nodes are available: 2 resourceclaim not available on the node.", "Unschedulable", False),
        ("0/2 nodes are available: 2 timed out trying to allocate devices.", "Unschedulable", False),
        # Of a scheduler whose words are not known, or of a plugin that holds pods back.
        ('pod "p" rejected while waiting on permit: not all members are there', "Unschedulable", False),
    ],
)
def test_what_kube_scheduler_means_by_no_node(message: str, reason: str, expected: bool) -> None:
    assert has_no_node(_reported(message, reason=reason)) is expected


def test_while_a_node_is_nominated_kube_scheduler_has_one() -> None:
    pod = _reported(NOWHERE)
    status = msgspec.structs.replace(pod.status, nominated_node_name="n1")
    assert not has_no_node(msgspec.structs.replace(pod, status=status))


def _reported(message: str, name: str = "p", owner: str = "", *, reason: str = "Unschedulable") -> Pod:
    pod = _member(name, owner) if owner else codec.convert(Pod, builders.pod(name, uid=f"uid-{name}"))
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return msgspec.structs.replace(pod, status=codec.convert(PodStatus, {"conditions": [condition]}))


def test_pods_do_not_share_and_are_forgotten() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    first = nodes.add(POD, "a", 0.0)
    assert nodes.nodes(Uid("q"), 0.0) == {}
    nodes.forget(POD)
    assert nodes.nodes(POD, 0.0) == {}
    assert nodes.add(POD, "a", 0.0) == first


def test_pods_of_one_replica_set_share_what_was_found_out() -> None:
    nodes = NodeBackoff(15.0, 600.0, 60.0)
    first, second, third = _member("first", "a"), _member("second", "a"), _member("third", "b")
    for pod in (first, second, third):
        nodes.seen(pod)
        nodes.seen(pod)
    nodes.add(first.metadata.uid, "n1", 0.0)
    nodes.add(first.metadata.uid, "n1", 1.0)
    assert nodes.nodes(first.metadata.uid, 1.0) == {"n1": 30.0}
    assert nodes.nodes(second.metadata.uid, 1.0) == {"n1": 15.0}  # once, not doubled
    assert nodes.nodes(third.metadata.uid, 1.0) == {}
    assert nodes.recent(second.metadata.uid, 2.0) == {"n1"}
    assert nodes.recent(second.metadata.uid, 8.0) == set()
    nodes.reset("n1")
    assert nodes.nodes(second.metadata.uid, 1.0) == {}
    nodes.add(first.metadata.uid, "n2", 2.0)
    nodes.forget(first.metadata.uid)
    assert set(nodes.nodes(second.metadata.uid, 3.0)) == {"n2"}
    nodes.forget(second.metadata.uid)
    nodes.forget(third.metadata.uid)
    nodes.reset("n2")
    again = _member("again", "a")
    nodes.seen(again)
    assert nodes.nodes(again.metadata.uid, 3.0) == {}


def _member(name: str, owner: str) -> Pod:
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": owner,
        "uid": owner,
        "controller": True,
    }
    return codec.convert(Pod, builders.pod(name, uid=name, metadata={"ownerReferences": [reference]}))


def _pod(phase: str = "Running", node: str = "n1") -> Pod:
    body = builders.pod("p", nodeName=node) if node else builders.pod("p")
    return codec.convert(Pod, {**body, "status": {"phase": phase}})


def _node(*, unschedulable: bool = False) -> Node:
    return codec.convert(Node, builders.node("n1", unschedulable=unschedulable))


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (_pod(), None, "n1"),
        (_pod(), _pod("Succeeded"), "n1"),
        (_pod("Succeeded"), _pod("Succeeded"), ""),
        (_pod(), _pod(), ""),
        (_pod(node=""), None, ""),
        (_pod("Pending", ""), _pod("Pending"), ""),
        (_node(unschedulable=True), _node(), "n1"),
        (_node(), _node(), ""),
        (None, _node(), ""),
        (None, None, ""),
    ],
)
def test_a_pod_that_leaves_and_a_node_that_changes_are_changes_of_the_node(
    old: Pod | Node | None, new: Pod | Node | None, changed: str
) -> None:
    assert changed_node(old, new) == changed
