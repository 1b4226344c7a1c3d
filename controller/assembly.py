"""The controller's parts and how they are connected: first what they share, then the parts that use it.

Nothing here refers to what is made further down. Where one part wakes another, both know a ``Signal``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.allocate.answers.decider import Answers, Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import Attempts, TakenBack
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import GROUP_INDEX, GroupFinder, Settings, groups_by
from controller.allocate.last_look import LastLook
from controller.allocate.loop import Allocator
from controller.allocate.preempting import (
    Candidates,
    Judge,
    Preemption,
    PreemptionCondition,
    Remover,
    TermsSource,
)
from controller.allocate.releasing.doubles import DoubleAllocations
from controller.allocate.releasing.tentative import TentativeAllocations
from controller.allocate.releasing.unused import UnusedAllocations
from controller.allocate.reporting import AllocationReports
from controller.allocate.scaling import AddedNodes, ScaleUp
from controller.allocate.signal import Signal
from controller.allocate.starvation import SetAsideCondition, SettingAside
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.following import follow
from controller.allocate.state.pod_groups import PodGroupChanges
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from controller.allocate.state.storage_changes import StorageChanges
from controller.allocate.wakeups import Wakeups
from controller.allocate.worker.process import Limits, WorkerProcess
from controller.allocate.writer import Writer
from controller.config import ControllerConfig
from controller.informers import Informers
from controller.observe.metrics import Metrics
from controller.observe.node_labels import NodeLabeler
from controller.observe.reasons import WaitingReasons
from controller.observe.tracing import traced
from controller.publish.dropped import DroppedCapacity
from controller.publish.extended_resources import ExtendedResources
from controller.publish.gates import PoolGates
from controller.publish.policies import PolicyBook
from controller.publish.publisher import POOL_INDEX, Publisher
from controller.publish.tolerators import Tolerators
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.errors import DraError
from dra_driver.kube import Backoff, EventRecorder, Handler
from dra_driver.ownership import PoolAllocator, PoolID, refusal_of
from dra_driver.ports import Clock, KubeClient
from dra_driver.resourceclaim import capacity_advice
from dra_driver.resourceslice import GATES
from dra_driver.structured import PoolPolicy

__all__ = [
    "Allocation",
    "AnswersOf",
    "Environment",
    "Publishing",
    "State",
    "labeler_of",
    "worker_process",
]

log = structlog.get_logger(__name__)

# One is worked on while another is written.
_SLOW_WORKERS: Final = 2
# Most looks find nothing to be done.
_TENTATIVE_WORKERS: Final = 8

AnswersOf = Callable[[Journal, Settings, ControllerConfig, Metrics], Answers]
"""Makes what answers questions about pods."""


def worker_process(
    journal: Journal, settings: Settings, config: ControllerConfig, metrics: Metrics
) -> Answers:
    """Return answers from a process of its own."""

    def ended(reason: str) -> None:
        metrics.worker_restarts.labels(reason).inc()

    limits = Limits(seconds=config.decision_seconds, memory=config.decision_memory)
    return WorkerProcess(journal, settings, limits, ended, counted=metrics.set_shape_counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the parts work with, and do not own.

    Attributes:
        config: everything that can be set.
        client: for writes, and for reads that informers do not do.
        clock: for timestamps and delays.
        informers: what is watched.
        recorder: for Events.
        metrics: to report to.
        answers_of: makes what answers questions about pods.
    """

    config: ControllerConfig
    client: KubeClient
    clock: Clock
    informers: Informers
    recorder: EventRecorder
    metrics: Metrics
    answers_of: AnswersOf = worker_process


@dataclass(frozen=True, slots=True)
class State:
    """What publishing and allocating share, and the signals between them.

    Attributes:
        journal: takes every change before it is reported to other parts.
        answers: what pods get.
        assume_cache: claims, and what is taken.
        pools: what publishing says to allocating.
        owners: whose pools are.
        freed: devices may have become free.
        pool_changed: a pool is to be used in another way.
        republish: every pool is to be looked at again by the publisher.
    """

    journal: Journal
    answers: Answers
    assume_cache: AssumeCache
    pools: PoolStates
    owners: CurrentOwners
    freed: Signal[[]]
    pool_changed: Signal[[PoolID]]
    republish: Signal[[]] = field(default_factory=Signal)

    @classmethod
    def of(cls, env: Environment) -> State:
        """Return the state, which follows the informers from now on."""
        config, informers = env.config, env.informers
        policy = PoolPolicy(config.strategy, config.node_policy)
        settings = Settings(
            drivers=config.drivers,
            policy=policy,
            group_seconds=config.group_seconds,
            avoid_seconds=config.timings.avoid,
            longest_avoid_seconds=config.timings.longest_avoid,
            rest_seconds=config.binding_seconds,
            decision_seconds=config.decision_seconds,
            group_decision_seconds=config.group_decision_seconds,
            shapes=config.shapes,
            group_labels=config.group_labels,
        )
        journal = Journal()
        answers = env.answers_of(journal, settings, config, env.metrics)
        follow(
            journal.apply,
            pods=informers.pods,
            nodes=informers.nodes,
            slices=informers.slices,
            classes=informers.classes,
            inventories=informers.inventories,
            taint_rules=informers.taint_rules,
            storage=informers.storage,
            pod_groups=informers.pod_groups,
        )
        freed: Signal[[]] = Signal()
        pool_changed: Signal[[PoolID]] = Signal()
        assume_cache = AssumeCache(informers.claims, journal, freed)
        pools = PoolStates(policy, journal.apply, pool_changed)
        return cls(
            journal=journal,
            answers=answers,
            assume_cache=assume_cache,
            pools=pools,
            owners=CurrentOwners(config.drivers, pools, informers.slices, informers.classes),
            freed=freed,
            pool_changed=pool_changed,
        )


@dataclass(frozen=True, slots=True)
class Publishing:
    """From inventories and policies to slices."""

    policies: PolicyBook
    publisher: Publisher

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
        publisher = Publisher(
            client,
            config,
            clock,
            recorder,
            inventories=informers.inventories,
            slices=informers.slices,
            nodes=informers.nodes,
            policies=policies,
            gates=PoolGates(
                clock,
                inventories=informers.inventories,
                slices=informers.slices,
                changed=state.pools.set_blocked,
            ),
            tolerators=_tolerators(env, state),
            extended_resources=ExtendedResources(informers.classes, changed=state.republish.send),
            assume_cache=state.assume_cache,
            rule_changed=state.pools.set_policy,
        )
        state.republish.listen(publisher.look_at_all)
        state.freed.listen(publisher.look_at_pending)
        dropped = DroppedCapacity(informers.claims, informers.templates, recorder)
        env.metrics.watch_dropped_capacity(dropped.count)
        for queue in (publisher.queue, policies.queue):
            env.metrics.watch_queue(queue.name, queue.__len__)
        return cls(policies, publisher)

    async def probe(self, metrics: Metrics) -> None:
        """Ask the API server which fields it keeps, until it answers: that decides who allocates."""
        backoff = Backoff(base=0.5, cap=10.0)
        while True:
            try:
                features = await self.publisher.probe()
            except DraError as e:
                delay = backoff.next()
                log.error("cannot ask the API server what it keeps", error=str(e), retry_in=round(delay, 2))
                await asyncio.sleep(delay)
            else:
                for gate in GATES.values():
                    metrics.missing_gates.labels(gate).set(float(gate in features.missing_gates()))
                if not features.multi_allocation:
                    log.warning(capacity_advice())
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
    tentative: TentativeAllocations
    doubles: DoubleAllocations
    setting_aside: SettingAside
    scale_up: ScaleUp
    preemption: Preemption
    reasons: WaitingReasons
    workers: int

    @classmethod
    def of(cls, env: Environment, state: State, publishing: Publishing) -> Allocation:
        """Connect the parts."""
        config, informers, metrics = env.config, env.informers, env.metrics
        assume_cache, owners = state.assume_cache, state.owners
        writer = Writer(env.client, assume_cache, env.clock)
        deallocator = Deallocator(writer)
        attempts = Attempts(config.binding_seconds)

        def mode() -> PoolAllocator:
            return publishing.publisher.allocator

        taken_back: Signal[[Pod, TakenBack]] = Signal()
        wakeups = _wakeups(env, state, attempts, deallocator, taken_back, mode)
        slices = informers.slices
        reasons = WaitingReasons(env.client, env.clock, informers.pods)
        last_look = LastLook(assume_cache, owners, lambda pool: slices.by_index(POOL_INDEX, pool))
        decider = Decider(state.journal, state.answers, env.clock, state.freed, last_look.allows)
        added = AddedNodes(informers.policies, config.drivers, config.allocator)
        reports = AllocationReports(
            env.recorder,
            reasons,
            metrics,
            env.clock,
            informers.pods,
            wakeups.pending,
            lambda pod, grouped: config.scale_up_pods > 0 and added.could_take(pod, grouped=grouped),
        )
        groups = GroupFinder(
            informers.pods.by_index,
            informers.pods.number_by_index,
            lambda key: informers.claims.by_index(GROUP_INDEX, key),
            assume_cache.get,
            informers.pod_groups.find,
            config.group_labels,
        )
        allocator = Allocator(
            decider,
            state.journal,
            assume_cache,
            attempts,
            wakeups,
            writer,
            deallocator,
            reports,
            env.clock,
            mode,
            config.schedulers,
            groups,
            informers.pods,
        )
        unused = UnusedAllocations(
            config.schedulers, informers.pods, assume_cache, owners, deallocator, wakeups
        )
        tentative = TentativeAllocations(
            config.binding_seconds,
            attempts,
            writer,
            state.journal,
            assume_cache,
            owners,
            deallocator,
            wakeups,
            taken_back,
            env.recorder,
            metrics,
            env.clock,
            groups,
            informers.pods,
        )
        metrics.watch_unbound(attempts.__len__)
        doubles = _doubles(env, state, deallocator)
        for queue in (wakeups.queue, wakeups.slow, wakeups.unused, wakeups.tentative, doubles.queue):
            metrics.watch_queue(queue.name, queue.__len__)
        for queue in reasons.queues:
            metrics.watch_queue(queue.name, queue.__len__)
        setting_aside = SettingAside(
            config.starvation_seconds,
            decider,
            state.journal,
            assume_cache,
            owners,
            wakeups,
            taken_back,
            SetAsideCondition(env.client, env.clock, informers.pods),
            env.recorder,
            env.clock,
            informers.pods,
            informers.nodes,
            groups.key_of,
        )
        metrics.watch_set_aside(setting_aside.devices, setting_aside.longest_wait)
        preemption = _preemption(env, state, wakeups, groups, mode)
        scale_up = _scale_up(env, state, added, decider, groups, wakeups, writer, preemption.makes_room_for)
        return cls(
            wakeups,
            allocator,
            unused,
            tentative,
            doubles,
            setting_aside,
            scale_up,
            preemption,
            reasons,
            config.workers,
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the loops. The informers must be synced: what is taken must be known."""
        allocate = traced("allocate", self.allocator.reconcile)
        tasks.create_task(self.wakeups.queue.process(allocate, workers=self.workers))
        slowly = traced("allocate slowly", self.allocator.reconcile_slowly)
        tasks.create_task(self.wakeups.slow.process(slowly, workers=_SLOW_WORKERS))
        tasks.create_task(self.wakeups.unused.process(self.unused.reconcile))
        tentative = traced("deallocate", self.tentative.reconcile)
        tasks.create_task(self.wakeups.tentative.process(tentative, workers=_TENTATIVE_WORKERS))
        tasks.create_task(self.doubles.queue.process(self.doubles.reconcile))
        tasks.create_task(self.setting_aside.run())
        tasks.create_task(self.scale_up.run())
        tasks.create_task(self.preemption.run())
        tasks.create_task(self.reasons.run())

    def close(self) -> None:
        """Cancel timers."""
        self.wakeups.close()
        self.doubles.queue.close()
        self.reasons.close()


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


def _wakeups(
    env: Environment,
    state: State,
    attempts: Attempts,
    deallocator: Deallocator,
    taken_back: Signal[[Pod, TakenBack]],
    mode: Callable[[], PoolAllocator],
) -> Wakeups:
    """Return the allocator's queues, which the informers fill from now on."""
    informers = env.informers
    rules = (informers.taint_rules,) if informers.taint_rules is not None else ()
    wakeups = Wakeups(
        env.config.timings,
        env.clock,
        mode,
        state.journal,
        state.owners,
        state.assume_cache,
        attempts,
        deallocator,
        taken_back,
        pods=informers.pods,
        claims=informers.claims,
        nodes=informers.nodes,
        others=(informers.slices, informers.classes, *rules),
        groups_of=groups_by(env.config.group_labels),
    )
    StorageChanges(
        informers.storage,
        informers.pods,
        look=wakeups.queue.add,
        wake=wakeups.wake,
        lacking=lambda: wakeups.lacking_volumes,
    )
    PodGroupChanges(
        informers.pod_groups, informers.pods.by_index, informers.pods.items, look=wakeups.queue.add
    )
    state.freed.listen(wakeups.wake)
    state.pool_changed.listen(lambda _: wakeups.wake())
    return wakeups


def _scale_up(
    env: Environment,
    state: State,
    added: AddedNodes,
    decider: Decider,
    groups: GroupFinder,
    wakeups: Wakeups,
    writer: Writer,
    gets_room: Callable[[Uid], bool],
) -> ScaleUp:
    """Return the part that shows pods to autoscalers, which also counts them."""
    informers = env.informers
    known = (informers.pods, informers.claims, informers.slices, informers.nodes, informers.policies)
    scale_up = ScaleUp(
        env.config.scale_up_seconds,
        env.config.scale_up_pods,
        added,
        decider,
        groups,
        state.assume_cache,
        wakeups,
        writer,
        env.recorder,
        env.clock,
        informers.pods,
        lambda: any(informer.failing for informer in known),
        gets_room,
    )
    state.pool_changed.listen(lambda _: scale_up.pool_changed())
    informers.slices.add_handler(
        Handler(added=lambda _: scale_up.pool_changed(), deleted=lambda _: scale_up.pool_changed())
    )
    # What pods say of why they wait follows the policies.
    informers.policies.add_handler(
        Handler(
            added=lambda _: wakeups.look_again(),
            updated=lambda old, new: wakeups.look_again() if old.spec != new.spec else None,
            deleted=lambda _: wakeups.look_again(),
        )
    )
    env.metrics.watch_scale_up(scale_up.count)
    return scale_up


def _preemption(
    env: Environment,
    state: State,
    wakeups: Wakeups,
    groups: GroupFinder,
    mode: Callable[[], PoolAllocator],
) -> Preemption:
    """Return the part that preempts pods of lower priority, or says which it would."""
    config, informers = env.config, env.informers
    terms = TermsSource(config.preemption, env.clock, informers.budgets, informers.kept_namespaces)
    preemption = Preemption(
        config.preemption,
        terms.now,
        terms.budgets_known,
        lambda: terms.changes,
        state.answers,
        state.journal,
        Candidates(
            config.timings.preempt,
            config.schedulers,
            mode,
            wakeups,
            state.assume_cache,
            groups,
            informers.pods,
        ),
        Judge(
            state.owners,
            state.assume_cache,
            informers.pods,
            terms.keeps,
            wakeups.groups_of,
            groups.is_gang,
            groups.members,
        ),
        Remover(env.client, env.clock, env.recorder),
        PreemptionCondition(env.client, env.clock, informers.pods),
        state.owners,
        wakeups,
        env.recorder,
        env.metrics,
        env.clock,
        informers.pods,
    )
    env.metrics.watch_preemption(preemption.under_way, preemption.wishes)
    return preemption


def _doubles(env: Environment, state: State, deallocator: Deallocator) -> DoubleAllocations:
    """Return the part that looks for double allocations, which also counts them."""
    slices = env.informers.slices
    doubles = DoubleAllocations(
        env.config.drivers,
        state.assume_cache,
        state.owners,
        deallocator,
        env.recorder,
        claims=env.informers.claims,
        slices_of=lambda pool: slices.by_index(POOL_INDEX, pool),
    )
    state.pool_changed.listen(doubles.queue.add)
    env.metrics.watch_double_allocations(doubles.count)
    return doubles


def labeler_of(env: Environment) -> NodeLabeler:
    """Return the part that labels nodes."""
    labeler = NodeLabeler(
        env.client,
        env.config.drivers,
        env.config.node_labels,
        lambda inventory, node: not refusal_of(inventory, node),
        inventories=env.informers.inventories,
        nodes=env.informers.nodes,
    )
    env.metrics.watch_queue(labeler.queue.name, labeler.queue.__len__)
    return labeler
