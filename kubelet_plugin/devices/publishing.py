"""``--publish=node``: the agent publishes the slices of its own node, for clusters without our controller.

The same plan (``dra_driver.publishing``) and the same record in ``status.publication`` as the controller's:
either can take over from the other. Devices carry no taint of the controller, kube-scheduler allocates.
DevicePolicies are the controller's, so that whole devices are published as they were found. Devices that a
device plugin of a vendor hands out on the node are withheld here too; the agent reads its Node again and
again for that, because its rights do not let it watch one. So are devices that another driver publishes.

Slices are created only while the kubelet has this very process registered, once per registration epoch. While
that is in doubt, as after the health stream was closed, slices that are there are kept true all the same. An
agent that is dead publishes nothing, and one that was killed half-way begins a new epoch when it is back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import PUBLISH, WITHHOLD
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import DraError, Invalid
from dra_driver.kube import SystemClock
from dra_driver.kube.features import KeptFields, probe_problem
from dra_driver.kube.slices import AlteredByServer, carry_out, show
from dra_driver.ownership import (
    pool_of_inventory,
    pool_of_slice,
    recorded_allocator,
    slices_of_node,
)
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import (
    Announce,
    PublicationPlan,
    Seen,
    Step,
    WriteSlice,
    conditions,
    is_due,
    plan_publication,
)
from dra_driver.publishing.handover import takes_over
from dra_driver.resourceslice import ServerFeatures
from kubelet_plugin.core.notices import DEVICE_PLUGIN, OTHER_DRIVER, SERVER_NOT_ASKED
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.other_drivers import OtherDrivers

__all__ = ["LOOK_AT_NODE_SECONDS", "TAKE_OVER_SECONDS", "NodePublisher"]

# A controller that lives hands a pool to kube-scheduler within seconds; one that is gone decides nothing.
TAKE_OVER_SECONDS: Final = 120.0
_LOOK_AGAIN_SECONDS: Final = 5.0
# How long a device plugin that comes may stay unseen. At 5,000 nodes these are 170 reads of a Node a second,
# and as many of a DeviceInventory: together less than what the kubelets write to leases.
LOOK_AT_NODE_SECONDS: Final = 30.0
# Between two questions what the API server keeps, which changes with its upgrade: four requests each, so 70 a
# second at 5,000 nodes.
_PROBE_SECONDS: Final = 300.0

log = structlog.get_logger(__name__)


class NodePublisher:
    """Publishes what an inventory says.

    Args:
        client: for reading the Node, and for writes.
        driver: ours.
        node_name: of this node, whose slices alone are touched.
        registration: whether the kubelet has this plugin.
        take_over_seconds: how long a controller that allocates the pool is given to hand it over.
        beside_device_plugin: whether devices that a device plugin of the node hands out are withheld.
        others: other drivers of the node; if None, nothing is withheld because of them.
        clock: for conditions, for device plugins that have gone, and for the time a controller is given.
        report: called with a finding, by kind and for people.

    Attributes:
        others: other drivers of the node; if None, nothing is withheld because of them.
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
        others: OtherDrivers | None = None,
        clock: Clock | None = None,
        report: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._registration = registration
        self._patience = take_over_seconds
        self._waiting_since: float | None = None
        self._clock = clock or SystemClock()
        self._kept = KeptFields(client, driver, self._clock, _PROBE_SECONDS, node_name)
        self._withholds = beside_device_plugin != PUBLISH
        # Resources of device plugins that have gone: since when.
        self._gone: Mapping[str, float] = {}
        self._gone_drivers: Mapping[tuple[DriverName, str], float] = {}
        self.others = others
        self._report = report
        self.again = 0.0

    async def publish(self, inventory: DeviceInventory, slices: Iterable[ResourceSlice]) -> DeviceInventory:
        """Publish as far as that is due.

        Args:
            inventory: as the API server has it now, with our last spec and registration.
            slices: those of this node and driver, as last seen.

        Returns:
            The inventory as it is now.

        Raises:
            DraError: something could not be written.
        """
        self.again = 0.0
        live = self._registration.live
        if self._waits(inventory) if live else _is_controllers(inventory):
            return inventory
        pool = pool_of_inventory(inventory)
        there = tuple(s for s in slices_of_node(slices, self._node_name) if pool_of_slice(s) == pool)
        seen = Seen(
            # In doubt, what is there is updated, above all for sick devices, and nothing is created.
            inventory=inventory if live else _unregistered(inventory),
            node=None,
            slices=there,
            features=ServerFeatures(),
            by_node=True,
            withholds=self._withholds,
            gone=self._gone,
            gone_drivers=self._gone_drivers,
            now=self._clock.monotonic(),
        )
        if not is_due(seen):
            return inventory  # what is gone comes back with another epoch; until then nothing is asked
        try:
            features = await self._kept.now()
        except DraError as e:
            await self._show_unasked(inventory, probe_problem(e))
            raise
        node = await self._client.get(NODES, self._node_name)
        elsewhere = await self.others.elsewhere(inventory) if self.others is not None else None
        plan = plan_publication(replace(seen, features=features, node=node, elsewhere=elsewhere))
        return await self._carry_out(plan, inventory)

    async def _show_unasked(self, inventory: DeviceInventory, why: str) -> None:
        """Show on the inventory that the API server could not be asked which fields it keeps."""
        condition = conditions.unasked(why, inventory.status.conditions)
        if conditions.same(inventory.status.conditions, condition):
            return
        with contextlib.suppress(DraError):  # the reason for which nothing is published is the first one
            await show(self._client, inventory, condition, self._clock)
            self._report(SERVER_NOT_ASKED, condition.message)

    async def _carry_out(self, plan: PublicationPlan, inventory: DeviceInventory) -> DeviceInventory:
        self._gone, self._gone_drivers = plan.gone, plan.gone_drivers
        looks = LOOK_AT_NODE_SECONDS if self._withholds or self.others is not None else _PROBE_SECONDS
        self.again = min(plan.again or looks, looks)
        try:
            inventory = await carry_out(
                self._client, plan, inventory, self._clock, _Observer(plan, self._report)
            )
        except (AlteredByServer, Invalid):
            self._kept.doubt()
            raise
        todo, desired = plan.slices, plan.desired
        if todo is not None and desired is not None and not todo.empty:
            log.info(
                "published",
                epoch=inventory.status.publication.epoch,
                generation=todo.generation,
                devices=desired.devices,
                slices=len(todo.names),
                left_out=list(desired.problems),
            )
        return inventory

    def _waits(self, inventory: DeviceInventory) -> bool:
        """Decide whether a controller may still be deciding who gets these devices."""
        record, now = recorded_allocator(inventory.status.publication), self._clock.monotonic()
        if takes_over(record, self._waiting_since, now, self._patience):
            if record.is_controllers:
                log.warning(
                    "no controller hands over the node's devices; taking them over", state=record.value
                )
            else:
                self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
            log.info("waiting for the controller to hand over the node's devices", state=record.value)
        self.again = _LOOK_AGAIN_SECONDS
        return True


def _is_controllers(inventory: DeviceInventory) -> bool:
    return recorded_allocator(inventory.status.publication).is_controllers


def _unregistered(inventory: DeviceInventory) -> DeviceInventory:
    registration = msgspec.structs.replace(inventory.status.registration, registered=False)
    status = msgspec.structs.replace(inventory.status, registration=registration)
    return msgspec.structs.replace(inventory, status=status)


class _Observer:
    """Reports what people have to know of one pass."""

    def __init__(self, plan: PublicationPlan, report: Callable[[str, str], None]) -> None:
        self._plan = plan
        self._report = report

    def done(self, step: Step) -> None:
        desired = self._plan.desired
        if isinstance(step, Announce) and desired is not None and (desired.withheld or desired.other_drivers):
            log.warning("devices are withheld", reason=step.message)
            self._report(DEVICE_PLUGIN if desired.withheld else OTHER_DRIVER, step.message)

    def stored(self, slice_: ResourceSlice) -> None:
        pass

    def failed(self, step: WriteSlice, error: DraError) -> None:
        pass
