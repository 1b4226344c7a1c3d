"""Limits of one evaluation: the cost that Kubernetes counts, and the work that its rules omit.

The caller may pay for an evaluation part by part, and end it: one that uses up the limits takes longer than
some callers have in all.

Kubernetes' cost ignores the size of what ``replace`` returns, comparisons of nested lists, and the size of
the program behind a regular expression. Those are counted as *work*, before they are done. A unit of work is
16 bytes allocated, or the time that a unit of cost takes at worst: some 0.2 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dra_driver.cel.errors import CelPanic

__all__ = ["BYTES_PER_UNIT", "COST_LIMIT", "WORK_LIMIT", "Meter", "Pay", "bytes_of", "units_of"]

COST_LIMIT: Final = 1_000_000
# 16 MB of characters. The cost limit allows "+" to make 10 MB, and ranges of a million numbers, so this limit
# is met first only by what Kubernetes does not count: replace, format, lists in lists, programs of patterns.
WORK_LIMIT: Final = 1_000_000
BYTES_PER_UNIT: Final = 16
_ELEMENTS_PER_UNIT: Final = 2
# Units that are paid for at once: 5 ms.
_PART: Final = 25_000


Pay = Callable[[int], None]
"""Pays for units of cost and work, done or about to be done; what it raises ends the evaluation."""


class Meter:
    """The counters of one evaluation.

    Attributes:
        cost: what Kubernetes counts.
        work: what it does not count, in units.
        most_cost, most_work: where ``stop`` is to be called next.
        paid: units that were paid for so far.
    """

    __slots__ = ("_pay", "cost", "most_cost", "most_work", "paid", "work")

    def __init__(self) -> None:
        self.cost = 0
        self.work = 0
        self.paid = 0
        self.most_cost, self.most_work = COST_LIMIT, WORK_LIMIT
        self._pay: Pay | None = None

    def pay_with(self, pay: Pay) -> None:
        """Have each part of the evaluation paid for before the next one begins."""
        self._pay = pay
        self.most_cost = self.most_work = _PART

    def stop(self) -> None:
        """Give up where a limit is exceeded; otherwise pay for the part that ends here.

        Raises:
            CelPanic: a limit is exceeded.
        """
        if self.cost > COST_LIMIT:
            raise CelPanic("operation cancelled: actual cost limit exceeded")
        if self.work > WORK_LIMIT:
            raise CelPanic(
                f"operation cancelled: an evaluation may do {WORK_LIMIT} units of work in all, it needs more"
            )
        self.most_cost = min(COST_LIMIT, self.cost + _PART)
        self.most_work = min(WORK_LIMIT, self.work + _PART)
        if self._pay is not None:
            units = self.cost + self.work - self.paid
            self.paid += units
            self._pay(units)

    def charge(self, cost: int) -> None:
        """Add to the cost.

        Raises:
            CelPanic: it is above the limit.
        """
        self.cost += cost
        if self.cost > self.most_cost:
            self.stop()

    def spend(self, units: int) -> None:
        """Add to the work that is about to be done.

        Raises:
            CelPanic: it is above the limit.
        """
        self.work += units
        if self.work > self.most_work:
            self.stop()

    def make(self, size: int, what: str) -> None:
        """Add a value that is about to be made.

        Args:
            size: bytes of memory.
            what: ``string``, ``list``: for the message.

        Raises:
            CelPanic: it is too large.
        """
        units = size // BYTES_PER_UNIT
        if self.work + units > WORK_LIMIT:
            left = (WORK_LIMIT - self.work) * BYTES_PER_UNIT
            raise CelPanic(
                f"operation cancelled: a {what} of {size} bytes is too large: an evaluation may make "
                f"{WORK_LIMIT * BYTES_PER_UNIT} bytes in all, {left} are left"
            )
        self.work += units
        if self.work > self.most_work:
            self.stop()


def bytes_of(text: str | bytes) -> int:
    """Return the maximum memory of a text, in bytes."""
    return len(text) if isinstance(text, bytes) or text.isascii() else 4 * len(text)


def units_of(values: list[Any]) -> int:
    """Return the work of visiting every character and element of some values."""
    units = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes:
            units += (len(value) if value.isascii() else 4 * len(value)) // BYTES_PER_UNIT
        elif kind is list or kind is tuple:
            units += len(value) // _ELEMENTS_PER_UNIT
    return units
