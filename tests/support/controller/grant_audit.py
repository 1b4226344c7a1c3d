"""What must hold of devices that are granted, looked at after every single write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.ownership import AllocatorRecord, Grants, PoolID, pool_of_inventory, recorded_allocator
from dra_driver.sim.apiserver.storage.store import Event, Store

__all__ = ["GrantAudit"]


class GrantAudit:
    """Looks for allocations by the controller of what is granted, and by others of what is not.

    Args:
        store: of the API server.
        driver: whose devices are granted.
        controller: ``User-Agent`` of the controller.

    Attributes:
        granted: how many grants to claims there were.
        taken: how many devices kube-scheduler has allocated of open pools.
        own: how many devices the controller has allocated.
        refused: how many pods kube-scheduler has reported because its write was refused.
    """

    def __init__(self, store: Store, driver: DriverName, controller: str) -> None:
        self._store = store
        self._driver = driver
        self._controller = controller
        self._seen: dict[str, int] = {}
        self._keys: frozenset[str] = frozenset()
        self.granted = self.taken = self.own = self.refused = 0

    def look(self) -> Iterator[str]:
        """Yield what is wrong since the last look."""
        if list(self._new(CONFIG_MAPS)):
            keys = frozenset(self.grants().devices)
            self.granted += len(keys - self._keys)
            self._keys = keys
        for event in self._new(RESOURCE_CLAIMS):
            yield from self._allocation(event)
        for event in self._new(PODS):
            now, before = _why(event.new.raw), _why(event.old.raw if event.old is not None else {})
            self.refused += now != before and f"'{GRANTS}'" in now

    def grants(self) -> Grants:
        """Return what the object says."""
        found = self._store.get(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
        return Grants.of_data((found.data if found is not None else None) or {})

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

    def _allocation(self, event: Event) -> Iterator[str]:
        if event.type == "DELETED" or (event.old is not None and _results(event.old.raw)):
            return
        by_controller = _allocator(event.new.raw) == self._controller
        granted = {device for devices in self.grants().devices.values() for device in devices}
        for result in _results(event.new.raw):
            if result["driver"] != self._driver or result.get("adminAccess"):
                continue
            pool, device = PoolID(self._driver, PoolName(result["pool"])), result["device"]
            if by_controller:
                self.own += 1
                if (pool, device) in granted:
                    yield f"the controller has allocated {device} of {pool}, which is granted"
            elif pool in self._open():
                self.taken += 1
                if (pool, device) not in granted:
                    yield f"{device} of {pool}, which is open, was allocated without a grant"

    def _open(self) -> set[PoolID]:
        return {
            pool_of_inventory(i)
            for i in self._store.list(DEVICE_INVENTORIES)
            if recorded_allocator(i.status.publication) is AllocatorRecord.OPEN
        }


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
