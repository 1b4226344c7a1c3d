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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import structlog

from controller.config import ControllerConfig
from controller.observe.tracing import traced
from controller.publish.device_plugins import DevicePlugins
from controller.publish.freeze import FrozenPools, changes_forms
from controller.publish.handover import DRAINING, Handover, Step
from controller.publish.policies import PolicyBook
from dra_driver.api.core import Node
from dra_driver.api.inventory import (
    DEVICE_INVENTORIES,
    NODE_PUBLISHES,
    DeviceInventory,
    Publication,
    inventory_name,
)
from dra_driver.api.meta import WireObject
from dra_driver.api.policy import DevicePolicy
from dra_driver.api.resource import Condition, ResourceSlice
from dra_driver.errors import ApiUnavailable, Invalid
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import (
    CREATED_BY_CONTROLLER,
    PoolAllocator,
    PoolID,
    is_published_by_node,
    missing_slices,
    newest_devices,
    owner_of,
    pool_of_inventory,
    pool_of_slice,
    raw_publication,
    refusal_of,
    slice_name,
    slices_of_node,
)
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import (
    AlteredByServer,
    conditions,
    delete_stale,
    probe_features,
    store,
)
from dra_driver.resourceslice import (
    DesiredPool,
    Plan,
    PluginDevices,
    PublishOptions,
    ServerFeatures,
    SliceWrite,
    Usage,
    build_slices,
    plan,
)
from dra_driver.structured import PoolState

__all__ = ["POOL_INDEX", "Publisher", "pool_of"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)

POOL_INDEX = "pool"


def pool_of(slice_: ResourceSlice) -> Iterable[PoolID]:
    """Index function of the slice informer: driver and pool."""
    yield pool_of_slice(slice_)


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
        policies: PolicyBook | None = None,
        handover: Handover | None = None,
        taken: Callable[[PoolID], PoolState] | None = None,
        frozen: FrozenPools | None = None,
        device_plugins: DevicePlugins | None = None,
    ) -> None:
        """Connects the parts.

        Args:
            client: for writes.
            config: drivers, and who allocates where no policy says.
            clock: for conditions.
            recorder: for Events.
            inventories: what there is.
            slices: with the index ``POOL_INDEX``.
            nodes: owners of the slices, and what policies select on.
            policies: None: there are none.
            handover: None: pools change hands at once, which is safe only where nobody allocates.
            taken: what claims hold of a pool; None: nothing.
            frozen: pools that the allocator must leave alone; None: nobody asks.
            device_plugins: whose devices are withheld; None: nothing is asked of Nodes.
        """
        self._client = client
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._inventories = inventories
        self._slices = slices
        self._nodes = nodes
        self._policies = policies
        self._handover = handover
        self._taken = taken
        self._device_plugins = device_plugins
        self._frozen = frozen or FrozenPools(lambda _pool, _frozen: None)
        self._pending: set[PoolID] = set()
        self._features: ServerFeatures | None = None
        self._probing = asyncio.Lock()
        # Epochs whose attempt this process began and knows the outcome of: uid of the inventory → epoch.
        self._attempts: dict[str, int] = {}
        self.queue: WorkQueue[str] = WorkQueue("publisher", max_delay=30.0)
        inventories.add_handler(
            Handler(
                added=lambda i: self.queue.add(i.metadata.name),
                updated=lambda _, i: self.queue.add(i.metadata.name),
                deleted=self._inventory_gone,
            )
        )
        if policies is not None:
            policies.informer.add_handler(
                Handler(
                    added=lambda _: self.all_again(),
                    updated=self._policy_updated,
                    deleted=lambda _: self.all_again(),
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
        """``CONTROLLER`` where some pool may be ours, after what the server can do was considered."""
        if self._features is not None and not self._features.taints:
            return PoolAllocator.SCHEDULER
        if self._policies is not None and self._policies.wants_controller(self._config.drivers):
            return PoolAllocator.CONTROLLER
        return self._config.allocator

    async def probe(self) -> ServerFeatures:
        """What the server keeps, asked once."""
        async with self._probing:
            if self._features is None:
                self._features = await probe_features(self._client, self._config.drivers[0])
            return self._features

    async def run(self) -> None:
        """Publishes until cancelled. The informers must be synced."""
        await self.queue.process(traced("publish", self.reconcile), workers=8)

    def _slice_changed(self, slice_: ResourceSlice, *, gone: bool = False) -> None:
        self._frozen.saw(pool_of_slice(slice_), slice_, gone=gone)
        if slice_.spec.driver in self._config.drivers and slice_.spec.node_name:
            self.queue.add(inventory_name(slice_.spec.node_name, slice_.spec.driver))

    def _slice_deleted(self, slice_: ResourceSlice) -> None:
        self._slice_changed(slice_, gone=True)
        if slice_.spec.node_name:
            # An attempt that has not been noted yet must not create it a second time.
            name = inventory_name(slice_.spec.node_name, slice_.spec.driver)
            inventory = self._inventories.get_by_name(name)
            if inventory is not None:
                self._forget_attempt(inventory)

    def all_again(self) -> None:
        """Something changed that concerns every pool."""
        for inventory in self._inventories.items():
            self.queue.add(inventory.metadata.name)

    def pending_again(self) -> None:
        """Devices have become free, perhaps those that changes wait for."""
        for pool in self._pending:
            self.queue.add(inventory_name(pool.pool, pool.driver))

    def _policy_updated(self, old: DevicePolicy, new: DevicePolicy) -> None:
        if old.spec != new.spec or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp:
            self.all_again()

    def _inventory_gone(self, inventory: DeviceInventory) -> None:
        self._forget_attempt(inventory)
        pool = pool_of_inventory(inventory)
        self._pending.discard(pool)
        self._frozen.end(pool)
        if self._policies is not None:
            self._policies.forget(inventory)
        if self._device_plugins is not None:
            self._device_plugins.forget(inventory)

    def _forget_attempt(self, inventory: DeviceInventory) -> None:
        self._attempts.pop(inventory.metadata.uid, None)

    def _node_changed(self, node: Node) -> None:
        for driver in self._config.drivers:
            self.queue.add(inventory_name(node.metadata.name, driver))

    def _node_updated(self, old: Node, node: Node) -> None:
        labels = (
            self._policies is not None
            and old.metadata.labels != node.metadata.labels
            and self._policies.looks_at_labels
        )
        plugins = self._device_plugins is not None and self._device_plugins.concerned(old, node)
        if labels or plugins or old.metadata.uid != node.metadata.uid:
            self._node_changed(node)

    # --- one inventory --------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> None:
        """Brings the slices of one inventory to what they should be, as far as the epoch allows."""
        inventory = self._inventories.get_by_name(name)
        if inventory is None or inventory.spec.driver not in self._config.drivers:
            return
        node = self._nodes.get_by_name(inventory.spec.node_name)
        refusal = refusal_of(inventory, node)
        if refusal or node is None:
            if refusal:
                log.warning("inventory refused", inventory=name, reason=refusal)
                await self._note_condition(inventory, conditions.refused(refusal))
            return
        pool = pool_of_inventory(inventory)
        if is_published_by_node(inventory):
            self._pending.discard(pool)
            self._frozen.end(pool)
            if self._policies is not None:
                self._policies.forget(inventory)  # they have no effect there
            # The agent notes what it withholds itself, and when that is over.
            if not conditions.is_withheld(inventory.status.conditions):
                await self._note_condition(inventory, conditions.left_to_node())
            return
        desired, step = await self._desired(inventory, node)
        if pool in self._frozen or self._changes_forms(inventory, node, desired):
            self._frozen.freeze(pool)
            desired, step = await self._desired(inventory, node)  # what was decided until now counts
        await self._publish(inventory, node, desired, step)
        # Not after an error: what was written is not known then, and the pool stays frozen until it is.
        self._frozen.end(pool)

    async def _publish(
        self, inventory: DeviceInventory, node: Node, desired: DesiredPool, step: Step
    ) -> None:
        registration, publication = inventory.status.registration, inventory.status.publication
        if registration.registered and registration.epoch > publication.epoch:
            await self._new_epoch(inventory, node, desired, step)
        elif publication.epoch > 0:
            await self._within_epoch(inventory, node, desired, step)

    async def _desired(self, inventory: DeviceInventory, node: Node) -> tuple[DesiredPool, Step]:
        """What should be published now, and who allocates."""
        features = await self.probe()
        pool = pool_of_inventory(inventory)
        there = self._slices.by_index(POOL_INDEX, (pool.driver, pool.pool))
        policies = self._policies.for_node(node) if self._policies is not None else ()
        usage = self._usage(pool, there)
        # A pool that its node wants to publish goes to kube-scheduler first, in the order that keeps it safe.
        wanted = PoolAllocator.SCHEDULER if inventory.spec.publisher == NODE_PUBLISHES else None
        options = PublishOptions(allocator=self._config.allocator, forced=wanted)
        plugins = self._handed_out(inventory, node)
        desired = build_slices(
            inventory, policies, usage, options=options, features=features, plugins=plugins
        )
        step = Step(desired.allocator, desired.allocator.value)
        if self._handover is not None:
            step = await self._handover.step(inventory, desired.allocator, there)
            if step.allocator is not desired.allocator:
                forced = PublishOptions(allocator=self._config.allocator, forced=step.allocator)
                desired = build_slices(
                    inventory, policies, usage, options=forced, features=features, plugins=plugins
                )
            if step.after:
                self.queue.add_after(inventory.metadata.name, step.after)
        if self._device_plugins is not None:
            desired = self._device_plugins.with_conflicts(desired)
        if desired.pending:
            self._pending.add(pool)
        else:
            self._pending.discard(pool)
        if self._policies is not None:
            self._policies.record(inventory, desired)
        return desired, step

    def _handed_out(self, inventory: DeviceInventory, node: Node) -> tuple[PluginDevices, ...]:
        """What device plugins hand out on the node."""
        if self._device_plugins is None:
            return ()
        plugins, again = self._device_plugins.handed_out(inventory, node)
        if again:
            self.queue.add_after(inventory.metadata.name, again)
        return plugins

    def _usage(self, pool: PoolID, there: Iterable[ResourceSlice]) -> Usage:
        state = self._taken(pool) if self._taken is not None else PoolState()
        if not state.devices and not state.shares:
            return Usage()
        return Usage(frozenset(state.devices), frozenset(state.shares), newest_devices(there))

    async def _new_epoch(
        self, inventory: DeviceInventory, node: Node, desired: DesiredPool, step: Step
    ) -> None:
        epoch = inventory.status.registration.epoch
        uid = inventory.metadata.uid
        if self._attempts.get(uid) != epoch:
            if inventory.status.publication.attempted >= epoch:
                await self._settle(inventory, desired)
                return
            attempt = {"attempted": epoch, "allocator": step.noted}
            inventory = await self._patch_status(inventory, {"publication": attempt})
            self._attempts[uid] = epoch
        inventory = await self._note_allocator(inventory, step)
        todo = self._plan(inventory, node, desired)
        try:
            await self._write(inventory, todo)
        except ApiUnavailable:
            self._forget_attempt(inventory)  # a slice may have been created, or not
            raise
        await self._note(inventory, desired, todo, epoch, step)
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
        await delete_stale(self._client, todo)

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
            allocator=inventory.status.publication.allocator,
            withheld_for=inventory.status.publication.withheld_for,
        )
        log.info("an unfinished publication is closed", inventory=inventory.metadata.name, epoch=epoch)
        await self._patch_status(inventory, {"publication": raw_publication(publication)})

    async def _note_allocator(self, inventory: DeviceInventory, step: Step) -> DeviceInventory:
        """Before the slices say the same: a controller that is killed in between must not allocate."""
        if inventory.status.publication.allocator == step.noted:
            return inventory
        return await self._patch_status(inventory, {"publication": {"allocator": step.noted}})

    async def _within_epoch(
        self, inventory: DeviceInventory, node: Node, desired: DesiredPool, step: Step
    ) -> None:
        publication = inventory.status.publication
        there = self._slices.by_index(POOL_INDEX, (desired.driver, desired.pool))
        vanished = missing_slices(publication, {s.metadata.name for s in there})
        if vanished:
            # Somebody deleted them: the kubelet, because the plugin is gone. The plugin decides, not we.
            log.debug("slices are gone; waiting for the plugin", node=desired.node_name, slices=vanished)
            return
        todo = self._plan(inventory, node, desired)
        if todo.creates and not inventory.status.registration.registered:
            return
        inventory = await self._note_allocator(inventory, step)
        await self._write(inventory, todo)
        inventory = await self._note(inventory, desired, todo, publication.epoch, step)
        await delete_stale(self._client, todo)

    def _changes_forms(self, inventory: DeviceInventory, node: Node, desired: DesiredPool) -> bool:
        there = self._slices.by_index(POOL_INDEX, (desired.driver, desired.pool))
        return bool(there) and changes_forms(self._plan(inventory, node, desired), newest_devices(there))

    def _plan(self, inventory: DeviceInventory, node: Node, desired: DesiredPool) -> Plan:
        pool = self._slices.by_index(POOL_INDEX, (desired.driver, desired.pool))
        return plan(
            slices_of_node(pool, desired.node_name),
            desired,
            owner_of(node),
            least_generation=inventory.status.publication.generation + 1,
            labels=CREATED_BY_CONTROLLER,
        )

    # --- writes ---------------------------------------------------------------------------------------------

    async def _write(self, inventory: DeviceInventory, todo: Plan) -> None:
        for write in (*todo.creates, *todo.updates):
            await self._write_slice(inventory, write)

    async def _write_slice(self, inventory: DeviceInventory, write: SliceWrite) -> None:
        def stored(answer: ResourceSlice) -> None:
            pool = pool_of_slice(answer)
            self._frozen.wrote(pool, answer, self._slices.get_by_name(answer.metadata.name))

        try:
            await store(self._client, write, stored)
        except Invalid as e:
            self._recorder.event(DEVICE_INVENTORIES, inventory, "Warning", "SliceRefused", str(e))
            raise
        except AlteredByServer as e:
            self._features = None  # asked anew
            self._recorder.event(DEVICE_INVENTORIES, inventory, "Warning", "SliceAltered", str(e))
            raise

    async def _note(
        self, inventory: DeviceInventory, desired: DesiredPool, todo: Plan, epoch: int, step: Step
    ) -> DeviceInventory:
        present = inventory.status.publication
        publication = Publication(
            epoch=epoch,
            attempted=max(epoch, present.attempted),
            generation=todo.generation,
            slices=todo.names,
            devices=desired.devices,
            allocator=step.noted,
            withheld_for=desired.withheld_for,
        )
        draining = step.noted == DRAINING
        condition = conditions.published(desired, self._features, step.refused, draining=draining)
        status: dict[str, Any] = {}
        if publication != present:
            status["publication"] = raw_publication(publication)
        if not conditions.same(inventory.status.conditions, condition):
            status["conditions"] = self._conditions(inventory, condition)
            kind: Literal["Normal", "Warning"] = "Normal" if condition.reason == "Published" else "Warning"
            self._recorder.event(DEVICE_INVENTORIES, inventory, kind, condition.reason, condition.message)
        return await self._patch_status(inventory, status) if status else inventory

    async def _note_condition(self, inventory: DeviceInventory, condition: Condition) -> None:
        if not conditions.same(inventory.status.conditions, condition):
            await self._patch_status(inventory, {"conditions": self._conditions(inventory, condition)})

    def _conditions(self, inventory: DeviceInventory, condition: Condition) -> list[dict[str, Any]]:
        return conditions.merged(inventory.status.conditions, condition, rfc3339(self._clock.now()))

    async def _patch_status(self, inventory: DeviceInventory, status: Mapping[str, Any]) -> DeviceInventory:
        patch = {
            "metadata": {"resourceVersion": inventory.metadata.resource_version},
            "status": status,
        }
        return await self._client.merge_patch(
            DEVICE_INVENTORIES, inventory.metadata.name, patch, subresource="status"
        )
