"""Evaluation that counts its cost and stops at the limit.

Only for expressions whose estimate is above the limit: the others cannot reach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel import _closures as closures
from dra_driver.cel._ast import Call, Comprehension, Expr, Ident, ListExpr, MapExpr, Select
from dra_driver.cel._checker import children
from dra_driver.cel._closures import Closure
from dra_driver.cel._compiler import Compiler
from dra_driver.cel._cost import LIST_COST, MAP_COST, PER_CHARACTER, PER_REGEX_CHARACTER
from dra_driver.cel._values import Cidr, Format, Ip, Url, Value, equal, not_equal
from dra_driver.cel.errors import CelPanic

__all__ = ["COST_LIMIT", "TrackingCompiler"]

COST_LIMIT = 1_000_000


def _charge(f: Value, cost: int) -> None:
    f.cost += cost
    if f.cost > COST_LIMIT:
        raise CelPanic("operation cancelled: actual cost limit exceeded")


class TrackingCompiler(Compiler):
    """Like ``Compiler``; each node adds what it costs to the frame."""

    @property
    def needs_frame(self) -> bool:
        """Always: the frame counts."""
        return True

    def compile(self, e: Expr) -> Closure:
        """The closure of a node."""
        closure = super().compile(e)
        cost = self.fixed_cost(e)
        if not cost:
            return closure

        def charged(f: Value) -> Value:
            result = closure(f)
            _charge(f, cost)
            return result

        return charged

    def fixed_cost(self, e: Expr) -> int:
        match e:
            case Ident():
                return 1
            case Select():
                # The closure of a field of the device does not compile the device.
                return (0 if e.test_only else 1) + self.is_device(e.operand)
            case ListExpr():
                return 0 if self.is_constant(e) else LIST_COST
            case MapExpr():
                return 0 if self.is_constant(e) else MAP_COST
            case Call():
                return 1 if e.function in _SIMPLE else 0
            case _:
                return 0

    def is_constant(self, e: Expr) -> bool:
        """Whether the original builds the value before any evaluation."""
        if isinstance(e, ListExpr | MapExpr):
            return not e.optional and all(map(self.is_constant, children(e)))
        return self.is_folded(e)

    def lookup(self, operand: Expr, key: str) -> Closure:
        """Without the shortcut for attributes: every step of the way costs."""
        container = self.compile(operand)
        return lambda f: closures.index(container(f), key)

    def applied(self, e: Call, function: Callable[..., Value], args: list[Closure]) -> Closure:
        """Adds the cost, which depends on the values."""
        rule = _RULES.get(e.function, _one)
        folded = e.target is None and len(e.args) == 1 and self.is_folded(e)
        if folded:
            return super().applied(e, function, args)

        def call(f: Value) -> Value:
            values = [a(f) for a in args]
            result = function(*values)
            _charge(f, rule(values, result))
            return result

        return call

    def equality(self, e: Call) -> Closure:
        """Costs what is compared."""
        return self.applied(
            e, equal if e.function == "_==_" else not_equal, [self.compile(a) for a in e.args]
        )

    def ordering(self, e: Call) -> Closure:
        """Costs what is compared."""
        return self.applied(e, self.function(e, e.args), [self.compile(a) for a in e.args])

    def membership(self, e: Call) -> Closure:
        """Lists of constants are free, others cost their length."""
        if self.is_constant(e.args[1]):
            return super().membership(e)
        value, container = self.compile(e.args[0]), self.compile(e.args[1])

        def member(f: Value) -> Value:
            item, found = value(f), container(f)
            _charge(f, len(found) if isinstance(found, list | tuple) else 1)
            return closures.is_member(item, found)

        return member

    def loop(self, e: Comprehension, items: closures.Items) -> Closure | None:
        """``all`` and ``exists`` are evaluated step by step."""
        if isinstance(e.step, Call) and e.step.function in ("_&&_", "_||_"):
            return None
        return super().loop(e, items)

    def collected(
        self, items: closures.Items, test: Closure | None, parts: list[Closure], function: str
    ) -> Closure:
        """Each addition costs a list of one, the accumulator and the sum."""
        extra = LIST_COST + 2 if function == "_+_" else 2
        first, tested = parts[0], test

        def added(f: Value) -> Value:
            result = first(f)
            _charge(f, extra)
            return result

        def checked(f: Value) -> Value:
            assert tested is not None
            result = tested(f)
            if result is False:
                _charge(f, 1)
            return result

        return super().collected(items, checked if test is not None else None, [added, *parts[1:]], function)


# --- costs of calls -----------------------------------------------------------------------------------------

_Rule = Callable[[list[Value], Value], int]
_SIMPLE = frozenset({"_[_]", "_[?_]", "_?._", "or", "orValue", "@not_strictly_false", "add", "sub"})
_KUBERNETES = (Quantity, Version, Ip, Cidr, Url, Format)


def _size(value: Value) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 1


def _one(args: list[Value], result: Value) -> int:
    return 1


def _walk(factor: float) -> _Rule:
    return lambda args, result: math.ceil(_size(args[0]) * factor)


def _regex(args: list[Value], result: Value) -> int:
    length = math.ceil((1 + _size(args[0])) * PER_CHARACTER)
    return length * math.ceil(_size(args[1]) * PER_REGEX_CHARACTER)


def _contains(args: list[Value], result: Value) -> int:
    return math.ceil(_size(args[0]) * PER_CHARACTER) * math.ceil(_size(args[1]) * PER_CHARACTER)


def _compare(args: list[Value], result: Value) -> int:
    return math.ceil(min(_size(args[0]), _size(args[1])) * PER_CHARACTER)


def _equal(args: list[Value], result: Value) -> int:
    return 1 if isinstance(args[0], _KUBERNETES) else _compare(args, result)


def _add(args: list[Value], result: Value) -> int:
    if isinstance(args[0], str | bytes):
        return math.ceil((_size(args[0]) + _size(args[1])) * PER_CHARACTER)
    return 1


def _traversal(value: Value) -> int:
    if isinstance(value, str | bytes):
        return int(len(value) * PER_CHARACTER)
    if isinstance(value, list | tuple):
        return sum(map(_traversal, value))
    return 1


def _new_list(args: list[Value], result: Value) -> int:
    return _size(result) + 1 + LIST_COST


def _self_compare(args: list[Value], result: Value) -> int:
    items = args[-1]
    factor = 2 + PER_CHARACTER if items and isinstance(items[0], str | bytes) else 2
    return int(_size(items) ** 2 * factor) + 1 + LIST_COST


def _flatten(args: list[Value], result: Value) -> int:
    return int(_size(args[0]) * (args[1] if len(args) == 2 else 1)) + 1 + LIST_COST


def _sets(factor: int) -> _Rule:
    return lambda args, result: _size(args[0]) * _size(args[1]) * factor + 1


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), lambda args, result: _traversal(args[0])
    ),
    **dict.fromkeys(
        (
            *(
                "url",
                "lowerAscii",
                "upperAscii",
                "substring",
                "trim",
                "startsWith",
                "endsWith",
                "strings.quote",
            ),
            *("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"),
        ),
        _walk(PER_CHARACTER),
    ),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _walk(2 * PER_CHARACTER)),
    "join": lambda args, result: math.ceil(_size(result) * 2 * PER_CHARACTER),
    **dict.fromkeys(("find", "findAll", "matches"), _regex),
    "contains": _contains,
    "_==_": _equal,
    "_!=_": _compare,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _compare),
    "_+_": _add,
    **dict.fromkeys(("slice", "lists.range", "reverse"), _new_list),
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _self_compare),
    "flatten": _flatten,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}
