"""A plan for one workload: whether it fits, and every kind of change that would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.planning.changes.adding import Added, fewest_nodes
from dra_driver.planning.changes.freeing import Freed, Freeing
from dra_driver.planning.changes.moving import Moved, fewest_moves
from dra_driver.planning.changes.relaxing import Relaxed, relaxations
from dra_driver.planning.checks import Answer, Checks, OutOfTime, allocated_with, less_room
from dra_driver.planning.counting import Count, how_many, largest_block
from dra_driver.planning.question import PlannedCluster, Template, Workload, needed, want_room
from dra_driver.structured import DoesNotFit, Failed, GroupAllocated, GroupRefused

__all__ = ["NewNodes", "Plan", "make_plan", "reason_of", "take_in"]

# Parts of the seconds that are left which the longer searches may use.
_FOR_BLOCKS = 0.2
_FOR_FREEING = 0.5
_FOR_MOVING = 0.4
_FOR_NODES = 0.5


@dataclass(frozen=True, slots=True)
class NewNodes:
    """What more nodes of one kind do.

    Attributes:
        template: the kind of node.
        added: the fewest of them; None if no number was found.
        proven: whether what is said is certain: that fewer are not enough, or that no number is.
    """

    template: Template
    added: Added | None
    proven: bool


@dataclass(slots=True)
class Plan:
    """The answers for one workload. A field that does not apply, or for which no time was left, is None.

    Attributes:
        workload: the question.
        placed: where it goes now; None if it does not fit.
        reason: why it does not.
        certain: whether that it does not fit is proven.
        error: whether the request itself is wrong.
        count: how many of the workload fit now.
        block: how many devices one such claim can have, before; after: when the workload has got its own.
        freed: the fewest holders that would have to go.
        freeing_fails: whether it is proven that freeing holders does not help.
        moved: the fewest holders that would have to be elsewhere.
        moving_fails: the same for moving.
        nodes: what more nodes would do, by kind.
        relaxed: what each part of the request does.
        never: why no change of these kinds helps, if that is proven.
        out_of_time: what was not finished within the seconds.
    """

    workload: Workload
    placed: GroupAllocated | None = None
    reason: str = ""
    certain: bool = True
    error: bool = False
    count: Count | None = None
    block: Count | None = None
    block_after: Count | None = None
    freed: Freed | None = None
    freeing_fails: bool = False
    moved: Moved | None = None
    moving_fails: bool = False
    nodes: list[NewNodes] = field(default_factory=list)
    relaxed: list[Relaxed] = field(default_factory=list)
    never: str = ""
    out_of_time: list[str] = field(default_factory=list)


def make_plan(
    checks: Checks,
    workload: Workload,
    *,
    templates: Sequence[Template] = (),
    count: bool = False,
    changes: bool = True,
) -> Plan:
    """Answer everything about one workload.

    Args:
        checks: the cluster.
        workload: the question.
        templates: kinds of nodes of which there could be more.
        count: whether to count how many of the workload fit.
        changes: whether to look for changes where it does not fit.
    """
    plan = Plan(workload)
    checks.progress("whether it fits")
    checks.unsure = False
    try:
        answer = checks.with_left_out(workload, checks.solve(workload))
    except OutOfTime:
        plan.reason, plan.certain = "the time did not suffice to tell", False
        plan.out_of_time.append("whether it fits")
        return plan
    plan.certain = not checks.unsure
    if isinstance(answer, GroupRefused) and isinstance(answer.first, Failed) and not answer.first.gave_up:
        # The request is wrong, whatever is left of nodes and however many pods there are.
        answer = answer.first
    if isinstance(answer, GroupAllocated):
        plan.placed = answer
    else:
        plan.reason = _of_nodes(workload, answer, checks.cluster.resources) or reason_of(answer)
        plan.error = isinstance(answer, Failed) and not answer.gave_up
    if plan.error:
        return plan
    _count(plan, checks, count)
    if plan.placed is None and changes:
        _look_for_changes(plan, checks, templates)
    return plan


def _of_nodes(workload: Workload, answer: Answer, resources: Sequence[str]) -> str:
    """Return why no node can take a pod, whatever devices it has; empty if that is not the reason."""
    if any(member.nodes is not None and not member.nodes for member in workload.members):
        return "no node matches the node selector, affinity and tolerations of the pod"
    if not isinstance(answer, GroupRefused) or answer.level is not None or not want_room(workload.members):
        return ""
    if not answer.held and answer.first is None:
        names = [name for _, name in needed(workload.members, resources)]
        return f"devices that fit are free, but their nodes have too little left of {', '.join(names)}"
    return ""


def reason_of(answer: Answer) -> str:
    """Return why the allocator does not place a workload, for people; empty if it does."""
    match answer:
        case GroupRefused():
            single = answer.wanted == 1 and answer.first is not None and answer.level is None
            if single and isinstance(answer.first, DoesNotFit):
                return answer.first.summary(holders=True)
            return answer.summary(holders=True)
        case Failed(message):
            return message
        case GroupAllocated():
            return ""


def _count(plan: Plan, checks: Checks, count: bool) -> None:
    workload = plan.workload
    try:
        if count and plan.placed is None and plan.certain:
            plan.count = Count(0, proven=True)
        elif count:
            checks.progress("how many fit")
            with checks.share(_FOR_NODES):
                plan.count = how_many(checks, workload)
            if not plan.count.proven:
                plan.out_of_time.append("how many fit")
        checks.progress("the largest block")
        with checks.share(_FOR_BLOCKS):
            plan.block = largest_block(checks, workload)
        if plan.placed is not None and plan.block is not None:
            after = replace(
                checks.cluster,
                snapshot=allocated_with(checks.cluster.snapshot, workload.members, plan.placed),
            )
            with checks.share(_FOR_BLOCKS):
                plan.block_after = largest_block(checks.on(after), workload)
    except OutOfTime:
        plan.out_of_time.append("the largest block of devices")


def _look_for_changes(plan: Plan, checks: Checks, templates: Sequence[Template]) -> None:
    workload = plan.workload
    freeing = Freeing(checks, workload)
    checks.progress("holders that could go")
    with checks.share(_FOR_FREEING):
        plan.freed = freeing.fewest()
    plan.freeing_fails = freeing.possible is False
    if plan.freed is None and not plan.freeing_fails:
        plan.out_of_time.append("holders that could go")
    if plan.freed is not None:
        checks.progress("holders that could be elsewhere")
        with checks.share(_FOR_MOVING):
            plan.moved, plan.moving_fails = fewest_moves(checks, workload, plan.freed)
    else:
        # What moves is freed first.
        plan.moving_fails = plan.freeing_fails
    for number, template in enumerate(templates):
        with checks.share(_FOR_NODES if number + 1 < len(templates) else 2 * _FOR_NODES * 0.8):
            plan.nodes.append(_more_nodes(plan, checks, template))
    plan.relaxed, complete = relaxations(checks, workload)
    if not complete:
        plan.out_of_time.append("parts of the request")
    _decide_never(plan, checks, complete)


def _more_nodes(plan: Plan, checks: Checks, template: Template) -> NewNodes:
    try:
        added, fails = fewest_nodes(checks, plan.workload, template)
    except OutOfTime:
        plan.out_of_time.append(f"nodes like {template.name}")
        return NewNodes(template, None, proven=False)
    return NewNodes(template, added, fails if added is None else added.proven)


def _decide_never(plan: Plan, checks: Checks, complete: bool) -> None:
    helped = plan.freed or any(n.added for n in plan.nodes) or any(r.answer for r in plan.relaxed)
    certain = plan.certain and plan.freeing_fails and complete
    certain = certain and all(n.proven for n in plan.nodes) and all(r.proven for r in plan.relaxed)
    if helped or not certain:
        return
    every = range(len(checks.cluster.holders))
    try:
        alone = checks.with_left_out(plan.workload, checks.solve(plan.workload, every), every)
    except OutOfTime:
        return
    plan.never = reason_of(alone)


def take_in(cluster: PlannedCluster, plan: Plan) -> PlannedCluster:
    """Return the cluster in which the workload has what the plan gave it, if it fits."""
    if plan.placed is None:
        return cluster
    members = plan.workload.members
    snapshot = allocated_with(cluster.snapshot, members, plan.placed)
    kept = {claim.key: claim for claim in cluster.kept}
    for member, got in zip(members, plan.placed.members, strict=True):
        for claim, result in zip(member.claims, got.results if got is not None else (), strict=True):
            if claim.status.allocation is None:
                kept.setdefault(claim.key, _allocated(claim, result))
    free = less_room(cluster.free, members, plan.placed)
    return replace(cluster, snapshot=snapshot, kept=tuple(kept.values()), free=free)


def _allocated(claim: ResourceClaim, result: AllocationResult) -> ResourceClaim:
    status = msgspec.structs.replace(claim.status, allocation=result)
    return msgspec.structs.replace(claim, status=status)
