"""How much is tried: some cases in the default run, more by the long tests, the rest by the nightly ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "default")
# The default run tries one of so many examples.
_EACH: Final = 12
# What has cheaper neighbours among the long tests; it counts among these where no run leaves it out.
NIGHTLY: Final = [pytest.mark.long, pytest.mark.nightly]


def examples(count: int) -> int:
    """Return how many examples to try where the long tests try so many."""
    return count // _EACH if PROFILE == "default" else count


def share(values: Iterable[Any], first: int, by_day: int | None = None) -> list[Any]:
    """Return parameters of which the default run tries the first few, and the long tests all others.

    Args:
        values: of the parameter.
        first: how many the default run tries.
        by_day: how many it and the long tests try together; those after them are left to the nightly tests.
    """
    last = float("inf") if by_day is None else by_day

    def marks(i: int) -> list[pytest.MarkDecorator]:
        return NIGHTLY if i >= last else NIGHTLY[:1] if i >= first else []

    return [pytest.param(v, marks=marks(i)) for i, v in enumerate(values)]


def one_of(number: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default run tries one of so many, and the long tests all others."""
    return [pytest.param(v, marks=[pytest.mark.long] if i % number else []) for i, v in enumerate(values)]


def seeds(variable: str, number: int, first: int) -> list[Any]:
    """Return as many seeds: the first few in the default run, all others as long.

    Where the environment variable names a number, so many are played at once, and none of them is long.
    """
    named = os.environ.get(variable)
    return list(range(int(named))) if named else share(range(number), first)


def parts(number: int, by_day: int | None = None) -> list[Any]:
    """Return the parameters of a test in parts, of which the default run plays the first one."""
    return share(range(number), 1, by_day)
