"""What an informer has shown since the last ``take``: many small changes become one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from dra_driver.api.meta import WireObject
from dra_driver.kube.informer import Handler, Informer

__all__ = ["Changes"]

T = TypeVar("T", bound=WireObject)


def _different(_old: object, _new: object) -> bool:
    return False


class Changes(Generic[T]):
    """Collects changes of cluster-wide objects.

    Args:
        informer: followed from now on; what it has already counts as new.
        same: whether an update says nothing new.
    """

    def __init__(self, informer: Informer[T], same: Callable[[T, T], bool] = _different) -> None:
        self._changed: dict[str, T] = {}
        self._removed: set[str] = set()
        self._same = same
        informer.add_handler(Handler(self._put, self._update, self._remove))

    def __bool__(self) -> bool:
        return bool(self._changed or self._removed)

    def take(self) -> tuple[list[T], set[str]]:
        """Return the objects that were added or changed and the names of those that are gone; start anew."""
        changed, removed = list(self._changed.values()), self._removed
        self._changed, self._removed = {}, set()
        return changed, removed

    def _put(self, item: T) -> None:
        self._changed[item.metadata.name] = item
        self._removed.discard(item.metadata.name)

    def _update(self, old: T, new: T) -> None:
        if not self._same(old, new):
            self._put(new)

    def _remove(self, item: T) -> None:
        self._changed.pop(item.metadata.name, None)
        self._removed.add(item.metadata.name)
