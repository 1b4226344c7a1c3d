"""What a pod requires of where other pods are, in a form that can be compared and looked up.

Counterparts of ``AffinityTerm`` and ``topologySpreadConstraint`` in kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dra_driver.api.core import Pod
from dra_driver.api.pod_affinity import (
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from dra_driver.structured.model.nodeselection import label_holds

__all__ = [
    "MOST_PARTS",
    "MOST_TERMS",
    "NO_TERMS",
    "PodSelector",
    "PodTerms",
    "Spread",
    "Term",
    "are_all_terms_known",
    "terms_of",
    "waits_for_others",
]

MOST_TERMS: Final = 32
"""Terms and constraints of one pod that are looked at; each may have to be compared with all pods."""
MOST_PARTS: Final = 512
"""Requirements, values and namespaces of all terms of one pod that are looked at."""


class _Requirement(NamedTuple):
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        return label_holds(self.operator, self.values, labels.get(self.key))


class PodSelector(NamedTuple):
    """Pods by namespace and labels.

    Attributes:
        namespaces: names, sorted.
        everywhere: whether all namespaces count.
        requirements: that must all hold; None: no pod is selected.
    """

    namespaces: tuple[str, ...]
    everywhere: bool
    requirements: tuple[_Requirement, ...] | None

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod is selected."""
        if self.requirements is None or not (self.everywhere or namespace in self.namespaces):
            return False
        return all(requirement.holds(labels) for requirement in self.requirements)


class Term(NamedTuple):
    """One term of affinity or anti-affinity.

    Attributes:
        pods: that it is about.
        key: label of nodes; nodes of one value are near one another.
    """

    pods: PodSelector
    key: str


class Spread(NamedTuple):
    """A constraint of topology spread with ``whenUnsatisfiable: DoNotSchedule``.

    Attributes:
        pods: that are counted.
        key: label of nodes; those of one value are a domain.
        skew: by which a domain may exceed the least.
        domains: fewer than these count as if one more were empty.
        by_affinity: whether nodes count only where the pod's node selector and affinity match.
        by_taints: whether nodes count only where the pod tolerates their taints.
    """

    pods: PodSelector
    key: str
    skew: int
    domains: int
    by_affinity: bool
    by_taints: bool


class PodTerms(NamedTuple):
    """All that a pod requires of where others are.

    Attributes:
        anti: required anti-affinity; as far as it names namespaces, where it selects them by labels too.
        affinity: required affinity; none where a term selects namespaces by labels: they are not known.
        spread: hard constraints.
    """

    anti: tuple[Term, ...] = ()
    affinity: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()


NO_TERMS: Final = PodTerms()


def waits_for_others(pod: Pod) -> bool:
    """Return whether a pod may fit for the mere reason that another one is bound, or gets other labels."""
    affinity = pod.spec.affinity
    return bool(pod.spec.topology_spread_constraints) or (
        affinity is not None and affinity.pod_affinity is not None
    )


def terms_of(pod: Pod) -> PodTerms:
    """Return what a pod requires of where others are.

    Nothing if it has more than 32 terms, or these more than 512 requirements, values and namespaces.
    """
    affinity, spread = pod.spec.affinity, pod.spec.topology_spread_constraints
    anti = _required(affinity.pod_anti_affinity) if affinity is not None else ()
    near = _required(affinity.pod_affinity) if affinity is not None else ()
    number = len(anti) + len(near) + len(spread)
    if not number or number > MOST_TERMS or _parts(anti, near, spread) > MOST_PARTS:
        return NO_TERMS
    namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
    # An empty selector is all namespaces, which is known; another one that selects by labels is not.
    known = all(not _selects_by_labels(term) for term in near)
    return PodTerms(
        tuple(Term(_pods(namespace, term), term.topology_key) for term in anti),
        tuple(Term(_pods(namespace, term), term.topology_key) for term in near) if known else (),
        tuple(_spread(namespace, labels, c) for c in spread if c.when_unsatisfiable == "DoNotSchedule"),
    )


def are_all_terms_known(pod: Pod) -> bool:
    """Return whether all that a pod requires of where others are is looked at (``terms_of``)."""
    affinity, spread = pod.spec.affinity, pod.spec.topology_spread_constraints
    anti = _required(affinity.pod_anti_affinity) if affinity is not None else ()
    near = _required(affinity.pod_affinity) if affinity is not None else ()
    return (
        len(anti) + len(near) + len(spread) <= MOST_TERMS
        and _parts(anti, near, spread) <= MOST_PARTS
        and not any(map(_selects_by_labels, (*anti, *near)))
    )


def _required(affinity: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()


def _parts(
    anti: Iterable[PodAffinityTerm],
    near: Iterable[PodAffinityTerm],
    spread: Iterable[TopologySpreadConstraint],
) -> int:
    number = 0
    for constraint in spread:
        number += len(constraint.match_label_keys) + _size(constraint.label_selector)
    for term in (*anti, *near):
        number += len(term.namespaces) + _size(term.label_selector)
    return number


def _size(selector: LabelSelector | None) -> int:
    if selector is None:
        return 0
    return len(selector.match_labels) + sum(1 + len(r.values) for r in selector.match_expressions)


def _selects_by_labels(term: PodAffinityTerm) -> bool:
    selector = term.namespace_selector
    return selector is not None and bool(selector.match_labels or selector.match_expressions)


def _pods(namespace: str, term: PodAffinityTerm) -> PodSelector:
    named = term.namespaces
    if not named and term.namespace_selector is None:
        named = (namespace,)
    everywhere = term.namespace_selector is not None and not _selects_by_labels(term)
    return PodSelector(tuple(sorted(set(named))), everywhere, _requirements(term.label_selector))


def _spread(namespace: str, labels: Mapping[str, str], constraint: TopologySpreadConstraint) -> Spread:
    requirements = _requirements(constraint.label_selector)
    if requirements is not None:
        keys = (key for key in constraint.match_label_keys if key in labels)
        merged = {*requirements, *(_Requirement(key, "In", (labels[key],)) for key in keys)}
        requirements = tuple(sorted(merged))
    return Spread(
        PodSelector((namespace,), False, requirements),
        constraint.topology_key,
        constraint.max_skew,
        1 if constraint.min_domains is None else constraint.min_domains,
        constraint.node_affinity_policy in (None, "Honor"),
        constraint.node_taints_policy == "Honor",
    )


def _requirements(selector: LabelSelector | None) -> tuple[_Requirement, ...] | None:
    if selector is None:
        return None
    found = {_Requirement(key, "In", (value,)) for key, value in selector.match_labels.items()}
    found |= {
        _Requirement(r.key, r.operator, tuple(sorted(set(r.values)))) for r in selector.match_expressions
    }
    return tuple(sorted(found))
