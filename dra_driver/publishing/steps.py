"""The steps of a publication plan: each is one request or one Event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dra_driver.api.resource import Condition, ResourceSlice
from dra_driver.resourceslice import SliceWrite

__all__ = ["Announce", "DeleteSlice", "NoteAttempt", "NoteStatus", "Step", "WriteSlice"]


@dataclass(frozen=True, slots=True)
class NoteAttempt:
    """Note that slices are about to be created for an epoch, and who allocates.

    Attributes:
        epoch: from now on the publisher knows what becomes of its writes for it.
        publication: fields of ``status.publication``, by their names in the API.
    """

    epoch: int
    publication: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoteStatus:
    """Note what was done, or is about to be.

    Attributes:
        publication: fields of ``status.publication``, by their names in the API; empty: none.
        condition: if None, conditions stay.
    """

    publication: Mapping[str, Any] = field(default_factory=dict)
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class WriteSlice:
    """Create or replace one slice."""

    write: SliceWrite


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    """Delete a slice that is no longer recorded."""

    slice: ResourceSlice


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell people: an Event on the inventory."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Step = NoteAttempt | NoteStatus | WriteSlice | DeleteSlice | Announce
