"""How the part that publishes pools is connected."""

from __future__ import annotations

import asyncio
import functools
import itertools
from dataclasses import dataclass

import structlog

from controller.assembly.environment import Environment, State
from controller.observe.metrics import Metrics
from controller.publish.agents import NodeAgents
from controller.publish.dropped import DroppedCapacity, advice_to_administrators
from controller.publish.extended_resources import ExtendedResources
from controller.publish.former_recalls import FormerRecalls
from controller.publish.gated import GatedNamespaces
from controller.publish.gates import PoolGates
from controller.publish.gone_claims import GoneClaimWriter
from controller.publish.grants import PoolGrants
from controller.publish.guard import GuardKeeper
from controller.publish.known_claims import KnownClaims
from controller.publish.open_pools import OpenPools
from controller.publish.policies import PolicyBook
from controller.publish.publisher import POOL_INDEX, Publisher
from controller.publish.tolerators import Tolerators
from dra_driver.api.names import KUBE_SYSTEM
from dra_driver.errors import DraError
from dra_driver.kube import Backoff
from dra_driver.ownership import SHARE, PoolID
from dra_driver.resourceslice import GATES, ServerFeatures
from dra_driver.structured import PoolPolicy

__all__ = ["Publishing"]

log = structlog.get_logger(__name__)

# What passes within seconds of a start is not written to every inventory of the cluster.
_TRIES_UNSHOWN = 3


@dataclass(frozen=True, slots=True)
class Publishing:
    """From inventories and policies to slices."""

    policies: PolicyBook
    publisher: Publisher
    gated: GatedNamespaces | None
    gone_claims: GoneClaimWriter
    grants: PoolGrants | None
    guard: GuardKeeper | None
    former_recalls: FormerRecalls
    agents: NodeAgents

    @classmethod
    def of(cls, env: Environment, state: State) -> Publishing:
        """Connect the parts."""
        config, client, clock = env.config, env.client, env.clock
        informers, recorder = env.informers, env.recorder
        policies = PolicyBook(
            client,
            clock,
            recorder,
            informers.policies,
            timings=config.timings,
            default=PoolPolicy(config.strategy, config.node_policy),
        )
        gates, grants = _gates(env, state)
        gated: GatedNamespaces | None = None
        open_pools: OpenPools | None = None
        guard: GuardKeeper | None = None
        if grants is not None:
            claims = KnownClaims(client, state.assume_cache)
            exempt = (KUBE_SYSTEM, config.namespace)
            gated = GatedNamespaces(client, informers.namespaces, exempt)
            open_pools = OpenPools(grants, gated, gates)
            closing = config.timings.closing
            guard = GuardKeeper(client, clock, config.namespace, config.drivers, grants, claims, closing)
        publisher = Publisher(
            client,
            config,
            clock,
            recorder,
            inventories=informers.inventories,
            slices=informers.slices,
            nodes=informers.nodes,
            policies=policies,
            gates=gates,
            open_pools=open_pools,
            tolerators=_tolerators(env, state),
            extended_resources=ExtendedResources(informers.classes, changed=state.republish.send),
            assume_cache=state.assume_cache,
            rule_changed=state.pools.set_policy,
            server_changed=functools.partial(_report_features, env.metrics),
        )
        state.republish.listen(publisher.look_at_all)
        state.freed.listen(publisher.look_at_pending)
        if open_pools is not None and grants is not None and gated is not None:
            grants.guard_changed.listen(publisher.look_at_all)
            grants.changed.listen(publisher.look_at)
            gated.changed.listen(publisher.look_at_all)
            env.metrics.watch_open_pools(gates.count_open, grants.in_force)
        dropped = DroppedCapacity(informers.claims, informers.templates, recorder)
        env.metrics.watch_dropped_capacity(dropped.count)
        gone_claims = GoneClaimWriter(client, state.gone_claims, informers.inventories)
        env.metrics.watch_gone_claims(state.gone_claims.__len__)
        agents = NodeAgents(
            client,
            clock,
            recorder,
            config.drivers,
            inventories=informers.inventories,
            nodes=informers.nodes,
            slices=informers.slices,
            slices_of=lambda pool: informers.slices.by_index(POOL_INDEX, pool),
            seconds=config.timings.agent,
        )
        env.metrics.watch_agents(agents.count)
        for queue in (publisher.queue, policies.queue, gone_claims.queue, agents.queue):
            env.metrics.watch_queue(queue.name, queue.__len__)
        former = FormerRecalls(client, config.namespace, config.drivers, informers.inventories)
        return cls(policies, publisher, gated, gone_claims, grants, guard, former, agents)

    async def probe(self, metrics: Metrics) -> None:
        """Ask the API server which fields it keeps, until it answers: that decides who allocates."""
        backoff = Backoff(base=0.5, cap=10.0)
        for tries in itertools.count(1):
            try:
                features = await self.publisher.probe()
            except DraError as e:
                delay = backoff.next()
                log.error("cannot ask the API server what it keeps", error=str(e), retry_in=round(delay, 2))
                if tries >= _TRIES_UNSHOWN:
                    await self.publisher.show_unasked()
                await asyncio.sleep(delay)
            else:
                _report_features(metrics, features)
                return

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the loops."""
        tasks.create_task(self.publisher.run())
        tasks.create_task(self.publisher.follow_server())
        tasks.create_task(self.policies.run())
        tasks.create_task(self.gone_claims.run())
        tasks.create_task(self.agents.run())
        if self.gated is not None:
            tasks.create_task(self.gated.run())
        tasks.create_task(self.former_recalls.run())
        if self.guard is not None:
            tasks.create_task(self.guard.run())

    def close(self) -> None:
        """Cancel timers."""
        self.publisher.queue.close()
        self.policies.queue.close()
        self.gone_claims.queue.close()
        self.agents.queue.close()


def _gates(env: Environment, state: State) -> tuple[PoolGates, PoolGrants | None]:
    """Return whose the pools are, and what is granted of open ones; None where there are to be none."""
    config, informers = env.config, env.informers
    grants: PoolGrants | None = None
    if config.open_pools:
        grants = PoolGrants(
            config.allocator,
            config.drivers,
            config.timings,
            env.clock,
            handover=lambda pool: gates.handover(pool).state,
            inventories=informers.inventories,
            slices=informers.slices,
            slices_of=lambda pool: informers.slices.by_index(POOL_INDEX, pool),
            taken=lambda pool: _taken(state, pool),
            being_written=state.assume_cache.being_written,
            blocked=state.pools.set_granted,
        )
    gates = PoolGates(
        env.clock,
        inventories=informers.inventories,
        slices=informers.slices,
        changed=state.pools.set_blocked,
        opened=state.pools.set_open,
        refuses_others=grants.refuses_others if grants is not None else lambda _: False,
    )
    return gates, grants


def _taken(state: State, pool: PoolID) -> frozenset[str]:
    """Return the forms of a pool that claims hold."""
    taken = state.assume_cache.taken(pool)
    return frozenset((*taken.devices, *(name + SHARE for name in taken.shares)))


def _report_features(metrics: Metrics, features: ServerFeatures) -> None:
    for gate in GATES.values():
        metrics.missing_gates.labels(gate).set(float(gate in features.missing_gates()))
    if not features.multi_allocation:
        log.warning(advice_to_administrators())


def _tolerators(env: Environment, state: State) -> Tolerators:
    """Return the part that finds and counts what tolerates our taint."""
    tolerators = Tolerators(
        env.config.drivers,
        env.informers.claims,
        env.informers.classes,
        changed=state.republish.send,
        templates=env.informers.templates,
        recorder=env.recorder,
    )
    env.metrics.watch_tolerating_claims(tolerators.count)
    return tolerators
