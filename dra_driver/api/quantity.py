"""``resource.Quantity`` of Kubernetes: exact numbers with a suffix.

Source: ``k8s.io/apimachinery/pkg/api/resource``. Exact to 1e-9; smaller digits round away from zero, as there.
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
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIX = {v: k for k, v in _BINARY.items()}
_DECIMAL_SUFFIX = {v: k for k, v in _DECIMAL.items()}
_PATTERN = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]+)", re.ASCII)
_MAX = 2**63 - 1


@total_ordering
class Quantity:
    """An immutable amount. Equality and order are by value: ``1Gi == 1024Mi``.

    ``str()`` gives the canonical form.
    """

    __slots__ = ("_nano", "format")

    _nano: int
    format: Format

    def __init__(self, nano: int, format_: Format = Format.DECIMAL_SI) -> None:
        """Makes a quantity of ``nano`` × 1e-9; use ``parse`` or ``of`` instead."""
        object.__setattr__(self, "_nano", nano)
        object.__setattr__(self, "format", format_)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Quantity is immutable")

    @classmethod
    def of(cls, value: int, format_: Format = Format.DECIMAL_SI) -> Quantity:
        """The whole number ``value`` (bytes, cores …)."""
        return cls(value * _NANO, format_)

    @staticmethod
    def parse(text: str) -> Quantity:
        """Parses ``32Gi``, ``500m``, ``1e3``, ``0.5``.

        Raises:
            InvalidQuantity: the text is no quantity; says what is allowed.
        """
        return _parse(text)

    @property
    def nano(self) -> int:
        """The exact amount × 1e9."""
        return self._nano

    def value(self) -> int:
        """The amount as a whole number, rounded up (``Quantity.Value()`` in Go)."""
        return -(-self._nano // _NANO)

    def __eq__(self, other: object) -> bool:
        return self._nano == other._nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self._nano < other._nano

    def __hash__(self) -> int:
        return hash(self._nano)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self._nano + other._nano, self.format if self._nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self._nano - other._nano, self.format if self._nano else other.format)

    def __bool__(self) -> bool:
        return self._nano != 0

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __str__(self) -> str:
        return _canonical(self._nano, self.format)


def _canonical(nano: int, form: Format) -> str:
    if nano == 0:
        return "0"
    if form is Format.BINARY_SI and nano % _NANO == 0 and abs(nano) >= 1024 * _NANO:
        amount, power = nano // _NANO, 0
        while amount % 1024 == 0 and power < 6:
            amount //= 1024
            power += 1
        return f"{amount}{_BINARY_SUFFIX.get(power, '')}"
    amount, exponent = nano, -9
    while amount % 1000 == 0 and exponent < 18:
        amount //= 1000
        exponent += 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{amount}e{exponent}" if exponent else str(amount)
    return f"{amount}{_DECIMAL_SUFFIX[exponent]}"


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    match = _PATTERN.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise InvalidQuantity(
            f"{text[:64]!r} is not a quantity: a number with an optional suffix is allowed "
            "(n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3), for example 32Gi"
        )
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    mantissa = int((whole + fraction) or "0")
    scale = -len(fraction)
    if suffix in _BINARY:
        form = Format.BINARY_SI
        mantissa <<= 10 * _BINARY[suffix]
    elif suffix in _DECIMAL:
        form = Format.DECIMAL_SI
        scale += _DECIMAL[suffix]
    else:
        form = Format.DECIMAL_EXPONENT
        exponent = int(suffix[1:])
        if abs(exponent) > 999:
            raise InvalidQuantity(f"{text[:64]!r} is not a quantity: the exponent is out of range")
        scale += exponent
    shift = scale + 9
    nano = mantissa * 10**shift if shift >= 0 else -(-mantissa // 10**-shift)
    nano = min(nano, _MAX * _NANO)
    return Quantity(-nano if sign == "-" else nano, form)
