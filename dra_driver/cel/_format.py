"""``"…".format([…])``: clauses, at run time and for the check of literals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from typing import NamedTuple

from dra_driver.cel import _standard, _time
from dra_driver.cel._values import Duration, Timestamp, TypeValue, UInt, Value, plain_key, type_name
from dra_driver.cel.errors import CelRuntimeError

__all__ = ["Clause", "clauses", "format_string"]

_CLAUSE = re.compile(r"%(?:(%)|(?:\.([0-9]+))?([a-zA-Z])|(.?))", re.ASCII | re.DOTALL)
_MAX_PRECISION = 100


class Clause(NamedTuple):
    """``text`` up to the clause, then its letter (empty at the end) and precision."""

    text: str
    letter: str
    precision: int


def clauses(pattern: str) -> Iterator[Clause]:
    """The parts of a format string.

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


def format_string(pattern: str, args: Value) -> str:
    """The pattern with its clauses replaced.

    Raises:
        CelRuntimeError: too few or many arguments, or one that its clause does not take.
    """
    out: list[str] = []
    used = 0
    for text, letter, precision in clauses(pattern):
        out.append(text)
        if letter:
            if used >= len(args):
                raise CelRuntimeError(f"index {used} out of range")
            out.append(_one(letter, precision, args[used]))
            used += 1
    if used < len(args):
        raise CelRuntimeError(
            f"too many arguments supplied to string.format (expected {used}, got {len(args)})"
        )
    return "".join(out)


def _wrong(clause: str, value: Value) -> CelRuntimeError:
    return CelRuntimeError(f"error during formatting: {clause} clause cannot be used on {type_name(value)}")


def _one(letter: str, precision: int, value: Value) -> str:
    kind = type(value)
    if letter == "s":
        return _text(value)
    if letter in "fe":
        if kind is float or kind is int or kind is UInt:
            return _fixed(float(value), letter, precision)
        raise _wrong("fixed-point or scientific", value)
    if kind is int or kind is UInt:
        if letter == "d":
            return str(int(value))
        return format(int(value), letter)
    if letter == "d" and kind is float and not math.isfinite(value):
        return _special(value)
    if letter == "b" and kind is bool:
        return "1" if value else "0"
    if letter in "xX" and kind in (str, bytes):
        text: str = (value.encode() if kind is str else value).hex()
        return text.upper() if letter == "X" else text
    raise _wrong({"d": "decimal", "b": "binary", "o": "octal"}.get(letter, "hex"), value)


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _fixed(value: float, letter: str, precision: int) -> str:
    if not math.isfinite(value):
        return _special(value)
    if letter == "f":
        return (
            str(Decimal(value).quantize(Decimal(1).scaleb(-precision), ROUND_HALF_EVEN))
            if abs(value) < 1e15
            else f"{value:.{precision}f}"
        )
    return f"{value:.{precision}e}"


def _text(value: Value) -> str:
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
        return _standard.format_double(value) if math.isfinite(value) else _special(value)
    if kind is bytes:
        return value.decode(errors="replace")  # type: ignore[no-any-return]
    if kind is Duration:
        return _time.format_duration(value)
    if kind is Timestamp:
        return _time.format_timestamp(value)
    if kind is TypeValue:
        return str(value.name)
    if kind is list or kind is tuple:
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        pairs = sorted((_text(plain_key(k)), _text(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    raise _wrong("string", value)
