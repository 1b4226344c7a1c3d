"""Fields whose feature gate is off: dropped in what is written, except where a stored object has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from dra_driver.sim.apiserver.objects.fields import Field, ListType, MapType, Struct, Type
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = ["drop_disabled"]


def drop_disabled(type_: Type, new: Raw, old: Raw | None, on: Collection[str]) -> None:
    """Drop the fields of an object whose feature gate is off.

    What the stored object has of a gate is kept, and may be changed, as by the real server.

    Args:
        type_: the type of the object.
        new: the object, which is changed.
        old: the stored object; None if there is none.
        on: feature gates that are on.
    """
    found = [(holder, field) for holder, field in _gated(type_, new) if field.gate not in on]
    if found:
        used = set() if old is None else {field.gate for _, field in _gated(type_, old)}
        for holder, field in found:
            if field.gate not in used:
                del holder[field.name]


def _gated(type_: Type, value: Any) -> Iterator[tuple[Raw, Field]]:
    """Yield the fields with a gate that a value has, each with the object that holds it."""
    if isinstance(type_, ListType):
        for item in value or ():
            yield from _gated(type_.item, item)
    elif isinstance(type_, MapType):
        for item in (value or {}).values():
            yield from _gated(type_.item, item)
    elif isinstance(type_, Struct):
        for field in _ways(type_):
            if value and field.name in value:
                if field.gate:
                    yield value, field
                yield from _gated(field.type, value[field.name])


@lru_cache(maxsize=4096)
def _ways(struct: Struct) -> tuple[Field, ...]:
    """Return the fields of a struct that have a gate, or lead to one that has."""
    return tuple(f for f in struct.fields.values() if f.gate or _leads(f.type, set()))


def _leads(type_: Type, seen: set[Type]) -> bool:
    while isinstance(type_, ListType | MapType):
        type_ = type_.item
    if not isinstance(type_, Struct) or type_ in seen:
        return False
    seen.add(type_)  # types may refer to themselves
    return any(f.gate or _leads(f.type, seen) for f in type_.fields.values())
