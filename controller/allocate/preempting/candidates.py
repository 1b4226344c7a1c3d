"""Which of the pods that wait may preempt others: the first of each line in each namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from controller.allocate.decide import Gang, GroupFinder, PodID, is_ending, is_finished
from controller.allocate.preempting.turns import WaitingPod
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.wakeups import Wakeups
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.kube import Handler
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceclaim import foreign_gates, is_served, uses_claims
from dra_driver.trimming import unservable

__all__ = ["Candidate", "Candidates"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that may preempt others, or a group.

    Attributes:
        case: the group, or the UID of the pod alone: what there is one round for.
        pod: the one that is asked about, on which the decision is written down.
        members: that pod, or the members of its group.
        priority: the lowest of theirs.
    """

    case: Hashable
    pod: Pod
    members: tuple[Pod, ...]
    priority: int

    @property
    def id(self) -> PodID:
        """The pod."""
        return PodID(self.pod.key, self.pod.metadata.uid)


class Candidates:
    """Finds the pods that may preempt.

    Args:
        wait_seconds: for which a pod waits at least: what passes by itself has passed by then.
        schedulers: whose pods are served.
        mode: who allocates at present.
        wakeups: know the pods that wait.
        groups: finds the other members of a pod's group.
        pods: all namespaces; followed from now on.
    """

    def __init__(
        self,
        wait_seconds: float,
        schedulers: Collection[str],
        mode: Callable[[], PoolAllocator],
        wakeups: Wakeups,
        groups: GroupFinder,
        pods: KnownPods,
    ) -> None:
        self._wait = wait_seconds
        self._schedulers = schedulers
        self._mode = mode
        self._wakeups = wakeups
        self._groups = groups
        self._pods = pods
        # How many pods that use claims are bound, by priority.
        self._below: Counter[int] = Counter()
        self._since: dict[Uid, float] = {}
        pods.follow(Handler(lambda pod: self._count(None, pod), self._count, self._gone))

    def _count(self, old: Pod | None, pod: Pod | None) -> None:
        for one, by in ((old, -1), (pod, 1)):
            if one is not None and one.spec.node_name and uses_claims(one) and not is_finished(one):
                self._below[one.spec.priority] += by
                if not self._below[one.spec.priority]:
                    del self._below[one.spec.priority]

    def _gone(self, pod: Pod) -> None:
        self._count(pod, None)

    def waiting(self, now: float) -> list[WaitingPod]:
        """Return the pods above others that hold devices, in no order; ``of`` says whether one may preempt.

        Pods that ask for the same wait for the first of them, but for none of another namespace: what keeps
        that one from preempting is its namespace's affair. Little is looked up: there can be thousands.
        """
        lowest = min(self._below, default=None)
        if lowest is None or self._mode() is not PoolAllocator.CONTROLLER:
            self._since.clear()
            return []
        since: dict[Uid, float] = {}
        found: list[WaitingPod] = []
        for rank, key in self._wakeups.pending.first_of_namespaces(self._wants):
            pod = self._pods.get(key) if -rank.level > lowest else None
            if pod is None:
                continue
            uid = pod.metadata.uid
            since[uid] = self._since.get(uid, now)
            if now - since[uid] >= self._wait:
                found.append(WaitingPod(rank, key, uid, since[uid]))
        self._since = since
        return found

    def _wants(self, key: ObjectKey) -> bool:
        pod = self._pods.get(key)
        return pod is not None and pod.spec.preemption_policy != "Never"

    def is_above_others(self, candidate: Candidate) -> bool:
        """Return whether a pod of lower priority holds devices."""
        return candidate.priority > min(self._below, default=candidate.priority)

    def of(self, key: ObjectKey, uid: Uid) -> Candidate | None:
        """Return a pod as a candidate; None where it does not wait, or may not preempt."""
        pod = self._pods.get(key)
        if pod is None or pod.metadata.uid != uid or key not in self._wakeups.pending:
            return None
        group = self._groups.of(pod)
        if group is not None and not isinstance(group, Gang):
            return None
        members = group.members if group is not None else (pod,)
        if self._mode() is not PoolAllocator.CONTROLLER or not members or not all(map(self._may, members)):
            return None
        case: Hashable = group.key if group is not None else uid
        return Candidate(case, pod, members, min(m.spec.priority for m in members))

    def case_of(self, pod: Pod) -> tuple[Hashable, tuple[Pod, ...]]:
        """Return what there is one round for, and its pods, whether or not they may preempt."""
        group = self._groups.of(pod)
        return (group.key, group.members) if isinstance(group, Gang) else (pod.metadata.uid, (pod,))

    def _may(self, pod: Pod) -> bool:
        spec = pod.spec
        return not (
            spec.preemption_policy == "Never"
            or is_ending(pod)
            or foreign_gates(pod)
            or unservable(pod)
            or not is_served(pod, self._schedulers)
            or (spec.node_name and self._pods.lacks_devices(pod))
            # Something is being written for it: wait for that.
            or self._pods.is_being_allocated(pod)
            or self._pods.is_cleared_by_scheduler(pod.status.nominated_node_name)
        )
