"""Expressions of admission policies in the same environment.

What they are about (``object``, ``oldObject``, ``request``, ``params``, ``variables`` …) is plain data of any
type. Costs are not estimated; an evaluation has the same limits as one of a selector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.cel.evaluation.closures import Closure
from dra_driver.cel.rules import compile_closure, evaluate
from dra_driver.cel.values import types as _types
from dra_driver.cel.values.values import Value

__all__ = ["PolicyExpression", "compile_policy"]


class PolicyExpression:
    """A compiled expression. Immutable."""

    __slots__ = ("_closure", "_names", "_slots")

    def __init__(self, closure: Closure, slots: int, names: Sequence[str]) -> None:
        self._closure = closure
        self._slots = slots
        self._names = tuple(names)

    def value(self, given: Mapping[str, Value]) -> Value:
        """Return what the expression evaluates to.

        Args:
            given: value of each name that it was compiled for.

        Raises:
            CelRuntimeError: the evaluation failed.
        """
        return evaluate(self._closure, self._slots, [given[name] for name in self._names])


def compile_policy(expression: str, names: Sequence[str]) -> PolicyExpression:
    """Compile an expression of an admission policy.

    Args:
        expression: the text.
        names: the variables that it may use.

    Raises:
        CelCompileError: it cannot be compiled; says why and where.
    """
    closure, slots, _ = compile_closure(expression, dict.fromkeys(names, _types.DYN), {})
    return PolicyExpression(closure, slots, names)
