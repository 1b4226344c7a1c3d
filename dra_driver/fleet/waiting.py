"""Claims that are not allocated, and the reasons as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dra_driver.api.core import Event, Pod
from dra_driver.api.names import ALLOCATED_CONDITION, SET_ASIDE_CONDITION

__all__ = ["REFUSALS", "WaitingClaim", "latest_reasons", "set_aside_condition", "waiting_condition"]

REFUSALS: Final = ("FailedAllocation", "WaitingForGroup", "OtherScheduler", "FailedScheduling")
"""Reasons of the Events that say why a claim, or a pod, waits."""


class WaitingClaim(msgspec.Struct, frozen=True, rename="camel", order=True):
    """A claim that is not allocated.

    Attributes:
        claim: ``namespace/name``.
        pods: names of the pods that use it.
        reason: why it is not allocated, for people.
        since: since when its oldest pod is there, or the claim itself where no pod uses it; RFC 3339.
        priority: the highest one of its pods; 0 where there are none.
    """

    claim: str
    pods: tuple[str, ...]
    reason: str
    since: str = ""
    priority: int = 0


def waiting_condition(pod: Pod) -> Mapping[str, str | int | None] | None:
    """Return the condition in which the controller says why a pod waits; None where it does not say."""
    return _condition(pod, ALLOCATED_CONDITION, "False")


def set_aside_condition(pod: Pod) -> Mapping[str, str | int | None] | None:
    """Return the condition in which the controller says which devices are set aside for a pod; None: none."""
    return _condition(pod, SET_ASIDE_CONDITION, "True")


def _condition(pod: Pod, type_: str, status: str) -> Mapping[str, str | int | None] | None:
    found = (c for c in pod.status.conditions if c.get("type") == type_)
    return next((c for c in found if c.get("status") == status), None)


def latest_reasons(events: Iterable[Event]) -> dict[str, str]:
    """Return UID → message of the newest refusal among the Events of that object."""
    latest: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.reason in REFUSALS:
            seen = (event.last_timestamp or "", event.message)
            uid = event.involved_object.uid
            latest[uid] = max(seen, latest.get(uid, ("", "")))
    return {uid: message for uid, (_, message) in latest.items()}
