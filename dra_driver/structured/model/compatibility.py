"""Compatibility groups: which devices may take from one counter set at the same time (KEP-5963).

All devices that are allocated from a counter set have to have one group in common. Those without groups have
one in common as well, which no device with groups is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dra_driver.api.resource import Device, DeviceCounterConsumption

__all__ = ["Groups", "common_groups", "groups_of", "has_groups"]

Groups = frozenset[str | None]
"""Groups that devices have in common; empty: none, so that they exclude each other."""

# What devices without groups have in common.
_WITHOUT: Final[Groups] = frozenset({None})


def groups_of(consumed: DeviceCounterConsumption) -> Groups:
    """Return the groups of a device on one counter set."""
    return frozenset(consumed.compatibility_groups) or _WITHOUT


def has_groups(device: Device) -> bool:
    """Return whether a device is in a group on one of its counter sets."""
    return any(consumed.compatibility_groups for consumed in device.consumes_counters)


def common_groups(devices: Iterable[Device]) -> Mapping[str, Groups]:
    """Return the groups that devices have in common, by counter set."""
    common: dict[str, Groups] = {}
    for device in devices:
        for consumed in device.consumes_counters:
            own = groups_of(consumed)
            common[consumed.counter_set] = common.get(consumed.counter_set, own) & own
    return common
