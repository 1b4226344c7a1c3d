"""Whether the agent of a node is there, by what the node's kubelet does: the condition ``Registered``.

Agents send no heartbeats. The kubelet notices within a moment that an agent has ended, and deletes the slices
of the node 30 seconds later; an agent that lives asks for them again within seconds. So slices that are
recorded and stay away say that there is no agent, however it has ended.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.own.inventory import DeviceInventory, Publication, Registration
from dra_driver.api.resource import Condition
from dra_driver.ownership.records import missing_slices, refusal_of

__all__ = [
    "AGENT_CONDITION",
    "AgentState",
    "agent_condition",
    "agent_state",
    "is_ready",
    "lacks_slices",
    "shown_agent_state",
]

AGENT_CONDITION: Final = "Registered"


class AgentState(enum.Enum):
    """Whether an agent is there; the value is the reason of the condition ``Registered``."""

    REGISTERED = "Registered"
    GONE = "AgentGone"
    """It has ended without a word, and the kubelet has withdrawn its devices."""
    NOT_REGISTERED = "NotRegistered"
    """It has said so, before it ended, or because the kubelet does not ask for it."""
    NODE_NOT_READY = "NodeNotReady"
    """The kubelet does not answer, so nothing is known of the agent."""


_STATUS: Final = {AgentState.REGISTERED: "True", AgentState.NODE_NOT_READY: "Unknown"}
_EFFECT: Final = "Running pods keep their devices; no pod with such devices can start or end there"
_MESSAGES: Final = {
    AgentState.REGISTERED: "the node agent is registered with the kubelet",
    AgentState.GONE: (
        "the node agent is gone: the kubelet has deleted the ResourceSlices of its devices, and nothing asks "
        f"for them again. {_EFFECT}"
    ),
    AgentState.NOT_REGISTERED: f"the node agent has ended, or the kubelet does not know it. {_EFFECT}",
    AgentState.NODE_NOT_READY: "the node is not ready, so it is not known whether its agent is there",
}


def is_ready(node: Node) -> bool:
    """Whether a node is ready; one that says nothing about it is."""
    return (
        next((c.get("status") for c in node.status.conditions if c.get("type") == "Ready"), "True") == "True"
    )


def lacks_slices(registration: Registration, publication: Publication, present: Collection[str]) -> bool:
    """Whether slices that were published for the present epoch are gone although the plugin is registered."""
    return (
        registration.registered
        and publication.epoch == registration.epoch
        and bool(missing_slices(publication, present))
    )


def agent_state(inventory: DeviceInventory, node: Node | None, present: Collection[str]) -> AgentState | None:
    """Return whether the agent of an inventory is there, as it looks at this moment.

    Args:
        inventory: written by a node, and not trusted.
        node: that the inventory names.
        present: names of the slices of its pool that exist.

    Returns:
        The state; None where nothing can be said: the node is gone, or the inventory is not that node's.
    """
    if node is None or refusal_of(inventory, node):
        return None
    status = inventory.status
    if not is_ready(node):
        return AgentState.NODE_NOT_READY
    if not status.registration.registered:
        return AgentState.NOT_REGISTERED
    if lacks_slices(status.registration, status.publication, present):
        return AgentState.GONE
    return AgentState.REGISTERED


def agent_condition(state: AgentState) -> Condition:
    """Return the condition that shows a state."""
    return Condition(
        type=AGENT_CONDITION,
        status=_STATUS.get(state, "False"),
        reason=state.value,
        message=_MESSAGES[state],
        last_transition_time="",
    )


def shown_agent_state(inventory: DeviceInventory) -> AgentState | None:
    """Return the state that the condition of an inventory shows; None where there is none that is known."""
    reason = next((c.reason for c in inventory.status.conditions if c.type == AGENT_CONDITION), "")
    return next((state for state in AgentState if state.value == reason), None)
