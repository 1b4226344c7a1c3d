"""The stand-in scheduler's filters and the words it uses."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.sim.controlplane.node_filters import node_rejection, summary


def node(**spec: Any) -> Node:
    return codec.convert(
        Node,
        {
            "metadata": {"name": "n", "labels": {"zone": "a"}},
            "spec": spec,
            "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "3"}},
        },
    )


def pod(cpu: str = "", **spec: Any) -> Pod:
    requests = {"requests": {"cpu": cpu}} if cpu else {}
    return codec.convert(
        Pod,
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": requests}], **spec}},
    )


AFFINITY = "node(s) didn't match Pod's node affinity/selector"
ZONE = {"key": "zone", "operator": "In", "values": ["b"]}
REQUIRED = {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}]}


@pytest.mark.parametrize(
    ("wanted", "there", "others", "reason"),
    [
        (pod(), node(), [], ""),
        (pod(cpu="2"), node(), [], ""),
        (pod(cpu="2"), node(), [pod(cpu="500m")], "Insufficient cpu"),
        (pod(), node(), [pod(), pod(), pod()], "Too many pods"),
        (pod(nodeSelector={"zone": "b"}), node(), [], AFFINITY),
        (
            pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}}),
            node(),
            [],
            AFFINITY,
        ),
        (pod(), node(unschedulable=True), [], "node(s) were unschedulable"),
        (pod(tolerations=[{"operator": "Exists"}]), node(unschedulable=True), [], ""),
        (pod(), node(taints=[{"key": "k", "effect": "NoSchedule"}]), [], "node(s) had untolerated taint(s)"),
        (pod(), node(taints=[{"key": "k", "effect": "PreferNoSchedule"}]), [], ""),
    ],
)
def test_why_a_node_does_not_take_a_pod(wanted: Pod, there: Node, others: list[Pod], reason: str) -> None:
    assert node_rejection(wanted, there, others) == reason


def test_the_summary_has_the_recorded_words() -> None:
    assert summary(["cannot allocate all claims", "Insufficient cpu"], "still not schedulable") == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims. still not schedulable, "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    assert summary([], "still not schedulable") == "no nodes available to schedule pods"
