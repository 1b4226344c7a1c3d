"""How the part that allocates claims is connected, and its loops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from controller.allocate.allocation_check import AllocationCheck
from controller.allocate.answers.decider import Decider
from controller.allocate.attempts import Attempts, TakenBack
from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import GROUP_INDEX, GroupFinder
from controller.allocate.granting import GrantStatus
from controller.allocate.loop import Allocator
from controller.allocate.preempting import Preemption
from controller.allocate.releasing.doubles import DoubleAllocations
from controller.allocate.releasing.tentative import TentativeAllocations
from controller.allocate.releasing.unused import UnusedAllocations
from controller.allocate.reporting import AllocationReports
from controller.allocate.scaling import AddedNodes, ScaleUp
from controller.allocate.signal import Signal
from controller.allocate.starvation import SetAsideCondition, SettingAside
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from controller.assembly.environment import Environment, State
from controller.assembly.parts import (
    doubles_of,
    granter_of,
    preemption_of,
    scale_up_of,
    wakeups_of,
)
from controller.assembly.publishing import Publishing
from controller.observe.reasons import WaitingReasons
from controller.observe.tracing import traced
from controller.publish.publisher import POOL_INDEX
from dra_driver.api.core import Pod
from dra_driver.ownership import PoolAllocator

__all__ = ["Allocation"]

# One is worked on while another is written.
_SLOW_WORKERS: Final = 2
# Most looks find nothing to be done.
_TENTATIVE_WORKERS: Final = 8


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
    grant_status: GrantStatus | None
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
        wakeups = wakeups_of(env, state, attempts, deallocator, taken_back, mode)
        slices = informers.slices
        reasons = WaitingReasons(env.client, env.clock, informers.pods)
        check = AllocationCheck(assume_cache, owners, lambda pool: slices.by_index(POOL_INDEX, pool))
        decider = Decider(state.journal, state.answers, env.clock, state.freed, check.allows)
        added = AddedNodes(informers.policies, config.drivers, config.allocator)
        kept_back: set[bytes] = set()
        reports = AllocationReports(
            env.recorder,
            reasons,
            metrics,
            env.clock,
            state.records,
            informers.pods,
            wakeups.pending,
            lambda pod, grouped: config.scale_up_pods > 0 and added.could_take(pod, grouped=grouped),
            kept_back,
        )
        granter, grant_status = granter_of(env, state, publishing, wakeups, writer, reports)
        groups = GroupFinder(
            informers.pods.by_index,
            informers.pods.number_by_index,
            lambda key: informers.claims.each(GROUP_INDEX, key),
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
            state.records,
            state.pods,
            granter,
        )
        unused = UnusedAllocations(config.schedulers, state.pods, assume_cache, owners, deallocator, wakeups)
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
            state.records,
            state.pods,
        )
        metrics.watch_unbound(attempts.__len__)
        doubles = doubles_of(env, state, deallocator)
        for queue in (wakeups.queue, wakeups.slow, wakeups.unused, wakeups.tentative, doubles.queue):
            metrics.watch_queue(queue.name, queue.__len__)
        for queue in reasons.queues:
            metrics.watch_queue(queue.name, queue.__len__)
        setting_aside = SettingAside(
            config.starvation_seconds,
            decider,
            state.journal,
            owners,
            wakeups,
            taken_back,
            SetAsideCondition(env.client, env.clock, informers.pods),
            env.recorder,
            env.clock,
            state.pods,
            informers.nodes,
            groups.key_of,
        )
        metrics.watch_set_aside(setting_aside.devices, setting_aside.longest_wait)
        preemption = preemption_of(env, state, wakeups, groups, mode)
        showing = env, state, added, decider, groups, wakeups, writer
        scale_up = scale_up_of(*showing, preemption.makes_room_for, kept_back)
        return cls(
            wakeups,
            allocator,
            unused,
            tentative,
            doubles,
            setting_aside,
            scale_up,
            preemption,
            grant_status,
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
        if self.grant_status is not None:
            tasks.create_task(self.grant_status.run())
        tasks.create_task(self.reasons.run())

    def close(self) -> None:
        """Cancel timers."""
        self.wakeups.close()
        self.doubles.queue.close()
        self.reasons.close()
