"""Functions of lists, sets, maps and optionals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cmp_to_key

from dra_driver.cel.errors import CelPanic, CelRuntimeError, no_such_overload
from dra_driver.cel.library.standard import FUNCTIONS as STANDARD
from dra_driver.cel.values.meter import Meter
from dra_driver.cel.values.values import (
    NONE,
    Duration,
    Optional,
    Timestamp,
    UInt,
    Value,
    compare,
    comparison_work,
    equal,
    key_of,
    shown,
)

__all__ = ["FUNCTIONS", "METERED", "contains"]

_List = Sequence[Value]
# Work of a number of a range, in bytes: no more than its cost, although it takes 40 with its slot.
_NUMBER = 16


def contains(items: _List, value: Value, meter: Meter | None = None) -> bool:
    """Return whether an item equals the value; a comparison that fails counts as unequal."""
    for item in items:
        try:
            if equal(value, item, meter):
                return True
        except CelPanic:
            raise
        except CelRuntimeError:
            continue
    return False


# --- lists --------------------------------------------------------------------------------------------------


def _distinct(meter: Meter, items: _List) -> list[Value]:
    found: list[Value] = []
    seen: set[Value] = set()
    for item in items:
        if type(item) is str:
            if item not in seen:
                seen.add(item)
                found.append(item)
        elif not contains(found, item, meter):
            found.append(item)
    return found


def _flatten(meter: Meter, items: _List, depth: int = 1) -> list[Value]:
    if depth < 0:
        raise CelRuntimeError("level must be non-negative")
    flat: list[Value] = []
    _flatten_into(meter, flat, items, depth)
    return flat


def _flatten_into(meter: Meter, flat: list[Value], items: _List, depth: int) -> None:
    meter.spend(1 + len(items))
    for item in items:
        if type(item) in (list, tuple) and depth > 0:
            _flatten_into(meter, flat, item, depth - 1)
        else:
            flat.append(item)


def _range(meter: Meter, count: int) -> list[int]:
    meter.make(_NUMBER * max(count, 0), "list")
    return list(range(count))


def _slice(items: _List, start: int, end: int) -> _List:
    if start < 0 or end < 0:
        raise CelRuntimeError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelRuntimeError(
            f"cannot slice({start}, {end}), start index must be less than or equal to end index"
        )
    if end > len(items):
        raise CelRuntimeError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


def _sort_by_keys(meter: Meter, items: _List, keys: _List) -> list[Value]:
    if len(items) != len(keys):
        raise CelRuntimeError(
            f"@sortByAssociatedKeys() expected a list of the same size: {len(items)}, {len(keys)}"
        )
    _check_sortable(keys)
    # A sort compares each of the n keys some log2(n) times, on either side.
    meter.spend(2 * len(keys).bit_length() * sum(map(comparison_work, keys)))

    def by_key(i: int, j: int) -> int:
        return compare(keys[i], keys[j])

    return [items[i] for i in sorted(range(len(items)), key=cmp_to_key(by_key))]


def _check_sortable(keys: _List) -> None:
    if not keys:
        return
    first = type(keys[0])
    if first not in (bool, int, UInt, float, str, bytes, Duration, Timestamp):
        raise CelRuntimeError("list elements must be comparable")
    if any(type(k) is not first for k in keys):
        raise CelRuntimeError("list elements must have the same type")


def _is_sorted(items: _List) -> bool:
    return all(compare(a, b) <= 0 for a, b in itertools.pairwise(items))


def _extreme(name: str, sign: int) -> Callable[[_List], Value]:
    def extreme(items: _List) -> Value:
        if not items:
            raise CelRuntimeError(f"{name} called on empty list")
        best = items[0]
        for item in items[1:]:
            if compare(item, best) * sign > 0:
                best = item
        return best

    return extreme


def _sum(start: Value, add: Callable[..., Value]) -> Callable[[_List], Value]:
    def total(items: _List) -> Value:
        result = start
        for item in items:
            if type(item) is not type(result):
                raise no_such_overload()
            result = add(result, item)
        return result

    return total


def _index_of(meter: Meter, items: _List, value: Value) -> int:
    return next((i for i, item in enumerate(items) if contains([item], value, meter)), -1)


def _last_index_of(meter: Meter, items: _List, value: Value) -> int:
    return next((i for i in range(len(items) - 1, -1, -1) if contains([items[i]], value, meter)), -1)


def _first(items: _List) -> Optional:
    return Optional(True, items[0]) if items else NONE


def _last(items: _List) -> Optional:
    return Optional(True, items[-1]) if items else NONE


# --- sets ---------------------------------------------------------------------------------------------------


def _set_contains(meter: Meter, items: _List, others: _List) -> bool:
    return all(contains(items, o, meter) for o in others)


def _set_equivalent(meter: Meter, items: _List, others: _List) -> bool:
    return _set_contains(meter, items, others) and _set_contains(meter, others, items)


def _set_intersects(meter: Meter, items: _List, others: _List) -> bool:
    return any(contains(items, o, meter) for o in others)


# --- maps ---------------------------------------------------------------------------------------------------


def _insert(container: dict[Value, Value], key: Value, value: Value) -> dict[Value, Value]:
    encoded = key_of(key)
    if encoded in container:
        raise CelRuntimeError(f"insert failed: key {shown(key)} already exists")
    return {**container, encoded: value}


def _merge(container: dict[Value, Value], other: dict[Value, Value]) -> dict[Value, Value]:
    for key in other:
        if key in container:
            raise CelRuntimeError(f"insert failed: key {shown(key)} already exists")
    return {**container, **other}


# --- optionals ----------------------------------------------------------------------------------------------


def _value(optional: Optional) -> Value:
    if not optional.has:
        raise CelRuntimeError("optional.none() dereference")
    return optional.value


def _of_non_zero(value: Value) -> Optional:
    zero = (
        value is None
        or value is False
        or (isinstance(value, int | float | str | bytes | list | tuple | dict) and not value)
        or (isinstance(value, Duration) and value.ns == 0)
        or (isinstance(value, Optional) and not value.has)
    )
    return NONE if zero else Optional(True, value)


def _unwrap(items: _List) -> list[Value]:
    found: list[Value] = []
    for item in items:
        if type(item) is not Optional:
            raise CelRuntimeError(f"{shown(item)} is not optional")
        if item.has:
            found.append(item.value)
    return found


_ORDERED = ("int", "uint", "double", "bool", "string", "bytes")

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "list_reverse": lambda a: a[::-1],
    "list_slice": _slice,
    "list_first": _first,
    "list_last": _last,
    **{f"list_{t}_is_sorted_bool": _is_sorted for t in (*_ORDERED, "duration", "timestamp")},
    **{f"list_{t}_min_{t}": _extreme("min", -1) for t in (*_ORDERED, "duration", "timestamp")},
    **{f"list_{t}_max_{t}": _extreme("max", 1) for t in (*_ORDERED, "duration", "timestamp")},
    "list_int_sum_int": _sum(0, STANDARD["add_int64"]),
    "list_uint_sum_uint": _sum(UInt(0), STANDARD["add_uint64"]),
    "list_double_sum_double": _sum(0.0, STANDARD["add_double"]),
    "list_duration_sum_duration": _sum(Duration(0), STANDARD["add_duration_duration"]),
    "@mapInsert_map_key_value": _insert,
    "@mapInsert_map_map": _merge,
    "optional_none": lambda: NONE,
    "optional_of": lambda a: Optional(True, a),
    "optional_ofNonZeroValue": _of_non_zero,
    "optional_value": _value,
    "optional_hasValue": lambda a: a.has,
    "optional_unwrap": _unwrap,
    "optional_unwrapOpt": _unwrap,
}
METERED: dict[str, Callable[..., Value]] = {
    **{
        f"list_{t}_sort": lambda meter, a: _sort_by_keys(meter, a, a)
        for t in (*_ORDERED, "google.protobuf.Duration", "google.protobuf.Timestamp")
    },
    **{
        f"list_{t}_sortByAssociatedKeys": _sort_by_keys
        for t in (*_ORDERED, "google.protobuf.Duration", "google.protobuf.Timestamp")
    },
    "list_distinct": _distinct,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_a_index_of_int": _index_of,
    "list_a_last_index_of_int": _last_index_of,
    "list_sets_contains_list": _set_contains,
    "list_sets_equivalent_list": _set_equivalent,
    "list_sets_intersects_list": _set_intersects,
}
