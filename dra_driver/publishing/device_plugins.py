"""Device plugins that leave a node: for how long what they had is still withheld.

A kubelet that has restarted counts every device plugin's resource as 0 until the plugin has registered again,
which takes seconds, after a reboot a minute or more. Devices that were published in the meantime would be
given away twice. So a resource that was counted goes on counting for ``LEAVING_SECONDS``.

Which resources were counted is noted in ``status.publication.withheldFor`` of the DeviceInventory. The time
is kept by this process alone: a publisher that is restarted waits once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from dra_driver.api.inventory import DeviceInventory
from dra_driver.api.quantity import Quantity
from dra_driver.ports import Clock
from dra_driver.resourceslice import counted

__all__ = ["LEAVING_SECONDS", "LeavingPlugins"]

# Device plugins look for the kubelet's socket every few seconds; one whose pod starts at boot needs longer.
LEAVING_SECONDS: Final = 120.0


class LeavingPlugins:
    """Resources that were counted on a node and are not any more.

    Args:
        clock: for waiting.
        seconds: how long a resource that has gone is taken to be there.
    """

    def __init__(self, clock: Clock, seconds: float = LEAVING_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        # Name of the inventory → resource → since when it is gone.
        self._gone: dict[str, dict[str, float]] = {}

    def resources(
        self, inventory: DeviceInventory, capacity: Mapping[str, Quantity], served: Collection[str] = ()
    ) -> tuple[dict[str, Quantity], float]:
        """Return the resources of device plugins that count on a node, and when to ask again.

        Args:
            inventory: of the node, with what is noted of device plugins.
            capacity: ``status.capacity`` of the Node.
            served: names that DeviceClasses serve.

        Returns:
            resource → amount, 0 for what has lately gone; and seconds after which another answer may be due,
            0 where none is.
        """
        present = counted(capacity, served)
        now = self._clock.monotonic()
        before = self._gone.pop(inventory.metadata.name, {})
        noted = inventory.status.publication.withheld_for
        # What has waited long enough is kept as well, until it is no longer noted: else it would wait anew.
        gone = {name: before.get(name, now) for name in noted if name not in present}
        if gone:
            self._gone[inventory.metadata.name] = gone
        left = {name: since + self._seconds - now for name, since in gone.items()}
        leaving = {name: Quantity.of(0) for name, seconds in left.items() if seconds > 0}
        return present | leaving, min((left[name] for name in leaving), default=0.0)

    def forget(self, inventory: DeviceInventory) -> None:
        """The inventory is gone."""
        self._gone.pop(inventory.metadata.name, None)
