"""Holders that could be elsewhere, so that a workload fits without taking devices from anyone.

A set of holders is movable if the workload fits without them, and they fit beside it. The fewest holders
that would have to be freed are tried first: no smaller set can do. Then all sets in a small cluster, and in a
large one the holders of one node after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dra_driver.planning.changes.freeing import Freed
from dra_driver.planning.checks import Checks, OutOfTime, allocated_with, less_room
from dra_driver.planning.holders.areas import devices_needed
from dra_driver.planning.holders.sets import fewest, irreducible
from dra_driver.planning.question import Workload, node_of, want_room
from dra_driver.structured import Allocated, GroupAllocated

__all__ = ["Moved", "fewest_moves"]

# Holders of a cluster that are few enough to try all sets of them.
_FEW = 24
# Nodes on which sets of holders are tried where the cluster has more.
_MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class Moved:
    """Holders that move, and where all are then.

    Attributes:
        holders: their numbers, with the answer for each of their members.
        answer: for the workload.
        proven: whether no smaller number of moves is enough.
    """

    holders: dict[int, tuple[Allocated, ...]]
    answer: GroupAllocated
    proven: bool


class _Moves:
    """Sets of holders, and whether they can move."""

    def __init__(self, checks: Checks, workload: Workload) -> None:
        self._checks = checks
        self._workload = workload
        # With levels, the workload is placed first and the holders after it, which may miss an answer.
        self.exact = not workload.levels and not checks.cluster.coupled
        self.found: dict[frozenset[int], tuple[GroupAllocated, dict[int, tuple[Allocated, ...]]]] = {}

    def holds(self, moved: frozenset[int]) -> bool:
        """Return whether the workload and these holders fit at the same time."""
        checks, workload = self._checks, self._workload
        order = sorted(moved)
        others = [m for i in order for m in checks.cluster.holders[i].members]
        snapshot = checks.without(moved)
        needs = want_room((*workload.members, *others)) and bool(checks.cluster.free)
        free = checks.free(moved) if needs else None
        if not workload.levels:
            both = checks.ask(snapshot, [*workload.members, *others], free=free, brief=True)
            if not isinstance(both, GroupAllocated):
                return False
            number = len(workload.members)
            first, rest = GroupAllocated(both.members[:number]), both.members[number:]
        else:
            alone = checks.ask(snapshot, workload.members, workload.levels, free, brief=True)
            if not isinstance(alone, GroupAllocated):
                return False
            if free is not None:
                free = less_room(free, workload.members, alone)
            then = checks.ask(
                allocated_with(snapshot, workload.members, alone), others, free=free, brief=True
            )
            if not isinstance(then, GroupAllocated):
                return False
            first, rest = alone, then.members
        answers = iter(rest)
        places: dict[int, tuple[Allocated, ...]] = {}
        for i in order:
            got = [next(answers) for _ in checks.cluster.holders[i].members]
            places[i] = tuple(a for a in got if a is not None)
        self.found[moved] = (first, places)
        return True

    def cannot_stay(self, things: Iterable[int]) -> list[int]:
        """Return the holders that would not get a place again where they are.

        Their node is cordoned, say, or a device of theirs has a taint by now. With such a holder a larger set
        need not be movable because a smaller one is.

        Raises:
            OutOfTime: the deadline has passed.
        """
        return [i for i in things if not self._can_stay(i)]

    def _can_stay(self, number: int) -> bool:
        checks = self._checks
        holder = checks.cluster.holders[number]
        nodes = {node_of(claim) for claim in holder.claims}
        if any(m.nodes is not None and not nodes.issubset(m.nodes) for m in holder.members):
            return False
        known = nodes <= set(checks.cluster.snapshot.nodes)
        there = [replace(m, nodes=tuple(nodes)) if known else m for m in holder.members]
        needs = want_room(there) and bool(checks.cluster.free)
        return checks.fits(checks.without((number,)), there, free=checks.free((number,)) if needs else None)


def fewest_moves(checks: Checks, workload: Workload, freed: Freed) -> tuple[Moved | None, bool]:
    """Return the fewest moves that were found, and whether that there are none is proven.

    Args:
        checks: the cluster.
        workload: which does not fit as things are.
        freed: the fewest holders whose devices would be enough.
    """
    if _too_few_devices(checks, workload):
        return None, True
    moves = _Moves(checks, workload)
    checks.unsure = False
    best: frozenset[int] | None = None
    everything_tried = False
    try:
        if moves.holds(freed.holders):
            best = freed.holders
            everything_tried = freed.proven and not checks.unsure
        elif len(checks.cluster.holders) <= _FEW:
            every = range(len(checks.cluster.holders))
            fixed = moves.cannot_stay(every)
            best = _smallest(moves, [i for i in every if i not in fixed], freed.at_least)
            everything_tried = moves.exact and not fixed and not checks.unsure
        else:
            best = _by_nodes(checks, moves, workload, freed)
    except OutOfTime:
        best = min(moves.found, key=len, default=None)
    if best is None:
        return None, everything_tried
    answer, places = moves.found[best]
    # Whatever moves is freed first.
    return Moved(places, answer, everything_tried or len(best) <= freed.at_least), False


def _too_few_devices(checks: Checks, workload: Workload) -> bool:
    """Return whether the workload needs more devices than are free: then no holder has room to move."""
    if any(entry.shareable or entry.device.consumes_counters for entry in checks.devices):
        return False
    needed, _ = devices_needed(tuple(workload.claims.values()))
    pools = checks.cluster.snapshot.allocated.pools
    return needed > len(checks.devices) - sum(len(state.devices) for state in pools.values())


def _smallest(moves: _Moves, things: Sequence[int], least: int) -> frozenset[int] | None:
    if not moves.holds(frozenset(things)):
        return None
    enough = irreducible(things, moves.holds)
    return fewest(things, moves.holds, len(enough), least) or enough


def _by_nodes(checks: Checks, moves: _Moves, workload: Workload, freed: Freed) -> frozenset[int] | None:
    """Return movable holders of one node, or of the nodes that freeing would use and one more."""
    by_node: dict[str, list[int]] = {}
    for number, holder in enumerate(checks.cluster.holders):
        for node in {node_of(claim) for claim in holder.claims}:
            by_node.setdefault(node, []).append(number)
    base = freed.holders if len(workload.members) > 1 else frozenset[int]()
    best: frozenset[int] | None = None
    for node in sorted(by_node, key=lambda n: (len(by_node[n]), n))[:_MOST_NODES]:
        checks.progress(f"moving what is on {node}")
        of_node = set(by_node[node])
        things = sorted({*base, *of_node.difference(moves.cannot_stay(of_node))})
        if best is not None and len(best) <= freed.at_least:
            break
        found = _smallest(moves, things, freed.at_least)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return best
