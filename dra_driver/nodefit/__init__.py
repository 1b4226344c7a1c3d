"""Whether a node can take a pod apart from its devices, as kube-scheduler's filters decide it.

Counterparts of the filters NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit,
PodTopologySpread and InterPodAffinity (Kubernetes 1.36), and of what DefaultPreemption may evict. Volumes are
not looked at. What pods take of a node is kept as sums, and pods that others have terms about are counted as
they come and go, so that one costs work in proportion to what it asks for. Plain values and rules: no I/O, no
clock.
"""

from __future__ import annotations

from dra_driver.nodefit.conditions import (
    condition_problem,
    has_many_conditions,
    matches_selectors,
    tolerates,
    tolerates_taints,
)
from dra_driver.nodefit.domains import Domains
from dra_driver.nodefit.neighbours import Neighbour, Neighbours, neighbour_of
from dra_driver.nodefit.ports import HostPort, conflict
from dra_driver.nodefit.requests import MOST_RESOURCES, PodNeeds, amount, needs_of, shrinks
from dra_driver.nodefit.room import NodeRoom, problem
from dra_driver.nodefit.surroundings import Eligible, PodRules, Surroundings, described, rules_of
from dra_driver.nodefit.terms import Spread, are_all_terms_known, terms_of, waits_for_others
from dra_driver.nodefit.vectors import NeedsVectors, Vector

__all__ = [
    "MOST_RESOURCES",
    "Domains",
    "Eligible",
    "HostPort",
    "NeedsVectors",
    "Neighbour",
    "Neighbours",
    "NodeRoom",
    "PodNeeds",
    "PodRules",
    "Spread",
    "Surroundings",
    "Vector",
    "amount",
    "are_all_terms_known",
    "condition_problem",
    "conflict",
    "described",
    "has_many_conditions",
    "matches_selectors",
    "needs_of",
    "neighbour_of",
    "problem",
    "rules_of",
    "shrinks",
    "terms_of",
    "tolerates",
    "tolerates_taints",
    "waits_for_others",
]
