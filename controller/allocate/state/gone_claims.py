"""Claims that are gone from the API although they were not deallocated: their devices stay taken.

kube-controller-manager and this controller deallocate a claim before it can go. A claim that goes while it is
allocated, because its finalizer was removed, says nothing any more about its devices, and its pod may still
run. So its devices stay taken: from the moment that its deletion is seen, then because the inventory of
their node lists it (``status.goneClaims``), until the node's agent, which knows what is prepared, has
removed it. The agent adds those that it finds itself, so a claim counts as well that went while no controller
ran.

An inventory counts for its own node alone, and within bounds. Where the agent does not keep the list, or
there is no inventory any more, nothing stays taken.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from typing import Final

import structlog

from controller.allocate.signal import Signal
from dra_driver.api.meta import DriverName, Uid
from dra_driver.api.own.inventory import MOST_GONE_CLAIMS, DeviceInventory, GoneClaim, inventory_name
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, is_newer, pool_of_inventory, refusal_of
from dra_driver.resourceclaim import allocation_of_gone, devices_by_pool, listed_claims

__all__ = ["GoneClaims"]

log = structlog.get_logger(__name__)

# Between two changes of the list of one node that count.
_SECONDS: Final = 2.0


class GoneClaims:
    """Which devices claims keep that are gone.

    Args:
        drivers: ours.
        inventories: followed from now on.

    Attributes:
        changed: sent with the UID of a claim that is gone and the devices that it keeps now; None: no more.
        asking: sent with the name of an inventory to which claims are to be added.
    """

    def __init__(self, drivers: Collection[DriverName], inventories: Informer[DeviceInventory]) -> None:
        self._drivers = frozenset(drivers)
        self._inventories = inventories
        self._present: set[Uid] = set()
        # What inventories list, with the version that was seen last; what is to be added to them.
        self._versions: dict[PoolID, tuple[str, str]] = {}
        self._listed: dict[PoolID, dict[Uid, GoneClaim]] = {}
        self._asked: dict[PoolID, dict[Uid, GoneClaim]] = {}
        # A node that changes its list all the time is heard now and then: what it lists last, and when.
        self._news: dict[PoolID, DeviceInventory | None] = {}
        self._due: dict[PoolID, float] = {}
        self._waiting: dict[PoolID, asyncio.TimerHandle] = {}
        self._pools: dict[Uid, set[PoolID]] = defaultdict(set)
        self._kept: dict[Uid, AllocationResult] = {}
        self.changed: Signal[[Uid, AllocationResult | None]] = Signal()
        self.asking: Signal[[str]] = Signal()
        inventories.add_handler(
            Handler(added=self.take, updated=lambda _, i: self.take(i), deleted=self._inventory_gone)
        )

    def __len__(self) -> int:
        """Return how many claims that are gone keep devices."""
        return len(self._kept)

    # --- claims ---------------------------------------------------------------------------------------------

    def seen(self, claim: ResourceClaim) -> None:
        """Take note of a claim that the API server has."""
        uid = claim.metadata.uid
        if uid not in self._present:
            self._present.add(uid)
            self._look_at(uid)

    def gone(self, claim: ResourceClaim) -> None:
        """Take note of a claim that the API server has no more, with what it held when it was seen last."""
        uid = claim.metadata.uid
        self._present.discard(uid)
        for pool, kept in devices_by_pool(claim).items():
            if uid not in self._listed.get(pool, {}) and self._is_kept(pool):
                self._asked.setdefault(pool, {})[uid] = kept
                self._pools[uid].add(pool)
                log.warning("a claim is gone that was not deallocated", uid=uid, pool=str(pool))
                self.asking.send(inventory_name(pool.pool, pool.driver))
        self._look_at(uid)

    # --- inventories ----------------------------------------------------------------------------------------

    def to_add(self, inventory: DeviceInventory) -> tuple[GoneClaim, ...]:
        """Return the claims that are to be added to an inventory, as many as it has room for."""
        asked = self._asked.get(pool_of_inventory(inventory), {})
        known = {c.uid for c in inventory.status.gone_claims}
        room = max(0, MOST_GONE_CLAIMS - len(known))
        return tuple(c for uid, c in asked.items() if uid not in known)[:room]

    def take(self, inventory: DeviceInventory, *, own: bool = False) -> None:
        """Take in a version of an inventory.

        Args:
            inventory: as the informer shows it, or as it was answered.
            own: it is the answer to a write of ours, and counts at once.
        """
        pool, meta = pool_of_inventory(inventory), inventory.metadata
        if pool.driver not in self._drivers or refusal_of(inventory, None):
            return
        uid, version = self._versions.get(pool, ("", ""))
        if uid == meta.uid and version != meta.resource_version and is_newer(version, meta.resource_version):
            return  # an answer of ours was newer
        self._versions[pool] = (meta.uid, meta.resource_version)
        keeps = inventory.status.registration.keeps_gone_claims
        self._news[pool] = inventory if keeps else None
        loop = asyncio.get_running_loop()
        if inventory.status.gone_claims or pool in self._listed or pool in self._asked:
            due = self._due.get(pool, 0.0)
            if own or due <= loop.time():
                self._put(pool)
            elif pool not in self._waiting:
                self._waiting[pool] = loop.call_at(due, self._put, pool)

    def _put(self, pool: PoolID) -> None:
        self._waiting.pop(pool, None)
        if pool not in self._news:
            return
        news = self._news.pop(pool)
        before, asked = self._listed.pop(pool, {}), self._asked.pop(pool, {})
        now = {} if news is None else dict(listed_claims(news))
        asked_now = {} if news is None else {uid: c for uid, c in asked.items() if uid not in now}
        if now:
            self._listed[pool] = now
        if asked_now:
            self._asked[pool] = asked_now
            self.asking.send(inventory_name(pool.pool, pool.driver))  # there may be room now
        if now != before or asked_now != asked:
            self._due[pool] = asyncio.get_running_loop().time() + _SECONDS
        for uid in sorted(before.keys() | now.keys() | asked.keys()):
            if uid in now or uid in asked_now:
                self._pools[uid].add(pool)
            else:
                self._pools[uid].discard(pool)
            self._look_at(uid)

    def _inventory_gone(self, inventory: DeviceInventory) -> None:
        pool = pool_of_inventory(inventory)
        if self._versions.get(pool, ("", ""))[0] == inventory.metadata.uid:
            del self._versions[pool]
            self._due.pop(pool, None)
            self._news[pool] = None
            if (timer := self._waiting.get(pool)) is not None:
                timer.cancel()
            self._put(pool)
            self._due.pop(pool, None)

    # --- inside ---------------------------------------------------------------------------------------------

    def _is_kept(self, pool: PoolID) -> bool:
        """Return whether the agent of a pool of ours keeps the list."""
        inventory = self._inventories.get_by_name(inventory_name(pool.pool, pool.driver))
        return (
            pool.driver in self._drivers
            and inventory is not None
            and pool_of_inventory(inventory) == pool
            and not refusal_of(inventory, None)
            and inventory.status.registration.keeps_gone_claims
        )

    def _look_at(self, uid: Uid) -> None:
        """Report what a claim keeps, if that is not what was reported last."""
        pools = self._pools.get(uid)
        if not pools:
            self._pools.pop(uid, None)
        now = None
        if pools and uid not in self._present:
            claims = {p: self._listed.get(p, {}).get(uid) or self._asked.get(p, {}).get(uid) for p in pools}
            now = allocation_of_gone({p: c for p, c in claims.items() if c is not None})
        before = self._kept.get(uid)
        if now == before:
            return
        if now is None:
            del self._kept[uid]
        else:
            self._kept[uid] = now
        self.changed.send(uid, now)
