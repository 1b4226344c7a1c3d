"""For how long nodes are left out for a pod that kube-scheduler turned down."""

from controller.allocate.node_backoff import NodeBackoff
from controller.config import Timings
from dra_driver.api.meta import Uid

POD = Uid("p")


class Clock:
    seconds = 0.0

    def now(self):
        return self.seconds

    def monotonic(self):
        return self.seconds


def test_each_refusal_doubles_the_time_up_to_a_limit():
    clock = Clock()
    nodes = NodeBackoff(clock, Timings())
    first = nodes.add(POD, "a")
    assert nodes.add(POD, "b") == 2 * first
    assert nodes.nodes(POD) == {"a", "b"}
    assert first < nodes.next_change(POD) < first + 1
    clock.seconds = first
    assert nodes.nodes(POD) == {"b"}
    assert max(nodes.add(POD, "a") for _ in range(100)) == Timings().longest_avoid


def test_pods_do_not_share_and_are_forgotten():
    nodes = NodeBackoff(Clock(), Timings())
    first = nodes.add(POD, "a")
    assert nodes.nodes(Uid("q")) == set()
    nodes.forget(POD)
    assert nodes.nodes(POD) == set()
    assert nodes.next_change(POD) is None
    assert nodes.add(POD, "a") == first
