"""Closures of comprehensions: ``all``, ``exists``, ``filter``, ``map``, and any other fold."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.cel.errors import CelPanic, CelRuntimeError, no_such_overload
from dra_driver.cel.evaluation.closures import UNFOLDED, Closure, Items, attempt
from dra_driver.cel.values.values import (
    Value,
    key_of,
    plain_key,
    shown,
)

__all__ = ["fold", "list_collector", "map_collector", "quantifier"]


def quantifier(items: Items, test: Closure, decisive: bool, stop: int) -> Closure:
    """Return the closure of the fold ``all`` or ``exists``; ``stop`` is the cost of an early end."""
    other = not decisive

    def quantified(f: Value) -> Value:
        error: CelRuntimeError | None = None
        rest = iter(items.bind(f))
        for _ in rest:
            try:
                value = test(f)
            except CelPanic:
                raise
            except CelRuntimeError as e:
                error = error or e.with_traceback(None)
                continue
            if value is decisive:
                if stop and next(rest, UNFOLDED) is not UNFOLDED:
                    f.charge(stop)
                return decisive
            if value is not other:
                error = error or no_such_overload()
        if error is not None:
            raise error.with_traceback(None)
        return other

    return quantified


def fold(
    items: Items, accu: int, init: Closure, condition: Closure, step: Closure, result: Closure
) -> Closure:
    """Return the closure of a fold of any form; ``accu`` is the slot of its accumulator."""

    def folded(f: Value) -> Value:
        local = f.locals
        local[accu] = attempt(init, f)
        for _ in items.bind(f):
            if condition(f) is False:
                break
            local[accu] = attempt(step, f)
        return result(f)

    return folded


def selected(items: Items, test: Closure | None, f: Value) -> Iterable[None]:
    for _ in items.bind(f):
        if test is not None:
            value = test(f)
            if value is False:
                continue
            if value is not True:
                raise no_such_overload()
        yield


def list_collector(items: Items, test: Closure | None, element: Closure) -> Closure:
    return lambda f: [element(f) for _ in selected(items, test, f)]


def map_collector(items: Items, test: Closure | None, parts: list[Closure]) -> Closure:
    def collect(f: Value) -> dict[Value, Value]:
        found: dict[Value, Value] = {}
        for _ in selected(items, test, f):
            if len(parts) == 2:
                new = {key_of(parts[0](f)): parts[1](f)}
            else:
                new = parts[0](f)
                if not isinstance(new, dict):
                    raise no_such_overload()
            for key, value in new.items():
                if key in found:
                    raise CelRuntimeError(f"insert failed: key {shown(plain_key(key))} already exists")
                found[key] = value
        return found

    return collect
