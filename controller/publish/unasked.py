"""Pools of which nothing is published because the API server does not say which fields it keeps."""

from __future__ import annotations

import structlog

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, NODE_PUBLISHES, DeviceInventory
from dra_driver.errors import ApiUnavailable, DraError
from dra_driver.kube import EventRecorder
from dra_driver.kube.features import probe_problem
from dra_driver.kube.slices import show
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import conditions

__all__ = ["Unasked"]

log = structlog.get_logger(__name__)


class Unasked:
    """Shows in a condition and an Event of each inventory that, and why, the API server could not be asked.

    Args:
        client: for the conditions.
        clock: for their times.
        recorder: for the Events.

    Attributes:
        problem: why; empty while the API server has answered, and before it was asked.
    """

    def __init__(self, client: KubeClient, clock: Clock, recorder: EventRecorder) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self.problem = ""

    def answered(self) -> None:
        """Forget the problem. The next publication replaces the conditions."""
        self.problem = ""

    def failed(self, error: DraError) -> None:
        """Note why the API server could not be asked."""
        self.problem = probe_problem(error)

    async def show(self, inventory: DeviceInventory) -> bool:
        """Show the problem on an inventory; return whether it is there now.

        An API server that cannot be reached is not asked for more; that is in the log and in ``/readyz``.
        """
        condition = conditions.unasked(self.problem, inventory.status.conditions)
        if inventory.spec.publisher == NODE_PUBLISHES or conditions.same(
            inventory.status.conditions, condition
        ):
            return True
        try:
            await show(self._client, inventory, condition, self._clock)
        except ApiUnavailable:
            return False
        except DraError as e:
            log.warning(
                "cannot show why nothing is published", inventory=inventory.metadata.name, error=str(e)
            )
            return True  # of this one only; a conflict is met again with the next try
        self._recorder.event(DEVICE_INVENTORIES, inventory, "Warning", condition.reason, condition.message)
        return True
