"""Answers of the API server to lists and watches."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra_driver.api.meta import WireObject

__all__ = ["ObjectList", "WatchEvent", "WatchEventType"]

T = TypeVar("T", bound=WireObject)
T_co = TypeVar("T_co", bound=WireObject, covariant=True)


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A consistent list: the items as of ``resource_version``."""

    items: tuple[T, ...]
    resource_version: str


class WatchEventType(enum.Enum):
    """``type`` of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T_co]):
    """One event. For a BOOKMARK only ``metadata.resource_version`` of the object means something."""

    type: WatchEventType
    object: T_co
