"""The plan for a pod that waits, from the state that decisions rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.allocate.decide import Decisions, StateView
from controller.allocate.plans.clusters import ClusterBuilder, claims_like
from controller.allocate.plans.data import plan_data
from controller.allocate.plans.messages import PlanQuestion
from controller.allocate.plans.preemption import work_out_preemption
from dra_driver.planning import Checks, Workload, make_plan
from dra_driver.structured import GroupMember

__all__ = ["work_out"]


def work_out(decisions: Decisions, question: PlanQuestion, clock: Callable[[], float]) -> object:
    """Return the plan for a waiting pod, or for its whole group, as ``plan_data`` with notes.

    Asked for preemption, it is a ``PreemptionAnswer``.

    Args:
        decisions: that know of the cluster.
        question: the pod, and the seconds for it.
        clock: seconds from any start.
    """
    if question.preemption is not None:
        return work_out_preemption(decisions, question, question.preemption, clock)
    return _plan(decisions, question, clock)


def _plan(decisions: Decisions, question: PlanQuestion, clock: Callable[[], float]) -> dict[str, Any]:
    deadline = clock() + question.seconds
    view = decisions.view(question.pod)
    name = view.group or f"Pod {question.pod.key}"
    if view.problem:
        return {"workload": name, "fits": False, "error": True, "reason": view.problem, "notes": []}
    builder = ClusterBuilder(view, view.snapshot)
    for pod, _ in view.members:
        builder.ask_about(pod)
    notes: list[str] = []
    workload = Workload(name, _members(view, builder, notes), view.levels)
    if view.blocked:
        pools, it = ("1 pool", "it") if view.blocked == 1 else (f"{view.blocked} pools", "them")
        notes.append(
            f"the controller does not allocate from {pools} now: kube-scheduler allocates from {it}, or "
            "a handover is under way"
        )
    cluster = builder.build(not_held=workload.claims)
    plan = make_plan(Checks(cluster, clock, deadline), workload, templates=builder.templates())
    return plan_data(plan, cluster) | {"notes": notes}


def _members(view: StateView, builder: ClusterBuilder, notes: list[str]) -> tuple[GroupMember, ...]:
    asked = [(claims, builder.nodes_for(pod), builder.needs_of(pod)) for pod, claims in view.members]
    missing = view.size - len(asked)
    if missing > 0:
        notes.append(f"{len(asked)} of {view.size} pods are there; the others are assumed to equal the first")
        claims, nodes, needs = asked[0]
        asked += [(claims_like(claims, number), nodes, needs) for number in range(missing)]
    return tuple(GroupMember(claims, nodes, builder.vectors.of(needs)) for claims, nodes, needs in asked)
