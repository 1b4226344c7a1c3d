"""Device plugins that leave a node: for how long what they had is still withheld.

A kubelet that has restarted counts every device plugin's resource as 0 until the plugin has registered again,
which takes seconds, after a reboot a minute or more. Devices that were published in the meantime would be
given away twice. So a resource that was counted goes on counting for ``LEAVING_SECONDS``.

Which resources were counted is noted in ``status.publication.withheldFor`` of the DeviceInventory. The time
is kept by the publisher's process alone: one that is restarted waits once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.resourceslice import counted

__all__ = ["LEAVING_SECONDS", "CountedResources", "count_resources"]

# Device plugins look for the kubelet's socket every few seconds; one whose pod starts at boot needs longer.
LEAVING_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class CountedResources:
    """Resources of device plugins that count on a node.

    Attributes:
        amounts: resource → amount, 0 for what has lately gone.
        gone: resource → monotonic time in seconds since which it is gone; for the next look.
        again: seconds after which another answer may be due; 0: none is.
    """

    amounts: Mapping[str, Quantity] = field(default_factory=dict)
    gone: Mapping[str, float] = field(default_factory=dict)
    again: float = 0.0


def count_resources(
    noted: Collection[str],
    capacity: Mapping[str, Quantity],
    served: Collection[str] = (),
    *,
    gone: Mapping[str, float],
    now: float,
    seconds: float = LEAVING_SECONDS,
) -> CountedResources:
    """Return the resources of device plugins that count on a node.

    Args:
        noted: ``status.publication.withheldFor`` of the inventory.
        capacity: ``status.capacity`` of the Node.
        served: names that DeviceClasses serve.
        gone: of the last look; empty after a start.
        now: monotonic time in seconds.
        seconds: how long a resource that has gone is taken to be there.
    """
    present = counted(capacity, served)
    # What has waited long enough is kept as well, until it is no longer noted: else it would wait anew.
    since = {name: gone.get(name, now) for name in noted if name not in present}
    left = {name: began + seconds - now for name, began in since.items() if began + seconds > now}
    leaving = {name: Quantity.of(0) for name in left}
    return CountedResources(present | leaving, since, min(left.values(), default=0.0))
