"""Pods that wait: nobody is overtaken by a younger pod that asks for the same, and a change is cheap."""

from __future__ import annotations

import random

from controller.allocate.decide.nodes.signatures import signature_of
from controller.allocate.decide.order import Rank, rank_of, rank_of_group
from controller.allocate.pending import PendingPods
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.resource import ResourceClaim


def pod(name: str, second: int = 0, **spec: object) -> Pod:
    stamp = f"2026-01-01T00:00:{second:02}Z"
    raw = {"metadata": {"name": name, "namespace": "n", "creationTimestamp": stamp}, "spec": spec}
    return codec.convert(Pod, raw)


def claim(name: str, device_class: str = "gpu", topology: str = "") -> ResourceClaim:
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    annotations = {TOPOLOGY_ANNOTATION: topology} if topology else {}
    raw = {
        "metadata": {"name": name, "uid": name, "annotations": annotations},
        "spec": {"devices": {"requests": [request]}},
    }
    return codec.convert(ResourceClaim, raw)


def test_only_the_oldest_of_a_shape_is_tried_oldest_shape_first() -> None:
    waiting = PendingPods()
    for name, second, shape in (("c", 3, b"x"), ("a", 1, b"y"), ("b", 2, b"x")):
        waiting.add(pod(name, second), shape)
    assert waiting.heads() == [ObjectKey("n", "a"), ObjectKey("n", "b")]


def test_the_next_of_the_shape_follows_when_one_is_served() -> None:
    waiting = PendingPods()
    for name, second in (("c", 3), ("a", 1), ("b", 2)):
        waiting.add(pod(name, second), b"x")
    assert waiting.remove(ObjectKey("n", "a")) == ObjectKey("n", "b")
    assert waiting.remove(ObjectKey("n", "b")) == ObjectKey("n", "c")
    assert waiting.remove(ObjectKey("n", "c")) is None
    assert waiting.remove(ObjectKey("n", "c")) is None
    assert len(waiting) == 0


def test_a_pod_whose_shape_changes_waits_once() -> None:
    waiting = PendingPods()
    waiting.add(pod("a"), b"x")
    waiting.add(pod("a"), b"y")
    assert len(waiting) == 1
    assert waiting.heads() == [ObjectKey("n", "a")]


def test_pods_that_ask_for_the_same_have_one_shape() -> None:
    assert signature_of(pod("a"), [claim("1")], ()) == signature_of(pod("b"), [claim("2")], ())


def test_what_tells_pods_apart() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    shapes = [
        signature_of(pod("a"), [claim("1")], ()),
        signature_of(pod("a"), [claim("1", "other")], ()),
        signature_of(pod("a"), [claim("1", topology="required:numaNode")], ()),
        signature_of(pod("a", nodeSelector={"k": "v"}), [claim("1")], ()),
        signature_of(pod("a", containers=[container]), [claim("1")], ()),
        signature_of(pod("a"), [], ()),
        signature_of(pod("b"), [], ()),
        signature_of(pod("c"), [claim("1")], {"node1"}),
        signature_of(pod("d", nodeName="node1"), [claim("1")], ()),
    ]
    assert len(set(shapes)) == len(shapes)


def test_the_pod_of_higher_priority_is_tried_before_older_ones() -> None:
    waiting = PendingPods()
    for name, second, priority, shape in (
        ("old", 1, 0, b"x"),
        ("high", 3, 10, b"x"),
        ("higher", 4, 20, b"y"),
        ("low", 0, -5, b"z"),
    ):
        waiting.add(pod(name, second, priority=priority), shape)
    assert waiting.heads() == [ObjectKey("n", name) for name in ("higher", "high", "low")]
    assert waiting.remove(ObjectKey("n", "high")) == ObjectKey("n", "old")
    assert waiting.heads() == [ObjectKey("n", name) for name in ("higher", "old", "low")]


def test_a_group_has_the_lowest_priority_of_its_pods_and_the_age_of_the_youngest() -> None:
    members = [pod("a", 1, priority=100), pod("b", 5, priority=10), pod("c", 2, priority=10)]
    rank = rank_of_group(members)
    assert (rank.level, rank.since) == (-10, "2026-01-01T00:00:05Z")
    waiting = PendingPods()
    for member in members:
        waiting.add(member, b"group", rank)
    waiting.add(pod("d", 4, priority=10), b"x")
    waiting.add(pod("e", 6, priority=10), b"y")
    assert waiting.heads() == [ObjectKey("n", name) for name in ("d", "a", "e")]
    # An answer that is remembered does not name the members.
    waiting.add(members[0], b"group")
    assert waiting.heads() == [ObjectKey("n", name) for name in ("d", "a", "e")]
    assert waiting.rank(ObjectKey("n", "a")) == rank._replace(key=ObjectKey("n", "a"))


def test_who_was_behind_a_pod_that_asks_for_something_else_now_is_named() -> None:
    """What keeps the first waiting from now on need not hold for the others."""
    waiting = PendingPods()
    for second in range(3):
        waiting.add(pod(f"p{second}", second), b"x")
    assert waiting.add(pod("p1", 1), b"y") is None
    assert waiting.add(pod("p0", 0), b"x") is None
    assert waiting.add(pod("p0", 0), b"y") == ObjectKey("n", "p2")
    assert waiting.add(pod("p2", 2), b"y") is None


def test_pods_are_first_in_the_order_of_their_ranks_whatever_waits_and_goes() -> None:
    chance = random.Random(7)
    waiting = PendingPods()
    there: dict[ObjectKey, tuple[Rank, bytes]] = {}
    for step in range(2_000):
        if there and chance.random() < 0.5:
            key = chance.choice(sorted(there))
            waiting.remove(key)
            del there[key]
        else:
            one = pod(f"p{chance.randrange(40)}", chance.randrange(60), priority=chance.randrange(3))
            shape = bytes([chance.randrange(4)])
            waiting.add(one, shape)
            there[one.key] = (rank_of(one), shape)
        firsts = [min(r for r, s in there.values() if s == shape) for shape in {s for _, s in there.values()}]
        assert waiting.heads() == [rank.key for rank in sorted(firsts)], step
        assert waiting.first() == min(firsts, default=None)


def test_pods_that_are_refused_again_and_again_cost_no_more_memory() -> None:
    waiting = PendingPods()
    for _ in range(50):
        for number in range(20):
            waiting.add(pod(f"p{number}", number), b"x")
        waiting.remove(ObjectKey("n", "p7"))
    assert len(waiting._all._order) <= 2 * 20 + 16
    assert all(len(alike._order) <= 2 * 20 + 16 for alike in waiting._alike.values())
    assert waiting.first() == rank_of(pod("p0", 0))
