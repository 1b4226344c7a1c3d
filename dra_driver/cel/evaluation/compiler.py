"""Compilation of a checked tree to closures of one argument: the device, or a frame with local variables.

Absent attributes and other failures are exceptions; ``&&``, ``||`` and the folds ``all`` and ``exists`` catch
them. A local variable whose value failed (``cel.bind`` is lazy) holds the exception, raised when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_driver.cel.checking.checker import WRAPPERS
from dra_driver.cel.checking.declarations import Overload
from dra_driver.cel.errors import CelCompileError, CelPanic, CelRuntimeError, no_such_overload
from dra_driver.cel.evaluation import closures, loops
from dra_driver.cel.evaluation.closures import Closure
from dra_driver.cel.library.implementations import IMPLEMENTATIONS, argument_tests, loosely_typed
from dra_driver.cel.library.validators import MAX_PATTERN_SIZE, MAX_PATTERNS
from dra_driver.cel.syntax.ast import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListExpr,
    Literal,
    MapExpr,
    Select,
    StructExpr,
)
from dra_driver.cel.syntax.macros import ACCUMULATOR
from dra_driver.cel.values import regex as _regex
from dra_driver.cel.values.values import (
    Optional,
    TypeValue,
    UInt,
    Value,
    comparison_work,
    equal,
    not_equal,
)

__all__ = ["CONSTRUCTORS", "Compiler"]


_CONVERSIONS = frozenset({"bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"})
# Evaluated once on constants. Decimals are not kept: sums write into them (``values.aliasing``).
CONSTRUCTORS = frozenset({"quantity", "semver"})
_EQUAL_TYPES = frozenset({"string", "int", "uint", "bool", "double", "bytes"})
_PRIMITIVES = frozenset({str, bytes, bool, int, UInt, float})


class Compiler:
    """The compiler of one tree.

    Attributes:
        slots: number of local variables of a frame.
        aliasing: whether sums of quantities occur (``values.aliasing``).
        patterns: the constant regular expressions.
        pattern_size: instructions of their programs together.
    """

    def __init__(self, expression: str, functions: Mapping[str, tuple[Overload, ...]]) -> None:
        self.text = expression
        self.overloads = {o.id: o for overloads in functions.values() for o in overloads}
        self.scope: dict[str, int] = {}
        self.slots = 0
        self.aliasing = False
        self.patterns: dict[str, _regex.Pattern] = {}
        self.pattern_size = 0

    counts = False
    """Whether evaluations count what they cost."""

    @property
    def needs_frame(self) -> bool:
        """Whether closures need a ``Frame``; else the device itself will do."""
        return self.slots > 0

    def branch(self, e: Expr, steps: int = 0) -> Closure:
        """Return the closure of a node that is evaluated conditionally or repeatedly.

        Args:
            e: the node.
            steps: cost of what is evaluated with it each time without being compiled.
        """
        return self.compile(e)

    def note(self, cost: int) -> None:
        """Note the cost of a node that is always evaluated and is not compiled."""

    def compile(self, e: Expr) -> Closure:
        """Return the closure of a node."""
        match e:
            case Literal():
                return closures.constant(e.value)
            case Ident():
                return self.ident(e)
            case Select():
                return self.select(e)
            case Call():
                return self.call(e)
            case ListExpr():
                return self.list_literal(e)
            case MapExpr():
                return self.map_literal(e)
            case StructExpr():
                return self.struct_literal(e)
            case Comprehension():
                return self.comprehension(e)
            case _:
                raise AssertionError(e)

    # --- names ---

    def ident(self, e: Ident) -> Closure:
        slot = self.scope.get(e.name)
        if slot is not None:
            return closures.local(slot)
        if e.name == "device":
            return lambda f: f
        return closures.constant(TypeValue(e.type.params[0].name.removeprefix("wrapper:")))

    def is_device(self, e: Expr) -> bool:
        return isinstance(e, Ident) and e.name == "device" and "device" not in self.scope

    def device_map(self, e: Expr) -> str:
        """Return ``attributes`` or ``capacity`` if the node is that map of the device."""
        if isinstance(e, Select) and not e.test_only and e.field in ("attributes", "capacity"):
            return e.field if self.is_device(e.operand) else ""
        return ""

    def select(self, e: Select) -> Closure:
        if e.as_ident:
            return closures.constant(TypeValue(e.type.params[0].name.removeprefix("wrapper:")))
        if self.is_device(e.operand):
            return closures.constant(True) if e.test_only else closures.device_field(e.field)
        if e.test_only:
            return closures.presence(self.compile(e.operand), e.field)
        return self.lookup(e.operand, e.field)

    def lookup(self, operand: Expr, key: str) -> Closure:
        """Return the closure of ``operand[key]`` with a constant text as key."""
        domain = _constant_key(operand)
        if domain is not None and (which := self.device_map(domain[0])):
            return closures.attribute(which, domain[1], key)
        container = self.compile(operand)
        if operand.type.kind == "map":
            return closures.map_lookup(container, key)
        return closures.field_of_any(container, key)

    # --- calls ---

    def call(self, e: Call) -> Closure:
        special = _SPECIAL.get(e.function)
        if special is not None:
            closure: Closure = getattr(self, special)(e)
            return closure
        operands = e.args if e.target is None else [e.target, *e.args]
        args = [self.compile(a) for a in operands]
        function = self.function(e, operands)
        return self.applied(e, function, args)

    def applied(self, e: Call, function: Callable[..., Value], args: list[Closure]) -> Closure:
        """Return the closure that calls a function with the values of its arguments."""
        if e.function in CONSTRUCTORS and all(isinstance(a, Literal) for a in e.args):
            try:
                value = function(*(a(None) for a in args))
            except CelRuntimeError:
                # The failure is raised if the evaluation gets here.
                return closures.applied(function, args)
            if not getattr(value, "is_big", False):
                return closures.constant(value)
        if e.function == "matches" and isinstance(e.args[-1], Literal):
            return closures.matching(args[0], self.pattern(str(e.args[-1].value)))
        return closures.applied(function, args)

    def pattern(self, text: str) -> _regex.Pattern:
        """Return a regular expression that the selector keeps; those of ``matches`` are already validated.

        Raises:
            CelRuntimeError: RE2 does not accept it, or the selector has too many.
        """
        if text not in self.patterns:
            # Those of ``find``, which are not validated, get as much again as those of ``matches``. The one
            # that is too much is compiled, none after it.
            if len(self.patterns) >= 2 * MAX_PATTERNS or self.pattern_size > 2 * MAX_PATTERN_SIZE:
                raise CelRuntimeError("the selector has too many regular expressions, or too large ones")
            compiled = _regex.compile_pattern(text)
            self.pattern_size += compiled.size
            self.patterns[text] = compiled
        return self.patterns[text]

    def function(self, e: Call, operands: list[Expr]) -> Callable[..., Value]:
        """Return what to call with the values of the operands."""
        if len(e.overloads) == 1 and all(map(self.is_certain, operands)):
            found = IMPLEMENTATIONS.get(e.overloads[0])
            if found is None:
                return closures.undefined
            return found
        candidates: closures.Candidates = []
        for overload in e.overloads:
            found = IMPLEMENTATIONS.get(overload)
            if found is not None:
                candidates.append((argument_tests(overload, self.overloads[overload].args), found))
        return closures.dispatcher(candidates)

    def is_certain(self, e: Expr) -> bool:
        """Return whether values of the node have its static type; null or dyn may make that wrong."""
        if loosely_typed(e.type):
            return False
        match e:
            case Literal():
                return e.value is not None
            case ListExpr() | MapExpr() | StructExpr():
                return True
            case Ident():
                return e.name not in self.scope
            case Select():
                return bool(e.test_only or e.as_ident) or self.is_device(e.operand) or self.is_capacity(e)
            case Call():
                results = [self.overloads[o].result for o in e.overloads if o in self.overloads]
                concrete = bool(results) and not any(loosely_typed(r) for r in results)
                return concrete or e.function == "_?._" or self.is_capacity(e)
            case Comprehension():
                return (not e.is_bind and not isinstance(e.result, Ident)) or isinstance(e.accu_init, Literal)
            case _:
                return False

    def is_capacity(self, e: Expr) -> bool:
        """Return whether the node is a capacity of the device, or a domain of attributes or capacities."""
        inner = _constant_key(e)
        if inner is None:
            return False
        if self.device_map(inner[0]):
            return True
        outer = _constant_key(inner[0])
        return outer is not None and self.device_map(outer[0]) == "capacity"

    def converted(self, e: Call) -> Closure:
        """Return the closure of a conversion; that of a constant is done, and may fail, at compile time."""
        args = e.args if e.target is None else [e.target, *e.args]
        closure = self.applied(e, self.function(e, args), [self.compile(a) for a in args])
        if len(args) == 1 and e.target is None and self.is_folded(args[0]):
            try:
                return closures.constant(closure(None))
            except CelRuntimeError as error:
                raise CelCompileError(str(error), e.position, self.text) from None
        return closure

    def is_folded(self, e: Expr) -> bool:
        """Return whether cel-go computes the node when it plans the evaluation."""
        if isinstance(e, Call):
            return (
                e.function in _CONVERSIONS
                and len(e.args) == 1
                and e.target is None
                and self.is_folded(e.args[0])
            )
        return isinstance(e, Literal)

    def logical(self, e: Call) -> Closure:
        terms = [self.compile(e.args[0]), *map(self.branch, e.args[1:])]
        decisive = e.function == "_||_"
        if len(terms) == 2:
            return closures.two_terms(terms[0], terms[1], decisive)
        return closures.many_terms(tuple(terms), decisive)

    def conditional(self, e: Call) -> Closure:
        test, yes, no = self.compile(e.args[0]), self.branch(e.args[1]), self.branch(e.args[2])

        def choose(f: Value) -> Value:
            value = test(f)
            if value is True:
                return yes(f)
            if value is False:
                return no(f)
            raise no_such_overload()

        return choose

    def equality(self, e: Call) -> Closure:
        a, b = e.args
        left, right = self.compile(a), self.compile(b)
        negated = e.function == "_!=_"
        if a.type.kind in _EQUAL_TYPES and a.type == b.type and self.is_certain(a) and self.is_certain(b):
            return closures.unequal_plain(left, right) if negated else closures.equal_plain(left, right)
        if isinstance(b, Literal) and type(b.value) is str and not negated:
            return closures.equals_text(left, b.value)
        if isinstance(a, Literal) and type(a.value) is str and not negated:
            # Compared with a text, a value of any other type is unequal, never a failure.
            text = a.value
            return lambda f: right(f) == text
        if negated:
            return lambda f: not_equal(left(f), right(f))
        return lambda f: equal(left(f), right(f))

    def ordering(self, e: Call) -> Closure:
        a, b = e.args
        left, right = self.compile(a), self.compile(b)
        plain = a.type == b.type and a.type.kind in ("string", "int", "uint")
        if plain and self.is_certain(a) and self.is_certain(b):
            return closures.ORDERINGS[e.function](left, right)
        return self.applied(e, self.function(e, e.args), [left, right])

    def membership(self, e: Call) -> Closure:
        value, container = self.compile(e.args[0]), e.args[1]
        if isinstance(container, ListExpr) and not container.optional:
            items = [self.folded_value(x) for x in container.elements]
            if all(type(i) in _PRIMITIVES for i in items):
                return closures.in_constants(value, items)
        return closures.in_container(value, self.compile(container))

    def folded_value(self, e: Expr) -> Value:
        """Return the value of a node that is computed beforehand; for others an object of no CEL type."""
        return self.compile(e)(None) if self.is_folded(e) else closures.UNFOLDED

    def index(self, e: Call) -> Closure:
        operand, key = e.args
        if isinstance(key, Literal) and isinstance(key.value, str) and operand.type.kind != "list":
            return self.lookup(operand, key.value)
        container, at = self.compile(operand), self.compile(key)
        if self.counts:
            return lambda f: closures.index(container(f), at(f), f)
        return lambda f: closures.index(container(f), at(f))

    def optional_lookup(self, e: Call) -> Closure:
        container, index = self.compile(e.args[0]), self.compile(e.args[1])
        if self.counts:
            return lambda f: closures.optional_index(container(f), _paid(f, index(f)))
        return lambda f: closures.optional_index(container(f), index(f))

    def optional_or(self, e: Call) -> Closure:
        assert e.target is not None
        first, other = self.compile(e.target), self.branch(e.args[0])
        whole = e.function == "or"

        def choose(f: Value) -> Value:
            value = first(f)
            if type(value) is not Optional:
                raise no_such_overload()
            if value.has:
                return value if whole else value.value
            result = other(f)
            if whole and type(result) is not Optional:
                raise no_such_overload()
            return result

        return choose

    def not_strictly_false(self, e: Call) -> Closure:
        arg = self.compile(e.args[0])

        def test(f: Value) -> bool:
            try:
                return arg(f) is not False
            except CelPanic:
                raise
            except CelRuntimeError:
                return True

        return test

    # --- literals ---

    def list_literal(self, e: ListExpr) -> Closure:
        if all(isinstance(x, Literal) for x in e.elements) and not e.optional:
            return closures.constant(tuple(x.value for x in e.elements if isinstance(x, Literal)))
        items = [self.compile(x) for x in e.elements]
        if not e.optional:
            return lambda f: [i(f) for i in items]
        return closures.built_list([(i in e.optional, item) for i, item in enumerate(items)])

    def map_literal(self, e: MapExpr) -> Closure:
        return closures.built_map(
            [(i in e.optional, self.compile(k), self.compile(v)) for i, (k, v) in enumerate(e.entries)]
        )

    def struct_literal(self, e: StructExpr) -> Closure:
        # Only the wrappers of protobuf exist; they are the value that they wrap.
        if e.fields:
            return self.compile(e.fields[0][1])
        empty: dict[str, Value] = {
            "bool": False, "bytes": b"", "double": 0.0, "int": 0, "string": "", "uint": UInt(0)
        }  # fmt: skip
        return closures.constant(empty[WRAPPERS[e.name.removeprefix(".")].name])

    # --- folds ---

    def declare(self, name: str) -> int:
        slot = self.slots
        self.slots += 1
        self.scope = {**self.scope, name: slot}
        return slot

    def comprehension(self, e: Comprehension) -> Closure:
        outer = self.scope
        items, init = self.compile(e.iter_range), self.compile(e.accu_init)
        accu = self.declare(e.accu_var)
        if e.is_bind:
            result = self.compile(e.result)
            self.scope = outer
            return closures.bind(accu, init, result)
        inner = self.scope
        first = self.declare(e.iter_var)
        second = self.declare(e.iter_var2) if e.iter_var2 else -1
        bound = closures.Items(items, first, second)
        loop = self.loop(e, bound)
        self.scope = outer
        return loop if loop is not None else self.general_fold(e, accu, bound, init, inner)

    def loop(self, e: Comprehension, items: closures.Items) -> Closure | None:
        """Return the closure of a fold of well-known form; ``general_fold`` evaluates all others."""
        step = e.step
        if e.accu_var != ACCUMULATOR or not isinstance(step, Call) or e.result.__class__ is not Ident:
            return None
        test: Closure | None
        if step.function in ("_&&_", "_||_") and isinstance(e.accu_init, Literal):
            # accu && p while @not_strictly_false(accu); accu || p while @not_strictly_false(!accu)
            self.note(1)
            any_of = step.function == "_||_"
            test, stop = self.branch(step.args[1], 4 if any_of else 3), 3 if any_of else 2
            return loops.quantifier(items, test, any_of, stop if self.counts else 0)
        add = step.args[1] if step.function == "_?_:_" else step
        if not isinstance(add, Call):
            return None
        if add.function == "_+_" and isinstance(add.args[1], ListExpr) and isinstance(e.accu_init, ListExpr):
            parts = [add.args[1].elements[0]]
        elif add.function == "cel.@mapInsert" and isinstance(e.accu_init, MapExpr):
            parts = add.args[1:]
        else:
            return None
        self.note(1)
        test = self.branch(step.args[0]) if step is not add else None
        return self.collected(items, test, parts, add)

    def collected(self, items: closures.Items, test: Closure | None, parts: list[Expr], add: Call) -> Closure:
        """Return the fold of ``map`` and its like; results are appended to one list or map."""
        made = [self.branch(part) for part in parts]
        if add.function == "_+_":
            return loops.list_collector(items, test, made[0])
        return loops.map_collector(items, test, made)

    def general_fold(
        self, e: Comprehension, accu: int, items: closures.Items, init: Closure, inner: dict[str, int]
    ) -> Closure:
        outer = self.scope
        self.scope = {**inner, e.iter_var: items.first}
        if e.iter_var2:
            self.scope[e.iter_var2] = items.second
        condition, step = self.branch(e.condition), self.branch(e.step)
        self.scope = inner
        result = self.compile(e.result)
        self.scope = outer
        return loops.fold(items, accu, init, condition, step, result)


def _paid(f: Value, key: Value) -> Value:
    f.spend(comparison_work(key))
    return key


def _constant_key(e: Expr) -> tuple[Expr, str] | None:
    """Return container and key if the node looks up a constant text."""
    if isinstance(e, Select) and not e.test_only and not e.as_ident:
        return e.operand, e.field
    if isinstance(e, Call) and e.function == "_[_]":
        key = e.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return e.args[0], key.value
    return None


# Names of methods, so that a derived compiler can override them.
_SPECIAL: dict[str, str] = {
    "_&&_": "logical",
    "_||_": "logical",
    "_?_:_": "conditional",
    "_==_": "equality",
    "_!=_": "equality",
    **dict.fromkeys(closures.ORDERINGS, "ordering"),
    "@in": "membership",
    "_[_]": "index",
    "_?._": "optional_lookup",
    "_[?_]": "optional_lookup",
    "or": "optional_or",
    "orValue": "optional_or",
    "@not_strictly_false": "not_strictly_false",
    **dict.fromkeys(_CONVERSIONS, "converted"),
}
