"""Expressions that need no counting: the worst case is cheap, and no function works more than it costs."""

from __future__ import annotations

from typing import Final

from dra_driver.cel.cost.estimation import Estimator
from dra_driver.cel.library.implementations import IMPLEMENTATIONS, METERED
from dra_driver.cel.syntax.ast import (
    Call,
    Comprehension,
    Expr,
    ListExpr,
    Literal,
    MapExpr,
    StructExpr,
    children,
)
from dra_driver.cel.syntax.macros import ACCUMULATOR
from dra_driver.cel.values import regex as _regex

__all__ = ["PLAIN_COST", "plain_cost"]

PLAIN_COST: Final = 1000
"""What people write stays below it, with folds over the attributes of a device."""

_FUNCTIONS = frozenset(
    (
        *("_&&_", "_||_", "!_", "-_", "_?:_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"),
        *("_-_", "_*_", "_/_", "_%_", "_[_]", "_[?_]", "_?._", "@not_strictly_false"),
        *("or", "orValue", "hasValue", "value", "optional.of", "optional.none"),
        *("compareTo", "isGreaterThan", "isLessThan", "sign", "isInteger", "asInteger", "asApproximateFloat"),
        *("major", "minor", "patch", "includes", "size", "contains", "startsWith", "endsWith"),
        *("lowerAscii", "upperAscii", "int", "uint", "double", "bool", "string", "type"),
    )
)
_ADDITIONS = frozenset({"add_int64", "add_uint64", "add_double", "add_string"})


def plain_cost(root: Expr, max_cost: int, estimator: Estimator) -> int | None:
    """Return the worst-case cost with the work that Kubernetes omits; None if evaluations must be counted.

    If an evaluation builds no lists or maps, no value is larger than the expression or the device.

    Args:
        root: a checked expression.
        max_cost: its estimated cost.
        estimator: that has estimated it.
    """
    cost = max_cost
    todo = [(root, False)]
    while todo and cost <= PLAIN_COST:
        e, folded = todo.pop()
        if isinstance(e, Call):
            work = _work_of(e, folded, estimator)
            if work is None:
                return None
            cost += work
        elif isinstance(e, ListExpr | MapExpr | StructExpr):
            if not all(isinstance(child, Literal) for child in children(e)):
                return None
        elif isinstance(e, Comprehension):
            if not e.is_bind and (e.accu_var != ACCUMULATOR or not isinstance(e.accu_init, Literal)):
                return None
            folded = folded or not e.is_bind
        todo += [(child, folded) for child in children(e)]
    return cost if cost <= PLAIN_COST else None


def _work_of(e: Call, folded: bool, estimator: Estimator) -> int | None:
    """Return the work of a node besides its cost; None if there is no known bound."""
    if e.function == "matches" and isinstance(e.args[-1], Literal) and not folded:
        text = estimator.size_or_unknown(e.target if e.target is not None else e.args[0]).most
        return _regex.matching_work(text, _regex.compile_pattern(str(e.args[-1].value)).size)
    if e.function in ("quantity", "semver"):
        return 0 if all(isinstance(a, Literal) for a in e.args) else None
    known = e.function in _FUNCTIONS or (e.function == "_+_" and _ADDITIONS.issuperset(e.overloads))
    return 0 if known and all(o in IMPLEMENTATIONS for o in METERED.keys() & e.overloads) else None
