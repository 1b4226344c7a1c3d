"""Every order of the steps of a small world."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Explored", "explore"]

W = TypeVar("W", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Explored(Generic[W]):
    """What was found.

    Attributes:
        states: number of different worlds.
        doubled: the way to a world in which two claims hold what one alone can have; empty: there is none.
        stuck: number of worlds from which no step leads back to a quiet one.
    """

    states: int
    doubled: tuple[W, ...]
    stuck: int


def explore(
    start: W,
    steps: Callable[[W], Iterable[W]],
    is_doubled: Callable[[W], bool],
    is_quiet: Callable[[W], bool],
    *,
    back: bool,
    most: int,
) -> Explored[W]:
    """Try every order of the steps.

    Args:
        start: the world in the beginning.
        steps: returns what a world can be next.
        is_doubled: whether two claims hold what one alone can have; then nothing more is tried.
        is_quiet: whether nothing is under way.
        back: whether to look, too, whether every world leads back to a quiet one.
        most: different worlds, after which to give up.

    Raises:
        AssertionError: there are more.
    """
    states = [start]
    numbers = {start: 0}
    # Of each state, the one from which it was reached first; with ``back`` all from which a step leads to it.
    from_ = [-1]
    before: list[list[int]] = [[]]
    for number, state in enumerate(states):  # which grows meanwhile
        for after in steps(state):
            # To hash a state is what takes longest, so it is done once for each step.
            found = numbers.setdefault(after, len(states))
            if found == len(states):
                states.append(after)
                from_.append(number)
                before.append([])
                assert len(states) <= most, "the world is too large"
                if is_doubled(after):
                    return Explored(len(states), _way(states, from_, found), 0)
            if back and found != number:
                before[found].append(number)
    return Explored(len(states), (), _stuck(states, before, is_quiet) if back else 0)


def _stuck(states: list[W], before: list[list[int]], is_quiet: Callable[[W], bool]) -> int:
    queue = [number for number, state in enumerate(states) if is_quiet(state)]
    good = set(queue)
    while queue:
        for number in before[queue.pop()]:
            if number not in good:
                good.add(number)
                queue.append(number)
    return len(states) - len(good)


def _way(states: list[W], from_: list[int], last: int) -> tuple[W, ...]:
    way: list[W] = []
    while last >= 0:
        way.append(states[last])
        last = from_[last]
    return tuple(reversed(way))
