"""``Fleet``: the views of all pools, made again only for pools in which something changed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import Final

from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, PoolName
from dra_driver.api.own.inventory import DeviceInventory, InventoryDevice
from dra_driver.api.resource import Device, ResourceClaim, ResourceSlice
from dra_driver.fleet.problems import Problem, pool_problems
from dra_driver.fleet.views import Holder, PoolView, holders_of, pool_view
from dra_driver.fleet.waiting import WaitingClaim
from dra_driver.ownership import PoolID, is_ready, newest_generation, pool_of_inventory, pool_of_slice
from dra_driver.resourceclaim import for_scheduler, foreign_gates, held_by, pod_claims

__all__ = ["Fleet"]

ReasonOf = Callable[[ResourceClaim, Iterable[Pod]], str]
"""Returns why a claim is not allocated; an empty text if that is not known."""
_Urgency = tuple[int, str, ObjectKey]

# Whom the controller serves is known to the controller only.
_NOT_SERVED: Final = "served only if --scheduler-name of the controller names it"


class Fleet:
    """Views of all pools, kept up to date from API objects. Objects of other drivers are ignored.

    A changed object costs work for its pools only; the views are made when they are read.

    Args:
        drivers: names of the drivers whose devices are shown.
        changed: called with the key of each pool whose view is out of date, and with None if the set of
            waiting claims may have changed.
    """

    def __init__(
        self, drivers: Collection[str], changed: Callable[[PoolID | None], None] | None = None
    ) -> None:
        self._drivers = frozenset(drivers)
        self._changed = changed or (lambda _: None)
        self._slices: dict[PoolID, dict[ObjectKey, ResourceSlice]] = {}
        self._inventories: dict[PoolID, DeviceInventory] = {}
        self._holders: dict[PoolID, dict[str, dict[ObjectKey, list[Holder]]]] = {}
        self._held: dict[ObjectKey, frozenset[tuple[PoolID, str]]] = {}
        self._unallocated: dict[ObjectKey, ResourceClaim] = {}
        self._users: dict[ObjectKey, dict[ObjectKey, Pod]] = {}
        # Pod → the claims that it uses, and the scheduling gates of others that hold it.
        self._uses: dict[ObjectKey, tuple[tuple[ObjectKey, ...], tuple[str, ...]]] = {}
        self._views: dict[PoolID, PoolView | None] = {}
        self._nodes: dict[str, Node] = {}
        # Of pools with an inventory, whether the controller answers: made again as the views are.
        self._problems: dict[tuple[PoolID, bool], tuple[Problem, ...]] = {}
        # Of claims that wait, as far as they were asked for: thousands may wait, and few of them change.
        self._urgencies: dict[ObjectKey, _Urgency] = {}

    # --- objects --------------------------------------------------------------------------------------------

    def put_slice(self, slice_: ResourceSlice) -> None:
        """Add or update a slice. Its driver and pool cannot change: the API forbids it."""
        key = pool_of_slice(slice_)
        if key.driver in self._drivers:
            self._slices.setdefault(key, {})[slice_.key] = slice_
            self._touch(key)

    def remove_slice(self, slice_: ResourceSlice) -> None:
        """Remove a deleted slice."""
        key = pool_of_slice(slice_)
        slices = self._slices.get(key, {})
        if slices.pop(slice_.key, None) is not None:
            if not slices:
                del self._slices[key]
            self._touch(key)

    def put_inventory(self, inventory: DeviceInventory) -> None:
        """Add or update an inventory. Its pool has the name of the node."""
        key = pool_of_inventory(inventory)
        if key.driver in self._drivers:
            self._inventories[key] = inventory
            self._touch(key)

    def remove_inventory(self, inventory: DeviceInventory) -> None:
        """Remove a deleted inventory."""
        key = pool_of_inventory(inventory)
        if self._inventories.pop(key, None) is not None:
            self._touch(key)

    def put_claim(self, claim: ResourceClaim) -> None:
        """Add or update a claim."""
        self._release(claim.key)
        held = set()
        for pool, device, holder in holders_of(claim):
            if pool.driver in self._drivers:
                self._holders.setdefault(pool, {}).setdefault(device, {}).setdefault(claim.key, []).append(
                    holder
                )
                held.add((pool, device))
        if held:
            self._held[claim.key] = frozenset(held)
        for pool in {p for p, _ in held}:
            self._touch(pool)
        was = claim.key in self._unallocated
        if claim.status.allocation is None:
            self._unallocated[claim.key] = claim
        else:
            self._unallocated.pop(claim.key, None)
        if was or claim.key in self._unallocated:
            self._changed(None)

    def remove_claim(self, claim: ResourceClaim) -> None:
        """Remove a deleted claim."""
        self._release(claim.key)
        self._urgencies.pop(claim.key, None)
        if self._unallocated.pop(claim.key, None) is not None:
            self._changed(None)

    def put_pod(self, pod: Pod) -> None:
        """Add or update a pod. Nothing is kept of pods without claims."""
        uses = tuple(c.key for c in pod_claims(pod) if c.key is not None)
        if (uses, foreign_gates(pod)) == self._uses.get(pod.key, ((), ())):
            return
        self.remove_pod(pod)
        if uses:
            self._uses[pod.key] = (uses, foreign_gates(pod))
            for claim in uses:
                self._users.setdefault(claim, {})[pod.key] = pod
                self._urgencies.pop(claim, None)
            self._changed(None)

    def remove_pod(self, pod: Pod) -> None:
        """Remove a deleted pod."""
        for claim in self._uses.pop(pod.key, ((), ()))[0]:
            users = self._users.get(claim, {})
            users.pop(pod.key, None)
            self._urgencies.pop(claim, None)
            if not users:
                self._users.pop(claim, None)
            if claim in self._unallocated:
                self._changed(None)

    def put_node(self, node: Node) -> None:
        """Add or update a node."""
        before = self._nodes.get(node.metadata.name)
        self._nodes[node.metadata.name] = node
        if before is None or is_ready(before) != is_ready(node) or before.metadata.uid != node.metadata.uid:
            self._touch_node(node.metadata.name)

    def remove_node(self, node: Node) -> None:
        """Remove a deleted node."""
        if self._nodes.pop(node.metadata.name, None) is not None:
            self._touch_node(node.metadata.name)

    # --- views ----------------------------------------------------------------------------------------------

    def pools(self) -> list[PoolID]:
        """Return the keys of all pools, in order."""
        return sorted(self._slices.keys() | self._inventories.keys())

    def pool(self, key: PoolID) -> PoolView | None:
        """Return the view of one pool; None if it has neither slices nor an inventory."""
        if key not in self._slices and key not in self._inventories:
            return None
        if key not in self._views:
            self._views[key] = pool_view(
                key, self._slices.get(key, {}).values(), self.holders(key), self._inventories.get(key)
            )
        return self._views[key]

    def holders(self, key: PoolID) -> dict[str, list[Holder]]:
        """Return the holders of each device of a pool that has some, whether it is published or not."""
        return {
            device: [h for found in claims.values() for h in found]
            for device, claims in self._holders.get(key, {}).items()
        }

    def pool_problems(self, key: PoolID, *, answers: bool = True) -> tuple[Problem, ...]:
        """Return what is wrong with the agent, the node and the devices of a pool.

        Args:
            key: the pool.
            answers: whether the controller works.
        """
        inventory = self._inventories.get(key)
        if inventory is None:
            return ()
        known = self._problems.get((key, answers))
        if known is None:
            node, slices = self._nodes.get(inventory.spec.node_name), self._slices.get(key, {}).values()
            found = pool_problems(inventory, node, slices, self.holders(key), answers=answers)
            known = self._problems[key, answers] = tuple(found)
        return known

    def long_waits(
        self, reason_of: ReasonOf, before: str, limit: int | None = None
    ) -> tuple[list[WaitingClaim], int]:
        """Return the claims whose pods wait since before a moment, the oldest first, and how many there are.

        Claims whose pods others hold back are left out.

        Args:
            reason_of: why each is not allocated.
            before: RFC 3339, in UTC.
            limit: most claims to return; if None, all are returned.
        """
        found = [
            (since, key)
            for key in self._unallocated
            if (users := self._users.get(key))
            and (since := self._urgency(key)[1]) < before
            and not held_by(users.values())
        ]
        first = sorted(found) if limit is None else heapq.nsmallest(limit, found)
        return [self._waiting_claim(key, reason_of) for _, key in first], len(found)

    def views(self) -> list[PoolView]:
        """Return the views of all pools, in order."""
        return [view for key in self.pools() if (view := self.pool(key)) is not None]

    def waiting(self, reason_of: ReasonOf, limit: int | None = None) -> tuple[list[WaitingClaim], int]:
        """Return the claims that are not allocated, in order of their names, and how many there are.

        Args:
            reason_of: why each is not allocated.
            limit: most claims to return: those of the highest priority, and of these the oldest; if None,
                all are returned.
        """
        keys: Iterable[ObjectKey] = self._unallocated
        if limit is not None:
            keys = heapq.nsmallest(limit, keys, key=self._urgency)
        found = [self._waiting_claim(key, reason_of) for key in sorted(keys)]
        return found, len(self._unallocated)

    def waiting_keys(self) -> list[ObjectKey]:
        """Return the claims that are not allocated, the most urgent first."""
        return sorted(self._unallocated, key=self._urgency)

    def waiting_claim(self, key: ObjectKey, reason_of: ReasonOf) -> WaitingClaim | None:
        """Return a claim that is not allocated, as ``waiting`` does; None where it does not wait any more."""
        return self._waiting_claim(key, reason_of) if key in self._unallocated else None

    def device(self, key: PoolID, name: str) -> tuple[Device | None, InventoryDevice | None]:
        """Return a device as it is published, by the pool's newest generation, and as its node found it."""
        slices = newest_generation(self._slices.get(key, {}).values())
        published = next((d for s in slices for d in s.spec.devices if d.name == name), None)
        inventory = self._inventories.get(key)
        of_node = inventory.spec.devices if inventory is not None else ()
        return published, next((d for d in of_node if d.name == name), None)

    def users(self, claim: ObjectKey) -> list[ObjectKey]:
        """Return the pods that use a claim, in order."""
        return sorted(self._users.get(claim, {}))

    # --- inside ---------------------------------------------------------------------------------------------

    def _waiting_claim(self, key: ObjectKey, reason_of: ReasonOf) -> WaitingClaim:
        priority, since, _ = self._urgency(key)
        users = self._users.get(key, {})
        reason = held_by(users.values()) or reason_of(self._unallocated[key], users.values())
        other = for_scheduler(users.values())
        if other:
            reason = f"{other}: {reason or _NOT_SERVED}"
        elif not reason:
            reason = "not looked at yet" if users else "no pod uses it"
        pods = tuple(sorted(pod.name for pod in users))
        return WaitingClaim(str(key), pods, reason, since, -priority)

    def _urgency(self, claim: ObjectKey) -> _Urgency:
        """Return what sorts the most urgent claims first: priority, downwards, and since when it waits."""
        known = self._urgencies.get(claim)
        if known is not None:
            return known
        users = self._users.get(claim, {}).values()
        times = [p.metadata.creation_timestamp for p in users] or [
            self._unallocated[claim].metadata.creation_timestamp
        ]
        found = -max((p.spec.priority for p in users), default=0), min(t or "" for t in times), claim
        self._urgencies[claim] = found
        return found

    def _touch_node(self, name: str) -> None:
        for driver in self._drivers:
            pool = PoolID(DriverName(driver), PoolName(name))
            if pool in self._inventories:
                self._touch(pool)

    def _touch(self, pool: PoolID) -> None:
        self._views.pop(pool, None)
        for answers in (True, False):
            self._problems.pop((pool, answers), None)
        self._changed(pool)

    def _release(self, claim: ObjectKey) -> None:
        """Forget what the claim holds, until it is put again."""
        for pool, device in self._held.pop(claim, ()):
            devices = self._holders[pool]
            del devices[device][claim]
            if not devices[device]:
                del devices[device]
            if not devices:
                del self._holders[pool]
            self._touch(pool)
