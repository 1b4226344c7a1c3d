"""Opaque parameters before their kind is known: bytes that users have written, of bounded size."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dra_driver.errors import InvalidParameters

__all__ = ["MAX_BYTES", "identity_of", "read_object", "shown", "shown_name"]

# resource.k8s.io/v1 stores no more in one ``opaque.parameters``.
MAX_BYTES: Final = 10 * 1024

_SHOWN: Final = 60


def read_object(data: bytes | msgspec.Raw) -> dict[str, Any]:
    """Return the JSON object of parameters.

    Raises:
        InvalidParameters: there are more than ``MAX_BYTES`` bytes, or they are no JSON object.
    """
    raw = bytes(data)
    if len(raw) > MAX_BYTES:
        raise InvalidParameters(f"{len(raw)} bytes of parameters: at most {MAX_BYTES} are read")
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidParameters(f"not JSON: {e}") from e
    if not isinstance(value, dict):
        raise InvalidParameters(f"expected an object with apiVersion and kind, got {shown(value)}")
    return value


def identity_of(data: bytes | msgspec.Raw) -> tuple[str, str] | None:
    """Return ``apiVersion`` and ``kind`` of parameters; None where they cannot be read."""
    try:
        value = read_object(data)
    except InvalidParameters:
        return None
    version, kind = value.get("apiVersion"), value.get("kind")
    return (version, kind) if isinstance(version, str) and isinstance(kind, str) else None


def shown(value: object) -> str:
    """Return a value as messages show it, at most so long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def shown_name(name: str) -> str:
    """Return the name of a field as messages show it."""
    return name if name.isidentifier() and len(name) <= _SHOWN else shown(name)
