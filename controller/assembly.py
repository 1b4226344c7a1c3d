"""The controller's parts and how they are connected: first what they share, then the parts that use it.

Nothing here refers to what is made further down. Where one part wakes another, both know a ``Signal``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from controller.allocate.assume_cache import AssumeCache
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import Decisions, Settings
from controller.allocate.doubles import DoubleAllocations
from controller.allocate.following import follow
from controller.allocate.loop import Allocator
from controller.allocate.pool_states import PoolStates
from controller.allocate.signal import Signal
from controller.allocate.unused import UnusedAllocations
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.config import ControllerConfig
from controller.informers import Informers
from controller.observe.metrics import Metrics
from controller.observe.node_labels import NodeLabeler
from controller.observe.tracing import traced
from controller.publish.device_plugins import DevicePlugins
from controller.publish.freeze import FrozenPools
from controller.publish.handover import Handover, Tolerators
from controller.publish.policies import PolicyBook
from controller.publish.publisher import POOL_INDEX, Publisher
from dra_driver.errors import DraError
from dra_driver.kube import Backoff, EventRecorder
from dra_driver.ownership import PoolAllocator, PoolID, refusal_of
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import LeavingPlugins
from dra_driver.structured import PoolPolicy

__all__ = ["Allocation", "Publishing", "State", "World", "labeler_of"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the parts work with, and do not own.

    Attributes:
        config: everything that can be set.
        client: for writes, and for reads that informers do not do.
        clock: for timestamps and delays.
        informers: what is watched.
        recorder: for Events.
        metrics: to report to.
    """

    config: ControllerConfig
    client: KubeClient
    clock: Clock
    informers: Informers
    recorder: EventRecorder
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class State:
    """What publishing and allocating share, and the signals between them.

    Attributes:
        decisions: what pods get; every change is applied to it before it is reported to other parts.
        assume_cache: claims, and what is taken.
        pools: what publishing says to allocating.
        freed: devices may have become free.
        pool_changed: a pool is to be used in another way.
        republish: every pool is to be looked at again by the publisher.
    """

    decisions: Decisions
    assume_cache: AssumeCache
    pools: PoolStates
    freed: Signal[[]]
    pool_changed: Signal[[PoolID]]
    republish: Signal[[]] = field(default_factory=Signal)

    @classmethod
    def of(cls, world: World) -> State:
        """Return the state, which follows the informers from now on."""
        config, informers = world.config, world.informers
        policy = PoolPolicy(config.strategy, config.node_policy)
        settings = Settings(
            drivers=config.drivers,
            policy=policy,
            group_seconds=config.group_seconds,
            avoid_seconds=config.timings.avoid,
            longest_avoid_seconds=config.timings.longest_avoid,
        )
        decisions = Decisions(settings, time.thread_time)
        follow(
            decisions.apply,
            pods=informers.pods,
            nodes=informers.nodes,
            slices=informers.slices,
            classes=informers.classes,
            inventories=informers.inventories,
            taint_rules=informers.taint_rules,
        )
        freed: Signal[[]] = Signal()
        pool_changed: Signal[[PoolID]] = Signal()
        return cls(
            decisions=decisions,
            assume_cache=AssumeCache(informers.claims, decisions.apply, freed),
            pools=PoolStates(policy, decisions.apply, pool_changed),
            freed=freed,
            pool_changed=pool_changed,
        )


@dataclass(frozen=True, slots=True)
class Publishing:
    """From inventories and policies to slices."""

    policies: PolicyBook
    publisher: Publisher

    @classmethod
    def of(cls, world: World, state: State) -> Publishing:
        """Connect the parts."""
        config, client, clock = world.config, world.client, world.clock
        informers, recorder = world.informers, world.recorder
        policies = PolicyBook(
            client,
            clock,
            recorder,
            informers.policies,
            timings=config.timings,
            default=PoolPolicy(config.strategy, config.node_policy),
            rule_changed=state.pools.set_policy,
        )
        tolerators = Tolerators(
            config.drivers,
            informers.claims,
            informers.classes,
            changed=state.republish.send,
            templates=informers.templates,
            recorder=recorder,
        )
        handover = Handover(
            client,
            clock,
            informers.inventories,
            tolerators,
            state.assume_cache,
            changed=state.pools.set_handed_over,
            timings=config.timings,
        )
        publisher = Publisher(
            client,
            config,
            clock,
            recorder,
            inventories=informers.inventories,
            slices=informers.slices,
            nodes=informers.nodes,
            policies=policies,
            handover=handover,
            taken=state.assume_cache.taken,
            frozen=FrozenPools(state.pools.set_frozen),
            device_plugins=DevicePlugins(
                informers.classes, LeavingPlugins(clock), changed=state.republish.send
            ),
        )
        state.republish.listen(publisher.all_again)
        state.freed.listen(publisher.pending_again)
        world.metrics.watch_tolerating_claims(tolerators.count)
        for queue in (publisher.queue, policies.queue):
            world.metrics.watch_queue(queue.name, queue.__len__)
        return cls(policies, publisher)

    async def probe(self) -> None:
        """Ask the API server which fields it keeps, until it answers: that decides who allocates."""
        backoff = Backoff(base=0.5, cap=10.0)
        while True:
            try:
                await self.publisher.probe()
            except DraError as e:
                delay = backoff.next()
                log.error("cannot ask the API server what it keeps", error=str(e), retry_in=round(delay, 2))
                await asyncio.sleep(delay)
            else:
                return

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the loops."""
        tasks.create_task(self.publisher.run())
        tasks.create_task(self.policies.run())

    def close(self) -> None:
        """Cancel timers."""
        self.publisher.queue.close()
        self.policies.queue.close()


@dataclass(frozen=True, slots=True)
class Allocation:
    """From pods that wait to allocated claims."""

    wakeups: Wakeups
    allocator: Allocator
    unused: UnusedAllocations
    doubles: DoubleAllocations
    workers: int

    @classmethod
    def of(cls, world: World, state: State, publishing: Publishing) -> Allocation:
        """Connect the parts."""
        config, informers, metrics = world.config, world.informers, world.metrics
        decisions, assume_cache = state.decisions, state.assume_cache
        rules = (informers.taint_rules,) if informers.taint_rules is not None else ()
        writer = Writer(world.client, assume_cache, world.clock)
        deallocator = Deallocator(writer)

        def mode() -> PoolAllocator:
            return publishing.publisher.allocator

        wakeups = Wakeups(
            config.timings,
            world.clock,
            mode,
            decisions,
            assume_cache,
            deallocator,
            pods=informers.pods,
            claims=informers.claims,
            nodes=informers.nodes,
            others=(informers.slices, informers.classes, *rules),
        )
        allocator = Allocator(
            decisions,
            assume_cache,
            wakeups,
            writer,
            deallocator,
            world.recorder,
            metrics,
            world.clock,
            mode,
            informers.pods,
        )
        unused = UnusedAllocations(
            config.drivers, informers.pods, assume_cache, decisions, deallocator, wakeups
        )
        doubles = DoubleAllocations(
            config.drivers,
            assume_cache,
            decisions,
            deallocator,
            world.recorder,
            claims=informers.claims,
            slices_of=lambda pool: informers.slices.by_index(POOL_INDEX, pool),
        )
        state.freed.listen(wakeups.wake)
        state.pool_changed.listen(lambda _: wakeups.wake())
        state.pool_changed.listen(doubles.queue.add)
        metrics.watch_double_allocations(doubles.count)
        for queue in (wakeups.queue, wakeups.unused, doubles.queue):
            metrics.watch_queue(queue.name, queue.__len__)
        return cls(wakeups, allocator, unused, doubles, config.workers)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the loops. The informers must be synced: what is taken must be known."""
        allocate = traced("allocate", self.allocator.reconcile)
        tasks.create_task(self.wakeups.queue.process(allocate, workers=self.workers))
        tasks.create_task(self.wakeups.unused.process(self.unused.reconcile))
        tasks.create_task(self.doubles.queue.process(self.doubles.reconcile))

    def close(self) -> None:
        """Cancel timers."""
        self.wakeups.close()
        self.doubles.queue.close()


def labeler_of(world: World) -> NodeLabeler:
    """Return the part that labels nodes."""
    labeler = NodeLabeler(
        world.client,
        world.config.drivers,
        world.config.node_labels,
        lambda inventory, node: not refusal_of(inventory, node),
        inventories=world.informers.inventories,
        nodes=world.informers.nodes,
    )
    world.metrics.watch_queue(labeler.queue.name, labeler.queue.__len__)
    return labeler
