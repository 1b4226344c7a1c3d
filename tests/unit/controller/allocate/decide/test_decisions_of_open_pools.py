"""Pools that are the controller's without a taint: the API server refuses what others allocate from them."""

from __future__ import annotations

import builders
from decision_world import DecisionWorld

from controller.allocate.decide import Decision, Proceed, Refuse, Write


class SimulatedCluster(DecisionWorld):
    """Two nodes, of which n2 has two GPUs; no device has a taint."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1", 1)
        self.node("n2", 2)

    def ask(self, count: int = 1) -> Decision:
        self.claim("c", builders.request(count=count))
        self.pod("p", "c")
        return self.decided("p")


def test_an_open_pool_is_ours_whatever_its_taints_are() -> None:
    world = SimulatedCluster()
    assert world.ask() == Proceed(theirs=True)
    world.pool("n1")
    answer = world.ask()
    assert isinstance(answer, Write)
    assert answer.node == "n1"
    world.pool("n1", is_open=False)
    assert world.ask() == Proceed(theirs=True)


def test_free_devices_of_an_open_pool_are_not_kube_schedulers() -> None:
    """It sees them as free, and the API server refuses it: a pod that waits for them waits with us."""
    world = SimulatedCluster()
    world.pool("n2", blocked=True)
    refusal = world.ask(2)
    assert isinstance(refusal, Refuse)
    assert not refusal.elsewhere
    world.pool("n2", is_open=False)
    world.pool("n1")
    refusal = world.ask(2)
    assert isinstance(refusal, Refuse)
    assert refusal.elsewhere
