"""Filters of kube-scheduler: whether a pod may be bound to a node, apart from its claims.

Pure functions. The texts are those of kube-scheduler's plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dra_driver.api.core import Node, Pod, Taint
from dra_driver.api.quantity import Quantity
from dra_driver.nodefit import tolerates
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["node_rejection", "summary", "used_resources"]

DEFAULT_PODS = Quantity.parse("110")
ZERO = Quantity.parse("0")


def used_resources(pods: Iterable[Pod]) -> Mapping[str, Quantity]:
    """Return the resources that the containers of these pods request, and ``pods``, their number."""
    total: dict[str, Quantity] = {}
    count = 0
    for pod in pods:
        count += 1
        for container in pod.spec.containers:
            for name, amount in (container.resources.requests or container.resources.limits).items():
                total[name] = total.get(name, ZERO) + amount
    total["pods"] = Quantity.parse(str(count))
    return total


def node_rejection(pod: Pod, node: Node, others: Sequence[Pod], classes: Collection[str] = ()) -> str:
    """Return why the node rejects the pod; an empty text if it does not.

    Args:
        pod: the pod, not bound yet.
        node: the candidate.
        others: pods that are bound to it and have not ended.
        classes: resources of the pod that device classes serve; they are left to the allocator if the node
            offers none of its own.
    """
    if node.spec.unschedulable and not tolerates(
        pod.spec.tolerations, Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    ):
        return "node(s) were unschedulable"
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(pod.spec.tolerations, taint):
            return "node(s) had untolerated taint(s)"
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not selector_matches(required, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return _resources(pod, node, others, classes)


def _resources(pod: Pod, node: Node, others: Sequence[Pod], classes: Collection[str]) -> str:
    wanted, used = used_resources([pod]), used_resources(others)
    for name, amount in wanted.items():
        there = node.status.allocatable.get(name, DEFAULT_PODS if name == "pods" else ZERO)
        if name in classes and not there:
            continue
        if amount > ZERO and used.get(name, ZERO) + amount > there:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def summary(reasons: Sequence[str], after: str) -> str:
    """Return the text of the PodScheduled condition: ``0/3 nodes are available: 2 Insufficient cpu, …``.

    Args:
        reasons: one for each node.
        after: result of PostFilter.
    """
    total = len(reasons)
    if not total:
        return "no nodes available to schedule pods"
    counted = sorted(f"{n} {reason}" for reason, n in Counter(reasons).items())
    return (
        f"0/{total} nodes are available: {', '.join(counted)}. {after}, preemption: 0/{total} nodes are "
        f"available: {total} Preemption is not helpful for scheduling."
    )
