"""How thoroughly hypothesis searches: the default run tries some of the examples, the long tests all."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "default")
# The default run tries one of so many examples.
_EACH: Final = 4


def examples(count: int) -> int:
    """Return how many examples to try where the long tests try so many."""
    return count // _EACH if PROFILE == "default" else count


def parts(number: int) -> list[Any]:
    """Return the parameters of a test in parts, of which the default run plays the first one."""
    return [0, *(pytest.param(i, marks=pytest.mark.long) for i in range(1, number))]
