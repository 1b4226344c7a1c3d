"""Grants devices for pods: what is written, and what is reported about it."""

from __future__ import annotations

from typing import Final

import structlog

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    EVERYWHERE,
    Decision,
    GrantDevices,
    GroupWrite,
    NodeTurnedDown,
    PodExpected,
    PodID,
    Write,
    has_no_node,
)
from controller.allocate.granting.grant import Ending
from controller.allocate.granting.limits import GrantLimits
from controller.allocate.granting.pods import PodGrants
from controller.allocate.reporting import AllocationReports
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from dra_driver.api.core import Pod
from dra_driver.kube import Informer
from dra_driver.ports import Clock
from dra_driver.resourceclaim import is_gated

__all__ = ["Granter"]

log = structlog.get_logger(__name__)

_SOONEST_SECONDS: Final = 0.05
_WHY: Final = {
    Ending.TIMEOUT: "kube-scheduler has not used them in time",
    Ending.REFUSED: "kube-scheduler could not place the pod with them",
    Ending.ELSEWHERE: "kube-scheduler has chosen other devices, which it may not allocate",
    Ending.INTERRUPTED: "they were needed back: the pool, the node or a device has changed",
}


class Granter:
    """Carries out what is decided about grants for pods.

    Args:
        grants: for which pods what is granted.
        limits: what keeps a grant from being made.
        journal: learns where pods are expected, and which nodes were turned down.
        wakeups: queues of pods.
        writer: of nominations and gates.
        reports: of what becomes of pods.
        clock: for the times from which nodes are avoided.
        pods: all namespaces.
    """

    def __init__(
        self,
        grants: PodGrants,
        limits: GrantLimits,
        journal: Journal,
        wakeups: Wakeups,
        writer: Writer,
        reports: AllocationReports,
        clock: Clock,
        pods: Informer[Pod],
    ) -> None:
        self._grants = grants
        self._limits = limits
        self._journal = journal
        self._wakeups = wakeups
        self._writer = writer
        self._reports = reports
        self._clock = clock
        self._pods = pods
        grants.ended.listen(self._ended)

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources that it has not got yet."""
        return self._grants.wants(pod)

    def has(self, pod: Pod) -> bool:
        """Return whether something is granted for a pod."""
        return self._grants.has(pod)

    def serves_instead(self, pod: Pod) -> bool:
        """Return whether something may be granted now for a pod that the controller could serve itself."""
        return not pod.spec.node_name and self._grants.serves_instead(pod)

    def holds(self, decision: Decision) -> bool:
        """Return whether a decision allocates a claim with which kube-scheduler may be placing a pod now."""
        match decision:
            case Write():
                writes: tuple[Write, ...] = (decision,)
            case GroupWrite():
                writes = tuple(write for _, write in decision.writes)
            case _:
                return False
        return self._grants.holds(claim.key for write in writes for claim, _ in write.allocations)

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be granted for a pod now."""
        self._grants.skip(pod)

    def begin(self, pod: Pod, decision: GrantDevices) -> None:
        """Grant what was decided, or have the pod wait.

        Nothing may be awaited since the decision was judged.
        """
        refused, again = self._limits.refusal(pod, decision)
        if refused:
            self._grants.skip(pod)
            why = refused
        else:
            why, again = self._grants.begin(pod, decision)
        if why and decision.instead:
            self._grants.serve_here(pod)
            self._wakeups.queue.add(pod.key)
            return
        if refused:
            self._reports.refuses_grant(pod, why)
            if again:
                self._wakeups.queue.add_after(pod.key, again)
            return
        if why:
            self._reports.waits_for_grant(pod, why)
            if again:
                self._wakeups.queue.add_after(pod.key, max(again, _SOONEST_SECONDS))
            return
        self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), decision.node))
        self._wakeups.served(pod.key)
        self._reports.grants(pod, self._grants.devices(pod))
        self._wakeups.queue.add(pod.key)

    async def go_on(self, pod: Pod) -> None:
        """Do what is next for a pod for which something is granted.

        Raises:
            ApiError: the gate cannot be lifted now.
        """
        left = self._grants.check(pod)
        if node := self._grants.opens(pod):
            # kube-scheduler tries this node first, and looks at no other where the pod fits there.
            nominated = pod.metadata.resource_version
            if pod.status.nominated_node_name != node:
                nominated = await self._writer.nominate(pod, node)
            first = is_gated(pod)
            if first:
                await self._writer.ungate(pod)
            left = self._grants.opened(self._pods.get(pod.key) or pod, nominated, first=first)
        elif node := self._grants.lacks_nomination(pod):
            self._grants.renominated(pod, await self._writer.nominate(pod, node))
        if left > 0:
            self._wakeups.queue.add_after(pod.key, max(left, _SOONEST_SECONDS))

    def _ended(self, pod: PodID, nodes: tuple[str, ...], ending: Ending) -> None:
        self._reports.grants_ended(ending.value)
        known = self._pods.get(pod.key)
        if ending in _WHY:
            # A gate cannot be put back. kube-scheduler goes on looking at the pod, and may allocate nothing
            # for it until something is granted again.
            self._journal.apply(PodExpected(pod, None))
            if known is not None and known.metadata.uid == pod.uid:
                if ending in (Ending.TIMEOUT, Ending.REFUSED, Ending.ELSEWHERE):
                    self._turn_down(known, nodes)
                self._reports.grants_in_vain(known, nodes, _WHY[ending])
        self._wakeups.queue.add(pod.key)

    def _turn_down(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """Have the nodes of a grant in vain left out; where no node would do, as after our own choice."""
        for node in (EVERYWHERE,) if has_no_node(pod) else nodes:
            self._journal.apply(NodeTurnedDown(pod.metadata.uid, node, self._clock.monotonic()))
