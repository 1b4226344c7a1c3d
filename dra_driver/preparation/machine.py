"""Prepare and unprepare as a table: (state, event) → (state, effects).

The rules that the table keeps:

1. Intent (``SAVE`` as STARTED) is durable before the first side effect; completion (``SAVE`` as COMPLETED)
   after the last one.
2. A record is forgotten only after its side effects are undone.
3. Every effect may be carried out twice. A crash between any two of them, followed by ``RESTART`` and the
   kubelet's repetition of its call, ends in the same state as no crash.

More side effects (partitions, sharing daemons) become more effects between the two ``SAVE``s, with their
reversals before ``FORGET``.
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
    UNPREPARE = "the kubelet does not need it any more"
    RESTART = "the plugin starts and finds this record, or a file without one"


class Effect(enum.Enum):
    """What is done; each is idempotent."""

    SAVE = "write the record, in the new state, durably"
    FORGET = "remove the record, durably"
    WRITE_SPEC = "write the CDI document, durably"
    VERIFY_SPEC = "write the CDI document again if the file is missing or differs"
    REMOVE_SPEC = "remove the CDI document; success where there is none"


@dataclass(frozen=True, slots=True)
class Transition:
    """The new state and what has to be done, in order."""

    state: ClaimState
    effects: tuple[Effect, ...]


_ABSENT, _STARTED, _COMPLETED = ClaimState.ABSENT, ClaimState.STARTED, ClaimState.COMPLETED

TRANSITIONS: Final[Mapping[tuple[ClaimState, Event], Transition]] = MappingProxyType(
    {
        (_ABSENT, Event.PREPARE): Transition(_STARTED, (Effect.SAVE, Effect.WRITE_SPEC)),
        # An earlier attempt ended half-way and its undoing failed too: clear away what it may have left.
        (_STARTED, Event.PREPARE): Transition(_STARTED, (Effect.REMOVE_SPEC, Effect.SAVE, Effect.WRITE_SPEC)),
        (_COMPLETED, Event.PREPARE): Transition(_COMPLETED, (Effect.VERIFY_SPEC,)),
        (_STARTED, Event.APPLIED): Transition(_COMPLETED, (Effect.SAVE,)),
        (_STARTED, Event.FAILED): Transition(_ABSENT, (Effect.REMOVE_SPEC, Effect.FORGET)),
        # Unknown claims succeed: the kubelet also unprepares what it failed to prepare.
        (_ABSENT, Event.UNPREPARE): Transition(_ABSENT, (Effect.REMOVE_SPEC,)),
        (_STARTED, Event.UNPREPARE): Transition(_ABSENT, (Effect.REMOVE_SPEC, Effect.FORGET)),
        (_COMPLETED, Event.UNPREPARE): Transition(_ABSENT, (Effect.REMOVE_SPEC, Effect.FORGET)),
        (_ABSENT, Event.RESTART): Transition(_ABSENT, (Effect.REMOVE_SPEC,)),
        (_STARTED, Event.RESTART): Transition(_ABSENT, (Effect.REMOVE_SPEC, Effect.FORGET)),
        # The directory may be a tmpfs, and a container that is restarted in place needs the file although the
        # kubelet does not call prepare again.
        (_COMPLETED, Event.RESTART): Transition(_COMPLETED, (Effect.VERIFY_SPEC,)),
    }
)


def transition(state: ClaimState, event: Event) -> Transition:
    """Looks the pair up.

    Raises:
        LookupError: the event cannot happen in that state; a bug of the caller.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LookupError(f"no transition for {event.name} in state {state.name}") from None
