"""What is remembered of expensive questions, as changes that the next worker is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_driver.api.meta import ObjectKey

__all__ = ["LONGEST_LEARNED", "GroupHeld", "Learned", "NamespaceStruck", "QuestionHeavy"]

LONGEST_LEARNED: Final = 1_024
"""Characters of a message that is kept for the next process."""


@dataclass(frozen=True, slots=True)
class QuestionHeavy:
    """What is held against the question that a pod asks, because of the work that it took.

    Attributes:
        pod: that asks it.
        until: when it is worked out again.
        delay: seconds of the pause, which doubles.
        message: of the refusal.
        hard: whether it belongs into the slow lane.
        gave_up: whether the last decision met a limit.
    """

    pod: ObjectKey
    until: float
    delay: float
    message: str
    hard: bool
    gave_up: bool


@dataclass(frozen=True, slots=True)
class NamespaceStruck:
    """How many decisions for a namespace have been given up, less what time has made up for.

    Attributes:
        namespace: its name.
        number: of decisions, when the last of them was given up.
        since: when that was.
    """

    namespace: str
    number: int
    since: float


@dataclass(frozen=True, slots=True)
class GroupHeld:
    """Since when a part of a group has been holding devices."""

    namespace: str
    name: str
    since: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What is remembered about a pod, its namespace and its group beside what there is of them.

    It lasts for longer than the process that learned it: whose questions take much work must not be forgotten
    because one of them has ended it.
    """

    question: QuestionHeavy | None = None
    namespace: NamespaceStruck | None = None
    group: GroupHeld | None = None
