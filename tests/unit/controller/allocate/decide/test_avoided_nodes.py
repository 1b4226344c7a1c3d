"""For how long nodes are left out for a pod that kube-scheduler turned down."""

import pytest

from controller.allocate.decide.node_backoff import NodeBackoff
from dra_driver.api.meta import Uid

POD = Uid("p")


def test_each_refusal_doubles_the_time_up_to_a_limit() -> None:
    nodes = NodeBackoff(15.0, 600.0)
    assert nodes.add(POD, "a", 100.0) == 15.0
    assert nodes.add(POD, "b", 100.0) == 30.0
    assert nodes.nodes(POD, 101.0) == {"a": pytest.approx(14.0), "b": pytest.approx(29.0)}
    assert set(nodes.nodes(POD, 115.0)) == {"b"}
    assert max(nodes.add(POD, "a", 115.0) for _ in range(100)) == 600.0


def test_pods_do_not_share_and_are_forgotten() -> None:
    nodes = NodeBackoff(15.0, 600.0)
    first = nodes.add(POD, "a", 0.0)
    assert nodes.nodes(Uid("q"), 0.0) == {}
    nodes.forget(POD)
    assert nodes.nodes(POD, 0.0) == {}
    assert nodes.add(POD, "a", 0.0) == first
