"""Freezing as a table: a pool whose devices change their form is left alone until the change has been seen.

The allocator decides on the slices as the informer has them. While a publisher turns a shared device into a
whole one (or cuts one into partitions), a decision on the old slices could give a share away that would not
be counted any more in the new form. So the pool is frozen in the same step in which it is seen what claims
hold of it, assumed allocations included; then the slices are written; and the pool is open again when the
informer shows what was written.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.ownership import is_newer, newest_devices
from dra_driver.publishing.tables import Transition, total
from dra_driver.resourceslice import SlicePlan

__all__ = [
    "FREEZE_TRANSITIONS",
    "Freeze",
    "FreezeEffect",
    "FreezeEvent",
    "FreezeState",
    "changes_forms",
]


class FreezeState(enum.Enum):
    """Whether the allocator may decide on a pool."""

    OPEN = "it may"
    WRITING = "slices are written that change the form of devices, or a write of one has failed"
    UNSEEN = "they are written, and the informer does not show all of them yet"


class FreezeEvent(enum.Enum):
    """What happens to the slices of a pool."""

    FORMS_CHANGE = "slices are about to be written; devices change their form, or the pool is frozen already"
    WRITTEN = "every write was made, and the informer shows them"
    WRITTEN_UNSEEN = "every write was made, and the informer does not show all of them yet"
    SEEN = "the informer shows the last of them"


class FreezeEffect(enum.Enum):
    """What the allocator has to know at once."""

    BLOCK = "it must leave the pool alone"
    UNBLOCK = "it may decide on the pool again"


_S, _E = FreezeState, FreezeEvent
_BLOCK, _UNBLOCK = (FreezeEffect.BLOCK,), (FreezeEffect.UNBLOCK,)

FREEZE_TRANSITIONS: Final[Mapping[tuple[FreezeState, FreezeEvent], Transition[FreezeState, FreezeEffect]]] = (
    total(
        {
            (_S.OPEN, _E.FORMS_CHANGE): Transition(_S.WRITING, _BLOCK),
            (_S.UNSEEN, _E.FORMS_CHANGE): Transition(_S.WRITING),
            (_S.WRITING, _E.WRITTEN): Transition(_S.OPEN, _UNBLOCK),
            (_S.WRITING, _E.WRITTEN_UNSEEN): Transition(_S.UNSEEN),
            # Nothing was written this time, and the informer has caught up.
            (_S.UNSEEN, _E.WRITTEN): Transition(_S.OPEN, _UNBLOCK),
            (_S.UNSEEN, _E.SEEN): Transition(_S.OPEN, _UNBLOCK),
            # While it is written, seeing what was written so far opens nothing: more may follow.
        },
        FreezeState,
        FreezeEvent,
    )
)


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whether a pool is frozen, and what it waits for.

    Attributes:
        state: as in the table.
        awaited: name of a slice → resourceVersion that the informer must reach.
    """

    state: FreezeState = FreezeState.OPEN
    awaited: Mapping[str, str] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        """Whether the allocator must leave the pool alone."""
        return self.state is not FreezeState.OPEN

    def begin(self) -> tuple[Freeze, tuple[FreezeEffect, ...]]:
        """Return the pool with slices about to be written, and the effects."""
        return self._after(FreezeEvent.FORMS_CHANGE)

    def wrote(self, slice_: ResourceSlice, shown: str) -> Freeze:
        """Return the pool after a write.

        Args:
            slice_: the API server's answer.
            shown: the resourceVersion that the informer has caught up to; it may be empty.
        """
        version = slice_.metadata.resource_version
        if not self.blocked or is_newer(shown, version):
            return self
        return replace(self, awaited={**self.awaited, slice_.metadata.name: version})

    def end(self) -> tuple[Freeze, tuple[FreezeEffect, ...]]:
        """Return the pool after every write was made, and the effects. After an error it stays as it was."""
        return self._after(FreezeEvent.WRITTEN_UNSEEN if self.awaited else FreezeEvent.WRITTEN)

    def saw(self, version: str) -> tuple[Freeze, tuple[FreezeEffect, ...]]:
        """Return the pool after the informer has caught up to a resourceVersion, and the effects.

        What was written up to then has been shown, or never will be: a slice may be deleted before the
        informer has seen it.
        """
        left = {name: v for name, v in self.awaited.items() if not is_newer(version, v)}
        if len(left) == len(self.awaited):
            return self, ()
        now = replace(self, awaited=left)
        return now._after(FreezeEvent.SEEN) if not left else (now, ())

    def _after(self, event: FreezeEvent) -> tuple[Freeze, tuple[FreezeEffect, ...]]:
        move = FREEZE_TRANSITIONS[self.state, event]
        return replace(self, state=move.state), move.effects


def changes_forms(todo: SlicePlan, slices: Iterable[ResourceSlice]) -> bool:
    """Whether a device is withdrawn, or is allocated in another way than before.

    Args:
        todo: what is to be written.
        slices: of the pool, as they are.
    """
    old = newest_devices(slices)
    if todo.empty or not old:
        return False
    new = {d.name: d for w in (*todo.creates, *todo.updates) for d in w.slice.spec.devices}
    touched = {d.name for w in todo.updates if w.replaces is not None for d in w.replaces.spec.devices} | {
        d.name for s in todo.deletes for d in s.spec.devices
    }
    return any(
        (name in touched and name not in new) or (name in new and _form(new[name]) != _form(device))
        for name, device in old.items()
    )


def _form(device: Device) -> tuple[object, ...]:
    return (device.allow_multiple_allocations, device.capacity, device.consumes_counters)
