"""The string library (version 2) and regular expressions."""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.cel.errors import CelRuntimeError, no_such_overload
from dra_driver.cel.library import format as _format
from dra_driver.cel.values import regex as _regex
from dra_driver.cel.values.meter import Meter, bytes_of
from dra_driver.cel.values.values import Value

__all__ = ["FUNCTIONS", "METERED"]

# Memory of a string in a list besides its characters, in bytes.
_STRING = 64
# Pairs of characters that a unit of work compares in a search from the right, which compares all at worst.
_PAIRS_PER_UNIT = 512

_UPPER = {c: c - 32 for c in range(97, 123)}
_LOWER = {c: c + 32 for c in range(65, 91)}
# Go's unicode.IsSpace; unlike Python's, without the separators U+001C to U+001F.
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


def _out_of_range(index: int) -> CelRuntimeError:
    return CelRuntimeError(f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def _index_of(text: str, sub: str, offset: int = 0) -> int:
    if not sub:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(sub, offset) if offset < len(text) else -1


def _last_index_of(meter: Meter, text: str, sub: str, offset: int | None = None) -> int:
    if not sub:
        return len(text) if offset is None else offset
    meter.spend(max(len(text) - len(sub), 0) * len(sub) // _PAIRS_PER_UNIT)
    if offset is None:
        return text.rfind(sub)
    if offset < 0:
        raise _out_of_range(offset)
    return text.rfind(sub, 0, offset + len(sub)) if offset < len(text) else -1


def _join(meter: Meter, parts: Value, separator: str = "") -> str:
    if any(type(p) is not str for p in parts):
        raise no_such_overload()
    meter.make(sum(map(bytes_of, parts)) + bytes_of(separator) * len(parts), "string")
    return separator.join(parts)


def _replace(meter: Meter, text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old)
    if limit >= 0:
        count = min(count, limit)
    meter.make(bytes_of(text) + count * bytes_of(new), "string")
    return text.replace(old, new, max(limit, -1))


def _split(meter: Meter, text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    count = text.count(separator) + 1
    meter.make(bytes_of(text) + _STRING * (count if limit < 0 else min(count, limit)), "list")
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
        if not 0 <= start <= end:
            raise _out_of_range(start)
    if start > end:
        raise CelRuntimeError(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if not 0 <= end <= len(text):
        raise _out_of_range(end)
    return text[start:end]


_QUOTED = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "contains_string": lambda a, b: b in a,
    "starts_with_string": str.startswith,
    "ends_with_string": str.endswith,
    "string_char_at_int": _char_at,
    "string_index_of_string": _index_of,
    "string_index_of_string_int": _index_of,
    "string_lower_ascii": lambda a: a.translate(_LOWER),
    "string_upper_ascii": lambda a: a.translate(_UPPER),
    "string_substring_int": _substring,
    "string_substring_int_int": _substring,
    "string_trim": lambda a: a.strip(_SPACE),
    "strings_quote": _quote,
}
METERED: dict[str, Callable[..., Value]] = {
    "string_last_index_of_string": _last_index_of,
    "string_last_index_of_string_int": _last_index_of,
    "list_join": _join,
    "list_join_string": _join,
    "string_replace_string_string": _replace,
    "string_replace_string_string_int": _replace,
    "string_split_string": _split,
    "string_split_string_int": _split,
    "string_format": _format.format_string,
    **_regex.METERED,
}
