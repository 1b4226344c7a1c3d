"""Kinds of opaque parameters that backends bring: declared as a struct, read strictly.

The project's own kinds are in ``parameters``. A kind of a backend is a subclass of ``BackendParameters``; its
fields, their types and bounds say what is allowed, and the rest is refused with the path of each finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from dra_driver.api import codec
from dra_driver.api.nulls import without_nulls
from dra_driver.api.own.opaque import read_object, shown_name
from dra_driver.errors import ConfigurationError, InvalidParameters

__all__ = [
    "BackendParameters",
    "OtherParameters",
    "decode_kind",
    "is_of_others",
    "kinds_by_name",
]

_P = TypeVar("_P", bound="BackendParameters")

_API_VERSION: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/v[a-z0-9]{1,62}")
_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_OURS: Final = ("dra-driver.dev/", "resource.nvidia.com/")
_MAX_FINDINGS: Final = 32
_FINDING: Final = 300
_IDENTITY: Final = ("apiVersion", "kind")


class BackendParameters(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """A kind of opaque parameters of a backend; a subclass, which is ``frozen`` too, has the fields.

    Fields have types that msgspec knows, with bounds (``Annotated[int, msgspec.Meta(ge=1, le=100)]``), and
    their names on the wire are in camel case. What depends on several fields is checked in ``__post_init__``,
    which raises ``ValueError``; it must not block.

    Attributes:
        API_VERSION: group and version, ``acme.example/v1``; of a group that is the backend's own.
        KIND: the name of the class where it is empty.
    """

    API_VERSION: ClassVar[str] = ""
    KIND: ClassVar[str] = ""

    @classmethod
    def identity(cls) -> tuple[str, str]:
        """Return ``apiVersion`` and ``kind``."""
        return cls.API_VERSION, cls.KIND or cls.__name__


@dataclass(frozen=True, slots=True)
class OtherParameters:
    """Parameters of a kind that a backend brings, as they were written.

    Attributes:
        kind: for messages.
        backend: name of the backend that reads them.
        data: JSON.
    """

    kind: str
    backend: str
    data: bytes


def kinds_by_name(kinds: Iterable[object]) -> dict[tuple[str, str], type[BackendParameters]]:
    """Return kinds by ``apiVersion`` and ``kind``.

    Raises:
        ConfigurationError: one is none, has no name of its own, or two have one name.
    """
    found: dict[tuple[str, str], type[BackendParameters]] = {}
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BackendParameters)):
            raise ConfigurationError(f"{kind!r}: expected a subclass of the SDK's Parameters")
        version, name = identity = kind.identity()
        if not _API_VERSION.fullmatch(version) or version.startswith(_OURS):
            raise ConfigurationError(
                f"{kind.__name__}: API_VERSION {version!r}: expected GROUP/VERSION of a group of your own, "
                "such as acme.example/v1"
            )
        if not _KIND.fullmatch(name):
            raise ConfigurationError(f"{kind.__name__}: KIND {name!r}: expected a name in CamelCase")
        if found.setdefault(identity, kind) is not kind:
            raise ConfigurationError(f"{version} {name}: two classes stand for this kind")
        try:
            # Parameters are decoded in threads.
            codec.build(kind)
        except Exception as e:  # annotations are a third party's
            raise ConfigurationError(f"{version} {name}: cannot be decoded: {type(e).__name__}: {e}") from e
    return found


def is_of_others(identity: tuple[str, str] | None) -> bool:
    """Return whether a kind is of a group that is not this project's own, nor one that it understands."""
    return identity is not None and not identity[0].startswith(_OURS)


def decode_kind(kind: type[_P], data: bytes | msgspec.Raw) -> _P:
    """Read parameters of a kind; their ``apiVersion`` and ``kind`` are known to be right.

    Raises:
        InvalidParameters: every finding, with the path of its field.
    """
    read_object(data)  # which bounds it
    try:
        value = read_object(without_nulls(kind, bytes(data)))
    except RecursionError as e:
        raise InvalidParameters(f"not JSON: {e}") from e
    name = kind.identity()[1]
    fields = {key: v for key, v in value.items() if key not in _IDENTITY}
    findings = _findings(kind, fields)
    if findings:
        raise InvalidParameters([f"{name}: {finding}"[:_FINDING] for finding in findings[:_MAX_FINDINGS]])
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as e:
        raise InvalidParameters(f"{name}: {_message(e, '')}"[:_FINDING]) from e
    except Exception as e:
        # A check of the backend's own that does not hold its contract.
        raise InvalidParameters(f"{name}: cannot be checked: {type(e).__name__}: {e}"[:_FINDING]) from e


def _findings(kind: type[BackendParameters], fields: Mapping[str, Any]) -> list[str]:
    known = {f.encode_name: f for f in msgspec.structs.fields(kind)}
    findings = [f"{shown_name(name)}: unknown field" for name in fields if name not in known]
    for name, field in known.items():
        if name not in fields:
            if field.required:
                findings.append(f"{name}: is missing")
            continue
        try:
            msgspec.convert(fields[name], field.type)
        except msgspec.ValidationError as e:
            findings.append(_message(e, name))
        except Exception as e:
            findings.append(f"{name}: cannot be checked: {type(e).__name__}: {e}")
    return findings


def _message(error: msgspec.ValidationError, field: str) -> str:
    """Return a finding of msgspec in the form that ours have: path, then what is wrong."""
    text, _, place = str(error).partition(" - at `")
    path = field + place.removeprefix("$").removesuffix("`")
    text = text.replace("`", "")
    return f"{path.removeprefix('.')}: {text[:1].lower()}{text[1:]}" if path else text
