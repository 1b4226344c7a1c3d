"""The problems with which ``status`` begins, as text and as data."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import builders
import pytest
from builders import DRIVER
from fake_client import FakeClient

from dra_driver.api import codec
from dra_driver.api.core import NODES
from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.cli import status
from dra_driver.cli.live.reading import Lister
from dra_driver.cli.main import main
from dra_driver.cli.overview.problems import problem_blocks
from dra_driver.cli.overview.report import overview_text
from dra_driver.errors import Forbidden
from dra_driver.fleet import Problem
from dra_driver.kube import LEASES, SystemClock
from dra_driver.kube.clock import micro_time, seconds_of
from dra_driver.ownership import AgentState, agent_condition

THEN = "2026-11-29T00:00:00Z"
NOW = seconds_of("2026-11-29T00:00:40Z")


def text_of(*problems: Problem) -> list[str]:
    return [getattr(block, "text", "") for block in problem_blocks(problems, NOW)]


def device(name: str, reason: str = "RowRemapPending", *claims: str, node: str = "n1") -> Problem:
    return Problem("DeviceUnhealthy", f"device/{node}/{name}", reason, "reset the GPU", THEN, claims)


# --- text ---------------------------------------------------------------------------------------------------


def test_a_problem_says_where_it_is_how_long_it_lasts_and_what_to_do() -> None:
    assert text_of(device("gpu-0", "RowRemapPending", "ml/a")) == [
        "1 problem",
        "n1/gpu-0: RowRemapPending; held by ml/a (for 40 s)",
        "  reset the GPU",
    ]
    assert text_of(Problem("ControllerMissing", "controller", "has never run", "")) == [
        "1 problem",
        "controller: has never run",
    ]
    wait = Problem("LongWait", "pod/ml/p", "waits for devices: none", "explain", THEN, ("ml/c",))
    assert text_of(wait)[1] == "pod ml/p: waits for devices: none (for 40 s)"


def test_what_is_wrong_with_several_devices_of_a_node_is_said_once() -> None:
    found = [device(f"gpu-{i}", "Xid79", f"ml/c{i}") for i in range(5)]
    assert text_of(*found, device("gpu-0", "Xid79", node="n2")) == [
        "6 problems",
        "n1/gpu-0, n1/gpu-1, n1/gpu-2 and 2 more: Xid79; held by ml/c0, ml/c1, ml/c2 and 2 more (for 40 s)",
        "  reset the GPU",
        "n2/gpu-0: Xid79 (for 40 s)",
        "  reset the GPU",
    ]


def test_of_very_many_problems_the_first_are_shown() -> None:
    lines = text_of(*(device("gpu-0", node=f"n{i}") for i in range(5000)))
    assert len(lines) == 1 + 2 * 20 + 1
    assert lines[-1] == "4980 more; -o json has all of them"


# --- looking ------------------------------------------------------------------------------------------------


def cluster(**lease: Any) -> FakeClient:
    """A node whose agent is gone, with a claim; the controller works if there is a Lease."""
    fake = FakeClient()
    fake.put(NODES, builders.node("n1", uid="uid-n1"))
    found = builders.inventory("n1", builders.device("gpu-0", "40Gi"))
    found["status"]["publication"] = {"epoch": 1, "slices": ["n1"]}
    fake.put(DEVICE_INVENTORIES, found)
    held = builders.claim("a", status=builders.allocation(builders.result("n1", "gpu-0")))
    fake.put(RESOURCE_CLAIMS, held)
    if lease:
        metadata = {"name": CONTROLLER_LEASE, "namespace": "dra-driver"}
        kind = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        fake.put(LEASES, {**kind, "metadata": metadata, "spec": {"leaseDurationSeconds": 15, **lease}})
    return fake


def kinds(fake: FakeClient, **more: Any) -> list[str]:
    return [p.kind for p in asyncio.run(status.look(fake, [DRIVER], **more)).problems]


def test_they_come_first_in_the_report_and_in_the_data() -> None:
    overview = asyncio.run(status.look(cluster(), [DRIVER]))
    assert [p.kind for p in overview.problems] == ["ControllerMissing", "AgentGone"]
    assert overview_text(overview, "table").startswith(
        "2 problems\ncontroller: has never run in namespace dra-driver"
    )
    data = json.loads(overview_text(overview, "json"))
    assert next(iter(data)) == "problems"
    assert data["problems"][1] == {
        "kind": "AgentGone",
        "subject": "node/n1",
        "message": "its agent is gone: 1 device withdrawn, 1 claim still there",
        "action": "see the agent's pod on node n1 and its log",
        "since": "",
        "claims": ["default/a"],
    }


def test_that_an_agent_is_gone_is_said_once() -> None:
    fake = cluster()
    shown = codec.plain(agent_condition(AgentState.GONE)) | {"lastTransitionTime": THEN}
    fake.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"status": {"conditions": [shown]}})
    overview = asyncio.run(status.look(fake, [DRIVER]))
    assert overview.notes == ()
    assert [p.since for p in overview.problems if p.kind == "AgentGone"] == [THEN]


def test_a_controller_that_works_is_none() -> None:
    now = micro_time(SystemClock().now())
    assert kinds(cluster(holderIdentity="c_1", renewTime=now)) == ["AgentGone"]


def test_one_that_has_ended_in_order_is() -> None:
    assert kinds(cluster(holderIdentity="", renewTime="2026-01-01T00:00:00.000000Z")) == [
        "ControllerEnded",
        "AgentGone",
    ]


def test_where_nodes_publish_there_need_not_be_a_controller() -> None:
    fake = cluster()
    fake.edit(DEVICE_INVENTORIES, f"n1.{DRIVER}", {"spec": {"publisher": "node"}})
    assert kinds(fake) == ["AgentGone"]


def test_only_the_nodes_that_are_asked_for_have_problems() -> None:
    assert kinds(cluster(), nodes=["n2"]) == ["ControllerMissing"]


def test_a_right_that_is_missing_is_said_and_no_problem() -> None:
    fake = cluster()

    def forbid(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "Lease":
            raise Forbidden("no", code=403)

    fake.before = forbid

    async def look() -> tuple[list[str], list[str]]:
        lister = Lister(fake)
        overview = await status.overview_of(lister, fake, nodes=())
        return [p.kind for p in overview.problems], lister.notes

    found, notes = asyncio.run(look())
    assert found == ["AgentGone"]
    assert [n for n in notes if "whether the controller works is unknown" in n]


def test_check_and_watch_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--check", "--watch"]) == 2
    assert "--check looks once, --watch again and again; give one of them" in capsys.readouterr().err
