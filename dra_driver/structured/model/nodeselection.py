"""Node selectors of ``core/v1``, as far as ResourceSlices and allocations use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dra_driver.api.core import Node
from dra_driver.api.resource import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

__all__ = [
    "NODE_NAME_FIELD",
    "label_holds",
    "merge_requirements",
    "requirements_hold",
    "selector_for_node",
    "selector_matches",
    "selector_matches_labels",
]

NODE_NAME_FIELD = "metadata.name"


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Return whether one of the terms holds.

    A selector without terms, and a term without requirements, match nothing.
    """
    fields = {NODE_NAME_FIELD: node.metadata.name}
    return any(_term_matches(t, node.metadata.labels or {}, fields) for t in selector.node_selector_terms)


def selector_matches_labels(selector: NodeSelector, labels: Mapping[str, str]) -> bool:
    """Return whether one of the terms holds for a node of which only the labels are looked at."""
    return any(_term_matches(term, labels, {}) for term in selector.node_selector_terms)


def requirements_hold(requirements: Iterable[NodeSelectorRequirement], labels: Mapping[str, str]) -> bool:
    """Return whether all requirements hold."""
    return all(_requirement_holds(requirement, labels) for requirement in requirements)


def _term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return requirements_hold(term.match_expressions, labels) and requirements_hold(term.match_fields, fields)


def label_holds(operator: str, values: Collection[str], value: str | None) -> bool:
    """Return whether a label is as a requirement of a label selector says; False for other operators.

    Args:
        operator: ``In``, ``NotIn``, ``Exists`` or ``DoesNotExist``.
        values: of the requirement.
        value: of the label; None where there is none.
    """
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            # An operator of a later Kubernetes: not understood, so it does not hold.
            return False


def _requirement_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    if requirement.operator in ("Gt", "Lt"):
        return _compares(requirement, value)
    return label_holds(requirement.operator, requirement.values, value)


def _compares(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    if value is None or len(requirement.values) != 1:
        return False
    try:
        have, want = int(value), int(requirement.values[0])
    except ValueError:
        return False
    return have > want if requirement.operator == "Gt" else have < want


def selector_for_node(name: str) -> NodeSelector:
    """Return a selector that only this node matches, in the form that Kubernetes' allocator writes."""
    requirement = NodeSelectorRequirement(key=NODE_NAME_FIELD, operator="In", values=(name,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))


def merge_requirements(into: list[NodeSelectorRequirement], more: Iterable[NodeSelectorRequirement]) -> None:
    """Append the requirements that ``into`` lacks; the order of their values does not count."""
    for new in more:
        if not any(
            old.key == new.key and old.operator == new.operator and set(old.values) == set(new.values)
            for old in into
        ):
            into.append(new)
