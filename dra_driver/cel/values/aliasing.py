"""Sums of quantities, which in the original change their left operand.

There ``a.add(b)`` on a quantity that is kept as a decimal (``160Ti``, ``1.5Gi``) puts the sum into ``a`` as
well: ``capacity.add(quantity("1")).compareTo(capacity)`` is 0. Within one evaluation the outcome is the
original's. What the original spoils beyond it, the stored device, is never touched here: an expression with
sums works on copies.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.api.quantity import Quantity
from dra_driver.cel.values.values import DomainMap, Value

__all__ = ["FUNCTIONS", "applied", "copied"]

FUNCTIONS = frozenset({"add", "sub"})


def copied(capacity: DomainMap) -> DomainMap:
    """The capacities with copies of the decimals."""
    return DomainMap({domain: {n: _own(q) for n, q in names.items()} for domain, names in capacity.items()})


def _own(q: Quantity) -> Quantity:
    return Quantity(q.nano, q.format, scale=q.scale, big=True) if q.is_big else q


def applied(function: Callable[..., Value], aliases: dict[int, list[Quantity]], a: Value, b: Value) -> Value:
    """``a`` plus or minus ``b``; ``aliases`` holds, by identity, the quantities that share a decimal."""
    result = function(a, b)
    if result.is_big and a.is_big:
        group = aliases.setdefault(id(a), [a])
        for q in group:
            # Copies of this evaluation, seen by nobody else.
            object.__setattr__(q, "_nano", result.nano)
            object.__setattr__(q, "_scale", result.scale)
        group.append(result)
        aliases[id(result)] = group
    return result
