"""Pools whose devices change their form are left alone by the allocator until the change has been seen.

A decision is made on the slices as the informer has them. While the publisher turns a shared device into a
whole one (or cuts one into partitions), a decision on the old slices could give a share away that nobody
would count any more in the new form. So the publisher freezes the pool, looks once more at what is taken,
assumptions included, writes, and lets go when the informer shows what was written.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_driver.api.resource import Device, ResourceSlice
from dra_driver.ownership import PoolID, is_newer
from dra_driver.resourceslice import Plan

__all__ = ["FrozenPools", "changes_forms"]


def changes_forms(todo: Plan, old: dict[str, Device]) -> bool:
    """Whether a device is withdrawn, or is allocated in another way than before.

    Args:
        todo: what is to be written.
        old: devices as they are published.
    """
    if todo.empty or not old:
        return False
    new = {d.name: d for w in (*todo.creates, *todo.updates) for d in w.slice.spec.devices}
    touched = {d.name for w in todo.updates if w.replaces is not None for d in w.replaces.spec.devices} | {
        d.name for s in todo.deletes for d in s.spec.devices
    }
    return any(
        (name in touched and name not in new) or (name in new and _form(new[name]) != _form(device))
        for name, device in old.items()
    )


def _form(device: Device) -> tuple[object, ...]:
    return (device.allow_multiple_allocations, device.capacity, device.consumes_counters)


class FrozenPools:
    """Which pools are frozen, and for which writes they wait."""

    def __init__(self, changed: Callable[[PoolID, bool], None]) -> None:
        """Freeze no pool yet.

        Args:
            changed: called at once with a pool, and whether it is frozen from now on.
        """
        self._changed = changed
        self._pools: dict[PoolID, dict[str, str]] = {}
        self._writing: set[PoolID] = set()

    def __contains__(self, pool: PoolID) -> bool:
        return pool in self._pools

    def freeze(self, pool: PoolID) -> None:
        """No decision is made on the pool from now on."""
        self._writing.add(pool)
        if pool not in self._pools:
            self._pools[pool] = {}
            self._changed(pool, True)

    def wrote(self, pool: PoolID, answer: ResourceSlice, seen: ResourceSlice | None) -> None:
        """A slice was written; the informer has ``seen`` at the moment."""
        if pool in self._pools and not _reached(seen, answer.metadata.resource_version):
            self._pools[pool][answer.metadata.name] = answer.metadata.resource_version

    def end(self, pool: PoolID) -> None:
        """All writes were made, or failed."""
        self._writing.discard(pool)
        self._let_go(pool)

    def saw(self, pool: PoolID, slice_: ResourceSlice, *, gone: bool = False) -> None:
        """The informer shows a slice, or that it is gone."""
        waits = self._pools.get(pool)
        version = waits.get(slice_.metadata.name) if waits else None
        if waits is not None and version is not None and (gone or _reached(slice_, version)):
            del waits[slice_.metadata.name]
            self._let_go(pool)

    def _let_go(self, pool: PoolID) -> None:
        if pool not in self._writing and self._pools.get(pool) == {}:
            del self._pools[pool]
            self._changed(pool, False)


def _reached(slice_: ResourceSlice | None, version: str) -> bool:
    return slice_ is not None and is_newer(slice_.metadata.resource_version, version)
