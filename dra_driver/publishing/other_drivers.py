"""Other DRA drivers of a node: which devices are withheld because of them, and until when.

While another driver publishes a device, ours does not. When the other one's slices have gone, that proves
nothing: a kubelet deletes the slices of each plugin that it has not heard of for half a minute, whatever pods
have. So the device stays withheld until no claim has a device of the other driver that no slice describes,
and for ``LEAVING_SECONDS`` in any case, in which the other driver comes back after a restart.

Of two installations of this driver, the one that publishes a device first keeps it, because the other one
withholds it. Where both have begun at the same moment, both withdraw it. So that they do not come back at the
same moment, a driver waits once more for each other one whose name sorts before its own
(``tests/property/test_two_drivers.py``).

Which devices were withheld is noted in ``status.publication.otherDrivers`` of the DeviceInventory. As with
device plugins the time is kept by the publisher's process alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import OtherDriverNote
from dra_driver.ownership import PoolID
from dra_driver.publishing.device_plugins import LEAVING_SECONDS
from dra_driver.resourceslice import OtherDriver, Presence

__all__ = ["Elsewhere", "OtherDrivers", "look_at_other_drivers"]

# Of the pools of other drivers that have one device: more are one mistake, or on purpose.
_MOST_POOLS: Final = 16


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is seen of other drivers.

    Attributes:
        offers: device of the inventory → pools of other drivers that have a slice with the same device.
        held: pools of other drivers of which claims have, or may have, devices that are in no slice.
    """

    offers: Mapping[str, Collection[PoolID]] = field(default_factory=dict)
    held: frozenset[PoolID] = frozenset()


@dataclass(frozen=True, slots=True)
class OtherDrivers:
    """Other drivers for which devices of a pool are withheld.

    Attributes:
        found: by driver, and by how it has them.
        gone: other driver and device of ours → monotonic time in seconds since which it does not publish
            the device; for the next look.
        again: seconds after which another answer may be due; 0: none is without a change.
    """

    found: tuple[OtherDriver, ...] = ()
    gone: Mapping[tuple[DriverName, str], float] = field(default_factory=dict)
    again: float = 0.0


def look_at_other_drivers(
    noted: Sequence[OtherDriverNote],
    seen: Elsewhere,
    *,
    driver: DriverName,
    gone: Mapping[tuple[DriverName, str], float],
    now: float,
    seconds: float = LEAVING_SECONDS,
) -> OtherDrivers:
    """Return for which other drivers devices are withheld.

    Args:
        noted: ``status.publication.otherDrivers`` of the inventory.
        seen: of other drivers.
        driver: ours.
        gone: of the last look; empty after a start.
        now: monotonic time in seconds.
        seconds: how long a driver that has gone is taken to be there.
    """
    offered: set[tuple[DriverName, str]] = set()
    pools: dict[DriverName, set[PoolName]] = {}
    for device, having in seen.offers.items():
        for pool in having:
            offered.add((pool.driver, device))
            pools.setdefault(pool.driver, set()).add(pool.pool)
    for note in noted:
        pools.setdefault(note.driver, set()).update(note.pools)
    # What has waited long enough is kept as well, until it is no longer noted: else it would wait anew.
    since = {
        (note.driver, device): gone.get((note.driver, device), now)
        for note in noted
        for device in note.devices
        if (note.driver, device) not in offered
    }
    patience = seconds * (1 + len({n.driver for n in noted if n.driver < driver}))
    left = {key: began + patience - now for key, began in since.items() if began + patience > now}
    holds = {pool.driver for pool in seen.held}
    held = {key for key in since if key[0] in holds}
    presences = (
        (Presence.PUBLISHES, offered),
        (Presence.HOLDS, held),
        (Presence.LEAVES, left.keys() - held),
    )
    return OtherDrivers(
        tuple(
            OtherDriver(
                driver=other,
                pools=tuple(sorted(pools[other])[:_MOST_POOLS]),
                presence=presence,
                devices=frozenset(devices),
            )
            for presence, keys in presences
            for other, devices in sorted(_by_driver(keys).items())
        ),
        since,
        # That claims have ended wakes a publisher that follows them; others have to look.
        min((*left.values(), *((seconds,) if held else ())), default=0.0),
    )


def _by_driver(keys: Iterable[tuple[DriverName, str]]) -> dict[DriverName, list[str]]:
    found: dict[DriverName, list[str]] = {}
    for driver, device in keys:
        found.setdefault(driver, []).append(device)
    return found
