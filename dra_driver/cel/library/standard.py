"""The standard functions: arithmetic, conversions, time. Arguments have their declared types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from dra_driver.cel.errors import CelRuntimeError, no_such_overload
from dra_driver.cel.values import time as _time
from dra_driver.cel.values.values import (
    Duration,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    compare,
    type_name,
)

__all__ = ["FUNCTIONS", "format_double"]

_MIN, _MAX, _UMAX = -(2**63), 2**63 - 1, 2**64 - 1


def _overflow(value: int) -> int:
    if _MIN <= value <= _MAX:
        return value
    raise CelRuntimeError("integer overflow")


def _unsigned(value: int) -> UInt:
    if 0 <= value <= _UMAX:
        return UInt(value)
    raise CelRuntimeError("unsigned integer overflow")


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise CelRuntimeError("division by zero")
    quotient = abs(a) // abs(b)
    return _overflow(quotient if (a < 0) == (b < 0) else -quotient)


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise CelRuntimeError("modulus by zero")
    if a == _MIN and b == -1:
        raise CelRuntimeError("integer overflow")
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


def _divide_unsigned(a: int, b: int) -> UInt:
    if b == 0:
        raise CelRuntimeError("division by zero")
    return UInt(int(a) // int(b))


def _modulo_unsigned(a: int, b: int) -> UInt:
    if b == 0:
        raise CelRuntimeError("modulus by zero")
    return UInt(int(a) % int(b))


def _divide_double(a: float, b: float) -> float:
    if b == 0:
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _multiply_double(a: float, b: float) -> float:
    return a * b


def format_double(value: float) -> str:
    """Return the number as Go's ``%g`` writes it, with as few digits as are needed."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    mantissa, _, exponent = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    point = len(whole) - leading + int(exponent or 0)
    digits = digits.rstrip("0")
    power = point - 1
    if power < -4 or power >= 6:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if power < 0 else '+'}{abs(power):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"


# --- conversions --------------------------------------------------------------------------------------------

_INT = re.compile(r"[+-]?[0-9]{1,64}", re.ASCII)
_UINT = re.compile(r"[0-9]{1,64}", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def _conversion(source: str, target: str) -> CelRuntimeError:
    return CelRuntimeError(f"type conversion error from '{source}' to '{target}'")


def _string_to_int(text: str) -> int:
    if not _INT.fullmatch(text) or not _MIN <= int(text) <= _MAX:
        raise _conversion("string", "int")
    return int(text)


def _string_to_uint(text: str) -> UInt:
    if not _UINT.fullmatch(text) or int(text) > _UMAX:
        raise _conversion("string", "uint")
    return UInt(text)


def _string_to_double(text: str) -> float:
    if len(text) > 1024 or not _DOUBLE.fullmatch(text):
        raise _conversion("string", "double")
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise _conversion("string", "double")
    return value


def _string_to_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise _conversion("string", "bool")
    return _BOOLS[text]


def _bytes_to_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("invalid UTF-8 in bytes, cannot convert to string") from None


def _double_to_int(value: float) -> int:
    if not -(2.0**63) < value < 2.0**63:
        raise CelRuntimeError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> UInt:
    if not 0 <= value < 2.0**64:
        raise CelRuntimeError("unsigned integer overflow")
    return UInt(int(value))


def _same(value: Value) -> Value:
    return value


def _type(value: Value) -> TypeValue:
    return TypeValue(type_name(value))


def _size(value: Value) -> int:
    return len(value)


# --- operators ----------------------------------------------------------------------------------------------


def _add_bytes(a: bytes, b: bytes) -> bytes:
    return a + b


def _add_list(a: Value, b: Value) -> list[Value]:
    return [*a, *b]


def _span(ns: int) -> Duration:
    if _MIN <= ns <= _MAX:
        return Duration(ns)
    raise CelRuntimeError("integer overflow")


def _moment(ns: int) -> Timestamp:
    return _time.checked(Timestamp(ns))


def _ordering(test: Callable[[int], bool]) -> Callable[[Value, Value], bool]:
    def ordered(a: Value, b: Value) -> bool:
        return test(compare(a, b))

    return ordered


_ORDER: dict[str, Callable[[int], bool]] = {
    "less": lambda c: c < 0,
    "less_equals": lambda c: c <= 0,
    "greater": lambda c: c > 0,
    "greater_equals": lambda c: c >= 0,
}
_PAIRS = [
    *("bool", "int64", "int64_double", "int64_uint64", "uint64", "uint64_double", "uint64_int64"),
    *("double", "double_int64", "double_uint64", "string", "bytes", "timestamp", "duration"),
]


def _not(value: Value) -> bool:
    if value is True:
        return False
    if value is False:
        return True
    raise no_such_overload()


FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{f"{name}_{pair}": _ordering(test) for name, test in _ORDER.items() for pair in _PAIRS},
    "logical_not": _not,
    "negate_int64": lambda a: _overflow(-a),
    "negate_double": lambda a: -a,
    "add_int64": lambda a, b: _overflow(a + b),
    "subtract_int64": lambda a, b: _overflow(a - b),
    "multiply_int64": lambda a, b: _overflow(a * b),
    "divide_int64": _divide,
    "modulo_int64": _modulo,
    "add_uint64": lambda a, b: _unsigned(int(a) + int(b)),
    "subtract_uint64": lambda a, b: _unsigned(int(a) - int(b)),
    "multiply_uint64": lambda a, b: _unsigned(int(a) * int(b)),
    "divide_uint64": _divide_unsigned,
    "modulo_uint64": _modulo_unsigned,
    "add_double": lambda a, b: a + b,
    "subtract_double": lambda a, b: a - b,
    "multiply_double": _multiply_double,
    "divide_double": _divide_double,
    "add_string": lambda a, b: a + b,
    "add_bytes": _add_bytes,
    "add_list": _add_list,
    "add_duration_duration": lambda a, b: _span(a.ns + b.ns),
    "add_duration_timestamp": lambda a, b: _moment(a.ns + b.ns),
    "add_timestamp_duration": lambda a, b: _moment(a.ns + b.ns),
    "subtract_duration_duration": lambda a, b: _span(a.ns - b.ns),
    "subtract_timestamp_duration": lambda a, b: _moment(a.ns - b.ns),
    "subtract_timestamp_timestamp": lambda a, b: _span(a.ns - b.ns),
    **{
        f"{kind}_to_{kind}": _same
        for kind in ("bool", "bytes", "double", "int64", "uint64", "string", "duration", "timestamp")
    },
    "to_dyn": _same,
    "type": _type,
    "string_to_bool": _string_to_bool,
    "string_to_bytes": lambda a: a.encode(),
    "bytes_to_string": _bytes_to_string,
    "bool_to_string": lambda a: "true" if a else "false",
    "double_to_string": format_double,
    "int64_to_string": str,
    "uint64_to_string": lambda a: str(int(a)),
    "duration_to_string": _time.format_duration,
    "timestamp_to_string": _time.format_timestamp,
    "ip_to_string": lambda a: str(a.address),
    "cidr_to_string": lambda a: str(a.interface),
    "int64_to_double": float,
    "uint64_to_double": float,
    "string_to_double": _string_to_double,
    "double_to_int64": _double_to_int,
    "uint64_to_int64": lambda a: _overflow(int(a)),
    "string_to_int64": _string_to_int,
    "timestamp_to_int64": lambda a: a.ns // 10**9,
    "duration_to_int64": lambda a: a.ns,
    "double_to_uint64": _double_to_uint,
    "int64_to_uint64": _unsigned,
    "string_to_uint64": _string_to_uint,
    "int64_to_duration": _span,
    "string_to_duration": _time.parse_duration,
    "int64_to_timestamp": lambda a: _moment(a * 10**9),
    "string_to_timestamp": _time.parse_timestamp,
    "size_string": _size,
    "string_size": _size,
    "size_bytes": _size,
    "bytes_size": _size,
    "size_list": _size,
    "list_size": _size,
    "size_map": _size,
    "map_size": _size,
    **_time.GETTERS,
}
