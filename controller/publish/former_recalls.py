"""What an earlier version refused to kube-scheduler: a list of devices, and a policy that went by it.

That version took devices back which it had lent to kube-scheduler, and had the API server refuse whatever
kube-scheduler had decided about them. Its list stays where an installation leaves it, and with its policy
nothing of it could be granted, or be kube-scheduler's, again. By the time that no inventory notes anything
lent, every pool has come back like one that was kube-scheduler's, so the list has done its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import RECALLED_DEVICES
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.errors import DraError, Forbidden, NotFound
from dra_driver.kube import Informer
from dra_driver.ports import KubeClient

__all__ = ["FormerRecalls"]

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 10.0


class FormerRecalls:
    """Empties the list once.

    Args:
        client: of the leader.
        namespace: of the list.
        drivers: ours.
        inventories: must be synced.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        drivers: Collection[DriverName],
        inventories: Informer[DeviceInventory],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._drivers = drivers
        self._inventories = inventories

    async def run(self) -> None:
        """Wait until nothing is lent, and empty the list; end where there is none. Errors are tried again."""
        while True:
            if not self._is_something_lent() and await self._empty():
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_something_lent(self) -> bool:
        return any(
            i.status.publication.lent for i in self._inventories.items() if i.spec.driver in self._drivers
        )

    async def _empty(self) -> bool:
        """Empty the list; return whether nothing is left to be done."""
        try:
            found = await self._client.get(CONFIG_MAPS, RECALLED_DEVICES, self._namespace)
            if (found.data or {}).get("devices"):
                patch = {
                    "metadata": {"resourceVersion": found.metadata.resource_version},
                    "data": {"devices": ""},
                }
                await self._client.merge_patch(CONFIG_MAPS, RECALLED_DEVICES, patch, self._namespace)
                log.info("emptied what an earlier version has recalled", config_map=RECALLED_DEVICES)
        except NotFound:
            pass
        except Forbidden as e:
            # The right to read it comes with the object: where only that is left, somebody has to delete it.
            log.debug("what an earlier version may have recalled cannot be read", error=str(e))
        except DraError as e:
            log.warning("what an earlier version has recalled cannot be emptied", error=str(e))
            return False
        return True
