"""The projection of a device: what of it an expression can see."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from dra_driver.cel.syntax.ast import Call, Comprehension, Expr, Ident, Literal, Select, children
from dra_driver.cel.values.values import DomainMap, Value

__all__ = ["References", "find_references"]

# Functions whose results differ for quantities of equal amount.
_SENSITIVE = frozenset({"isInteger", "asInteger", "asApproximateFloat", "add", "sub"})
_ABSENT = ("absent",)


class _Device(Protocol):
    driver: str
    attributes: DomainMap
    capacity: DomainMap
    allow_multiple_allocations: bool
    error: str | None


# Paths of local variables that are a part of the device.
_Paths: TypeAlias = dict[str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class References:
    """The projection of a device that the result of an expression depends on.

    Attributes:
        attributes: (domain, name) of the attributes that are looked up by constant keys.
        capacity: the same of the capacities.
        driver: whether the driver's name is read.
        allow_multiple_allocations: whether that field is read.
        everything: whether the expression computes a key, takes a size or iterates: then all of it counts.
        representation: whether it matters how quantities are written, not only their amounts.
    """

    attributes: tuple[tuple[str, str], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    driver: bool = False
    allow_multiple_allocations: bool = False
    everything: bool = False
    representation: bool = False

    LONGEST_KEY: ClassVar[int] = 8
    """Values of a key; of more, and of everything, the key is a digest."""

    @property
    def size(self) -> int:
        """The number of values that are looked up."""
        return 32 if self.everything else len(self.attributes) + len(self.capacity)

    def key(self, device: _Device) -> Hashable:
        """Return the projected content as a key: equal content has equal results."""
        if device.error is not None:
            return ("error", device.error)
        parts: list[Hashable] = []
        if self.driver or self.everything:
            parts.append(device.driver)
        if self.allow_multiple_allocations or self.everything:
            parts.append(device.allow_multiple_allocations)
        if self.everything:
            return _digest((*parts, self._whole(device.attributes), self._whole(device.capacity)))
        for domain, name in self.attributes:
            value = device.attributes[domain].get(name)
            parts.append(value if type(value) is str else self._item(value))
        for domain, name in self.capacity:
            parts.append(self._item(device.capacity[domain].get(name)))
        return tuple(parts) if self.size <= self.LONGEST_KEY else _digest(tuple(parts))

    def _whole(self, domains: DomainMap) -> Hashable:
        return tuple(
            (domain, tuple((name, self._item(value)) for name, value in sorted(names.items())))
            for domain, names in sorted(domains.items())
        )

    def _item(self, value: Value) -> Hashable:
        if value is None:
            return _ABSENT
        if self.representation and hasattr(value, "is_big"):
            return (value.nano, value.scale, value.is_big)
        if hasattr(value, "is_big"):
            return ("Quantity", value.nano)
        # With its type: 1, True and 1.0 are one key for Python.
        if type(value) is tuple and value:
            return (type(value[0]).__name__, value)
        return (type(value).__name__, value)


def _digest(content: tuple[Hashable, ...]) -> bytes:
    # The content may take kilobytes, for each of thousands of devices.
    return hashlib.blake2b(repr(content).encode(errors="surrogatepass"), digest_size=16).digest()


class _Finder:
    def __init__(self) -> None:
        self.found: dict[str, set[tuple[str, str]]] = {"attributes": set(), "capacity": set()}
        self.driver = False
        self.multiple = False
        self.everything = False
        self.representation = False

    def visit(self, e: Expr, paths: _Paths) -> None:
        """Record what a node reads.

        Args:
            e: the node.
            paths: local variables that are parts of the device, with the path to that part.
        """
        path = _path(e, paths)
        if path is not None:
            self.note(path)
            return
        if isinstance(e, Call) and e.function in _SENSITIVE:
            self.representation = True
        if isinstance(e, Call) and e.function == "@in" and isinstance(e.args[0], Literal):
            container = _path(e.args[1], paths)
            if container is not None and len(container) == 3:
                self.note((*container, str(e.args[0].value)))
                return
        if isinstance(e, Comprehension):
            self.fold(e, paths)
            return
        for child in children(e):
            self.visit(child, paths)

    def fold(self, e: Comprehension, paths: _Paths) -> None:
        bound = _path(e.accu_init, paths) if e.is_bind else None
        if bound is None or len(bound) == 4:
            self.visit(e.accu_init, paths)
        self.visit(e.iter_range, paths)
        inner: _Paths = {**paths, e.accu_var: bound}
        if e.is_bind:
            self.visit(e.result, inner)
            return
        loop: _Paths = {**inner, e.iter_var: None, e.iter_var2 or e.iter_var: None}
        self.visit(e.condition, loop)
        self.visit(e.step, loop)
        self.visit(e.result, inner)

    def note(self, path: tuple[str, ...]) -> None:
        match path:
            case ("device", "driver", *_):
                self.driver = True
            case ("device", "allowMultipleAllocations", *_):
                self.multiple = True
            case ("device", ("attributes" | "capacity") as which, domain, name, *_):
                self.found[which].add((domain, name))
            case _:
                self.everything = True


def _path(e: Expr, paths: _Paths) -> tuple[str, ...] | None:
    """Return ``("device", "attributes", domain, name)`` or a prefix of it, if the node is such a chain."""
    if isinstance(e, Ident):
        return paths.get(e.name, ("device",) if e.name == "device" else None)
    key: str | None = None
    operand: Expr | None = None
    if isinstance(e, Select):
        if e.as_ident:
            return None
        operand, key = e.operand, e.field
        if e.test_only:
            inner = _path(operand, paths)
            # has(device.driver) reads nothing, and has() of a domain is always true.
            if inner is not None and len(inner) <= 2:
                return None
    elif isinstance(e, Call) and e.function in ("_[_]", "_[?_]", "_?._"):
        operand, constant = e.args
        if isinstance(constant, Literal) and isinstance(constant.value, str):
            key = constant.value
    if key is None or operand is None:
        return None
    base = _path(operand, paths)
    return None if base is None else (*base, key)


def find_references(root: Expr) -> References:
    """Return what the expression can see; where that is not certain, more than it does see."""
    finder = _Finder()
    finder.visit(root, {})
    return References(
        attributes=tuple(sorted(finder.found["attributes"])),
        capacity=tuple(sorted(finder.found["capacity"])),
        driver=finder.driver,
        allow_multiple_allocations=finder.multiple,
        everything=finder.everything,
        representation=finder.representation,
    )
