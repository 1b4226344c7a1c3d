"""The pods that are with kube-scheduler, from the allocation of their claims to their being bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from controller.allocate.attempts.evidence import Attempt, Bound, Deallocate, Hold, judge
from controller.allocate.attempts.turns import Turns
from controller.allocate.attempts.window import LEAST_OF_NAMESPACE, BindingWindow
from controller.allocate.decide import (
    PodID,
    Rank,
    Report,
    claims_of,
    has_no_node,
    ignores_claims,
    misses_only_claims,
    report_of,
)
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.doubling import doubled
from dra_driver.indices import Indices

__all__ = ["Attempts"]

_LONGEST_SECONDS: Final = 600.0
# For which a pod that kube-scheduler had no node for is allocated, unless it looks at the pod again.
_PROBE_SECONDS: Final = 2.0
# Until kube-scheduler's watch shows it a deallocation.
_WATCH_SECONDS: Final = 1.0
# Of the time-out: until its requests are sent, by the measure of the window.
_SHARE: Final = 1 / 3
# For which it holds a pod with a node until enough others of its PodGroup have one (plugin GangScheduling).
# It nominates the node before, so the pod's claims stay there, and reserves them after that.
_PERMIT_SECONDS: Final = 300.0
# Users of one claim that are looked at for a pod: they are all of its namespace.
_MOST_SETTLING: Final = 256
_LAST_UID: Final = Uid("\U0010ffff")
_LIVE: Final = "live"
_FAILED: Final = "failed"
_SETTLING: Final = "settling"


class _Settling(NamedTuple):
    """A claim of a pod was deallocated, and a cycle of kube-scheduler may be under way that saw it allocated.

    Attributes:
        since: when that was.
        seconds: after which no request of that cycle can be left.
        sign: the last report and nominated node before: the watch may show what is said about it sooner.
        pod: which one.
        claims: that it uses.
    """

    since: float
    seconds: float
    sign: tuple[Report | None, str]
    pod: PodID
    claims: tuple[ObjectKey, ...]


class Attempts:
    """What is known of each pod that is allocated and not bound, and which pods wait for their turn.

    Args:
        seconds: without a sign of kube-scheduler after which claims are deallocated the first time; doubled
            for the same pod each time, up to ten minutes: what takes so long once may take long again. Pods
            of a PodGroup have five minutes more: for so long kube-scheduler waits for others of it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._window = BindingWindow(seconds)
        self._attempts: dict[Uid, Attempt] = {}
        # Those without evidence against them, by namespace.
        self._live: Counter[str] = Counter()
        # Those of them that are probes.
        self._probes: Counter[str] = Counter()
        self._timeouts: dict[Uid, int] = {}
        self._settling: dict[Uid, _Settling] = {}
        # Of a claim the pods that are with kube-scheduler, those with evidence against them, and those that
        # settle: thousands may use it.
        self._users: Indices[PodID, Attempt] = Indices(
            {_LIVE: lambda a: () if a.failed else a.claims, _FAILED: lambda a: a.claims if a.failed else ()}
        )
        self._settling_users: Indices[PodID, _Settling] = Indices({_SETTLING: lambda s: s.claims})
        self._started: float | None = None
        # Pods that were looked at while their claims were not allocated.
        self._known: set[Uid] = set()
        self._turns = Turns()

    def __len__(self) -> int:
        """Return the number of pods that are with kube-scheduler."""
        return self._live.total()

    def get(self, pod: Uid) -> Attempt | None:
        """Return what is known of a pod's attempt, if it has one."""
        return self._attempts.get(pod)

    def live_users(self, claim: ObjectKey) -> Sequence[PodID]:
        """Return the pods with a claim that are with kube-scheduler, and may be placed, in order."""
        return self._users.keys(_LIVE, claim)

    def failed_users(self, claim: ObjectKey, last: ObjectKey | None, most: int) -> Sequence[ObjectKey]:
        """Return some of the pods with a claim against whose attempts there is evidence, in order.

        Args:
            claim: that they use.
            last: only those behind this pod; if None, from the first one on.
            most: number of pods.
        """
        behind = None if last is None else PodID(last, _LAST_UID)
        return [pod.key for pod in self._users.after(_FAILED, claim, behind, most)]

    def is_probed(self, namespace: str) -> bool:
        """Return whether a pod of a namespace is allocated that kube-scheduler had no node for."""
        return self._probes[namespace] > 0

    # --- from the allocation to the binding -----------------------------------------------------------------

    def look(self, pod: Pod, now: float, *, was_allocated: bool) -> None:
        """Note that a pod is looked at whose claims are not allocated: reports until now are about that.

        Args:
            pod: as it was last seen.
            now: the time.
            was_allocated: a claim of it has been allocated before, perhaps by a process that has ended since.
        """
        uid = pod.metadata.uid
        if self._started is None:
            self._started = now
        is_recent = now < self._started + self._seconds * _SHARE
        if was_allocated and is_recent and uid not in self._known and not misses_only_claims(pod):
            self._settle(pod, self._started, self._seconds * _SHARE, _sign(pod))
        self._known.add(uid)

    def unsettled(self, pod: Pod, now: float) -> float:
        """Return for how many seconds claims of a pod must not be allocated anew; 0: they may be now.

        A cycle of kube-scheduler that began before it saw the deallocation may bind the pod to the node where
        it was allocated before, although it has not nominated it yet: its requests wait for their turn. What
        it reports ends that cycle, and the next one sees the deallocation, at the latest a moment later.
        """
        entry = self._settling.get(pod.metadata.uid)
        if entry is None or pod.status.nominated_node_name:
            return 0.0  # a nomination keeps the claims on its node by itself
        seconds = entry.seconds
        if _sign(pod) != entry.sign:
            seconds = 0.0 if misses_only_claims(pod) else min(seconds, _WATCH_SECONDS)
        left = entry.since + seconds - now
        if left > 0:
            return left
        self._settled(pod.metadata.uid)
        return 0.0

    def unsettled_user(self, claim: ObjectKey, find: Callable[[PodID], Pod | None], now: float) -> float:
        """Return for how many seconds one of the pods with a claim is unsettled; 0: none of them is.

        Another one may be so for longer: then this is asked again. Otherwise all of thousands would be looked
        at for each of them.

        Args:
            claim: that is not allocated.
            find: gives a pod as it was last seen; None where it is gone.
            now: the time.
        """
        for user in self._settling_users.after(_SETTLING, claim, None, _MOST_SETTLING):
            pod = find(user)
            if pod is None:
                self._settled(user.uid)
            elif (left := self.unsettled(pod, now)) > 0:
                return left
        return 0.0

    def may_be_unsettled(self, now: float) -> bool:
        """Return whether ``unsettled`` may be more than 0 for any pod."""
        return bool(self._settling) or self._started is None or now < self._started + self._seconds * _SHARE

    def begin(self, pod: Pod, node: str, now: float, *, handed_over: bool = False) -> None:
        """Note that all claims of a pod are allocated on a node, or are being written.

        What kube-scheduler reported before is about something else, unless this process has just started and
        does not know. Where it had no node for the pod, an allocation is no reason for it to look again, so
        devices are held for seconds. No node is nominated then: so it shows when kube-scheduler nominates one
        to bind the pod.

        Args:
            pod: as it was last seen.
            node: of the allocations.
            now: the time.
            handed_over: kube-scheduler has seen the allocations, perhaps.
        """
        uid = pod.metadata.uid
        report = report_of(pod)
        seconds = doubled(self._seconds, self._timeouts.get(uid, 0), _LONGEST_SECONDS)
        sign = _sign(pod)
        before = report if uid in self._known else None
        seconds = max(seconds, self._seconds) + (_PERMIT_SECONDS if pod.spec.pod_group else 0.0)
        probe = has_no_node(pod)
        if probe:
            seconds = min(seconds, _PROBE_SECONDS)
        attempt = Attempt(
            _id(pod),
            tuple(claims_of(pod)),
            node,
            before,
            sign,
            sign,
            now,
            seconds,
            handed_over=handed_over,
            probe=probe,
        )
        self._put(uid, attempt)

    def handed_over(self, pod: Uid, now: float, nominated: str) -> None:
        """Note that kube-scheduler sees the pod from now on.

        Args:
            pod: which one.
            now: the time.
            nominated: resourceVersion of the pod at which a node was nominated for it; empty: none was.
        """
        attempt = self._attempts.get(pod)
        if attempt is not None:
            nominated = nominated or attempt.nominated
            self._put(pod, replace(attempt, since=now, handed_over=True, nominated=nominated))

    def to_requeue(self, pod: Pod) -> Attempt | None:
        """Return the attempt of a pod that kube-scheduler would not look at; None: it does, or will."""
        attempt = self._attempts.get(pod.metadata.uid)
        settled = attempt is None or attempt.requeued or attempt.failed or not attempt.handed_over
        return None if settled or not ignores_claims(pod) else attempt

    def requeued(self, pod: Uid) -> None:
        """Note that kube-scheduler was made to look at a pod."""
        attempt = self._attempts.get(pod)
        if attempt is not None:
            self._put(pod, replace(attempt, requeued=True))

    def seen(self, pod: Pod, now: float) -> bool:
        """Take in a version of a pod, perhaps with a sign; return whether the pod has an attempt."""
        attempt = self._attempts.get(pod.metadata.uid)
        if attempt is None:
            return False
        sign = _sign(pod)
        if sign != attempt.sign:
            # It nominates a node while it binds the pod to it.
            binds = bool(pod.status.nominated_node_name)
            nominated = attempt.nominated or (pod.metadata.resource_version if binds else "")
            attempt = replace(attempt, sign=sign, since=now, nominated=nominated)
            if attempt.probe and not has_no_node(pod):
                attempt = replace(attempt, probe=False, seconds=self._seconds)
            self._put(pod.metadata.uid, replace(attempt, failed=attempt.failed and not binds))
        return True

    def judge(self, pod: Pod, now: float, *, preempting: bool = False) -> Bound | Hold | Deallocate | None:
        """Decide what becomes of a pod's allocations; None where it has none that are tentative."""
        attempt = self._attempts.get(pod.metadata.uid)
        return None if attempt is None else judge(attempt, pod, now, preempting=preempting)

    def bound(self, pod: Uid, now: float) -> None:
        """Note that a pod is bound."""
        if self._remove(pod) is not None:
            self._window.bound(now)
        self._timeouts.pop(pod, None)
        self._settled(pod)

    def fail(self, pod: Uid, *, timeout: bool) -> Attempt | None:
        """Note that there is evidence against an attempt; return it the first time."""
        attempt = self._attempts.get(pod)
        if attempt is None or attempt.failed:
            return None
        self._timeouts[pod] = self._timeouts.get(pod, 0) + timeout
        self._put(pod, replace(attempt, failed=True, then=attempt.sign))
        return attempt

    def cancel(self, pod: Uid) -> None:
        """Note that claims of a pod could not be written."""
        self._remove(pod)

    def end(self, pod: Pod, now: float, *, by_scheduler: bool = False) -> Attempt | None:
        """Note that a claim of a pod is not allocated any more; return the pod's attempt, if it had one.

        Args:
            pod: as it was last seen.
            now: the time.
            by_scheduler: kube-scheduler has deallocated it at the end of a cycle for this pod, and no other.
        """
        attempt = self._remove(pod.metadata.uid)
        self._known.add(pod.metadata.uid)
        if attempt is not None and attempt.handed_over:
            # After a report it looks at the pod again a second later, or it has nothing else to do: then its
            # requests do not wait.
            at_once = attempt.failed and now - attempt.since <= _WATCH_SECONDS
            seconds = self._seconds * _SHARE
            if by_scheduler or at_once:
                seconds = min(seconds, _WATCH_SECONDS)
            self._settle(pod, now, seconds, attempt.then)
        return attempt

    def _settle(self, pod: Pod, since: float, seconds: float, sign: tuple[Report | None, str]) -> None:
        if not (pod.spec.node_name or pod.spec.scheduling_gates):
            self._settled(pod.metadata.uid)
            entry = _Settling(since, seconds, sign, _id(pod), tuple(claims_of(pod)))
            self._settling[entry.pod.uid] = entry
            self._settling_users.change(entry.pod, None, entry)

    def _settled(self, pod: Uid) -> None:
        entry = self._settling.pop(pod, None)
        if entry is not None:
            self._settling_users.change(entry.pod, entry, None)

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone or has ended."""
        self._remove(pod)
        self._timeouts.pop(pod, None)
        self._settled(pod)
        self._known.discard(pod)

    def _put(self, pod: Uid, attempt: Attempt) -> None:
        self._change(self._attempts.get(pod), attempt)
        self._attempts[pod] = attempt

    def _remove(self, pod: Uid) -> Attempt | None:
        attempt = self._attempts.pop(pod, None)
        if attempt is not None:
            self._change(attempt, None)
        return attempt

    def _change(self, old: Attempt | None, new: Attempt | None) -> None:
        """Keep numbers and indices in step with the attempt of one pod."""
        for attempt, step in ((old, -1), (new, 1)):
            if attempt is None or attempt.failed:
                continue
            for counter, number in ((self._live, 1), (self._probes, int(attempt.probe))):
                counter[attempt.namespace] += step * number
                if not counter[attempt.namespace]:
                    del counter[attempt.namespace]
        one = old or new
        if one is not None:
            self._users.change(one.pod, old, new)

    # --- the window -----------------------------------------------------------------------------------------

    def room(self, namespace: str, now: float) -> int:
        """Return how many more pods of a namespace may be allocated now; 0 or less: none."""
        return max(self._window.size(now) - len(self), LEAST_OF_NAMESPACE - self._live[namespace])

    def wait(self, pod: ObjectKey, rank: Rank) -> None:
        """Have a pod wait for its turn."""
        self._turns.wait(pod, rank)

    def next(self, now: float) -> list[ObjectKey]:
        """Return the pods whose turn it is; they wait no longer."""
        room = self._window.size(now) - len(self)
        return self._turns.take(lambda namespace: LEAST_OF_NAMESPACE - self._live[namespace], room)


def _id(pod: Pod) -> PodID:
    return PodID(pod.key, pod.metadata.uid)


def _sign(pod: Pod) -> tuple[Report | None, str]:
    """Return what kube-scheduler has said about a pod."""
    return report_of(pod), pod.status.nominated_node_name
