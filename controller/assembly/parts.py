"""Parts of the controller, each connected with what it works on."""

from __future__ import annotations

import functools
from collections.abc import Callable

from controller.allocate.answers.decider import Decider
from controller.allocate.attempts import Attempts, TakenBack
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import GroupFinder, groups_by
from controller.allocate.granting import (
    CounterPools,
    Granter,
    GrantLimits,
    GrantStatus,
    PodGrants,
    wants_grant,
)
from controller.allocate.preempting import (
    Candidates,
    Judge,
    Preemption,
    PreemptionCondition,
    Remover,
    TermsSource,
)
from controller.allocate.releasing.doubles import DoubleAllocations
from controller.allocate.reporting import AllocationReports
from controller.allocate.scaling import AddedNodes, ScaleUp
from controller.allocate.signal import Signal
from controller.allocate.state.pod_groups import PodGroupChanges
from controller.allocate.state.records import Mark
from controller.allocate.state.storage_changes import StorageChanges
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.assembly.environment import Environment, State
from controller.assembly.publishing import Publishing
from controller.observe.node_labels import NodeLabeler
from controller.publish.publisher import POOL_INDEX
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.kube import Handler
from dra_driver.ownership import PoolAllocator, refusal_of

__all__ = [
    "doubles_of",
    "granter_of",
    "labeler_of",
    "preemption_of",
    "scale_up_of",
    "wakeups_of",
]


def wakeups_of(
    env: Environment,
    state: State,
    attempts: Attempts,
    deallocator: Deallocator,
    taken_back: Signal[[Pod, TakenBack]],
    mode: Callable[[], PoolAllocator],
) -> Wakeups:
    """Return the allocator's queues, which the informers fill from now on."""
    informers = env.informers
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
        records=state.records,
        known=state.pods,
        pods=informers.pods,
        claims=informers.claims,
        nodes=informers.nodes,
        others=(informers.slices, informers.classes, informers.taint_rules),
        groups_of=groups_by(env.config.group_labels),
        wants_grant=functools.partial(wants_grant, claim_of=state.assume_cache.get)
        if env.config.open_pools
        else lambda _: False,
    )
    StorageChanges(
        informers.storage,
        look=wakeups.queue.add,
        look_at_users=wakeups.look_at_users,
        wake=wakeups.wake,
        lacking=lambda: state.records.marked(Mark.LACKS_VOLUMES),
    )
    PodGroupChanges(
        informers.pod_groups,
        informers.pods.items,
        look=wakeups.queue.add,
        look_at_users=wakeups.look_at_users,
    )
    state.freed.listen(wakeups.wake)
    state.pool_changed.listen(lambda _: wakeups.wake())
    return wakeups


def granter_of(
    env: Environment,
    state: State,
    publishing: Publishing,
    wakeups: Wakeups,
    writer: Writer,
    reports: AllocationReports,
) -> tuple[Granter, GrantStatus] | tuple[None, None]:
    """Return the part that grants devices to kube-scheduler, and the one that shows it.

    None and None where no pools are to be open.
    """
    config, informers, port, gated = env.config, env.informers, publishing.grants, publishing.gated
    if port is None or gated is None:
        return None, None
    grants = PodGrants(
        port,
        state.assume_cache,
        lambda pool: informers.slices.by_index(POOL_INDEX, pool),
        informers.pods,
        env.clock,
        wakeups.queue.add,
        wakeups.rank,
    )
    env.metrics.watch_grants(grants.__len__, port.count)
    limits = GrantLimits(
        config.grant_scan_seconds,
        CounterPools(informers.slices),
        informers.pods,
        grants.ended,
        wakeups.queue.add,
    )
    granter = Granter(grants, limits, state.journal, wakeups, writer, reports, env.clock, informers.pods)
    status = GrantStatus(
        env.client,
        env.clock,
        config.namespace,
        lambda: gated.problem() or port.obstacle(),
        gated.ungated,
        grants.shown,
    )
    return granter, status


def scale_up_of(
    env: Environment,
    state: State,
    added: AddedNodes,
    decider: Decider,
    groups: GroupFinder,
    wakeups: Wakeups,
    writer: Writer,
    gets_room: Callable[[Uid], bool],
    kept_back: set[bytes],
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
        wakeups,
        writer,
        env.recorder,
        env.clock,
        state.pods,
        lambda: any(informer.failing for informer in known),
        gets_room,
        kept_back,
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


def preemption_of(
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
            groups,
            state.pods,
        ),
        Judge(
            state.owners,
            state.pods,
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
        state.pods,
    )
    env.metrics.watch_preemption(preemption.under_way, preemption.dry_runs)
    return preemption


def doubles_of(env: Environment, state: State, deallocator: Deallocator) -> DoubleAllocations:
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
