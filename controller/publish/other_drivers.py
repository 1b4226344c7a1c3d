"""What other DRA drivers publish for the nodes of our pools.

Of each slice only what identifies its devices is kept here, by the node that the slice is for, so that a look
at a pool costs as much as the pool has devices, and a slice that changes as much as it has. Slices of drivers
of this controller are not kept, but looked at with the pool: their nodes are described often enough.

A slice counts for its ``nodeName`` alone: the API server lets a node write no other, so that no node can have
the devices of another one withheld. Slices for several nodes are written by cluster-wide accounts; their
selectors are compared with the Node. A PCI address in a slice for all nodes means nothing, a UUID does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import Device, NodeSelector, ResourceSlice, ResourceSliceSpec
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, pool_of_slice
from dra_driver.publishing import Elsewhere
from dra_driver.resourceslice import identities, is_of_one_node
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["OtherDrivers"]

# Of the pools that describe one device: more are not needed to withhold it.
_MOST_POOLS: Final = 16
# A name of a node; a selector of nodes; None: all nodes.
_Where = str | NodeSelector | None


@dataclass(frozen=True, slots=True)
class _Described:
    """What one slice describes: its pool, and each device's identity with the nodes that it is for."""

    pool: PoolID
    places: frozenset[tuple[_Where, str]]


class OtherDrivers:
    """The devices in the slices of all drivers.

    Args:
        slices: with those of all drivers and nodes.
        ours: drivers of this controller.
        appeared: called with a node for which another device is described.
        vanished: called with a node for which a device is described no more.
        everywhere: called when that is so of nodes that are not known.
        held: of a pool, names of devices that claims have.
        slices_of: of a pool.
    """

    def __init__(
        self,
        slices: Informer[ResourceSlice],
        ours: Iterable[DriverName],
        *,
        appeared: Callable[[str], None],
        vanished: Callable[[str], None],
        everywhere: Callable[[], None],
        held: Callable[[PoolID], Iterable[str]],
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
    ) -> None:
        self._ours = frozenset(ours)
        self._appeared = appeared
        self._vanished = vanished
        self._everywhere = everywhere
        self._held = held
        self._slices_of = slices_of
        self._slices: dict[str, _Described] = {}
        # Where, and which device → pools, with the number of slices that describe it.
        self._pools: dict[tuple[_Where, str], dict[PoolID, int]] = {}
        # Of the above, those for several nodes: which device → where.
        self._wide: dict[str, dict[_Where, None]] = {}
        slices.add_handler(Handler(added=self._put, updated=lambda _, s: self._put(s), deleted=self._remove))

    @property
    def looks_at_labels(self) -> bool:
        """Whether a change of a node's labels can change what is described for it."""
        return any(
            isinstance(where, NodeSelector) for of_device in self._wide.values() for where in of_device
        )

    def elsewhere(self, inventory: DeviceInventory, node: Node | None) -> Elsewhere:
        """Return what other drivers have of the devices of an inventory.

        Args:
            inventory: ours.
            node: for slices that select nodes; if None, those count that are for all nodes.
        """
        spec = inventory.spec
        beside = self._beside(spec.node_name, spec.driver)
        offers: dict[str, list[PoolID]] = {}
        for device in spec.devices:
            pools = (
                pool
                for identity in identities(device.attributes)
                for pool in self._having(spec.node_name, node, identity, beside)
            )
            if found := list(islice(pools, _MOST_POOLS)):
                offers[device.name] = found
        noted = (
            PoolID(note.driver, pool)
            for note in inventory.status.publication.other_drivers
            for pool in note.pools
        )
        return Elsewhere(offers, frozenset(pool for pool in noted if self._has_unknown(pool)))

    def _places(self, node_name: str, node: Node | None, identity: str) -> Iterator[_Where]:
        yield node_name
        for where in self._wide.get(identity, ()):
            if where is None or (
                isinstance(where, NodeSelector) and node is not None and selector_matches(where, node)
            ):
                yield where

    def _having(
        self, node_name: str, node: Node | None, identity: str, beside: Mapping[str, PoolID]
    ) -> Iterator[PoolID]:
        if identity in beside:
            yield beside[identity]
        for where in self._places(node_name, node, identity):
            yield from self._pools.get((where, identity), ())

    def _beside(self, node_name: str, driver: DriverName) -> dict[str, PoolID]:
        """Return what our other drivers publish for a node: device → pool."""
        return {
            identity: pool
            for pool in (PoolID(d, PoolName(node_name)) for d in sorted(self._ours - {driver}))
            for slice_ in self._slices_of(pool)
            if slice_.spec.node_name == node_name
            for device in slice_.spec.devices
            for identity in identities(device.attributes)
        }

    def _has_unknown(self, pool: PoolID) -> bool:
        """Return whether claims have devices of the pool that no slice describes."""
        described = {d.name for s in self._slices_of(pool) for d in s.spec.devices}
        return not described.issuperset(self._held(pool))

    # --- slices ---------------------------------------------------------------------------------------------

    def _put(self, slice_: ResourceSlice) -> None:
        if slice_.spec.driver in self._ours:
            self._replace(slice_.metadata.name, None)
            return
        self._replace(
            slice_.metadata.name, _Described(pool_of_slice(slice_), frozenset(_places(slice_.spec)))
        )

    def _remove(self, slice_: ResourceSlice) -> None:
        self._replace(slice_.metadata.name, None)

    def _replace(self, name: str, new: _Described | None) -> None:
        old = self._slices.pop(name, None)
        if new is not None and new.places:
            self._slices[name] = new
        if old == new:
            return
        before = {(old.pool, *place) for place in old.places} if old is not None else set()
        now = {(new.pool, *place) for place in new.places} if new is not None else set()
        for pool, where, identity in before - now:
            self._count(pool, where, identity, -1)
        for pool, where, identity in now - before:
            self._count(pool, where, identity, 1)
        self._report({where for _, where, _ in now - before}, self._appeared)
        self._report({where for _, where, _ in before - now}, self._vanished)

    def _count(self, pool: PoolID, where: _Where, identity: str, number: int) -> None:
        key = (where, identity)
        pools = self._pools.setdefault(key, {})
        pools[pool] = pools.get(pool, 0) + number
        if not isinstance(where, str):
            self._wide.setdefault(identity, {})[where] = None
        if pools[pool]:
            return
        del pools[pool]
        if pools:
            return
        del self._pools[key]
        if not isinstance(where, str):
            del self._wide[identity][where]
            if not self._wide[identity]:
                del self._wide[identity]

    def _report(self, places: Iterable[_Where], call: Callable[[str], None]) -> None:
        several = False
        for where in places:
            if isinstance(where, str):
                call(where)
            else:
                several = True
        if several:
            self._everywhere()


def _places(spec: ResourceSliceSpec) -> Iterator[tuple[_Where, str]]:
    for device in spec.devices:
        where = _where(device if spec.per_device_node_selection else spec)
        for identity in identities(device.attributes):
            if where is not None or not is_of_one_node(identity):
                yield where, identity


def _where(selecting: ResourceSliceSpec | Device) -> _Where:
    return selecting.node_name or selecting.node_selector
