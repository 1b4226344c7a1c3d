"""Equal parts of many objects, kept once.

Thousands of machines of one model say the same about their devices; decoded one by one, that is most of the
memory of a process that follows them all. Only immutable values are shared, and only those that are equal to
the letter: quantities that are equal and written differently stay apart. What is remembered is bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

import msgspec

from dra_driver.api.quantity import Quantity

__all__ = ["shared", "shared_attributes", "shared_capacities", "with_fields"]

_T = TypeVar("_T", bound=Hashable)
_S = TypeVar("_S", bound=msgspec.Struct)


class _Capacity(Protocol):
    """Fields of ``DeviceCapacity``."""

    @property
    def value(self) -> Quantity: ...

    @property
    def request_policy(self) -> object | None: ...


_C = TypeVar("_C", bound=_Capacity)

_MOST = 65_536

_values: dict[Hashable, Hashable] = {}
_capacities: dict[Hashable, Mapping[str, object]] = {}


def shared(value: _T) -> _T:
    """Return an equal value, the same object for every caller. Not for quantities, nor what contains any."""
    key = (type(value), value)
    known = _values.get(key)
    if known is None:
        if len(_values) >= _MOST:
            _values.clear()
        known = _values[key] = value
    return known  # type: ignore[return-value] # of the type in the key


def shared_attributes(attributes: Mapping[str, _T]) -> None:
    """Replace the values of a dict by equal ones that are shared. Other mappings are left alone."""
    if type(attributes) is dict:
        for name, value in attributes.items():
            attributes[name] = shared(value)


def shared_capacities(capacities: Mapping[str, _C]) -> Mapping[str, _C]:
    """Return an equal mapping, the same object for every caller, which must not be changed."""
    key: list[Hashable] = []
    for name, capacity in capacities.items():
        value = capacity.value
        if capacity.request_policy is not None:
            return capacities
        key += (name, value.nano, value.scale, value.is_big, value.format)
    known = _capacities.get(tuple(key))
    if known is None:
        if len(_capacities) >= _MOST:
            _capacities.clear()
        known = _capacities[tuple(key)] = capacities
    return known  # type: ignore[return-value] # capacities of devices, and of nothing else


def with_fields(struct: _S, **fields: object) -> _S:
    """Return a copy with other values of some fields, as ``msgspec.structs.replace``, but faster.

    What the original shares is not looked for again, so the fields must not be any that are shared.
    """
    copied = copy.copy(struct)
    for name, value in fields.items():
        msgspec.structs.force_setattr(copied, name, value)
    return copied
