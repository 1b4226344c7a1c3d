"""Tables of transitions: (state, event) → (state, effects)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

__all__ = ["Transition", "total"]

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
F = TypeVar("F", bound=enum.Enum)


@dataclass(frozen=True, slots=True)
class Transition(Generic[S, F]):
    """The new state, and what has to be done, in order."""

    state: S
    effects: tuple[F, ...] = ()


def total(
    moves: Mapping[tuple[S, E], Transition[S, F]], states: type[S], events: type[E]
) -> Mapping[tuple[S, E], Transition[S, F]]:
    """Return the table with an answer for every pair: where none is listed, the state stays as it is."""
    return MappingProxyType(
        {(state, event): moves.get((state, event), Transition(state)) for state in states for event in events}
    )
