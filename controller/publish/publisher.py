"""DeviceInventory → ResourceSlices: the loop that looks at a pool, has it planned, and carries the plan out.

What is done about a pool is computed by ``dra_driver.publishing.plan_publication``; how that is carried out
is in ``execution``. Here is what makes a pool worth looking at, and what is seen then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

import structlog

from controller.allocate.state.assume_cache import AssumeCache
from controller.config import ControllerConfig
from controller.observe.tracing import traced
from controller.publish.execution import Attempts, Execution
from controller.publish.extended_resources import ExtendedResources
from controller.publish.gates import PoolGates
from controller.publish.known_claims import KnownClaims
from controller.publish.open_pools import OpenPools
from controller.publish.other_drivers import OtherDrivers
from controller.publish.pace import Pace
from controller.publish.policies import PolicyBook
from controller.publish.same_uuids import SameUuids
from controller.publish.tolerators import Tolerators
from controller.publish.unasked import Unasked
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory, inventory_name
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import DraError, Invalid
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.kube.features import KeptFields
from dra_driver.kube.slices import AlteredByServer, show
from dra_driver.ownership import (
    AGENT_CONDITION,
    PoolAllocator,
    PoolID,
    newest_devices,
    pool_of_inventory,
    pool_of_slice,
    refusal_of,
)
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import PublicationPlan, Seen, Verdict, conditions, plan_publication
from dra_driver.publishing.epochs import EpochEvent
from dra_driver.publishing.seen import Guarding
from dra_driver.resourceslice import Presence, ServerFeatures, Usage, share_a_device
from dra_driver.structured import PoolPolicy

__all__ = ["POOL_INDEX", "Publisher", "pool_of"]

log = structlog.get_logger(__name__)

POOL_INDEX = "pool"
# Until the pools are looked at that have a UUID in common with one that has changed: a node that changes its
# UUIDs all the time must not have others looked at as often.
_OTHERS_SECONDS = 10.0
# Until a pool is looked at because another driver has withdrawn devices: plugins that start again and again
# must not have it written as often.
_VANISHED_SECONDS = 10.0


def pool_of(slice_: ResourceSlice) -> Iterable[PoolID]:
    """Yield the pool of a slice: index function of the slice informer."""
    yield pool_of_slice(slice_)


class Publisher:
    """Reconciles the slices of every inventory of our drivers.

    Attributes:
        unasked: shows why the API server could not be asked what it keeps.
    """

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
        gates: PoolGates,
        open_pools: OpenPools | None = None,
        policies: PolicyBook | None = None,
        tolerators: Tolerators | None = None,
        extended_resources: ExtendedResources | None = None,
        assume_cache: AssumeCache | None = None,
        rule_changed: Callable[[PoolID, PoolPolicy], None] = lambda _pool, _policy: None,
        server_changed: Callable[[ServerFeatures], None] = lambda _: None,
    ) -> None:
        """Connect the parts.

        Args:
            client: for writes.
            config: drivers, and who allocates where no policy says.
            clock: for conditions, and for the time to drain.
            recorder: for Events.
            inventories: what there is.
            slices: with the index ``POOL_INDEX``.
            nodes: owners of the slices, and what policies select on.
            gates: pools that the allocator must leave alone.
            open_pools: whether pools can be open; if None, none is.
            policies: DevicePolicies; if None, there are none.
            tolerators: claims that kube-scheduler could serve from our pools; if None, there are none.
            extended_resources: what device plugins hand out; if None, nothing is withheld because of them.
            assume_cache: what claims hold; if None, they hold nothing.
            rule_changed: called at once with a pool and its policy, when that is another one.
            server_changed: called when the API server keeps other fields of slices than before.
        """
        self._client = client
        self._config = config
        self._clock = clock
        self._inventories = inventories
        self._slices = slices
        self._nodes = nodes
        self._gates = gates
        self._open_pools = open_pools
        self._policies = policies
        self._tolerators = tolerators
        self._extended = extended_resources
        self._assume_cache = assume_cache
        self._rule_changed = rule_changed
        self._claims = KnownClaims(client, assume_cache)
        self._attempts = Attempts()
        self._pace = Pace()
        self._planning = asyncio.Lock()
        self._uuids = SameUuids()
        self._execution = Execution(client, clock, recorder, gates, self._attempts)
        # Pools in which something waits until devices are free.
        self._pending: set[PoolID] = set()
        # Resources of device plugins that have gone, and other drivers, by pool: since when.
        self._gone: dict[PoolID, Mapping[str, float]] = {}
        self._gone_drivers: dict[PoolID, Mapping[tuple[DriverName, str], float]] = {}
        self._kept = KeptFields(
            client, config.drivers[0], clock, config.timings.probe, changed=self._server_changed
        )
        self._server_changes = server_changed
        self.unasked = Unasked(client, clock, recorder)
        self.queue: WorkQueue[str] = WorkQueue("publisher", max_delay=30.0)
        self._others = OtherDrivers(
            slices,
            config.drivers,
            appeared=self._look_at_node,
            vanished=lambda node: self._look_at_node(node, after=_VANISHED_SECONDS),
            everywhere=lambda: self._look_later(i.metadata.name for i in inventories.items()),
            held=self._held,
            slices_of=lambda pool: slices.by_index(POOL_INDEX, pool),
        )
        self._follow()

    @property
    def features(self) -> ServerFeatures | None:
        """What the server keeps; None before it was asked."""
        return self._kept.known

    @property
    def allocator(self) -> PoolAllocator:
        """``CONTROLLER`` where some pool may be ours, after what the server can do was considered."""
        opens = self._open_pools is not None and self._open_pools.possible()
        if self.features is not None and not (self.features.taints or opens):
            return PoolAllocator.SCHEDULER
        if self._policies is not None and self._policies.wants_controller(self._config.drivers):
            return PoolAllocator.CONTROLLER
        return self._config.allocator

    async def probe(self) -> ServerFeatures:
        """Return what the server keeps; it is asked again now and then, and after it has altered a slice."""
        try:
            kept = await self._kept.now()
        except DraError as e:
            self.unasked.failed(e)
            raise
        self.unasked.answered()
        return kept

    async def follow_server(self) -> None:
        """Ask again and again what the server keeps, until cancelled."""
        while True:
            await asyncio.sleep(self._config.timings.probe)
            with contextlib.suppress(DraError):  # the pools that wait for an answer report it
                await self._kept.look()

    def _server_changed(self, features: ServerFeatures) -> None:
        self._server_changes(features)
        self.look_at_all()

    async def show_unasked(self) -> None:
        """Show on every inventory of ours that the API server could not be asked what it keeps."""
        for inventory in self._inventories.items():
            if inventory.spec.driver in self._config.drivers and not await self.unasked.show(inventory):
                return

    async def run(self) -> None:
        """Publish until cancelled. The informers must be synced."""
        await self.queue.process(traced("publish", self.reconcile), workers=8)

    # --- what makes a pool worth looking at -----------------------------------------------------------------

    def _follow(self) -> None:
        self._inventories.add_handler(
            Handler(
                added=lambda i: self.queue.add(i.metadata.name),
                updated=self._inventory_updated,
                deleted=self._inventory_deleted,
            )
        )
        self._slices.add_handler(
            Handler(
                added=self._slice_added,
                updated=self._slice_updated,
                deleted=self._slice_deleted,
            )
        )
        self._nodes.add_handler(
            Handler(added=lambda n: self._look_at_node(n.metadata.name), updated=self._node_updated)
        )
        if self._policies is not None:
            self._policies.informer.add_handler(
                Handler(
                    added=lambda _: self.look_at_all(),
                    updated=self._policy_updated,
                    deleted=lambda _: self.look_at_all(),
                )
            )

    def look_at_all(self) -> None:
        """Look at every pool again."""
        for inventory in self._inventories.items():
            self.queue.add(inventory.metadata.name)

    def look_at(self, pool: PoolID) -> None:
        """Look at one pool again."""
        self.queue.add(inventory_name(pool.pool, pool.driver))

    def _look_later(self, names: Iterable[str]) -> None:
        for name in names:
            self.queue.add_after(name, _OTHERS_SECONDS)

    def look_at_pending(self) -> None:
        """Look again at pools in which something waits until devices are free."""
        for pool in self._pending:
            self.look_at(pool)

    def _slice_changed(self, slice_: ResourceSlice) -> None:
        if slice_.spec.driver in self._config.drivers and slice_.spec.node_name:
            self.queue.add(inventory_name(slice_.spec.node_name, slice_.spec.driver))

    def _slice_added(self, slice_: ResourceSlice) -> None:
        self._slice_changed(slice_)
        self._look_beside(slice_)

    def _slice_updated(self, old: ResourceSlice, new: ResourceSlice) -> None:
        self._slice_changed(new)
        if [d.name for d in old.spec.devices] != [d.name for d in new.spec.devices]:
            self._look_beside(new)

    def _look_beside(self, slice_: ResourceSlice) -> None:
        """Look at pools of our other drivers that have devices of this slice of ours."""
        node, driver = slice_.spec.node_name, slice_.spec.driver
        if not node or driver not in self._config.drivers:
            return
        for name in (inventory_name(node, other) for other in self._config.drivers if other != driver):
            inventory = self._inventories.get_by_name(name)
            if inventory is not None and share_a_device(inventory.spec.devices, slice_.spec.devices):
                self.queue.add(name)

    def _slice_deleted(self, slice_: ResourceSlice) -> None:
        self._slice_changed(slice_)
        self._look_beside(slice_)
        if slice_.spec.node_name:
            name = inventory_name(slice_.spec.node_name, slice_.spec.driver)
            inventory = self._inventories.get_by_name(name)
            if inventory is not None:
                if self._is_left_behind(inventory):
                    self.queue.add(name)
                self._attempts.happened(inventory, EpochEvent.SLICE_DELETED)

    def _inventory_updated(self, old: DeviceInventory, new: DeviceInventory) -> None:
        if not _same_for_publishing(old, new):
            self.queue.add(new.metadata.name)

    def _inventory_deleted(self, inventory: DeviceInventory) -> None:
        self._attempts.happened(inventory, EpochEvent.INVENTORY_DELETED)
        self._gone.pop(pool_of_inventory(inventory), None)
        self._gone_drivers.pop(pool_of_inventory(inventory), None)
        self._look_later(self._uuids.remove(inventory.metadata.name))
        self._forget(inventory)

    def _forget(self, inventory: DeviceInventory) -> None:
        """Forget a pool that is gone or published by its node; policies have no effect there."""
        pool = pool_of_inventory(inventory)
        self._pending.discard(pool)
        if self._policies is not None and self._policies.forget(inventory):
            self._rule_changed(pool, self._policies.rule(pool))

    def _policy_updated(self, old: DevicePolicy, new: DevicePolicy) -> None:
        if old.spec != new.spec or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp:
            self.look_at_all()

    def _look_at_node(self, node_name: str, after: float = 0.0) -> None:
        for driver in self._config.drivers:
            name = inventory_name(node_name, driver)
            if after:
                self.queue.add_after(name, after)
            else:
                self.queue.add(name)

    def _node_updated(self, old: Node, node: Node) -> None:
        labels = old.metadata.labels != node.metadata.labels and (
            self._others.looks_at_labels or (self._policies is not None and self._policies.looks_at_labels)
        )
        plugins = self._extended is not None and self._extended.concerns(old, node)
        if labels or plugins:
            self._look_at_node(node.metadata.name)

    # --- one pool -------------------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> None:
        """Bring the slices of one inventory to what they should be, as far as the tables allow.

        Raises:
            DraError: something could not be read or written.
        """
        try:
            features = await self.probe()
        except DraError:
            inventory = self._inventories.get_by_name(name)
            if inventory is not None and inventory.spec.driver in self._config.drivers:
                await self.unasked.show(inventory)
            raise
        if self._has_to_wait(name):
            return
        planned = await self._plan(name, features)
        if planned is None:
            await self._look_at_the_rest(name)
            return
        inventory, plan = planned
        if plan.reads_claims:
            known = await self._claims.are_known(plan.pool)
            planned = await self._plan(name, features, claims_seen=known)
            if planned is None:
                return
            inventory, plan = planned
        self._remember(inventory, plan)
        try:
            await self._execution.carry_out(plan, inventory)
        except (AlteredByServer, Invalid):
            # It may keep less than before: an attribute whose list is dropped has no value.
            self._kept.doubt()
            raise

    async def _look_at_the_rest(self, name: str) -> None:
        """Let the record of an inventory end whose driver is gone."""
        inventory = self._inventories.get_by_name(name)
        if inventory is not None and self._is_left_behind(inventory):
            condition = conditions.left_behind(inventory.spec.driver, self._config.drivers)
            await show(self._client, inventory, condition, self._clock, {"devices": 0})

    def _is_left_behind(self, inventory: DeviceInventory) -> bool:
        """Return whether an inventory says that something is published, and its driver is no longer there.

        Of the record all else stays: by its epoch, a plugin that comes back is published anew.
        """
        status = inventory.status
        return (
            inventory.spec.driver not in self._config.drivers
            and not status.registration.registered
            and status.publication.devices > 0
            and not self._slices.by_index(POOL_INDEX, pool_of_inventory(inventory))
        )

    def _has_to_wait(self, name: str) -> bool:
        """Return whether an inventory has changed too often of late; it is looked at later then."""
        inventory = self._inventories.get_by_name(name)
        if inventory is None or inventory.spec.driver not in self._config.drivers:
            return False
        wait = self._pace.wait(inventory, asyncio.get_running_loop().time())
        if wait:
            self.queue.add_after(name, wait)
            return True
        if not refusal_of(inventory, None):
            self._look_later(self._uuids.put(inventory))
        return False

    async def _plan(
        self, name: str, features: ServerFeatures, *, claims_seen: bool | None = None
    ) -> tuple[DeviceInventory, PublicationPlan] | None:
        """Look at an inventory of ours and return what to do about it.

        Whose the pool is counts at once. Each look has a round of the event loop of its own: several in one
        round hold up all else.
        """
        async with self._planning:
            await asyncio.sleep(0)
            inventory = self._inventories.get_by_name(name)
            if inventory is None or inventory.spec.driver not in self._config.drivers:
                return None
            seen = self._look(inventory, features, claims_seen)
            plan = plan_publication(seen)
            if plan.verdict is Verdict.PUBLISHES:
                self._gates.hand_over(plan.pool, plan.handover, plan.handover_effects)
            return inventory, plan

    def _look(self, inventory: DeviceInventory, features: ServerFeatures, claims_seen: bool | None) -> Seen:
        """Return what is seen of a pool right now."""
        pool = pool_of_inventory(inventory)
        node = self._nodes.get_by_name(inventory.spec.node_name)
        slices = self._slices.by_index(POOL_INDEX, pool)
        assumed = self._assume_cache
        extended = self._extended
        return Seen(
            inventory=inventory,
            node=node,
            slices=slices,
            features=features,
            allocator=self._config.allocator,
            policies=self._policies.for_node(node) if self._policies is not None and node is not None else (),
            usage=_usage(assumed, pool, slices),
            withholds=extended is not None,
            classes=extended.classes if extended is not None else (),
            elsewhere=self._others.elsewhere(inventory, node),
            gone=self._gone.get(pool, {}),
            gone_drivers=self._gone_drivers.get(pool, {}),
            leaving=extended.leaving if extended is not None else 0.0,
            handover=self._gates.handover(pool),
            doubts=self._uuids.doubts(inventory.metadata.name),
            refusal=self._tolerators.refusal() if self._tolerators is not None else "",
            writing=assumed is not None and assumed.assumed_in(pool),
            claims_seen=claims_seen,
            drain=self._config.timings.drain,
            freeze=self._gates.freeze(pool),
            guarding=self._open_pools.guarding(pool) if self._open_pools else Guarding(),
            begun=self._attempts.begun(inventory),
            now=self._clock.monotonic(),
        )

    def _held(self, pool: PoolID) -> Iterable[str]:
        """Return the devices of any driver's pool that claims have."""
        if self._assume_cache is None:
            return ()
        state = self._assume_cache.taken(pool)
        return (*state.devices, *state.shares)

    def _remember(self, inventory: DeviceInventory, plan: PublicationPlan) -> None:
        """Keep what the next look and others need to know of this one."""
        if plan.verdict is Verdict.LEFT_TO_NODE:
            self._forget(inventory)
        if plan.desired is None:
            return
        self._gone[plan.pool], self._gone_drivers[plan.pool] = plan.gone, plan.gone_drivers
        waits = any(other.presence is Presence.HOLDS for other in plan.desired.other_drivers)
        if plan.desired.pending or waits:
            self._pending.add(plan.pool)
        else:
            self._pending.discard(plan.pool)
        if self._policies is not None and self._policies.record(inventory, plan.desired):
            self._rule_changed(plan.pool, self._policies.rule(plan.pool))
        if plan.again:
            self.queue.add_after(inventory.metadata.name, plan.again)


def _usage(assumed: AssumeCache | None, pool: PoolID, slices: Iterable[ResourceSlice]) -> Usage:
    """Return what claims hold of a pool, assumed allocations included."""
    if assumed is None:
        return Usage()
    state = assumed.taken(pool)
    if not state.devices and not state.shares:
        return Usage()
    return Usage(frozenset(state.devices), frozenset(state.shares), newest_devices(slices))


def _same_for_publishing(old: DeviceInventory, new: DeviceInventory) -> bool:
    """Return whether nothing has changed that a publisher looks at; only which devices are busy, perhaps."""

    def facts(inventory: DeviceInventory) -> tuple[object, ...]:
        meta, status = inventory.metadata, inventory.status
        said = tuple(c for c in status.conditions if c.type != AGENT_CONDITION)
        return meta.owner_references, status.registration, status.publication, said

    return old.metadata.generation == new.metadata.generation and facts(old) == facts(new)
