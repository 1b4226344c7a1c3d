"""Handing pods over to kube-scheduler: their node is expected, they are nominated, and our gate comes off."""

from __future__ import annotations

from collections.abc import Collection

from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import Attempt, Attempts
from controller.allocate.decide import GroupMembers, PodExpected, PodID, claims_of, is_finished, node_of
from controller.allocate.reporting import AllocationReports
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.records import Mark, PodRecords
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from dra_driver.api.core import Pod
from dra_driver.ports import Clock
from dra_driver.resourceclaim import is_gated, is_served
from dra_driver.trimming import MOST_GATES

__all__ = ["HandOver"]


class HandOver:
    """What is done about a pod that has all its devices, or needs none of ours."""

    def __init__(
        self,
        journal: Journal,
        attempts: Attempts,
        wakeups: Wakeups,
        writer: Writer,
        reports: AllocationReports,
        clock: Clock,
        schedulers: Collection[str],
        records: PodRecords,
        pods: KnownPods,
    ) -> None:
        """Connect the parts; they are those of ``Allocator``."""
        self._journal = journal
        self._attempts = attempts
        self._wakeups = wakeups
        self._writer = writer
        self._reports = reports
        self._clock = clock
        self._schedulers = schedulers
        self._records = records
        self._pods = pods

    async def proceed(self, pod: Pod) -> None:
        """Hand a pod over to kube-scheduler, if that has not been done."""
        self.served(pod)
        attempt = self._attempts.get(pod.metadata.uid) or self._begin(pod)
        if attempt is None or attempt.handed_over:
            await self.ungate(pod)
            return
        now = self._pods.get(pod.key) or pod
        nominated = "" if attempt.probe else await self._nominate(now, attempt.node)
        await self.ungate(pod)
        self._attempts.handed_over(pod.metadata.uid, self._clock.monotonic(), nominated)
        self._wakeups.tentative.add(pod.key)

    def _begin(self, pod: Pod) -> Attempt | None:
        """Begin the attempt of a pod whose claims are allocated already: shared ones, or after a restart."""
        allocations = [c.status.allocation for c in self._pods.claims(pod)]
        nodes = [node_of(a) for a in allocations if a is not None]
        complete = len(nodes) == len(list(claims_of(pod))) and not self._pods.lacks_devices(pod)
        node = next((n for n in nodes if n is not None), None)
        if pod.spec.node_name or node is None or not complete or not is_served(pod, self._schedulers):
            return None
        handed_over = not is_gated(pod)
        self._attempts.begin(pod, node, self._clock.monotonic(), handed_over=handed_over)
        if handed_over:
            self._wakeups.tentative.add(pod.key)
        return self._attempts.get(pod.metadata.uid)

    async def _nominate(self, pod: Pod, node: str) -> str:
        if pod.status.nominated_node_name == node:
            return pod.metadata.resource_version
        return await self._writer.nominate(pod, node)

    async def proceed_all(self, group: GroupMembers, written: Collection[PodID] = ()) -> None:
        """Hand over the members of a group that wait no longer.

        Args:
            group: with its members.
            written: those that have their devices just now, unless they have lost them in the meantime.
        """
        waiting = set(group.waiting)
        for pod_id in group.pods:
            pod = self._pods.find(pod_id)
            if pod is None or is_finished(pod) or pod_id in waiting:
                continue
            if not (pod_id in written and self._pods.lacks_devices(pod)):
                await self.proceed(pod)

    async def ungate(self, pod: Pod) -> None:
        """Remove our gate, once.

        The list is written as a whole. Where it is too long to be kept, all gates stay: the pod cannot be
        scheduled before others have removed theirs, and is looked at again then.
        """
        if len(pod.spec.scheduling_gates) > MOST_GATES:
            return
        if is_gated(pod) and not self._records.has(pod, Mark.UNGATED):
            await self._writer.ungate(pod)
            self._records.mark(pod, Mark.UNGATED)

    def served(self, pod: Pod) -> None:
        """Note that a pod waits no longer."""
        self._wakeups.served(pod.key)
        self._reports.served(pod, allocated=not self._pods.lacks_devices(pod))

    def expect(self, pod: Pod, node: str | None) -> None:
        """Note on which node the pod will run; None: nowhere."""
        self._journal.apply(PodExpected(PodID(pod.key, pod.metadata.uid), node))
