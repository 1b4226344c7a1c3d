"""Registration epochs as a table: for which epoch slices are created, and when they must not be.

The kubelet deletes a node's slices when it starts and 30 s after it has lost the plugin, no matter which
program wrote them. The plugin raises ``status.registration.epoch`` when they may come back; only then are
slices created that were there before. ``status.publication`` records for which epoch that was done, so a
dead plugin is never advertised again, not even by a publisher that is killed and restarted:

1. ``attempted`` = epoch is noted, before the first slice is created;
2. slices are written;
3. ``epoch`` and the names of the slices are noted; what is no longer named is deleted after that.

A publisher that finds ``attempted`` ahead of ``epoch`` does not know whether slices that are missing were
never created or were deleted by the kubelet since. It creates none and notes the epoch: a plugin that lives
then sees that its slices are gone and raises the epoch.

The plugin itself, publishing for its own node, knows whether it lives. It needs no ``attempted``: one that
was killed in between begins a new epoch when it is back. So for it every epoch that is asked for is
``BEGUN``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from dra_driver.api.own.inventory import Publication, Registration
from dra_driver.ownership import missing_slices
from dra_driver.publishing.tables import Transition, total

__all__ = [
    "EPOCH_TRANSITIONS",
    "EpochEffect",
    "EpochEvent",
    "EpochState",
    "asks_again",
    "confirmed",
    "epoch_state",
]


class EpochState(enum.Enum):
    """How far the publication of a pool is; made of what is recorded, but for ``BEGUN``."""

    UNPUBLISHED = "nothing was published, and nothing is asked for"
    ASKED = (
        "the registered plugin asks for slices of a newer epoch, and no publisher has begun to create them"
    )
    BEGUN = "this process has begun to create them, and knows of every write what became of it"
    UNCERTAIN = "a publisher has begun to create them, and it is not known what became of its writes"
    PUBLISHED = "the recorded slices are there"
    VANISHED = "recorded slices are gone"


class EpochEvent(enum.Enum):
    """What happens to a pool."""

    LOOK = "the publisher looks at it, and the plugin is registered"
    LOOK_UNREGISTERED = "the publisher looks at it, and the plugin is not registered"
    UNANSWERED = "the API server has not answered a write of a slice"
    SLICE_DELETED = "a slice that was created for it is seen to be deleted"
    INVENTORY_DELETED = "its DeviceInventory is deleted, and with it the record"


class EpochEffect(enum.Enum):
    """What the publisher does; all of it in the order of the table."""

    NOTE_ATTEMPT = "note ``attempted``, and remember that this process did"
    FORGET_ATTEMPT = "forget that this process knows what became of its writes"
    NOTE_ALLOCATOR = "note who allocates before slices say so: who must not is stopped first"
    WRITE_SLICES = "create and update slices"
    UPDATE_SLICES = "update slices; do nothing at all where one would have to be created"
    NOTE_PUBLICATION = "note epoch, generation and names of the slices"
    CLOSE = "note the epoch, with the names that the slices would have"
    DELETE_STALE = "delete slices that are no longer recorded"


_S, _E, _F = EpochState, EpochEvent, EpochEffect
_PUBLISH: Final = (_F.NOTE_ALLOCATOR, _F.WRITE_SLICES, _F.NOTE_PUBLICATION, _F.DELETE_STALE)
_UPDATE: Final = (_F.NOTE_ALLOCATOR, _F.UPDATE_SLICES, _F.NOTE_PUBLICATION, _F.DELETE_STALE)
_FORGET: Final = (_F.FORGET_ATTEMPT,)

EPOCH_TRANSITIONS: Final[Mapping[tuple[EpochState, EpochEvent], Transition[EpochState, EpochEffect]]] = total(
    {
        (_S.ASKED, _E.LOOK): Transition(_S.PUBLISHED, (_F.NOTE_ATTEMPT, *_PUBLISH)),
        (_S.BEGUN, _E.LOOK): Transition(_S.PUBLISHED, _PUBLISH),
        # What is missing stays missing until the plugin asks: VANISHED comes next where something is.
        (_S.UNCERTAIN, _E.LOOK): Transition(_S.PUBLISHED, (_F.CLOSE,)),
        # Within the epoch a pool may grow, but only for a plugin that is there.
        (_S.PUBLISHED, _E.LOOK): Transition(_S.PUBLISHED, _PUBLISH),
        (_S.PUBLISHED, _E.LOOK_UNREGISTERED): Transition(_S.PUBLISHED, _UPDATE),
        # The slice may have been created or not.
        (_S.BEGUN, _E.UNANSWERED): Transition(_S.UNCERTAIN, _FORGET),
        # Created by this process, deleted by the kubelet since: it must not be created a second time.
        (_S.BEGUN, _E.SLICE_DELETED): Transition(_S.UNCERTAIN, _FORGET),
        (_S.PUBLISHED, _E.SLICE_DELETED): Transition(_S.VANISHED, _FORGET),
        # Another inventory of the same name counts its epochs from 0.
        **{(state, _E.INVENTORY_DELETED): Transition(_S.UNPUBLISHED, _FORGET) for state in _S},
    },
    EpochState,
    EpochEvent,
)


def epoch_state(
    registration: Registration, publication: Publication, *, begun: int, present: Collection[str]
) -> EpochState:
    """Return the state of a pool.

    Args:
        registration: of the inventory.
        publication: of the inventory.
        begun: the epoch for which this process has begun to create slices, with every write answered, or 0.
        present: names of the slices that exist.
    """
    if registration.registered and registration.epoch > publication.epoch:
        if begun == registration.epoch:
            return EpochState.BEGUN
        return EpochState.UNCERTAIN if publication.attempted >= registration.epoch else EpochState.ASKED
    if not publication.epoch:
        return EpochState.UNPUBLISHED
    return EpochState.VANISHED if missing_slices(publication, present) else EpochState.PUBLISHED


# --- the plugin's part: it alone raises the epoch -----------------------------------------------------------


def confirmed(held: Registration, *, registered: bool | None, anew: bool) -> Registration:
    """Return the registration after what the kubelet has said.

    Args:
        held: as recorded.
        registered: whether the kubelet has the plugin; if None, it has said nothing since the plugin started.
        anew: whether it has confirmed the plugin since ``held`` was recorded.
    """
    return msgspec.structs.replace(
        held,
        registered=held.registered if registered is None else registered,
        epoch=held.epoch + (1 if anew else 0),
    )


def asks_again(held: Registration) -> Registration:
    """Return the registration of a plugin that is registered and whose slices are gone."""
    return msgspec.structs.replace(held, epoch=held.epoch + 1)
