"""Evaluation that counts its cost and its work, and stops at the limits (``values.meter``).

Used for expressions that are not known beforehand to stay far below the limits (``cost.plain``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from dra_driver.cel.cost import charges
from dra_driver.cel.cost.estimation import LIST_COST, MAP_COST
from dra_driver.cel.errors import CelRuntimeError, no_such_overload
from dra_driver.cel.evaluation import closures, loops
from dra_driver.cel.evaluation.closures import Closure
from dra_driver.cel.evaluation.compiler import CONSTRUCTORS, Compiler
from dra_driver.cel.library.implementations import IMPLEMENTATIONS, METERED, argument_tests
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
from dra_driver.cel.values.meter import units_of
from dra_driver.cel.values.types import Type
from dra_driver.cel.values.values import Value, equal, not_equal

__all__ = ["TrackingCompiler"]


class TrackingCompiler(Compiler):
    """A ``Compiler`` whose closures add their cost and their work to the frame.

    Nodes with a constant cost are counted together, at the start of the branch that evaluates all of them.

    Attributes:
        pending: constant cost of the current branch so far.
        pending_work: constant work of the current branch so far.
    """

    def __init__(self, *args: Value) -> None:
        super().__init__(*args)
        self.pending = 0
        self.pending_work = 0
        self._constants: dict[int, bool] = {}

    counts = True

    @property
    def needs_frame(self) -> bool:
        """Always: the frame counts."""
        return True

    def branch(self, e: Expr, steps: int = 0) -> Closure:
        """Return the closure of a node that is evaluated conditionally or repeatedly; it counts each time."""
        return self.counted(e, steps, 0)

    def counted(self, e: Expr, cost: int, work: int) -> Closure:
        """Return the closure of a node that adds a constant cost besides the node's own."""
        outer = self.pending, self.pending_work
        self.pending, self.pending_work = cost, work
        closure = self.compile(e)
        cost, work = self.pending, self.pending_work
        self.pending, self.pending_work = outer
        if not cost and not work:
            return closure

        def charged(f: Value) -> Value:
            f.cost += cost
            if f.cost > f.most_cost:
                f.stop()
            return closure(f)

        def worked(f: Value) -> Value:
            f.work += work
            if f.work > f.most_work:
                f.stop()
            f.cost += cost
            if f.cost > f.most_cost:
                f.stop()
            return closure(f)

        return worked if work else charged

    def note(self, cost: int) -> None:
        """Note the cost of a node that is always evaluated and is not compiled."""
        self.pending += cost

    def compile(self, e: Expr) -> Closure:
        """Return the closure of a node."""
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
        """Return whether cel-go builds the value before any evaluation."""
        if not isinstance(e, ListExpr | MapExpr):
            return self.is_folded(e)
        # Asked of a list in a list in a list, and so on, again for each of them.
        known = self._constants.get(id(e))
        if known is None:
            known = not e.optional and all(map(self.is_constant, children(e)))
            self._constants[id(e)] = known
        return known

    def lookup(self, operand: Expr, key: str) -> Closure:
        """Return the closure of a lookup, without the shortcut for attributes: every step costs."""
        container = self.compile(operand)
        return lambda f: closures.index(container(f), key)

    # --- calls ---

    def function(self, e: Call, operands: list[Expr]) -> Callable[..., Value]:
        """Return what to call with the operands' values; with the meter in front if an overload needs it."""
        metered = _is_metered(e)
        candidates: closures.Candidates = []
        for overload in e.overloads:
            function = METERED.get(overload) if metered else None
            if function is None and overload in IMPLEMENTATIONS:
                function = IMPLEMENTATIONS[overload]
                function = _unmetered(function) if metered else function
            if function is not None:
                candidates.append((argument_tests(overload, self.overloads[overload].args), function))
        if len(e.overloads) == 1 and all(map(self.is_certain, operands)):
            return candidates[0][1] if candidates else closures.undefined
        return _Late(candidates)

    def applied(self, e: Call, function: Callable[..., Value], args: list[Closure]) -> Closure:
        """Count what the call costs: beforehand where that does not depend on the values."""
        operands = e.args if e.target is None else [e.target, *e.args]
        if e.target is None and len(e.args) == 1 and self.is_folded(e):
            return super().applied(e, function, args)
        rule = charges.RULES.get(e.function, charges.one)
        self.pending_work += charges.surcharge(e)
        if e.function in CONSTRUCTORS and all(isinstance(a, Literal) for a in e.args):
            self.pending += rule([a(None) for a in args])
            return super().applied(e, function, args)
        if (call := self.patterned(e, args, rule)) is not None:
            return call
        metered = _is_metered(e)
        if not _is_fixed(e, rule, operands):
            self.pending_work += charges.COUNTING
        if _is_fixed(e, rule, operands) and not metered:
            self.pending += 1
            return super().applied(e, function, args)
        if e.function in _aliasing.FUNCTIONS:
            self.aliasing = True
            return _sum(function, args)
        work = charges.WORK.get(e.function)
        return _counted_call(function, args, rule, work, metered=metered)

    def patterned(self, e: Call, args: list[Closure], rule: charges.Rule) -> Closure | None:
        """Return a call with a constant regular expression; None if the evaluation compiles it."""
        operands = e.args if e.target is None else [e.target, *e.args]
        function, constant = _regex.ON_PATTERNS.get(e.function), operands[1:2]
        if function is None or not isinstance(constant[0], Literal) or type(constant[0].value) is not str:
            return None
        try:
            pattern = self.pattern(constant[0].value)
        except CelRuntimeError:
            # The failure is raised if the evaluation gets here.
            return None

        def call(f: Value) -> Value:
            text, _, *limit = values = [a(f) for a in args]
            if type(text) is not str or any(type(n) is not int for n in limit):
                raise no_such_overload()
            f.charge(rule(values))
            return function(f, text, pattern, *limit)

        return call

    def equality(self, e: Call) -> Closure:
        """Return the closure of ``==`` or ``!=``; it costs what is compared."""
        left, right = (self.compile(a) for a in e.args)
        test = equal if e.function == "_==_" else not_equal
        rule = charges.equal if e.function == "_==_" else charges.compare
        if _is_fixed(e, rule, e.args):
            self.pending += 1
            return lambda f: test(left(f), right(f), f)

        self.pending_work += charges.COUNTING

        def compared(f: Value) -> bool:
            a, b = left(f), right(f)
            f.cost += rule([a, b])
            if f.cost > f.most_cost:
                f.stop()
            return test(a, b, f)

        return compared

    def ordering(self, e: Call) -> Closure:
        """Return the closure of an ordering; it costs what is compared."""
        function, args = self.function(e, e.args), [self.compile(a) for a in e.args]
        general = self.applied(e, function, args)
        if any(a.type.kind != "int" for a in e.args):
            return general
        (left, right), compare = args, _COMPARISONS[e.function]

        def ordered(f: Value) -> Value:
            a, b = left(f), right(f)
            # Numbers cost 1 whatever they are: finding out that they are numbers takes most of a fold's time.
            return compare(a, b) if type(a) is int and type(b) is int else function(a, b)

        return ordered

    def membership(self, e: Call) -> Closure:
        """Return the closure of ``in``; lists of constants are free, others cost their length."""
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
        """Return the fold of ``map`` and its like; an addition costs a list of one, accumulator and sum."""
        is_list = add.function == "_+_"
        made = [self.counted(parts[0], LIST_COST + 2, 0) if is_list else self.counted(parts[0], 2, _ENTRY)]
        made += map(self.branch, parts[1:])
        if not is_list and len(parts) == 1:
            made = [_merged(made[0])]
        tested = test

        def checked(f: Value) -> Value:
            assert tested is not None
            result = tested(f)
            if result is False:
                f.charge(1)
            return result

        test = checked if tested is not None else None
        if is_list:
            return loops.list_collector(items, test, made[0])
        return loops.map_collector(items, test, made)


def _merged(entries: Closure) -> Closure:
    """Return the closure of a map whose entries are added to another map, each of which is work."""

    def merged(f: Value) -> Value:
        value = entries(f)
        if isinstance(value, dict):
            f.spend(_ENTRY * len(value))
        return value

    return merged


def _is_metered(e: Call) -> bool:
    return any(o in METERED for o in e.overloads)


def _unmetered(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda meter, *args: function(*args)


def _is_fixed(e: Call, rule: charges.Rule, operands: list[Expr]) -> bool:
    """Return whether a call costs 1 and takes about as long, whatever the values are."""
    if rule is charges.one:
        return e.function in _CONSTANT_TIME or all(_is_scalar(a.type) for a in operands)
    # The smaller of the operands counts, or both of them are numbers.
    return rule in (charges.compare, charges.equal, charges.add) and any(_is_scalar(a.type) for a in operands)


def _is_scalar(t: Type) -> bool:
    return t.kind in _SCALARS or t.name in _SCALARS


# Work of an entry of a map, which takes some 128 bytes.
_ENTRY = 8
_SIMPLE = frozenset({"_[_]", "_[?_]", "_?._", "or", "orValue", "@not_strictly_false"})
# Functions that read one element or character of their arguments at most.
_CONSTANT_TIME = frozenset(
    (
        *("size", "type", "dyn", "value", "hasValue", "optional.of", "optional.none", "first", "last"),
        *("family", "isUnspecified", "ip.isUnspecified", "prefixLength", "masked", "ip"),
    )
)
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


class _Late:
    """A function with several overloads, chosen by the values of the arguments."""

    __slots__ = ("candidates",)

    def __init__(self, candidates: closures.Candidates) -> None:
        self.candidates = candidates

    def __call__(self, *args: Value) -> Value:
        return closures.chosen(self.candidates, args)(*args)


def _counted_call(
    function: Callable[..., Value],
    args: list[Closure],
    rule: charges.Rule,
    work: charges.Work | None,
    *,
    metered: bool,
) -> Closure:
    late = function.candidates if isinstance(function, _Late) else None

    def call(f: Value) -> Value:
        values = [a(f) for a in args]
        # First, so that the rule gets what it knows.
        target = function if late is None else closures.chosen(late, values)
        if work is not None:
            work(f, values)
        f.cost += rule(values)
        f.work += units_of(values)
        if f.cost > f.most_cost or f.work > f.most_work:
            f.stop()
        return target(f, *values) if metered else target(*values)

    return call


def _sum(function: Callable[..., Value], args: list[Closure]) -> Closure:
    """Return the sum of quantities, which changes all that share a decimal with the left one.

    See ``values.aliasing``.
    """
    late = function.candidates if isinstance(function, _Late) else None

    def total(f: Value) -> Value:
        values = [a(f) for a in args]
        target = function if late is None else closures.chosen(late, values)
        f.charge(1)
        f.spend(2 * len(f.aliases.get(id(values[0]), ())))
        return _aliasing.applied(lambda a, b: target(f, a, b), f.aliases, *values)

    return total
