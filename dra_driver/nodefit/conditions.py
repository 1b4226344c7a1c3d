"""What a node demands of pods, and pods of a node: taints, labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_driver.api.core import Node, Pod, Taint, Toleration
from dra_driver.api.resource import NodeSelector
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = [
    "condition_problem",
    "has_many_conditions",
    "matches_selectors",
    "tolerates",
    "tolerates_taints",
]

_UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Return whether one of the tolerations covers the taint (core/v1 Toleration)."""
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (_is_equal(t) and t.value == taint.value))
        for t in tolerations
    )


def _is_equal(toleration: Toleration) -> bool:
    """Return whether values are compared; ``Lt`` and ``Gt`` are alpha, and cover nothing (KEP-5471)."""
    return bool(toleration.key) and toleration.operator in ("", "Equal")


def has_many_conditions(pod: Pod, most: int) -> bool:
    """Return whether a pod has more tolerations, and values in its node affinity, than ``most``."""
    number = len(pod.spec.tolerations)
    required = _required_affinity(pod)
    if required is not None:
        for term in required.node_selector_terms:
            for requirement in (*term.match_expressions, *term.match_fields):
                number += 1 + len(requirement.values)
    return number > most


def condition_problem(pod: Pod, node: Node, *, looked_at: bool = True) -> str:
    """Return why a node cannot take a pod, as what it is; an empty text where it can.

    Args:
        pod: to be placed.
        node: to be looked at.
        looked_at: whether taints and node affinity are looked at; the node selector always is.
    """
    if looked_at and (problem := _taint_problem(pod.spec.tolerations, node)):
        return problem
    return _selector_problem(pod, node, looked_at=looked_at)


def matches_selectors(pod: Pod, node: Node) -> bool:
    """Return whether node selector and required node affinity of a pod match a node."""
    return not _selector_problem(pod, node)


def tolerates_taints(pod: Pod, node: Node) -> bool:
    """Return whether a pod tolerates the taints of a node (``spec.taints``) that keep pods away."""
    return not _untolerated(pod.spec.tolerations, node)


def _selector_problem(pod: Pod, node: Node, *, looked_at: bool = True) -> str:
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "not matching the node selector"
    required = _required_affinity(pod) if looked_at else None
    if required is not None and not selector_matches(required, node):
        return "not matching the required node affinity"
    return ""


def _taint_problem(tolerations: Iterable[Toleration], node: Node) -> str:
    if node.spec.unschedulable and not tolerates(tolerations, _UNSCHEDULABLE):
        return "unschedulable"
    taint = _untolerated(tolerations, node)
    return f"with the untolerated taint {taint}" if taint else ""


def _untolerated(tolerations: Iterable[Toleration], node: Node) -> str:
    """Return the key of a taint that keeps pods with these tolerations away; empty: there is none."""
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return taint.key
    return ""


def _required_affinity(pod: Pod) -> NodeSelector | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
