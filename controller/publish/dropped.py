"""Claims and templates whose requests for capacity the API server has dropped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import structlog

from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dra_driver.kube import EventRecorder, Handler, Informer
from dra_driver.resourceclaim import LAST_APPLIED, capacity_advice, dropped_from

__all__ = ["DroppedCapacity", "advice_to_administrators"]

log = structlog.get_logger(__name__)

_T = TypeVar("_T", ResourceClaim, ResourceClaimTemplate)

_DROPPED: Final = "CapacityDropped"

_HOW_TO_REFUSE: Final = (
    "the chart value webhooks.refuseDroppedCapacity (deploy/optional/refuse-dropped-capacity.yaml) refuses "
    "such requests"
)


class DroppedCapacity:
    """Finds and counts them, and reports each once: kubectl noted what was asked for (``dropped_from``).

    Args:
        claims: all namespaces.
        templates: all namespaces.
        recorder: for Events.
    """

    def __init__(
        self,
        claims: Informer[ResourceClaim],
        templates: Informer[ResourceClaimTemplate],
        recorder: EventRecorder,
    ) -> None:
        self._recorder = recorder
        self._found: set[tuple[str, ObjectKey]] = set()
        claims.add_handler(
            Handler(
                added=self._claim,
                updated=lambda old, new: None if _says_the_same(old, new) else self._claim(new),
                deleted=lambda old: self._gone("claim", old.key),
            )
        )
        templates.add_handler(
            Handler(
                added=self._template,
                updated=lambda old, new: None if _says_the_same(old, new) else self._template(new),
                deleted=lambda old: self._gone("template", old.key),
            )
        )

    def count(self) -> int:
        """Return how many claims and templates are there that mean something else than was asked for."""
        return len(self._found)

    def _claim(self, claim: ResourceClaim) -> None:
        text = self._text("claim", claim)
        if text:
            self._recorder.event(RESOURCE_CLAIMS, claim, "Warning", _DROPPED, text)

    def _template(self, template: ResourceClaimTemplate) -> None:
        text = self._text("template", template)
        if text:
            self._recorder.event(RESOURCE_CLAIM_TEMPLATES, template, "Warning", _DROPPED, text)

    def _text(self, kind: str, item: ResourceClaim | ResourceClaimTemplate) -> str:
        """Return what is to be said of an object that was found now; empty: nothing."""
        dropped = dropped_from(item)
        if not dropped:
            self._gone(kind, item.key)
            return ""
        if (kind, item.key) in self._found:
            return ""
        self._found.add((kind, item.key))
        text = advice_to_administrators(dropped)
        log.warning("capacity was dropped", object=str(item.key), kind=kind, reason=text)
        return text

    def _gone(self, kind: str, key: ObjectKey) -> None:
        self._found.discard((kind, key))


def advice_to_administrators(requests: Iterable[str] = ()) -> str:
    """Return what to write, and how to have it refused otherwise: the controller may register no webhook.

    Args:
        requests: names of those whose capacity was dropped; none: of the server in general.
    """
    return f"{capacity_advice(requests)}; {_HOW_TO_REFUSE}"


def _says_the_same(old: _T, new: _T) -> bool:
    """Return whether ``dropped_from`` has the same answer; reading what was applied costs more than this."""

    def said(item: _T) -> tuple[object, ...]:
        return (item.metadata.annotations or {}).get(LAST_APPLIED), item.spec

    return said(old) == said(new)
