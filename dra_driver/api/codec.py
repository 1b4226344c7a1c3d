"""JSON in and out of the wire structs.

``decode`` ignores unknown fields (objects from an API server that may be newer than we are), and notes those
that may change what an allocation means (``newer``);
``decode_strict`` names every one of them (objects that people write).
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, Union

import msgspec

from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.newer import without_unknown
from dra_driver.api.nulls import without_nulls
from dra_driver.api.quantity import Quantity
from dra_driver.errors import DecodeError, InvalidQuantity

__all__ = [
    "build",
    "convert",
    "decode",
    "decode_kept",
    "decode_strict",
    "encode",
    "from_json",
    "plain",
    "to_raw",
    "unknown_fields",
]

_T = TypeVar("_T")
_O = TypeVar("_O", bound=WireObject)

# An API server stores nothing that is nested more deeply (Go's encoding/json).
_DEEPEST: Final = 10_000


def _dec_hook(kind: type, value: object) -> object:
    if kind is Quantity:
        if isinstance(value, str):
            try:
                return Quantity.parse(value)
            except InvalidQuantity as e:
                raise ValueError(str(e)) from e
        if isinstance(value, int | float) and not isinstance(value, bool):
            # repr gives the digits that were written: 0.5 is exactly 500m.
            return Quantity.parse(repr(value))
        raise ValueError(f"expected a quantity such as 32Gi, got {value!r}")
    raise NotImplementedError(f"no decoding for {kind}")


def _enc_hook(value: object) -> object:
    if isinstance(value, Quantity):
        return str(value)
    raise NotImplementedError(f"no encoding for {type(value)}")


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=_dec_hook)
    return decoder


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


def build(*kinds: type) -> None:
    """Build the decoders of kinds that threads decode later; to be called where only one thread can.

    msgspec fills in what it knows of a class meanwhile. Another decoder that a second thread builds of the
    same class sees it half done, and crashes the process.
    """
    for kind in kinds:
        _decoder(kind)


def from_json(decoder: msgspec.json.Decoder[_T], data: bytes | bytearray | str | msgspec.Raw) -> _T:
    """Decode JSON however deeply it is nested; null says the same as leaving the value out.

    Users nest opaque parameters as they like, and in Python 3.11 the interpreter's limit counts the calls on
    the stack as well: what is decoded in one place would fail in another, a list of all objects because of
    one.

    Raises:
        msgspec.DecodeError: not JSON, a field has the wrong type, or there are more than 10,000 levels.
    """
    try:
        return _decoded(decoder, data)
    except RecursionError:
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(limit + _DEEPEST)
            return _decoded(decoder, data)
        except RecursionError as e:
            raise msgspec.DecodeError("it is nested too deeply") from e
        finally:
            sys.setrecursionlimit(limit)


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes | bytearray | str | msgspec.Raw) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        text = data.encode() if isinstance(data, str) else bytes(data)
        known = without_unknown(decoder.type, without_nulls(decoder.type, text))
        if known is text:
            raise
    return decoder.decode(known)


def decode(kind: type[_T], data: bytes | str | msgspec.Raw) -> _T:
    """Decode JSON into ``kind``; unknown fields are ignored.

    Raises:
        DecodeError: not JSON, or a field has the wrong type (the text names its path).
    """
    try:
        return from_json(_decoder(kind), data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise DecodeError(f"{kind.__name__}: {e}") from e


def decode_kept(resource: Resource[_O], data: bytes | str | msgspec.Raw) -> _O:
    """Decode an object that is listed or watched, and return what is kept of it (``Resource.keep``).

    Raises:
        DecodeError: as ``decode`` does.
    """
    item = decode(resource.type, data)
    return item if resource.keep is None else resource.keep(item)


def convert(kind: type[_T], raw: object) -> _T:
    """Decode as ``decode`` does, from a value that is parsed already (a dict from YAML or from a watch).

    Raises:
        DecodeError: a field has the wrong type, or the value is not plain data.
    """
    # By way of JSON, because msgspec.convert cannot fill msgspec.Raw fields.
    try:
        data = msgspec.json.encode(raw, enc_hook=_enc_hook)
    except (TypeError, msgspec.MsgspecError) as e:
        raise DecodeError(f"{kind.__name__}: not plain data: {e}") from e
    return decode(kind, data)


def decode_strict(kind: type[_T], data: bytes | str) -> _T:
    """Decode as ``decode`` does, and refuse unknown fields, all of them at once.

    Raises:
        DecodeError: not JSON, a wrong type, or unknown fields (the text lists their paths).
    """
    value = decode(kind, data)
    unknown = sorted(unknown_fields(kind, msgspec.json.decode(data)))
    if unknown:
        raise DecodeError(f"{kind.__name__}: unknown field{'s' * (len(unknown) > 1)} {', '.join(unknown)}")
    return value


def encode(value: object) -> bytes:
    """Return the JSON of a struct or of plain data with structs; ``to_raw`` adds kind and apiVersion."""
    return _encoder.encode(value)


def plain(value: object) -> Any:
    """Return a struct, or data with structs, as plain data."""
    return msgspec.json.decode(_encoder.encode(value))


def to_raw(resource: Resource[Any], value: WireObject) -> dict[str, Any]:
    """Return the object as plain data with ``apiVersion`` and ``kind``, ready to be sent."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **plain(value)}


# Every object may carry these, whether or not its struct names them.
_ALWAYS_KNOWN = frozenset({"apiVersion", "kind"})
_META_KNOWN = frozenset({"managedFields", "selfLink", "deletionGracePeriodSeconds"})


def unknown_fields(kind: Any, raw: object, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of ``raw`` that ``kind`` does not have, such as ``spec.devices.foo``."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        for option in typing.get_args(kind):
            if option is not type(None):
                yield from unknown_fields(option, raw, path)
    elif origin is tuple and isinstance(raw, list):
        for i, item in enumerate(raw):
            yield from unknown_fields(typing.get_args(kind)[0], item, f"{path}[{i}]")
    elif origin is not None and isinstance(raw, Mapping) and issubclass(origin, Mapping):
        for key, item in raw.items():
            yield from unknown_fields(typing.get_args(kind)[1], item, f"{path}[{key}]")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(raw, Mapping):
        fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
        extra: frozenset[str] = frozenset()
        if issubclass(kind, WireObject):
            extra = _ALWAYS_KNOWN
        elif kind.__name__ == "ObjectMeta":
            extra = _META_KNOWN
        for key, item in raw.items():
            where = f"{path}.{key}" if path else str(key)
            if key in fields:
                yield from unknown_fields(fields[key], item, where)
            elif key not in extra:
                yield where
