"""The round of one preemptor as a table: what each event does in each state. No I/O, no clock.

A *round* begins with the decision which pods are removed for a pod that waits (or for its group), and lasts
until its time-out, whatever becomes of it: nobody is removed twice for one preemptor within that time. The
decision is written down before the first removal. A controller that starts anew finds it, solves again and
goes on only where it comes to the same end: what is written down removes nobody by itself.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.allocate.decide import PodID, PodPlacement
from controller.allocate.plans import ChosenVictim
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.fleet import PreemptionRecord
from dra_driver.kube import Backoff

__all__ = ["TABLE", "Effect", "Event", "Round", "State", "step"]


class State(enum.Enum):
    """Where a round stands."""

    RECORDING = "recording"
    """The decision is being written down; nothing has been removed."""
    REMOVING = "removing"
    """It is written down, and its victims are being removed."""
    WAITING = "waiting"
    """All victims are removed or are ending; the preemptor has not got its devices yet."""
    FOUND = "found"
    """A decision of a process before this one: its devices are set aside, and it is solved again."""
    RESTING = "resting"
    """Nothing is done any more, and no other round begins before the time-out."""
    OVER = "over"
    """It is forgotten: another round may begin."""


class Event(enum.Enum):
    """What happens to a round."""

    RECORDED = "recorded"
    """The decision is written down."""
    NOT_RECORDED = "not recorded"
    """The API server has refused to write it down: the preemptor has changed, or the right is missing."""
    UNANSWERED = "unanswered"
    """Whether it is written down is not known."""
    REMOVED = "removed"
    """The last of the victims has been removed, or ends already."""
    SAME = "same"
    """Solved again: pods are to be removed, and all of them are among the victims that are written down."""
    ENOUGH = "enough"
    """Solved again: no pod need be removed any more."""
    OTHER = "other"
    """Solved again: it does not come to the same end; or a victim may not be removed any more."""
    SERVED = "served"
    """The preemptor has its devices."""
    CHANGED = "changed"
    """The preemptor may not preempt any more: it waits for something else, or no pod has a lower priority."""
    GONE = "gone"
    """The preemptor has ended, or its group has no member any more."""
    TIMED_OUT = "timed out"
    """The time-out of the round is over."""


class Effect(enum.Enum):
    """What is to be done, in the order in which a row of the table names it."""

    SET_ASIDE = "set aside"
    """Keep the devices of the decision from pods of the same priority, or of a lower one."""
    REMOVE = "remove"
    """Remove the victims that are left, each after another look at it and at the preemptor."""
    RELEASE = "release"
    """Give up the devices that are set aside."""
    CLOSE = "close"
    """Write down that the round is closed."""


@dataclass(slots=True)
class Round:
    """One round.

    Attributes:
        case: what there is one round for.
        pod: on which it is written down.
        members: UIDs of the preemptor's pods.
        priority: of the preemptor.
        begun: by the monotonic clock.
        since: the same as RFC 3339.
        record: the decision.
        places: devices that are set aside.
        left: victims that are not removed yet, in their order.
        state: where it stands.
        victims: all that are written down, as far as they were there.
        kept_aside: whether devices are set aside.
        next_try: before then no victim is removed.
        is_refused: whether the removal of the next victim was refused when it was tried last.
    """

    case: Hashable
    pod: PodID
    members: frozenset[Uid]
    keys: tuple[ObjectKey, ...]
    priority: int
    begun: float
    since: str
    record: PreemptionRecord
    places: tuple[PodPlacement, ...]
    left: list[ChosenVictim]
    state: State
    victims: tuple[PodID, ...] = ()
    kept_aside: bool = False
    next_try: float = 0.0
    is_refused: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(base=1.0, cap=15.0))


Step = tuple[State, tuple[Effect, ...]]

_END: Final = (Effect.RELEASE, Effect.CLOSE)
_S, _E = State, Event

TABLE: Final[Mapping[tuple[State, Event], Step]] = {
    (_S.RECORDING, _E.RECORDED): (_S.REMOVING, (Effect.SET_ASIDE, Effect.REMOVE)),
    (_S.RECORDING, _E.NOT_RECORDED): (_S.OVER, ()),
    # It may be written down by now, or yet be: then it stands there until the time-out.
    (_S.RECORDING, _E.UNANSWERED): (_S.RESTING, ()),
    # Nobody can be removed, or one of the victims may not be any more: then the others go in vain.
    (_S.REMOVING, _E.OTHER): (_S.RESTING, _END),
    (_S.REMOVING, _E.REMOVED): (_S.WAITING, ()),
    # It has come to an end while it was being written down.
    (_S.RESTING, _E.RECORDED): (_S.RESTING, (Effect.CLOSE,)),
    (_S.OVER, _E.RECORDED): (_S.OVER, (Effect.CLOSE,)),
    (_S.FOUND, _E.SAME): (_S.REMOVING, (Effect.SET_ASIDE, Effect.REMOVE)),
    (_S.FOUND, _E.ENOUGH): (_S.WAITING, (Effect.SET_ASIDE,)),
    (_S.FOUND, _E.OTHER): (_S.RESTING, _END),
    **{
        (state, event): (_S.RESTING, _END)
        for state in (_S.RECORDING, _S.REMOVING, _S.WAITING, _S.FOUND)
        for event in (_E.SERVED, _E.CHANGED)
    },
    **{
        (state, _E.GONE): (_S.OVER, (Effect.RELEASE,))
        for state in (_S.RECORDING, _S.REMOVING, _S.WAITING, _S.FOUND, _S.RESTING)
    },
    **{
        (state, _E.TIMED_OUT): (_S.OVER, _END)
        for state in (_S.RECORDING, _S.REMOVING, _S.WAITING, _S.FOUND, _S.RESTING)
    },
}
"""What each event does; what is not in it changes nothing, such as news about a round that rests."""


def step(state: State, event: Event) -> Step:
    """Return the next state and what is to be done."""
    return TABLE.get((state, event), (state, ()))
