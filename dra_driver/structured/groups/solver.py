"""``allocate_group``: nodes and devices for all members of a group at once, or how many of them fit where."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_driver.api.resource import DeviceTaint
from dra_driver.structured.allocator import allocate
from dra_driver.structured.groups.cells import Cell, Cells, Load, Placed
from dra_driver.structured.groups.domains import Domain, choices, domains
from dra_driver.structured.groups.kinds import bundles, kinds_of
from dra_driver.structured.groups.members import GroupAllocated, GroupMember, GroupRefused, Level
from dra_driver.structured.groups.packing import Improvement, Packed, Searching, pack, room_for
from dra_driver.structured.index.evaluations import SelectorsTooExpensive
from dra_driver.structured.matching.plan import FatalError
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget, BudgetExhausted, IndexUnfinished
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import (
    Allocated,
    DoesNotFit,
    Failed,
    NodePolicy,
    PoolID,
    PoolPolicies,
    PoolPolicy,
    Strategy,
)

__all__ = ["allocate_group"]


def allocate_group(
    snapshot: Snapshot,
    members: Sequence[GroupMember],
    *,
    levels: Sequence[Level] = (),
    least: int | None = None,
    free: Mapping[str, tuple[int, ...]] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    withheld: Mapping[PoolID, str] | None = None,
    strategy: Strategy = Strategy.BEST_FIT,
    policy: NodePolicy = NodePolicy.PACK,
    budget: Budget | None = None,
    brief: bool = False,
) -> GroupAllocated | GroupRefused | Failed:
    """Find nodes and devices for all members together, or for none.

    Args:
        snapshot: the cluster.
        members: one pod each.
        levels: of topology, the widest first. Preferred ones are given up from the last one on.
        least: for an elastic group, how many members must fit; the first of them, as many as possible, get
            an answer. If None, all must.
        free: what is left of nodes besides devices (CPU, memory, pods), in the order of ``needs`` of members;
            nodes that are absent have enough.
        ignore_taint: as for ``allocate``.
        pools: as for ``allocate``.
        withheld: as for ``allocate``.
        strategy: as for ``allocate``.
        policy: as for ``allocate``.
        budget: what the whole question may cost; if None, ``Budget()``.
        brief: whether a refusal need not say how many members fit, and where.

    Answers are compared by, in this order: how many members are served; which levels all of them share; the
    alternatives that they get (the sum of their numbers); the number of nodes; the costs of best fit, added
    up over nodes; the size of the domain, the smallest first; its name.

    Within the budget an answer is found whenever there is one, with one exception: where nodes share devices
    (pools that are not of one node), what fits on one node depends on what is used on another. There each
    solution is tried out node by node, and one that needs other choices on the nodes before is not found.

    Returns:
        ``Failed`` with ``gave_up`` if there may be an answer that could not be found.

    Raises:
        IndexUnfinished: as for ``allocate``.
    """
    options = Options(ignore_taint, pools, PoolPolicy(strategy, policy), withheld)
    group = _Group(snapshot, members, levels, options, free, budget or Budget())
    try:
        return group.solve(len(members) if least is None else least, brief=brief)
    except FatalError as e:
        return Failed(str(e))
    except SelectorsTooExpensive as e:
        return Failed(str(e), gave_up=True)
    except (BudgetExhausted, RecursionError):
        return _gave_up()


Nodes = Mapping[Cell, Sequence[str]]
"""Nodes by cell, in the order of names."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The members in one domain, or in several where they come in parts.

    Attributes:
        parts: by domain its nodes by cell, and what goes there.
    """

    score: tuple[int, ...]
    domain: Domain
    parts: tuple[tuple[Nodes, Packed], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """What decides between domains; less is better."""
        return self.score, len(self.domain.nodes), self.domain.values


class _Holding(NamedTuple):
    """How many parts of a group a domain holds."""

    domain: Domain
    nodes: Nodes
    parts: int

    @property
    def size(self) -> tuple[int, tuple[str, ...]]:
        """The number of nodes, and the values of the domain."""
        return len(self.domain.nodes), self.domain.values


class _Group:
    """One call of ``allocate_group``."""

    def __init__(
        self,
        snapshot: Snapshot,
        members: Sequence[GroupMember],
        levels: Sequence[Level],
        options: Options,
        free: Mapping[str, tuple[int, ...]] | None,
        budget: Budget,
    ) -> None:
        self._snapshot = snapshot
        self._members = members
        self._levels = levels
        self._options = options
        self._budget = budget
        self._bundles = bundles(members)
        self._kinds = kinds_of(self._bundles)
        self._kind_of = {bundle: i for i, kind in enumerate(self._kinds) for bundle in kind.bundles}
        self._free = free
        self._improvement = Improvement()
        self._known_domains: dict[tuple[Level, ...], list[Domain]] = {}

    def solve(self, least: int, *, brief: bool) -> GroupAllocated | GroupRefused | Failed:
        """Return the best answer for as many members as possible, ``least`` or more."""
        if not self._members:
            return GroupAllocated((), tuple("" for _ in self._levels))
        problem = self._problem()
        if problem:
            return Failed(problem)
        self._cells = Cells(self._snapshot, self._kinds, self._options, self._free, self._budget)
        total = len(self._members)
        parts = next((level.count for level in self._levels if level.required and level.count), 1)
        least = -(-least // parts) * parts  # a part that is not whole is none
        found = self._on_best_levels(total)
        if found is None and least < total:
            number, _ = self._most([level for level in self._levels if level.required], least, total)
            if number is not None:
                found = self._on_best_levels(number)
        if found is not None:
            return self._allocated(*found)
        if brief:
            cut = self._cells.cut or self._budget.exhausted
            return _gave_up() if cut else GroupRefused(least, 0)
        return self._refuse(least)

    def _on_best_levels(self, number: int) -> tuple[Sequence[Level], _Found] | None:
        """Return the answer for so many members on as many of the preferred levels as possible.

        Those that are required come first: what is preferred must not use up the budget before there is an
        answer.

        Raises:
            BudgetExhausted: there is no answer so far.
        """
        *preferred, required = choices(self._levels)
        found = self._anywhere(required, number)
        if found is None:
            return None
        for levels in preferred:
            try:
                better = self._anywhere(levels, number)
            except BudgetExhausted:
                break
            if better is not None:
                return levels, better
        return required, found

    def _problem(self) -> str:
        """Return what makes no sense; empty if all does."""
        parts = [level for level in self._levels if level.count]
        if len(parts) > 1:
            return "one level at most can have a count of members for each domain"
        if parts and len(self._kinds) > 1:
            return f"a count for each domain of {parts[0].name} needs members that ask for the same"
        if parts and len(self._members) % parts[0].count:
            return f"{len(self._members)} members cannot be divided in parts of {parts[0].count}"
        return ""

    # --- domains --------------------------------------------------------------------------------------------

    def _counts(self, number: int) -> list[int]:
        """Return how many bundles of each kind the first members are; a bundle counts if all of it does."""
        counts = [0] * len(self._kinds)
        for bundle, kind in self._kind_of.items():
            counts[kind] += max(bundle.members) < number
        return counts

    def _domains(self, levels: Sequence[Level]) -> list[Domain]:
        """Return the domains of these levels over all nodes."""
        key = tuple(levels)
        if key not in self._known_domains:
            self._known_domains[key] = domains(self._cells, levels, self._cells.nodes)
        return self._known_domains[key]

    def _anywhere(self, levels: Sequence[Level], number: int) -> _Found | None:
        """Return the best answer of all domains for so many members; None if no domain holds them."""
        best: _Found | None = None
        counts = self._counts(number)
        for domain in self._domains([at for at in levels if not at.count]):
            try:
                found = self._in_domain(levels, domain, counts, None if best is None else best.score)
            except BudgetExhausted:
                if best is None:
                    raise
                return best
            if found is not None and (best is None or found.key < best.key):
                best = found
        return best

    def _in_domain(
        self,
        levels: Sequence[Level],
        domain: Domain,
        counts: Sequence[int],
        no_worse_than: tuple[int, ...] | None,
    ) -> _Found | None:
        parts = next((level for level in levels if level.count), None)
        if parts is not None:
            return self._in_parts(parts, domain, counts[0])

        nodes = self._cells.of(domain.nodes, domain.within)

        def found(packed: Packed) -> _Found:
            return _Found(packed.score, domain, ((nodes, packed),))

        search = Searching(
            self._budget, self._improvement, lambda packed: self._holds(found(packed)), no_worse_than
        )
        packed = pack(self._cells, nodes, counts, search)
        return None if packed is None else found(packed)

    def _in_parts(self, level: Level, domain: Domain, number: int) -> _Found | None:
        """Return the answer for members in parts, each in one domain of the level; the fewest of these."""
        wanted = number // level.count
        of = domains(self._cells, [level], domain.nodes, domain.within)
        holding = [holds for inner in of if (holds := self._holding(level, inner, number, ())).parts]
        found: list[tuple[Nodes, Packed]] = []
        while wanted:
            if sum(holds.parts for holds in holding) < wanted:
                return None
            # The smallest domain that holds all that is left; if none does, the one that holds most.
            enough = [holds for holds in holding if holds.parts >= wanted]
            chosen = min(enough or holding, key=lambda h: (h.parts if enough else -h.parts, h.size))
            holding.remove(chosen)
            taken = min(wanted, chosen.parts)
            search = Searching(self._budget, self._improvement)
            packed = pack(self._cells, chosen.nodes, [taken * level.count], search)
            if packed is None:
                return None
            found.append((chosen.nodes, packed))
            wanted -= taken
            used = {placed.node for placed in self._placed(found[-1:])}
            # A node may be in several domains of devices; it is used in one of them.
            holding = [
                self._holding(level, h.domain, number, used) if used & set(h.domain.nodes) else h
                for h in holding
            ]
        score = tuple(map(sum, zip(*(packed.score for _, packed in found), strict=True)))
        whole = _Found(score, domain, tuple(found))
        return whole if self._holds(whole) else None

    def _holding(self, level: Level, domain: Domain, number: int, used: Collection[str]) -> _Holding:
        """Return how many parts a domain holds on nodes that are not used."""
        nodes = self._cells.of([name for name in domain.nodes if name not in used], domain.within)
        return _Holding(domain, nodes, room_for(self._cells, nodes, 0, number) // level.count)

    def _holds(self, found: _Found) -> bool:
        """Return whether the members fit on their nodes at the same time."""
        return not self._cells.shared or self._cells.hold(self._placed(found.parts))

    # --- refusals -------------------------------------------------------------------------------------------

    def _most(self, levels: Sequence[Level], low: int, high: int) -> tuple[int | None, bool]:
        """Return the largest number of members in [low, high) that fit, and whether more may.

        None if ``low`` do not.

        Raises:
            BudgetExhausted: it could not be told whether ``low`` do.
        """
        step = next((level.count for level in levels if level.count), 1)
        low, high = -(-low // step), -(-high // step)
        if low and self._anywhere(levels, low * step) is None:
            return None, False
        try:
            while high - low > 1:
                middle = (low + high) // 2
                if self._anywhere(levels, middle * step) is None:
                    high = middle
                else:
                    low = middle
        except BudgetExhausted:
            return low * step, True
        return low * step, self._cells.cut

    def _refuse(self, least: int) -> GroupRefused | Failed:
        """Return the widest required level that fails, and how many members fit there."""
        required = [level for level in self._levels if level.required]
        for number in range(len(required) + 1):
            levels = required[:number]
            if self._anywhere(levels, least) is not None:
                continue
            if self._cells.cut or self._budget.exhausted:
                return _gave_up()
            held, more = self._most(levels, 0, least)
            where = self._where(levels, held) if held else ""
            level = levels[-1] if levels else None
            there_are = len(self._domains(levels)) if levels else 0
            first = self._first() if not held else None
            return GroupRefused(least, held or 0, level, where, there_are, at_least=more, first=first)
        return _gave_up()

    def _where(self, levels: Sequence[Level], held: int) -> str:
        """Return the domain that holds so many members; empty if it is not known any more."""
        try:
            found = self._anywhere(levels, held)
        except BudgetExhausted:
            return ""
        return "/".join(found.domain.values) if found is not None else ""

    def _first(self) -> DoesNotFit | Failed | None:
        """Return why the first member fits nowhere, or cannot be answered; None if it fits somewhere."""
        first, pools = self._bundles[0], self._options.pools
        try:
            outcome = allocate(
                self._snapshot,
                first.claims,
                nodes=first.nodes,
                ignore_taint=self._options.ignore_taint,
                pools=None if pools is None else PersistentMap(pools),
                withheld=self._options.withheld,
                strategy=self._options.default.strategy,
                policy=self._options.default.nodes,
                budget=self._budget.for_reasons(),
            )
        except IndexUnfinished:
            # That the group does not fit is known; the reasons are not worth an index of their own.
            return None
        return None if isinstance(outcome, Allocated) else outcome

    # --- answers --------------------------------------------------------------------------------------------

    def _allocated(self, levels: Sequence[Level], found: _Found) -> GroupAllocated:
        """Return the answer of each member: bundles in their order go to nodes in the order of names."""
        answers: list[Allocated | None] = [None] * len(self._members)
        placed = self._placed(found.parts)
        for (name, _, _, on_it), results in zip(placed, self._cells.answers(placed), strict=True):
            for bundle, of in zip(on_it, results, strict=True):
                by_claim = dict(zip((c.key for c in bundle.claims), of, strict=True))
                for i in bundle.members:
                    mine = tuple(by_claim[c.key] for c in self._members[i].claims)
                    answers[i] = Allocated(name, mine)
        values = dict(zip([at for at in levels if not at.count], found.domain.values, strict=True))
        return GroupAllocated(tuple(answers), tuple(values.get(at, "") for at in self._levels))

    def _placed(self, parts: Sequence[tuple[Nodes, Packed]]) -> list[Placed]:
        """Return the nodes that are used, in the order of names, each with its bundles."""
        nodes: list[tuple[str, Cell, Load]] = []
        for of, packed in parts:
            names = {cell: iter(of_cell) for cell, of_cell in of.items()}
            for (cell, load), count in packed.loads.items():
                nodes += [(next(names[cell]), cell, load) for _ in range(count)]
        # Bundles that an elastic group goes without are the last ones.
        waiting = [iter(kind.bundles) for kind in self._kinds]
        return [
            Placed(name, cell, load, [next(waiting[kind]) for kind, count in load for _ in range(count)])
            for name, cell, load in sorted(nodes, key=lambda node: node[0])
        ]


def _gave_up() -> Failed:
    return Failed(
        "gave up: the group allows more combinations of nodes and devices than can be tried; "
        "ask for fewer kinds of members, alternatives or constraints at once",
        gave_up=True,
    )
