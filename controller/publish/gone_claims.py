"""Adds claims that are gone to the inventories of the nodes that may have them prepared."""

from __future__ import annotations

from controller.allocate.state.gone_claims import GoneClaims
from dra_driver.api import codec
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.errors import NotFound
from dra_driver.kube import Informer, WorkQueue
from dra_driver.ports import KubeClient

__all__ = ["GoneClaimWriter"]


class GoneClaimWriter:
    """Writes what is to be added, under the resourceVersion of the inventory: the agent writes the list, too.

    Attributes:
        queue: names of inventories.

    Args:
        client: of the leader.
        gone: knows what is to be added.
        inventories: as they are.
    """

    def __init__(self, client: KubeClient, gone: GoneClaims, inventories: Informer[DeviceInventory]) -> None:
        self._client = client
        self._gone = gone
        self._inventories = inventories
        self.queue: WorkQueue[str] = WorkQueue("gone claims", max_delay=30.0)
        gone.asking.listen(self.queue.add)

    async def run(self) -> None:
        """Write until cancelled. The informers must be synced."""
        await self.queue.process(self.reconcile, workers=4)

    async def reconcile(self, name: str) -> None:
        """Add claims to one inventory.

        Raises:
            DraError: of the API server; a conflict if the inventory has changed.
        """
        inventory = self._inventories.get_by_name(name)
        if inventory is None or not (more := self._gone.to_add(inventory)):
            return
        patch = {
            "metadata": {"resourceVersion": inventory.metadata.resource_version},
            "status": {"goneClaims": [codec.plain(c) for c in (*inventory.status.gone_claims, *more)]},
        }
        try:
            answer = await self._client.merge_patch(DEVICE_INVENTORIES, name, patch, subresource="status")
        except NotFound:
            return  # its deletion is on its way
        self._gone.take(answer, own=True)
