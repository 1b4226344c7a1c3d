"""What must hold of devices that are lent, looked at after every single write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from dra_driver.api.core import PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceSlice
from dra_driver.ownership import devices_in, pool_of_inventory, pool_of_slice, unprotected_devices
from dra_driver.sim.apiserver.storage.store import Event, Store

__all__ = ["LoanAudit"]

_REFUSED = "was lent to kube-scheduler and is not any more"


class LoanAudit:
    """Looks for allocations by the controller of what it has lent, and for devices that stay away.

    Args:
        store: of the API server.
        driver: whose devices are lent.
        controller: ``User-Agent`` of the controller.
        stray_seconds: for which a device may be without taint and without note.

    Attributes:
        lent: how many units were noted.
        taken: how many devices kube-scheduler has allocated meanwhile.
        own: how many devices the controller has allocated.
        refused: how many pods kube-scheduler has reported because a device had been recalled.
        longest: seconds for which a unit was noted without a break, at most.
    """

    def __init__(self, store: Store, driver: DriverName, controller: str, stray_seconds: float) -> None:
        self._store = store
        self._driver = driver
        self._controller = controller
        self._stray_seconds = stray_seconds
        self._seen: dict[str, int] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._stray: dict[tuple[str, str], float] = {}
        self.lent = self.taken = self.own = self.refused = 0
        self.longest = 0.0

    def look(self) -> Iterator[str]:
        """Yield what is wrong since the last look."""
        allocated = list(self._new(RESOURCE_CLAIMS))
        changed = [list(self._new(kind)) for kind in (DEVICE_INVENTORIES, RESOURCE_SLICES)]
        if allocated:
            noted = self.noted()
            for event in allocated:
                yield from self._allocation(event, noted)
        if any(changed):
            self._note()
            yield from self._strays()
        for event in self._new(PODS):
            self.refused += _REFUSED in _why(event.new.raw) and _why(event.new.raw) != _why(
                event.old.raw if event.old is not None else {}
            )

    def noted(self) -> dict[str, frozenset[str]]:
        """Return what is noted to be lent, with everything that this excludes, by pool."""
        found: dict[str, frozenset[str]] = {}
        for inventory in self._inventories():
            lent = inventory.status.publication.lent
            names = {unit.unit for unit in lent} | {d for unit in lent for d in unit.devices}
            found[pool_of_inventory(inventory).pool] = devices_in(self._slices(inventory), names)
        return found

    def bare(self) -> set[tuple[str, str]]:
        """Return what kube-scheduler can allocate of the controller's pools."""
        return {
            (pool_of_inventory(inventory).pool, name)
            for inventory in self._inventories()
            if inventory.status.publication.allocator == "controller"
            for name in unprotected_devices(self._slices(inventory))
        }

    # --- inside ---------------------------------------------------------------------------------------------

    def _new(self, kind: Any) -> Iterator[Event]:
        collection = self._store.collection(kind.group, kind.plural)
        seen = self._seen.get(kind.plural, 0)
        self._seen[kind.plural] = self._store.version
        found = []
        for event in reversed(collection.events):
            if event.version <= seen:
                break
            found.append(event)
        yield from reversed(found)

    def _inventories(self) -> Sequence[DeviceInventory]:
        return self._store.list(DEVICE_INVENTORIES)

    def _slices(self, inventory: DeviceInventory) -> tuple[ResourceSlice, ...]:
        pool = pool_of_inventory(inventory)
        return tuple(s for s in self._store.list(RESOURCE_SLICES) if pool_of_slice(s) == pool)

    def _allocation(self, event: Event, noted: dict[str, frozenset[str]]) -> Iterator[str]:
        if event.type == "DELETED" or _results(event.new.raw) == []:
            return
        if event.old is not None and _results(event.old.raw):
            return
        who = _allocator(event.new.raw)
        for result in _results(event.new.raw):
            if result["driver"] != self._driver or result.get("adminAccess"):
                continue
            self.own += who == self._controller
            device = result["device"]
            if device not in noted.get(result["pool"], frozenset()):
                continue
            if who == self._controller:
                yield f"the controller has allocated {device} of {result['pool']}, which is noted to be lent"
            self.taken += 1

    def _note(self) -> None:
        now = asyncio.get_running_loop().time()
        noted = {
            (inventory.metadata.name, unit.unit)
            for inventory in self._inventories()
            for unit in inventory.status.publication.lent
        }
        for key in noted - self._since.keys():
            self._since[key] = now
            self.lent += 1
        for key in self._since.keys() - noted:
            self.longest = max(self.longest, now - self._since.pop(key))

    def _strays(self) -> Iterator[str]:
        now, noted = asyncio.get_running_loop().time(), self.noted()
        strays = {(pool, name) for pool, name in self.bare() if name not in noted.get(pool, frozenset())}
        for key, since in self._stray.items():
            if now - since > self._stray_seconds:
                yield f"{key} was without taint and note for {now - since:.1f} s"
        self._stray = {key: self._stray.get(key, now) for key in strays}


def _results(claim: Any) -> list[dict[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _allocator(claim: Any) -> str:
    """Return who has written the allocation."""
    for entry in claim["metadata"].get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:status") or {}
        if "f:allocation" in fields:
            return str(entry["manager"])
    return ""


def _why(pod: Any) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c.get("message") or "" for c in conditions if c.get("type") == "PodScheduled"), "")
