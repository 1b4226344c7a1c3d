"""Cost rules of library functions, and the sizes of their results.

Source: the cost rules of Kubernetes' CEL libraries at 1.36, as recorded expressions show them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from dra_driver.cel.cost.sizes import (
    UNBOUNDED,
    UNKNOWN,
    Size,
    add,
    multiply,
    plus,
    product,
    scaled,
    size_of_path,
)
from dra_driver.cel.syntax.ast import Call, Expr, Literal

LIST_COST, MAP_COST, STRUCT_COST = 10, 30, 40
PER_CHARACTER, PER_REGEX_CHARACTER = 0.1, 0.25
INCLUDES_COST = 48
# The longest regular expression behind a named format, and the longest name of one.
_FORMAT_REGEX, _FORMAT_NAME = 128, 64


Found = tuple[int, Size | None]


class Estimator(Protocol):
    """What rules ask of the estimation that applies them."""

    def path(self, e: Expr) -> tuple[str, ...]:
        """Return where in the device a value is from; empty where it is not from there."""
        ...

    def size(self, e: Expr) -> Size | None:
        """Return the size of a value, as far as it is known."""
        ...

    def size_or_unknown(self, e: Expr) -> Size:
        """Return the size of a value."""
        ...

    def regex(self, text: Expr, pattern: Expr) -> int:
        """Return what matching costs."""
        ...


Rule = Callable[[Estimator, Call, str], Found | None]


def target_of(e: Call) -> Expr:
    return e.target if e.target is not None else e.args[0]


def _fixed(cost: int) -> Rule:
    return lambda estimator, e, overload: (cost, None)


def _parsing(factor: float) -> Rule:
    """Return the cost of one pass over the text that is the argument."""

    def rule(estimator: Estimator, e: Call, overload: str) -> Found | None:
        if not e.args:
            return 1, None
        return scaled(estimator.size_or_unknown(e.args[0]).most, factor), None

    return rule


def _walk_list(estimator: Estimator, e: Call, overload: str) -> Found | None:
    if e.target is None:
        return None
    size = estimator.size_or_unknown(e.target).most
    if not e.target.type.params:
        return scaled(size, PER_CHARACTER), None
    element = e.target.type.params[0]
    cost = 1
    if element.kind in ("string", "bytes"):
        cost = add(cost, scaled(_items_size(estimator, e.target).most, PER_CHARACTER))
    return multiply(size, cost), None


def _items_size(estimator: Estimator, e: Expr) -> Size:
    path = estimator.path(e)
    return (size_of_path((*path, "@items")) if path else None) or UNKNOWN


def _url(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(e.args[0])
    return scaled(size.most, PER_CHARACTER), size


def _same_size(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(target_of(e))
    return scaled(size.most, PER_CHARACTER), size


def _replace(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(target_of(e))
    old, new = estimator.size_or_unknown(e.args[0]), estimator.size_or_unknown(e.args[1])
    if old.least == 0:
        most = add(multiply(add(size.most, 1), new.most), size.most)
    elif new.most <= old.least:
        most = size.most
    else:
        most = multiply(math.ceil(size.most / old.least), new.most)
    if old.most == 0:
        least = add(multiply(add(size.least, 1), new.least), size.least)
    elif old.most <= new.least:
        least = size.least
    else:
        least = multiply(math.ceil(size.least / old.most), new.least)
    return scaled(size.most, 2 * PER_CHARACTER), Size(least, most)


def _split(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(target_of(e))
    most = size.most
    if len(e.args) > 1 and isinstance(e.args[1], Literal) and isinstance(e.args[1].value, int):
        most = e.args[1].value % 2**64
    return scaled(size.most, 2 * PER_CHARACTER), Size(0, most)


def _join(estimator: Estimator, e: Call, overload: str) -> Found | None:
    target = target_of(e)
    count = estimator.size_or_unknown(target)
    size = Size(0, 0)
    if target.type.params:
        size = product(count, _items_size(estimator, target))
    if e.args:
        separators = Size(max(count.least - 1, 0), max(count.most - 1, 0))
        size = plus(size, product(estimator.size_or_unknown(e.args[0]), separators))
    return scaled(size.most, PER_CHARACTER), size


def _find(estimator: Estimator, e: Call, overload: str) -> Found | None:
    target = target_of(e)
    return estimator.regex(target, e.args[0]), Size(0, estimator.size_or_unknown(target).most)


def _contains_address(estimator: Estimator, e: Call, overload: str) -> Found | None:
    cost = scaled(32, PER_CHARACTER)
    if e.function == "containsCIDR":
        cost += scaled(16, PER_CHARACTER) + 1
    if overload.endswith("_string"):
        cost = add(cost, scaled(estimator.size_or_unknown(e.args[0]).most, PER_CHARACTER))
    return cost, None


def _validate(estimator: Estimator, e: Call, overload: str) -> Found | None:
    walk = scaled(estimator.size_or_unknown(e.args[0]).most, PER_CHARACTER)
    return scaled(walk, _FORMAT_REGEX * PER_REGEX_CHARACTER), None


def _equal(estimator: Estimator, e: Call, overload: str) -> Found | None:
    left, right = e.args
    if left.type != right.type:
        return None
    match left.type.name:
        case "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver":
            return 1, None
        case "kubernetes.NamedFormat":
            return scaled(_FORMAT_NAME, PER_CHARACTER), None
        case "kubernetes.URL":
            size = estimator.size(right)
            return scaled(size.most if size is not None else 1, PER_CHARACTER), None
        case _:
            return None


def _new_list(cost_per_item: float, count: Size) -> Found:
    return add(scaled(count.most, cost_per_item), 1 + LIST_COST), count


def _number(e: Expr, default: int) -> int:
    if isinstance(e, Literal) and isinstance(e.value, int) and e.value >= 0:
        return e.value
    return default


def _slice(estimator: Estimator, e: Call, overload: str) -> Found | None:
    end = _number(e.args[1], estimator.size_or_unknown(target_of(e)).most)
    count = (end - _number(e.args[0], 0)) % 2**64
    return _new_list(1, Size(count, count))


def _range(estimator: Estimator, e: Call, overload: str) -> Found | None:
    count = _number(e.args[0], UNBOUNDED)
    return _new_list(1, Size(count, count))


def _reverse(estimator: Estimator, e: Call, overload: str) -> Found | None:
    return _new_list(1, estimator.size_or_unknown(target_of(e)))


def _flatten(estimator: Estimator, e: Call, overload: str) -> Found | None:
    depth = _number(e.args[0], UNBOUNDED) if e.args else 1
    return _new_list(depth, estimator.size_or_unknown(target_of(e)))


def _distinct(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(target_of(e))
    return _new_list(2, product(size, size))


def _sort(estimator: Estimator, e: Call, overload: str) -> Found | None:
    size = estimator.size_or_unknown(e.args[0] if e.args else target_of(e))
    is_text = overload.startswith(("list_string_", "list_bytes_"))
    return _new_list(2 + PER_CHARACTER if is_text else 2, product(size, size))


def _sets(factor: float) -> Rule:
    def rule(estimator: Estimator, e: Call, overload: str) -> Found | None:
        pairs = product(estimator.size_or_unknown(e.args[0]), estimator.size_or_unknown(e.args[1]))
        return add(scaled(pairs.most, factor), 1), None

    return rule


RULES: dict[str, Rule] = {
    "check": _fixed(350_000),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _walk_list),
    "url": _url,
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _same_size),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    **dict.fromkeys(
        ("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"),
        _parsing(PER_CHARACTER),
    ),
    "ip.isCanonical": _parsing(2 * PER_CHARACTER),
    "containsIP": _contains_address,
    "containsCIDR": _contains_address,
    "validate": _validate,
    "_==_": _equal,
    "includes": _fixed(INCLUDES_COST),
    "slice": _slice,
    "lists.range": _range,
    "reverse": _reverse,
    "flatten": _flatten,
    "distinct": _distinct,
    "sort": _sort,
    "@sortByAssociatedKeys": _sort,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}
