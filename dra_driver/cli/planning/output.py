"""Answers of a plan, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.allocate.plans import holders_in_order, placement_data
from dra_driver.cli.common import table
from dra_driver.planning import Count, Holder, NewNodes, Plan, PlannedCluster
from dra_driver.structured import GroupAllocated, GroupMember

__all__ = ["text_of"]

_SHOWN = 12


def text_of(plan: Plan, cluster: PlannedCluster) -> str:
    """Return the answers as text."""
    return "\n".join(_lines(plan, cluster))


def _lines(plan: Plan, cluster: PlannedCluster) -> Iterator[str]:
    name = plan.workload.name
    pods = len(plan.workload.members)
    of = f" ({pods} pods)" if pods > 1 else ""
    if plan.placed is not None:
        yield f"{name}{of} fits now:"
        yield from _where(plan.workload.members, plan.placed)
    elif plan.error:
        yield f"{name}{of} cannot be allocated: {plan.reason}"
    else:
        surely = "" if plan.certain else " (not proven)"
        yield f"{name}{of} does not fit now{surely}: {plan.reason}"
    yield from _numbers(plan)
    if plan.placed is None and not plan.error:
        yield from _free_lines(plan, cluster)
        yield from _move_lines(plan, cluster)
        yield from (_node_line(n) for n in plan.nodes)
        yield from _relax_lines(plan)
    if plan.never:
        yield f"Never: no change of these kinds makes it fit. With every holder gone: {plan.never}"
    if plan.out_of_time:
        yield f"Not finished in time (see --seconds): {', '.join(dict.fromkeys(plan.out_of_time))}"


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
    if not cluster.holders:
        yield "Free or move holders: nothing is allocated"
        return
    if plan.freed is None:
        known = "it does not fit even without any of them" if plan.freeing_fails else "none found in time"
        yield f"Free holders: {known}"
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
    if not cluster.holders:
        return
    if plan.moved is None:
        known = (
            "none can be elsewhere so that it fits"
            if plan.moving_fails
            else "none found (not proven that there are none)"
        )
        yield f"Move holders: {known}"
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
    if new.added is None:
        known = "no number of them helps" if new.proven else "none found in time"
        return f"More nodes like {new.template.name}: {known}"
    proof = "" if new.proven else " (that fewer are not enough is not proven)"
    return f"More nodes like {new.template.name}: {len(new.added.names)}{proof}"


def _relax_lines(plan: Plan) -> Iterator[str]:
    if not plan.relaxed:
        return
    yield "Relax one part of the request:"
    rows = []
    for r in plan.relaxed:
        fits = "yes" if r.answer is not None else ("no" if r.proven else "not known")
        rows.append((r.part, r.change, fits, "-" if r.excludes is None else r.excludes))
    yield _indented(table(("PART", "CHANGE", "FITS", "DEVICES EXCLUDED"), rows))


def _nodes_text(answer: GroupAllocated) -> str:
    nodes = sorted(answer.nodes)
    shown = ", ".join(nodes[:3])
    return shown + (f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else "")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
