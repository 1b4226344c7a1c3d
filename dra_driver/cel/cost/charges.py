"""Costs of calls by the values of their arguments, and constant work of calls."""

from __future__ import annotations

import math
from collections.abc import Callable

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.cost.estimation import LIST_COST, PER_CHARACTER, PER_REGEX_CHARACTER
from dra_driver.cel.syntax.ast import Call
from dra_driver.cel.values.meter import Meter
from dra_driver.cel.values.values import Cidr, DomainMap, Format, Ip, Url, Value

__all__ = ["COUNTING", "RULES", "WORK", "Rule", "Work", "add", "compare", "equal", "one", "surcharge"]

Rule = Callable[[list[Value]], int]
Work = Callable[[Meter, list[Value]], None]

# --- costs -----------------------------------------------------------------------------------------

_KUBERNETES = (Quantity, Version, Ip, Cidr, Url, Format)


_SIZED = frozenset((str, bytes, list, tuple, dict, DomainMap))


def _size(value: Value) -> int:
    return len(value) if type(value) in _SIZED else 1


def one(args: list[Value]) -> int:
    return 1


def _walk(factor: float) -> Rule:
    return lambda args: math.ceil(_size(args[0]) * factor)


def _regex_cost(args: list[Value]) -> int:
    length = math.ceil((1 + _size(args[0])) * PER_CHARACTER)
    return length * math.ceil(_size(args[1]) * PER_REGEX_CHARACTER)


def _contains(args: list[Value]) -> int:
    return math.ceil(_size(args[0]) * PER_CHARACTER) * math.ceil(_size(args[1]) * PER_CHARACTER)


def compare(args: list[Value]) -> int:
    return math.ceil(min(_size(args[0]), _size(args[1])) * PER_CHARACTER)


def equal(args: list[Value]) -> int:
    return 1 if isinstance(args[0], _KUBERNETES) else compare(args)


def add(args: list[Value]) -> int:
    if isinstance(args[0], str | bytes):
        return math.ceil((_size(args[0]) + _size(args[1])) * PER_CHARACTER)
    return 1


def _traversal(args: list[Value]) -> int:
    return _traversed(args[0], {})


def _traversed(value: Value, known: dict[int, int]) -> int:
    """Return the characters and elements of nested lists, each list once.

    Args:
        value: a value.
        known: sizes of lists met before, by identity.
    """
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
    # A negative depth is an error, not a way to get cost back.
    depth = max(args[1], 0) if len(args) == 2 else 1
    return int(_size(args[0]) * depth) + 1 + LIST_COST


def _sets(factor: int) -> Rule:
    return lambda args: _size(args[0]) * _size(args[1]) * factor + 1


RULES: dict[str, Rule] = {
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
    "_==_": equal,
    "_!=_": compare,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), compare),
    "_+_": add,
    "reverse": _new_list,
    "slice": _slice,
    "lists.range": _range,
    **dict.fromkeys(("distinct", "sort", "@sortByAssociatedKeys"), _self_compare),
    "flatten": _flatten,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}

# --- work ------------------------------------------------------------------------------------------

# Memory of a semantic version per character, in bytes: each of its parts is kept as a text and as a key.
_VERSION = 50


def _walk_lists(meter: Meter, args: list[Value]) -> None:
    """Charge the lists in a list: short texts in them cost nothing, but ``_traversal`` looks at each."""
    todo, known = [args[0]], set[int]()
    while todo:
        for item in todo.pop():
            if (type(item) is list or type(item) is tuple) and id(item) not in known:
                known.add(id(item))
                meter.spend(1 + len(item))
                todo.append(item)


def _walk_if_list(meter: Meter, args: list[Value]) -> None:
    if type(args[0]) is list or type(args[0]) is tuple:
        _walk_lists(meter, args)


def _parse_duration(meter: Meter, args: list[Value]) -> None:
    # One number and unit takes two characters at least, and a microsecond at most.
    if type(args[0]) is str:
        meter.spend(len(args[0]))


def _keep_version(meter: Meter, args: list[Value]) -> None:
    if type(args[0]) is str:
        meter.make(_VERSION * len(args[0]), "version")


WORK: dict[str, Work] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk_if_list),
    "duration": _parse_duration,
    "semver": _keep_version,
}
"""What calls work besides their cost and the size of their arguments, by the name of the function."""

# Counting a call whose cost depends on values takes as long as a cheap call itself.
COUNTING = 3
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
# An unknown name of a zone is searched for in the file system.
_ZONE = 250


def surcharge(e: Call) -> int:
    """Return the constant work of a call that takes longer than a unit of cost."""
    overload = e.overloads[0]
    if overload.endswith("_tz"):
        return _ZONE
    # If types are known at run time only, overloads are tried one after the other.
    late = 2 * (len(e.overloads) - 1)
    return late + _SURCHARGES.get(overload, _SURCHARGES.get(e.function, 0))
