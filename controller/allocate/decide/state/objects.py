"""Objects as decisions keep them: by key and by index, and collected between two looks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, WireObject
from dra_driver.api.names import (
    ALLOCATED_CONDITION,
    EXTENDED_RESOURCE_ANNOTATION,
    GROUP_LABEL,
    SET_ASIDE_CONDITION,
    TOPOLOGY_ANNOTATION,
)
from dra_driver.api.resource import ResourceClaim
from dra_driver.indices import Indices
from dra_driver.resourceclaim import claims_named
from dra_driver.structured import GROUP_KEYS, group_name

__all__ = [
    "CLAIM_INDEX",
    "GROUP_INDEX",
    "NODE_INDEX",
    "Collected",
    "GroupKey",
    "GroupsOf",
    "Objects",
    "called",
    "claims_of",
    "group_of_claim",
    "groups_by",
    "is_ending",
    "is_finished",
    "nodes_of",
    "pod_group_key",
    "pod_group_of",
    "same_but_reason",
    "same_for_decisions",
]

T = TypeVar("T", bound=WireObject)

GroupKey = tuple[str, str]
"""Namespace and name of a group. No label has a value with a slash, and so all PodGroups have another key."""

GroupsOf = Callable[[Pod], Iterable[GroupKey]]
"""Function of ``GROUP_INDEX``: yields the groups of a pod, as far as it says itself."""

CLAIM_INDEX: Final = "claim"
GROUP_INDEX: Final = "group"
NODE_INDEX: Final = "node"
_POD_GROUP: Final = "PodGroup/"
_OWN: Final = (ALLOCATED_CONDITION, SET_ASIDE_CONDITION)
_READ_OF_CLAIM: Final = (*GROUP_KEYS, TOPOLOGY_ANNOTATION, EXTENDED_RESOURCE_ANNOTATION)


def is_finished(pod: Pod) -> bool:
    """Return whether the containers of a pod will not run again."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_ending(pod: Pod) -> bool:
    """Return whether a pod has ended, or is being deleted."""
    return is_finished(pod) or pod.metadata.deletion_timestamp is not None


def claims_of(pod: Pod) -> Iterable[ObjectKey]:
    """Return the claims that a pod uses, each once: the function of ``CLAIM_INDEX``."""
    return dict.fromkeys(claims_named(pod))


def groups_by(others: Collection[str]) -> GroupsOf:
    """Return the function of ``GROUP_INDEX`` for pods.

    Args:
        others: labels of others that make pods a group, unless they belong to a PodGroup.
    """

    def groups_of(pod: Pod) -> Iterable[GroupKey]:
        meta, native = pod.metadata, pod.spec.pod_group
        if name := group_name(meta.labels or {}, meta.annotations or {}, () if native else others):
            yield (meta.namespace, name)
        if native:
            yield pod_group_key(ObjectKey(meta.namespace, native))

    return groups_of


def group_of_claim(claim: ResourceClaim) -> Iterable[GroupKey]:
    """Yield the group on the label, if any: the function of ``GROUP_INDEX``."""
    if name := (claim.metadata.labels or {}).get(GROUP_LABEL, ""):
        yield (claim.metadata.namespace, name)


def pod_group_key(group: ObjectKey) -> GroupKey:
    """Return the key of the group that a PodGroup is."""
    return group.namespace, _POD_GROUP + group.name


def pod_group_of(key: GroupKey) -> ObjectKey | None:
    """Return the PodGroup that a group is; None where it is one by labels."""
    namespace, name = key
    return ObjectKey(namespace, name.removeprefix(_POD_GROUP)) if name.startswith(_POD_GROUP) else None


def called(name: str, namespace: str = "") -> str:
    """Return a group for people: ``group train``, ``PodGroup train``, or ``PodGroup NAMESPACE/train``.

    Args:
        name: in the group's key.
        namespace: if it is to be named.
    """
    kind = "PodGroup" if name.startswith(_POD_GROUP) else "group"
    within = f"{namespace}/" if namespace else ""
    return f"{kind} {within}{name.removeprefix(_POD_GROUP)}"


def nodes_of(pod: Pod) -> Iterable[str]:
    """Yield the node that a pod runs on, if it is bound and has not ended: the function of ``NODE_INDEX``."""
    if pod.spec.node_name and not is_finished(pod):
        yield pod.spec.node_name


def same_but_reason(old: Pod, pod: Pod) -> bool:
    """Return whether nothing has changed that is kept but our own conditions, which say why a pod waits."""
    replace = msgspec.structs.replace
    return (
        _other_conditions(old) == _other_conditions(pod)
        and old.spec == pod.spec
        and old.status == replace(pod.status, conditions=old.status.conditions)
        and old.metadata == replace(pod.metadata, resource_version=old.metadata.resource_version)
        and old.left_out == pod.left_out
    )


def same_for_decisions(old: ResourceClaim, claim: ResourceClaim) -> bool:
    """Return whether nothing has changed of a claim that decisions read, but for its resourceVersion.

    Its author may change other labels and annotations as fast as the API server takes it, and thousands of
    pods may use it.
    """
    if old.spec != claim.spec or old.status != claim.status or old.left_out != claim.left_out:
        return False
    before, now = old.metadata, claim.metadata
    read = all(
        (x or {}).get(key) == (y or {}).get(key)
        for x, y in ((before.labels, now.labels), (before.annotations, now.annotations))
        for key in _READ_OF_CLAIM
    )
    same = {
        "resource_version": now.resource_version,
        "labels": now.labels,
        "annotations": now.annotations,
    }
    return read and msgspec.structs.replace(before, **same) == now


def _other_conditions(pod: Pod) -> list[Mapping[str, str | int | None]]:
    return [c for c in pod.status.conditions if c.get("type") not in _OWN]


class Objects(Generic[T]):
    """The newest version of each object of one kind, with indices.

    Args:
        indices: name → function that gives the values under which an object is found.
    """

    def __init__(self, indices: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._indices: Indices[ObjectKey, T] = Indices(indices or {})
        self._followers: list[Callable[[T | None, T | None], None]] = []

    def follow(self, changed: Callable[[T | None, T | None], None]) -> None:
        """Call a function with the version before and the one from now on whenever an object changes."""
        self._followers.append(changed)

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
        return list(self.each(index, value))

    def each(self, index: str, value: Hashable) -> Iterator[T]:
        """Yield what ``by_index`` returns, for looks that end early; nothing may change meanwhile."""
        return map(self._objects.__getitem__, self._indices.keys(index, value))

    def count(self, index: str, value: Hashable) -> int:
        """Return the number of objects with a value in an index."""
        return self._indices.number(index, value)

    def put(self, item: T) -> T | None:
        """Add or replace an object; return the version before."""
        key = item.key
        old = self._objects.get(key)
        self._indices.change(key, old, item)
        self._objects[key] = item
        for changed in self._followers:
            changed(old, item)
        return old

    def remove(self, key: ObjectKey) -> T | None:
        """Forget an object; return it, if it was there."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._indices.change(key, old, None)
            for changed in self._followers:
                changed(old, None)
        return old


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
