"""Claims that are not allocated, and what is known about why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dra_driver.api.core import Event

__all__ = ["WaitingClaim", "latest_reasons"]

_REASONS: Final = ("FailedAllocation", "WaitingForGroup", "FailedScheduling")


class WaitingClaim(msgspec.Struct, frozen=True, rename="camel", order=True):
    """A claim that is not allocated.

    Attributes:
        claim: ``namespace/name``.
        pods: names of the pods that use it.
        reason: for people.
    """

    claim: str
    pods: tuple[str, ...]
    reason: str


def latest_reasons(events: Iterable[Event]) -> dict[str, str]:
    """The newest refusal that was told about each object, by its UID."""
    latest: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.reason in _REASONS:
            told = (event.last_timestamp or "", event.message)
            uid = event.involved_object.uid
            latest[uid] = max(told, latest.get(uid, ("", "")))
    return {uid: message for uid, (_, message) in latest.items()}
