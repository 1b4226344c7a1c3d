"""``"…".format([…])``: clauses, at run time and in the check of literals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.library import standard as _standard
from dra_driver.cel.values import time as _time
from dra_driver.cel.values.meter import Meter, bytes_of
from dra_driver.cel.values.values import (
    Duration,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    plain_key,
    type_name,
)

__all__ = ["Clause", "clauses", "format_string"]

_CLAUSE = re.compile(r"%(?:(%)|(?:\.([0-9]+))?([a-zA-Z])|(.?))", re.ASCII | re.DOTALL)
_MAX_PRECISION = 100
# Work of a part of a text besides its characters, in bytes: the object, and the time to write it.
_PART = 64
# Work of finding a clause, in bytes.
_CLAUSE_WORK = 4


class Clause(NamedTuple):
    """A clause of a format string: the text before it, its letter (empty at the end) and precision."""

    text: str
    letter: str
    precision: int


def clauses(pattern: str) -> Iterator[Clause]:
    """Return the clauses of a format string.

    Raises:
        CelRuntimeError: a clause that does not exist.
    """
    text, at = "", 0
    for match in _CLAUSE.finditer(pattern):
        text += pattern[at : match.start()]
        at = match.end()
        if match[1]:
            text += "%"
            continue
        letter = match[3] or ""
        if letter not in ("s", "d", "f", "e", "b", "x", "X", "o") or not letter:
            raise CelRuntimeError(
                f'could not parse formatting clause: unrecognized formatting clause "{letter}"'
            )
        precision = int(match[2][:6]) if match[2] else 6
        if precision > _MAX_PRECISION:
            raise CelRuntimeError(f"precision of more than {_MAX_PRECISION} digits")
        yield Clause(text, letter, precision)
        text = ""
    yield Clause(text + pattern[at:], "", 6)


def format_string(meter: Meter, pattern: str, args: Value) -> str:
    """Return the pattern with its clauses replaced.

    Raises:
        CelRuntimeError: too few arguments, or one that its clause does not accept.
    """
    out: list[str] = []
    used = 0
    meter.spend(_CLAUSE_WORK * pattern.count("%"))
    for text, letter, precision in clauses(pattern):
        out.append(text)
        if letter:
            if used >= len(args):
                raise CelRuntimeError(f"index {used} out of range")
            out.append(_one(meter, letter, precision, args[used]))
            used += 1
    return _joined(meter, out, "")


def _joined(meter: Meter, parts: Sequence[str], separator: str) -> str:
    meter.make(sum(map(bytes_of, parts)) + _PART * len(parts), "string")
    return separator.join(parts)


def _wrong(clause: str, value: Value) -> CelRuntimeError:
    return CelRuntimeError(f"error during formatting: {clause} clause cannot be used on {type_name(value)}")


def _one(meter: Meter, letter: str, precision: int, value: Value) -> str:
    kind = type(value)
    if letter == "s":
        return _text(meter, value)
    if letter in "fe":
        if kind is str and value in _SPECIAL:
            value, kind = _SPECIAL[value], float
        if kind is not float:
            raise _wrong("fixed-point or scientific", value)
        return _fixed(value, precision) if letter == "f" else _scientific(value)
    if kind is int or kind is UInt:
        return format(int(value), letter)
    if letter == "b" and kind is bool:
        return "1" if value else "0"
    if letter in "xX" and kind in (str, bytes):
        # Twice as many digits as bytes; in upper case they are copied once more.
        meter.make(6 * bytes_of(value), "string")
        text: str = (value.encode() if kind is str else value).hex()
        return text.upper() if letter == "X" else text
    raise _wrong({"d": "decimal", "b": "binary", "o": "octal"}.get(letter, "hex"), value)


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "∞" if value > 0 else "-∞"


def _fixed(value: float, precision: int) -> str:
    # As cel-go's locale (en_US) writes numbers.
    return f"{value:,.{precision}f}" if math.isfinite(value) else _not_finite(value)


def _scientific(value: float) -> str:
    # cel-go takes the precision for a width: there are always six digits.
    if not math.isfinite(value):
        return _not_finite(value)
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    power = exponent.lstrip("+").translate(_SUPERSCRIPT)
    return f"{mantissa}\u202f×\u202f10{power}"


def _text(meter: Meter, value: Value) -> str:
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    if kind is int or kind is UInt:
        return str(int(value))
    if kind is float:
        return _standard.format_double(value)
    if kind is bytes:
        return str(_standard.FUNCTIONS["bytes_to_string"](value))
    if kind is Duration:
        return _time.format_duration(value)
    if kind is Timestamp:
        return _time.format_timestamp(value)
    if kind is TypeValue:
        return str(value.name)
    if kind is list or kind is tuple:
        return f"[{_joined(meter, [_nested(meter, v) for v in value], ', ')}]"
    if isinstance(value, dict):
        pairs = sorted((_nested(meter, plain_key(k)), _nested(meter, v)) for k, v in value.items())
        return "{" + _joined(meter, [f"{k}:{v}" for k, v in pairs], ", ") + "}"
    raise _wrong("string", value)


def _nested(meter: Meter, value: Value) -> str:
    """Return a value inside a list or a map, written like a literal."""
    kind = type(value)
    if kind is str:
        meter.make(2 * bytes_of(value), "string")
        return _quoted(value)
    if kind is bytes:
        meter.make(3 * bytes_of(value), "string")
        return f"b{_quoted(_text(meter, value))}"
    if kind is Duration:
        return f"duration({_quoted(_text(meter, value))})"
    if kind is Timestamp:
        return f"timestamp({_quoted(_text(meter, value))})"
    if kind is float:
        return f"{value:.6f}" if math.isfinite(value) else _quoted(_standard.format_double(value))
    return _text(meter, value)


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


def _quoted(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'
