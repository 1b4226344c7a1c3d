"""The implementations of overloads, and the values that each accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.library import kubernetes as _kubernetes
from dra_driver.cel.library import lists as _lists
from dra_driver.cel.library import standard as _standard
from dra_driver.cel.library import strings as _strings
from dra_driver.cel.values.types import Type
from dra_driver.cel.values.values import (
    Cidr,
    DomainMap,
    Duration,
    Format,
    Ip,
    Optional,
    SumQuantity,
    Timestamp,
    TypeValue,
    UInt,
    Url,
    Value,
    plain_key,
)

__all__ = ["IMPLEMENTATIONS", "METERED", "argument_tests", "loosely_typed"]

IMPLEMENTATIONS: Final[Mapping[str, Callable[..., Value]]] = {
    **_standard.FUNCTIONS,
    **_strings.FUNCTIONS,
    **_lists.FUNCTIONS,
    **_kubernetes.FUNCTIONS,
}
"""Functions by the id of the overload."""

METERED: Final[Mapping[str, Callable[..., Value]]] = {
    **_strings.METERED,
    **_lists.METERED,
    **_kubernetes.METERED,
}
"""The same for those whose work their cost does not bound: their first argument is the meter."""

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "uint": (UInt,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
    "null_type": (type(None),),
    "list": (list, tuple),
    "map": (dict, DomainMap),
    "google.protobuf.Duration": (Duration,),
    "google.protobuf.Timestamp": (Timestamp,),
    "kubernetes.Quantity": (Quantity, SumQuantity),
    "kubernetes.Semver": (Version,),
    "kubernetes.URL": (Url,),
    "kubernetes.NamedFormat": (Format,),
    "net.IP": (Ip,),
    "net.CIDR": (Cidr,),
    "optional_type": (Optional,),
    "type": (TypeValue,),
}


@cache
def type_test(t: Type) -> Callable[[Value], bool] | None:
    """Return a test whether a value has the type, by the first entry of lists and maps; None if any has."""
    allowed = _PYTHON_TYPES.get(t.name)
    if allowed is None:
        return None
    inner = [type_test(p) for p in t.params] if t.kind in ("list", "map") else []
    if not any(inner):
        return lambda value: type(value) in allowed
    first = inner[0]

    def test(value: Value) -> bool:
        if type(value) not in allowed:
            return False
        if not value or first is None:
            return True
        return first(plain_key(next(iter(value))))

    return test


def argument_tests(overload: str, arguments: Sequence[Type]) -> tuple[Callable[[Value], bool] | None, ...]:
    """Return the tests that choose an overload at run time, one per argument; see ``type_test``."""
    if overload in _FLATTEN:
        # cel-go looks at no item here: a list of numbers stays as it is.
        return tuple(
            (lambda value: type(value) in (list, tuple)) if t.kind == "list" else type_test(t)
            for t in arguments
        )
    return tuple(map(type_test, arguments))


_FLATTEN: Final = ("list_flatten", "list_flatten_int")


def loosely_typed(t: Type) -> bool:
    """Return whether values of a type must be tested at run time."""
    return t.kind in ("dyn", "any", "param", "error") or t.name.startswith("wrapper")
