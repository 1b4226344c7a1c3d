"""DeviceInventory → ResourceSlices, once per registration epoch.

The kubelet deletes a node's slices when it starts and 30 s after it has lost the plugin, whoever wrote them.
The plugin raises ``status.registration.epoch`` when they may come back; only then are slices created that
were there before. ``status.publication`` notes for which epoch that was done, so a dead plugin is never
advertised again, not even by a controller that is killed and restarted:

1. ``attempted`` = epoch is noted, before the first slice is created;
2. slices are written;
3. ``epoch`` and the names of the slices are noted.

A controller that finds ``attempted`` ahead of ``epoch`` does not know whether slices that are missing were
never created or were deleted by the kubelet since. It creates none and notes the epoch: a plugin that lives
then sees that its slices are gone and raises the epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import structlog

from controller import conditions
from controller.config import ControllerConfig
from controller.features import probe_features
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.inventory import DEVICE_INVENTORIES, DeviceInventory, Publication, inventory_name
from dra_driver.api.meta import WireObject
from dra_driver.api.resource import RESOURCE_SLICES, Condition, ResourceSlice
from dra_driver.errors import ApiUnavailable, Conflict, DraError, Invalid, NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.ports import Clock, KubeClient
from dra_driver.resourceslice import (
    DesiredPool,
    Plan,
    PoolAllocator,
    PublishOptions,
    ServerFeatures,
    SliceWrite,
    altered,
    build_slices,
    owner_of,
    plan,
    slice_name,
)

__all__ = ["POOL_INDEX", "Publisher", "pool_of"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

POOL_INDEX = "pool"
MANAGED_BY = {"app.kubernetes.io/managed-by": "dra-driver-controller"}


def pool_of(slice_: ResourceSlice) -> Iterable[tuple[str, str]]:
    """Index function of the slice informer: driver and pool."""
    yield (slice_.spec.driver, slice_.spec.pool.name)


class AlteredByServer(DraError):
    """The API server stored something else than was sent."""


class Publisher:
    """Reconciles the slices of every inventory of our drivers."""

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        clock: Clock,
        recorder: EventRecorder,
        *,
        inventories: Informer[DeviceInventory],
        slices: Informer[ResourceSlice],
        nodes: Informer[Node],
    ) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._inventories = inventories
        self._slices = slices
        self._nodes = nodes
        self._features: ServerFeatures | None = None
        self._probing = asyncio.Lock()
        # Epochs whose attempt this process began and knows the outcome of: uid of the inventory → epoch.
        self._attempts: dict[str, int] = {}
        self.queue: WorkQueue[str] = WorkQueue("publisher", max_delay=30.0)
        inventories.add_handler(
            Handler(
                added=lambda i: self.queue.add(i.metadata.name),
                updated=lambda _, i: self.queue.add(i.metadata.name),
                deleted=self._forget_attempt,
            )
        )
        slices.add_handler(
            Handler(
                added=self._slice_changed,
                updated=lambda _, s: self._slice_changed(s),
                deleted=self._slice_deleted,
            )
        )
        nodes.add_handler(Handler(added=self._node_changed, updated=self._node_updated))

    @property
    def features(self) -> ServerFeatures | None:
        """What the server keeps; None before it was asked."""
        return self._features

    @property
    def allocator(self) -> PoolAllocator:
        """Who allocates, after what the server can do was considered."""
        if self._features is not None and not self._features.taints:
            return PoolAllocator.SCHEDULER
        return self._config.allocator

    async def probe(self) -> ServerFeatures:
        """What the server keeps, asked once."""
        async with self._probing:
            if self._features is None:
                self._features = await probe_features(self._client, self._config.drivers[0])
            return self._features

    async def run(self) -> None:
        """Publishes until cancelled. The informers must be synced."""
        await self.queue.process(self.reconcile, workers=8)

    def _slice_changed(self, slice_: ResourceSlice) -> None:
        if slice_.spec.driver in self._config.drivers and slice_.spec.node_name:
            self.queue.add(inventory_name(slice_.spec.node_name, slice_.spec.driver))

    def _slice_deleted(self, slice_: ResourceSlice) -> None:
        self._slice_changed(slice_)
        if slice_.spec.node_name:
            # An attempt that has not been noted yet must not create it a second time.
            name = inventory_name(slice_.spec.node_name, slice_.spec.driver)
            inventory = self._inventories.get_by_name(name)
            if inventory is not None:
                self._forget_attempt(inventory)

    def _forget_attempt(self, inventory: DeviceInventory) -> None:
        self._attempts.pop(inventory.metadata.uid, None)

    def _node_changed(self, node: Node) -> None:
        for driver in self._config.drivers:
            self.queue.add(inventory_name(node.metadata.name, driver))

    def _node_updated(self, old: Node, node: Node) -> None:
        if old.metadata.uid != node.metadata.uid:
            self._node_changed(node)

    # --- one inventory --------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> None:
        """Brings the slices of one inventory to what they should be, as far as the epoch allows."""
        inventory = self._inventories.get_by_name(name)
        if inventory is None or inventory.spec.driver not in self._config.drivers:
            return
        node = self._nodes.get_by_name(inventory.spec.node_name)
        refusal = _refusal(inventory, node)
        if refusal or node is None:
            if refusal:
                log.warning("inventory refused", inventory=name, reason=refusal)
                await self._note_condition(inventory, conditions.refused(refusal))
            return
        options = PublishOptions(allocator=self._config.allocator)
        desired = build_slices(inventory, options=options, features=await self.probe())
        registration, publication = inventory.status.registration, inventory.status.publication
        if registration.registered and registration.epoch > publication.epoch:
            await self._new_epoch(inventory, node, desired)
        elif publication.epoch > 0:
            await self._within_epoch(inventory, node, desired)

    async def _new_epoch(self, inventory: DeviceInventory, node: Node, desired: DesiredPool) -> None:
        epoch = inventory.status.registration.epoch
        uid = inventory.metadata.uid
        if self._attempts.get(uid) != epoch:
            if inventory.status.publication.attempted >= epoch:
                await self._settle(inventory, desired)
                return
            attempt = {"attempted": epoch}
            inventory = await self._patch_status(inventory, {"publication": attempt})
            self._attempts[uid] = epoch
        todo = self._plan(inventory, node, desired)
        try:
            await self._write(inventory, todo)
        except ApiUnavailable:
            self._forget_attempt(inventory)  # a slice may have been created, or not
            raise
        await self._note(inventory, desired, todo, epoch)
        log.info(
            "published",
            node=desired.node_name,
            driver=desired.driver,
            epoch=epoch,
            generation=todo.generation,
            devices=desired.devices,
            slices=len(todo.names),
            created=len(todo.creates),
            updated=len(todo.updates),
        )
        await self._delete(todo)

    async def _settle(self, inventory: DeviceInventory, desired: DesiredPool) -> None:
        """Ends an attempt of a predecessor. Creates nothing: see the module's docstring."""
        epoch = inventory.status.registration.epoch
        names = tuple(slice_name(desired.node_name, desired.driver, i) for i in range(len(desired.slices)))
        publication = Publication(
            epoch=epoch,
            attempted=epoch,
            generation=inventory.status.publication.generation,
            slices=names,
            devices=inventory.status.publication.devices,
        )
        log.info("an unfinished publication is closed", inventory=inventory.metadata.name, epoch=epoch)
        await self._patch_status(inventory, {"publication": _raw(publication)})

    async def _within_epoch(self, inventory: DeviceInventory, node: Node, desired: DesiredPool) -> None:
        publication = inventory.status.publication
        vanished = [n for n in publication.slices if self._slices.get_by_name(n) is None]
        if vanished:
            # Somebody deleted them: the kubelet, because the plugin is gone. The plugin decides, not we.
            log.debug("slices are gone; waiting for the plugin", node=desired.node_name, slices=vanished)
            return
        todo = self._plan(inventory, node, desired)
        if todo.creates and not inventory.status.registration.registered:
            return
        await self._write(inventory, todo)
        inventory = await self._note(inventory, desired, todo, publication.epoch)
        await self._delete(todo)

    def _plan(self, inventory: DeviceInventory, node: Node, desired: DesiredPool) -> Plan:
        existing = [
            s
            for s in self._slices.by_index(POOL_INDEX, (desired.driver, desired.pool))
            # A slice of the same pool that is not the node's is nothing that we wrote.
            if s.spec.node_name == desired.node_name
        ]
        return plan(
            existing,
            desired,
            owner_of(node),
            least_generation=inventory.status.publication.generation + 1,
            labels=MANAGED_BY,
        )

    # --- writes ---------------------------------------------------------------------------------------------

    async def _write(self, inventory: DeviceInventory, todo: Plan) -> None:
        for write in (*todo.creates, *todo.updates):
            await self._write_slice(inventory, write)

    async def _write_slice(self, inventory: DeviceInventory, write: SliceWrite) -> None:
        body = codec.to_raw(RESOURCE_SLICES, write.slice)
        try:
            if write.replaces is None:
                answer = await self._client.create(RESOURCE_SLICES, body)
            else:
                answer = await self._client.replace(RESOURCE_SLICES, body)
        except NotFound:
            # Gone since we last looked; the informer will say so, and then the epoch decides.
            raise Conflict(
                f"slice {write.slice.metadata.name} is gone", code=409, reason="Conflict"
            ) from None
        except Invalid as e:
            self._recorder.event(DEVICE_INVENTORIES, inventory, "Warning", "SliceRefused", str(e))
            raise
        if altered(write.slice.spec, answer.spec):
            await self._altered(inventory, answer)

    async def _altered(self, inventory: DeviceInventory, answer: ResourceSlice) -> None:
        """What was stored means something else than what was sent: away with it, and ask the server anew."""
        await self._client.delete(RESOURCE_SLICES, answer.metadata.name, uid=answer.metadata.uid)
        self._features = None
        text = (
            f"the API server stored ResourceSlice {answer.metadata.name} without fields that were sent "
            "(a feature gate is off); it was deleted"
        )
        self._recorder.event(DEVICE_INVENTORIES, inventory, "Warning", "SliceAltered", text)
        raise AlteredByServer(text)

    async def _delete(self, todo: Plan) -> None:
        """Slices that are no longer in the record."""
        for slice_ in todo.deletes:
            log.info("deleting a slice that is not wanted", slice=slice_.metadata.name)
            try:
                await self._client.delete(
                    RESOURCE_SLICES,
                    slice_.metadata.name,
                    uid=slice_.metadata.uid,
                    resource_version=slice_.metadata.resource_version,
                )
            except (NotFound, Conflict):
                pass  # gone, or changed: the informer will bring it back to us

    async def _note(
        self, inventory: DeviceInventory, desired: DesiredPool, todo: Plan, epoch: int
    ) -> DeviceInventory:
        present = inventory.status.publication
        publication = Publication(
            epoch=epoch,
            attempted=max(epoch, present.attempted),
            generation=todo.generation,
            slices=todo.names,
            devices=desired.devices,
        )
        condition = conditions.published(desired, self._config.allocator, self._features)
        status: dict[str, Any] = {}
        if publication != present:
            status["publication"] = _raw(publication)
        if not conditions.same(inventory.status.conditions, condition):
            status["conditions"] = self._conditions(inventory, condition)
            kind = "Normal" if condition.reason == "Published" else "Warning"
            self._recorder.event(
                DEVICE_INVENTORIES,
                inventory,
                "Normal" if kind == "Normal" else "Warning",
                condition.reason,
                condition.message,
            )
        return await self._patch_status(inventory, status) if status else inventory

    async def _note_condition(self, inventory: DeviceInventory, condition: Condition) -> None:
        if not conditions.same(inventory.status.conditions, condition):
            await self._patch_status(inventory, {"conditions": self._conditions(inventory, condition)})

    def _conditions(self, inventory: DeviceInventory, condition: Condition) -> list[dict[str, Any]]:
        return conditions.merged(inventory.status.conditions, condition, self._clock.now())

    async def _patch_status(self, inventory: DeviceInventory, status: Mapping[str, Any]) -> DeviceInventory:
        patch = {
            "metadata": {"resourceVersion": inventory.metadata.resource_version},
            "status": status,
        }
        return await self._client.merge_patch(
            DEVICE_INVENTORIES, inventory.metadata.name, patch, subresource="status"
        )


def _raw(publication: Publication) -> dict[str, Any]:
    """Every field, also those with a default value: a merge patch leaves alone what it does not name."""
    return {
        "epoch": publication.epoch,
        "attempted": publication.attempted,
        "generation": publication.generation,
        "slices": list(publication.slices),
        "devices": publication.devices,
    }


def _refusal(inventory: DeviceInventory, node: Node | None) -> str:
    """Why an inventory is not believed: a node describes only itself."""
    spec = inventory.spec
    expected = inventory_name(spec.node_name, spec.driver)
    if inventory.metadata.name != expected:
        return f"node {spec.node_name!r} and driver {spec.driver!r} belong into an object named {expected}"
    if node is None:
        return ""
    owners = [o for o in inventory.metadata.owner_references or () if o.kind == "Node"]
    if not any(o.name == node.metadata.name and o.uid == node.metadata.uid for o in owners):
        return f"its owner is not Node {node.metadata.name} with UID {node.metadata.uid}"
    return ""
