"""What the parts of the controller work with, and what publishing and allocating share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from controller.allocate.answers.decider import Answers
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Settings
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.following import follow
from controller.allocate.state.gone_claims import GoneClaims
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from controller.allocate.state.records import PodRecords
from controller.allocate.worker.child import Child, WorkerChild
from controller.allocate.worker.process import Limits, WorkerProcess
from controller.config import ControllerConfig
from controller.informers import Informers
from controller.observe.metrics import Metrics
from controller.publish.publisher import POOL_INDEX
from dra_driver.kube import EventRecorder
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock, KubeClient
from dra_driver.structured import PoolPolicy

__all__ = ["AnswersOf", "Environment", "State", "worker_process"]

AnswersOf = Callable[[Journal, Settings, ControllerConfig, Metrics], Answers]
"""Makes what answers questions about pods."""


def worker_process(
    journal: Journal,
    settings: Settings,
    config: ControllerConfig,
    metrics: Metrics,
    *,
    start: Callable[[], Awaitable[Child]] = WorkerChild.start,
) -> Answers:
    """Return answers from a process of its own, which ``start`` starts."""

    def ended(reason: str) -> None:
        metrics.worker_restarts.labels(reason).inc()

    limits = Limits(seconds=config.decision_seconds, memory=config.decision_memory)
    return WorkerProcess(journal, settings, limits, ended, start=start, counted=metrics.set_shape_counts)


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
        gone_claims: what claims keep that are gone.
        pods: with their claims.
        records: what is known of each pod beyond that.
        pools: what publishing says to allocating.
        owners: whose pools are.
        freed: devices may have become free.
        pool_changed: a pool is to be used in another way.
        republish: every pool is to be looked at again by the publisher.
    """

    journal: Journal
    answers: Answers
    assume_cache: AssumeCache
    gone_claims: GoneClaims
    pods: KnownPods
    records: PodRecords
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
            grants=config.open_pools,
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
        gone_claims = GoneClaims(config.drivers, informers.inventories)
        assume_cache = AssumeCache(informers.claims, journal, freed, gone_claims)
        slices = informers.slices
        pools = PoolStates(
            policy, journal.apply, pool_changed, lambda pool: slices.by_index(POOL_INDEX, pool)
        )
        owners = CurrentOwners(config.drivers, pools, slices, informers.classes)
        pool_changed.listen(owners.pool_changed)
        pools.follow(slices)
        return cls(
            journal=journal,
            answers=answers,
            assume_cache=assume_cache,
            gone_claims=gone_claims,
            pods=KnownPods(informers.pods, assume_cache),
            records=PodRecords(informers.pods),
            pools=pools,
            owners=owners,
            freed=freed,
            pool_changed=pool_changed,
        )
