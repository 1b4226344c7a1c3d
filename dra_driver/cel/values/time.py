"""Timestamps and durations: parsing, formatting and fields."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.values.values import Duration, Timestamp, Value, shown

__all__ = ["GETTERS", "checked", "format_duration", "format_timestamp", "parse_duration", "parse_timestamp"]

_SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 1000,
    "\u00b5s": 1000,
    "\u03bcs": 1000,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_SPAN = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
# 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999999Z.
_FIRST, _LAST = -62135596800 * _SECOND, 253402300800 * _SECOND - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The longest name of the time zone database has 32 characters.
_LONGEST_ZONE = 64


def checked(value: Timestamp) -> Timestamp:
    """Return the timestamp.

    Raises:
        CelRuntimeError: it is outside the years 1 to 9999.
    """
    if _FIRST <= value.ns <= _LAST:
        return value
    raise CelRuntimeError("timestamp overflow")


def parse_duration(text: str) -> Duration:
    """Parse ``1h30m``, ``-1.5s``.

    Raises:
        CelRuntimeError: the text is not a duration.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    if len(rest) > 256:
        raise CelRuntimeError("type conversion error from 'string' to 'google.protobuf.Duration'")
    total = 0
    if rest != "0":
        at = 0
        while at < len(rest) or not rest:
            match = _SPAN.match(rest, at)
            if match is None or not (match[1] or match[2]):
                raise CelRuntimeError("type conversion error from 'string' to 'google.protobuf.Duration'")
            fraction = match[2] or ""
            total += int((match[1] or "0") + fraction) * _UNITS[match[3]] // 10 ** len(fraction)
            at = match.end()
    if total >= 2**63:
        raise CelRuntimeError("type conversion error from 'string' to 'google.protobuf.Duration'")
    return Duration(-total if text.startswith("-") else total)


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339.

    Raises:
        CelRuntimeError: the text is not a timestamp.
    """
    match = _STAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        numbers = [int(n) for n in match.groups()[:6]]
        moment = datetime(*numbers, tzinfo=UTC)  # type: ignore[arg-type,misc]
        seconds = int((moment - _EPOCH).total_seconds())
        zone = match[8]
        if zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > 23 or minutes > 59:
                raise ValueError
            seconds -= (hours * 3600 + minutes * 60) * (1 if zone[0] == "+" else -1)
    except ValueError:
        raise CelRuntimeError("type conversion error from 'string' to 'google.protobuf.Timestamp'") from None
    nanoseconds = int(((match[7] or "") + "0" * 9)[:9])
    return checked(Timestamp(seconds * _SECOND + nanoseconds))


def format_duration(value: Duration) -> str:
    """Return seconds with as many digits as are needed, and ``s``."""
    sign = "-" if value.ns < 0 else ""
    seconds, rest = divmod(abs(value.ns), _SECOND)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".") if rest else ""
    return f"{sign}{seconds}{fraction}s"


def format_timestamp(value: Timestamp) -> str:
    """Return RFC 3339 in UTC."""
    seconds, rest = divmod(value.ns, _SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    date = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
    return f"{date}T{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}{fraction}Z"


def _zone(name: str) -> tzinfo:
    match = re.fullmatch(r"([+-]?)(\d{1,2}):(\d{1,2})", name, re.ASCII)
    if match:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        try:
            return timezone(-offset if match[1] == "-" else offset)
        except ValueError:
            raise CelRuntimeError(f"unknown time zone {name}") from None
    if name in ("", "UTC"):
        return UTC
    if len(name) > _LONGEST_ZONE:
        raise CelRuntimeError(f"unknown time zone {shown(name)}")
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise CelRuntimeError(f"unknown time zone {shown(name)}") from None


def _local(value: Timestamp, zone: str = "UTC") -> datetime:
    try:
        return (_EPOCH + timedelta(seconds=value.ns // _SECOND)).astimezone(_zone(zone))
    except OverflowError:
        raise CelRuntimeError("timestamp overflow") from None


def _field(get: Callable[[datetime], int]) -> Callable[..., Value]:
    def getter(value: Timestamp, zone: str = "UTC") -> int:
        return get(_local(value, zone))

    return getter


def _milliseconds(value: Timestamp, zone: str = "UTC") -> int:
    _zone(zone)
    return value.ns % _SECOND // 10**6


def _whole(unit: int) -> Callable[[Duration], int]:
    def getter(value: Duration) -> int:
        return value.ns // unit if value.ns >= 0 else -(-value.ns // unit)

    return getter


_FIELDS: dict[str, Callable[[datetime], int]] = {
    "day_of_month_1_based": lambda t: t.day,
    "day_of_month": lambda t: t.day - 1,
    "day_of_week": lambda t: t.isoweekday() % 7,
    "day_of_year": lambda t: t.timetuple().tm_yday - 1,
    "year": lambda t: t.year,
    "month": lambda t: t.month - 1,
    "hours": lambda t: t.hour,
    "minutes": lambda t: t.minute,
    "seconds": lambda t: t.second,
}
GETTERS: dict[str, Callable[..., Value]] = {
    **{f"timestamp_to_{name}{tz}": _field(get) for name, get in _FIELDS.items() for tz in ("", "_with_tz")},
    "timestamp_to_seconds_tz": _field(_FIELDS["seconds"]),
    "timestamp_to_milliseconds": _milliseconds,
    "timestamp_to_milliseconds_with_tz": _milliseconds,
    "duration_to_hours": _whole(3600 * _SECOND),
    "duration_to_minutes": _whole(60 * _SECOND),
    "duration_to_seconds": _whole(_SECOND),
    "duration_to_milliseconds": _whole(10**6),
}
