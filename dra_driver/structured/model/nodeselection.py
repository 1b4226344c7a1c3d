"""Node selectors of ``core/v1``, as far as ResourceSlices and allocations use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.api.core import Node
from dra_driver.api.resource import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

__all__ = ["NODE_NAME_FIELD", "merge_requirements", "selector_for_node", "selector_matches"]

NODE_NAME_FIELD = "metadata.name"


def selector_matches(selector: NodeSelector, node: Node) -> bool:
    """Return whether one of the terms holds.

    A selector without terms, and a term without requirements, match nothing.
    """
    return any(_term_matches(term, node) for term in selector.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels or {}
    fields = {NODE_NAME_FIELD: node.metadata.name}
    return all(_requirement_holds(r, labels) for r in term.match_expressions) and all(
        _requirement_holds(r, fields) for r in term.match_fields
    )


def _requirement_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
        case _:
            # An operator of a later Kubernetes: not understood, so it does not hold.
            return False


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
