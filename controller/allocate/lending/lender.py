"""Lends devices for pods: what is written, and what is reported about it."""

from __future__ import annotations

from typing import Final

import structlog

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import (
    EVERYWHERE,
    Decision,
    GroupWrite,
    Lend,
    NodeTurnedDown,
    PodExpected,
    PodID,
    Write,
    has_no_node,
)
from controller.allocate.lending.limits import LoanLimits
from controller.allocate.lending.loan import Ending
from controller.allocate.lending.pods import PodLoans
from controller.allocate.reporting import AllocationReports
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from dra_driver.api.core import Pod
from dra_driver.kube import Informer
from dra_driver.ports import Clock
from dra_driver.resourceclaim import is_gated

__all__ = ["Lender"]

log = structlog.get_logger(__name__)

_SOONEST_SECONDS: Final = 0.05
_WHY: Final = {
    Ending.TIMEOUT: "kube-scheduler has not used them in time",
    Ending.REFUSED: "kube-scheduler could not place the pod with them",
    Ending.TAKEN: "another pod, which may have no gate, has taken them",
    Ending.INTERRUPTED: "they were needed back: the pool, the node or a device has changed",
}


class Lender:
    """Carries out what is decided about loans for pods.

    Args:
        loans: for which pods what is lent; its ``ended`` must call ``ended``.
        limits: what keeps a loan from being made.
        journal: learns where pods are expected, and which nodes were turned down.
        wakeups: queues of pods.
        writer: of nominations and gates.
        reports: of what becomes of pods.
        clock: for the times from which nodes are avoided.
        pods: all namespaces.
    """

    def __init__(
        self,
        loans: PodLoans,
        limits: LoanLimits,
        journal: Journal,
        wakeups: Wakeups,
        writer: Writer,
        reports: AllocationReports,
        clock: Clock,
        pods: Informer[Pod],
    ) -> None:
        self._loans = loans
        self._limits = limits
        self._journal = journal
        self._wakeups = wakeups
        self._writer = writer
        self._reports = reports
        self._clock = clock
        self._pods = pods
        loans.ended.listen(self._ended)

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources that it has not got yet."""
        return self._loans.wants(pod)

    def has(self, pod: Pod) -> bool:
        """Return whether something is lent for a pod."""
        return self._loans.has(pod)

    def serves_instead(self, pod: Pod) -> bool:
        """Return whether something may be lent now for a pod that the controller could serve itself."""
        return not pod.spec.node_name and self._loans.serves_instead(pod)

    def holds(self, decision: Decision) -> bool:
        """Return whether a decision allocates a claim with which kube-scheduler may be placing a pod now."""
        match decision:
            case Write():
                writes: tuple[Write, ...] = (decision,)
            case GroupWrite():
                writes = tuple(write for _, write in decision.writes)
            case _:
                return False
        return self._loans.holds(claim.key for write in writes for claim, _ in write.allocations)

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be lent for a pod now."""
        self._loans.skip(pod)

    def begin(self, pod: Pod, decision: Lend) -> None:
        """Lend what was decided, or have the pod wait.

        Nothing may be awaited since the decision was judged.
        """
        refused, again = self._limits.refusal(pod, decision)
        if refused:
            self._loans.skip(pod)
            why = refused
        else:
            why, again = self._loans.begin(pod, decision)
        if why and decision.instead:
            self._loans.serve_here(pod)
            self._wakeups.queue.add(pod.key)
            return
        if refused:
            self._reports.refuses_loan(pod, why)
            if again:
                self._wakeups.queue.add_after(pod.key, again)
            return
        if why:
            self._reports.waits_for_loan(pod, why)
            if again:
                self._wakeups.queue.add_after(pod.key, max(again, _SOONEST_SECONDS))
            return
        self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), decision.node))
        self._wakeups.served(pod.key)
        self._reports.lends(pod, self._loans.devices(pod))
        self._wakeups.queue.add(pod.key)

    async def go_on(self, pod: Pod) -> None:
        """Do what is next for a pod for which something is lent.

        Raises:
            ApiError: the gate cannot be lifted now.
        """
        left = self._loans.check(pod)
        node = self._loans.opens(pod)
        if node:
            # kube-scheduler tries this node first. Without the nomination it finds the devices all the same.
            nominated = pod.metadata.resource_version
            if pod.status.nominated_node_name != node:
                nominated = await self._writer.nominate(pod, node)
            if is_gated(pod):
                await self._writer.ungate(pod)
            left = self._loans.opened(self._pods.get(pod.key) or pod, nominated)
        if left > 0:
            self._wakeups.queue.add_after(pod.key, max(left, _SOONEST_SECONDS))

    def _ended(self, pod: PodID, nodes: tuple[str, ...], ending: Ending) -> None:
        self._reports.loan_ended(ending.value)
        known = self._pods.get(pod.key)
        if ending in _WHY:
            # A gate cannot be put back. kube-scheduler goes on looking at the pod, which finds every device
            # tainted, and whatever is lent for it next.
            self._journal.apply(PodExpected(pod, None))
            if known is not None and known.metadata.uid == pod.uid:
                if ending in (Ending.TIMEOUT, Ending.REFUSED):
                    self._turn_down(known, nodes)
                self._reports.loan_in_vain(known, nodes, _WHY[ending])
        self._wakeups.queue.add(pod.key)

    def _turn_down(self, pod: Pod, nodes: tuple[str, ...]) -> None:
        """Have the nodes of a loan in vain left out; where no node would do, as after our own choice."""
        for node in (EVERYWHERE,) if has_no_node(pod) else nodes:
            self._journal.apply(NodeTurnedDown(pod.metadata.uid, node, self._clock.monotonic()))
