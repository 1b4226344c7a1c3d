"""Sets devices aside for pods that have waited for long, so that small requests do not starve big ones."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from controller.allocate.answers.decider import Decider
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import DevicesSetAside, SetAside, is_finished
from controller.allocate.pool_owners import CurrentOwners
from controller.allocate.starvation.turns import Head, Starving
from controller.allocate.wakeups import Wakeups
from dra_driver.api.core import PODS, Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.kube import EventRecorder, Handler, Informer, seconds_of
from dra_driver.ports import Clock
from dra_driver.resourceclaim import foreign_gates

__all__ = ["SettingAside"]

log = structlog.get_logger(__name__)

# Pods that waited when the controller started were created before it could look at them.
_START_SECONDS: Final = 30.0
_LONGEST_LOOK_SECONDS: Final = 1.0
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
        recorder: EventRecorder,
        clock: Clock,
        pods: Informer[Pod],
        nodes: Informer[Node],
    ) -> None:
        """Connect the parts, and follow the pods from now on.

        Args:
            seconds: see ``Starving``.
            decider: asked which devices to set aside.
            journal: learns which are.
            owners: know whose a pool is.
            wakeups: know the pods that wait, and look at them again.
            recorder: for Events.
            clock: for the times for which pods wait.
            pods: all namespaces.
            nodes: all.
        """
        self._starving = Starving(seconds)
        self._pause = min(_LONGEST_LOOK_SECONDS, seconds / 4) if seconds else 0.0
        self._decider = decider
        self._journal = journal
        self._owners = owners
        self._wakeups = wakeups
        self._recorder = recorder
        self._clock = clock
        self._pods = pods
        self._nodes = nodes
        self._started = clock.monotonic()
        self._since: dict[Uid, float] = {}
        # What is set aside, and the nodes that were unschedulable before, which the pod tolerates.
        self._now = _NOTHING
        self._tolerated: set[str] = set()
        pods.add_handler(Handler(deleted=self._forget))

    def _forget(self, pod: Pod) -> None:
        self._since.pop(pod.metadata.uid, None)
        self._starving.forget(pod.metadata.uid)
        self._end_if_over(self._clock.monotonic())

    async def run(self) -> None:
        """Look at the pods that wait until cancelled; not at all where no devices are to be set aside."""
        while self._pause:
            await asyncio.sleep(self._pause)
            await self.look()

    async def look(self) -> None:
        """End what is over, and set devices aside for the pod whose turn it is."""
        now = self._clock.monotonic()
        heads = self._heads(now)
        self._end_if_over(now)
        head = self._starving.candidate(heads, now)
        pod = self._pods.get(head.key) if head is not None else None
        if head is None or pod is None:
            return
        found = await self._decider.place(pod)
        if found is None:
            self._starving.fail(head, self._clock.monotonic())
        elif self._waits(head):
            self._begin(head, pod, found)

    # --- pods that wait -------------------------------------------------------------------------------------

    def _heads(self, now: float) -> list[Head]:
        """Return the first pod of each signature; note since when all pods wait."""
        for key in self._wakeups.pending:
            pod = self._pods.get(key)
            if pod is not None and pod.metadata.uid not in self._since:
                self._since[pod.metadata.uid] = now - self._waited_before(pod, now)
        heads: list[Head] = []
        for rank, key in self._wakeups.pending.ranked():
            pod = self._pods.get(key)
            if pod is not None and pod.metadata.uid in self._since:
                heads.append(Head(rank, key, pod.metadata.uid, self._since[pod.metadata.uid]))
        return heads

    def _waited_before(self, pod: Pod, now: float) -> float:
        """Return the seconds for which a pod had waited before this process saw that."""
        created = pod.metadata.creation_timestamp
        if not created or now - self._started > _START_SECONDS:
            return 0.0
        return max(0.0, self._clock.now() - seconds_of(created))

    def _waits(self, head: Head) -> bool:
        pod = self._pods.get(head.key)
        return (
            pod is not None
            and pod.metadata.uid == head.uid
            and head.key in self._wakeups.pending
            and not (is_finished(pod) or pod.metadata.deletion_timestamp or foreign_gates(pod))
        )

    # --- turns ----------------------------------------------------------------------------------------------

    def _begin(self, head: Head, pod: Pod, found: SetAside) -> None:
        now = self._clock.monotonic()
        turn = self._starving.begin(head, now)
        self._now = DevicesSetAside(found.rank, found.places)
        self._journal.apply(self._now)
        self._tolerated = {place.node for place in found.places if self._is_unschedulable(place.node)}
        nodes = sorted({place.node for place in found.places})
        where = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes"
        log.info(
            "devices are set aside",
            pod=str(head.key),
            nodes=nodes,
            waited=round(now - head.since, 1),
            seconds=round(turn.until - now, 1),
        )
        text = f"it has waited for long: devices on {where} are set aside until it can be allocated"
        self._recorder.event(PODS, pod, "Normal", "DevicesSetAside", text)

    def _end_if_over(self, now: float) -> None:
        turn = self._starving.holding
        if turn is None:
            return
        if not self._waits(turn.head):
            reason = "the pod waits no longer"
            self._starving.end()
        elif now >= turn.until:
            reason = "its time is over"
            self._starving.expire(now)
        elif not self._are_there():
            reason = "nodes or devices have gone"
            self._starving.end()
        else:
            return
        log.info("devices are not set aside any more", pod=str(turn.head.key), reason=reason)
        self._now = _NOTHING
        self._journal.apply(_NOTHING)
        self._wakeups.wake()

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
