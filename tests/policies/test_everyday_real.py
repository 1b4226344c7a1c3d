"""The controller at its everyday work on a real API server, with its own account, rights and policies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import device, inventory
from policy_cases import (
    CORE,
    LEADER,
    MERGE,
    NODE,
    OTHER_NODE,
    SLICES,
    STANDBY,
    SYSTEM,
    TENANT,
    Write,
    event,
    pod,
    slice_,
)
from policy_world import FENCE, Accounts, create, settled, world
from real_apiserver import RealApiServer, gate_flag, real_apiserver
from structlog.testing import capture_logs

from controller.app import Controller
from controller.config import ControllerConfig, identity_of
from controller.observe.reasons import shown_reason
from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.names import (
    ALLOCATED_CONDITION,
    ALLOCATION_GATE,
    CONTROLLER_LEASE,
    DEFAULT_DRIVER_NAME,
    RECALLED_DEVICES,
)
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import ApiError
from dra_driver.kube import EventRecorder, LeaderConfig
from kubelet_plugin.health.health import COMPONENT

SECONDS = 60.0
CLAIM, POD = "everyday", "everyday"
LATE = "late"
INVENTORIES = "/apis/dra-driver.dev/v1alpha1/deviceinventories"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    folder: Path = tmp_path_factory.mktemp("real")
    with real_apiserver(folder, gate_flag("DRADeviceTaints")) as started:
        yield started


async def until(what: str, there: Callable[[], Awaitable[Any]]) -> Any:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        with contextlib.suppress(ApiError):
            if found := await there():
                return found
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def working(made: Accounts, who: str, pod_name: str, seconds: int = 4) -> Any:
    """Run a controller with the token of a pod; yield when it works."""
    election = LeaderConfig(
        SYSTEM,
        CONTROLLER_LEASE,
        identity_of(pod_name),
        seconds,
        renew_deadline_seconds=seconds / 2,
        retry_seconds=0.5,
    )
    config = ControllerConfig(identity=election.identity, node_labels="own")
    controller = Controller(made.clients[who], config, election=election)
    task = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(SECONDS):
            await controller.ready.wait()
        yield controller
    finally:
        task.cancel()
        await asyncio.wait({task})


async def publish(made: Accounts) -> None:
    """Write the inventory of a node as its agent does: with the agent's own credential."""
    uid = (await made.admin.get(NODES, NODE)).metadata.uid
    # gpu-0 is held by claims of the table.
    gpu = device("gpu-5", "16Gi", attributes={"type": "gpu", "model": "A100", "vendor": "nvidia"})
    body = inventory(NODE, gpu, driver=DEFAULT_DRIVER_NAME, node_uid=uid)
    status = body.pop("status")
    agent = made.clients["agent"]
    await agent.create(DEVICE_INVENTORIES, body)
    await agent.merge_patch(
        DEVICE_INVENTORIES, body["metadata"]["name"], {"status": status}, subresource="status"
    )


async def ask(made: Accounts, claim_name: str = CLAIM, pod_name: str = POD) -> None:
    """Make a pod with a claim for one device."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim_name, "namespace": TENANT},
        "spec": {"devices": {"requests": [request]}},
    }
    await made.admin.create(RESOURCE_CLAIMS, claim)
    gates = [{"name": ALLOCATION_GATE}]
    uses = [{"name": "gpu", "resourceClaimName": claim_name}]
    body = pod(pod_name, TENANT, schedulingGates=gates, resourceClaims=uses)
    await create(made.admin, f"{CORE}/namespaces/{TENANT}/pods", body)


async def make_ready(made: Accounts) -> None:
    """Give the node what a kubelet would report, and take off the taint that it begins with."""
    taints: dict[str, Any] = {"spec": {"taints": None}}
    await made.admin._call("PATCH", f"{CORE}/nodes/{NODE}", body=taints, content_type=MERGE)
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}
    status |= {"capacity": status["allocatable"]}
    await made.admin._call(
        "PATCH", f"{CORE}/nodes/{NODE}/status", body={"status": status}, content_type=MERGE
    )


def test_a_controller_with_its_own_account_publishes_allocates_and_labels(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> None:
        await make_ready(made)
        await publish(made)
        await ask(made)

        async def allocated() -> bool:
            claim = await made.admin.get(RESOURCE_CLAIMS, CLAIM, TENANT)
            return claim.status.allocation is not None

        async def ungated() -> bool:
            return not (await made.admin.get(PODS, POD, TENANT)).spec.scheduling_gates

        async def labelled() -> bool:
            labels = (await made.admin.get(NODES, NODE)).metadata.labels or {}
            return labels.get("dra-driver.dev/gpu.model") == "A100"

        async def spoken() -> bool:
            return any(e.reason == "Allocated" for e in (await made.admin.list(EVENTS, TENANT)).items)

        async def reported() -> bool:
            found = shown_reason(await made.admin.get(PODS, LATE, TENANT))
            return found is not None and "allocated to 1 claim" in found.message

        async def served() -> bool:
            late = await made.admin.get(PODS, LATE, TENANT)
            return not late.spec.scheduling_gates and shown_reason(late) is None

        async def deallocated() -> bool:
            claim = await made.admin.get(RESOURCE_CLAIMS, CLAIM, TENANT)
            return claim.status.allocation is None

        await until("the allocation", allocated)
        await until("the pod without its gate", ungated)
        await until("the node's labels", labelled)
        slices = (await made.admin.list(RESOURCE_SLICES)).items
        assert any(s.spec.driver == DEFAULT_DRIVER_NAME and s.spec.devices for s in slices)
        # The next pod for the same device waits, and has a condition of ours beside those of others.
        await ask(made, LATE, LATE)
        others = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
        await made.admin.merge_patch(PODS, LATE, others, TENANT, subresource="status")
        await until("the reason", reported)
        # Without a pod that uses it, the claim is deallocated.
        await made.admin.delete(PODS, POD, TENANT, grace_period_seconds=0)
        await until("the deallocation", deallocated)
        await until("the pod without a reason", served)
        await until("the event", spoken)
        left = (await made.admin.get(PODS, LATE, TENANT)).status.conditions
        assert {c["type"]: c["status"] for c in left} == {
            "PodScheduled": "False",
            ALLOCATED_CONDITION: "True",
        }

    with capture_logs() as logs:
        run(server, scenario)
    refused = [e for e in logs if "denied request" in str(e) and FENCE not in str(e)]
    assert refused == []
    # The right to read what an earlier version has left goes with that.
    known = (FENCE, RECALLED_DEVICES)
    assert [e for e in logs if "is forbidden" in str(e) and not any(k in str(e) for k in known)] == []


def run(server: RealApiServer, scenario: Callable[[Accounts], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await server.client() as admin, world(server.client, admin) as made:
            await settled(made, Write("", "standby", "POST", SLICES, slice_("s", DEFAULT_DRIVER_NAME), FENCE))
            await made.hold("")
            async with working(made, "controller", LEADER):
                await scenario(made)

    asyncio.run(main())


def test_a_new_leader_repeats_its_first_writes_until_the_api_server_knows_it(server: RealApiServer) -> None:
    """One after the other takes over; each is ready only when a write of it was accepted."""

    async def scenario(made: Accounts) -> None:
        for i in range(6):
            who, name = (("standby", STANDBY), ("controller", LEADER))[i % 2]
            async with working(made, who, name):
                body = slice_("new", DEFAULT_DRIVER_NAME)
                assert await made.send(Write("", who, "POST", SLICES, body)) == ""

    async def main() -> None:
        async with await server.client() as admin, world(server.client, admin) as made:
            await made.hold("")
            await scenario(made)

    asyncio.run(main())


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def test_a_node_agent_speaks_about_its_node_and_its_pods_and_counts_repeats(server: RealApiServer) -> None:
    async def scenario(made: Accounts) -> None:
        clock = Clock()
        recorder = EventRecorder(made.clients["agent"], COMPONENT, clock)
        running = asyncio.create_task(recorder.run())
        nodes = {name: await made.admin.get(NODES, name) for name in (NODE, OTHER_NODE)}
        reported = await made.admin.get(PODS, "gated", TENANT)
        for _ in range(2):
            for node in nodes.values():
                recorder.event(NODES, node, "Warning", "DeviceUnhealthy", f"on {node.metadata.name}")
            recorder.event(PODS, reported, "Warning", "DeviceUnhealthy", "of a pod")
            await recorder.drain()
            clock.time += 30
        running.cancel()
        await asyncio.wait({running})
        events = (await made.admin.list(EVENTS)).items
        counts = {e.message: e.count for e in events if e.reason == "DeviceUnhealthy"}
        assert counts == {f"on {NODE}": 2, "of a pod": 2}  # and nothing about the other node

    async def main() -> None:
        async with await server.client() as admin, world(server.client, admin) as made:
            about_another = event("x", COMPONENT, "Node", OTHER_NODE)
            path = f"{CORE}/namespaces/{TENANT}/events"
            await settled(made, Write("", "agent", "POST", path, about_another, "dra-driver-events"))
            await scenario(made)

    asyncio.run(main())
