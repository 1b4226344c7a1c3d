"""Filters of kube-scheduler: whether a pod may be bound to a node beside the pods that are there, or near.

Required affinity and anti-affinity, and topology spread that is hard (InterPodAffinity, PodTopologySpread).
Everything is counted anew for each pod, as kube-scheduler does it. Namespaces are known by their names only:
a selector of namespaces by labels selects none. Pure functions. The texts are those of the plugins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dra_driver.api.core import Node, Pod
from dra_driver.api.pod_affinity import (
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from dra_driver.nodefit import matches_selectors, tolerates_taints

__all__ = ["NeighbourFilters"]

_SPREAD = "node(s) didn't match pod topology spread constraints"
_Pairs = Counter[tuple[str, str]]


class NeighbourFilters:
    """The filters for one pod, on nodes with the pods that are there."""

    def __init__(self, pod: Pod, nodes: Sequence[Node], by_node: Mapping[str, Sequence[Pod]]) -> None:
        """Count what is there.

        Args:
            pod: not bound yet.
            nodes: all of them.
            by_node: name of a node → its pods that have not ended.
        """
        self._pod = pod
        affinity = pod.spec.affinity
        self._near = _required(affinity.pod_affinity if affinity else None)
        self._apart = _required(affinity.pod_anti_affinity if affinity else None)
        self._partners: _Pairs = Counter()
        self._repelled: _Pairs = Counter()
        self._held: _Pairs = Counter()
        for node in nodes:
            for other in by_node.get(node.metadata.name, ()):
                self._count(node, other)
        constraints = pod.spec.topology_spread_constraints
        self._spread = [c for c in constraints if c.when_unsatisfiable == "DoNotSchedule"]
        self._numbers = [self._per_domain(c, nodes, by_node) for c in self._spread]

    def _count(self, node: Node, other: Pod) -> None:
        labels = node.metadata.labels or {}
        terms = other.spec.affinity
        for term in _required(terms.pod_anti_affinity if terms else None):
            if term.topology_key in labels and _matches(term, other, self._pod):
                self._held[term.topology_key, labels[term.topology_key]] += 1
        for term in self._apart:
            if term.topology_key in labels and _matches(term, self._pod, other):
                self._repelled[term.topology_key, labels[term.topology_key]] += 1
        if self._near and all(_matches(term, self._pod, other) for term in self._near):
            for term in self._near:
                if term.topology_key in labels:
                    self._partners[term.topology_key, labels[term.topology_key]] += 1

    def _per_domain(
        self,
        constraint: TopologySpreadConstraint,
        nodes: Sequence[Node],
        by_node: Mapping[str, Sequence[Pod]],
    ) -> Mapping[str, int]:
        """Return the number of pods in each domain, of nodes that count for a constraint."""
        numbers: dict[str, int] = {}
        for node in nodes:
            labels = node.metadata.labels or {}
            if any(c.topology_key not in labels for c in self._spread):
                continue
            if constraint.node_affinity_policy != "Ignore" and not matches_selectors(self._pod, node):
                continue
            if constraint.node_taints_policy == "Honor" and not tolerates_taints(self._pod, node):
                continue
            there = by_node.get(node.metadata.name, ())
            value = labels[constraint.topology_key]
            number = sum(self._counts(constraint, other) for other in there)
            numbers[value] = numbers.get(value, 0) + number
        return numbers

    def _counts(self, constraint: TopologySpreadConstraint, other: Pod) -> bool:
        selector = constraint.label_selector
        is_empty = selector is not None and not (selector.match_labels or selector.match_expressions)
        if other.metadata.deletion_timestamp or other.metadata.namespace != self._pod.metadata.namespace:
            return False
        return (not is_empty or bool(constraint.match_label_keys)) and self._selects(constraint, other)

    def _selects(self, constraint: TopologySpreadConstraint, other: Pod) -> bool:
        own, labels = self._pod.metadata.labels or {}, other.metadata.labels or {}
        same = all(labels.get(k) == own[k] for k in constraint.match_label_keys if k in own)
        return same and _selects(constraint.label_selector, labels)

    def rejection(self, node: Node) -> str:
        """Return why the node rejects the pod; an empty text if it does not."""
        labels = node.metadata.labels or {}
        for constraint, numbers in zip(self._spread, self._numbers, strict=True):
            value = labels.get(constraint.topology_key)
            if value is None:
                return f"{_SPREAD} (missing required label)"
            least = min(numbers.values(), default=2**31)
            if len(numbers) < (constraint.min_domains or 1):
                least = 0
            if numbers.get(value, 0) + self._selects(constraint, self._pod) - least > constraint.max_skew:
                return _SPREAD
        if not self._is_near(labels):
            return "node(s) didn't match pod affinity rules"
        if any(self._repelled[t.topology_key, labels.get(t.topology_key, "")] for t in self._apart):
            return "node(s) didn't match pod anti-affinity rules"
        if any(self._held[pair] for pair in labels.items()):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    def _is_near(self, labels: Mapping[str, str]) -> bool:
        if any(term.topology_key not in labels for term in self._near):
            return False
        if all(self._partners[t.topology_key, labels[t.topology_key]] for t in self._near):
            return True
        return not self._partners and all(_matches(term, self._pod, self._pod) for term in self._near)


def _required(affinity: PodAffinity | None) -> Sequence[PodAffinityTerm]:
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()


def _matches(term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
    """Return whether a term of a pod is about another pod."""
    of_namespaces = term.namespace_selector
    named = term.namespaces
    if not named and of_namespaces is None:
        named = (owner.metadata.namespace,)
    everywhere = of_namespaces is not None and not (
        of_namespaces.match_labels or of_namespaces.match_expressions
    )
    if not everywhere and other.metadata.namespace not in named:
        return False
    return _selects(term.label_selector, other.metadata.labels or {})


def _selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    if selector is None or any(labels.get(k) != v for k, v in selector.match_labels.items()):
        return False
    for requirement in selector.match_expressions:
        value = labels.get(requirement.key)
        holds = {
            "In": value in requirement.values,
            "NotIn": value not in requirement.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[requirement.operator]:
            return False
    return True
