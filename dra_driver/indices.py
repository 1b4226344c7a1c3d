"""Indices of objects, whose lists are kept in order: a look at some of thousands costs no more than some.

Who may create pods decides how many name one claim, and how many claims one names. So a change of an object
costs work for the values that are new or gone with it, and not for all that share them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

__all__ = ["Indices"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Values of one object that are worked out again rather than kept: most have few, and each would take memory.
_FEW: Final = 8


class Indices(Generic[K, T]):
    """Keys of objects by values that functions give of them.

    Args:
        functions: name → function that gives the values under which an object is found.
    """

    def __init__(self, functions: Mapping[str, Callable[[T], Iterable[Hashable]]]) -> None:
        self._functions = dict(functions)
        # Keys have an order (``Any``: no type says so), and each list is sorted by it.
        self._keys: dict[str, dict[Hashable, list[Any]]] = {name: {} for name in self._functions}
        self._many: dict[str, dict[K, tuple[Hashable, ...]]] = {name: {} for name in self._functions}

    def change(self, key: K, old: T | None, new: T | None) -> None:
        """Take in another version of an object with the same key.

        Args:
            key: of both.
            old: as it was taken in last; None: it was not there.
            new: as it is now; None: it is gone.
        """
        for name, function in self._functions.items():
            many = self._many[name]
            before = many.pop(key, None)
            if before is None:
                before = () if old is None else tuple(dict.fromkeys(function(old)))
            now = () if new is None else tuple(dict.fromkeys(function(new)))
            if now == before:
                now = before  # one of two equal ones is kept
            else:
                self._move(name, key, before, now)
            if len(now) > _FEW:
                many[key] = now

    def _move(self, name: str, key: K, before: Sequence[Hashable], now: Sequence[Hashable]) -> None:
        index = self._keys[name]
        left, come = set(now), set(before)
        for value in before:
            if value not in left:
                keys = index[value]
                del keys[bisect_left(keys, key)]
                if not keys:
                    del index[value]
        for value in now:
            if value not in come:
                keys = index.setdefault(value, [])
                keys.insert(bisect_left(keys, key), key)

    def keys(self, index: str, value: Hashable) -> Sequence[K]:
        """Return the keys of the objects with a value, in order; nothing may change while it is read."""
        return self._keys[index].get(value, ())

    def after(self, index: str, value: Hashable, last: K | None, most: int) -> Sequence[K]:
        """Return some of the keys of the objects with a value, in order.

        Args:
            index: name of the index.
            value: that they have.
            last: only those behind it; if None, from the first one on.
            most: number of keys.
        """
        keys = self._keys[index].get(value, ())
        at = 0 if last is None else bisect_right(keys, last)
        return keys[at : at + most]

    def number(self, index: str, value: Hashable) -> int:
        """Return the number of objects with a value."""
        return len(self._keys[index].get(value, ()))
