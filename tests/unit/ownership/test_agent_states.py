"""Whether the agent of a node is there, as objects say it."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.ownership import AgentState, agent_condition, agent_state, is_ready, shown_agent_state


def node(ready: str | None = "True") -> Node:
    body = builders.node("n1", uid="uid-n1")
    if ready is not None:
        body["status"] = {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready"}]}
        body["status"]["conditions"][1]["status"] = ready
    return codec.convert(Node, body)


def inventory(*, registered: bool = True, epoch: int = 3, published: int = 3, **more: Any) -> DeviceInventory:
    body = builders.inventory("n1", driver=DRIVER, registered=registered, epoch=epoch, **more)
    body["status"]["publication"] = {"epoch": published, "slices": ["s0", "s1"]}
    return codec.convert(DeviceInventory, body)


S = AgentState


@pytest.mark.parametrize(
    ("ready", "registered", "published", "present", "state"),
    [
        ("True", True, 3, {"s0", "s1"}, S.REGISTERED),
        (None, True, 3, {"s0", "s1"}, S.REGISTERED),
        ("True", True, 3, {"s0"}, S.GONE),
        ("True", True, 3, set(), S.GONE),
        # It has asked for slices, and it is the controller's turn.
        ("True", True, 2, set(), S.REGISTERED),
        ("True", False, 3, {"s0", "s1"}, S.NOT_REGISTERED),
        ("True", False, 3, set(), S.NOT_REGISTERED),
        ("Unknown", True, 3, {"s0", "s1"}, S.NODE_NOT_READY),
        ("False", False, 3, set(), S.NODE_NOT_READY),
    ],
)
def test_the_state_of_an_agent(
    ready: str | None, registered: bool, published: int, present: set[str], state: AgentState
) -> None:
    assert agent_state(inventory(registered=registered, published=published), node(ready), present) is state


def test_nothing_is_said_of_a_node_that_is_gone_or_of_an_inventory_that_is_not_its_own() -> None:
    assert agent_state(inventory(), None, ()) is None
    assert agent_state(inventory(node_uid="uid-of-another"), node(), ()) is None


def test_a_node_that_says_nothing_is_taken_for_ready() -> None:
    assert [is_ready(node(status)) for status in (None, "True", "False", "Unknown")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("state", AgentState)
def test_the_condition_says_which_state_it_is(state: AgentState) -> None:
    condition = agent_condition(state)
    assert condition.status == {"REGISTERED": "True", "NODE_NOT_READY": "Unknown"}.get(state.name, "False")
    body = builders.inventory("n1", driver=DRIVER)
    body["status"]["conditions"] = [codec.plain(condition) | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    assert shown_agent_state(codec.convert(DeviceInventory, body)) is state


def test_a_reason_of_a_later_version_is_no_state() -> None:
    body = builders.inventory("n1", driver=DRIVER)
    later = {"type": "Registered", "status": "False", "reason": "SomethingNew", "message": ""}
    body["status"]["conditions"] = [later | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]
    assert shown_agent_state(codec.convert(DeviceInventory, body)) is None
