"""Why pods wait, as a condition of each: Events expire after an hour, and are limited in their rate.

A pod that waits for devices has the condition ``dra-driver.dev/Allocated``: False, with a reason and a text.
It is written by server-side apply with our field manager, and True when the pod waits no longer; a pod that
never waited for a second never has it. It is not removed then: an apply without it would take along the
condition PodScheduled, which the API server itself gives a gated pod, and which no field manager owns.

What is to be written is always compared with what the pod has, so a controller that starts anew writes only
what has changed, and no reason is lost.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from controller.observe.pod_conditions import PodCondition, Written
from dra_driver.api import names
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.fleet import waiting_condition
from dra_driver.kube import Handler, Informer, WorkQueue, cut_message
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["WaitingReasons", "shown_reason"]

log = structlog.get_logger(__name__)

# A pod that waits no longer than this is not written for that.
GRACE_SECONDS: Final = 1.0
# The same where the wait is expected to end by itself: else each pod of a burst would cost two writes.
PASSING_SECONDS: Final = 15.0
# Between two writes of one condition: at first, and where its reasons flap.
REPEAT_SECONDS: Final = 5.0
LONGEST_REPEAT_SECONDS: Final = 300.0
# Less is as good as nothing: a timer for it may ring before it is over, because sums of times are rounded.
_RESOLUTION_SECONDS: Final = 0.001
# After so long without a write a pod's reasons do not flap.
_CALM_SECONDS: Final = 600.0
# Between two writes about pods that have a condition: for another reason, for other figures in the same text.
CHANGE_SECONDS: Final = 0.5
FIGURES_SECONDS: Final = 2.0
# Until other figures alone are worth a write.
_FIGURES_AGE_SECONDS: Final = 60.0
# Pods that wait, or do not any more, are written side by side, each as soon as it can be.
_WORKERS: Final = 2

_FIGURES: Final = re.compile(r"\d+(?:[.,]\d+)*")


class Reason(NamedTuple):
    """Reason and message of a condition."""

    reason: str
    message: str

    def is_like(self, other: Reason) -> bool:
        """Return whether two differ in figures alone."""
        return self.reason == other.reason and (
            self.message == other.message
            or _FIGURES.sub("0", self.message) == _FIGURES.sub("0", other.message)
        )


def shown_reason(pod: Pod) -> Reason | None:
    """Return why a pod waits as its condition says; None where it has none."""
    condition = waiting_condition(pod)
    if condition is None:
        return None
    return Reason(str(condition.get("reason") or ""), str(condition.get("message") or ""))


@dataclass(slots=True)
class _State:
    """What is known about a pod.

    Attributes:
        uid: of the pod.
        wanted: why it waits; None where it does not.
        shown: why it waits as its condition says; None where it says nothing like that.
        allocated: whether its claims are allocated, where it does not wait.
        began: when it began to wait, by the monotonic clock.
        since: ``lastTransitionTime`` of the condition.
        due: before then it is not written, by the monotonic clock.
        delay: what was last added to that.
        written: when the condition was last written; 0: not by this process.
    """

    uid: str
    wanted: Reason | None
    shown: Reason | None
    since: str = ""
    began: float = 0.0
    allocated: bool = True
    due: float = 0.0
    delay: float = 0.0
    written: float = 0.0


class WaitingReasons:
    """Keeps the condition of each pod that waits for devices.

    Args:
        client: of the API server.
        clock: for timestamps and intervals.
        pods: all of them.
    """

    def __init__(self, client: KubeClient, clock: Clock, pods: Informer[Pod]) -> None:
        self._condition = PodCondition(client, names.ALLOCATED_CONDITION, names.CONTROLLER_FIELD_MANAGER)
        self._clock = clock
        self._pods = pods
        self._states: dict[ObjectKey, _State] = {}
        # Namespaces take turns: one that makes reasons change all the time holds up itself.
        self._first: WorkQueue[ObjectKey] = _queue("reasons of waiting pods")
        self._changed: WorkQueue[ObjectKey] = _queue("changed reasons")
        self._figures: WorkQueue[ObjectKey] = _queue("changed figures")
        pods.add_handler(Handler(deleted=lambda pod: self._forget(pod.key)))

    def __len__(self) -> int:
        """Return the number of pods that wait, or have waited and are still there."""
        return len(self._states)

    @property
    def queues(self) -> tuple[WorkQueue[ObjectKey], ...]:
        """The queues, for metrics."""
        return (self._first, self._changed, self._figures)

    def reason(self, pod: ObjectKey) -> str:
        """Return why a pod waits, for people; empty where it does not."""
        state = self._states.get(pod)
        return state.wanted.message if state is not None and state.wanted is not None else ""

    def waits(
        self, pod: Pod, reason: str, message: str, *, passing: bool = False, counts: bool = False
    ) -> bool:
        """Note that a pod waits, and why.

        Args:
            pod: that waits.
            reason: CamelCase, stable.
            message: what was asked, what is there, and why it does not fit.
            passing: whether others are at work on what it waits for, so that this is no news at first.
            counts: whether figures in the text are what it waits for, such as the members of a group: they
                are brought up to date as soon as the condition may be written again.

        Returns:
            Whether it did not wait before, or for another reason; other figures in the text are none.
        """
        wanted = Reason(reason, cut_message(message))
        key, state = pod.key, self._states.get(pod.key)
        if state is None or state.uid != pod.metadata.uid:
            state = self._states[key] = _State(pod.metadata.uid, None, *_shown(pod))
        before, state.wanted = state.wanted, wanted
        if before == wanted:
            return False
        now = self._clock.monotonic()
        if before is None:
            state.began = now
        if state.shown is None:
            again = state.written + state.delay if state.written else 0.0
            state.due = max(again, state.began + (PASSING_SECONDS if passing else GRACE_SECONDS))
        left = max(0.0, state.due - now)
        if state.shown is None:
            self._first.add_after(key, left)
        elif not state.shown.is_like(wanted):
            self._changed.add_after(key, left)
        elif state.shown != wanted:
            self._figures.add_after(key, left if counts else max(left, _FIGURES_AGE_SECONDS))
        return before is None or not before.is_like(wanted)

    def is_outdated(self, pod: Pod, reason: str, message: str) -> bool:
        """Return whether a pod is noted to wait for the same, with other figures."""
        state, wanted = self._states.get(pod.key), Reason(reason, cut_message(message))
        if state is None or state.uid != pod.metadata.uid or state.wanted is None:
            return False
        return state.wanted != wanted and state.wanted.is_like(wanted)

    def served(self, pod: Pod, *, allocated: bool) -> None:
        """Note that a pod waits no longer, or not for us.

        Args:
            pod: that does not wait.
            allocated: whether its claims are allocated.
        """
        key, state = pod.key, self._states.get(pod.key)
        if state is None:
            shown, since = _shown(pod)
            if shown is None:
                return
            state = self._states[key] = _State(pod.metadata.uid, None, shown, since)
        state.wanted, state.allocated = None, allocated
        if state.shown is None and state.written == 0.0:
            self._forget(key)
        elif state.shown is not None:
            self._first.add_after(key, max(0.0, state.due - self._clock.monotonic()))

    def _forget(self, key: ObjectKey) -> None:
        self._states.pop(key, None)

    async def run(self) -> None:
        """Write conditions until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._first.process(self._paced(0.0), workers=_WORKERS))
            tasks.create_task(self._changed.process(self._paced(CHANGE_SECONDS)))
            tasks.create_task(self._figures.process(self._paced(FIGURES_SECONDS)))

    def close(self) -> None:
        """Cancel timers."""
        for queue in self.queues:
            queue.close()

    def _paced(self, seconds: float) -> Callable[[ObjectKey], Awaitable[None]]:
        async def work(key: ObjectKey) -> None:
            if await self._write(key) and seconds:
                await asyncio.sleep(seconds)

        return work

    async def _write(self, key: ObjectKey) -> bool:
        """Make the condition of a pod what it is to be; return whether that took a write."""
        pod, state = self._pods.get(key), self._states.get(key)
        if state is None or state.wanted == state.shown:
            return False
        if pod is None or pod.metadata.uid != state.uid or pod.metadata.deletion_timestamp:
            self._forget(key)
            return False
        now = self._clock.monotonic()
        if (left := state.due - now) > _RESOLUTION_SECONDS:
            self._first.add_after(key, left)
            return False
        wanted = state.wanted
        if wanted is not None and (state.shown is None or not wanted.is_like(state.shown)):
            log.info("pod waits", pod=str(key), reason=wanted.reason, message=wanted.message)
        same = wanted is not None and state.shown is not None
        since = state.since if same else rfc3339(self._clock.now())
        said = _condition(wanted, allocated=state.allocated)
        match await self._condition.try_to_apply(key, pod.metadata.uid, said, since):
            case Written.GONE:
                self._forget(key)
                return True
            case Written.FAILED:
                self._first.add_rate_limited(key)
                return True
            case Written.DONE:
                pass
        state.shown, state.since = wanted, since
        calm = state.written and now - state.written < _CALM_SECONDS
        state.delay = min(2 * state.delay, LONGEST_REPEAT_SECONDS) if calm else REPEAT_SECONDS
        state.written, state.due = now, now + state.delay
        if state.wanted != wanted:
            self._first.add_after(key, state.delay)
        return True


def _condition(reason: Reason | None, *, allocated: bool) -> dict[str, str]:
    """Return status, reason and message of the condition."""
    if reason is not None:
        return {"status": "False", "reason": reason.reason, "message": reason.message}
    if allocated:
        return {"status": "True", "reason": "Allocated", "message": ""}
    return {
        "status": "Unknown",
        "reason": "NotWaiting",
        "message": "this controller does not allocate for it now",
    }


def _shown(pod: Pod) -> tuple[Reason | None, str]:
    """Return why a pod waits by its condition, and since when."""
    condition = waiting_condition(pod)
    return shown_reason(pod), str(condition.get("lastTransitionTime") or "") if condition is not None else ""


def _queue(name: str) -> WorkQueue[ObjectKey]:
    return WorkQueue(name, base_delay=1.0, max_delay=300.0, tenant=lambda key: key.namespace)
