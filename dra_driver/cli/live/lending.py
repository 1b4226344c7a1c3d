"""What the controller says of lending, in a ConfigMap of the installation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.names import LENDING_STATUS
from dra_driver.errors import Forbidden, NotFound
from dra_driver.fleet import LendingShown, shown_lending
from dra_driver.ports import KubeClient

__all__ = ["LendingReader", "read_lending"]

LendingReader = Callable[[], Awaitable[LendingShown | None]]
"""Reads what the controller says of lending."""


async def read_lending(client: KubeClient, namespace: str) -> LendingShown | None:
    """Return what the controller says of lending; None where that is not known.

    Without the object lending is off: it is installed with the rest of what lending needs.

    Args:
        client: of the cluster.
        namespace: of the installation.
    """
    try:
        found = await client.get(CONFIG_MAPS, LENDING_STATUS, namespace)
    except NotFound:
        return LendingShown(mode="off")
    except Forbidden:
        return None
    return shown_lending(found.data)
