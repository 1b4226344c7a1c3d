"""What ``status`` and ``explain`` say of requests for capacity that are dropped, or lack a unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_driver.api.resource import ResourceClaim, ResourceClaimTemplate
from dra_driver.kube.features import keeps_capacity
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import capacity_advice, dropped_from, unit_advice

__all__ = ["object_notes", "server_notes"]

# Claims and templates that are named.
_MOST_NAMED: Final = 10


async def server_notes(client: KubeClient, namespace: str = "") -> list[str]:
    """Return what is to be said about requests for capacity of the API server, which is asked by a dry run.

    Args:
        client: of the cluster.
        namespace: of the claim that is sent; empty: ``default``.
    """
    if await keeps_capacity(client, namespace or "default") is False:
        return [capacity_advice()]
    return []


def object_notes(
    templates: Iterable[ResourceClaimTemplate], claims: Iterable[ResourceClaim], namespace: str = ""
) -> list[str]:
    """Return which claims and templates have lost requests for capacity, or ask for a few bytes of memory.

    Args:
        templates: of the cluster.
        claims: of the cluster.
        namespace: the only one whose objects are named; empty: all are.
    """
    found = [
        f"{kind} {item.key}: {advice}"
        for kind, items in (("ResourceClaimTemplate", templates), ("ResourceClaim", claims))
        for item in items
        if namespace in ("", item.metadata.namespace) and (advice := _advice(item))
    ]
    if len(found) > _MOST_NAMED:
        found[_MOST_NAMED:] = [f"{len(found) - _MOST_NAMED} more claims and templates are as these"]
    return found


def _advice(item: ResourceClaim | ResourceClaimTemplate) -> str:
    if dropped := dropped_from(item):
        return capacity_advice(dropped)
    spec = item.spec if isinstance(item, ResourceClaim) else item.spec.spec
    for request in spec.devices.requests or ():
        for asked in (request.exactly, *request.first_available):
            amounts = asked.capacity.requests if asked is not None and asked.capacity is not None else {}
            for name, amount in amounts.items():
                if advice := unit_advice(name, amount):
                    return f"{name} of request {request.name}: {advice}"
    return ""
