"""A checked tree to closures of one argument: the device, or the frame that adds local variables to it.

Absent attributes and other failures are exceptions; ``&&``, ``||`` and the folds ``all`` and ``exists`` catch
them. A local variable whose value is a failure (``cel.bind`` is lazy) holds the exception, raised when read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel import _aliasing, _kubernetes, _lists, _standard, _strings
from dra_driver.cel._ast import (
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
from dra_driver.cel._checker import WRAPPERS
from dra_driver.cel._declarations import Overload
from dra_driver.cel._macros import ACCUMULATOR
from dra_driver.cel._types import Type
from dra_driver.cel._values import (
    NONE,
    Cidr,
    DomainMap,
    Duration,
    Format,
    Ip,
    Optional,
    SumQuantity,
    Timestamp,
    TypeValue,
    UInt,
    Url,
    Value,
    equal,
    key_of,
    map_get,
    not_equal,
    plain_key,
)
from dra_driver.cel.errors import CelCompileError, CelPanic, CelRuntimeError, no_such_key, no_such_overload

__all__ = ["Closure", "Compiler", "Frame", "Items", "implementations", "index"]

Closure = Callable[[Value], Value]


class Frame:
    """A device with local variables. Has the attributes of a ``DeviceView`` that closures read."""

    __slots__ = (
        "aliases",
        "allow_multiple_allocations",
        "attributes",
        "capacity",
        "cost",
        "driver",
        "locals",
    )

    def __init__(self, device: Value, count: int) -> None:
        self.driver = device.driver
        self.attributes = device.attributes
        self.capacity = device.capacity
        self.allow_multiple_allocations = device.allow_multiple_allocations
        self.locals: list[Value] = [None] * count
        self.cost = 0
        self.aliases: dict[int, list[Quantity]] = {}


def implementations() -> Mapping[str, Callable[..., Value]]:
    """Functions by the id of the overload."""
    return _IMPLEMENTATIONS


_IMPLEMENTATIONS: dict[str, Callable[..., Value]] = {
    **_standard.FUNCTIONS,
    **_strings.FUNCTIONS,
    **_lists.FUNCTIONS,
    **_kubernetes.FUNCTIONS,
}
_DEVICE_FIELDS = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple_allocations",
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "uint": (UInt,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
    "null_type": (type(None),),
    "list": (list, tuple),
    "map": (dict, DomainMap),
    "google.protobuf.Duration": (Duration,),
    "google.protobuf.Timestamp": (Timestamp,),
    "kubernetes.Quantity": (Quantity, SumQuantity),
    "kubernetes.Semver": (Version,),
    "kubernetes.URL": (Url,),
    "kubernetes.NamedFormat": (Format,),
    "net.IP": (Ip,),
    "net.CIDR": (Cidr,),
    "optional_type": (Optional,),
    "type": (TypeValue,),
}
_CONVERSIONS = frozenset({"bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint"})
_EQUAL_TYPES = frozenset({"string", "int", "uint", "bool", "double", "bytes"})
_PRIMITIVES = frozenset({str, bytes, bool, int, UInt, float})


def _loosely_typed(t: Type) -> bool:
    return t.kind in ("dyn", "any", "param", "error") or t.name.startswith("wrapper")


class Compiler:
    """Compiles one tree.

    Attributes:
        slots: how many local variables a frame needs.
        aliasing: whether sums of quantities occur (see ``_aliasing``).
    """

    def __init__(self, expression: str, functions: Mapping[str, tuple[Overload, ...]]) -> None:
        self.text = expression
        self.overloads = {o.id: o for overloads in functions.values() for o in overloads}
        self.scope: dict[str, int] = {}
        self.slots = 0
        self.aliasing = False

    @property
    def needs_frame(self) -> bool:
        """Whether closures need a ``Frame``; else the device itself will do."""
        return self.slots > 0 or self.aliasing

    def compile(self, e: Expr) -> Closure:
        """The closure of a node."""
        match e:
            case Literal():
                return _constant(e.value)
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
            return _local(slot)
        if e.name == "device":
            return lambda f: f
        return _constant(TypeValue(e.type.params[0].name.removeprefix("wrapper:")))

    def is_device(self, e: Expr) -> bool:
        return isinstance(e, Ident) and e.name == "device" and "device" not in self.scope

    def device_map(self, e: Expr) -> str:
        """``attributes`` or ``capacity`` where the node is that map of the device."""
        if isinstance(e, Select) and not e.test_only and e.field in ("attributes", "capacity"):
            return e.field if self.is_device(e.operand) else ""
        return ""

    def select(self, e: Select) -> Closure:
        if e.as_ident:
            return _constant(TypeValue(e.type.params[0].name.removeprefix("wrapper:")))
        if self.is_device(e.operand):
            return _constant(True) if e.test_only else _device_field(e.field)
        if e.test_only:
            return _presence(self.compile(e.operand), e.field)
        return self.lookup(e.operand, e.field)

    def lookup(self, operand: Expr, key: str) -> Closure:
        """``operand[key]`` with a constant text as key."""
        domain = _constant_key(operand)
        if domain is not None and (which := self.device_map(domain[0])):
            return _attribute(which, domain[1], key)
        container = self.compile(operand)
        if operand.type.kind == "map":
            return _map_lookup(container, key)
        return _field_of_any(container, key)

    # --- calls ---

    def call(self, e: Call) -> Closure:
        special = _SPECIAL.get(e.function)
        if special is not None:
            return special(self, e)
        operands = e.args if e.target is None else [e.target, *e.args]
        args = [self.compile(a) for a in operands]
        function = self.function(e, operands)
        if e.function in _aliasing.FUNCTIONS and "quantity" in e.overloads[0]:
            self.aliasing = True
            left, right = args
            return lambda f: _aliasing.applied(function, f.aliases, left(f), right(f))
        return self.applied(e, function, args)

    def applied(self, e: Call, function: Callable[..., Value], args: list[Closure]) -> Closure:
        """The closure that calls a function with the values of its arguments."""
        return _applied(function, args)

    def function(self, e: Call, operands: list[Expr]) -> Callable[..., Value]:
        """What to call with the values of the operands."""
        if len(e.overloads) == 1 and not any(_loosely_typed(o.type) for o in operands):
            found = _IMPLEMENTATIONS.get(e.overloads[0])
            if found is None:
                return _undefined
            return found
        candidates: list[tuple[tuple[tuple[type, ...] | None, ...], Callable[..., Value]]] = []
        for overload in e.overloads:
            found = _IMPLEMENTATIONS.get(overload)
            if found is not None:
                tests = tuple(_PYTHON_TYPES.get(t.name) for t in self.overloads[overload].args)
                candidates.append((tests, found))
        return _dispatcher(candidates)

    def converted(self, e: Call) -> Closure:
        """A conversion; of a constant it is done once, and a failure is one of the expression."""
        args = e.args if e.target is None else [e.target, *e.args]
        closure = self.applied(e, self.function(e, args), [self.compile(a) for a in args])
        if len(args) == 1 and e.target is None and self.is_folded(args[0]):
            try:
                return _constant(closure(None))
            except CelRuntimeError as error:
                raise CelCompileError(str(error), e.position, self.text) from None
        return closure

    def is_folded(self, e: Expr) -> bool:
        """Whether the original computes the node when it plans the evaluation."""
        if isinstance(e, Call):
            return (
                e.function in _CONVERSIONS
                and len(e.args) == 1
                and e.target is None
                and self.is_folded(e.args[0])
            )
        return isinstance(e, Literal)

    def logical(self, e: Call) -> Closure:
        terms = [self.compile(a) for a in e.args]
        decisive = e.function == "_||_"
        if len(terms) == 2:
            return _two_terms(terms[0], terms[1], decisive)
        return _many_terms(tuple(terms), decisive)

    def conditional(self, e: Call) -> Closure:
        test, yes, no = (self.compile(a) for a in e.args)

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
        if a.type.kind in _EQUAL_TYPES and a.type == b.type:
            return _unequal_plain(left, right) if negated else _equal_plain(left, right)
        if isinstance(b, Literal) and type(b.value) is str and not negated:
            return _equals_text(left, b.value)
        if isinstance(a, Literal) and type(a.value) is str and not negated:
            # The text decides: a value of another type is unequal, never a failure.
            text = a.value
            return lambda f: right(f) == text
        if negated:
            return lambda f: not_equal(left(f), right(f))
        return lambda f: equal(left(f), right(f))

    def ordering(self, e: Call) -> Closure:
        a, b = e.args
        left, right = self.compile(a), self.compile(b)
        if a.type == b.type and a.type.kind in ("string", "int", "uint"):
            return _ORDERINGS[e.function](left, right)
        return self.applied(e, self.function(e, e.args), [left, right])

    def membership(self, e: Call) -> Closure:
        value, container = self.compile(e.args[0]), e.args[1]
        if isinstance(container, ListExpr) and not container.optional:
            items = [self.folded_value(x) for x in container.elements]
            if all(type(i) in _PRIMITIVES for i in items):
                return _in_constants(value, items)
        return _in(value, self.compile(container))

    def folded_value(self, e: Expr) -> Value:
        """The value of a node that is computed beforehand; an object of no CEL type for the others."""
        return self.compile(e)(None) if self.is_folded(e) else _UNFOLDED

    def index(self, e: Call) -> Closure:
        operand, key = e.args
        if isinstance(key, Literal) and isinstance(key.value, str) and operand.type.kind != "list":
            return self.lookup(operand, key.value)
        container, at = self.compile(operand), self.compile(key)
        return lambda f: index(container(f), at(f))

    def optional_lookup(self, e: Call) -> Closure:
        container, index = self.compile(e.args[0]), self.compile(e.args[1])
        return lambda f: _optional_index(container(f), index(f))

    def optional_or(self, e: Call) -> Closure:
        assert e.target is not None
        first, other = self.compile(e.target), self.compile(e.args[0])
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
            return _constant(tuple(x.value for x in e.elements if isinstance(x, Literal)))
        items = [self.compile(x) for x in e.elements]
        if not e.optional:
            return lambda f: [i(f) for i in items]
        marked = [(i in e.optional, item) for i, item in enumerate(items)]

        def build(f: Value) -> list[Value]:
            found: list[Value] = []
            for optional, item in marked:
                value = item(f)
                if not optional:
                    found.append(value)
                elif type(value) is not Optional:
                    raise CelRuntimeError(f"cannot initialize optional list element from {value!r}")
                elif value.has:
                    found.append(value.value)
            return found

        return build

    def map_literal(self, e: MapExpr) -> Closure:
        entries = [(i in e.optional, self.compile(k), self.compile(v)) for i, (k, v) in enumerate(e.entries)]

        def build(f: Value) -> dict[Value, Value]:
            found: dict[Value, Value] = {}
            for optional, key, value in entries:
                k, v = key_of(key(f)), value(f)
                if not optional:
                    found[k] = v
                elif type(v) is not Optional:
                    raise CelRuntimeError(f"cannot initialize optional entry from {v!r}")
                elif v.has:
                    found[k] = v.value
            return found

        return build

    def struct_literal(self, e: StructExpr) -> Closure:
        # Only the wrappers of protobuf exist; they are the value that they wrap.
        if e.fields:
            return self.compile(e.fields[0][1])
        empty: dict[str, Value] = {
            "bool": False, "bytes": b"", "double": 0.0, "int": 0, "string": "", "uint": UInt(0)
        }  # fmt: skip
        return _constant(empty[WRAPPERS[e.name.removeprefix(".")].name])

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
            return _bind(accu, init, result)
        inner = self.scope
        first = self.declare(e.iter_var)
        second = self.declare(e.iter_var2) if e.iter_var2 else -1
        loop = self.loop(e, accu, Items(items, first, second), inner)
        self.scope = outer
        return (
            loop if loop is not None else self.general_fold(e, accu, Items(items, first, second), init, inner)
        )

    def loop(self, e: Comprehension, accu: int, items: Items, inner: dict[str, int]) -> Closure | None:
        """The closure of a fold of well-known form; the others are taken apart by ``general_fold``."""
        step = e.step
        if e.accu_var != ACCUMULATOR or not isinstance(step, Call) or e.result.__class__ is not Ident:
            return None
        if step.function in ("_&&_", "_||_") and isinstance(e.accu_init, Literal):
            return _quantifier(items, self.compile(step.args[1]), step.function == "_||_")
        test: Closure | None = None
        add: Expr = step
        if step.function == "_?_:_":
            test, add = self.compile(step.args[0]), step.args[1]
        if not isinstance(add, Call):
            return None
        if add.function == "_+_" and isinstance(add.args[1], ListExpr) and isinstance(e.accu_init, ListExpr):
            return self.collected(items, test, [self.compile(add.args[1].elements[0])], "_+_")
        if add.function == "cel.@mapInsert" and isinstance(e.accu_init, MapExpr):
            return self.collected(items, test, [self.compile(a) for a in add.args[1:]], add.function)
        return None

    def collected(self, items: Items, test: Closure | None, parts: list[Closure], function: str) -> Closure:
        """The fold of ``map`` and its like: what is collected is added to one list or map."""
        return (
            _list_collector(items, test, parts[0])
            if function == "_+_"
            else _map_collector(items, test, parts)
        )

    def general_fold(
        self, e: Comprehension, accu: int, items: Items, init: Closure, inner: dict[str, int]
    ) -> Closure:
        outer = self.scope
        self.scope = {**inner, e.iter_var: items.first}
        if e.iter_var2:
            self.scope[e.iter_var2] = items.second
        condition, step = self.compile(e.condition), self.compile(e.step)
        self.scope = inner
        result = self.compile(e.result)
        self.scope = outer

        def fold(f: Value) -> Value:
            local = f.locals
            local[accu] = _attempt(init, f)
            for _ in items.bind(f):
                if condition(f) is False:
                    break
                local[accu] = _attempt(step, f)
            return result(f)

        return fold


class Items:
    """The range of a fold, which binds its variables."""

    __slots__ = ("first", "items", "second")

    def __init__(self, items: Closure, first: int, second: int) -> None:
        self.items = items
        self.first = first
        self.second = second

    def bind(self, f: Value) -> Iterable[None]:
        found = self.items(f)
        local = f.locals
        is_map = isinstance(found, dict)
        if not is_map and type(found) not in (list, tuple):
            raise no_such_overload()
        if self.second < 0:
            for item in found:
                local[self.first] = plain_key(item) if is_map else item
                yield
        else:
            for key, value in found.items() if is_map else enumerate(found):
                local[self.first] = plain_key(key) if is_map else key
                local[self.second] = value
                yield


# --- closures -----------------------------------------------------------------------------------------------


class _Unfolded:
    pass


_UNFOLDED = _Unfolded()


def _constant(value: Value) -> Closure:
    return lambda f: value


def _local(slot: int) -> Closure:
    def read(f: Value) -> Value:
        value = f.locals[slot]
        if isinstance(value, CelRuntimeError):
            raise value.with_traceback(None)
        return value

    return read


def _attempt(closure: Closure, f: Value) -> Value:
    try:
        return closure(f)
    except CelPanic:
        raise
    except CelRuntimeError as e:
        return e


def _bind(slot: int, value: Closure, result: Closure) -> Closure:
    def bind(f: Value) -> Value:
        f.locals[slot] = _attempt(value, f)
        return result(f)

    return bind


def _device_field(name: str) -> Closure:
    match name:
        case "driver":
            return lambda f: f.driver
        case "attributes":
            return lambda f: f.attributes
        case "capacity":
            return lambda f: f.capacity
        case _:
            return lambda f: f.allow_multiple_allocations


def _constant_key(e: Expr) -> tuple[Expr, str] | None:
    """Container and key where the node looks up a constant text."""
    if isinstance(e, Select) and not e.test_only and not e.as_ident:
        return e.operand, e.field
    if isinstance(e, Call) and e.function == "_[_]":
        key = e.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return e.args[0], key.value
    return None


def _attribute(which: str, domain: str, name: str) -> Closure:
    if which == "attributes":

        def attribute(f: Value) -> Value:
            try:
                return f.attributes[domain][name]
            except KeyError:
                raise no_such_key(name) from None

        return attribute

    def capacity(f: Value) -> Value:
        try:
            return f.capacity[domain][name]
        except KeyError:
            raise no_such_key(name) from None

    return capacity


def _map_lookup(container: Closure, key: str) -> Closure:
    def lookup(f: Value) -> Value:
        try:
            return container(f)[key]
        except KeyError:
            raise no_such_key(key) from None

    return lookup


def _field_of_any(container: Closure, key: str) -> Closure:
    def lookup(f: Value) -> Value:
        value = container(f)
        if isinstance(value, dict):
            found, result = map_get(value, key)
            if found:
                return result
        elif type(value) is Optional:
            return _optional_index(value, key)
        raise no_such_key(key)

    return lookup


def _presence(container: Closure, key: str) -> Closure:
    def present(f: Value) -> bool:
        value = container(f)
        if type(value) is Optional:
            if not value.has:
                return False
            value = value.value
        return isinstance(value, dict) and map_get(value, key)[0]

    return present


def index(container: Value, key: Value) -> Value:
    """``container[key]``.

    Raises:
        CelRuntimeError: there is no such key, or the container is none.
    """
    kind = type(container)
    if kind is list or kind is tuple:
        at = _list_index(key)
        if 0 <= at < len(container):
            return container[at]
        raise CelRuntimeError(f"index out of bounds: {at}")
    if kind is dict or kind is DomainMap:
        found, value = map_get(container, key)
        if found:
            return value
        raise no_such_key(key)
    if kind is Optional:
        return _optional_index(container, key)
    if type(key) is str:
        raise no_such_key(key)
    raise no_such_overload()


def _list_index(key: Value) -> int:
    if type(key) is int or type(key) is UInt or (type(key) is float and key.is_integer()):
        return int(key)
    raise CelRuntimeError(f"unsupported index type in list: {key!r}")


def _optional_index(container: Value, key: Value) -> Optional:
    if type(container) is Optional:
        if not container.has:
            return NONE
        container = container.value
    if isinstance(container, dict):
        found, value = map_get(container, key)
        return Optional(True, value) if found else NONE
    if type(container) in (list, tuple):
        at = _list_index(key)
        return Optional(True, container[at]) if 0 <= at < len(container) else NONE
    if type(key) is str:
        return NONE
    raise no_such_overload()


def _applied(function: Callable[..., Value], args: list[Closure]) -> Closure:
    match args:
        case []:
            return lambda f: function()
        case [a]:
            return lambda f: function(a(f))
        case [a, b]:
            return lambda f: function(a(f), b(f))
        case [a, b, c]:
            return lambda f: function(a(f), b(f), c(f))
        case _:
            return lambda f: function(*[a(f) for a in args])


def _undefined(*args: Value) -> Value:
    raise no_such_overload()


_Candidates = list[tuple[tuple[tuple[type, ...] | None, ...], Callable[..., Value]]]


def _dispatcher(candidates: _Candidates) -> Callable[..., Value]:
    """Calls the first candidate whose types are those of the arguments."""

    def dispatch(*args: Value) -> Value:
        for tests, function in candidates:
            for arg, allowed in zip(args, tests, strict=True):
                if allowed is not None and type(arg) not in allowed:
                    break
            else:
                return function(*args)
        raise no_such_overload()

    return dispatch


def _two_terms(a: Closure, b: Closure, decisive: bool) -> Closure:
    other = not decisive

    def logical(f: Value) -> Value:
        try:
            left = a(f)
        except CelPanic:
            raise
        except CelRuntimeError as e:
            if b(f) is decisive:
                return decisive
            raise e.with_traceback(None) from None
        if left is decisive:
            return decisive
        right = b(f)
        if left is other:
            if right is other or right is decisive:
                return right is True
        elif right is decisive:
            return decisive
        raise no_such_overload()

    return logical


def _many_terms(terms: tuple[Closure, ...], decisive: bool) -> Closure:
    other = not decisive

    def logical(f: Value) -> Value:
        error: CelRuntimeError | None = None
        for term in terms:
            try:
                value = term(f)
            except CelPanic:
                raise
            except CelRuntimeError as e:
                error = error or e
                continue
            if value is decisive:
                return decisive
            if value is not other:
                error = error or no_such_overload()
        if error is not None:
            raise error.with_traceback(None)
        return other

    return logical


def _equal_plain(a: Closure, b: Closure) -> Closure:
    return lambda f: a(f) == b(f)


def _unequal_plain(a: Closure, b: Closure) -> Closure:
    return lambda f: a(f) != b(f)


def _equals_text(left: Closure, text: str) -> Closure:
    def equals(f: Value) -> bool:
        value = left(f)
        if type(value) is str:
            return bool(value == text)
        return equal(value, text)

    return equals


_ORDERINGS: dict[str, Callable[[Closure, Closure], Closure]] = {
    "_<_": lambda a, b: lambda f: a(f) < b(f),
    "_<=_": lambda a, b: lambda f: a(f) <= b(f),
    "_>_": lambda a, b: lambda f: a(f) > b(f),
    "_>=_": lambda a, b: lambda f: a(f) >= b(f),
}


def _in_constants(value: Closure, items: list[Value]) -> Closure:
    texts = frozenset(i for i in items if type(i) is str)
    others = tuple(i for i in items if type(i) is not str)

    def member(f: Value) -> Value:
        found = value(f)
        if type(found) is str:
            return found in texts
        if type(found) is Version and items:
            raise CelPanic("a version cannot be looked up in a list of constants; use semver(…) == …")
        return bool(others) and _lists.contains(others, found)

    return member


def _in(value: Closure, container: Closure) -> Closure:
    def member(f: Value) -> Value:
        item, found = value(f), container(f)
        kind = type(found)
        if kind is list or kind is tuple:
            return _lists.contains(found, item)
        if kind is dict:
            return map_get(found, item)[0]
        if kind is DomainMap:
            return item in found
        raise no_such_overload()

    return member


def _quantifier(items: Items, test: Closure, decisive: bool) -> Closure:
    other = not decisive

    def quantified(f: Value) -> Value:
        error: CelRuntimeError | None = None
        for _ in items.bind(f):
            try:
                value = test(f)
            except CelPanic:
                raise
            except CelRuntimeError as e:
                error = error or e
                continue
            if value is decisive:
                return decisive
            if value is not other:
                error = error or no_such_overload()
        if error is not None:
            raise error.with_traceback(None)
        return other

    return quantified


def _selected(items: Items, test: Closure | None, f: Value) -> Iterable[None]:
    for _ in items.bind(f):
        if test is not None:
            value = test(f)
            if value is False:
                continue
            if value is not True:
                raise no_such_overload()
        yield


def _list_collector(items: Items, test: Closure | None, element: Closure) -> Closure:
    return lambda f: [element(f) for _ in _selected(items, test, f)]


def _map_collector(items: Items, test: Closure | None, parts: list[Closure]) -> Closure:
    def collect(f: Value) -> dict[Value, Value]:
        found: dict[Value, Value] = {}
        for _ in _selected(items, test, f):
            if len(parts) == 2:
                new = {key_of(parts[0](f)): parts[1](f)}
            else:
                new = parts[0](f)
                if not isinstance(new, dict):
                    raise no_such_overload()
            for key, value in new.items():
                if key in found:
                    raise CelRuntimeError(f"insert failed: key {plain_key(key)} already exists")
                found[key] = value
        return found

    return collect


_SPECIAL: dict[str, Callable[[Compiler, Call], Closure]] = {
    "_&&_": Compiler.logical,
    "_||_": Compiler.logical,
    "_?_:_": Compiler.conditional,
    "_==_": Compiler.equality,
    "_!=_": Compiler.equality,
    **dict.fromkeys(_ORDERINGS, Compiler.ordering),
    "@in": Compiler.membership,
    "_[_]": Compiler.index,
    "_?._": Compiler.optional_lookup,
    "_[?_]": Compiler.optional_lookup,
    "or": Compiler.optional_or,
    "orValue": Compiler.optional_or,
    "@not_strictly_false": Compiler.not_strictly_false,
    **dict.fromkeys(_CONVERSIONS, Compiler.converted),
}
