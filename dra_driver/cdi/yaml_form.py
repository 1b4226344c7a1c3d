"""CDI documents in YAML. The directories belong to everybody, and YAML can say more than a document needs."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import yaml

from dra_driver.errors import DecodeError

__all__ = ["json_of_yaml"]

# A CDI document has ten levels.
_MOST_DEPTH: Final = 32
# Of YAML 1.1, to the base of 60 as well (1:30:00), which takes time that grows with the square of the digits.
_NUMBER: Final = re.compile(r"[-+]?[0-9][0-9_:.]*")
_MOST_DIGITS: Final = 64
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPENING: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def json_of_yaml(data: bytes) -> bytes:
    """Return the same document in JSON.

    Aliases are refused: a few hundred bytes of them stand for gigabytes. So are tags, by which a document
    says that its text is of another type than it looks like.

    Raises:
        DecodeError: it is not YAML, or none that a document needs.
    """
    try:
        _check(data)
        return msgspec.json.encode(yaml.load(data, Loader=_Loader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ArithmeticError, RecursionError, TypeError, ValueError) as e:
        raise DecodeError(f"not YAML that can be a document: {str(e)[:300]}") from e


def _check(data: bytes) -> None:
    """Goes over the text once, without building anything."""
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise DecodeError(f"{_place(event)}: aliases are not read")
        if getattr(event, "tag", None) is not None:
            raise DecodeError(f"{_place(event)}: tags are not read")
        if isinstance(event, yaml.ScalarEvent) and _is_long_number(event):
            raise DecodeError(f"{_place(event)}: a number of more than {_MOST_DIGITS} characters")
        depth += isinstance(event, _OPENING)
        depth -= isinstance(event, _CLOSING)
        if depth > _MOST_DEPTH:
            raise DecodeError(f"{_place(event)}: more than {_MOST_DEPTH} levels")


def _is_long_number(event: yaml.ScalarEvent) -> bool:
    plain = event.style in (None, "")
    return plain and len(event.value) > _MOST_DIGITS and bool(_NUMBER.fullmatch(event.value))


def _place(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark is not None else "somewhere"
