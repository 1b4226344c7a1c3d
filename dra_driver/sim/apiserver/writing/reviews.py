"""The answers of admission webhooks, for writes, which are synchronous and cannot wait for them.

A write asks ``Reviews``. If there is no answer yet, ``Unanswered`` ends the write before anything is stored;
the webhooks are called, and the write is tried again from its beginning on the state of that moment. An
answer holds only for the objects that were reviewed: after a change in between, webhooks are called again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw, StatusError

__all__ = ["ADMINISTRATOR", "Review", "Reviews", "Unanswered"]

ADMINISTRATOR: Raw = {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}
"""``userInfo`` of everybody who has no token of a service account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One review by webhooks.

    Attributes:
        operation: ``CREATE``, ``UPDATE`` or ``DELETE``.
        kind: kind of the objects, in the version in which they are stored.
        namespace: namespace; empty for cluster-scoped kinds.
        name: name of the object.
        subresource: ``status`` or empty.
        new: the object as it would be stored; None for deletions.
        old: the stored object; None for creations.
        dry_run: whether nothing will be stored.
        user: ``userInfo`` of the request.
    """

    operation: str
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""
    new: Raw | None = None
    old: Raw | None = None
    dry_run: bool = False
    user: Raw = field(default_factory=lambda: ADMINISTRATOR)


class Unanswered(Exception):
    """Webhooks have not been called for a review yet.

    Attributes:
        review: the review.
        mutating: whether it is for the webhooks that may change the object.
    """

    def __init__(self, review: Review, *, mutating: bool) -> None:
        super().__init__(f"{review.operation} of {review.kind.plural} {review.name} is not reviewed yet")
        self.review = review
        self.mutating = mutating


class Reviews:
    """The answers of webhooks to one request.

    Attributes:
        warnings: warnings of the webhooks for the user.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._answers: dict[bool, tuple[bytes, Raw | StatusError | None]] = {}

    def answer(self, question: Unanswered, answer: Raw | StatusError | None) -> None:
        """Add an answer: the changed object, a refusal, or None if nothing is to change."""
        self._answers[question.mutating] = (_identity(question.review), answer)

    def mutated(self, review: Review) -> Raw | None:
        """Return the object as webhooks change it; None if they do not change it.

        Raises:
            Unanswered: they have not been called.
            StatusError: one of them refuses.
        """
        return self._get(review, mutating=True)

    def validated(self, review: Review) -> None:
        """Return if no validating webhook refuses.

        Raises:
            Unanswered: they have not been called.
            StatusError: one of them refuses.
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
