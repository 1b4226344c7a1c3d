"""Objects as decisions keep them: by key and by index, and collected between two looks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, WireObject
from dra_driver.api.names import ALLOCATED_CONDITION, GROUP_LABEL
from dra_driver.api.resource import ResourceClaim
from dra_driver.resourceclaim import pod_claims

__all__ = [
    "CLAIM_INDEX",
    "GROUP_INDEX",
    "NODE_INDEX",
    "Collected",
    "Objects",
    "claims_of",
    "groups_of",
    "is_finished",
    "nodes_of",
    "same_but_reason",
]

T = TypeVar("T", bound=WireObject)

CLAIM_INDEX: Final = "claim"
GROUP_INDEX: Final = "group"
NODE_INDEX: Final = "node"


def is_finished(pod: Pod) -> bool:
    """Return whether the containers of a pod will not run again."""
    return pod.status.phase in ("Succeeded", "Failed")


def claims_of(pod: Pod) -> Iterable[ObjectKey]:
    """Return the claims that a pod uses: the function of ``CLAIM_INDEX``."""
    return [used.key for used in pod_claims(pod) if used.key is not None]


def groups_of(item: Pod | ResourceClaim) -> Iterable[tuple[str, str]]:
    """Yield namespace and name of the group on the label, if any: the function of ``GROUP_INDEX``."""
    name = (item.metadata.labels or {}).get(GROUP_LABEL, "")
    if name:
        yield (item.metadata.namespace, name)


def nodes_of(pod: Pod) -> Iterable[str]:
    """Yield the node that a pod is bound to, if it is: the function of ``NODE_INDEX``."""
    if pod.spec.node_name:
        yield pod.spec.node_name


def same_but_reason(old: Pod, pod: Pod) -> bool:
    """Return whether nothing has changed but our own condition, which says why a pod waits."""
    replace = msgspec.structs.replace
    others = _other_conditions(pod)
    return (
        old.status.conditions != pod.status.conditions
        and _other_conditions(old) == others
        and old.spec == pod.spec
        and old.status == replace(pod.status, conditions=old.status.conditions)
        and old.metadata == replace(pod.metadata, resource_version=old.metadata.resource_version)
    )


def _other_conditions(pod: Pod) -> list[Mapping[str, str | int | None]]:
    return [c for c in pod.status.conditions if c.get("type") != ALLOCATED_CONDITION]


class Objects(Generic[T]):
    """The newest version of each object of one kind, with indices.

    Args:
        indices: name → function that gives the values under which an object is found.
    """

    def __init__(self, indices: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._functions = dict(indices or {})
        self._indices: dict[str, dict[Hashable, set[ObjectKey]]] = {name: {} for name in self._functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def get(self, key: ObjectKey) -> T | None:
        """Return the object with a key."""
        return self._objects.get(key)

    def by_name(self, name: str) -> T | None:
        """Return the cluster-scoped object with a name."""
        return self._objects.get(ObjectKey("", name))

    def by_index(self, index: str, value: Hashable) -> list[T]:
        """Return the objects with a value in an index, in the order of their keys."""
        return [self._objects[key] for key in sorted(self._indices[index].get(value, ()))]

    def count(self, index: str, value: Hashable) -> int:
        """Return the number of objects with a value in an index."""
        return len(self._indices[index].get(value, ()))

    def put(self, item: T) -> T | None:
        """Add or replace an object; return the version before."""
        key = item.key
        old = self._objects.get(key)
        if old is not None:
            self._unindex(key, old)
        self._objects[key] = item
        for name, function in self._functions.items():
            for value in function(item):
                self._indices[name].setdefault(value, set()).add(key)
        return old

    def remove(self, key: ObjectKey) -> T | None:
        """Forget an object; return it, if it was there."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._unindex(key, old)
        return old

    def _unindex(self, key: ObjectKey, old: T) -> None:
        for name, function in self._functions.items():
            index = self._indices[name]
            for value in function(old):
                keys = index.get(value)
                if keys is not None:
                    keys.discard(key)
                    if not keys:
                        del index[value]


class Collected(Generic[T]):
    """Changes of cluster-scoped objects since they were last taken: many small ones become one step."""

    def __init__(self) -> None:
        self._changed: dict[str, T] = {}
        self._removed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._changed or self._removed)

    def put(self, item: T) -> None:
        """Note an object that was added or changed."""
        self._changed[item.metadata.name] = item
        self._removed.discard(item.metadata.name)

    def remove(self, name: str) -> None:
        """Note that an object is gone."""
        self._changed.pop(name, None)
        self._removed.add(name)

    def take(self) -> tuple[list[T], set[str]]:
        """Return the changed objects and the names of those that are gone; from now on there are none."""
        changed, removed = list(self._changed.values()), self._removed
        self._changed, self._removed = {}, set()
        return changed, removed
