"""Running pods outlive the restarts of everything, and what comes after them works."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import e2e_support
import pytest
from e2e_support import allocated, clear, eventually, every_node_published, make_namespace, published, running

from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.cli.status import look
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Actions, Background, Cluster

    from dra_driver.fleet import Problem

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-restarts"
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


@pytest.fixture
def actions(cluster: Cluster) -> Actions:
    if cluster.actions is None:
        pytest.skip("only on a cluster of its own does the suite kill parts")
    return cluster.actions


async def another_runs(cluster: Cluster, name: str) -> None:
    await examples.apply(cluster.api, [claim(name, GPU), pod(name, name)])
    await running(cluster, NAMESPACE, name)


@pytest.mark.parametrize("part", ["plugin", "kubelet", "controller", "runtime"])
def test_pods_outlive_the_restart_of(
    background: Background, cluster: Cluster, actions: Actions, part: str
) -> None:
    if part not in actions.parts:
        pytest.skip("the embedded cluster's containers exist on paper: no runtime to restart")

    async def scenario() -> None:
        await examples.apply(cluster.api, [claim("kept", GPU), pod("p", "kept")])
        (before,) = await running(cluster, NAMESPACE, "p")
        node = before.spec.node_name
        devices = await allocated(cluster, NAMESPACE, "kept")
        epoch = (await published(cluster))[node]
        await actions.kill(part, node)

        async def back() -> bool:
            return (await published(cluster)).get(node, 0) > epoch

        if part in ("plugin", "kubelet"):
            await eventually("the node's devices to be published anew", back)
        (after,) = await running(cluster, NAMESPACE, "p")
        assert after.metadata.uid == before.metadata.uid
        assert await allocated(cluster, NAMESPACE, "kept") == devices
        await another_runs(cluster, "q")
        # What was prepared before the restart is known and can be taken back after it.
        await cluster.api.delete(PODS, "p", NAMESPACE)

        async def free() -> bool:
            return f"checkpoint entry of {NAMESPACE}/kept" not in str(e2e_support.leftovers(cluster, node))

        await eventually("the device to be given back", free)

    background.run(scenario())


def test_an_agent_that_is_killed_and_stays_away_is_seen(
    background: Background, cluster: Cluster, actions: Actions
) -> None:
    async def scenario() -> None:
        await examples.apply(cluster.api, [claim("kept", GPU), pod("p", "kept")])
        (before,) = await running(cluster, NAMESPACE, "p")
        node = before.spec.node_name

        seen: list[Problem] = []

        async def gone() -> bool:
            overview = await look(cluster.api, (), nodes=[node])
            seen[:] = [p for p in overview.problems if p.kind == "AgentGone"]
            return bool(seen)

        async def reported() -> bool:
            events = await cluster.api.list(EVENTS, field_selector="reason=AgentGone")
            return any(e.involved_object.name == node for e in events.items)

        await actions.agent(node, runs=False)
        try:
            await eventually("the agent to be seen as gone", gone)
            (problem,) = seen
            assert problem.subject == f"node/{node}"
            assert f"{NAMESPACE}/kept" in problem.claims
            assert "withdrawn" in problem.message
            await eventually("an Event on the node", reported)
            (after,) = await running(cluster, NAMESPACE, "p")
            assert after.metadata.uid == before.metadata.uid
        finally:
            await actions.agent(node, runs=True)

        async def back() -> bool:
            return not await gone()

        await eventually("the agent to be seen as back", back)
        await another_runs(cluster, "q")

    background.run(scenario())


def test_pods_come_back_after_a_reboot_of_their_node(
    background: Background, cluster: Cluster, actions: Actions
) -> None:
    async def scenario() -> None:
        lasting = pod("p", "kept", restartPolicy="Always")
        await examples.apply(cluster.api, [claim("kept", GPU), lasting])
        (before,) = await running(cluster, NAMESPACE, "p")
        node = before.spec.node_name
        devices = await allocated(cluster, NAMESPACE, "kept")
        epoch = (await published(cluster))[node]
        await actions.reboot(node)

        async def back() -> bool:
            return (await published(cluster)).get(node, 0) > epoch

        await eventually("the node's devices to be published anew", back)

        async def sees_its_device() -> bool:
            found = await cluster.api.get(PODS, "p", NAMESPACE)
            views = await cluster.containers(found) if found.status.phase == "Running" else None
            return bool(views) and all(devices[0][1] in v.env.values() for v in (views or {}).values())

        await eventually("the pod to run again with its device", sees_its_device)
        assert await allocated(cluster, NAMESPACE, "kept") == devices
        _, cdi = actions.state(node)

        async def written_again() -> bool:
            # Until the kubelet has begun to report, the pod may be shown as it was before.
            return bool(list(cdi.glob("k8s.*claim*")))

        await eventually("the CDI file that the reboot took to be written again", written_again)
        await another_runs(cluster, "q")

    background.run(scenario())


@pytest.mark.needs("absent lists")
def test_an_update_leaves_running_pods_and_slices_alone(
    background: Background, cluster: Cluster, actions: Actions
) -> None:
    async def scenario() -> None:
        version = await actions.previous()
        if version.startswith("- "):
            pytest.skip(version[2:])
        await eventually("all devices to be published", partial(every_node_published, cluster))
        await examples.apply(cluster.api, [claim("kept", GPU), pod("p", "kept")])
        (before,) = await running(cluster, NAMESPACE, "p")
        node = before.spec.node_name
        devices = await allocated(cluster, NAMESPACE, "kept")
        gaps: list[str] = []
        finished = asyncio.Event()

        async def watch_slices() -> None:
            while not finished.is_set():
                slices = await cluster.api.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
                if not slices.items:
                    gaps.append("none")
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch_slices())
            try:
                await actions.current(node)
            finally:
                finished.set()
        await eventually("all devices to be published", partial(every_node_published, cluster))
        (after,) = await running(cluster, NAMESPACE, "p")
        assert after.metadata.uid == before.metadata.uid
        assert await allocated(cluster, NAMESPACE, "kept") == devices
        assert gaps == [], f"the update from {version} took slices away"
        await another_runs(cluster, "q")
        await cluster.api.delete(PODS, "p", NAMESPACE)

        async def free() -> bool:
            return f"checkpoint entry of {NAMESPACE}/kept" not in str(e2e_support.leftovers(cluster, node))

        await eventually("what the version before prepared to be given back", free)

    background.run(scenario())
