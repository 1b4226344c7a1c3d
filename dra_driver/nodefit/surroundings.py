"""Nodes that a pod cannot go to because of the pods on them or in their domains.

Counterparts of the filters InterPodAffinity and PodTopologySpread (Kubernetes 1.36). A pod that is expected
on a node, but not bound yet, counts where it stands in the way. Where it would help, it does not:
kube-scheduler does not count it before it has bound it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Final, NamedTuple

from dra_driver.api.core import Pod
from dra_driver.nodefit.domains import Domains
from dra_driver.nodefit.neighbours import LabelValues, Neighbours, NodePods, Tally
from dra_driver.nodefit.terms import PodTerms, Spread, Term, terms_of

__all__ = ["Eligible", "PodRules", "Surroundings", "described", "rules_of"]

# As kube-scheduler says it.
_SPREAD: Final = "node(s) didn't match pod topology spread constraints"
_NO_LABEL: Final = f"{_SPREAD} (missing required label)"
_AFFINITY: Final = "node(s) didn't match pod affinity rules"
_ANTI: Final = "node(s) didn't match pod anti-affinity rules"
_HELD: Final = "node(s) didn't satisfy existing pods anti-affinity rules"

_NOBODY: Final = Tally(0, 0)


class PodRules(NamedTuple):
    """What decides where a pod may go beside others: the same for pods that the same holds for.

    Attributes:
        terms: its own.
        held: terms of anti-affinity of pods that are there which it would break.
        alone: whether its affinity is to pods like itself, so that the first of them may go anywhere.
        counted: for each spread constraint, whether it counts itself.
    """

    terms: PodTerms
    held: tuple[Term, ...]
    alone: bool
    counted: tuple[bool, ...]


def rules_of(pod: Pod, neighbours: Neighbours) -> PodRules | None:
    """Return what decides where a pod may go beside others; None: nothing does."""
    namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
    terms = terms_of(pod)
    held = neighbours.held_against(namespace, labels)
    if not (held or any(terms)):
        return None
    alone = bool(terms.affinity) and all(t.pods.selects(namespace, labels) for t in terms.affinity)
    counted = tuple(c.pods.selects(namespace, labels) for c in terms.spread)
    return PodRules(terms, held, alone, counted)


class Eligible(NamedTuple):
    """The nodes that count for a spread constraint.

    Attributes:
        values: of its label, by node.
        domains: all of these values.
    """

    values: LabelValues
    domains: Set[str]


class _SpreadCheck:
    """One spread constraint on the pods that are there."""

    def __init__(
        self, spread: Spread, own: bool, there: NodePods, values: LabelValues, eligible: Eligible
    ) -> None:
        """Count the pods.

        Args:
            spread: the constraint.
            own: whether it counts the pod itself.
            there: the pods that it counts.
            values: of the label, of all nodes.
            eligible: the nodes that count.
        """
        self._values = values
        self._eligible = eligible.values
        self._there = there
        # kube-scheduler does not count with a selector that is empty.
        self._blind = spread.pods.requirements == ()
        self._tally = {} if self._blind else there.tally(spread.key, eligible.values, live=True)
        domains = eligible.domains
        self._few = len(domains) < spread.domains
        self._least = min((self._tally.get(d, _NOBODY).bound for d in domains), default=None)
        self._room = spread.skew - int(own)

    def is_full(self, value: str, gone: Tally = _NOBODY) -> bool:
        """Return whether a domain cannot take the pod, after some of its pods are gone."""
        least = self._least
        if least is None and not self._few:
            return False
        found = self._tally.get(value, _NOBODY)
        if self._few or least is None:
            least = 0
        elif gone.bound:
            least = min(least, found.bound - gone.bound)
        return found.expected - gone.expected - least > self._room

    def problem(self, node: str, below: int) -> str:
        """Return what keeps the pod from a node once its pods of lower priority are gone."""
        value = self._values.get(node)
        if value is None:
            return _NO_LABEL
        counts = node in self._eligible and not self._blind
        gone = self._there.below(node, below) if counts else _NOBODY
        return _SPREAD if self.is_full(value, gone) else ""


class Surroundings:
    """Which nodes a pod cannot go to because of others.

    Args:
        rules: that hold for the pod.
        neighbours: all pods that count.
        domains: all nodes.
        eligible: gives the nodes that count for a spread constraint: they have the labels of all constraints,
            and as far as the constraint asks for it, node selector and affinity match, and taints are
            tolerated.
    """

    def __init__(
        self,
        rules: PodRules,
        neighbours: Neighbours,
        domains: Domains,
        eligible: Callable[[Spread], Eligible],
    ) -> None:
        self._rules = rules
        self._domains = domains
        self._spread = [
            (c, _SpreadCheck(c, own, neighbours.selected((c.pods,)), domains.values(c.key), eligible(c)))
            for c, own in zip(rules.terms.spread, rules.counted, strict=True)
        ]
        near = rules.terms.affinity
        self._near = neighbours.selected(tuple(t.pods for t in near)) if near else NodePods()
        self._apart = [(t.key, neighbours.selected((t.pods,)), _ANTI) for t in rules.terms.anti]
        self._apart += [(t.key, neighbours.holders(t), _HELD) for t in rules.held]

    def closed(self) -> dict[str, str]:
        """Return the nodes that the pod cannot go to, and why, in the order of kube-scheduler's filters."""
        found: dict[str, str] = {}

        def close(nodes: Set[str], reason: str) -> None:
            for name in nodes:
                found.setdefault(name, reason)

        for spread, check in self._spread:
            members = self._domains.members(spread.key)
            for value, nodes in members.items():
                if check.is_full(value):
                    close(nodes, _SPREAD)
            close(self._domains.names - self._domains.values(spread.key).keys(), _NO_LABEL)
        if self._rules.terms.affinity:
            close(self._domains.names - self._open_by_affinity(), _AFFINITY)
        for key, there, reason in self._apart:
            members = self._domains.members(key)
            for value, tally in self._tally(there, key).items():
                if tally.expected:
                    close(members[value], reason)
        return found

    def problem_without(self, node: str, priority: int) -> str:
        """Return what keeps the pod from a node once its pods of lower priority are gone; empty: nothing."""
        for _, check in self._spread:
            if problem := check.problem(node, priority):
                return problem
        if self._rules.terms.affinity and not self._is_near(node, priority):
            return _AFFINITY
        for key, there, reason in self._apart:
            value = self._domains.values(key).get(node)
            if value is None:
                continue
            left = self._tally(there, key).get(value, _NOBODY).expected
            if left > there.below(node, priority).expected:
                return reason
        return ""

    @staticmethod
    def may_end(reason: str) -> bool:
        """Return whether a reason may end when pods are evicted from the node."""
        return reason not in (_NO_LABEL, _AFFINITY)

    def _tally(self, there: NodePods, key: str) -> Mapping[str, Tally]:
        return there.tally(key, self._domains.values(key))

    def _open_by_affinity(self) -> set[str]:
        """Return the nodes that affinity leaves."""
        keys = {term.key for term in self._rules.terms.affinity}
        tallies = {key: self._tally(self._near, key) for key in keys}
        first = self._rules.alone and not any(t.expected for of in tallies.values() for t in of.values())
        left = set(self._domains.names)
        for key in keys:
            members = self._domains.members(key)
            values = members if first else [v for v, tally in tallies[key].items() if tally.bound]
            left &= set[str]().union(*(members[value] for value in values))
        return left

    def _is_near(self, node: str, priority: int) -> bool:
        """Return whether affinity leaves a node once its pods of lower priority are gone."""
        keys = {term.key for term in self._rules.terms.affinity}
        gone = self._near.below(node, priority)
        near, left = True, 0
        for key in keys:
            value = self._domains.values(key).get(node)
            if value is None:
                return False
            tally = self._tally(self._near, key)
            near = near and tally.get(value, _NOBODY).bound > gone.bound
            left += sum(t.expected for t in tally.values()) - gone.expected
        return near or (self._rules.alone and not left)


def described(rules: PodRules | None) -> bytes:
    """Return the rules as bytes: equal ones for equal rules."""
    return repr(rules).encode() if rules is not None else b""
