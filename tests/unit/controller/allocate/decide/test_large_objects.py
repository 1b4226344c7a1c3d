"""Pods and claims beyond the limits of what is kept: refused with the reason, at nobody else's cost."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from one_node import RESOURCE, OneNode

from controller.allocate.decide import (
    ClaimSeen,
    GrantDevices,
    ObjectSeen,
    Proceed,
    Refuse,
    Wait,
    Write,
    same_but_reason,
    signature_of,
)
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.names import ALLOCATED_CONDITION, GROUP_LABEL, GROUP_SIZE_LABEL, SET_ASIDE_CONDITION
from dra_driver.api.resource import ResourceClaim
from dra_driver.trimming import trimmed_claim, trimmed_pod

NS = builders.NAMESPACE
EXTENDED = {
    "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", RESOURCE: "1"}}}]
}
MANY = [{"operator": "Exists"}] * 1_025
TEXT = "spec.tolerations of the pod has 1025 entries, and the controller serves at most 1024"


class SimulatedCluster(OneNode):
    """What is seen is what the informers keep."""

    def request(self, name: str, class_: str = "gpu", selectors: int = 0) -> None:
        """Have a claim with one request."""
        request = builders.request("r", class_)
        request["exactly"]["selectors"] = [{"cel": {"expression": "true" + " " * 10_000}}] * selectors
        body = builders.claim(name, request, uid=f"uid-{name}")
        self.decisions.apply(ClaimSeen(trimmed_claim(codec.convert(ResourceClaim, body))))

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        body = builders.pod(name, *claims, uid=f"uid-{name}", gated=True, **more)
        self.decisions.apply(ObjectSeen(trimmed_pod(codec.convert(Pod, body))))


def test_a_pod_beyond_a_limit_is_refused_with_the_reason_and_others_are_served() -> None:
    cluster = SimulatedCluster()
    cluster.request("big")
    cluster.request("small")
    cluster.pod("big", "big", tolerations=MANY)
    cluster.pod("small", "small", tolerations=MANY[1:])
    found = cluster.decided("big")
    assert isinstance(found, Refuse)
    assert found.message == TEXT
    assert [claim.metadata.name for claim in found.claims] == ["big"]
    assert not found.new_node
    assert isinstance(cluster.decided("small"), Write)


def test_a_pod_beyond_a_limit_goes_to_kube_scheduler_with_claims_of_other_drivers() -> None:
    cluster = SimulatedCluster()
    cluster.request("theirs", "nic")
    cluster.pod("big", "theirs", tolerations=MANY)
    assert cluster.decided("big") == Proceed(theirs=True)


def test_a_group_is_refused_because_of_a_member_beyond_a_limit() -> None:
    cluster = SimulatedCluster()
    labels = {"labels": {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2"}}
    for name, tolerations in (("a", MANY), ("b", [])):
        cluster.request(name)
        cluster.pod(name, name, tolerations=tolerations, metadata=labels)
    found = cluster.decided("b")
    assert isinstance(found, Wait)
    assert found.reason == f"group g: pod a: {TEXT}"


def test_a_pod_without_claims_takes_its_part_of_the_node() -> None:
    cluster = SimulatedCluster()
    cluster.request("c")
    cluster.pod("p", "c", cpu="5")
    cluster.pod("big", nodeName="n1", cpu="4", tolerations=MANY)
    found = cluster.decided("p")
    assert isinstance(found, Refuse)
    assert "cpu" in found.message


def test_a_claim_beyond_a_limit_is_refused_with_the_reason() -> None:
    cluster = SimulatedCluster()
    cluster.request("big", selectors=60)
    cluster.request("small", selectors=10)
    cluster.pod("big", "big")
    cluster.pod("small", "small")
    found = cluster.decided("big")
    assert isinstance(found, Refuse)
    assert found.message.startswith(f"claim {NS}/big: spec of the claim has ")
    assert found.message.endswith("bytes of JSON, and the controller serves at most 524288")
    assert isinstance(cluster.decided("small"), Write)


def test_a_claim_beyond_a_limit_goes_to_kube_scheduler_with_devices_of_other_drivers() -> None:
    cluster = SimulatedCluster()
    cluster.request("big", "nic", selectors=60)
    cluster.pod("big", "big")
    assert cluster.decided("big") == Proceed(theirs=True)


def test_nothing_is_granted_for_a_pod_with_a_claim_beyond_a_limit() -> None:
    """Not even for its extended resource: kube-scheduler would wait for the claim that is refused."""
    cluster = SimulatedCluster(grants=True)
    cluster.request("big", selectors=60)
    cluster.pod("big", "big", **EXTENDED)
    found = cluster.decided("big")
    assert isinstance(found, Refuse)
    assert found.message.startswith(f"claim {NS}/big: spec of the claim has ")
    cluster.pod("small", **EXTENDED)
    assert isinstance(cluster.decided("small"), GrantDevices)


def test_nothing_is_granted_for_a_pod_beyond_a_limit() -> None:
    cluster = SimulatedCluster(grants=True)
    cluster.request("c")
    cluster.pod("big", "c", tolerations=MANY, **EXTENDED)
    found = cluster.decided("big")
    assert isinstance(found, Refuse)
    assert found.message == TEXT


def test_pods_that_exceed_limits_by_different_numbers_are_told_their_own() -> None:
    claim = codec.convert(ResourceClaim, builders.claim("c", uid="u"))
    made = [
        trimmed_pod(codec.convert(Pod, builders.pod("p", "c", uid="u", tolerations=MANY * n))) for n in (1, 2)
    ]
    assert made[0].spec == made[1].spec
    assert signature_of(made[0], [claim], ()) != signature_of(made[1], [claim], ())


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"metadata": {"resourceVersion": "2", "annotations": {"example.com/a": "b"}}}, True),
        ({"metadata": {"finalizers": ["example.com/f"]}}, True),
        ({"status": {"conditions": [{"type": ALLOCATED_CONDITION, "reason": "x"}]}}, True),
        ({"status": {"conditions": [{"type": SET_ASIDE_CONDITION, "reason": "x"}]}}, True),
        ({"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}, False),
        ({"metadata": {"labels": {"a": "b"}}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"spec": {"tolerations": MANY}}, False),
    ],
)
def test_a_change_that_decides_nothing_is_not_passed_on(change: dict[str, Any], same: bool) -> None:
    body = builders.pod("p", "c", uid="u")
    now = {**body, **{part: {**body[part], **more} for part, more in change.items()}}
    old, new = (trimmed_pod(codec.convert(Pod, b)) for b in (body, now))
    assert same_but_reason(old, new) is same
