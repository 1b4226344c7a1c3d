"""Values at run time.

=============  =============================================
CEL            Python
=============  =============================================
bool, string   bool, str
int, uint      int, UInt
double, bytes  float, bytes
null           None
list           list or tuple
map            dict; bool keys as ``BoolKey`` (1 and True are the same key of a dict)
timestamp      Timestamp
duration       Duration
Quantity       Quantity; the result of add and sub as ``SumQuantity``
Semver         Version
net.IP, CIDR   Ip, Cidr
URL            Url
NamedFormat    Format
optional       Optional
type           TypeValue
=============  =============================================

A value is read-only once it is made.
"""

from __future__ import annotations

import enum
import ipaddress
import itertools
import math
from typing import Any, TypeAlias
from urllib.parse import SplitResult

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.errors import CelPanic, CelRuntimeError, no_such_overload
from dra_driver.cel.values.meter import Meter

__all__ = [
    "NONE",
    "BoolKey",
    "Cidr",
    "DomainMap",
    "Duration",
    "Format",
    "Ip",
    "Optional",
    "SumQuantity",
    "Timestamp",
    "TypeValue",
    "UInt",
    "Url",
    "Value",
    "compare",
    "compare_numbers",
    "comparison_work",
    "equal",
    "key_of",
    "map_get",
    "not_equal",
    "plain_key",
    "shown",
    "type_name",
]

# The type checker of the expression knows the type of a value; mypy cannot.
Value: TypeAlias = Any


class UInt(int):
    """An unsigned number."""

    __slots__ = ()


class BoolKey(enum.Enum):
    """A bool as the key of a map."""

    FALSE = False
    TRUE = True


class DomainMap(dict[str, dict[str, Value]]):
    """``device.attributes`` or ``device.capacity``: looking up an unknown domain returns an empty map."""

    __slots__ = ()

    def __missing__(self, key: str) -> dict[str, Value]:
        return _EMPTY


_EMPTY: dict[str, Value] = {}


class SumQuantity(Quantity):
    """A result of add or sub: Kubernetes refuses it on the right of ``==``."""

    __slots__ = ()


class _Nanoseconds:
    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nanoseconds) and type(other) is type(self) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.ns))


class Duration(_Nanoseconds):
    """A signed span, in nanoseconds."""

    __slots__ = ()


class Timestamp(_Nanoseconds):
    """A point in time, in nanoseconds since the epoch."""

    __slots__ = ()


class Ip:
    """An IP address."""

    __slots__ = ("address",)

    def __init__(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
        self.address = address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ip) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


class Cidr:
    """An address and the length of its network's prefix."""

    __slots__ = ("interface",)

    def __init__(self, interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface) -> None:
        self.interface = interface

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cidr) and self.interface == other.interface

    def __hash__(self) -> int:
        return hash(self.interface)


class Url:
    """A parsed URL."""

    __slots__ = ("parts", "text")

    def __init__(self, text: str, parts: SplitResult) -> None:
        self.text = text
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Url) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Format:
    """A named format of Kubernetes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Optional:
    """A value or nothing."""

    __slots__ = ("has", "value")

    def __init__(self, has: bool, value: Value = None) -> None:
        self.has = has
        self.value = value


NONE = Optional(False)


class TypeValue:
    """The type of a value, as a value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    tuple: "list",
    dict: "map",
    DomainMap: "map",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Quantity: "kubernetes.Quantity",
    SumQuantity: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
    Ip: "net.IP",
    Cidr: "net.CIDR",
    Url: "kubernetes.URL",
    Format: "kubernetes.NamedFormat",
    Optional: "optional_type",
    TypeValue: "type",
}


def type_name(value: Value) -> str:
    """Return the name of the value's type, for example ``list`` or ``kubernetes.Quantity``."""
    return _TYPE_NAMES.get(type(value), "kubernetes.DRADevice")


_SHOWN = 80


def shown(value: Value) -> str:
    """Return a value for a message: texts are cut, values of unbounded size are named by their type only."""
    if isinstance(value, str):
        return value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
    if value is None or isinstance(value, bool | int | float):
        return str(plain_key(value)).lower() if isinstance(value, bool) else str(value)
    if type(value) is BoolKey:
        return shown(value.value)
    return f"a value of type {type_name(value)}"


# A thousand characters are compared in a unit of work: lists of references to long texts take little memory.
_COMPARED = 10


# --- equality -----------------------------------------------------------------------------------------------

_NUMBERS = frozenset({int, UInt, float})
# Types of Kubernetes whose equality fails on other types instead of being false.
_STRICT = frozenset({Quantity, SumQuantity, Version, Ip, Cidr, Url, Format})
_PLAIN = frozenset({str, bool, bytes, int, UInt, float})


def equal(a: Value, b: Value, meter: Meter | None = None) -> bool:
    """Return ``a == b``; comparing lists and maps is charged to the meter.

    Raises:
        CelRuntimeError: a type of Kubernetes is compared with another type.
    """
    ta, tb = type(a), type(b)
    if ta in _PLAIN:
        if ta is tb:
            if meter is not None and (ta is str or ta is bytes):
                meter.spend(comparison_work(a))
            return bool(a == b)
        return ta in _NUMBERS and tb in _NUMBERS and compare_numbers(a, b) == 0
    if a is None or b is None:
        return a is b
    if ta in _STRICT:
        return _strict_equal(a, b, ta, tb)
    if ta is list or ta is tuple:
        if (tb is not list and tb is not tuple) or len(a) != len(b):
            return False
        if meter is not None:
            # A list that contains another twice, which contains another twice …, is exponentially large.
            meter.spend(1 + len(a))
        return all(map(_not_unequal, a, b, itertools.repeat(meter)))
    if ta is dict or ta is DomainMap:
        return (tb is dict or tb is DomainMap) and _equal_maps(a, b, meter)
    if ta is Optional:
        if tb is not Optional or a.has != b.has:
            return False
        return not a.has or equal(a.value, b.value, meter)
    return ta is tb and bool(a == b)


def comparison_work(value: Value) -> int:
    """Return the work of comparing a text with one that may be equal, as a value or as a key."""
    return len(value) >> _COMPARED if type(value) is str or type(value) is bytes else 0


def not_equal(a: Value, b: Value, meter: Meter | None = None) -> bool:
    """Return ``a != b``: also true if the comparison fails."""
    try:
        return not equal(a, b, meter)
    except CelPanic:
        raise
    except CelRuntimeError:
        return True


def _strict_equal(a: Value, b: Value, ta: type, tb: type) -> bool:
    if ta is Format:
        if tb is not Format:
            raise no_such_overload()
        return bool(a.name == b.name)
    if tb is not (Quantity if ta is SumQuantity else ta):
        raise no_such_overload()
    return bool(a == b)


def _not_unequal(a: Value, b: Value, meter: Meter | None) -> bool:
    # Inside a list cel-go takes a failed comparison for equality.
    try:
        return equal(a, b, meter)
    except CelPanic:
        raise
    except CelRuntimeError:
        return True


def _equal_maps(a: dict[Value, Value], b: dict[Value, Value], meter: Meter | None) -> bool:
    if len(a) != len(b):
        return False
    if meter is not None:
        meter.spend(2 + 2 * len(a) + sum(map(comparison_work, a)))
    return all(key in b and _not_unequal(value, b[key], meter) for key, value in a.items())


# --- order --------------------------------------------------------------------------------------------------

_ORDERED = frozenset({str, bytes, bool})


def compare(a: Value, b: Value) -> int:
    """Return -1, 0 or 1.

    Raises:
        CelRuntimeError: the types have no common order, or one value is NaN.
    """
    ta, tb = type(a), type(b)
    if ta in _NUMBERS and tb in _NUMBERS:
        result = compare_numbers(a, b)
        if result is None:
            raise CelRuntimeError("NaN values cannot be ordered")
        return result
    if ta is tb:
        if ta in _ORDERED:
            return int(a > b) - int(a < b)
        if ta is Duration or ta is Timestamp:
            return int(a.ns > b.ns) - int(a.ns < b.ns)
    raise no_such_overload()


def compare_numbers(a: float, b: float) -> int | None:
    """Return -1, 0 or 1; None with a NaN. An int and a double are compared as doubles."""
    if isinstance(a, float) != isinstance(b, float):
        if isinstance(a, float):
            inverse = compare_numbers(b, a)
            return None if inverse is None else -inverse
        if math.isnan(b):
            return None
        least, most = (0, 2**64 - 1) if type(a) is UInt else (-(2**63), 2**63 - 1)
        if b > most:
            return -1
        if b < least:
            return 1
        a = float(a)
    if a == b:
        return 0
    if a < b:
        return -1
    return 1 if a > b else None


# --- maps ---------------------------------------------------------------------------------------------------


def key_of(value: Value) -> Value:
    """Return the value as the key of a map.

    Raises:
        CelRuntimeError: the type cannot be a key.
    """
    kind = type(value)
    if kind is str or kind is int or kind is UInt:
        return value
    if kind is bool:
        return BoolKey.TRUE if value else BoolKey.FALSE
    raise CelRuntimeError(f"unsupported key type: {type_name(value)}")


def plain_key(key: Value) -> Value:
    """Return the value of a map's key."""
    return key.value if type(key) is BoolKey else key


def map_get(container: dict[Value, Value], key: Value) -> tuple[bool, Value]:
    """Return whether the map has the key, and its value. Numbers match across their types."""
    kind = type(key)
    if kind is bool:
        key = BoolKey.TRUE if key else BoolKey.FALSE
    elif kind is float:
        if math.isnan(key) or not key.is_integer():
            return False, None
    elif kind is not str and kind not in _NUMBERS:
        return False, None
    if type(container) is DomainMap:
        return True, container[key]
    if key in container:
        return True, container[key]
    return False, None
