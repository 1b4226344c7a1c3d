"""Claims that many pods share: what decisions read of them, and what pods that share all of them wait as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import builders
import msgspec
import pytest
from builders import DRIVER, PROTECTED, request
from work_counter import calls

from controller.allocate.answers.freshness import Knowledge
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    Change,
    ClaimRenewed,
    ClaimSeen,
    Decisions,
    ObjectSeen,
    PodID,
    PodQuestion,
    Refuse,
    Settings,
    Write,
    same_for_decisions,
)
from controller.allocate.worker.wire import Frames, change_of, frame_of_change
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import (
    EXTENDED_RESOURCE_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_LABEL,
    GROUP_SIZE_LABEL,
    TOPOLOGY_ANNOTATION,
)
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.structured import GROUP_KEYS, LARGEST_GROUP, group_terms

NS = builders.NAMESPACE
KEY = ObjectKey(NS, "c")


def claim(name: str = "c", *requests: dict[str, Any], version: str = "1", **metadata: Any) -> ResourceClaim:
    body = builders.claim(name, *requests, uid=f"uid-{name}")
    body["metadata"] |= {"resourceVersion": version, **metadata}
    return codec.convert(ResourceClaim, body)


class SimulatedCluster:
    """One node with one device, whose changes come through a journal and over the wire."""

    def __init__(self) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        self.journal = Journal()
        self.sent: list[Change] = []
        self.journal.send_to(self._sent)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
        self.seen(Node, builders.node("n1", allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"}))
        self.seen(ResourceSlice, builders.resource_slice("n1", builders.device("gpu-0", taints=[PROTECTED])))

    def _sent(self, version: int, change: Change) -> None:
        (message,) = Frames().feed(frame_of_change(version, change))
        received = change_of(message)
        self.sent.append(received)
        self.decisions.apply(received)

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        self.journal.apply(ObjectSeen(codec.convert(kind, body)))

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        self.seen(Pod, builders.pod(name, *claims, uid=f"uid-{name}", **{"gated": True, **more}))

    def ask(self, name: str) -> Any:
        pod = PodID(ObjectKey(NS, name), Uid(f"uid-{name}"))
        return self.decisions.decide(PodQuestion(pod, 0.0)).decision


# --- what decisions read of a claim ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "same"),
    [
        ({}, True),
        ({"labels": {"example.com/x": "1"}}, True),
        ({"annotations": {"example.com/x": "1"}}, True),
        ({"labels": {GROUP_LABEL: "g"}}, False),
        ({"labels": {GROUP_SIZE_LABEL: "2"}}, False),
        ({"annotations": {GROUP_DOMAIN_ANNOTATION: "zone"}}, False),
        ({"annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"}}, False),
        ({"annotations": {TOPOLOGY_ANNOTATION: "zone"}}, False),
        ({"annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"}}, False),
        ({"finalizers": ["x"]}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1"}]}, False),
        ({"uid": "another"}, False),
    ],
)
def test_a_version_of_a_claim_is_the_same_but_for_what_decisions_read(
    metadata: dict[str, Any], same: bool
) -> None:
    assert same_for_decisions(claim(), claim(version="2", **metadata)) is same
    assert same_for_decisions(claim(version="2", **metadata), claim()) is same


def test_what_is_allocated_or_reserved_is_not_the_same() -> None:
    status = {**builders.allocation(builders.result("n1", "gpu-0")), **builders.reserved("p")}
    body = {**builders.claim("c", uid="uid-c"), "status": status}
    assert not same_for_decisions(claim(version=""), codec.convert(ResourceClaim, body))


class Read(Mapping[str, str]):
    """Labels that note which of them are asked for."""

    def __init__(self, asked: set[str]) -> None:
        self._asked = asked

    def __getitem__(self, key: str) -> str:
        self._asked.add(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("name", ["g", "kueue.x-k8s.io/g", "scheduling.sigs.k8s.io/g"])
def test_all_that_a_group_reads_of_a_claim_is_among_its_keys(name: str) -> None:
    asked: set[str] = set()
    group_terms([(Read(asked), Read(asked))], name)
    assert {GROUP_SIZE_LABEL, GROUP_DOMAIN_ANNOTATION} <= asked <= GROUP_KEYS


def test_of_a_version_that_says_nothing_new_the_worker_is_told_the_number_alone() -> None:
    cluster = SimulatedCluster()
    cluster.journal.apply(ClaimSeen(claim()))
    cluster.pod("p", "c")
    cluster.sent.clear()
    with cluster.journal.freshness.awaiting(cluster.journal.version):
        before = cluster.journal.version
        cluster.journal.renew(claim(version="2", annotations={"x": "y" * 100_000}))
        # A write must name the version; that a pod proceeds does not rest on it.
        assert cluster.journal.freshness.holds_for_claim(KEY, Knowledge(before))
    assert cluster.sent == [ClaimRenewed(KEY, Uid("uid-c"), "2")]
    kept = cluster.journal.claim(KEY)
    assert kept is not None
    assert kept.metadata.annotations
    found = cluster.ask("p")
    assert isinstance(found, Write)
    assert [c.metadata.resource_version for c, _ in found.allocations] == ["2"]
    # Another worker is told of the newest one.
    assert ClaimSeen(kept) in list(cluster.journal.replay())


def test_the_number_of_another_claim_with_the_name_changes_nothing() -> None:
    cluster = SimulatedCluster()
    cluster.journal.apply(ClaimSeen(claim()))
    cluster.decisions.apply(ClaimRenewed(KEY, Uid("another"), "9"))
    known = cluster.decisions.claim(KEY)
    assert known is not None
    assert known.metadata.resource_version == "1"


# --- what pods wait as ----------------------------------------------------------------------------------


def test_pods_that_share_all_their_claims_wait_as_one() -> None:
    cluster = SimulatedCluster()
    for name in "cd":
        cluster.journal.apply(ClaimSeen(claim(name, request(count=9))))
    for i, claims in enumerate(("c", "c", "cd", "cd", "d", "cdx")):
        cluster.pod(f"p{i}", *claims)
    cluster.pod("elsewhere", "c", nodeSelector={"zone": "a"})
    cluster.pod("ungated", "c", gated=False)
    found = {name: cluster.ask(name) for name in ("p0", "p1", "p2", "p3", "p4", "elsewhere", "ungated")}
    assert all(isinstance(d, Refuse) for d in found.values())
    of = {name: d.signature for name, d in found.items()}
    assert of["p0"] == of["p1"] == of["ungated"]
    assert of["p2"] == of["p3"]
    assert len(set(of.values())) == 4


# --- groups by the labels of claims ---------------------------------------------------------------------


def test_a_claim_of_more_pods_than_a_group_can_have_makes_none_at_little_cost() -> None:
    cluster = SimulatedCluster()
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "2000"}
    cluster.journal.apply(ClaimSeen(claim("c", labels=labels)))
    for i in range(LARGEST_GROUP + 1):
        cluster.pod(f"p{i}", "c")
    cluster.ask("p0")
    assert calls(lambda: cluster.ask("p1")) < 1_500
    found = cluster.ask("p1")
    assert isinstance(found, Refuse)
    assert f"more than {LARGEST_GROUP} pods" in found.message


def test_more_claims_than_members_can_have_make_no_group() -> None:
    cluster = SimulatedCluster()
    labels = {GROUP_LABEL: "g", GROUP_SIZE_LABEL: "1"}
    one = claim("c0", labels=labels)
    for i in range(8 * LARGEST_GROUP + 1):
        metadata = msgspec.structs.replace(one.metadata, name=f"c{i}", uid=Uid(f"uid-c{i}"))
        cluster.decisions.apply(ClaimSeen(msgspec.structs.replace(one, metadata=metadata)))
    cluster.pod("p", "c0")
    found = cluster.ask("p")
    assert isinstance(found, Refuse)
    assert f"more than {LARGEST_GROUP} pods" in found.message
