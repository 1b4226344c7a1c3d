"""The smallest set of things that has to go: a search that asks a yes-or-no question about sets.

The answer may only grow with the set: if it is yes for a set, it is yes for every larger one.

The search knows sets of which every solution must contain a member. It takes a smallest set that hits all of
them; if the answer is no, it makes the set as large as it can be with the answer still no: every solution
contains one of the things that are left (implicit hitting sets; Moreno-Centeno and Karp, 2013). The first yes
is a smallest solution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["fewest", "irreducible"]

Question = Callable[[frozenset[int]], bool]


def fewest(things: Sequence[int], holds: Question, below: int, least: int = 1) -> frozenset[int] | None:
    """Return a smallest set for which the answer is yes; None if each has ``below`` things or more.

    Args:
        things: of which sets are made; those that should rather stay come last.
        holds: the question; its answer for all things together must be yes.
        below: how many things are too many.
        least: no set of fewer things is a solution.
    """
    every = frozenset(things)
    to_hit: list[frozenset[int]] = []
    number = least if below > least else below
    while number < below:
        chosen = _hitting(to_hit, number, things)
        if chosen is None:
            number += 1
            continue
        if holds(chosen):
            return chosen
        largest = set(chosen)
        for thing in things:
            if thing not in largest and not holds(frozenset((*largest, thing))):
                largest.add(thing)
        to_hit.append(every - largest)
    return None


def _hitting(to_hit: Sequence[frozenset[int]], number: int, order: Sequence[int]) -> frozenset[int] | None:
    """Return a set of at most so many things with a member of each set; None if there is none."""
    rank = {thing: i for i, thing in enumerate(order)}
    sets = sorted(to_hit, key=len)

    def search(chosen: frozenset[int], out: frozenset[int]) -> frozenset[int] | None:
        left = [s - out for s in sets if not s & chosen]
        if not left:
            return chosen
        room = number - len(chosen)
        # Sets without a common member need a thing each.
        apart, covered = 0, frozenset[int]()
        for s in sorted(left, key=len):
            if not s & covered:
                apart += 1
                covered |= s
        if apart > room:
            return None
        smallest = min(left, key=len)
        for thing in sorted(smallest, key=rank.__getitem__):
            found = search(chosen | {thing}, out)
            if found is not None:
                return found
            out |= {thing}
        return None

    return search(frozenset(), frozenset())


def irreducible(things: Sequence[int], holds: Question) -> frozenset[int]:
    """Return a set with the answer yes from which nothing can be left out.

    Parts are left out first, then things, so that few questions are asked where few things are needed.

    Args:
        things: together with the answer yes; what comes first is left out first.
        holds: the question.
    """
    kept = list(things)
    size = max(1, len(kept) // 2)
    while True:
        at = 0
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if holds(frozenset(rest)):
                kept = rest
            else:
                at += size
        if size == 1:
            return frozenset(kept)
        size = max(1, size // 2)
