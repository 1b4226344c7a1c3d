"""How writes, which never wait, get the answers of webhooks, which take their time.

A write asks ``Reviews``. Where no answer is known, ``Unanswered`` ends the write before anything is stored;
the webhooks are called, and the write is tried again from its beginning on the state of that moment. An
answer counts for the very objects that were reviewed, so a change in between makes for another question.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = ["Review", "Reviews", "Unanswered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One question.

    Attributes:
        operation: ``CREATE``, ``UPDATE`` or ``DELETE``.
        kind: of the objects, in the version in which they are kept.
        namespace: empty for cluster-scoped kinds.
        name: of the object.
        subresource: ``status`` or empty.
        new: the object as it would be stored; None for deletions.
        old: as it is; None for creations.
        dry_run: nothing will be stored.
    """

    operation: str
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""
    new: Raw | None = None
    old: Raw | None = None
    dry_run: bool = False


class Unanswered(Exception):
    """Nobody has asked the webhooks yet.

    Attributes:
        review: the question.
        mutating: whether it goes to the webhooks that may change the object.
    """

    def __init__(self, review: Review, *, mutating: bool) -> None:
        super().__init__(f"{review.operation} of {review.kind.plural} {review.name} is not reviewed yet")
        self.review = review
        self.mutating = mutating


class Reviews:
    """The answers to one request.

    Attributes:
        warnings: what webhooks want the user to read.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._answers: dict[bool, tuple[bytes, Raw | StatusError | None]] = {}

    def answer(self, question: Unanswered, answer: Raw | StatusError | None) -> None:
        """Notes an answer: the changed object, a refusal, or None where all may stay as it is."""
        self._answers[question.mutating] = (_identity(question.review), answer)

    def mutated(self, review: Review) -> Raw | None:
        """The object as webhooks want it; None where they leave it as it is.

        Raises:
            Unanswered: they have not been asked.
            StatusError: they refuse.
        """
        return self._get(review, mutating=True)

    def validated(self, review: Review) -> None:
        """Returns if no webhook objects.

        Raises:
            Unanswered: they have not been asked.
            StatusError: they refuse.
        """
        self._get(review, mutating=False)

    def _get(self, review: Review, *, mutating: bool) -> Raw | None:
        known = self._answers.get(mutating)
        if known is None or known[0] != _identity(review):
            raise Unanswered(review, mutating=mutating)
        if isinstance(known[1], StatusError):
            raise known[1]
        return known[1]


def _identity(review: Review) -> bytes:
    return msgspec.json.encode([review.new, review.old])
