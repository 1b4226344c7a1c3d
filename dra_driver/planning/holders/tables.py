"""What it costs to have devices of a node: the fewest holders that have to go, area by area.

An area has few holders, so all sets of them are looked at; holders that stand for one another are not told
apart. Areas add up, as nodes do: nothing is tried in combination. Areas that have holders in common are
looked at together while these are few; otherwise such a holder counts a part in each area, for no solution
has fewer holders than that.

Only what single devices are, and counters, are looked at, not constraints between devices and not what pods
need besides devices: fewer holders than a table says are not enough, but those that it names need not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from math import prod
from typing import Final, NamedTuple

from dra_driver.planning.holders.packing import AreaKind, Vector, at_least, most_at_once

__all__ = ["AreaTables", "Entry", "HeldDevices", "Memory", "Table", "cheapest_of"]

# Sets of holders that are looked at together, and numbers of devices of a node that are told apart.
_MOST_SETS: Final = 4_096
_MOST_VECTORS: Final = 2_000
# What a holder counts; divisible by all numbers of areas up to 16.
_ONE: Final = 720_720


class Entry(NamedTuple):
    """What numbers of devices cost.

    Attributes:
        amount: holders, in parts of 1/720,720.
        priorities: the sum of theirs, in the same parts.
        freed: the holders, as bits by their places on the node.
    """

    amount: int
    priorities: int
    freed: int

    @property
    def least(self) -> int:
        """A number of holders below which nothing is enough."""
        return -(-self.amount // _ONE)

    @property
    def holders(self) -> frozenset[int]:
        """The places of the holders."""
        return frozenset(i for i in range(self.freed.bit_length()) if self.freed >> i & 1)


Table = Mapping[Vector, Entry]
"""Numbers of devices that can be had at the same time, with the cheapest way to get them."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """A holder on a node.

    Attributes:
        devices: their positions.
        priority: of the holder.
    """

    devices: tuple[int, ...]
    priority: int


class _Held(NamedTuple):
    """A holder in a group of areas.

    Attributes:
        devices: what it has of each of them, by position there.
        amount: what it counts.
        priority: of the holder.
    """

    devices: tuple[tuple[int, ...], ...]
    amount: int
    priority: int


class _State(NamedTuple):
    """An area, with the devices that cannot be freed, and those that may not be used."""

    kind: AreaKind
    taken: frozenset[int]
    left_out: frozenset[int]


class _Found(NamedTuple):
    """Numbers of devices, with what they cost and the holders that go."""

    vector: Vector
    amount: int
    priorities: int
    freed: tuple[int, ...]


class Memory:
    """What is known about areas; nodes of all kinds may share it."""

    def __init__(self) -> None:
        self.groups: dict[object, tuple[_Found, ...] | None] = {}
        self.packs: dict[object, tuple[Vector, ...] | None] = {}
        self._kinds: dict[object, AreaKind] = {}

    def one_for_all(self, kind: AreaKind) -> AreaKind:
        """Return the kind that stands for all that are equal to this one."""
        return self._kinds.setdefault((kind.devices, kind.counters), kind)


class AreaTables:
    """Tables for nodes of one kind.

    Args:
        areas: the positions of their devices, and what they are like.
        memory: what is known from other kinds.
    """

    def __init__(self, areas: Sequence[tuple[Sequence[int], AreaKind]], memory: Memory) -> None:
        self._kinds = [memory.one_for_all(kind) for _, kind in areas]
        self._place = {p: (a, i) for a, (positions, _) in enumerate(areas) for i, p in enumerate(positions)}
        self._memory = memory

    def table(
        self, held: Sequence[HeldDevices], taken: Iterable[int], left_out: Iterable[int], most: Vector
    ) -> Table | None:
        """Return what numbers of devices of a node cost; None where there are too many ways to look at.

        Args:
            held: the holders, by place.
            taken: devices that cannot be freed.
            left_out: devices that may not be used.
            most: of each kind, what is enough.
        """
        kept, unusable = self._by_area(taken), self._by_area(left_out)
        of_holder = [self._by_area(h.devices) for h in held]
        table: dict[Vector, Entry] = {(0,) * len(most): Entry(0, 0, 0)}
        for areas, inside, whole in self._groups(of_holder):
            states = tuple(
                _State(self._kinds[a], frozenset(kept.get(a, ())), frozenset(unusable.get(a, ())))
                for a in areas
            )
            holders = {
                i: _Held(
                    tuple(tuple(of_holder[i].get(a, ())) for a in areas),
                    _ONE if whole else _ONE // len(of_holder[i]),
                    held[i].priority,
                )
                for i in inside
            }
            # In an order of their own, so that groups in equal states are looked at once.
            order = sorted(inside, key=lambda i: (holders[i], i))
            found = self._of_group(states, tuple(holders[i] for i in order), most)
            if found is None:
                return None
            table = _added(table, found, order, most)
            if len(table) > _MOST_VECTORS:
                return None
        return table

    def have(self, taken: Iterable[int], wanted: Vector) -> bool | None:
        """Return whether devices can be had at the same time; None where there are too many ways to look at.

        Args:
            taken: devices that are in use.
            wanted: how many of each kind.
        """
        of_area = self._by_area(taken)
        vectors = {(0,) * len(wanted)}
        for area, kind in enumerate(self._kinds):
            packs = self._pack(kind, frozenset(of_area.get(area, ())), frozenset(), wanted)
            if packs is None:
                return None
            vectors = {_sum(v, p, wanted) for v in vectors for p in packs}
            if wanted in vectors:
                return True
            if len(vectors) > _MOST_VECTORS:
                return None
        return wanted in vectors

    def _pack(
        self, kind: AreaKind, taken: frozenset[int], left_out: frozenset[int], most: Vector
    ) -> tuple[Vector, ...] | None:
        key = (kind, taken, left_out, most)
        packs = self._memory.packs
        if key not in packs:
            packs[key] = most_at_once(kind, taken, left_out, most)
        return packs[key]

    def _by_area(self, positions: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for position in sorted(positions):
            at = self._place.get(position)
            if at is not None:
                found.setdefault(at[0], []).append(at[1])
        return found

    def _groups(
        self, of_holder: Sequence[Mapping[int, Sequence[int]]]
    ) -> Iterator[tuple[list[int], list[int], bool]]:
        """Yield areas that are looked at together, their holders, and whether these count as a whole."""
        together: list[tuple[set[int], list[int]]] = [({a}, []) for a in range(len(self._kinds))]
        for number, of in enumerate(of_holder):
            mine = [g for g in together if g[0] & of.keys()]
            if mine:
                together = [g for g in together if g not in mine]
                areas = set[int]().union(*(g[0] for g in mine))
                together.append((areas, [*(i for g in mine for i in g[1]), number]))
        for areas, holders in together:
            if len(areas) == 1 or len(holders) < _MOST_SETS.bit_length():
                yield sorted(areas), holders, True
            else:
                yield from (([a], [i for i in holders if a in of_holder[i]], False) for a in sorted(areas))

    def _of_group(
        self, states: tuple[_State, ...], held: tuple[_Held, ...], most: Vector
    ) -> tuple[_Found, ...] | None:
        key = (states, held, most)
        groups = self._memory.groups
        if key not in groups:
            groups[key] = self._look(states, held, most)
        return groups[key]

    def _look(
        self, states: tuple[_State, ...], held: tuple[_Held, ...], most: Vector
    ) -> tuple[_Found, ...] | None:
        """Return what every set of holders gives, as far as no other one gives as much for less."""
        sets = _sets(states, held)
        if sets is None:
            return None
        found: dict[Vector, _Found] = {}
        for freed in sets:
            vectors = self._without(states, held, frozenset(freed), most)
            if vectors is None:
                return None
            amount = sum(held[i].amount for i in freed)
            priorities = sum(held[i].priority * held[i].amount for i in freed)
            for vector in vectors:
                known = found.get(vector)
                if known is None or (amount, priorities) < (known.amount, known.priorities):
                    found[vector] = _Found(vector, amount, priorities, freed)
        return tuple(_cheapest(found.values()))

    def _without(
        self, states: tuple[_State, ...], held: tuple[_Held, ...], freed: frozenset[int], most: Vector
    ) -> set[Vector] | None:
        """Return the largest numbers of devices that areas give when some holders have gone."""
        vectors = {(0,) * len(most)}
        for at, (kind, kept, left_out) in enumerate(states):
            taken = kept.union(*(h.devices[at] for i, h in enumerate(held) if i not in freed))
            of_area = self._pack(kind, taken, left_out, most)
            if of_area is None:
                return None
            vectors = {_sum(v, p, most) for v in vectors for p in of_area}
        return vectors


def _sets(states: Sequence[_State], held: Sequence[_Held]) -> list[tuple[int, ...]] | None:
    """Return the sets of holders that differ in what they give; None if there are too many."""
    alike: dict[object, list[int]] = {}
    for i, holder in enumerate(held):
        key: list[object] = [holder.amount]
        for at, (state, of) in enumerate(zip(states, holder.devices, strict=True)):
            # A device that others have as well is not free when the holder has gone.
            others = [set(h.devices[at]) for n, h in enumerate(held) if n != i]
            alone = set(of).isdisjoint(state.taken.union(*others))
            devices = sorted((state.kind.devices[d], d in state.left_out) for d in of)
            key.append(tuple(devices) if alone else (i,))
        alike.setdefault(tuple(key), []).append(i)
    # Of holders that are alike those of low priority go first.
    ordered = [sorted(of, key=lambda i: (held[i].priority, i)) for of in alike.values()]
    if prod(len(of) + 1 for of in ordered) > _MOST_SETS:
        return None
    choices = [list(accumulate(([i] for i in of), initial=[])) for of in ordered]
    return [tuple(i for part in some for i in part) for some in product(*choices)]


def _cheapest(found: Iterable[_Found]) -> list[_Found]:
    """Return those for which no other one has as much for less."""
    kept: list[_Found] = []
    for one in sorted(found, key=lambda f: (f.amount, f.priorities, tuple(-n for n in f.vector))):
        if not any(at_least(other.vector, one.vector) for other in kept):
            kept.append(one)
    return kept


def _sum(one: Vector, other: Vector, most: Vector) -> Vector:
    return tuple([min(a + b, m) for a, b, m in zip(one, other, most, strict=True)])


def _added(
    table: Mapping[Vector, Entry], found: Sequence[_Found], places: Sequence[int], most: Vector
) -> dict[Vector, Entry]:
    """Return the table with one more group of areas."""
    bits = [sum(1 << places[i] for i in of.freed) for of in found]
    new: dict[Vector, Entry] = {}
    for vector, entry in table.items():
        for of, freed in zip(found, bits, strict=True):
            total = _sum(vector, of.vector, most)
            cost = Entry(entry.amount + of.amount, entry.priorities + of.priorities, entry.freed | freed)
            if total not in new or cost < new[total]:
                new[total] = cost
    kept: dict[Vector, Entry] = {}
    for vector, entry in sorted(new.items(), key=lambda e: (e[1], tuple(-n for n in e[0]))):
        if not any(at_least(other, vector) for other in kept):
            kept[vector] = entry
    return kept


def cheapest_of(table: Table, wanted: Vector) -> Entry | None:
    """Return what so many devices of each kind cost at least; None if there are not so many."""
    return min((entry for vector, entry in table.items() if at_least(vector, wanted)), default=None)
