"""What is wrong with a fleet, as objects say it."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import DRIVER
from builders import NAMESPACE as NS

from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.fleet import (
    ControllerSeen,
    Fleet,
    Problem,
    controller_problem,
    controller_sentence,
    duration,
    remedy,
    seconds_since,
    wait_problem,
)
from dra_driver.ownership import AgentState, PoolID, agent_condition, pool_of_inventory

THEN = "2026-11-29T00:00:00Z"
NOW = 1_795_910_440.0  # 40 s later


def node(ready: str = "True", name: str = "n1") -> Node:
    body = builders.node(name, uid=f"uid-{name}")
    body["status"] = {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": THEN}]}
    return codec.convert(Node, body)


def inventory(
    *devices: dict[str, Any], shown: AgentState | None = AgentState.REGISTERED, **more: Any
) -> DeviceInventory:
    body = builders.inventory("n1", *(devices or [device()]), epoch=3, **more)
    body["status"]["publication"] = {"epoch": 3, "slices": ["n1"]}
    if shown is not None:
        body["status"]["conditions"] = [codec.plain(agent_condition(shown)) | {"lastTransitionTime": THEN}]
    return codec.convert(DeviceInventory, body)


def device(name: str = "gpu-0", *health: dict[str, Any], **more: Any) -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": f"uuid-{name}"}}
    return builders.device(name, "40Gi", **more) | {"attributes": attributes, "health": list(health)}


def condition(reason: str, severity: str = "degraded", message: str = "") -> dict[str, Any]:
    return {"reason": reason, "severity": severity, "message": message, "since": THEN}


def slice_(*devices: dict[str, Any]) -> ResourceSlice:
    published = [{k: v for k, v in d.items() if k != "health"} for d in devices or [device()]]
    body = builders.resource_slice("n1", *published)
    body["metadata"]["name"] = "n1"
    return codec.convert(ResourceSlice, body)


def claim(name: str, *devices: str) -> ResourceClaim:
    body = builders.claim(name, builders.request("gpu"))
    if devices:
        results = [builders.result("n1", d) for d in devices]
        body["status"] = builders.allocation(*results)
    return codec.convert(ResourceClaim, body)


def fleet_of(
    found: DeviceInventory, on: Node | None, *claims: ResourceClaim, published: ResourceSlice | None = None
) -> Fleet:
    fleet = Fleet({DRIVER})
    fleet.put_inventory(found)
    if on is not None:
        fleet.put_node(on)
    if published is not None:
        fleet.put_slice(published)
    for one in claims:
        fleet.put_claim(one)
    return fleet


def problems(fleet: Fleet, *, answers: bool = True) -> list[Problem]:
    return [p for pool in fleet.pools() for p in fleet.pool_problems(pool, answers=answers)]


# --- agents and nodes ---------------------------------------------------------------------------------------


def test_a_fleet_without_problems_has_none() -> None:
    assert problems(fleet_of(inventory(), node(), claim("a", "gpu-0"), published=slice_())) == []


def test_an_agent_that_is_gone() -> None:
    found = inventory(device("gpu-0"), device("gpu-1"), shown=AgentState.GONE)
    fleet = fleet_of(found, node(), claim("a", "gpu-0"), claim("b", "gpu-1"))
    assert problems(fleet) == [
        Problem(
            kind="AgentGone",
            subject="node/n1",
            message="its agent is gone: 2 devices withdrawn, 2 claims still there",
            action="see the agent's pod on node n1 and its log",
            since=THEN,
            claims=(f"{NS}/a", f"{NS}/b"),
        )
    ]


@pytest.mark.parametrize(
    ("shown", "answers", "kinds"),
    [
        # Slices that are gone for a moment are no problem while the controller watches how long they are.
        (AgentState.REGISTERED, True, []),
        (AgentState.REGISTERED, False, ["AgentGone"]),
        (AgentState.NODE_NOT_READY, True, ["AgentGone"]),
        # A controller of an earlier version does not watch.
        (None, True, ["AgentGone"]),
        (AgentState.GONE, True, ["AgentGone"]),
        (AgentState.GONE, False, ["AgentGone"]),
    ],
)
def test_what_the_controller_shows_counts_while_it_answers(
    shown: AgentState | None, answers: bool, kinds: list[str]
) -> None:
    fleet = fleet_of(inventory(shown=shown), node())
    assert [p.kind for p in problems(fleet, answers=answers)] == kinds


def test_an_agent_that_is_back_is_no_problem_any_more() -> None:
    fleet = fleet_of(inventory(shown=AgentState.GONE), node())
    assert [p.kind for p in problems(fleet)] == ["AgentGone"]
    fleet.put_slice(slice_())
    assert problems(fleet) == []


def test_an_agent_that_has_said_that_it_ends() -> None:
    found = inventory(shown=AgentState.NOT_REGISTERED, registered=False)
    (problem,) = problems(fleet_of(found, node(), published=slice_()))
    assert (problem.kind, problem.subject) == ("NotRegistered", "node/n1")
    assert problem.message.endswith("kubelet does not know it: 1 device, 0 claims still there")


def test_a_node_that_is_not_ready_and_again_is() -> None:
    fleet = fleet_of(inventory(), node("Unknown"), claim("a", "gpu-0"), published=slice_())
    (problem,) = problems(fleet)
    assert problem == Problem(
        kind="NodeNotReady",
        subject="node/n1",
        message="is not ready: 1 device, 1 claim still there",
        action="kubectl describe node n1",
        since=THEN,
        claims=(f"{NS}/a",),
    )
    fleet.put_node(node())
    assert problems(fleet) == []


def test_of_a_node_that_is_gone_nothing_is_said() -> None:
    fleet = fleet_of(inventory(shown=AgentState.GONE), node())
    fleet.remove_node(node())
    assert problems(fleet) == []


def test_an_inventory_says_nothing_of_another_node() -> None:
    sick = device("gpu-0", condition("GpuLost", "failed"))
    fleet = fleet_of(inventory(sick, shown=AgentState.GONE, node_uid="uid-n2"), node())
    assert problems(fleet) == []


# --- devices ------------------------------------------------------------------------------------------------


def test_a_sick_device_its_holder_and_what_to_do() -> None:
    sick = device("gpu-0", condition("RowRemapPending", message="rows are replaced at the next reset"))
    found = inventory(sick, device("gpu-1"))
    fleet = fleet_of(found, node(), claim("a", "gpu-0"), claim("b", "gpu-1"), published=slice_(sick))
    assert problems(fleet) == [
        Problem(
            kind="DeviceUnhealthy",
            subject="device/n1/gpu-0",
            message="RowRemapPending: rows are replaced at the next reset",
            action="end the pods that use it, then reset the GPU",
            since=THEN,
            claims=(f"{NS}/a",),
        )
    ]
    fleet.remove_claim(claim("a", "gpu-0"))
    assert [(p.action, p.claims) for p in problems(fleet)] == [("reset the GPU", ())]


def test_the_worst_condition_counts_and_what_is_harmless_or_set_up_so_does_not() -> None:
    both = device("gpu-0", condition("RowRemapPending"), condition("GpuLost", "failed"))
    harmless = device("gpu-1", condition("Xid13", "info"))
    cut = device("gpu-2", condition("MigEnabled"))
    fleet = fleet_of(inventory(both, harmless, cut), node(), published=slice_(both, harmless, cut))
    assert [(p.subject, p.message) for p in problems(fleet)] == [("device/n1/gpu-0", "GpuLost")]


def test_the_holders_of_a_part_hold_the_device() -> None:
    sick = device("gpu-0", condition("RowRemapPending"))
    part = {"name": "gpu-0-mig-1", "attributes": {"parentUUID": {"string": "uuid-gpu-0"}}}
    tainted = part | {"taints": [{"key": "dra-driver.dev/health", "value": "X", "effect": "NoSchedule"}]}
    fleet = fleet_of(inventory(sick), node(), claim("a", "gpu-0-mig-1"), published=slice_(sick, tainted))
    assert [(p.subject, p.claims) for p in problems(fleet)] == [("device/n1/gpu-0", (f"{NS}/a",))]


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("RowRemapPending", "reset the GPU"),
        ("RowRemapFailed", "replace the GPU"),
        ("Xid79", "reset the GPU, or restart the node if that does not help"),
        ("AcmeOnFire", "see the condition, and the node's kernel log"),
    ],
)
def test_what_to_do_follows_from_the_reason(reason: str, action: str) -> None:
    assert remedy(reason) == action


# --- the controller and pods --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "kind", "sentence"),
    [
        (ControllerSeen("dra/c", True, "c-0_1", THEN, answers=True), None, ""),
        (
            ControllerSeen("dra/c", True, "c-0_1", THEN),
            "ControllerSilent",
            "the controller has not answered for 40 s",
        ),
        (
            ControllerSeen("dra/c", True, "", THEN),
            "ControllerEnded",
            "the controller has not answered for 40 s",
        ),
        (ControllerSeen("dra/c"), "ControllerMissing", "the controller has never run"),
        # Our clock is behind that of the cluster.
        (
            ControllerSeen("dra/c", True, "c-0_1", "2027-01-01T00:00:00Z"),
            "ControllerSilent",
            "no controller answers",
        ),
    ],
)
def test_the_controller(seen: ControllerSeen, kind: str | None, sentence: str) -> None:
    found = controller_problem(seen)
    assert (found.kind if found is not None else None) == kind
    assert found is None or "kubectl -n dra get pods" in found.action
    assert controller_sentence(seen, NOW) == sentence


def test_a_pod_that_waits_for_long_unless_another_controller_holds_it() -> None:
    fleet = Fleet({DRIVER})
    for name, created, gates in (
        ("old", "2026-11-28T23:00:00Z", ()),
        ("new", "2026-11-29T00:00:30Z", ()),
        ("held", "2026-11-28T23:00:00Z", ("kueue.x-k8s.io/admission",)),
    ):
        fleet.put_claim(claim(name))
        body = builders.pod(name, name, gated=True, gates=gates)
        body["metadata"]["creationTimestamp"] = created
        fleet.put_pod(codec.convert(Pod, body))
    fleet.put_claim(claim("unused"))
    (found,), total = fleet.long_waits(lambda *_: "no device is free", THEN)
    assert total == 1
    assert fleet.long_waits(lambda *_: "", THEN, 0) == ([], 1)
    assert wait_problem(found) == Problem(
        kind="LongWait",
        subject=f"pod/{NS}/old",
        message="waits for devices: no device is free",
        action=f"dra-driver explain -n {NS} pod/old",
        since="2026-11-28T23:00:00Z",
        claims=(f"{NS}/old",),
    )


# --- time and size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (119, "119 s"), (120, "2 min"), (3599, "59 min"), (3600, "1 h"), (200_000, "2 d")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_moment_that_lies_ahead_or_is_none_is_no_time_ago() -> None:
    assert seconds_since(THEN, NOW) == 40.0
    assert seconds_since("2027-01-01T00:00:00Z", NOW) is None
    assert seconds_since("", NOW) is None


def test_only_what_changed_is_looked_at_again() -> None:
    fleet = fleet_of(inventory(), node(), published=slice_())
    key: PoolID = pool_of_inventory(inventory())
    first = fleet.pool_problems(key)
    assert fleet.pool_problems(key) is first
    fleet.put_node(node())
    assert fleet.pool_problems(key) is first
    fleet.put_node(node("False"))
    assert fleet.pool_problems(key) is not first
