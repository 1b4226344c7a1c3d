"""What loops of assertions go over: a test that has nothing to look at would pass and prove nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def nonempty(values: Iterable[T]) -> list[T]:
    """Return the values; a test fails where there are none."""
    found = list(values)
    assert found, "there is nothing to look at"
    return found
