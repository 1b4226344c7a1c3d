"""Open pools beside kube-scheduler: the stand-in, and the real one of each Kubernetes (``DRA_K8S_BIN``).

The controller has the rights and the policies of the chart. With the default feature gates of 1.34 and 1.35
the API server keeps no device taints, so an open pool is the only one that can be the controller's there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import builders
import pytest
from granting_beside import NAMESPACE, OURS, Beside, gpu, granting_beside
from manifest_files import documents

from controller.allocate.decide import is_about_own_decision, report_of
from dra_driver.api.names import GRANTS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.admission import VALIDATING_POLICIES
from dra_driver.kube.features import probe_features
from dra_driver.sim.assets import deploy_directory

pytestmark = pytest.mark.slow

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]

Scenario = Callable[[Beside], Awaitable[None]]


def run(kind: str, scenario: Scenario) -> None:
    async def main() -> None:
        # kube-scheduler backs off for up to 10 s from a pod whose writes were refused.
        async with asyncio.timeout(280), granting_beside(kind, 20.0, extended=False) as beside:
            await scenario(beside)

    asyncio.run(main())


def records(beside: Beside) -> set[str]:
    return {i.status.publication.allocator for i in beside.seen.inventories.items()}


def reasons(beside: Beside) -> set[str]:
    found = (c for i in beside.seen.inventories.items() for c in i.status.conditions)
    return {c.reason for c in found if c.type == "Published"}


async def opened(beside: Beside, *nodes: str) -> None:
    """Wait until the pools of these nodes are noted as open, and published without our taint."""
    await beside.seen.until(
        lambda: records(beside) == {"open"} and {node for node, _ in beside.seen.bare} >= set(nodes)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_controller_allocates_and_kube_scheduler_is_refused(kind: str) -> None:
    async def scenario(beside: Beside) -> None:
        await beside.node("n0", gpu(0), gpu(1))
        async with beside.controller():
            await opened(beside, "n0")
            began = time.monotonic()
            await beside.own("own")
            await beside.bound("own")
            print(f"{kind}: bound after {time.monotonic() - began:.2f} s")
        # There is no controller: a pod without the gate meets kube-scheduler, which sees a free device.
        await beside.world.api.create(
            RESOURCE_CLAIMS, builders.claim("c", builders.request("gpu", "whole"), namespace=NAMESPACE)
        )
        await beside.pod("stray", "c", gated=False)
        while (report := report_of(await beside.world.get("stray"))) is None:
            await asyncio.sleep(0.1)
        assert is_about_own_decision(report)
        assert GRANTS in report.message
        assert "kubectl dra explain" in report.message
        await asyncio.sleep(2)
        assert not beside.seen.has("c")
        async with beside.controller():
            await beside.bound("stray")
        assert len(beside.seen.has("c") | beside.seen.has("own")) == 2

    run(kind, scenario)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_policy_goes_the_controller_stops_until_it_is_safe_again(kind: str) -> None:
    async def scenario(beside: Beside) -> None:
        api = beside.world.api
        await beside.node("n0", gpu(0), gpu(1), gpu(2))
        taints = (await probe_features(api, OURS)).taints
        async with beside.controller():
            await opened(beside, "n0")
            await beside.own("first")
            await beside.bound("first")
            await api.delete(VALIDATING_POLICIES, GRANTS)
            await beside.seen.until(lambda: reasons(beside) & {"PolicyNotInForce", "FeatureGateDisabled"}, 15)
            if taints:
                # Tainted again, and drained.
                await beside.seen.until(lambda: records(beside) == {"controller"} and not beside.seen.bare)
            else:
                await beside.seen.until(lambda: records(beside) == {"scheduler"})
            await beside.own("meanwhile")
            await beside.bound("meanwhile")
            installed = documents(deploy_directory("manifests") / "60-grants.yaml")
            (body,) = (d for d in installed if d["kind"] == VALIDATING_POLICIES.kind)
            await api.create(VALIDATING_POLICIES, body)
            await opened(beside, "n0")
            await beside.own("last")
            await beside.bound("last")
        assert len(set().union(*map(beside.seen.has, ("first", "meanwhile", "last")))) == 3

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_controllers_that_come_and_go_beside_pods_without_the_gate_give_nothing_twice(kind: str) -> None:
    """Every second pod meets kube-scheduler first; the judge looks at every version of every claim."""

    async def scenario(beside: Beside) -> None:
        nodes = [f"n{i}" for i in range(3)]
        for node in nodes:
            await beside.node(node, *map(gpu, range(4)))
        names = [f"p{i}" for i in range(12)]
        async with beside.controller():
            await opened(beside, *nodes)
        for number, name in enumerate(names):
            claim = builders.claim(name, builders.request("gpu", "whole"), namespace=NAMESPACE)
            await beside.world.api.create(RESOURCE_CLAIMS, claim)
            await beside.pod(name, name, gated=number % 2 == 0)
        for seconds in (2.5, 4.0):
            async with beside.controller():
                await asyncio.sleep(seconds)
        async with beside.controller():
            await beside.bound(*names)
        assert len(set().union(*map(beside.seen.has, names))) == len(names)
        listed = (await beside.world.api.list(DEVICE_INVENTORIES)).items
        assert {i.status.publication.allocator for i in listed} == {"open"}

    run(kind, scenario)
