"""How thoroughly hypothesis searches: the default run tries some of the examples, the long tests all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "default")
# The default run tries one of so many examples.
_EACH: Final = 12


def examples(count: int) -> int:
    """Return how many examples to try where the long tests try so many."""
    return count // _EACH if PROFILE == "default" else count


def share(values: Iterable[Any], first: int) -> list[Any]:
    """Return parameters of which the default run tries the first few, and the long tests all others."""
    return [pytest.param(v, marks=[pytest.mark.long] if i >= first else []) for i, v in enumerate(values)]


def one_of(number: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default run tries one of so many, and the long tests all others."""
    return [pytest.param(v, marks=[pytest.mark.long] if i % number else []) for i, v in enumerate(values)]


def seeds(variable: str, number: int, first: int) -> list[Any]:
    """Return as many seeds: the first few in the default run, all others as long.

    Where the environment variable names a number, so many are played at once, and none of them is long.
    """
    named = os.environ.get(variable)
    return list(range(int(named))) if named else share(range(number), first)


def parts(number: int) -> list[Any]:
    """Return the parameters of a test in parts, of which the default run plays the first one."""
    return share(range(number), 1)
