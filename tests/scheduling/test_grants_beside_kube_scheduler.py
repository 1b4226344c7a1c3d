"""Devices that are granted beside a kube-scheduler: it takes those that were chosen, and they come back.

With the real one figures are printed; what is asserted leaves room for a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from builders import request
from granting_beside import (
    NAMESPACE,
    PART_RESOURCE,
    ROOTS,
    Beside,
    cut_gpu,
    gpu,
    granting_beside,
    shared_gpu,
)
from real_scheduler import RealScheduler

from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.names import GRANTS

pytestmark = [pytest.mark.slow, pytest.mark.long]

KINDS = ["embedded", pytest.param("real", marks=pytest.mark.long)]
BIND_SECONDS = 15.0


def run(kind: str, scenario: Callable[[Beside], Awaitable[None]], seconds: float = 280) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds), granting_beside(kind) as beside:
            await scenario(beside)

    asyncio.run(main())


async def served(beside: Beside, name: str) -> None:
    """Wait until a pod has what was granted for it, and nothing is granted any more."""
    await beside.seen.until(lambda: beside.seen.devices)
    granted = beside.seen.devices
    await beside.bound(name)
    seconds = beside.seconds_to_bind(name)
    print(f"{name}: bound {seconds:.3f} s after the grant was written, with {sorted(granted)}")
    assert seconds < BIND_SECONDS
    assert beside.seen.has(name) == granted
    await beside.back()


@pytest.mark.parametrize("kind", KINDS)
def test_pods_get_the_devices_that_were_chosen(kind: str) -> None:
    """Of the kinds of devices that there are: whole ones, aligned ones, parts, shares."""

    async def scenario(beside: Beside) -> None:
        await beside.policy("cut", "cut", partitions={"profiles": ["*"]})
        await beside.policy("shared", "shared", share={"maxShares": 4})
        await beside.node("n0", gpu(0), gpu(1), gpu(2), nics=ROOTS[:1])
        await beside.node("n1", cut_gpu(0), gpu(1), nics=ROOTS[1:])
        await beside.node("n2", shared_gpu(0), nics=ROOTS[:1])
        async with beside.controller():
            await beside.published("n0", "n1", "n2")
            await beside.pod("extended", amount=2)
            await served(beside, "extended")
            aligned = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
            await beside.mixed("aligned", request("gpu", "whole"), constraints=[aligned])
            await served(beside, "aligned")
            await beside.pod("part", amount=1, resource=PART_RESOURCE)
            await served(beside, "part")
            half = request("gpu", "shared", memory="20Gi")
            await beside.mixed("share", half)
            await served(beside, "share")
            await beside.end("aligned")
            await beside.mixed("mixed-part", request("gpu", "part"))
            await served(beside, "mixed-part")

    run(kind, scenario)


def test_shares_are_granted_beside_those_that_kube_scheduler_does_not_know_yet() -> None:
    """It is not waited until kube-scheduler has shown that it knows who has which share."""

    async def scenario(beside: Beside) -> None:
        share = request("gpu", "shared", memory="8Gi")
        await beside.policy("shared", "shared", share={"maxShares": 8})
        await beside.node("n0", shared_gpu(0), nics=ROOTS)
        async with beside.controller():
            await beside.published("n0")
            for i in range(2):
                await beside.own(f"own-{i}", share)
                await beside.seen.until(lambda name=f"own-{i}": beside.seen.has(name))  # type: ignore[misc]
                await beside.mixed(f"granted-{i}", share)
                await beside.bound(f"granted-{i}")
                print(f"bound {beside.seconds_to_bind(f'granted-{i}'):.3f} s after the grant was written")
            pods = [f"{kind}-{i}" for kind in ("own", "granted") for i in range(2)]
            await beside.bound(*pods)
        assert {one for name in pods for one in beside.seen.has(name)} == {("n0", "gpu-0")}

    run("real", scenario)


# --- what comes in between ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pods_without_the_gate_take_nothing_that_is_granted_to_others(kind: str) -> None:
    async def scenario(beside: Beside) -> None:
        nodes = [f"n{i}" for i in range(3)]
        for node in nodes:
            await beside.node(node, gpu(0))
        async with beside.controller():
            await beside.published(*nodes)
            await beside.pod("first", amount=1)
            await beside.seen.until(lambda: beside.seen.devices)
            granted = beside.seen.devices
            others = ["other-0", "other-1"]
            for name in others:
                await beside.pod(name, amount=1, gated=False)
            await beside.bound("first")
            assert beside.seen.has("first") == granted
            await beside.bound(*others)
            await beside.all_is_ours(len(nodes))

    run(kind, scenario)


Point = Callable[[Beside, str], object]
POINTS: dict[str, Point] = {
    "granted": lambda b, _: b.seen.devices,
    "without its gate": lambda b, name: b.is_open(name),
    "claim made": lambda b, name: b.seen.claims_of(name),
    "allocated": lambda b, name: b.seen.has(name),
    "bound": lambda b, name: name in b.seen.bound,
    "ended": lambda b, name: name in b.seen.bound and not b.seen.devices,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", "real"])
def test_a_controller_that_is_killed_at_any_point_of_a_grant(kind: str) -> None:
    async def scenario(beside: Beside) -> None:
        for node in ("n0", "n1"):
            await beside.node(node, gpu(0), gpu(1))
        for i, (point, reached) in enumerate(POINTS.items()):
            name = f"p{i}"
            async with beside.controller():
                await beside.published("n0", "n1")
                await beside.pod(name, amount=2)
                await beside.seen.until(lambda of=reached, n=name: of(beside, n))  # type: ignore[misc]
            print(f"killed: {point}; {sorted(beside.seen.devices)}")
            async with beside.controller():
                await beside.bound(name)
                await beside.back()
                assert len(beside.seen.has(name)) == 2
                await beside.end(name)
        async with beside.controller():
            await beside.all_is_ours(4)

    run(kind, scenario)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["embedded", "real"])
def test_a_kubelet_that_deletes_the_slices_at_any_point_of_a_grant(kind: str) -> None:
    async def scenario(beside: Beside) -> None:
        await beside.node("n0", gpu(0), gpu(1))
        async with beside.controller():
            await beside.published("n0")
            for i, (point, reached) in enumerate(POINTS.items()):
                name = f"p{i}"
                await beside.pod(name, amount=2)
                await beside.seen.until(lambda of=reached, n=name: of(beside, n))  # type: ignore[misc]
                await beside.wipe("n0")
                print(f"deleted: {point}")
                await beside.register("n0")
                await beside.bound(name)
                await beside.back()
                await beside.published("n0")
                await beside.end(name)
            await beside.all_is_ours(2)

    run(kind, scenario)


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["its time is over", "the controller is killed"])
def test_a_decision_that_is_written_after_the_grant_is_refused(killed: bool) -> None:
    """kube-scheduler writes 30 s and more after its decision, and tries again."""

    async def scenario(beside: Beside) -> None:
        for node in ("n0", "n1"):
            await beside.node(node, gpu(0))
        scheduler = beside.world.scheduler
        async with contextlib.AsyncExitStack() as first:
            await first.enter_async_context(beside.controller())
            await beside.published("n0", "n1")
            # A grant that is not used ends after 30 s.
            scheduler.slow_binding = 30.0 if killed else 42.0
            await beside.pod("late", amount=1)
            await beside.seen.until(lambda: beside.seen.devices)
            granted = beside.seen.devices
            await beside.seen.until(lambda: beside.seen.claims_of("late"))
            await asyncio.sleep(1.0)
            scheduler.slow_binding = 0.0
            # Granted again to the same pod in time, the device would be kube-scheduler's to allocate.
            nodes = {node for node, _ in granted}
            for node in nodes:
                await beside.world.api.merge_patch(NODES, node, {"spec": {"unschedulable": True}})
            if killed:
                await first.aclose()
                await first.enter_async_context(beside.controller())
            await beside.seen.until(lambda: not granted & beside.seen.devices)
            assert not beside.seen.has("late")
            # It is ours: the late write would make a double.
            await beside.bound("late")
            said = [e.message for e in (await beside.world.api.list(EVENTS, NAMESPACE)).items]
            assert any(GRANTS in message for message in said), said
            for node in nodes:
                await beside.world.api.merge_patch(NODES, node, {"spec": {"unschedulable": None}})
            await beside.all_is_ours(2)

    run("real", scenario)


@pytest.mark.long
def test_a_decision_for_a_pod_that_is_deleted_is_refused() -> None:
    """The claim stays, and the device is the controller's before kube-scheduler writes."""

    async def scenario(beside: Beside) -> None:
        scheduler = beside.world.scheduler
        assert isinstance(scheduler, RealScheduler)
        await beside.node("n0", gpu(0), nics=ROOTS)
        async with beside.controller():
            await beside.published("n0")
            scheduler.slow_binding = 30.0
            await beside.mixed("late", request("gpu", "whole"))
            written = "/resourceclaims/late/status"
            await beside.seen.until(lambda: beside.seen.devices)
            while not any(path.endswith(written) for _, path in scheduler.writes):
                await asyncio.sleep(0.1)
            scheduler.slow_binding = 0.0
            await beside.world.api.delete(PODS, "late", NAMESPACE, grace_period_seconds=0)
            await beside.own("own")
            await beside.bound("own", seconds=25.0)
            while not any(path.endswith(written) for path in scheduler.refused):
                await asyncio.sleep(0.1)
            assert not beside.seen.has_of_all("late")
            await beside.end("late", "own")
            await beside.all_is_ours(1)

    run("real", scenario)
