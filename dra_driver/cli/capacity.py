"""What ``status`` and ``explain`` say where the API server drops requests for capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, ResourceClaim, ResourceClaimTemplate
from dra_driver.errors import Forbidden, NotFound
from dra_driver.kube.features import keeps_capacity
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import capacity_advice, dropped_from

__all__ = ["dropped_notes"]

# Claims and templates that are named.
_MOST_NAMED: Final = 10


async def dropped_notes(
    client: KubeClient, claims: Iterable[ResourceClaim], namespace: str = ""
) -> list[str]:
    """Return what is to be said about requests for capacity: of the API server, and of what it stored.

    Args:
        client: asked by a dry run, and for templates.
        claims: of the cluster.
        namespace: the only one whose objects are named; empty: all are.
    """
    notes = []
    if await keeps_capacity(client, namespace or "default") is False:
        notes.append(capacity_advice())
    templates: tuple[ResourceClaimTemplate, ...] = ()
    try:
        templates = (await client.list(RESOURCE_CLAIM_TEMPLATES)).items
    except (Forbidden, NotFound):
        pass
    found = [
        f"{kind} {item.key}: {capacity_advice(dropped)}"
        for kind, items in (("ResourceClaimTemplate", templates), ("ResourceClaim", claims))
        for item in items
        if namespace in ("", item.metadata.namespace) and (dropped := dropped_from(item))
    ]
    if len(found) > _MOST_NAMED:
        found[_MOST_NAMED:] = [f"{len(found) - _MOST_NAMED} more claims and templates are as these"]
    return notes + found
