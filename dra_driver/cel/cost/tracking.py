"""Evaluation that counts its cost and its work, and stops at the limits (see ``_meter``).

For expressions of which it is not plain beforehand that they stay far below the limits (see ``_plain``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.cost.estimation import LIST_COST, MAP_COST, PER_CHARACTER, PER_REGEX_CHARACTER
from dra_driver.cel.errors import CelRuntimeError, no_such_overload
from dra_driver.cel.evaluation import closures
from dra_driver.cel.evaluation.closures import Closure
from dra_driver.cel.evaluation.compiler import CONSTRUCTORS, Compiler
from dra_driver.cel.library.implementations import IMPLEMENTATIONS, METERED, type_test
from dra_driver.cel.syntax.ast import (
    Call,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    children,
)
from dra_driver.cel.values import aliasing as _aliasing
from dra_driver.cel.values import regex as _regex
from dra_driver.cel.values.meter import COST_LIMIT, WORK_LIMIT, units_of
from dra_driver.cel.values.types import Type
from dra_driver.cel.values.values import Cidr, DomainMap, Format, Ip, Url, Value, equal, not_equal

__all__ = ["TrackingCompiler"]


class TrackingCompiler(Compiler):
    """Like ``Compiler``; what is evaluated adds its cost and its work to the frame.

    Nodes of which the cost is known are counted together, where the branch starts that evaluates all of them.

    Attributes:
        pending: cost of the present branch as far as it is known.
        pending_work: the same of its work.
    """

    def __init__(self, *args: Value) -> None:
        super().__init__(*args)
        self.pending = 0
        self.pending_work = 0

    counts = True

    @property
    def needs_frame(self) -> bool:
        """Always: the frame counts."""
        return True

    def branch(self, e: Expr, steps: int = 0) -> Closure:
        """The closure of a node that is evaluated sometimes, or several times; it counts each time."""
        return self.counted(e, steps, 0)

    def counted(self, e: Expr, cost: int, work: int) -> Closure:
        """The closure of a node that adds so much, besides what the node has itself."""
        outer = self.pending, self.pending_work
        self.pending, self.pending_work = cost, work
        closure = self.compile(e)
        cost, work = self.pending, self.pending_work
        self.pending, self.pending_work = outer
        if not cost and not work:
            return closure

        def charged(f: Value) -> Value:
            f.cost += cost
            if f.cost > COST_LIMIT:
                f.stop()
            return closure(f)

        def worked(f: Value) -> Value:
            f.work += work
            if f.work > WORK_LIMIT:
                f.stop()
            f.cost += cost
            if f.cost > COST_LIMIT:
                f.stop()
            return closure(f)

        return worked if work else charged

    def note(self, cost: int) -> None:
        """Note the cost of a node that is always evaluated and is not compiled."""
        self.pending += cost

    def compile(self, e: Expr) -> Closure:
        """The closure of a node."""
        closure = super().compile(e)
        self.pending += self.fixed_cost(e)
        return closure

    def fixed_cost(self, e: Expr) -> int:
        match e:
            case Ident():
                # The names of types are constants.
                return 1 if e.name in self.scope or e.name == "device" else 0
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

    # --- calls ---

    def function(self, e: Call, operands: list[Expr]) -> Callable[..., Value]:
        """What to call with the values of the operands; the meter comes first where an overload wants it."""
        if not _is_metered(e):
            return super().function(e, operands)
        candidates: closures.Candidates = []
        for overload in e.overloads:
            tests = tuple(map(type_test, self.overloads[overload].args))
            if overload in METERED:
                candidates.append((tests, METERED[overload]))
            elif overload in IMPLEMENTATIONS:
                candidates.append((tests, _unmetered(IMPLEMENTATIONS[overload])))
        if len(candidates) == 1 and all(map(self.is_certain, operands)):
            return candidates[0][1]
        return lambda meter, *args: closures.chosen(candidates, args)(meter, *args)

    def applied(self, e: Call, function: Callable[..., Value], args: list[Closure]) -> Closure:
        """Count what the call costs: beforehand where that does not depend on the values."""
        operands = e.args if e.target is None else [e.target, *e.args]
        if e.target is None and len(e.args) == 1 and self.is_folded(e):
            return super().applied(e, function, args)
        rule = _RULES.get(e.function, _one)
        self.pending_work += _surcharge(e)
        if e.function in CONSTRUCTORS and all(isinstance(a, Literal) for a in e.args):
            self.pending += rule([a(None) for a in args])
            return super().applied(e, function, args)
        if (call := self.patterned(e, args, rule)) is not None:
            return call
        metered = _is_metered(e)
        if not _is_fixed(e, rule, operands):
            self.pending_work += _COUNTING
        if _is_fixed(e, rule, operands) and not metered:
            self.pending += 1
            return super().applied(e, function, args)
        if e.function in _aliasing.FUNCTIONS and "quantity" in e.overloads[0]:
            self.aliasing = True
        return _metered_call(e, function, args, rule) if metered else _counted_call(function, args, rule)

    def patterned(self, e: Call, args: list[Closure], rule: _Rule) -> Closure | None:
        """A call with a constant regular expression; None where it is compiled by the evaluation."""
        operands = e.args if e.target is None else [e.target, *e.args]
        function, constant = _regex.ON_PATTERNS.get(e.function), operands[1:2]
        if function is None or not isinstance(constant[0], Literal) or type(constant[0].value) is not str:
            return None
        try:
            pattern = self.pattern(constant[0].value)
        except CelRuntimeError:
            # Not before the evaluation gets there.
            return None

        def call(f: Value) -> Value:
            text, _, *limit = values = [a(f) for a in args]
            if type(text) is not str or any(type(n) is not int for n in limit):
                raise no_such_overload()
            f.charge(rule(values))
            return function(f, text, pattern, *limit)

        return call

    def equality(self, e: Call) -> Closure:
        """Costs what is compared."""
        left, right = (self.compile(a) for a in e.args)
        test = equal if e.function == "_==_" else not_equal
        rule = _equal if e.function == "_==_" else _compare
        if _is_fixed(e, rule, e.args):
            self.pending += 1
            return lambda f: test(left(f), right(f), f)

        self.pending_work += _COUNTING

        def compared(f: Value) -> bool:
            a, b = left(f), right(f)
            f.cost += rule([a, b])
            if f.cost > COST_LIMIT:
                f.stop()
            return test(a, b, f)

        return compared

    def ordering(self, e: Call) -> Closure:
        """Costs what is compared."""
        function, args = self.function(e, e.args), [self.compile(a) for a in e.args]
        general = self.applied(e, function, args)
        if any(a.type.kind != "int" for a in e.args):
            return general
        (left, right), compare = args, _COMPARISONS[e.function]

        def ordered(f: Value) -> Value:
            a, b = left(f), right(f)
            # In a fold over numbers most of the time goes into finding out that they are numbers.
            return compare(a, b) if type(a) is int and type(b) is int else function(a, b)

        return ordered

    def membership(self, e: Call) -> Closure:
        """Lists of constants are free, others cost their length."""
        if self.is_constant(e.args[1]):
            return super().membership(e)
        value, container = self.compile(e.args[0]), self.compile(e.args[1])

        def member(f: Value) -> Value:
            item, found = value(f), container(f)
            f.charge(len(found) if isinstance(found, list | tuple) else 1)
            return closures.is_member(item, found, f)

        return member

    # --- folds ---

    def collected(self, items: closures.Items, test: Closure | None, parts: list[Expr], add: Call) -> Closure:
        """Each addition costs a list of one, the accumulator and the sum."""
        is_list = add.function == "_+_"
        # An entry of a map takes some 128 bytes.
        made = [self.counted(parts[0], LIST_COST + 2, 0) if is_list else self.counted(parts[0], 2, 8)]
        made += map(self.branch, parts[1:])
        tested = test

        def checked(f: Value) -> Value:
            assert tested is not None
            result = tested(f)
            if result is False:
                f.charge(1)
            return result

        test = checked if tested is not None else None
        if is_list:
            return closures.list_collector(items, test, made[0])
        return closures.map_collector(items, test, made)


def _is_metered(e: Call) -> bool:
    return any(o in METERED for o in e.overloads)


def _unmetered(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda meter, *args: function(*args)


def _is_fixed(e: Call, rule: _Rule, operands: list[Expr]) -> bool:
    """Whether a call costs 1 and takes about as long, whatever the values are."""
    if rule is _one:
        return e.function in _CONSTANT_TIME or all(_is_scalar(a.type) for a in operands)
    # The smaller of the operands counts, or both of them are numbers.
    return rule in (_compare, _equal, _add) and any(_is_scalar(a.type) for a in operands)


def _is_scalar(t: Type) -> bool:
    return t.kind in _SCALARS or t.name in _SCALARS


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}
_SCALARS = frozenset(
    (
        *("bool", "int", "uint", "double", "duration", "timestamp", "null_type"),
        *("kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR"),
    )
)


def _counted_call(function: Callable[..., Value], args: list[Closure], rule: _Rule) -> Closure:
    def call(f: Value) -> Value:
        values = [a(f) for a in args]
        f.cost += rule(values)
        f.work += units_of(values)
        if f.cost > COST_LIMIT or f.work > WORK_LIMIT:
            f.stop()
        return function(*values)

    return call


def _metered_call(e: Call, function: Callable[..., Value], args: list[Closure], rule: _Rule) -> Closure:
    if e.function in _aliasing.FUNCTIONS:
        return lambda f: _sum(f, function, *(a(f) for a in args))

    def call(f: Value) -> Value:
        values = [a(f) for a in args]
        f.cost += rule(values)
        f.work += units_of(values)
        if f.cost > COST_LIMIT or f.work > WORK_LIMIT:
            f.stop()
        return function(f, *values)

    return call


def _sum(f: Value, function: Callable[..., Value], a: Value, b: Value) -> Value:
    """The sum of quantities, which changes all that share a decimal with the left one (see ``_aliasing``)."""
    f.charge(1)
    f.spend(2 * len(f.aliases.get(id(a), ())))
    return _aliasing.applied(lambda x, y: function(f, x, y), f.aliases, a, b)


# --- costs of calls -----------------------------------------------------------------------------------------

_Rule = Callable[[list[Value]], int]
_SIMPLE = frozenset({"_[_]", "_[?_]", "_?._", "or", "orValue", "@not_strictly_false"})
# They look at no more than one element or character of what they get.
_CONSTANT_TIME = frozenset(
    (
        *("size", "type", "dyn", "value", "hasValue", "optional.of", "optional.none", "first", "last"),
        *("family", "isUnspecified", "ip.isUnspecified", "prefixLength", "masked", "ip"),
    )
)
_KUBERNETES = (Quantity, Version, Ip, Cidr, Url, Format)


_SIZED = frozenset((str, bytes, list, tuple, dict, DomainMap))


def _size(value: Value) -> int:
    return len(value) if type(value) in _SIZED else 1


def _one(args: list[Value]) -> int:
    return 1


def _walk(factor: float) -> _Rule:
    return lambda args: math.ceil(_size(args[0]) * factor)


def _regex_cost(args: list[Value]) -> int:
    length = math.ceil((1 + _size(args[0])) * PER_CHARACTER)
    return length * math.ceil(_size(args[1]) * PER_REGEX_CHARACTER)


def _contains(args: list[Value]) -> int:
    return math.ceil(_size(args[0]) * PER_CHARACTER) * math.ceil(_size(args[1]) * PER_CHARACTER)


def _compare(args: list[Value]) -> int:
    return math.ceil(min(_size(args[0]), _size(args[1])) * PER_CHARACTER)


def _equal(args: list[Value]) -> int:
    return 1 if isinstance(args[0], _KUBERNETES) else _compare(args)


def _add(args: list[Value]) -> int:
    if isinstance(args[0], str | bytes):
        return math.ceil((_size(args[0]) + _size(args[1])) * PER_CHARACTER)
    return 1


def _traversal(args: list[Value]) -> int:
    return _traversed(args[0], {})


def _traversed(value: Value, known: dict[int, int]) -> int:
    """Characters and elements of lists in lists; ``known``: those of lists met before, by identity."""
    if type(value) is str or type(value) is bytes:
        return int(len(value) * PER_CHARACTER)
    if type(value) is not list and type(value) is not tuple:
        return 1
    if id(value) not in known:
        known[id(value)] = sum(_traversed(item, known) for item in value)
    return known[id(value)]


def _join(args: list[Value]) -> int:
    parts = args[0]
    size = sum(map(_size, parts)) + (_size(args[1]) * max(len(parts) - 1, 0) if len(args) > 1 else 0)
    return math.ceil(size * 2 * PER_CHARACTER)


def _new_list(args: list[Value]) -> int:
    return _size(args[0]) + 1 + LIST_COST


def _range(args: list[Value]) -> int:
    return max(int(args[0]), 0) + 1 + LIST_COST


def _slice(args: list[Value]) -> int:
    return max(int(args[2] - args[1]), 0) + 1 + LIST_COST


def _self_compare(args: list[Value]) -> int:
    items = args[-1]
    factor = 2 + PER_CHARACTER if items and isinstance(items[0], str | bytes) else 2
    return int(_size(items) ** 2 * factor) + 1 + LIST_COST


def _flatten(args: list[Value]) -> int:
    return int(_size(args[0]) * (args[1] if len(args) == 2 else 1)) + 1 + LIST_COST


def _sets(factor: int) -> _Rule:
    return lambda args: _size(args[0]) * _size(args[1]) * factor + 1


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    **dict.fromkeys(
        (
            *("url", "lowerAscii", "upperAscii", "substring", "trim", "startsWith", "endsWith"),
            *(
                "cidr",
                "isIP",
                "isCIDR",
                "ip",
                "quantity",
                "isQuantity",
                "semver",
                "isSemver",
                "strings.quote",
            ),
        ),
        _walk(PER_CHARACTER),
    ),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _walk(2 * PER_CHARACTER)),
    "format": _walk(PER_CHARACTER),
    "join": _join,
    **dict.fromkeys(("find", "findAll", "matches"), _regex_cost),
    "contains": _contains,
    "_==_": _equal,
    "_!=_": _compare,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _compare),
    "_+_": _add,
    "reverse": _new_list,
    "slice": _slice,
    "lists.range": _range,
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _self_compare),
    "flatten": _flatten,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}

# --- work of calls ------------------------------------------------------------------------------------------

# To count a call whose cost depends on the values takes as long as the calls of numbers.
_COUNTING = 3
_OF_ADDRESSES = (
    "isGlobalUnicast",
    "isLinkLocalUnicast",
    "isLinkLocalMulticast",
    "isLoopback",
    "isUnspecified",
)
_OF_URLS = ("getHost", "getHostname", "getPort", "getScheme", "getEscapedPath", "getQuery")
# Measured: units of 0.2 microseconds. By the overload or, for all of them, the name of a function.
_SURCHARGES: dict[str, int] = {
    **dict.fromkeys(("cidr", "isCIDR", "prefixLength"), 25),
    "containsIP": 40,
    **dict.fromkeys(("containsCIDR", "masked", "cidr_to_string"), 60),
    **dict.fromkeys(("ip", "isIP"), 15),
    **dict.fromkeys(("ip.isCanonical", "ip_to_string"), 35),
    **dict.fromkeys(_OF_ADDRESSES, 15),
    **dict.fromkeys(("url", "isURL"), 25),
    **dict.fromkeys(_OF_URLS, 10),
    **dict.fromkeys(("semver", "isSemver", "quantity", "isQuantity", "duration"), 20),
    "string_to_timestamp": 25,
    **{
        f"timestamp_to_{field}": 15
        for field in ("year", "month", "hours", "minutes", "seconds", "day_of_year")
    },
    **{f"timestamp_to_day_of_{kind}": 15 for kind in ("month", "month_1_based", "week")},
    **dict.fromkeys(
        ("timestamp_to_string", "duration_to_string", "double_to_string", "string_to_double"), 20
    ),
    **dict.fromkeys(("string_to_int64", "string_to_uint64", "bytes_to_string", "string_to_bytes"), 8),
    **dict.fromkeys(("format", "join", "validate"), 20),
    **dict.fromkeys(("find", "findAll", "replace", "split", "strings.quote"), 10),
    "matches": 5,
}
# A name that is no zone is looked for in the file system.
_ZONE = 250


def _surcharge(e: Call) -> int:
    """Work of a call that takes longer than a unit of cost, whatever its arguments are."""
    overload = e.overloads[0]
    if overload.endswith("_tz"):
        return _ZONE
    # Where the types are known late each of the overloads is tried.
    late = 2 * (len(e.overloads) - 1)
    return late + _SURCHARGES.get(overload, _SURCHARGES.get(e.function, 0))
