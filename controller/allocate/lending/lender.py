"""Lends devices for pods: what is written, and what is reported about it."""

from __future__ import annotations

from typing import Final

import structlog

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Lend, NodeTurnedDown, PodExpected, PodID
from controller.allocate.lending.pods import LOAN_SECONDS, Ending, PodLoans, wants_loan
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
        journal: Journal,
        wakeups: Wakeups,
        writer: Writer,
        reports: AllocationReports,
        clock: Clock,
        pods: Informer[Pod],
    ) -> None:
        self._loans = loans
        self._journal = journal
        self._wakeups = wakeups
        self._writer = writer
        self._reports = reports
        self._clock = clock
        self._pods = pods
        loans.ended.listen(self._ended)

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources that it has not got yet."""
        return wants_loan(pod)

    def has(self, pod: Pod) -> bool:
        """Return whether something is lent for a pod."""
        return self._loans.has(pod)

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be lent for a pod now."""
        self._loans.skip(pod)

    def begin(self, pod: Pod, decision: Lend) -> None:
        """Lend what was decided, or have the pod wait.

        Nothing may be awaited since the decision was judged.
        """
        why, again = self._loans.begin(pod, decision)
        if why:
            self._reports.waits_for_loan(pod, why)
            if again:
                self._wakeups.queue.add_after(pod.key, max(again, _SOONEST_SECONDS))
            return
        self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), decision.node))
        self._wakeups.served(pod.key)
        self._reports.lends(pod, decision.node, self._loans.devices(pod))
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
            if pod.status.nominated_node_name != node:
                await self._writer.nominate(pod, node)
            if is_gated(pod):
                await self._writer.ungate(pod)
            self._loans.opened(self._pods.get(pod.key) or pod)
            left = LOAN_SECONDS
        if left > 0:
            self._wakeups.queue.add_after(pod.key, max(left, _SOONEST_SECONDS))

    def _ended(self, pod: PodID, node: str, ending: Ending) -> None:
        self._reports.loan_ended(ending.value)
        known = self._pods.get(pod.key)
        if ending in _WHY:
            # A gate cannot be put back. kube-scheduler goes on looking at the pod, which finds every device
            # tainted, and whatever is lent for it next.
            self._journal.apply(PodExpected(pod, None))
            if ending in (Ending.TIMEOUT, Ending.REFUSED):
                self._journal.apply(NodeTurnedDown(pod.uid, node, self._clock.monotonic()))
            if known is not None and known.metadata.uid == pod.uid:
                self._reports.loan_in_vain(known, node, _WHY[ending])
        self._wakeups.queue.add(pod.key)
