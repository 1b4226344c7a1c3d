"""What the controller says of grants, in a ConfigMap of the installation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.names import GRANT_STATUS
from dra_driver.errors import Forbidden, NotFound
from dra_driver.fleet import GrantsShown, shown_grants
from dra_driver.ports import KubeClient

__all__ = ["GrantsReader", "read_grants"]

GrantsReader = Callable[[], Awaitable[GrantsShown | None]]
"""Reads what the controller says of grants."""


async def read_grants(client: KubeClient, namespace: str) -> GrantsShown | None:
    """Return what the controller says of grants; None where that is not known.

    Without the object nothing is granted: it is installed with the rest of what open pools need.

    Args:
        client: of the cluster.
        namespace: of the installation.
    """
    try:
        found = await client.get(CONFIG_MAPS, GRANT_STATUS, namespace)
    except NotFound:
        return GrantsShown(enabled=False)
    except Forbidden:
        return None
    return shown_grants(found.data)
