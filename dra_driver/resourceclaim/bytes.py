"""Amounts of memory that are asked for in bytes, as a rule because a unit was left out. Pure."""

from __future__ import annotations

from typing import Final

from dra_driver.api.quantity import Quantity

__all__ = ["unit_advice"]

_MEMORY: Final = "memory"
# No device has so little, and a share of one is of no use to anything.
_LEAST_BYTES: Final = 1 << 20
_MOST_GIB: Final = 1024
_AMOUNT_CHARACTERS: Final = 40


def unit_advice(name: str, amount: Quantity) -> str:
    """Return the text of a warning about a request for memory with too small a unit; empty if it has none.

    Args:
        name: of the capacity, with or without its domain.
        amount: that is asked for, as it was written.
    """
    if name.rpartition("/")[2] != _MEMORY or not 0 < amount.nano < _LEAST_BYTES * 10**9:
        return ""
    text = str(amount)[:_AMOUNT_CHARACTERS]
    if text.isdecimal() and int(text) <= _MOST_GIB:
        return f"{text} means {text} bytes, which every device with memory has; did you mean {text}Gi?"
    return f"{text} is less than 1Mi, which every device with memory has; check the suffix, such as Gi"
