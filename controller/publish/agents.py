"""Shows which node agents are gone: a condition of their inventories, an Event on the Node, a metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal

from dra_driver.api.core import NODES, Node
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory, inventory_name
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.kube.slices import show
from dra_driver.ownership import (
    AgentState,
    PoolID,
    agent_condition,
    agent_state,
    is_ready,
    pool_of_inventory,
    shown_agent_state,
)
from dra_driver.ports import Clock, KubeClient

__all__ = ["NodeAgents"]

_BACK: Final = "AgentBack"
# Between two writes of one inventory: a node may write the condition itself, as often as it likes.
_PACE_SECONDS: Final = 5.0


class NodeAgents:
    """Compares what the condition of each inventory shows with what is seen, and writes the difference.

    Only what has been so for a while is shown, by a clock that never goes back. So a restart of an agent or
    of this controller shows nothing, an agent that comes and goes costs two writes in that time, and what was
    shown before a restart of the controller stays.

    Attributes:
        queue: names of inventories.

    Args:
        client: of the leader.
        clock: for the times.
        recorder: for Events on Nodes.
        drivers: whose inventories are looked at.
        inventories: what nodes have written.
        nodes: whether they are ready.
        slices: which of them exist.
        slices_of: returns the slices of a pool.
        seconds: for which an agent must be away.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        recorder: EventRecorder,
        drivers: Collection[DriverName],
        *,
        inventories: Informer[DeviceInventory],
        nodes: Informer[Node],
        slices: Informer[ResourceSlice],
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
        seconds: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self._drivers = tuple(drivers)
        self._inventories = inventories
        self._nodes = nodes
        self._slices_of = slices_of
        self._seconds = seconds
        self.queue: WorkQueue[str] = WorkQueue("agents", max_delay=30.0)
        # What differs from what is shown, and since when.
        self._differs: dict[str, tuple[AgentState, float]] = {}
        self._shown: dict[str, AgentState] = {}
        self._written: dict[str, float] = {}
        self._count: Counter[AgentState] = Counter()
        inventories.add_handler(
            Handler(
                added=lambda i: self.queue.add(i.metadata.name),
                updated=self._inventory_updated,
                deleted=lambda i: self.queue.add(i.metadata.name),
            )
        )
        slices.add_handler(Handler(added=self._slice_changed, deleted=self._slice_changed))
        nodes.add_handler(
            Handler(added=self._node_changed, updated=self._node_updated, deleted=self._node_changed)
        )

    def count(self, state: AgentState) -> int:
        """Return how many agents are shown to be in a state."""
        return self._count[state]

    async def run(self) -> None:
        """Work until cancelled. The informers must be synced."""
        await self.queue.process(self.reconcile, workers=4)

    def _inventory_updated(self, old: DeviceInventory, new: DeviceInventory) -> None:
        # Not every change: nodes write which devices are busy, and what they find.
        if _facts(old) != _facts(new):
            self.queue.add(new.metadata.name)

    def _slice_changed(self, slice_: ResourceSlice) -> None:
        if slice_.spec.node_name and slice_.spec.driver in self._drivers:
            self.queue.add(inventory_name(slice_.spec.node_name, slice_.spec.driver))

    def _node_updated(self, old: Node, new: Node) -> None:
        if is_ready(old) != is_ready(new):
            self._node_changed(new)

    def _node_changed(self, node: Node) -> None:
        for driver in self._drivers:
            self.queue.add(inventory_name(node.metadata.name, driver))

    async def reconcile(self, name: str) -> None:
        """Show of one inventory whether its agent is there.

        Raises:
            DraError: of the API server; a conflict if the inventory has changed.
        """
        inventory = self._inventories.get_by_name(name)
        state = self._state(inventory)
        if inventory is None or state is None:
            self._differs.pop(name, None)
            self._written.pop(name, None)
            self._note(name, None)
            return
        shown = shown_agent_state(inventory)
        self._note(name, shown)
        if state is shown:
            self._differs.pop(name, None)
            return
        wait = self._wait(inventory, state)
        if wait > 0:
            self.queue.add_after(name, wait)
            return
        try:
            written = await show(self._client, inventory, agent_condition(state), self._clock)
        except NotFound:
            return  # its deletion is on its way
        self._differs.pop(name, None)
        self._written[name] = self._clock.monotonic()
        self._note(name, shown_agent_state(written))
        self._report(inventory, shown, state)

    def _state(self, inventory: DeviceInventory | None) -> AgentState | None:
        if inventory is None or inventory.spec.driver not in self._drivers:
            return None
        node = self._nodes.get_by_name(inventory.spec.node_name)
        present = {s.metadata.name for s in self._slices_of(pool_of_inventory(inventory))}
        return agent_state(inventory, node, present)

    def _wait(self, inventory: DeviceInventory, state: AgentState) -> float:
        """Return for how long a state that differs from what is shown has to last before it is shown."""
        name, now = inventory.metadata.name, self._clock.monotonic()
        before, since = self._differs.get(name, (None, now))
        if before is not state:
            since = now
        self._differs[name] = state, since
        status = inventory.status
        due = since + self._seconds
        if state is AgentState.REGISTERED and status.publication.epoch >= status.registration.epoch:
            due = now  # and not while its slices are being published: both write the inventory
        return max(due, self._written.get(name, float("-inf")) + _PACE_SECONDS) - now

    def _note(self, name: str, state: AgentState | None) -> None:
        before = self._shown.pop(name, None)
        if before is not None:
            self._count[before] -= 1
        if state is not None:
            self._shown[name] = state
            self._count[state] += 1

    def _report(self, inventory: DeviceInventory, before: AgentState | None, state: AgentState) -> None:
        """Report on the Node that its agent is gone, or is back; that it is not ready others report."""
        node = self._nodes.get_by_name(inventory.spec.node_name)
        away = (AgentState.GONE, AgentState.NOT_REGISTERED)
        if node is None or state is AgentState.NODE_NOT_READY or (before not in away and state not in away):
            return
        type_: Literal["Normal", "Warning"] = "Warning" if state in away else "Normal"
        reason = state.value if state in away else _BACK
        text = f"{inventory.spec.driver}: {agent_condition(state).message}"
        self._recorder.event(NODES, node, type_, reason, text, about=inventory.spec.driver)


def _facts(inventory: DeviceInventory) -> tuple[object, ...]:
    meta, status = inventory.metadata, inventory.status
    shown = shown_agent_state(inventory)
    return (
        meta.owner_references,
        status.registration,
        status.publication.epoch,
        status.publication.slices,
        shown,
    )
