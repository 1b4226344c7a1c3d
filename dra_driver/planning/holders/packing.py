"""How many devices of several kinds an area gives at the same time: a table over what is left of counters.

An area is a set of devices that depend on one another because they share counters, mostly a GPU with all its
partitions. Which of its devices are taken decides what the others can still be cut out of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_driver.ownership import PoolID
from dra_driver.structured import DeviceEntry

__all__ = ["AreaDevice", "AreaKind", "Vector", "at_least", "largest", "most_at_once"]

Vector = tuple[int, ...]
"""Number of devices of each kind."""

# States of counters that one table may have; more than partitions of a GPU lead to.
_MOST_STATES = 4_000


class AreaDevice(NamedTuple):
    """A device of an area.

    Attributes:
        kinds: numbers of the kinds that it counts as.
        takes: of each counter of the area, in 1e-9 units.
    """

    kinds: tuple[int, ...]
    takes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AreaKind:
    """What areas that stand for one another have in common; compared by identity.

    Attributes:
        devices: in the order of the node's view.
        counters: what there is of each, in 1e-9 units.
    """

    devices: tuple[AreaDevice, ...]
    counters: tuple[int, ...]

    @classmethod
    def of(
        cls,
        entries: Sequence[DeviceEntry],
        kinds: Sequence[tuple[int, ...]],
        counters: Mapping[tuple[PoolID, str, str], int],
    ) -> AreaKind:
        """Return what an area is like.

        Args:
            entries: its devices.
            kinds: what each of them counts as.
            counters: all of the node, by pool, set and name.
        """
        taken = [
            {
                (entry.id.pool_id, consumed.counter_set, name): counter.value.nano
                for consumed in entry.device.consumes_counters
                for name, counter in consumed.counters.items()
            }
            for entry in entries
        ]
        names = list(dict.fromkeys(key for of in taken for key in of))
        devices = (
            AreaDevice(k, tuple(of.get(n, 0) for n in names)) for k, of in zip(kinds, taken, strict=True)
        )
        return cls(tuple(devices), tuple(counters.get(n, 0) for n in names))


def most_at_once(
    area: AreaKind, taken: Iterable[int], left_out: Collection[int], most: Vector
) -> tuple[Vector, ...] | None:
    """Return the numbers of devices that can be had at the same time, the largest ones; None if unknown.

    Args:
        area: its devices and counters.
        taken: devices that are in use, by position.
        left_out: devices that may not be used.
        most: of each kind, what is enough.
    """
    in_use = set(taken)
    left = area.counters
    for at in in_use:
        left = tuple(a - b for a, b in zip(left, area.devices[at].takes, strict=True))
    nothing = (0,) * len(most)
    states: dict[tuple[int, ...], set[Vector]] = {left: {nothing}}
    for at, device in enumerate(area.devices):
        if at in in_use or at in left_out or not device.kinds:
            continue
        new: dict[tuple[int, ...], set[Vector]] = {}
        for before, vectors in states.items():
            if any(t > b for t, b in zip(device.takes, before, strict=True) if t):
                continue
            after = tuple(b - t for b, t in zip(before, device.takes, strict=True))
            grown = {
                (*v[:kind], v[kind] + 1, *v[kind + 1 :])
                for v in vectors
                for kind in device.kinds
                if v[kind] < most[kind]
            }
            if grown:
                new.setdefault(after, set()).update(grown)
        for after, vectors in new.items():
            states[after] = largest(states.get(after, set()) | vectors)
        if len(states) > _MOST_STATES:
            return None
    return tuple(sorted(largest(set[Vector]().union(*states.values()))))


def largest(vectors: set[Vector]) -> set[Vector]:
    """Return the vectors of which no other one has at least as much of everything."""
    if len(vectors) < 2:
        return vectors
    return {v for v in vectors if not any(o != v and at_least(o, v) for o in vectors)}


def at_least(one: Vector, other: Vector) -> bool:
    """Return whether a vector has at least as much of everything as another one."""
    return all(a >= b for a, b in zip(one, other, strict=True))
