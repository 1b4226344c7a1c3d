"""``resource.Quantity`` of Kubernetes: exact numbers with a suffix.

Source: ``k8s.io/apimachinery/pkg/api/resource``. The rules that surprise:

* exact to 1e-9; what is smaller rounds away from zero (``0.1n`` is ``1n``);
* amounts with a binary suffix are capped at ±(2**63 - 1), others are not;
* the number may be missing: ``Gi``, ``+`` and ``.`` are zero (but the empty text is nothing);
* the original keeps small amounts as an int64 times a power of ten and the rest as a decimal of any size.
  Nothing but ``as_int64`` and ``approximate_float`` shows the difference, and CEL offers both, so the
  representation is carried along.

Two deviations: a text longer than 1024 characters and an exponent beyond ±999 are refused (the original
spends memory in proportion to 10 to that power).
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache, total_ordering

from dra_driver.errors import InvalidQuantity

__all__ = ["Format", "Quantity"]


class Format(enum.Enum):
    """How a quantity is written."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_NANO = 10**9
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {0: "", **{v: k for k, v in _BINARY.items()}}
_DECIMAL_SUFFIX = {v: k for k, v in _DECIMAL.items()}
# Possessive: a thousand zeros before a bad suffix would be shared out between the first two in all ways.
_PATTERN = re.compile(
    r"([+-]?)0*+([0-9]*+)(?:\.([0-9]*+))?([KMGTPE]i|[eE][+-]?[0-9]+|[numkMGTPE]?)", re.ASCII
)
_MAX_INT64 = 2**63 - 1
_MAX_LENGTH = 1024
_MAX_EXPONENT = 999


@total_ordering
class Quantity:
    """An immutable amount. Equality, order and hash are by value: ``1Gi == 1024Mi``.

    ``str()`` gives the canonical form.
    """

    __slots__ = ("_big", "_nano", "_scale", "format")

    _nano: int
    # The amount is kept as a whole number times 10**_scale, in an int64 unless _big.
    _scale: int
    _big: bool
    format: Format

    def __init__(
        self,
        nano: int,
        format_: Format = Format.DECIMAL_SI,
        *,
        scale: int | None = None,
        big: bool = False,
    ) -> None:
        """Make a quantity of ``nano`` × 1e-9; use ``parse`` or ``of`` instead."""
        if scale is None:
            scale = 0 if nano % _NANO == 0 else -9
            big = not _fits(nano // 10 ** (scale + 9))
        put = object.__setattr__
        put(self, "_nano", nano)
        put(self, "_scale", scale)
        put(self, "_big", big)
        put(self, "format", format_)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Quantity is immutable")

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self._nano, self.format, self._scale, self._big)

    @classmethod
    def of(cls, value: int, format_: Format = Format.DECIMAL_SI) -> Quantity:
        """Return the whole number ``value`` (bytes, cores …)."""
        return cls(value * _NANO, format_)

    @staticmethod
    def parse(text: str) -> Quantity:
        """Parse ``32Gi``, ``500m``, ``1e3``, ``0.5``.

        Raises:
            InvalidQuantity: the text is no quantity; says what is allowed.
        """
        return _parse(text)

    @property
    def nano(self) -> int:
        """The exact amount × 1e9."""
        return self._nano

    @property
    def scale(self) -> int:
        """The power of ten of the kept number, -9 or more (``1500m`` is 1500 × 10**-3)."""
        return self._scale

    @property
    def is_big(self) -> bool:
        """Whether the original keeps it as a decimal of any size rather than as a scaled int64."""
        return self._big

    def value(self) -> int:
        """Return the amount as a whole number, rounded away from zero (``Quantity.Value()`` in Go)."""
        return -(-self._nano // _NANO) if self._nano >= 0 else self._nano // _NANO

    def as_int64(self) -> int | None:
        """Return the amount where the original holds it as a whole int64 (``AsInt64``), else None.

        Depends on how it was written: ``16Ti`` is a number, ``160Ti``, ``1000m`` and ``0.0`` are None.
        """
        if self._big or self._scale < 0:
            return None
        value = self._nano // _NANO
        return value if _fits(value) else None

    def approximate_float(self) -> float:
        """Return the amount as a float with the original's rounding (``AsApproximateFloat64``)."""
        try:
            base = float(self._nano // 10 ** (self._scale + 9))
        except OverflowError:
            return float("inf") if self._nano > 0 else float("-inf")
        return base * float(f"1e{self._scale}") if self._scale else base

    def __eq__(self, other: object) -> bool:
        return self._nano == other._nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self._nano < other._nano

    def __gt__(self, other: Quantity) -> bool:
        return self._nano > other._nano

    def __hash__(self) -> int:
        return hash(self._nano)

    def __add__(self, other: Quantity) -> Quantity:
        return _sum(self, other, self._nano + other._nano)

    def __sub__(self, other: Quantity) -> Quantity:
        return _sum(self, other, self._nano - other._nano)

    def __neg__(self) -> Quantity:
        return Quantity(-self._nano, self.format, scale=self._scale, big=self._big)

    def __bool__(self) -> bool:
        return self._nano != 0

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __str__(self) -> str:
        return _canonical(self._nano, self.format)


def _restore(nano: int, format_: Format, scale: int, big: bool) -> Quantity:
    return Quantity(nano, format_, scale=scale, big=big)


def _fits(value: int) -> bool:
    return -_MAX_INT64 - 1 <= value <= _MAX_INT64


def _sum(a: Quantity, b: Quantity, nano: int) -> Quantity:
    # Two scaled int64 stay one while every number on the way fits; a decimal makes the result a decimal.
    form = a.format if a._nano else b.format
    scale = min(a._scale, b._scale)
    if a._big or b._big:
        return Quantity(nano, form, scale=scale, big=True)
    if b._nano == 0:
        return Quantity(nano, form, scale=a._scale)
    if a._nano == 0:
        return Quantity(nano, form, scale=b._scale)
    unit = 10 ** (scale + 9)
    fits = _fits(a._nano // unit) and _fits(b._nano // unit) and _fits(nano // unit)
    return Quantity(nano, form, scale=scale, big=not fits)


@lru_cache(maxsize=4096)
def _canonical(nano: int, form: Format) -> str:
    if nano == 0:
        return "0"
    if form is Format.BINARY_SI and nano % _NANO == 0 and abs(nano) >= 1024 * _NANO:
        amount, power = nano // _NANO, 0
        while amount % 1024 == 0 and power < 60:
            amount //= 1024
            power += 10
        return f"{amount}{_BINARY_SUFFIX[power]}"
    amount, exponent = nano, -9
    while amount % 1000 == 0:
        amount //= 1000
        exponent += 3
    if form is not Format.DECIMAL_EXPONENT and exponent in _DECIMAL_SUFFIX:
        return f"{amount}{_DECIMAL_SUFFIX[exponent]}"
    # There is no suffix beyond E: 1000E is 1e21.
    return f"{amount}e{exponent}" if exponent else str(amount)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    match = _PATTERN.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not text:
        raise InvalidQuantity(
            f"{text[:64]!r} is not a quantity: a number with an optional suffix is allowed "
            "(n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3), for example 32Gi"
        )
    sign = -1 if match[1] == "-" else 1
    number, fraction, suffix = match[2] or "0", match[3] or "", match[4]
    if suffix in _BINARY:
        return _binary(sign, number, fraction, _BINARY[suffix])
    if suffix in _DECIMAL:
        return _decimal(sign, number, fraction, _DECIMAL[suffix], Format.DECIMAL_SI)
    # A longer run of digits than this is out of range without being converted.
    exponent = int(suffix[1:]) if len(suffix) <= 8 else _MAX_EXPONENT + 1
    if abs(exponent) > _MAX_EXPONENT:
        raise InvalidQuantity(
            f"{text[:64]!r} is not a quantity: exponents from -{_MAX_EXPONENT} to {_MAX_EXPONENT} are allowed"
        )
    return _decimal(sign, number, fraction, exponent, Format.DECIMAL_EXPONENT)


def _binary(sign: int, number: str, fraction: str, exponent: int) -> Quantity:
    amount = int(number + fraction) << exponent
    # An int64 where 15 digits, less those of the number and roughly those of the suffix, are not used up.
    if not fraction and 14 - len(number) - exponent * 3 // 10 >= 0:
        return Quantity(sign * amount * _NANO, Format.BINARY_SI, scale=0)
    scale = -9 if amount else max(-len(fraction), -9)
    nano = _shifted(amount, 9 - len(fraction))
    if nano > _MAX_INT64 * _NANO:
        nano, scale = _MAX_INT64 * _NANO, 0
    form = Format.DECIMAL_SI if 0 < nano < _NANO else Format.BINARY_SI
    return Quantity(sign * nano, form, scale=scale, big=True)


def _decimal(sign: int, number: str, fraction: str, exponent: int, form: Format) -> Quantity:
    amount = int(number + fraction)
    scale = exponent - len(fraction)
    if len(number) + len(fraction) <= 18 and scale >= -9:
        return Quantity(sign * amount * 10 ** (scale + 9), form, scale=scale)
    return Quantity(sign * _shifted(amount, scale + 9), form, scale=-9, big=True)


def _shifted(amount: int, power: int) -> int:
    """Return ``amount`` × 10**power, rounded up; ``amount`` is not negative."""
    result: int = amount * 10**power if power >= 0 else -(-amount // 10**-power)
    return result
