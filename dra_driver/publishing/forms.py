"""What of a pool others may allocate after it has become kube-scheduler's.

kube-scheduler may have decided long before it writes, and the write is admitted as soon as the pool is its
own. Two kinds of such decisions would give hardware away twice:

* on what excludes something that the controller has allocated, before kube-scheduler knew of it;
* on a form that is not published any more: a partition of a GPU that is published whole now, a share of one
  that is published for one claim. While kube-scheduler decides on what is published, it takes no account of
  what it has decided about other devices.

So for a time that is longer than such a decision can be under way, only those forms are admitted that are
published, and that fit beside what the controller holds. kube-scheduler sees that as well, so what it decides
from now on is admitted. A form that is published again means the same again, and is counted.

A form that is held is not admitted even if others hold a share of it: how much the late decision takes is not
known. Partitions are no such case, because each memory slice of a GPU belongs to one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.own.partitions import partition_devices
from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.ownership import SHARE, is_complete, newest_devices, newest_generation
from dra_driver.resourceslice import PENDING_TAINT

__all__ = ["Listing", "list_forms"]


@dataclass(frozen=True, slots=True)
class Listing:
    """How the object says what of a pool is admitted, in whichever way is shorter.

    Attributes:
        free: the forms that are; if None, all are but those that are kept.
        kept: the forms that are not.
    """

    free: frozenset[str] | None = None
    kept: frozenset[str] = frozenset()


def list_forms(
    found: Iterable[InventoryDevice], slices: Iterable[ResourceSlice], held: Collection[str]
) -> Listing:
    """Return what of a pool is admitted.

    Args:
        found: devices of the inventory.
        slices: of the pool, as they are.
        held: forms that claims have because of the controller.
    """
    known, devices = tuple(slices), tuple(found)
    # Readers use no pool of which slices are missing, and what is held may be in one of these.
    published = newest_devices(known) if is_complete(known) else {}
    names = {form.removesuffix(SHARE) for form in held}
    left = _counters_left(known, [published[name] for name in names & published.keys()])
    busy = names | _cut(devices, names - published.keys())
    free = frozenset(
        _form(device)
        for name, device in published.items()
        if name not in busy
        and not _leaves(device)
        and all(amount <= left[counter] and counter[0] not in busy for counter, amount in _consumed(device))
    )
    possible = sum(2 + sum(len(profile.placements) for profile in d.partitions) for d in devices)
    if possible - len(free) > len(free):
        return Listing(free)
    return Listing(None, _forms(devices) - free)


def _cut(devices: Iterable[InventoryDevice], parts: Collection[str]) -> frozenset[str]:
    """Return the devices of which these are parts: what takes which counters the slices do not say."""
    return frozenset(p.gpu for d in devices if parts for p in partition_devices(d) if p.name in parts)


def _counters_left(slices: Iterable[ResourceSlice], held: Iterable[Device]) -> Counter[tuple[str, str]]:
    """Return what devices that are held leave of the counters of a pool, by (set, counter)."""
    left: Counter[tuple[str, str]] = Counter()
    for counters in (c for s in newest_generation(slices) for c in s.spec.shared_counters):
        left.update({(counters.name, name): has.value.nano for name, has in counters.counters.items()})
    for device in held:
        left.subtract(dict(_consumed(device)))
    return left


def _consumed(device: Device) -> Iterator[tuple[tuple[str, str], int]]:
    for consumed in device.consumes_counters:
        for name, amount in consumed.counters.items():
            yield (consumed.counter_set, name), amount.value.nano


def _form(device: Device) -> str:
    return device.name + SHARE if device.allow_multiple_allocations else device.name


def _leaves(device: Device) -> bool:
    """Return whether a device is withdrawn, or changes its form, as soon as it is free."""
    return any(taint.key == PENDING_TAINT for taint in device.taints)


def _forms(devices: Iterable[InventoryDevice]) -> frozenset[str]:
    """Return all forms in which devices can be published."""
    return frozenset(
        form
        for device in devices
        for form in (device.name, device.name + SHARE, *(p.name for p in partition_devices(device)))
    )
