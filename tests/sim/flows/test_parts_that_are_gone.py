"""Killed parts of a cluster, seen by ``status``: nothing of them reports that they are gone."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re

import pytest
from cluster_support import TEMPLATE, apply, config, gpu_pod, inventory, phase, run

from dra_driver.api.core import EVENTS
from dra_driver.cli.main import main
from dra_driver.cli.overview.problems import problem_blocks
from dra_driver.cli.status import look
from dra_driver.fleet import Problem
from dra_driver.sim.cluster import EmbeddedCluster

pytestmark = [pytest.mark.sim, pytest.mark.slow]


async def problems(cluster: EmbeddedCluster, kind: str) -> list[Problem]:
    """Wait until there are problems of a kind; return all there are."""

    async def there() -> list[Problem]:
        found = list((await look(cluster.api, ())).problems)
        return found if any(p.kind == kind for p in found) else []

    return await cluster.wait_for(f"the problem {kind}", there)


async def no_problems(cluster: EmbeddedCluster) -> None:
    async def none() -> bool:
        return not (await look(cluster.api, ())).problems

    await cluster.wait_for("no problems", none)


async def called(cluster: EmbeddedCluster, *command: str) -> tuple[int, str]:
    """Return exit status and output of a command."""

    def call() -> tuple[int, str]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            return main([*command, "--kubeconfig", str(cluster.kubeconfig)]), out.getvalue()

    return await asyncio.to_thread(call)


async def registered(cluster: EmbeddedCluster, node: str) -> str:
    found = (await inventory(cluster, cluster.nodes[node])).status.conditions
    return next((c.reason for c in found if c.type == "Registered"), "")


@pytest.mark.long
def test_a_killed_agent_is_a_problem_until_it_is_back() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await apply(cluster, TEMPLATE, *(gpu_pod(f"p{i}") for i in range(2)))
        placed = {(await phase(cluster, f"p{i}", "Running")).spec.node_name for i in range(2)}
        await no_problems(cluster)
        node = placed.pop()
        assert await registered(cluster, node) == "Registered"
        await cluster.kill(cluster.nodes[node].plugin)
        (found,) = await problems(cluster, "AgentGone")
        assert found.subject == f"node/{node}"
        assert "its agent is gone: 4 devices withdrawn" in found.message
        assert "still there" in found.message
        assert found.claims
        assert found.since
        text = "\n".join(str(getattr(b, "text", "")) for b in problem_blocks([found], 4e9))
        assert text.startswith(f"1 problem\n{node}: its agent is gone")
        assert await registered(cluster, node) == "AgentGone"
        events = [e for e in (await cluster.api.list(EVENTS)).items if e.reason == "AgentGone"]
        assert [e.involved_object.name for e in events] == [node]
        await cluster.start_process(cluster.nodes[node].plugin)
        await no_problems(cluster)

        async def shown() -> bool:
            return await registered(cluster, node) == "Registered"

        await cluster.wait_for("the condition to say so", shown)

    run(scenario, config("l4x4", "l4x4"))


@pytest.mark.long
def test_a_killed_controller_is_a_problem_and_so_is_an_agent_that_ends_meanwhile() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await cluster.kill(cluster.controller)
        await apply(cluster, TEMPLATE, gpu_pod("p"))
        (found,) = await problems(cluster, "ControllerSilent")
        assert found.message.startswith("does not answer: it does not renew its Lease dra-driver/")
        overview = await look(cluster.api, ())
        (reason,) = (w.reason for w in overview.waiting if w.pods == ("p",))
        assert reason.startswith("the controller has not answered for ")
        for command in (["explain", "pod/p", "-n", "default"], ["plan", "--pod", "default/p"]):
            code, out = await called(cluster, *command)
            assert code == 1
            assert re.search(r"would fit.*, but the controller has not answered for \d+ s:", out), out
        code, out = await called(cluster, "status", "--check")
        assert code == 1
        assert out.startswith("1 problem\ncontroller: does not answer: it does not renew its Lease")
        await cluster.kill(cluster.nodes["node1"].plugin)
        found, of_agent = await problems(cluster, "AgentGone")
        assert (found.kind, of_agent.subject) == ("ControllerSilent", "node/node1")
        await cluster.start_process(cluster.nodes["node1"].plugin)
        await cluster.start_process(cluster.controller)
        await phase(cluster, "p", "Running")
        await no_problems(cluster)
        code, out = await called(cluster, "explain", "pod/p", "-n", "default")
        assert code == 0
        assert "is allocated on node node1" in out

    run(scenario)


def test_a_controller_that_was_stopped_says_so() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await cluster.controller.stop()
        (found,) = await problems(cluster, "ControllerEnded")
        assert found.message.startswith("does not run: the last one has released the Lease")

    run(scenario)


@pytest.mark.long
def test_a_node_that_is_not_ready_is_a_problem() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await cluster.stop_kubelet("node1")
        (found,) = await problems(cluster, "NodeNotReady")
        assert found.subject == "node/node1"
        assert found.message == "is not ready: 4 devices, 0 claims still there"
        assert found.since
        await cluster.restart_kubelet("node1")
        await no_problems(cluster)

    run(scenario)


@pytest.mark.parametrize("by_node", [True, False])
@pytest.mark.long
def test_where_kube_scheduler_allocates_a_killed_agent_is_seen_as_well(by_node: bool) -> None:
    flags = ("--publish=node",) if by_node else ()

    async def scenario(cluster: EmbeddedCluster) -> None:
        await no_problems(cluster)
        await cluster.kill(cluster.nodes["node1"].plugin)
        # Without a controller nobody has to be waited for.
        (found,) = await problems(cluster, "AgentGone")
        assert found.subject == "node/node1"
        await cluster.start_process(cluster.nodes["node1"].plugin)
        await no_problems(cluster)

    run(scenario, config(run_controller=not by_node, plugin_flags=flags, allocator="scheduler"))
