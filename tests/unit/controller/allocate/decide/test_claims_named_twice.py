"""Pods that name one claim in several entries: refused with the reason, at nobody else's cost."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from one_node import OneNode

from controller.allocate.decide import (
    Decision,
    Proceed,
    Refuse,
    Wait,
    Write,
)
from dra_driver.api.core import Pod
from dra_driver.api.names import GROUP_LABEL, GROUP_SIZE_LABEL

NS = builders.NAMESPACE
OURS = builders.allocation(builders.result("n1", "gpu-0"))
THEIRS = builders.allocation(builders.result("n1", "nic-0", driver="nic.example"))


class SimulatedCluster(OneNode):
    """With the claim ``c``, of a class that selects devices of one driver."""

    def __init__(self, status: dict[str, Any] | None = None, class_: str = "gpu") -> None:
        super().__init__()
        self.claim("c", builders.request("r", class_), status=status)

    def ask(self, *claims: str, **more: Any) -> Decision:
        self.pod("p", *claims, **more)
        return self.decided("p")


@pytest.mark.parametrize("status", [{}, OURS, {**OURS, **builders.reserved("other")}])
def test_the_pod_is_refused_with_the_reason_and_the_claim_stays_as_it_is(status: dict[str, Any]) -> None:
    found = SimulatedCluster(status).ask("c", "c")
    assert isinstance(found, Refuse)
    assert "names ResourceClaim c 2 times (first as c0 and c1)" in found.message
    assert [claim.metadata.name for claim in found.claims] == ["c"]
    # Another pod may share the claim, and be able to run.
    assert not found.undo
    assert not found.new_node


def test_a_pod_with_the_name_of_its_node_is_refused_as_well() -> None:
    assert isinstance(SimulatedCluster().ask("c", "c", nodeName="n1"), Refuse)


def test_a_pod_that_is_bound_with_its_devices_is_left_alone() -> None:
    status = {**OURS, **builders.reserved("p")}
    assert isinstance(SimulatedCluster(status).ask("c", "c", nodeName="n1"), Proceed)


@pytest.mark.parametrize("status", [{}, THEIRS])
def test_a_pod_whose_claim_is_allocated_by_kube_scheduler_is_left_to_it(status: dict[str, Any]) -> None:
    assert isinstance(SimulatedCluster(status, "nic").ask("c", "c"), Proceed)


def test_the_pod_is_served_once_it_names_the_claim_once() -> None:
    cluster = SimulatedCluster()
    assert isinstance(cluster.ask("c", "c"), Refuse)
    found = cluster.ask("c")
    assert isinstance(found, Write)
    assert len(found.allocations) == 1


def test_a_group_with_such_a_member_waits_with_the_reason() -> None:
    cluster = SimulatedCluster()
    cluster.claim("other")
    labels = {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}}
    cluster.seen(Pod, builders.pod("q", "other", uid="uid-q", gated=True, metadata=labels))
    found = cluster.ask("c", "c", metadata=labels)
    # Not refused: no autoscaler is asked for nodes on which it cannot run either.
    assert isinstance(found, Wait)
    assert "group g: pod p: spec.resourceClaims of the pod names ResourceClaim c 2 times" in found.reason
