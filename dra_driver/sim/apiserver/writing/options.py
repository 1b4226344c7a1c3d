"""What a write is asked to be besides its body."""

from __future__ import annotations

from dataclasses import dataclass, field

from dra_driver.sim.apiserver.writing.reviews import Reviews

__all__ = ["Options"]


@dataclass(slots=True)
class Options:
    """Query parameters of a write, and the warnings that it causes.

    Attributes:
        dry_run: do everything except storing.
        manager: field manager.
        validation: ``Ignore``, ``Warn`` or ``Strict``.
        force: server-side apply takes fields from their owners.
        duplicates: paths of duplicate keys that the decoder of the body has found.
        warnings: texts for the ``Warning`` header.
        reviews: what webhooks say; None where none is installed.
        drawn: name and UID that were drawn at random, and the time, so that a write that is tried again after
            webhooks were asked makes the same object.
    """

    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    force: bool = False
    duplicates: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reviews: Reviews | None = None
    drawn: dict[str, str] = field(default_factory=dict)
