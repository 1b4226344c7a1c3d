"""Sizes for the estimation of costs, and arithmetic that saturates at 2**64 - 1."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = [
    "ONE",
    "UNBOUNDED",
    "UNKNOWN",
    "EntrySize",
    "Size",
    "add",
    "multiply",
    "plus",
    "product",
    "scaled",
    "size_of_path",
    "union",
    "union_entries",
]

UNBOUNDED = 2**64 - 1


class Size(NamedTuple):
    """Least and greatest number of characters, items or entries."""

    least: int
    most: int


class EntrySize(NamedTuple):
    """Sizes of the keys and the values of a container."""

    is_list: bool
    key: Size
    value: Size


UNKNOWN = Size(0, UNBOUNDED)
ONE = Size(1, 1)

# Maximum sizes that the API allows, by path below ``device``. ``*`` is any element, ``@keys`` any key.
_DOMAIN, _NAME, _DRIVER, _VALUE, _ENTRIES = 63, 32, 63, 64, 32


def scaled(amount: int, factor: float) -> int:
    """Return ``amount`` x ``factor``, rounded up."""
    product = float(amount) * factor
    return UNBOUNDED if product >= 2.0**64 else math.ceil(product)


def add(a: int, b: int) -> int:
    return min(a + b, UNBOUNDED)


def multiply(a: int, b: int) -> int:
    return min(a * b, UNBOUNDED)


def plus(a: Size, b: Size) -> Size:
    return Size(add(a.least, b.least), add(a.most, b.most))


def product(a: Size, b: Size) -> Size:
    return Size(multiply(a.least, b.least), multiply(a.most, b.most))


def union(a: Size, b: Size) -> Size:
    return Size(min(a.least, b.least), max(a.most, b.most))


def union_entries(a: EntrySize | None, b: EntrySize | None) -> EntrySize | None:
    if a is None or b is None:
        return None
    return EntrySize(a.is_list, union(a.key, b.key), union(a.value, b.value))


def size_of_path(path: tuple[str, ...]) -> Size | None:
    """Return the size of what is at a path from a variable; None if nothing is known about it."""
    match path:
        case ("device",):
            return Size(0, 0)
        case ("device", "driver"):
            return Size(0, _DRIVER)
        case ("device", "allowMultipleAllocations"):
            return Size(0, 1)
        case ("device", "attributes" | "capacity"):
            return Size(0, _ENTRIES)
        case ("device", "attributes" | "capacity", "@keys"):
            return Size(0, _DOMAIN)
        case ("device", "attributes" | "capacity", "@values" | "@items"):
            return Size(0, _ENTRIES)
        case ("device", "attributes" | "capacity", "@values" | "@items", "@keys"):
            return Size(0, _NAME)
        case ("device", "capacity", "@values" | "@items", "@values" | "@items"):
            return Size(0, 0)
        case ("device", "attributes", "@values" | "@items", name) if name != "@indices":
            return Size(0, _VALUE)
        case _:
            return None
