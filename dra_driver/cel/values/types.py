"""Static types of CEL and the rules of assignment between them, with type parameters.

Source: the CEL language definition and the observable behaviour of ``cel-go``'s checker.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from dra_driver.cel.errors import CelCompileError

__all__ = [
    "ANY",
    "BOOL",
    "BYTES",
    "DOUBLE",
    "DURATION",
    "DYN",
    "ERROR",
    "INT",
    "MAX_STEPS",
    "NULL",
    "STRING",
    "TIMESTAMP",
    "TYPE",
    "UINT",
    "Substitution",
    "Type",
    "list_of",
    "map_of",
    "most_general",
    "optional_of",
    "parse_type",
    "type_of",
]


# The longest expressions of the API need 70,000.
MAX_STEPS: Final = 150_000


class Type:
    """A type: ``kind`` decides the rules, ``name`` distinguishes types of a kind, ``params`` its parts."""

    __slots__ = ("kind", "name", "params")

    def __init__(self, kind: str, name: str, params: tuple[Type, ...] = ()) -> None:
        self.kind = kind
        self.name = name
        self.params = params

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Type):
            return NotImplemented
        return self.kind == other.kind and self.name == other.name and self.params == other.params

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.params))

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(map(str, self.params))})"

    __repr__ = __str__


BOOL = Type("bool", "bool")
INT = Type("int", "int")
UINT = Type("uint", "uint")
DOUBLE = Type("double", "double")
STRING = Type("string", "string")
BYTES = Type("bytes", "bytes")
NULL = Type("null_type", "null_type")
DYN = Type("dyn", "dyn")
ANY = Type("any", "google.protobuf.Any")
ERROR = Type("error", "*error*")
DURATION = Type("duration", "google.protobuf.Duration")
TIMESTAMP = Type("timestamp", "google.protobuf.Timestamp")
TYPE = Type("type", "type")

_BY_NAME = {t.name: t for t in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, DYN, DURATION, TIMESTAMP, TYPE)}
_BY_NAME["any"] = ANY
_OPAQUE = frozenset({"net.IP", "net.CIDR", "optional_type"})
_SCALARS = frozenset(
    {"bool", "bytes", "double", "int", "string", "uint", "any", "duration", "timestamp", "struct"}
)
_NULLABLE = frozenset({"null_type", "opaque", "struct", "duration", "timestamp"})
_TOKEN = re.compile(r"<(\w+)>|([\w.]+)|([(),])")


def list_of(element: Type) -> Type:
    """Return ``list(element)``."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return ``map(key, value)``."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """Return ``optional_type(value)``."""
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    """Return ``type(value)``: the type of a type."""
    return Type("type", "type", (value,))


@cache
def parse_type(text: str) -> Type:
    """Parse ``map(<K>, list(string))``; ``<K>`` is a type parameter."""
    tokens = [m.group() for m in _TOKEN.finditer(text)]
    result, rest = _parse(tokens, 0)
    assert rest == len(tokens), text
    return result


def _parse(tokens: list[str], at: int) -> tuple[Type, int]:
    name = tokens[at]
    at += 1
    if name.startswith("<"):
        return Type("param", name[1:-1]), at
    params: list[Type] = []
    if at < len(tokens) and tokens[at] == "(":
        while tokens[at] != ")":
            param, at = _parse(tokens, at + 1)
            params.append(param)
        at += 1
    if name in ("list", "map"):
        return Type(name, name, tuple(params)), at
    if name == "type" and params:
        return Type("type", "type", tuple(params)), at
    if name in _BY_NAME:
        return _BY_NAME[name], at
    return Type("opaque" if name in _OPAQUE else "struct", name, tuple(params)), at


def _is_dynamic(t: Type) -> bool:
    return t.kind in ("dyn", "any", "error")


def _at_most_as_specific(a: Type, b: Type) -> bool:
    if a.kind in ("dyn", "any", "param"):
        return True
    if b.kind in ("dyn", "any", "param") or a.kind != b.kind:
        return False
    if a.kind == "type":
        return True
    if a.kind in ("opaque", "list", "map"):
        return (
            a.name == b.name
            and len(a.params) == len(b.params)
            and all(_at_most_as_specific(x, y) for x, y in zip(a.params, b.params, strict=True))
        )
    return a == b


def most_general(a: Type, b: Type) -> Type:
    """Return the less specific of two types that are assignable to each other."""
    return a if _at_most_as_specific(a, b) else b


class Substitution:
    """Bindings of type parameters, found while arguments are matched with declarations."""

    __slots__ = ("_fresh", "_map", "_steps")

    def __init__(self) -> None:
        self._map: dict[str, Type] = {}
        self._fresh = 0
        self._steps = 0

    def _step(self) -> None:
        # A type that contains another twice, which contains another twice …, is exponentially large.
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CelCompileError(
                f"the types in the expression are too large: {MAX_STEPS} steps did not suffice to check it"
            )

    def fresh(self) -> Type:
        """Return a type parameter that is not in use."""
        self._fresh += 1
        return Type("param", f"_var{self._fresh}")

    def instantiate(self, types: tuple[Type, ...]) -> tuple[Type, ...]:
        """Return the types with each of their parameters replaced by a fresh one."""
        names: dict[str, Type] = {}
        return tuple(self._renamed(t, names) for t in types)

    def _renamed(self, t: Type, names: dict[str, Type]) -> Type:
        if t.kind == "param":
            if t.name not in names:
                names[t.name] = self.fresh()
            return names[t.name]
        if not t.params:
            return t
        return Type(t.kind, t.name, tuple(self._renamed(p, names) for p in t.params))

    def resolve(self, t: Type, *, finish: bool = False) -> Type:
        """Return ``t`` with known parameters replaced; with ``finish`` unknown ones become dyn."""
        self._step()
        if t.kind == "param":
            known = self._map.get(t.name)
            if known is not None:
                return self.resolve(known, finish=finish)
            return DYN if finish else t
        if not t.params:
            return t
        return Type(t.kind, t.name, tuple(self.resolve(p, finish=finish) for p in t.params))

    def assignable(self, a: Type, b: Type) -> bool:
        """Return whether the types agree; if they do, keep the bindings found."""
        return self.all_assignable((a,), (b,))

    def all_assignable(self, left: tuple[Type, ...], right: tuple[Type, ...]) -> bool:
        """Return whether each pair is assignable; keep no binding unless all are."""
        before = dict(self._map)
        if len(left) == len(right) and all(self._assign(a, b) for a, b in zip(left, right, strict=True)):
            return True
        self._map = before
        return False

    def _assign(self, a: Type, b: Type) -> bool:
        self._step()
        if b.kind == "param":
            valid, known = self._substitute(a, b)
            if valid or known:
                return valid
        if a.kind == "param":
            return self._substitute(b, a)[0]
        if _is_dynamic(a) or _is_dynamic(b):
            return True
        if a.kind == "null_type" or b.kind == "null_type":
            other = b if a.kind == "null_type" else a
            return other.kind in _NULLABLE or other.name.startswith("wrapper")
        if a.name.startswith("wrapper") or b.name.startswith("wrapper"):
            return _unwrapped(a) == _unwrapped(b)
        if a.kind in _SCALARS:
            return a == b
        if a.kind == "type":
            return b.kind == "type"
        return (
            a.kind == b.kind
            and a.name == b.name
            and len(a.params) == len(b.params)
            and all(self._assign(x, y) for x, y in zip(a.params, b.params, strict=True))
        )

    def _substitute(self, t: Type, param: Type) -> tuple[bool, bool]:
        """Return whether ``param`` can stand for ``t``, and whether it was bound before."""
        if t == param:
            return True, True
        known = self._map.get(param.name)
        if known is not None:
            if t == known:
                return True, True
            if self._assign(t, known):
                new = most_general(t, known)
                if not self._refers(new, param):
                    self._map[param.name] = new
                return True, True
            return False, True
        if self._refers(t, param):
            return False, False
        self._map[param.name] = t
        return True, False

    def _refers(self, t: Type, param: Type) -> bool:
        self._step()
        if t == param:
            return True
        if t.kind == "param":
            known = self._map.get(t.name)
            return known is not None and self._refers(known, param)
        return any(self._refers(p, param) for p in t.params)


def _unwrapped(t: Type) -> Type:
    return t.params[0] if t.name.startswith("wrapper") else t
