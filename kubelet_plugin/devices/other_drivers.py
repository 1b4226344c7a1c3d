"""``--publish=node``: what other DRA drivers publish for this node, and what pods have of them.

Slices for several nodes are not looked at: every agent would have to follow them, and select as its Node is
labelled. Of the slices that are, only what identifies devices is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from dra_driver.api.meta import DriverName, PoolName, Resource, Wire, WireObject
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import RESOURCE_SLICES, DeviceAttribute
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID
from dra_driver.ports import KubeClient
from dra_driver.publishing import Elsewhere
from dra_driver.resourceslice import identities
from kubelet_plugin.usage.pod_resources import KubeletList

__all__ = ["OtherDrivers"]


class _Device(Wire, frozen=True, kw_only=True):
    name: str
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Forget what does not identify the device."""
        kept = {name: a for name, a in self.attributes.items() if identities({name: a})}
        msgspec.structs.force_setattr(self, "attributes", kept)


class _Pool(Wire, frozen=True, kw_only=True):
    name: PoolName


class _Spec(Wire, frozen=True, kw_only=True):
    driver: DriverName
    pool: _Pool
    devices: tuple[_Device, ...] = ()


class _Slice(WireObject, frozen=True, kw_only=True):
    spec: _Spec

    @property
    def pool(self) -> PoolID:
        return PoolID(self.spec.driver, self.spec.pool.name)


_SLICES: Final = Resource(
    RESOURCE_SLICES.group, RESOURCE_SLICES.version, RESOURCE_SLICES.plural, RESOURCE_SLICES.kind, _Slice,
    namespaced=False,
)  # fmt: skip


class OtherDrivers:
    """The slices of other drivers for a node.

    Args:
        client: lists and watches.
        driver: ours.
        node_name: of this node.
        listed: asks the kubelet which pods have what.
    """

    def __init__(
        self,
        client: KubeClient,
        driver: DriverName,
        node_name: str,
        listed: Callable[[], Awaitable[KubeletList | None]],
    ) -> None:
        self._listed = listed
        self._slices = Informer(
            client, _SLICES, field_selector=f"spec.nodeName={node_name},spec.driver!={driver}"
        )
        self._changed: Callable[[], None] = lambda: None
        # Once: what follows the slices may begin again, and a handler cannot be taken away.
        self._slices.add_handler(Handler(added=lambda _: self._changed(), updated=self._updated))

    @property
    def known(self) -> bool:
        """Whether the slices have been read: nothing may be published before."""
        return self._slices.synced.is_set()

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the slices until cancelled.

        Args:
            changed: called when another device is described. That one is no more is seen at the next look.
        """
        self._changed = changed
        await self._slices.run()

    def _updated(self, old: _Slice, new: _Slice) -> None:
        if old.spec != new.spec:
            self._changed()

    async def elsewhere(self, inventory: DeviceInventory) -> Elsewhere:
        """Return what other drivers have of the devices of the inventory."""
        pools: dict[str, set[PoolID]] = {}
        for slice_ in self._slices.items():
            for device in slice_.spec.devices:
                for identity in identities(device.attributes):
                    pools.setdefault(identity, set()).add(slice_.pool)
        offers = {
            device.name: found
            for device in inventory.spec.devices
            if (found := {p for i in identities(device.attributes) for p in pools.get(i, ())})
        }
        noted = {
            PoolID(note.driver, pool)
            for note in inventory.status.publication.other_drivers
            for pool in note.pools
        }
        return Elsewhere(offers, await self._held(noted) if noted else frozenset())

    async def _held(self, noted: set[PoolID]) -> frozenset[PoolID]:
        """Return pools of which pods have, or may have, devices that no slice describes."""
        listed = await self._listed()
        if listed is None:
            return frozenset(noted)
        described = {(s.pool, d.name) for s in self._slices.items() for d in s.spec.devices}
        return frozenset(pool for pool, device in listed.others - described if pool in noted)
