"""Sets devices aside for pods that have waited for long, so that small requests do not starve big ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

import structlog

from controller.allocate.answers.decider import Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.attempts import TakenBack
from controller.allocate.decide import (
    DevicesSetAside,
    GroupKey,
    PodPlacement,
    SetAside,
    is_finished,
    report_of,
    signature_of,
    suitable_nodes,
)
from controller.allocate.signal import Signal
from controller.allocate.starvation.exclusions import SetAsideExclusions
from controller.allocate.starvation.heads import WaitingHeads
from controller.allocate.starvation.shown import SetAsideCondition
from controller.allocate.starvation.turns import Head, StarvationTurns
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.wakeups import Wakeups
from dra_driver.api.core import PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import NOT_ON_NODE
from dra_driver.kube import EventRecorder, Handler, Informer
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock

__all__ = ["SettingAside"]

log = structlog.get_logger(__name__)

_LONGEST_LOOK_SECONDS: Final = 1.0
# In the text about devices that are set aside.
_MOST_NAMED: Final = 16
_PODS_AT_A_TIME: Final = 64
_NOTHING: Final = DevicesSetAside(None, ())


class SettingAside:
    """Looks at the pods that wait once a second, whatever happens meanwhile."""

    def __init__(
        self,
        seconds: float,
        decider: Decider,
        journal: Journal,
        owners: CurrentOwners,
        wakeups: Wakeups,
        taken_back: Signal[[Pod, TakenBack]],
        condition: SetAsideCondition,
        recorder: EventRecorder,
        clock: Clock,
        pods: KnownPods,
        nodes: Informer[Node],
        group_of: Callable[[Pod], GroupKey | None],
    ) -> None:
        """Connect the parts, and follow the pods from now on.

        Args:
            seconds: see ``StarvationTurns``.
            decider: asked which devices to set aside.
            journal: learns which are.
            owners: know whose a pool is.
            wakeups: know the pods that wait, and look at them again.
            taken_back: sent with each pod that has lost its devices before it was bound.
            condition: shows for which pod devices are set aside.
            recorder: for Events.
            clock: for the times for which pods wait.
            pods: all namespaces.
            nodes: all.
            group_of: the group of a pod, if it is allocated as a whole.
        """
        self._group_of = group_of
        self._starving = StarvationTurns(seconds)
        self._turned_down = SetAsideExclusions(seconds)
        self._pause = min(_LONGEST_LOOK_SECONDS, seconds / 4) if seconds else 0.0
        self._decider = decider
        self._journal = journal
        self._owners = owners
        self._wakeups = wakeups
        self._condition = condition
        self._recorder = recorder
        self._clock = clock
        self._pods = pods
        self._nodes = nodes
        self._heads = WaitingHeads(wakeups.pending, clock, pods)
        # By pod: its resourceVersion, and what it has in common with others.
        self._known_similar: dict[Uid, tuple[str, tuple[Hashable, ...]]] = {}
        # What is set aside, and the nodes that were unschedulable before, which the pod tolerates.
        self._now = _NOTHING
        self._tolerated: set[str] = set()
        taken_back.listen(self._taken_back)
        pods.follow(Handler(updated=self._updated, deleted=self._forget))

    def devices(self) -> int:
        """Return how many devices are set aside."""
        allocations = (a for place in self._now.places for a in place.allocations)
        return sum(len(a.devices.results) for a in allocations)

    def longest_wait(self) -> float:
        """Return for how many seconds the pod waits that waits longest; 0: none waits."""
        return self._heads.longest()

    async def run(self) -> None:
        """Look at the pods that wait until cancelled; not at all where no devices are to be set aside."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._condition.run())
            while self._pause:
                await asyncio.sleep(self._pause)
                await self.look()

    async def look(self) -> None:
        """End what is over, and set devices aside for the pod whose turn it is."""
        now = self._clock.monotonic()
        heads = self._heads.look(now)
        self._end_if_over(now)
        await self._compare(heads)
        head = self._starving.candidate(heads, now, lambda h: self._is_left_out(h, now))
        pod = self._pods.get(head.key) if head is not None else None
        if head is None or pod is None:
            return
        found = await self._decider.place(pod)
        if found is None:
            self._starving.nothing_found(head, self._clock.monotonic())
        elif self._heads.waits(head):
            self._begin(head, pod, found)

    # --- pods that could not be placed ----------------------------------------------------------------------

    def _updated(self, old: Pod, pod: Pod) -> None:
        uid, now = pod.metadata.uid, self._clock.monotonic()
        if is_finished(pod):
            if not is_finished(old):
                self._forget(pod)
        elif pod.spec.node_name and not old.spec.node_name:
            self._end_if_over(now)
            self._starving.bound(uid, now)
            if self._turned_down:
                self._turned_down.bound(uid, self._case(pod), self._similar(old))
        elif report_of(pod) != report_of(old):
            self._turned_down.reported(uid, suitable_nodes(pod))

    def _taken_back(self, pod: Pod, reason: TakenBack) -> None:
        uid, now = pod.metadata.uid, self._clock.monotonic()
        self._end_if_over(now)  # else it waits again before the next look, and its turn goes on
        self._starving.taken_back(uid, -pod.spec.priority, now)
        if reason is TakenBack.DISPLACED:
            return
        report = report_of(pod)
        is_unschedulable = report is None or report.reason == "Unschedulable"
        self._turned_down.add(
            uid,
            self._case(pod),
            self._similar(pod),
            now,
            hopeless=reason is TakenBack.UNSCHEDULABLE and is_unschedulable,
            everywhere=report is not None and NOT_ON_NODE not in report.message,
        )

    def _is_left_out(self, head: Head, now: float) -> bool:
        if not self._turned_down:
            return False
        pod = self._pods.get(head.key)
        return pod is None or self._turned_down.leaves_out(self._case(pod), self._similar(pod), now)

    async def _compare(self, heads: Sequence[Head]) -> None:
        """Find out what the pods that wait have in common with others, without holding the event loop."""
        for count, head in enumerate(heads if self._turned_down else (), 1):
            pod = self._pods.get(head.key)
            if pod is not None:
                self._similar(pod)
            if count % _PODS_AT_A_TIME == 0:
                await asyncio.sleep(0)

    def _similar(self, pod: Pod) -> tuple[Hashable, ...]:
        """Return what a pod has in common with those that may take its place: owner, requests."""
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        known = self._known_similar.get(uid)
        if known is None or known[0] != version:
            known = self._known_similar[uid] = (version, self._similar_of(pod))
        return known[1]

    def _similar_of(self, pod: Pod) -> tuple[Hashable, ...]:
        owners = pod.metadata.owner_references or ()
        asks = (pod.metadata.namespace, signature_of(pod, self._pods.claims(pod), ()))
        return (*(o.uid for o in owners if o.controller), asks)

    def _forget(self, pod: Pod) -> None:
        self._end_if_over(self._clock.monotonic())
        self._starving.forget(pod.metadata.uid)
        self._turned_down.forget(pod.metadata.uid)
        self._known_similar.pop(pod.metadata.uid, None)

    # --- turns ----------------------------------------------------------------------------------------------

    def _begin(self, head: Head, pod: Pod, found: SetAside) -> None:
        now = self._clock.monotonic()
        turn = self._starving.begin(head, now)
        self._now = DevicesSetAside(found.rank, found.places)
        self._journal.apply(self._now)
        self._tolerated = {place.node for place in found.places if self._is_unschedulable(place.node)}
        devices = _named(found.places)
        until = rfc3339(self._clock.now() + turn.until - now)
        log.info(
            "devices are set aside",
            pod=str(head.key),
            devices=devices,
            waited=round(now - head.since, 1),
            until=until,
        )
        self._condition.show(pod, f"until {until} at the latest: {devices}")
        text = f"it has waited for long: devices are set aside until it can be allocated ({devices})"
        self._recorder.event(PODS, pod, "Normal", "DevicesSetAside", text)

    def _end_if_over(self, now: float) -> None:
        turn = self._starving.holding
        if turn is None:
            return
        if not self._heads.waits(turn.head):
            reason = "the pod waits no longer"
            if self._is_allocated(turn.head):
                self._starving.serve(now)
            else:
                self._starving.fail(now)
        elif now >= turn.until:
            reason = "its time is over"
            self._starving.fail(now)
        elif not self._are_there():
            reason = "nodes or devices have gone"
            self._starving.interrupt(now)
        else:
            return
        log.info("devices are not set aside any more", pod=str(turn.head.key), reason=reason)
        self._now = _NOTHING
        self._journal.apply(_NOTHING)
        self._condition.end()
        self._wakeups.wake()

    def _is_allocated(self, head: Head) -> bool:
        pod = self._pods.find(head.id)
        return pod is not None and not self._pods.lacks_devices(pod)

    def _case(self, pod: Pod) -> Hashable:
        """Return the group of a pod, or what stands for the pod alone."""
        return self._group_of(pod) or pod.metadata.uid

    def _are_there(self) -> bool:
        """Return whether the nodes can take pods, and the pools are ours to allocate from."""
        for place in self._now.places:
            if self._is_unschedulable(place.node) and place.node not in self._tolerated:
                return False
            if not all(map(self._owners.are_ours, place.allocations)):
                return False
        return True

    def _is_unschedulable(self, name: str) -> bool:
        node = self._nodes.get(ObjectKey("", name))
        return node is None or node.spec.unschedulable or node.metadata.deletion_timestamp is not None


def _named(places: Iterable[PodPlacement]) -> str:
    """Return nodes with their devices, for people."""
    found = [
        (place.node, result.device)
        for place in places
        for allocation in place.allocations
        for result in allocation.devices.results
    ]
    nodes: dict[str, list[str]] = {}
    for node, device in found[:_MOST_NAMED]:
        nodes.setdefault(node, []).append(device)
    text = "; ".join(f"{node}: {', '.join(devices)}" for node, devices in nodes.items())
    return text if len(found) <= _MOST_NAMED else f"{text} and {len(found) - _MOST_NAMED} more"
