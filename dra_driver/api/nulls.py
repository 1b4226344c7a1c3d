"""``null`` in JSON that is read: it says the same as leaving the value out (the rule of Kubernetes' JSON).

msgspec refuses ``null`` wherever a field's type does not allow it, and Go writes it for an empty list of a
field without ``omitempty``. What is refused is decoded once more without its nulls, so the usual object costs
nothing.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping, Set
from typing import Annotated, Any, Final, Union

import msgspec

__all__ = ["bare_type", "elements_of", "inner_type", "is_map", "members_of", "without_nulls"]

_NULL: Final = b"null"
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])


def without_nulls(kind: Any, data: bytes) -> bytes:
    """Return JSON without the members and elements that are null where ``kind`` allows no null.

    What is left out: members of a struct (also those whose type allows null, unless they are required),
    members of a map, elements of a list. Values that are kept as they were written (``msgspec.Raw``) and
    fields that the struct does not have stay the same, byte by byte.

    Args:
        kind: what the JSON is decoded into.
        data: JSON.

    Raises:
        msgspec.DecodeError: not JSON, as far as it is looked at.
        RecursionError: it is nested too deeply.
    """
    if _NULL not in data:
        return data
    kind, _ = bare_type(kind)
    start = data.lstrip()[:1]
    inner = inner_type(kind)
    if start == b"{" and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = _fields(kind)
        return _object((name, raw, *fields.get(name, (Any, False))) for name, raw in members_of(data))
    if start == b"{" and inner is not None and is_map(kind):
        _, drop = bare_type(inner)
        return _object((name, raw, inner, drop) for name, raw in members_of(data))
    if start == b"[" and inner is not None and not is_map(kind):
        _, drop = bare_type(inner)
        kept = [raw for raw in elements_of(data) if not (drop and raw == _NULL)]
        return b"[%s]" % b",".join(without_nulls(inner, raw) for raw in kept)
    return data


def members_of(data: bytes) -> typing.Iterable[tuple[str, bytes]]:
    """Iterate over the members of an object in JSON, each with its value as it was written."""
    return ((name, bytes(raw)) for name, raw in _members.decode(data).items())


def elements_of(data: bytes) -> typing.Iterable[bytes]:
    """Iterate over the elements of a list in JSON, as they were written."""
    return (bytes(raw) for raw in _elements.decode(data))


def _object(members: typing.Iterable[tuple[str, bytes, Any, bool]]) -> bytes:
    """Return the JSON of (name, value, its type, whether null is left out)."""
    return b"{%s}" % b",".join(
        b"%s:%s" % (msgspec.json.encode(name), without_nulls(kind, raw))
        for name, raw, kind, drop in members
        if not (drop and raw == _NULL)
    )


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field by its name on the wire, and whether null is left out there."""
    found = {}
    for field in msgspec.structs.fields(kind):
        _, drop = bare_type(field.type)
        found[field.encode_name] = (
            field.type,
            drop or (not field.required and field.type is not msgspec.Raw),
        )
    return found


@functools.cache
def bare_type(kind: Any) -> tuple[Any, bool]:
    """Return a type without its annotations and ``| None``, and whether it refuses null."""
    if typing.get_origin(kind) is Annotated:
        return bare_type(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        refuses = len(options) == len(typing.get_args(kind)) and all(
            bare_type(option)[1] for option in options
        )
        return (bare_type(options[0])[0] if len(options) == 1 else Any), refuses
    return kind, kind not in (Any, object, None, type(None), msgspec.Raw)


def is_map(kind: Any) -> bool:
    """Return whether a type of which ``inner_type`` is known is a map."""
    return issubclass(typing.get_origin(kind), Mapping)


@functools.cache
def inner_type(kind: Any) -> Any:
    """Return the type of a map's values or of a list's elements; None for everything else."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if not isinstance(origin, type):
        return None
    if issubclass(origin, Mapping):
        return arguments[1]
    if issubclass(origin, tuple):
        return arguments[0] if len(arguments) == 2 and arguments[1] is Ellipsis else None
    return arguments[0] if issubclass(origin, (list, Set)) and arguments else None
