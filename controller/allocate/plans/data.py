"""A plan as data. docs/plan.md describes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dra_driver.planning import Holder, NewNodes, Plan, PlannedCluster
from dra_driver.structured import Allocated, GroupAllocated, GroupMember

__all__ = ["holders_in_order", "placement_data", "plan_data"]


def plan_data(plan: Plan, cluster: PlannedCluster) -> dict[str, Any]:
    """Return the answers as plain data."""
    return {
        "workload": plan.workload.name,
        "pods": len(plan.workload.members),
        "fits": plan.placed is not None,
        "certain": plan.certain,
        "error": plan.error,
        "reason": plan.reason,
        "placement": None if plan.placed is None else placement_data(plan.workload.members, plan.placed),
        "fitting": None if plan.count is None else {"number": plan.count.number, "proven": plan.count.proven},
        "largestClaim": _block(plan),
        "free": _freed(plan, cluster),
        "move": _moved(plan, cluster),
        "addNodes": [_nodes(plan, n) for n in plan.nodes],
        "relax": [
            {
                "part": r.part,
                "change": r.change,
                "fits": r.answer is not None,
                "proven": r.proven,
                "excludedDevices": r.excludes,
            }
            for r in plan.relaxed
        ],
        "never": plan.never,
        "unfinished": plan.out_of_time,
    }


def _block(plan: Plan) -> dict[str, Any] | None:
    if plan.block is None:
        return None
    after = None if plan.block_after is None else plan.block_after.number
    return {"now": plan.block.number, "after": after}


def placement_data(members: Sequence[GroupMember], answer: GroupAllocated) -> list[dict[str, Any]]:
    """Return where each claim goes."""
    return [
        entry
        for member, got in zip(members, answer.members, strict=True)
        if got is not None
        for entry in _of_member(member, got)
    ]


def _of_member(member: GroupMember, got: Allocated) -> Iterator[dict[str, Any]]:
    for claim, result in zip(member.claims, got.results, strict=True):
        devices = [
            {"request": r.request, "device": f"{r.driver}/{r.pool}/{r.device}"}
            for r in result.devices.results
        ]
        yield {"claim": str(claim.key), "node": got.node, "devices": devices}


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        "name": holder.name,
        "claims": [str(c.key) for c in holder.claims],
        "pods": list(holder.pods),
        "priority": holder.priority,
        "devices": sum(
            len(c.status.allocation.devices.results) for c in holder.claims if c.status.allocation is not None
        ),
    }


def _not_found(*, fails: bool) -> dict[str, Any]:
    """Return what is said of a change that does not help, or of which that is not known."""
    return {"helps": False if fails else None, "number": None, "proven": fails, "placement": None}


def _freed(plan: Plan, cluster: PlannedCluster) -> dict[str, Any]:
    if plan.freed is None:
        return _not_found(fails=plan.freeing_fails) | {"atLeast": None, "holders": []}
    freed = plan.freed
    return {
        "helps": True,
        "number": len(freed.holders),
        "proven": freed.proven,
        "atLeast": freed.at_least,
        "holders": [_holder(cluster.holders[i]) for i in holders_in_order(freed.holders, cluster)],
        "placement": placement_data(plan.workload.members, freed.answer),
    }


def _moved(plan: Plan, cluster: PlannedCluster) -> dict[str, Any]:
    if plan.moved is None:
        return _not_found(fails=plan.moving_fails) | {"holders": []}
    moved = plan.moved
    return {
        "helps": True,
        "number": len(moved.holders),
        "proven": moved.proven,
        "holders": [
            _holder(cluster.holders[i])
            | {
                "to": [
                    entry
                    for member, got in zip(cluster.holders[i].members, moved.holders[i], strict=True)
                    for entry in _of_member(member, got)
                ]
            }
            for i in holders_in_order(moved.holders, cluster)
        ],
        "placement": placement_data(plan.workload.members, moved.answer),
    }


def _nodes(plan: Plan, new: NewNodes) -> dict[str, Any]:
    if new.added is None:
        return {"like": new.template.name} | _not_found(fails=new.proven)
    return {
        "like": new.template.name,
        "helps": True,
        "number": len(new.added.names),
        "proven": new.proven,
        "placement": placement_data(plan.workload.members, new.added.answer),
    }


def holders_in_order(numbers: Collection[int], cluster: PlannedCluster) -> list[int]:
    """Return holders by number, those of the lowest priority first."""
    return sorted(numbers, key=lambda i: (cluster.holders[i].priority, cluster.holders[i].name))
