"""Whether a node can take a pod apart from its devices, as kube-scheduler's filters decide it.

Counterparts of the filters NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts and NodeResourcesFit
(Kubernetes 1.36), and of what DefaultPreemption may evict. Pod affinity and anti-affinity, topology spread
and volumes are not looked at. What pods take of a node is kept as sums, so that a pod that comes or goes
costs work in proportion to what it asks for. Plain values and rules: no I/O, no clock.
"""

from __future__ import annotations

from dra_driver.nodefit.conditions import condition_problem, has_many_conditions, tolerates
from dra_driver.nodefit.ports import HostPort, conflict
from dra_driver.nodefit.requests import MOST_RESOURCES, PodNeeds, amount, needs_of, shrinks
from dra_driver.nodefit.room import NodeRoom, problem
from dra_driver.nodefit.vectors import NeedsVectors, Vector

__all__ = [
    "MOST_RESOURCES",
    "HostPort",
    "NeedsVectors",
    "NodeRoom",
    "PodNeeds",
    "Vector",
    "amount",
    "condition_problem",
    "conflict",
    "has_many_conditions",
    "needs_of",
    "problem",
    "shrinks",
    "tolerates",
]
