"""The options of a write."""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.writing.reviews import ADMINISTRATOR, Review, Reviews

__all__ = ["Options"]


@dataclass(slots=True)
class Options:
    """Query parameters of a write, and the warnings that it causes.

    Attributes:
        dry_run: whether nothing is to be stored.
        manager: field manager.
        validation: ``Ignore``, ``Warn`` or ``Strict``.
        force: whether server-side apply takes fields from their owners.
        duplicates: paths of duplicate keys that the decoder of the body has found.
        warnings: texts for the ``Warning`` header.
        reviews: the answers of webhooks; None if none is installed.
        drawn: the random name and UID, and the time, so that a write that is tried again after webhooks were
            called makes the same object.
        user: ``userInfo`` of the request, for admission.
    """

    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    force: bool = False
    duplicates: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reviews: Reviews | None = None
    drawn: dict[str, str] = field(default_factory=dict)
    user: Raw = field(default_factory=lambda: ADMINISTRATOR)

    def review_of(
        self, kind: Kind, operation: str, namespace: str, new: Raw, old: Raw | None, subresource: str
    ) -> Review:
        """Return the review of a write with these options, for policies and webhooks."""
        return Review(
            operation=operation,
            kind=kind,
            namespace=namespace,
            name=new["metadata"].get("name", ""),
            subresource=subresource,
            new=new,
            old=old,
            dry_run=self.dry_run,
            user=self.user,
        )
