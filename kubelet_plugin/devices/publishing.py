"""``--publish=node``: the agent publishes the slices of its own node, for clusters without our controller.

The same ``build_slices`` and the same record in ``status.publication`` as the controller's: either can take
over from the other. Devices carry no taint of the controller, kube-scheduler allocates. DevicePolicies are
the controller's, so that whole devices are published as they were found. Devices that a device plugin of a
vendor hands out on the node are withheld here too; the agent reads its Node again and again for that, because
its rights do not let it watch one.

Slices are created only while the kubelet has this very process registered, once per registration epoch. An
agent that is dead publishes nothing, and one that was killed half-way begins a new epoch when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from dra_driver.api.core import NODES, Node
from dra_driver.api.inventory import DEVICE_INVENTORIES, DeviceInventory, Publication
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.policy import PUBLISH, WITHHOLD
from dra_driver.api.resource import Condition, ResourceSlice
from dra_driver.kube import SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import (
    CREATED_BY_NODE,
    PoolAllocator,
    missing_slices,
    owner_of,
    raw_publication,
    slices_of_node,
)
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import (
    AlteredByServer,
    LeavingPlugins,
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
    build_slices,
    handed_out,
    plan,
)
from kubelet_plugin.core.notices import DEVICE_PLUGIN
from kubelet_plugin.core.registration import RegistrationState

__all__ = ["LOOK_AT_NODE_SECONDS", "TAKE_OVER_SECONDS", "NodePublisher"]

# A controller that lives hands a pool to kube-scheduler within seconds; one that is gone decides nothing.
TAKE_OVER_SECONDS: Final = 120.0
_LOOK_AGAIN_SECONDS: Final = 5.0
# How long a device plugin that comes may stay unseen. At 5,000 nodes these are 170 reads of a Node a second,
# and as many of a DeviceInventory: together less than what the kubelets write to leases.
LOOK_AT_NODE_SECONDS: Final = 30.0
_BY_FLAG: Final = "start the node agent with --beside-device-plugin=publish if the plugin leaves them alone"

log = structlog.get_logger(__name__)


class NodePublisher:
    """Publishes what an inventory says.

    Args:
        client: for writes.
        driver: ours.
        node_name: of this node, whose slices alone are touched.
        registration: whether the kubelet has this plugin.
        take_over_seconds: how long a controller that allocates the pool is given to let go of it.
        beside_device_plugin: whether devices that a device plugin of the node hands out are withheld.
        clock: for conditions, and for device plugins that have gone.
        tell: notes a finding, by kind and for people.

    Attributes:
        again: seconds after which to call ``publish`` again although nothing has changed; 0: not.
    """

    def __init__(
        self,
        client: KubeClient,
        driver: DriverName,
        node_name: str,
        registration: RegistrationState,
        take_over_seconds: float = TAKE_OVER_SECONDS,
        *,
        beside_device_plugin: str = WITHHOLD,
        clock: Clock | None = None,
        tell: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._registration = registration
        self._patience = take_over_seconds
        self._waiting_since: float | None = None
        self._features: ServerFeatures | None = None
        self._clock = clock or SystemClock()
        self._leaving = None if beside_device_plugin == PUBLISH else LeavingPlugins(self._clock)
        self._tell = tell
        self.again = 0.0

    async def publish(self, inventory: DeviceInventory, slices: Iterable[ResourceSlice]) -> DeviceInventory:
        """One round.

        Args:
            inventory: as the API server has it now, with our last spec and registration.
            slices: those of this node and driver, as last seen.

        Returns:
            The inventory as it is now.

        Raises:
            DraError: something could not be written.
        """
        self.again = 0.0
        if not self._registration.live or self._is_controllers(inventory):
            return inventory
        registration, publication = inventory.status.registration, inventory.status.publication
        there = slices_of_node(slices, self._node_name)
        new_epoch = registration.registered and registration.epoch > publication.epoch
        names = {s.metadata.name for s in there}
        if not new_epoch and (not publication.epoch or missing_slices(publication, names)):
            return inventory  # what is gone comes back with another epoch
        if self._features is None:
            self._features = await probe_features(self._client, self._driver, self._node_name)
        node = await self._client.get(NODES, self._node_name)
        options = PublishOptions(allocator=PoolAllocator.SCHEDULER, forced=PoolAllocator.SCHEDULER)
        plugins = self._handed_out(inventory, node)
        desired = build_slices(inventory, options=options, features=self._features, plugins=plugins)
        todo = plan(
            (s for s in there if s.spec.pool.name == PoolName(self._node_name)),
            desired,
            owner_of(node),
            least_generation=publication.generation + 1,
            labels=CREATED_BY_NODE,
        )
        await self._write(todo)
        epoch = registration.epoch if new_epoch else publication.epoch
        inventory = await self._note(inventory, desired, todo, epoch)
        await delete_stale(self._client, todo)
        if not todo.empty:
            log.info(
                "published",
                epoch=epoch,
                generation=todo.generation,
                devices=desired.devices,
                slices=len(todo.names),
                left_out=list(desired.problems),
            )
        return inventory

    def _handed_out(self, inventory: DeviceInventory, node: Node) -> tuple[PluginDevices, ...]:
        """What device plugins hand out on the node, by their well-known names: classes are not read here."""
        if self._leaving is None:
            return ()
        resources, again = self._leaving.resources(inventory, node.status.capacity)
        self.again = min(again or LOOK_AT_NODE_SECONDS, LOOK_AT_NODE_SECONDS)
        return handed_out(resources)

    def _is_controllers(self, inventory: DeviceInventory) -> bool:
        """Whether a controller may still be deciding who gets these devices."""
        allocator = inventory.status.publication.allocator
        if allocator in ("", PoolAllocator.SCHEDULER.value):
            self._waiting_since = None
            return False
        now = asyncio.get_running_loop().time()
        if self._waiting_since is None:
            self._waiting_since = now
            log.info("waiting for the controller to let go of the node's devices", state=allocator)
        if now - self._waiting_since < self._patience:
            self.again = _LOOK_AGAIN_SECONDS
            return True
        log.warning("no controller lets go of the node's devices; taking them over", state=allocator)
        return False

    async def _write(self, todo: Plan) -> None:
        for write in (*todo.creates, *todo.updates):
            try:
                await store(self._client, write)
            except AlteredByServer:
                self._features = None  # asked anew
                raise

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
            allocator=PoolAllocator.SCHEDULER.value,
            withheld_for=desired.withheld_for,
        )
        status: dict[str, Any] = {}
        if publication != present:
            status["publication"] = raw_publication(publication)
        condition = self._condition(inventory, desired)
        before = inventory.status.conditions
        if condition is not None and not conditions.same(before, condition):
            status["conditions"] = conditions.merged(before, condition, rfc3339(self._clock.now()))
            if desired.withheld:
                log.warning("devices are withheld", reason=condition.message)
                self._tell(DEVICE_PLUGIN, condition.message)
        if not status:
            return inventory
        patch = {"metadata": {"resourceVersion": inventory.metadata.resource_version}, "status": status}
        return await self._client.merge_patch(
            DEVICE_INVENTORIES, inventory.metadata.name, patch, subresource="status"
        )

    def _condition(self, inventory: DeviceInventory, desired: DesiredPool) -> Condition | None:
        """What is to be said of device plugins; all else is the controller's to say, where there is one."""
        if desired.withheld:
            return conditions.published(desired, self._features, publish_anyway=_BY_FLAG)
        if conditions.is_withheld(inventory.status.conditions):
            return conditions.left_to_node()
        return None
