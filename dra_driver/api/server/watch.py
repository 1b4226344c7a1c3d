"""Answers of the API server to lists and watches."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra_driver.api.meta import ObjectKey, Uid, WireObject

__all__ = ["ObjectList", "Unreadable", "WatchEvent", "WatchEventType"]

T = TypeVar("T", bound=WireObject)
T_co = TypeVar("T_co", bound=WireObject, covariant=True)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that is there and does not have the form of its kind.

    Attributes:
        key: its name.
        uid: its UID; empty where that cannot be read either.
        problem: the field, and what was found there.
        holds_unknown: it is a claim with devices, of which it is not known which they are.
    """

    key: ObjectKey
    uid: Uid
    problem: str
    holds_unknown: bool = False


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A consistent list: the items as of ``resource_version``.

    ``unreadable`` are not among the items, except for claims that say which devices they hold
    (``unreadable.stand_in``).
    """

    items: tuple[T, ...]
    resource_version: str
    unreadable: tuple[Unreadable, ...] = ()


class WatchEventType(enum.Enum):
    """``type`` of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T_co]):
    """One event. For a BOOKMARK only ``metadata.resource_version`` of the object means something.

    Attributes:
        type: what has happened.
        object: as it is now; of one that is ``unreadable`` its metadata, unless ``stands_in``.
        unreadable: why the object is not what the server has.
        stands_in: whether an unreadable object is to be used all the same.
    """

    type: WatchEventType
    object: T_co
    unreadable: Unreadable | None = None
    stands_in: bool = False
