"""Sums of quantities, which in cel-go with Kubernetes' library change their left operand.

There ``a.add(b)`` on a quantity that is stored as a decimal (``160Ti``, ``1.5Gi``) writes the sum into ``a``,
too: ``capacity.add(quantity("1")).compareTo(capacity)`` is 0. Within one evaluation the result here is the
same. Beyond it, Kubernetes changes the stored device; here an expression with sums works on copies.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.api.quantity import Quantity
from dra_driver.cel.values.values import DomainMap, Value

__all__ = ["FUNCTIONS", "applied", "copied"]

FUNCTIONS = frozenset({"add", "sub"})


def copied(capacity: DomainMap) -> DomainMap:
    """Return the capacities with copies of the decimals."""
    return DomainMap({domain: {n: _own(q) for n, q in names.items()} for domain, names in capacity.items()})


def _own(q: Quantity) -> Quantity:
    return Quantity(q.nano, q.format, scale=q.scale, big=True) if q.is_big else q


def applied(function: Callable[..., Value], aliases: dict[int, list[Quantity]], a: Value, b: Value) -> Value:
    """Return ``a`` plus or minus ``b``, and write it into all quantities that share a's decimal.

    Args:
        function: plus or minus.
        aliases: groups of quantities that share a decimal, by identity of each of them.
        a: left operand.
        b: right operand.
    """
    result = function(a, b)
    if result.is_big and a.is_big:
        group = aliases.setdefault(id(a), [a])
        for q in group:
            # All of them are copies that belong to this evaluation.
            object.__setattr__(q, "_nano", result.nano)
            object.__setattr__(q, "_scale", result.scale)
        group.append(result)
        aliases[id(result)] = group
    return result
