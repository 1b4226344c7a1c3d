r"""Kubernetes' protobuf form, read only: ``kubectl create`` sends it for built-in kinds.

An object is ``k8s\\0``, then a message ``Unknown`` {1: TypeMeta {1: apiVersion, 2: kind}, 2: raw}. The
numbers of the fields stand in the table of fields; times, quantities and raw JSON are messages of their own.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from dra_driver.sim.apiserver.objects.fields import AnyType, Field, ListType, MapType, Scalar, Struct, Type
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = ["decode_protobuf"]

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Numbers = dict[int, "Field | Numbers"]


def decode_protobuf(data: bytes, type_: Type) -> Raw:
    """Decode an object into the data that its JSON would have.

    Raises:
        StatusError: 400 if it is no such message.
    """
    if not data.startswith(_MAGIC) or not isinstance(type_, Struct):
        raise StatusError.bad_request("the body is no Kubernetes protobuf message")
    try:
        envelope = dict(_fields(data[len(_MAGIC) :]))
        meta = dict(_fields(envelope.get(1, b"")))
        out = _object(type_, envelope.get(2, b""))
    except (IndexError, ValueError, TypeError, struct.error, msgspec.MsgspecError) as e:
        raise StatusError.bad_request(f"the body is no valid protobuf message: {e}") from None
    for number, name in ((1, "apiVersion"), (2, "kind")):
        if meta.get(number):
            out[name] = meta[number].decode()
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: an int for varints, bytes for all other types."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not used")
        if at + size > len(data):
            raise ValueError("a field is longer than the message")
        yield number, data[at : at + size]
        at += size


def _numbers(type_: Struct) -> Numbers:
    """Return the fields by number; those of embedded messages are nested."""
    out: Numbers = {}
    for field in type_.fields.values():
        level = out
        *outer, last = field.number
        for number in outer:
            inner = level.setdefault(number, {})
            assert isinstance(inner, dict)
            level = inner
        level[last] = field
    return out


def _object(type_: Struct, data: bytes) -> Raw:
    out: Raw = {}
    _fill(out, _numbers(type_), data)
    return out


def _fill(out: Raw, numbers: Numbers, data: bytes) -> None:
    for number, value in _fields(data):
        target = numbers.get(number)
        if isinstance(target, dict):
            _fill(out, target, value)
        elif target is None:
            continue
        elif isinstance(target.type, ListType):
            out.setdefault(target.name, []).append(_value(target.type.item, value))
        elif isinstance(target.type, MapType):
            entry = dict(_fields(value))
            out.setdefault(target.name, {})[entry.get(1, b"").decode()] = _value(
                target.type.item, entry.get(2, b"")
            )
        else:
            decoded = _value(target.type, value)
            # Go writes zero values of fields that are no pointers; JSON would leave them out.
            if decoded or target.pointer or target.always:
                out[target.name] = decoded


def _value(type_: Type, value: Any) -> Any:
    if isinstance(type_, Struct):
        return _object(type_, value)
    if isinstance(type_, AnyType):
        inner = dict(_fields(value)).get(1, b"")
        return msgspec.json.decode(inner) if inner else None
    if isinstance(type_, ListType):
        return [_value(type_.item, v) for _, v in _fields(value)]
    assert isinstance(type_, Scalar)
    return _scalar(type_.name, value)


def _scalar(name: str, value: Any) -> Any:
    match name:
        case "bool":
            return bool(value)
        case "int32" | "int64":
            return value - 2**64 if value >= 2**63 else value
        case "float64":
            return struct.unpack("<d", value)[0]
        case "quantity":
            return dict(_fields(value)).get(1, b"0").decode()
        case "Time" | "MicroTime":
            parts = dict(_fields(value))
            moment = datetime.fromtimestamp(_scalar("int64", parts.get(1, 0)), UTC)
            if name == "Time":
                return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if parts.get(1, 0) else None
            micro = moment.replace(microsecond=parts.get(2, 0) // 1000)
            return micro.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case "IntOrString":
            parts = dict(_fields(value))
            return parts.get(3, b"").decode() if parts.get(1) else _scalar("int32", parts.get(2, 0))
        case "[]uint8":
            return base64.b64encode(value).decode()
        case _:
            return value.decode()
