"""``metadata`` of API objects, and the table of the kinds that we read or write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, NewType, TypeVar

import msgspec

__all__ = [
    "DriverName",
    "ExactWire",
    "ObjectKey",
    "ObjectMeta",
    "OwnerReference",
    "PoolName",
    "Resource",
    "Uid",
    "Wire",
    "WireObject",
]

Uid = NewType("Uid", str)
PoolName = NewType("PoolName", str)
DriverName = NewType("DriverName", str)


class ObjectKey(NamedTuple):
    """Namespace (empty for cluster-scoped kinds) and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of the wire structs: immutable, camelCase on the wire, absent where the value is the default.

    Unknown fields are ignored on reading (a newer API server may send more); ``codec.decode_strict``
    refuses them where people write the object.
    """


class ExactWire(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of claims, classes and slices that decide which device a claim gets.

    An unknown field in one of them is noted in the member ``newer`` around it (``dra_driver.api.newer``).
    """


class OwnerReference(Wire, frozen=True, kw_only=True):
    """``metadata.ownerReferences[]``."""

    api_version: str
    kind: str
    name: str
    uid: Uid
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """``metadata``, as far as we use it. Times are RFC 3339 text, as on the wire."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: Uid = Uid("")
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class WireObject(Wire, frozen=True, kw_only=True):
    """Base of the kinds: everything that has ``metadata``."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)


_T = TypeVar("_T", bound=WireObject)


class Resource(Generic[_T]):
    """One kind as the API serves it: group, version, plural, scope, and the struct that holds it.

    Attributes:
        group: API group; empty for the core group.
        version: for example ``v1``.
        plural: name in the URL.
        kind: name in the object.
        namespaced: whether objects live in namespaces.
        type: struct of one object.
        keep: gives what is kept of an object that is listed or watched; None: all that the struct has.
    """

    __slots__ = ("group", "keep", "kind", "namespaced", "plural", "type", "version")

    def __init__(
        self, group: str, version: str, plural: str, kind: str, type_: type[_T], *, namespaced: bool
    ) -> None:
        self.group = group
        self.version = version
        self.plural = plural
        self.kind = kind
        self.type = type_
        self.namespaced = namespaced
        self.keep: Callable[[_T], _T] | None = None

    def keeping(self, keep: Callable[[_T], _T]) -> Resource[_T]:
        """Return the same kind, of whose objects less is kept, each made smaller as soon as it is decoded."""
        other = copy.copy(self)
        other.keep = keep
        return other

    @property
    def api_version(self) -> str:
        """``group/version``, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection (no name) or of one object.

        A namespaced kind without a namespace gives the collection over all namespaces.
        """
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [prefix]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [p for p in (name, subresource) if p]
        return "/".join(parts)

    def __repr__(self) -> str:
        return f"<{self.plural}.{self.group or 'core'}/{self.version}>"
