"""Allocations that keep a pod, or a group, from its other devices: given back, or left to another pod."""

from __future__ import annotations

import builders
import pytest
from builders import PROTECTED
from decision_world import DecisionWorld

from controller.allocate.decide import ClaimAssumed, Refuse, Wait
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import AllocationResult

ALLOCATION = builders.allocation(builders.result("n1", "gpu-0"))
HELD = codec.convert(AllocationResult, ALLOCATION["allocation"])


def world_of() -> DecisionWorld:
    """Return a node with two GPUs, whose pool has our taint."""
    world = DecisionWorld()
    world.node("n1", 2, taints=[PROTECTED])
    return world


@pytest.mark.parametrize("written", [False, True], ids=["being written", "written"])
def test_a_shared_claim_is_left_to_a_pod_whose_other_claims_are_being_written(written: bool) -> None:
    world = world_of()
    world.claim("shared", status=ALLOCATION)
    world.claim("never", builders.request(count=5))
    world.claim("own", status=ALLOCATION if written else None)
    world.pod("waits", "never", "shared")
    world.pod("other", "shared", "own")
    answer = world.decided("waits")
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ([] if written else ["shared"])
    world.decisions.apply(ClaimAssumed(ObjectKey(builders.NAMESPACE, "own"), Uid("uid-own"), HELD))
    answer = world.decided("waits")
    assert isinstance(answer, Refuse)
    assert not answer.undo


def test_a_group_that_is_not_complete_gives_back_devices_of_a_pool_that_was_not_ours_for_a_while() -> None:
    world = world_of()
    world.claim("a", status=ALLOCATION)
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}
    world.pod("a", "a", metadata={"labels": labels})
    world.pool("n1", is_open=False, blocked=True)
    # No event leads to a look at a pod that only waits when the pool is ours again.
    answer = world.decided("a", 100.0)
    assert isinstance(answer, Wait)
    assert answer.poll > 0
    world.pool("n1", is_open=False)
    answer = world.decided("a", 100.0 + answer.poll)
    assert isinstance(answer, Wait)
    assert answer.poll > 0
    answer = world.decided("a", 200.0)
    assert isinstance(answer, Refuse)
    assert [c.metadata.name for c in answer.undo] == ["a"]
