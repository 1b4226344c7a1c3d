"""Shows pods that only another node could serve to whatever adds nodes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Final

import structlog

from controller.allocate.answers.decider import Decider
from controller.allocate.decide import (
    GroupFinder,
    Lane,
    NeedsSlowLane,
    Rank,
    Refuse,
    is_ending,
    is_finished,
)
from controller.allocate.scaling.added_nodes import AddedNodes
from controller.allocate.scaling.shown_pods import ShownPods
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.wakeups import Wakeups
from controller.allocate.writer import Writer
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.errors import ApiError, DraError, ServerBusy
from dra_driver.kube import EventRecorder
from dra_driver.ports import Clock
from dra_driver.resourceclaim import foreign_gates, is_gated

__all__ = ["ScaleUp"]

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 1.0
# Changes of pools put a pod off no longer than for so many times the delay.
_MOST_DELAYS: Final = 8
_PODS_AT_A_TIME: Final = 256
_UNITS_AT_A_TIME: Final = 32
# Until a pod that must not be shown is judged again, and until a question is asked again.
_LATER_SECONDS: Final = 10.0
# Until a gate is lifted again that the API server did not let go of.
_REFUSED_SECONDS: Final = 60.0
_WRITES_AT_A_TIME: Final = 16
_TEXT: Final = (
    "no node can serve it now: from now on kube-scheduler sees it, and reports it as unschedulable, so that "
    "an autoscaler may add a node"
)

# Priority level, namespace and signature of pods that are looked at in the order of their ranks.
_Line = tuple[int, str, bytes]


class ScaleUp:
    """Looks at the pods that wait once a second.

    What it knows are times for which pods have waited, so that nothing is lost by a restart but these: pods
    that were shown are those without a gate.
    """

    def __init__(
        self,
        seconds: float,
        most: int,
        nodes: AddedNodes,
        decider: Decider,
        groups: GroupFinder,
        wakeups: Wakeups,
        writer: Writer,
        recorder: EventRecorder,
        clock: Clock,
        pods: KnownPods,
        is_behind: Callable[[], bool],
        gets_room: Callable[[Uid], bool],
        kept_back: set[bytes],
    ) -> None:
        """Connect the parts.

        Args:
            seconds: for which a pod waits before it is shown.
            most: pods that are shown at a time (``ShownPods``); 0: none is.
            nodes: which pods could go to nodes that are added.
            decider: asked again before a pod is shown.
            groups: finds the other members of a pod's group.
            wakeups: know the pods that wait.
            writer: lifts gates.
            recorder: for Events.
            clock: for the times for which pods wait.
            pods: all namespaces.
            is_behind: whether what is known of the cluster may be out of date.
            gets_room: whether others are being preempted for a pod.
            kept_back: signatures of pods that are not shown because devices look free; kept here.
        """
        self._gets_room = gets_room
        self._kept_back = kept_back
        self._seconds = seconds
        self._most = most
        self._nodes = nodes
        self._decider = decider
        self._groups = groups
        self._wakeups = wakeups
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._pods = pods
        self._is_behind = is_behind
        self._places = ShownPods(most)
        # Since when pods have waited for a node; when a pool changed, and when nothing could be known.
        self._since: dict[Uid, float] = {}
        # Pods, and signatures, that are left alone until then.
        self._later: dict[Hashable, float] = {}
        self._changed = self._unknown = float("-inf")

    def count(self) -> int:
        """Return how many pods wait that are shown."""
        return len(self._places)

    def pool_changed(self) -> None:
        """Note that devices have come or gone, or are to be used in another way: that may not be all."""
        self._changed = self._clock.monotonic()

    async def run(self) -> None:
        """Look at the pods that wait until cancelled."""
        while self._most:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Show the pods whose turn it is."""
        now = self._clock.monotonic()
        if not self._nodes.may_come:
            self._since.clear()
            self._kept_back.clear()
            self._places.keep((), now)
            return
        lines, begun = await self._find(now)
        if self._is_behind():
            self._unknown = now
            return
        refused: set[bytes] = set()
        units = itertools.chain(begun.items(), self._in_order(lines))
        for count, (signature, pod) in enumerate(units, 1):
            if count % _UNITS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            if signature in self._later or pod.metadata.uid in self._later:
                continue
            if not self._unit(pod):
                # What holds for one member holds for all of a group.
                key: Hashable = signature if self._groups.beside(pod) else pod.metadata.uid
                self._later[key] = now + _LATER_SECONDS
                continue
            if signature not in refused and not await self._is_refused(pod, signature):
                self._later[signature] = now + _LATER_SECONDS
                continue
            refused.add(signature)
            unit = self._unit(pod)  # as it is after the question
            if unit and not await self._show(unit, signature):
                return

    # --- pods that wait -------------------------------------------------------------------------------------

    async def _find(self, now: float) -> tuple[dict[_Line, list[Rank]], dict[bytes, Pod]]:
        """Return the pods that have waited for long enough, and a member of each group that is shown."""
        lines: dict[_Line, list[Rank]] = defaultdict(list)
        begun: dict[bytes, Pod] = {}
        grouped: dict[bytes, bool] = {}
        gated: set[bytes] = set()
        shown: set[Uid] = set()
        since: dict[Uid, float] = {}
        self._later = {key: until for key, until in self._later.items() if now < until}
        for count, (signature, group, rank) in enumerate(list(self._wakeups.pending.for_new_nodes()), 1):
            if count % _PODS_AT_A_TIME == 0:
                await asyncio.sleep(0)
            pod = self._waiting(rank.key)
            if pod is None:
                continue
            uid = pod.metadata.uid
            if not is_gated(pod) or uid in self._places:
                if signature not in grouped:
                    grouped[signature] = bool(self._groups.beside(pod))
                if self._nodes.could_take(pod, grouped=grouped[signature]):
                    self._places.take(uid, pod.metadata.namespace, signature, now)
                    shown.add(uid)
                if grouped[signature]:
                    begun[signature] = pod
                continue
            gated.add(signature)
            began = since[uid] = self._since.get(uid, now)
            if self._is_due(began, now) and uid not in self._later and signature not in self._later:
                level = (group or rank).level
                lines[level, pod.metadata.namespace, signature].append(rank)
        self._since = since
        self._kept_back &= gated
        self._places.keep(shown, now)
        return lines, {signature: pod for signature, pod in begun.items() if signature in gated}

    def _waiting(self, key: ObjectKey) -> Pod | None:
        pod = self._pods.get(key)
        if pod is None or key not in self._wakeups.pending or pod.spec.node_name:
            return None
        if is_ending(pod) or foreign_gates(pod):
            return None
        return pod

    def _is_due(self, began: float, now: float) -> bool:
        begins = min(max(began, self._changed), began + (_MOST_DELAYS - 1) * self._seconds)
        return now >= max(begins, self._unknown) + self._seconds

    def _in_order(self, lines: dict[_Line, list[Rank]]) -> Iterator[tuple[bytes, Pod]]:
        """Yield pods while there are places, by priority; then those of whose kind the fewest are shown."""
        for ranks in lines.values():
            ranks.sort(reverse=True)

        def entry(line: _Line) -> tuple[int, int, int, Rank, _Line]:
            level, namespace, signature = line
            counts = self._places.of_namespace(namespace), self._places.of_signature(signature)
            return (level, *counts, lines[line][-1], line)

        heap = [entry(line) for line in lines]
        heapq.heapify(heap)
        while heap:
            first = heapq.heappop(heap)
            line = first[-1]
            if not self._places.are_free(line[1]):
                continue
            if first != (now := entry(line)):
                heapq.heappush(heap, now)
                continue
            pod = self._waiting(lines[line].pop().key)
            if lines[line]:
                heapq.heappush(heap, entry(line))
            if pod is not None and is_gated(pod):
                yield line[2], pod

    # --- what is shown together -----------------------------------------------------------------------------

    def _unit(self, pod: Pod) -> list[Pod]:
        """Return the pods to be shown together with a pod; none where it must not be shown.

        All members of a group, else too few nodes would be added. None of a claim that other pods use: once
        kube-scheduler looks at this one, it would keep these from the claim. None for which others are
        preempted: it needs no node.
        """
        members = self._groups.beside(pod)
        unit: list[Pod] = []
        for member in members or (pod,):
            served = member.spec.node_name or not self._lacks_devices(member)
            if served or foreign_gates(member):
                continue
            if self._waiting(member.key) is None or self._shares(member):
                return []
            if self._gets_room(member.metadata.uid):
                return []
            if not self._nodes.could_take(member, grouped=bool(members)):
                return []
            if is_gated(member) and member.metadata.uid not in self._places:
                unit.append(member)
        return unit

    def _lacks_devices(self, pod: Pod) -> bool:
        """Return whether a claim of a pod that waits is not allocated, or not even made by kube-scheduler."""
        return self._pods.lacks_devices(pod) or self._pods.lacks_extended_claim(pod)

    def _shares(self, pod: Pod) -> bool:
        """Return whether a claim of the pod that is not allocated has other users."""
        return any(
            user.metadata.uid != pod.metadata.uid and not is_finished(user)
            for claim in self._pods.claims(pod)
            if claim.status.allocation is None
            for user in self._pods.users_of(claim.key)
        )

    async def _is_refused(self, pod: Pod, signature: bytes) -> bool:
        """Return whether the pod, or its group, still lacks devices, by all that is known now.

        And whether an autoscaler would see that: it adds no node where devices look free that would serve it.
        """
        found = await self._decider.decide(pod, Lane.FAST, shows=True)
        if found is None:
            return False
        answer, answered = found
        match answer.decision:
            case NeedsSlowLane():
                return True  # as it was refused in the slow lane; each change leads to a look there
            case Refuse(undo=undo, new_node=new_node):
                if undo or answer.gave_up:
                    return False
                # A question that took much work is not worked out at each change.
                is_seen = new_node or answer.pause > 0
                self._keep_back(pod, signature, kept=not is_seen)
                return is_seen
            case _:
                self._decider.release(answered)
                self._wakeups.queue.add(pod.key)
                return False

    def _keep_back(self, pod: Pod, signature: bytes, *, kept: bool) -> None:
        """Note whether pods are not shown because devices look free; the pod is looked at to say so."""
        if kept is not (signature in self._kept_back):
            (self._kept_back.add if kept else self._kept_back.discard)(signature)
            self._wakeups.queue.add(pod.key)

    async def _show(self, unit: list[Pod], signature: bytes) -> bool:
        """Lift the gates; return whether the API server answers."""
        for start in range(0, len(unit), _WRITES_AT_A_TIME):
            part = unit[start : start + _WRITES_AT_A_TIME]
            async with asyncio.TaskGroup() as tasks:
                done = [tasks.create_task(self._lift(pod, signature)) for pod in part]
            if not all(task.result() for task in done):
                return False
        return True

    async def _lift(self, pod: Pod, signature: bytes) -> bool:
        if not self._lacks_devices(pod):
            return True  # it got them meanwhile, and loses the gate when they are written
        try:
            await self._writer.ungate(pod)
        except DraError as e:
            log.warning("the gate of a pod cannot be lifted", pod=str(pod.key), error=str(e))
            now = self._clock.monotonic()
            if isinstance(e, ServerBusy) or not isinstance(e, ApiError):
                # What is known may be old once it answers again.
                self._unknown = now
                return False
            for key in (pod.metadata.uid, signature) if self._groups.beside(pod) else (pod.metadata.uid,):
                self._later[key] = now + _REFUSED_SECONDS
            return True
        self._places.take(pod.metadata.uid, pod.metadata.namespace, signature, self._clock.monotonic())
        log.info("pod is shown to autoscalers", pod=str(pod.key))
        self._recorder.event(PODS, pod, "Normal", "WaitingForScaleUp", _TEXT)
        return True
