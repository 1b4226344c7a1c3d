"""What must hold of devices that are granted, looked at after every single write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from dra_driver.api import codec
from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, ResourceClaim
from dra_driver.ownership import SHARE, Grants, PoolID, grant_key, pool_of_slice, units
from dra_driver.sim.apiserver.storage.store import Event, Store

__all__ = ["GrantAudit"]

_REFUSED = "these devices are allocated by the controller of dra-driver"


class GrantAudit:
    """Looks for allocations by the controller of what it has granted, and by others of what it has not.

    Args:
        store: of the API server.
        driver: whose devices are granted.
        controller: ``User-Agent`` of the controller.

    Attributes:
        granted: how many grants there were.
        taken: how many devices kube-scheduler has allocated by a grant.
        own: how many devices the controller has allocated.
        refused: how many pods kube-scheduler has reported because it was refused.
        longest: seconds for which a claim had a grant without a break, at most.
    """

    def __init__(self, store: Store, driver: DriverName, controller: str) -> None:
        self._store = store
        self._driver = driver
        self._controller = controller
        self._seen: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._grants = Grants.of_data({})
        self.granted = self.taken = self.own = self.refused = 0
        self.longest = 0.0

    def look(self) -> Iterator[str]:
        """Yield what is wrong since the last look."""
        # One write at a time: an allocation is judged by what the object said before it.
        for event in self._new(RESOURCE_CLAIMS):
            yield from self._allocation(event)
        for event in self._new(CONFIG_MAPS):
            if (event.new.key.namespace, event.new.key.name) == (SYSTEM_NAMESPACE, GRANTS):
                self._note(Grants.of_data(event.new.raw.get("data") or {}))
        for event in self._new(PODS):
            before = _why(event.old.raw) if event.old is not None else ""
            self.refused += _REFUSED in _why(event.new.raw) and _why(event.new.raw) != before

    def left(self) -> tuple[str, ...]:
        """Return the claims and pods that have grants."""
        return tuple(sorted(self._grants.devices))

    # --- inside ---------------------------------------------------------------------------------------------

    def _new(self, kind: Any) -> Iterator[Event]:
        seen = self._seen.get(kind.plural, 0)
        self._seen[kind.plural] = self._store.version
        found = []
        for event in reversed(self._store.collection(kind.group, kind.plural).events):
            if event.version <= seen:
                break
            found.append(event)
        yield from reversed(found)

    def _allocation(self, event: Event) -> Iterator[str]:
        if event.type == "DELETED" or not _results(event.new.raw):
            return
        if event.old is not None and _results(event.old.raw):
            return
        by_controller = _allocator(event.new.raw) == self._controller
        key = grant_key(codec.convert(ResourceClaim, event.new.raw))
        for result in _results(event.new.raw):
            if result["driver"] != self._driver or result.get("adminAccess"):
                continue
            pool, device = PoolID(self._driver, PoolName(result["pool"])), result["device"]
            form = device + SHARE if result.get("shareID") else device
            if by_controller:
                self.own += 1
                for holder, other in self._excluded(pool, device):
                    yield f"the controller has allocated {device} of {pool}; {other} is granted to {holder}"
            elif not self._grants.admits(key, pool, form):
                yield f"{form} of {pool} was allocated by others to {key}, which has no grant for it"
            else:
                self.taken += (pool, form) in self._grants.devices.get(key, frozenset())

    def _excluded(self, pool: PoolID, device: str) -> Iterator[tuple[str, str]]:
        """Yield what is granted of the same unit, and to which claim."""
        of_device = units(s for s in self._store.list(RESOURCE_SLICES) if pool_of_slice(s) == pool)
        unit = of_device.get(device, device)
        for holder, granted in self._grants.devices.items():
            for of_pool, other in granted:
                name = other.removesuffix(SHARE)
                if of_pool == pool and of_device.get(name, name) == unit:
                    yield holder, other

    def _note(self, grants: Grants) -> None:
        now, before = asyncio.get_running_loop().time(), self._grants
        self._grants = grants
        for key in grants.devices.keys() - before.devices.keys():
            self._since[key] = now
            self.granted += 1
        for key in self._since.keys() - grants.devices.keys():
            self.longest = max(self.longest, now - self._since.pop(key))


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
