"""Devices that are granted to kube-scheduler: neither free nor ours to give back; their pool stays ours."""

from __future__ import annotations

import builders
from builders import DRIVER
from decision_world import DecisionWorld

from controller.allocate.decide import Decision, Refuse, Write
from dra_driver.api.meta import PoolName, Uid
from dra_driver.ownership import PoolID

POOL = PoolID(DRIVER, PoolName("n1"))


class SimulatedCluster(DecisionWorld):
    """A node with two GPUs, whose pool is open."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1", 2)
        self.pool("n1")

    def held(self, device: str) -> None:
        """Have a claim that holds a device."""
        self.claim("held", status=builders.allocation(builders.result("n1", device)))

    def ask(self, *claims: str) -> Decision:
        """Ask about a pod with these claims."""
        pod = f"of-{'-'.join(claims)}"
        self.pod(pod, *claims)
        return self.decided(pod)

    def gets(self, *claims: str) -> list[str]:
        answer = self.ask(*claims)
        if not isinstance(answer, Write):
            return []
        return [r.device for _, allocation in answer.allocations for r in allocation.devices.results]


def test_a_granted_device_is_not_allocated_and_its_pool_stays_ours() -> None:
    world = SimulatedCluster()
    world.claim("one")
    world.claim("two", builders.request(count=2))
    world.claim("all", builders.request(count=None))
    assert world.gets("one") == ["gpu-0"]
    assert world.gets("two") == world.gets("all") == ["gpu-0", "gpu-1"]
    world.pool("n1", "gpu-0")
    assert world.gets("one") == ["gpu-1"]
    assert isinstance(world.ask("two"), Refuse)
    assert isinstance(world.ask("all"), Refuse)
    world.pool("n1")
    assert world.gets("two") == ["gpu-0", "gpu-1"]


def test_nothing_is_given_back_that_is_held_of_a_granted_device() -> None:
    world = SimulatedCluster()
    world.held("gpu-0")
    world.claim("more", builders.request(count=2))
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ["held"]
    world.pool("n1", "gpu-0")
    answer = world.ask("held", "more")
    assert isinstance(answer, Refuse)
    assert not answer.undo


def test_admin_access_takes_nothing_of_a_granted_device() -> None:
    world = SimulatedCluster()
    world.claim("look", builders.request(count=None, adminAccess=True))
    world.pool("n1", "gpu-0")
    assert sorted(world.gets("look")) == ["gpu-0", "gpu-1"]


def test_what_is_taken_is_the_same_object_as_long_as_nothing_changes() -> None:
    """The allocator finds what has changed by comparing objects."""
    world = SimulatedCluster()
    claims = world.decisions._claims
    bare = claims.allocated
    world.pool("n1", "gpu-0")
    granted = claims.allocated
    assert set(granted.pool(POOL).devices) == {"gpu-0"}
    assert claims.allocated is granted
    assert not claims.held.pool(POOL).devices
    world.held("gpu-1")
    assert set(claims.allocated.pool(POOL).devices) == {"gpu-0", "gpu-1"}
    assert set(claims.without({Uid("uid-held")}).pool(POOL).devices) == {"gpu-0"}
    world.claim("held")
    world.pool("n1")
    assert claims.allocated.pools == bare.pools
