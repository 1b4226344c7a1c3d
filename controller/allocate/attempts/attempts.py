"""The pods that are with kube-scheduler, from the allocation of their claims to their being bound."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from controller.allocate.attempts.evidence import Attempt, Bound, Deallocate, Hold, judge
from controller.allocate.attempts.window import BindingWindow
from controller.allocate.decide import report_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid

__all__ = ["Attempts"]

_LONGEST_SECONDS: Final = 600.0
# After a deallocation a cycle of kube-scheduler may still be under way that saw the allocation. Within this
# time it has nominated the node, which keeps the claims from being allocated elsewhere.
_SETTLING_SECONDS: Final = 1.0


class Attempts:
    """What is known of each pod that is allocated and not bound, and which pods wait for their turn.

    Args:
        seconds: without a sign of kube-scheduler after which claims are deallocated the first time; doubled
            for the same pod each time, up to ten minutes: what takes so long once may take long again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._window = BindingWindow(seconds)
        self._attempts: dict[Uid, Attempt] = {}
        self._failed = 0
        self._timeouts: dict[Uid, int] = {}
        self._settled: dict[Uid, float] = {}
        # Pods that were looked at while their claims were not allocated.
        self._known: set[Uid] = set()
        self._waiting: OrderedDict[ObjectKey, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of pods that are with kube-scheduler."""
        return len(self._attempts) - self._failed

    def get(self, pod: Uid) -> Attempt | None:
        """Return what is known of a pod's attempt, if it has one."""
        return self._attempts.get(pod)

    def is_live(self, pod: Uid) -> bool:
        """Return whether a pod is with kube-scheduler, and nothing says that it cannot be placed."""
        attempt = self._attempts.get(pod)
        return attempt is not None and not attempt.failed

    # --- from the allocation to the binding -----------------------------------------------------------------

    def look(self, pod: Uid, now: float) -> float:
        """Note that a pod is looked at whose claims are not allocated: reports until now are about that.

        Returns:
            Seconds after which the claims may be allocated anew; 0: now.
        """
        self._known.add(pod)
        return max(0.0, self._settled.get(pod, now) - now)

    def begin(self, pod: Pod, node: str, now: float, *, handed_over: bool = False) -> None:
        """Note that all claims of a pod are allocated on a node, or are being written.

        What kube-scheduler reported before is about something else, unless this process has just started and
        does not know.

        Args:
            pod: as it was last seen.
            node: of the allocations.
            now: the time.
            handed_over: kube-scheduler has seen the allocations, perhaps.
        """
        uid = pod.metadata.uid
        report = report_of(pod)
        seconds = min(self._seconds * float(1 << min(self._timeouts.get(uid, 0), 10)), _LONGEST_SECONDS)
        sign = (report, pod.status.nominated_node_name)
        before = report if uid in self._known else None
        seconds = max(seconds, self._seconds)
        self._put(uid, Attempt(node, before, sign, now, seconds, handed_over=handed_over))

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

    def seen(self, pod: Pod, now: float) -> bool:
        """Take in a version of a pod, perhaps with a sign; return whether the pod has an attempt."""
        attempt = self._attempts.get(pod.metadata.uid)
        if attempt is None:
            return False
        sign = (report_of(pod), pod.status.nominated_node_name)
        if sign != attempt.sign:
            # It nominates a node while it binds the pod to it.
            binds = bool(pod.status.nominated_node_name)
            nominated = attempt.nominated or (pod.metadata.resource_version if binds else "")
            failed = attempt.failed and not binds
            self._put(
                pod.metadata.uid,
                replace(attempt, sign=sign, since=now, nominated=nominated, failed=failed),
            )
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
        self._settled.pop(pod, None)

    def fail(self, pod: Uid, *, timeout: bool) -> Attempt | None:
        """Note that there is evidence against an attempt; return it the first time."""
        attempt = self._attempts.get(pod)
        if attempt is None or attempt.failed:
            return None
        self._timeouts[pod] = self._timeouts.get(pod, 0) + timeout
        self._put(pod, replace(attempt, failed=True))
        return attempt

    def cancel(self, pod: Uid) -> None:
        """Note that claims of a pod could not be written."""
        self._remove(pod)

    def end(self, pod: Uid, now: float) -> Attempt | None:
        """Note that a claim of a pod is not allocated any more; return the pod's attempt, if it had one."""
        attempt = self._remove(pod)
        if attempt is not None:
            self._settled[pod] = now + _SETTLING_SECONDS
        return attempt

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone or has ended."""
        self._remove(pod)
        self._timeouts.pop(pod, None)
        self._settled.pop(pod, None)
        self._known.discard(pod)

    def _put(self, pod: Uid, attempt: Attempt) -> None:
        self._remove(pod)
        self._attempts[pod] = attempt
        self._failed += attempt.failed

    def _remove(self, pod: Uid) -> Attempt | None:
        attempt = self._attempts.pop(pod, None)
        self._failed -= attempt is not None and attempt.failed
        return attempt

    # --- the window -----------------------------------------------------------------------------------------

    def room(self, now: float) -> int:
        """Return how many more pods may be allocated now; 0 or less where kube-scheduler has enough to do."""
        return self._window.size(now) - len(self)

    def wait(self, pod: ObjectKey) -> None:
        """Have a pod wait for its turn, in the order in which pods came."""
        self._waiting[pod] = None

    def next(self, now: float) -> list[ObjectKey]:
        """Return the pods whose turn it is; they wait no longer."""
        number = max(0, min(self.room(now), len(self._waiting)))
        return [self._waiting.popitem(last=False)[0] for _ in range(number)]
