"""The closures that nodes are compiled to: functions of the device, or of the frame around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.errors import CelPanic, CelRuntimeError, no_such_key, no_such_overload
from dra_driver.cel.library import lists as _lists
from dra_driver.cel.values import regex as _regex
from dra_driver.cel.values.meter import Meter
from dra_driver.cel.values.values import (
    NONE,
    DomainMap,
    Optional,
    UInt,
    Value,
    compare_numbers,
    comparison_work,
    equal,
    key_of,
    map_get,
    plain_key,
    shown,
)

__all__ = [
    "ORDERINGS",
    "UNFOLDED",
    "Candidates",
    "Closure",
    "Frame",
    "Items",
    "applied",
    "attempt",
    "attribute",
    "bind",
    "built_list",
    "built_map",
    "chosen",
    "constant",
    "device_field",
    "dispatcher",
    "equal_plain",
    "equals_text",
    "field_of_any",
    "in_constants",
    "in_container",
    "index",
    "is_member",
    "list_index",
    "local",
    "many_terms",
    "map_lookup",
    "matching",
    "optional_index",
    "presence",
    "two_terms",
    "undefined",
    "unequal_plain",
]

Closure = Callable[[Value], Value]


class Frame(Meter):
    """A device with local variables; it has the attributes of a ``DeviceView`` that closures read."""

    __slots__ = ("aliases", "allow_multiple_allocations", "attributes", "capacity", "driver", "locals")

    def __init__(self, device: Value, count: int) -> None:
        super().__init__()
        self.driver = device.driver
        self.attributes = device.attributes
        self.capacity = device.capacity
        self.allow_multiple_allocations = device.allow_multiple_allocations
        self.locals: list[Value] = [None] * count
        self.aliases: dict[int, list[Quantity]] = {}


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


class Unfolded:
    pass


UNFOLDED = Unfolded()


def constant(value: Value) -> Closure:
    return lambda f: value


def local(slot: int) -> Closure:
    def read(f: Value) -> Value:
        value = f.locals[slot]
        if isinstance(value, CelRuntimeError):
            raise value.with_traceback(None)
        return value

    return read


def attempt(closure: Closure, f: Value) -> Value:
    try:
        return closure(f)
    except CelPanic:
        raise
    except CelRuntimeError as e:
        return e.with_traceback(None)


def bind(slot: int, value: Closure, result: Closure) -> Closure:
    def bind(f: Value) -> Value:
        f.locals[slot] = attempt(value, f)
        return result(f)

    return bind


def device_field(name: str) -> Closure:
    match name:
        case "driver":
            return lambda f: f.driver
        case "attributes":
            return lambda f: f.attributes
        case "capacity":
            return lambda f: f.capacity
        case _:
            return lambda f: f.allow_multiple_allocations


def attribute(which: str, domain: str, name: str) -> Closure:
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


def map_lookup(container: Closure, key: str) -> Closure:
    def lookup(f: Value) -> Value:
        try:
            return container(f)[key]
        except KeyError:
            raise no_such_key(key) from None

    return lookup


def field_of_any(container: Closure, key: str) -> Closure:
    def lookup(f: Value) -> Value:
        value = container(f)
        if isinstance(value, dict):
            found, result = map_get(value, key)
            if found:
                return result
        elif type(value) is Optional:
            return optional_index(value, key)
        raise no_such_key(key)

    return lookup


def presence(container: Closure, key: str) -> Closure:
    def present(f: Value) -> bool:
        value = container(f)
        if type(value) is Optional:
            if not value.has:
                return False
            value = value.value
        return isinstance(value, dict) and map_get(value, key)[0]

    return present


def index(container: Value, key: Value, meter: Meter | None = None) -> Value:
    """Return ``container[key]``.

    Raises:
        CelRuntimeError: there is no such key, or the value is no container.
    """
    kind = type(container)
    if kind is list or kind is tuple:
        at = list_index(key)
        if 0 <= at < len(container):
            return container[at]
        raise CelRuntimeError(f"index out of bounds: {at}")
    if kind is dict or kind is DomainMap:
        if meter is not None:
            meter.spend(comparison_work(key))
        found, value = map_get(container, key)
        if found:
            return value
        raise no_such_key(key)
    if kind is Optional:
        return optional_index(container, key)
    if type(key) is str:
        raise no_such_key(key)
    raise no_such_overload()


def list_index(key: Value) -> int:
    if type(key) is int or type(key) is UInt or (type(key) is float and key.is_integer()):
        return int(key)
    raise CelRuntimeError(f"unsupported index type in list: {shown(key)}")


def optional_index(container: Value, key: Value) -> Optional:
    if type(container) is Optional:
        if not container.has:
            return NONE
        container = container.value
    if isinstance(container, dict):
        found, value = map_get(container, key)
        return Optional(True, value) if found else NONE
    if type(container) in (list, tuple):
        at = list_index(key)
        return Optional(True, container[at]) if 0 <= at < len(container) else NONE
    if type(key) is str:
        return NONE
    raise no_such_overload()


def applied(function: Callable[..., Value], args: list[Closure]) -> Closure:
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


def matching(text: Closure, pattern: _regex.Pattern) -> Closure:
    """Return the closure of ``text.matches(pattern)`` with a constant pattern."""
    found = pattern.matches

    def match(f: Value) -> bool:
        value = text(f)
        if type(value) is not str:
            raise no_such_overload()
        return found(value)

    return match


def undefined(*args: Value) -> Value:
    raise no_such_overload()


Candidates = list[tuple[tuple[Callable[[Value], bool] | None, ...], Callable[..., Value]]]


def chosen(candidates: Candidates, args: Sequence[Value]) -> Callable[..., Value]:
    """Return the first candidate whose types are those of the arguments."""
    for tests, function in candidates:
        for arg, allows in zip(args, tests, strict=True):
            if allows is not None and not allows(arg):
                break
        else:
            return function
    raise no_such_overload()


def dispatcher(candidates: Candidates) -> Callable[..., Value]:
    """Return a function that calls the first candidate whose types are those of the arguments."""
    return lambda *args: chosen(candidates, args)(*args)


def two_terms(a: Closure, b: Closure, decisive: bool) -> Closure:
    other = not decisive

    def logical(f: Value) -> Value:
        error: CelRuntimeError | None = None
        left = None
        try:
            left = a(f)
        except CelPanic:
            raise
        except CelRuntimeError as e:
            # A traceback refers to this frame, so that both would live until the next garbage collection.
            error = e.with_traceback(None)
        if left is decisive:
            return decisive
        # Outside the handler: otherwise a failure of b would have that of a as its context, fold by fold.
        right = b(f)
        if left is other and (right is other or right is decisive):
            return right
        if right is decisive:
            return decisive
        if error is not None:
            raise error.with_traceback(None)
        raise no_such_overload()

    return logical


def many_terms(terms: tuple[Closure, ...], decisive: bool) -> Closure:
    other = not decisive

    def logical(f: Value) -> Value:
        error: CelRuntimeError | None = None
        for term in terms:
            try:
                value = term(f)
            except CelPanic:
                raise
            except CelRuntimeError as e:
                error = error or e.with_traceback(None)
                continue
            if value is decisive:
                return decisive
            if value is not other:
                error = error or no_such_overload()
        if error is not None:
            raise error.with_traceback(None)
        return other

    return logical


def equal_plain(a: Closure, b: Closure) -> Closure:
    return lambda f: a(f) == b(f)


def unequal_plain(a: Closure, b: Closure) -> Closure:
    return lambda f: a(f) != b(f)


def equals_text(left: Closure, text: str) -> Closure:
    def equals(f: Value) -> bool:
        value = left(f)
        if type(value) is str:
            return bool(value == text)
        return equal(value, text)

    return equals


ORDERINGS: dict[str, Callable[[Closure, Closure], Closure]] = {
    "_<_": lambda a, b: lambda f: a(f) < b(f),
    "_<=_": lambda a, b: lambda f: a(f) <= b(f),
    "_>_": lambda a, b: lambda f: a(f) > b(f),
    "_>=_": lambda a, b: lambda f: a(f) >= b(f),
}


def in_constants(value: Closure, items: list[Value]) -> Closure:
    texts = frozenset(i for i in items if type(i) is str)
    plain = frozenset((type(i), i) for i in items if type(i) is bool or type(i) is bytes)
    # Whole numbers are compared with each other as they are, with doubles as doubles. Two look-ups, never a
    # walk: a thousand whole numbers can be one double, and the cost of a list of constants is nothing.
    whole = frozenset(i for i in items if type(i) in (int, UInt))
    doubles = frozenset(i for i in items if type(i) is float and i == i)
    rounded = frozenset(d for i in whole if compare_numbers(i, d := float(i)) == 0)

    def member(f: Value) -> Value:
        found = value(f)
        kind = type(found)
        if kind is str:
            return found in texts
        if kind is bool or kind is bytes:
            return (kind, found) in plain
        if kind is int or kind is UInt:
            return found in whole or (float(found) in doubles and compare_numbers(found, float(found)) == 0)
        if kind is float:
            return found in doubles or found in rounded
        if kind is Version and items:
            raise CelPanic("a version cannot be looked up in a list of constants; use semver(…) == …")
        # What is left equals none of the constants, or the comparison fails.
        return False

    return member


def in_container(value: Closure, container: Closure) -> Closure:
    return lambda f: is_member(value(f), container(f))


def is_member(item: Value, container: Value, meter: Meter | None = None) -> bool:
    """Return ``item in container``.

    Raises:
        CelRuntimeError: the container is neither list nor map.
    """
    kind = type(container)
    if kind is list or kind is tuple:
        return _lists.contains(container, item, meter)
    if kind is dict:
        if meter is not None:
            meter.spend(comparison_work(item))
        return map_get(container, item)[0]
    if kind is DomainMap:
        return item in container
    raise no_such_overload()


def built_list(items: list[tuple[bool, Closure]]) -> Closure:
    """Return the closure of a list literal; with each element, whether it is optional."""

    def build(f: Value) -> list[Value]:
        found: list[Value] = []
        for optional, item in items:
            value = item(f)
            if not optional:
                found.append(value)
            elif type(value) is not Optional:
                raise CelRuntimeError(f"cannot initialize optional list element from {shown(value)}")
            elif value.has:
                found.append(value.value)
        return found

    return build


def built_map(entries: list[tuple[bool, Closure, Closure]]) -> Closure:
    """Return the closure of a map literal; with each entry, whether it is optional."""

    def build(f: Value) -> dict[Value, Value]:
        found: dict[Value, Value] = {}
        for optional, key, value in entries:
            k, v = key_of(key(f)), value(f)
            if not optional:
                found[k] = v
            elif type(v) is not Optional:
                raise CelRuntimeError(f"cannot initialize optional entry from {shown(v)}")
            elif v.has:
                found[k] = v.value
        return found

    return build
