"""What a plan says, carried out on the embedded cluster: the claim is then allocated."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import cluster_support as support
import pytest
import yaml

from dra_driver.api.core import PODS
from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.cluster_config import NodeConfig

pytestmark = [pytest.mark.sim, pytest.mark.slow]


async def plan(cluster: EmbeddedCluster, *arguments: str) -> tuple[int | None, dict[str, Any]]:
    """Return the exit status of the command, and its answer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dra_driver.cli.main",
        "plan",
        "--kubeconfig",
        str(cluster.kubeconfig),
        *arguments,
        "-o",
        "json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert out, err.decode()
    return process.returncode, json.loads(out)["plans"][0]


async def running(cluster: EmbeddedCluster, name: str, count: int) -> None:
    """Have a pod with so many GPUs."""
    await support.apply(cluster, support.claim(name, count), support.gpu_pod(name, claim=name))
    await support.phase(cluster, name, "Running")


async def waiting(cluster: EmbeddedCluster, name: str, count: int) -> dict[str, Any]:
    """Ask for more GPUs than there are, and return what the plan says about it."""
    await support.apply(cluster, support.claim(name, count), support.gpu_pod(name, claim=name))
    status, answer = await plan(cluster, "--pod", name)
    assert (status, answer["fits"]) == (1, False), answer
    return answer


def nodes_of(answers: list[dict[str, Any]]) -> set[str]:
    return {a["node"] for a in answers}


def test_a_draft_that_fits_is_allocated(tmp_path: Path) -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await running(cluster, "busy", 3)
        draft = tmp_path / "draft.yaml"
        draft.write_text(yaml.safe_dump_all([support.claim("new", 4), support.gpu_pod("new", claim="new")]))
        status, answer = await plan(cluster, "-f", str(draft), "--how-many")
        assert (status, answer["fits"], answer["fitting"]["number"]) == (0, True, 1)
        await running(cluster, "new", 4)
        pod = await support.pod(cluster, "new")
        assert pod is not None
        assert pod.spec.node_name == answer["placement"][0]["node"]

    support.run(scenario, support.config("l4x4", "l4x4"))


@pytest.mark.long
def test_freeing_the_named_holders_is_enough() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        for name, count in (("a", 3), ("b", 2), ("c", 1), ("d", 1)):
            await running(cluster, name, count)
        answer = await waiting(cluster, "wants", 4)
        free = answer["free"]
        assert free["proven"]
        for holder in free["holders"]:
            for name in holder["pods"]:
                await support.delete(cluster, name.partition("/")[2])
        pod = await support.phase(cluster, "wants", "Running")
        assert {pod.spec.node_name} == nodes_of(free["placement"])
        # All others are still there.
        left = {p.metadata.name for p in (await cluster.api.list(PODS, "default")).items}
        assert len(left) == 5 - free["number"]

    support.run(scenario, support.config("l4x4", "l4x4"))


@pytest.mark.long
def test_moving_the_named_holders_is_enough() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        # One GPU is left beside the three, so that the two go elsewhere, and the one beside the three.
        for name, number in (("three", 3), ("two", 2), ("one", 1)):
            await running(cluster, name, number)
        await support.delete(cluster, "three")
        await support.gone(cluster, "three")
        answer = await waiting(cluster, "wants", 4)
        (holder,) = answer["move"]["holders"]
        (name,) = (n.partition("/")[2] for n in holder["pods"])
        count = holder["devices"]
        await support.delete(cluster, name)
        pod = await support.phase(cluster, "wants", "Running")
        assert {pod.spec.node_name} == nodes_of(answer["move"]["placement"])
        # The holder asks again, and fits where the plan said.
        await running(cluster, f"{name}-again", count)
        again = await support.pod(cluster, f"{name}-again")
        assert again is not None
        assert {again.spec.node_name} == nodes_of(holder["to"])

    support.run(scenario, support.config("l4x4", "l4x4"))


@pytest.mark.long
def test_adding_the_nodes_is_enough() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await running(cluster, "a", 2)
        answer = await waiting(cluster, "wants", 4)
        (more,) = answer["addNodes"]
        assert (more["number"], more["proven"]) == (1, True)
        await cluster.add_node("more", NodeConfig("l4x4"))
        pod = await support.phase(cluster, "wants", "Running")
        assert pod.spec.node_name == "more"

    support.run(scenario, support.config("l4x4"))


@pytest.mark.long
def test_what_is_relaxed_fits() -> None:
    async def scenario(cluster: EmbeddedCluster) -> None:
        await running(cluster, "a", 1)
        answer = await waiting(cluster, "wants", 4)
        fewer = next(r for r in answer["relax"] if r["part"].startswith("4 devices"))
        assert (fewer["change"], fewer["fits"]) == ("3 instead", True)
        await support.delete(cluster, "wants")
        await support.gone(cluster, "wants")
        await running(cluster, "less", 3)

    support.run(scenario, support.config("l4x4"))
