"""Answers of a plan, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.allocate.plans import holders_in_order, placement_data
from dra_driver.cli.common import table
from dra_driver.planning import Count, Holder, NewNodes, Plan, PlannedCluster
from dra_driver.structured import GroupAllocated, GroupMember, as_lines

__all__ = ["text_of"]

_SHOWN = 12


def text_of(plan: Plan, cluster: PlannedCluster, silent: str = "") -> str:
    """Return the answers as text; of a request without an error.

    Args:
        plan: the answers.
        cluster: that they are about.
        silent: that the controller, which would allocate, does not answer; empty if it does.
    """
    return "\n".join(_lines(plan, cluster, silent))


def _lines(plan: Plan, cluster: PlannedCluster, silent: str) -> Iterator[str]:
    name = plan.workload.name
    pods = len(plan.workload.members)
    of = f" ({pods} pods)" if pods > 1 else ""
    if plan.placed is not None:
        yield f"{name}{of} would fit, but {silent}:" if silent else f"{name}{of} fits now:"
        yield from _where(plan.workload.members, plan.placed)
    else:
        surely = "" if plan.certain else " (not proven)"
        reason, *parts = as_lines(plan.reason)
        yield f"{name}{of} does not fit now{surely}: {reason}"
        yield from (f"  {part}" for part in parts)
        yield from _helps(plan, cluster)
    yield from _numbers(plan)
    if plan.out_of_time:
        yield f"Not finished in time (see --seconds): {', '.join(dict.fromkeys(plan.out_of_time))}"


def _helps(plan: Plan, cluster: PlannedCluster) -> Iterator[str]:
    """Yield the changes that make it fit, and what is not known to help; what does not help is not told."""
    helps = [
        *_free_lines(plan, cluster),
        *_move_lines(plan, cluster),
        *(_node_line(new) for new in plan.nodes if new.added is not None),
        *_relax_lines(plan),
    ]
    yield from helps
    if plan.never:
        yield f"Never: no change of these kinds makes it fit. With every holder gone: {plan.never}"
        return
    if unknown := list(_unknown(plan, cluster)):
        yield f"Not known whether it helps: {', '.join(unknown)}"
    elif not helps:
        yield "Nothing helps: freeing or moving holders, more nodes, or leaving out a part of the request"


def _unknown(plan: Plan, cluster: PlannedCluster) -> Iterator[str]:
    if cluster.holders and plan.freed is None and not plan.freeing_fails:
        yield "freeing holders"
    if cluster.holders and plan.moved is None and not plan.moving_fails:
        yield "moving holders"
    yield from (f"more nodes like {n.template.name}" for n in plan.nodes if n.added is None and not n.proven)
    yield from (f"without {r.part}" for r in plan.relaxed if r.answer is None and not r.proven)


def _numbers(plan: Plan) -> Iterator[str]:
    if plan.count is not None:
        least = "" if plan.count.proven else "at least "
        yield f"How many fit: {least}{plan.count.number}{'' if plan.count.proven else ' (more not proven)'}"
    if plan.block is not None and plan.block_after is not None:
        yield f"Largest such claim: {_many(plan.block)} now, {_many(plan.block_after)} after this one"
    elif plan.block is not None:
        yield f"Largest such claim that fits now: {_many(plan.block)}"


def _many(block: Count) -> str:
    least = "" if block.proven else "at least "
    return f"{least}{block.number} device{'s' * (block.number != 1)}"


def _where(members: Sequence[GroupMember], answer: GroupAllocated) -> Iterator[str]:
    entries = placement_data(members, answer)
    rows = [
        (e["claim"], e["node"], ", ".join(d["device"].rpartition("/")[2] for d in e["devices"]))
        for e in entries
    ]
    yield _indented(table(("CLAIM", "NODE", "DEVICES"), rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more claims (-o json has all)"


def _free_lines(plan: Plan, cluster: PlannedCluster) -> Iterator[str]:
    if plan.freed is None:
        return
    freed = plan.freed
    number = len(freed.holders)
    if freed.proven:
        proof = "the fewest"
    else:
        proof = f"at most {number}, at least {freed.at_least}; that fewer are not enough is not proven"
    yield f"Free holders: {number} ({proof}), then it fits on {_nodes_text(freed.answer)}:"
    rows = [_row(cluster.holders[i]) for i in holders_in_order(freed.holders, cluster)]
    yield _indented(table(("HOLDER", "PRIORITY", "CLAIMS", "DEVICES"), rows[:_SHOWN]))
    if number > _SHOWN:
        yield f"  and {number - _SHOWN} more (-o json has all)"


def _row(holder: Holder) -> tuple[str, int, str, str]:
    results = [r for c in holder.claims if c.status.allocation for r in c.status.allocation.devices.results]
    devices = ", ".join(f"{r.pool}/{r.device}" for r in results[:3])
    more = f" and {len(results) - 3} more" if len(results) > 3 else ""
    return holder.name, holder.priority, ", ".join(str(c.key) for c in holder.claims), devices + more


def _move_lines(plan: Plan, cluster: PlannedCluster) -> Iterator[str]:
    if plan.moved is None:
        return
    proof = "the fewest" if plan.moved.proven else "that fewer are not enough is not proven"
    yield (
        f"Move holders: {len(plan.moved.holders)} ({proof}), then it fits on "
        f"{_nodes_text(plan.moved.answer)}:"
    )
    rows = []
    for i in holders_in_order(plan.moved.holders, cluster):
        holder = cluster.holders[i]
        to = sorted({got.node for got in plan.moved.holders[i]})
        rows.append(
            (holder.name, holder.priority, ", ".join(str(c.key) for c in holder.claims), ", ".join(to))
        )
    yield _indented(table(("HOLDER", "PRIORITY", "CLAIMS", "TO NODE"), rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more (-o json has all)"


def _node_line(new: NewNodes) -> str:
    assert new.added is not None
    proof = "" if new.proven else " (that fewer are not enough is not proven)"
    return f"More nodes like {new.template.name}: {len(new.added.names)}{proof}"


def _relax_lines(plan: Plan) -> Iterator[str]:
    rows = [
        (r.part, r.change, "-" if r.excludes is None else r.excludes)
        for r in plan.relaxed
        if r.answer is not None
    ]
    if rows:
        yield "Relax one part of the request:"
        yield _indented(table(("PART", "CHANGE", "DEVICES EXCLUDED"), rows))


def _nodes_text(answer: GroupAllocated) -> str:
    nodes = sorted(answer.nodes)
    shown = ", ".join(nodes[:3])
    return shown + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
