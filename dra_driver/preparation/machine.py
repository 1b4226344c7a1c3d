"""Prepare and unprepare as a table: (state, event) → (state, effects).

The rules that the table keeps:

1. Intent (``SAVE`` as STARTED) is durable before the first side effect; completion (``SAVE`` as COMPLETED)
   after the last one.
2. A record is forgotten, or ended, only after its side effects are undone.
3. Every effect may be carried out twice. A crash between any two of them, followed by ``RESTART`` and the
   kubelet's repetition of its call, ends in the same state as no crash.

The side effects between the two ``SAVE``s go from the GPU to the container: settings of whole GPUs, then
partitions, which need one of the settings, then daemons, which need both, then kernel drivers, then what the
devices' own backends do, then the metadata of what was made, then the document that names all of them. They
are undone the other way round, before ``FORGET``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dra_driver.preparation.claim import ClaimState

__all__ = ["TRANSITIONS", "Effect", "Event", "Transition", "transition"]


class Event(enum.Enum):
    """What happens to a claim."""

    PREPARE = "the kubelet wants it, and there is a plan"
    APPLIED = "all side effects are in place"
    FAILED = "a side effect could not be made"
    RESUME = "the kubelet asks again, and a backend has been at work since it asked last"
    REALLOCATED = "the kubelet wants it with other devices than the record has, which no pod uses any more"
    UNPREPARE = "the kubelet does not need it any more"
    RESTART = "the plugin finds this record, or a file without one, and does not know the devices yet"
    REVIEW = "the plugin knows the devices: after its start, now and then, and when they have changed"
    WITHDRAW = "what the document names is not what the claim was given, or not there"
    REBOOT = "the record is of an earlier boot of the machine"


class Effect(enum.Enum):
    """What is done; each is idempotent."""

    SAVE = "write the record, in the new state, durably"
    NOTE = "write the record if it says something else than the durable one"
    FORGET = "remove the record, durably"
    WRITE_SPEC = "write the CDI document, durably"
    VERIFY_SPEC = "write the CDI document again if the file is missing or differs"
    KEEP_SPEC = "remove the CDI document if it differs"
    REMOVE_SPEC = "remove the CDI document; success where there is none"
    WRITE_METADATA = "write the device metadata files of the claim that are missing or differ"
    REMOVE_METADATA = "remove them; success where there are none"
    CONFIGURE_DEVICES = (
        "set time slice, compute mode and partitioning mode of the GPUs as the claim needs them"
    )
    RESTORE_DEVICES = "set them back where no other claim needs them"
    STRIKE_PARTITIONS = "strike the identities of instances that are gone from the record, durably"
    CREATE_PARTITIONS = "make the partitions of the claim that are not there"
    DESTROY_PARTITIONS = "destroy them; success where they are gone, unmanaged ones are left alone"
    START_DAEMONS = "start the sharing daemons that do not run"
    STOP_DAEMONS = "stop those that no other claim needs"
    BIND_DRIVERS = "bind devices to the kernel driver that the claim asks for"
    RESTORE_DRIVERS = "bind them to what they were bound to before"
    PREPARE_DEVICES = "let the backends of the devices prepare them, as the record says"
    UNPREPARE_DEVICES = "let them undo it; success where nothing was done"


@dataclass(frozen=True, slots=True)
class Transition:
    """The new state and what has to be done, in order."""

    state: ClaimState
    effects: tuple[Effect, ...]


_ABSENT, _STARTED, _COMPLETED = ClaimState.ABSENT, ClaimState.STARTED, ClaimState.COMPLETED
_ENDED = ClaimState.ENDED

_MAKE = (
    Effect.CONFIGURE_DEVICES,
    Effect.CREATE_PARTITIONS,
    Effect.START_DAEMONS,
    Effect.BIND_DRIVERS,
    Effect.PREPARE_DEVICES,
    Effect.WRITE_METADATA,
)
# Whatever is missing is made again: daemons and files can be gone, and the directory of the files may be a
# tmpfs. A container that is restarted in place needs them although the kubelet does not call prepare again.
# What the record says is noted before anything relies on it: instances that had to be made anew have other
# identities, devices may have other nodes, and functions that are bound anew other character devices.
# That an instance is gone is written before another one is made: by the identity of the old one, the new one
# would be unmanaged after a crash.
_MAKE_AGAIN = (
    Effect.CONFIGURE_DEVICES,
    Effect.STRIKE_PARTITIONS,
    Effect.CREATE_PARTITIONS,
    Effect.NOTE,
    Effect.START_DAEMONS,
    Effect.BIND_DRIVERS,
    Effect.NOTE,
    Effect.PREPARE_DEVICES,
    Effect.WRITE_METADATA,
)
# A backend that hangs must not hold up the start: it is asked when the devices are known (REVIEW).
_MAKE_AGAIN_AT_START = tuple(e for e in _MAKE_AGAIN if e is not Effect.PREPARE_DEVICES)
_GIVE_BACK = (
    Effect.REMOVE_SPEC,
    Effect.REMOVE_METADATA,
    Effect.UNPREPARE_DEVICES,
    Effect.RESTORE_DRIVERS,
    Effect.STOP_DAEMONS,
    Effect.DESTROY_PARTITIONS,
    Effect.RESTORE_DEVICES,
)
_UNDO = (*_GIVE_BACK, Effect.FORGET)
# A reboot has bound every function to what the machine's configuration says. At the address of one that was
# bound for the claim may be another one now, and its binding is not ours to change.
_GIVE_BACK_AFTER_REBOOT = tuple(e for e in _GIVE_BACK if e is not Effect.RESTORE_DRIVERS)
# Files without a record.
_CLEAR = (Effect.REMOVE_SPEC, Effect.REMOVE_METADATA)

TRANSITIONS: Final[Mapping[tuple[ClaimState, Event], Transition]] = MappingProxyType(
    {
        (_ABSENT, Event.PREPARE): Transition(_STARTED, (Effect.SAVE, *_MAKE, Effect.WRITE_SPEC)),
        # There is no prepare from STARTED: an earlier attempt that ended half-way and whose undoing failed
        # too is undone first, by its own record, because the new plan may be another one. One that has not
        # ended is resumed.
        (_COMPLETED, Event.PREPARE): Transition(_COMPLETED, (*_MAKE_AGAIN, Effect.VERIFY_SPEC)),
        (_COMPLETED, Event.REVIEW): Transition(_COMPLETED, (*_MAKE_AGAIN, Effect.VERIFY_SPEC)),
        (_COMPLETED, Event.WITHDRAW): Transition(_COMPLETED, (Effect.REMOVE_SPEC,)),
        # Nothing is planned anew, and what was made before the backend is there already.
        (_STARTED, Event.RESUME): Transition(_STARTED, (*_MAKE, Effect.WRITE_SPEC)),
        (_STARTED, Event.APPLIED): Transition(_COMPLETED, (Effect.SAVE,)),
        (_STARTED, Event.FAILED): Transition(_ABSENT, _UNDO),
        # What the record says is undone to its end before the new devices are planned into a record: one that
        # held both would be undone by a version that does not know it, or not at all.
        (_STARTED, Event.REALLOCATED): Transition(_ABSENT, _UNDO),
        (_COMPLETED, Event.REALLOCATED): Transition(_ABSENT, _UNDO),
        # Unknown claims succeed: the kubelet also unprepares what it failed to prepare.
        (_ABSENT, Event.UNPREPARE): Transition(_ABSENT, _CLEAR),
        (_STARTED, Event.UNPREPARE): Transition(_ABSENT, _UNDO),
        (_COMPLETED, Event.UNPREPARE): Transition(_ABSENT, _UNDO),
        (_ABSENT, Event.RESTART): Transition(_ABSENT, _CLEAR),
        (_STARTED, Event.RESTART): Transition(_ABSENT, _UNDO),
        # The document is not written from memory: it stays if it is as it was, and what is to be written
        # waits for the devices to be known. Looked at twice: partitions may have been made anew in between.
        (_COMPLETED, Event.RESTART): Transition(
            _COMPLETED, (Effect.KEEP_SPEC, *_MAKE_AGAIN_AT_START, Effect.KEEP_SPEC)
        ),
        # No container has outlived the reboot, and what was a device's number may be another one's. Nothing
        # is made again for pods that may be gone: the kubelet prepares again for those that are not.
        (_STARTED, Event.REBOOT): Transition(_ABSENT, (*_GIVE_BACK_AFTER_REBOOT, Effect.FORGET)),
        (_COMPLETED, Event.REBOOT): Transition(_ENDED, (*_GIVE_BACK_AFTER_REBOOT, Effect.SAVE)),
        (_ENDED, Event.REBOOT): Transition(_ENDED, _CLEAR),
        (_ENDED, Event.RESTART): Transition(_ENDED, _CLEAR),
        (_ENDED, Event.PREPARE): Transition(_STARTED, (Effect.SAVE, *_MAKE, Effect.WRITE_SPEC)),
        (_ENDED, Event.UNPREPARE): Transition(_ABSENT, (*_CLEAR, Effect.FORGET)),
    }
)


def transition(state: ClaimState, event: Event) -> Transition:
    """Return the transition of a state and an event.

    Raises:
        LookupError: the event cannot happen in that state; a bug of the caller.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LookupError(f"no transition for {event.name} in state {state.name}") from None
