"""A backend that does not come back: it is told everywhere, costs no other its devices, and claims go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_client import FakeClient
from node_agent import (
    NODE,
    Node,
    add_claim,
    claim,
    device,
    eventually,
    inventory,
    next_health,
    running,
)

from dra_driver.api.core import EVENTS
from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.discovery.core.problems import DriverMissing
from dra_driver.hardware import DiscoveredDevice, HealthEvent
from dra_driver.ports import DeviceBackend
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    health_v1_pb2,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.grpc.services import Health
from kubelet_plugin.health.health import HealthMonitor

UNKNOWN, HEALTHY = health_v1alpha1_pb2.UNKNOWN, health_v1alpha1_pb2.HEALTHY


class Hanging:
    """A backend whose calls do not come back while a test says so."""

    simulated = True

    def __init__(self, name: str, *devices: DiscoveredDevice) -> None:
        self.name = name
        self.devices: tuple[DiscoveredDevice, ...] = devices
        self.answer = threading.Event()
        self.answer.set()
        self.looks = 0
        self.error: Exception | None = None
        self.unnamed = False

    def discover(self) -> Sequence[DiscoveredDevice]:
        self.looks += 1
        self.answer.wait()
        if self.error is not None:
            raise self.error
        return self.devices

    def close(self) -> None:
        self.answer.wait()


class Waiting(Hanging):
    """The same, with events for which it waits apart from its looks."""

    def __init__(self, name: str, *devices: DiscoveredDevice) -> None:
        super().__init__(name, *devices)
        self.events = threading.Event()
        self.events.set()

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        self.events.wait()
        threading.Event().wait(0.02)
        return ()


class FakeClock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def hanging() -> Any:
    made: list[Hanging] = []

    def make(name: str, *devices: DiscoveredDevice) -> Hanging:
        made.append(Hanging(name, *devices))
        return made[-1]

    yield make
    for backend in made:
        backend.answer.set()  # no thread is left behind


def reasons(table: DeviceTable) -> dict[str, list[str]]:
    return {d.device.name: [h.reason for h in d.device.health] for d in table.devices}


def test_a_backend_that_hangs_costs_no_other_one_its_devices(hanging: Any) -> None:
    async def scans() -> None:
        clock, told = FakeClock(), []
        bad, good = hanging("bad", device(0)), hanging("good", device(1))
        table = DeviceTable(
            [bad, good], clock=clock, deadline=0.05, report=lambda kind, text: told.append((kind, text))
        )
        await table.scan()
        assert [r.state for r in table.reports] == ["ok", "ok"]
        bad.answer.clear()
        clock.time += 100
        good.devices = (device(1), device(2))
        await table.scan()
        assert [r.state for r in table.reports] == ["hanging", "ok"]
        assert "bad: a scan of the hardware that began at 1970-01-12T13:48:20Z" in table.reports[0].message
        # What was found stays, and nothing new belongs on it; the other backend's news are here.
        assert reasons(table) == {"gpu-0": ["DriverHanging"], "gpu-1": [], "gpu-2": []}
        assert [d.device.health[0].severity for d in table.devices if d.device.health] == ["degraded"]
        assert [kind for kind, _ in told] == ["DriverHanging"]
        # When what is known was learned: not now.
        assert (table.known_at("gpu-0"), table.known_at("gpu-1")) == (1_000_000.0, 1_000_100.0)
        # No second thread goes the way of the first, and people are told once.
        looks = bad.looks
        clock.time += 100
        await table.scan()
        assert bad.looks == looks
        assert [kind for kind, _ in told] == ["DriverHanging"]
        changes = table.changes.count
        bad.answer.set()
        forever = asyncio.create_task(table.scan_forever(3600))
        await eventually(lambda: table.reports[0].state == "ok")
        forever.cancel()
        assert table.changes.count > changes
        assert reasons(table)["gpu-0"] == []

    asyncio.run(scans())


def test_a_look_that_takes_long_does_not_keep_back_what_others_found(hanging: Any) -> None:
    async def scans() -> None:
        slow = hanging("slow", device(0))
        slow.answer.clear()
        table = DeviceTable([slow, hanging("quick", device(1))], deadline=0.2)
        scan = asyncio.create_task(table.scan())
        await eventually(lambda: [d.device.name for d in table.devices] == ["gpu-1"])
        assert [r.state for r in table.reports] == ["waiting", "ok"]
        await scan
        assert [r.state for r in table.reports] == ["hanging", "ok"]

    asyncio.run(scans())


def test_devices_that_are_older_than_a_hang_count_as_old(hanging: Any) -> None:
    """A claim that was prepared during a hang must not be judged by what was found before it."""

    async def scans() -> None:
        bad = hanging("bad", device(0))
        table = DeviceTable([bad, hanging("good", device(1))], deadline=0.05)
        await table.scan()
        looked = table.looked
        bad.answer.clear()
        await table.scan()
        assert table.looked == looked

    asyncio.run(scans())


def test_a_driver_that_hangs_is_closed_without_waiting_for_it(hanging: Any) -> None:
    async def life() -> None:
        bad = hanging("bad", device(0))
        table = DeviceTable([bad], deadline=0.05)
        await table.scan()
        bad.answer.clear()
        await table.scan()
        assert not await table.release()
        assert not await table.end(0.05)

    asyncio.run(life())


# --- in a node agent ----------------------------------------------------------------------------------------


@asynccontextmanager
async def agent(
    root: Path, kube: FakeClient, *backends: DeviceBackend, **settings: Any
) -> AsyncIterator[Node]:
    given = {"scan_deadline": 1.0, "metrics_address": "127.0.0.1:0", **settings}
    async with running(root, kube, backends=backends, settings=given) as node:
        yield node


async def fetch(node: Node, path: str) -> tuple[int, str]:
    await eventually(lambda: node.plugin.observation.address)
    host, port = node.plugin.observation.address or ("", 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, await answer.text()


async def call(node: Node, verb: str, body: dict[str, Any]) -> str:
    meta = body["metadata"]
    reference = dra_v1_pb2.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
    async with node.channel() as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        if verb == "prepare":
            request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
            return str((await stub.NodePrepareResources(request)).claims[meta["uid"]].error)
        end = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
        return str((await stub.NodeUnprepareResources(end)).claims[meta["uid"]].error)


def discovered(kube: FakeClient) -> dict[str, Any]:
    found = (inventory(kube) or {}).get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == "Discovered"), {})


def problems(kube: FakeClient) -> list[tuple[str, str]]:
    status = (inventory(kube) or {}).get("status", {}).get("discovery", {})
    return [(p["state"], p.get("reason", "")) for p in status.get("problems", [])]


def warnings(kube: FakeClient) -> set[tuple[str, str]]:
    return {(e.involved_object.kind, e.reason) for e in kube.all(EVENTS)}


def test_a_hang_is_told_everywhere_and_its_end_too(tmp_path: Path, hanging: Any) -> None:
    async def life() -> None:
        kube, backend = FakeClient(), hanging("slow", device(0))
        body = add_claim(kube, claim("before", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node, node.channel() as channel:
            await node.register()
            assert await call(node, "prepare", body) == ""
            assert (await fetch(node, "/readyz"))[0] == 200
            assert discovered(kube) == {}
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            first = await next_health(stream)
            assert first is not None
            assert [d.health for d in first.devices] == [HEALTHY]
            known_at = first.devices[0].last_updated_time
            backend.answer.clear()
            await node.plugin._table.scan()
            message = await next_health(stream)
            assert message is not None
            # Nothing was looked at since: neither healthy nor fresh.
            assert [(d.health, d.last_updated_time) for d in message.devices] == [(UNKNOWN, known_at)]
            assert message.devices[0].message.startswith("DriverHanging: slow: a scan of the hardware")
            assert message.devices[0].health_check_timeout_seconds > 3600
            await eventually(lambda: discovered(kube).get("status") == "Unknown")
            assert discovered(kube)["reason"] == "DriverHanging"
            assert problems(kube) == [("failed", "DriverHanging")]
            await eventually(
                lambda: {("Node", "DriverHanging"), ("Node", "DeviceUnhealthy")} <= warnings(kube)
            )
            status, text = await fetch(node, "/readyz")
            assert (status, "slow: a scan of the hardware" in text) == (503, True)
            assert (await fetch(node, "/healthz"))[0] == 200  # to start the agent anew would not help
            assert '"state": "hanging"' in (await fetch(node, "/debug/state"))[1].replace('":"', '": "')
            metrics = node.plugin.observation.metrics.render(()).decode()
            assert 'dra_driver_backend_state{backend="slow",state="hanging"} 1.0' in metrics
            assert 'dra_driver_backend_last_look_timestamp_seconds{backend="slow"}' in metrics
            await eventually(lambda: kube.applied)
            (entry,) = (kube.raw(RESOURCE_CLAIMS, "before", "ns") or {})["status"]["devices"]
            assert [(c["status"], c["reason"]) for c in entry["conditions"]] == [("Unknown", "DriverHanging")]
            # What needs nothing of the hardware goes on.
            assert await call(node, "unprepare", body) == ""
            after = add_claim(kube, claim("after", "gpu-0"))
            assert await call(node, "prepare", after) == ""
            backend.answer.set()
            await eventually(lambda: discovered(kube).get("status") == "True")
            assert problems(kube) == []
            assert (await fetch(node, "/readyz"))[0] == 200

    asyncio.run(life())


def test_a_first_look_that_hangs_withdraws_nothing_and_is_told(tmp_path: Path, hanging: Any) -> None:
    async def life() -> None:
        kube, backend = FakeClient(), hanging("slow", device(0))
        async with agent(tmp_path, kube, backend):
            await eventually(lambda: inventory(kube))
        backend.answer.clear()
        async with agent(tmp_path, kube, backend) as node:
            await eventually(lambda: discovered(kube).get("status") == "Unknown")
            (kept,) = (inventory(kube) or {})["spec"]["devices"]
            assert [h["reason"] for h in kept["health"]] == ["NotConfirmed"]
            assert (await fetch(node, "/readyz"))[0] == 503

    asyncio.run(life())


def test_a_device_that_may_be_one_of_those_without_a_name_is_not_withdrawn(
    tmp_path: Path, hanging: Any
) -> None:
    """The agent was started anew, and a device that is counted does not say which it is."""

    def conditions(kube: FakeClient) -> dict[str, list[str]]:
        devices = (inventory(kube) or {"spec": {"devices": []}})["spec"]["devices"]
        return {d["name"]: [h["reason"] for h in d.get("health", ())] for d in devices}

    async def life() -> None:
        kube, backend = FakeClient(), hanging("some", device(0), device(1))
        async with agent(tmp_path, kube, backend):
            await eventually(lambda: len(conditions(kube)) == 2)
        backend.devices, backend.unnamed = (device(0),), True
        async with agent(tmp_path, kube, backend) as node:
            await eventually(lambda: conditions(kube) == {"gpu-0": [], "gpu-1": ["NotConfirmed"]})
            await node.plugin._table.scan()
            assert conditions(kube) == {"gpu-0": [], "gpu-1": ["NotConfirmed"]}
            backend.unnamed = False
            await node.plugin._table.scan()
            await eventually(lambda: conditions(kube) == {"gpu-0": []})

    asyncio.run(life())


def test_a_first_look_that_hangs_is_told_on_a_node_that_was_never_described(
    tmp_path: Path, hanging: Any
) -> None:
    async def life() -> None:
        kube, backend = FakeClient(), hanging("slow")
        backend.answer.clear()
        async with agent(tmp_path, kube, backend):
            await eventually(lambda: discovered(kube).get("reason") == "DriverHanging")
            await eventually(lambda: ("Node", "DriverHanging") in warnings(kube))

    asyncio.run(life())


def test_a_driver_that_is_missing_is_told(tmp_path: Path, hanging: Any) -> None:
    async def life() -> None:
        kube, backend = FakeClient(), hanging("bare")
        backend.error = DriverMissing("bare: 1 GPU is on the PCI bus, but nothing serves it; do this")
        async with agent(tmp_path, kube, backend) as node:
            await eventually(lambda: discovered(kube).get("reason") == "DriverMissing")
            assert discovered(kube)["status"] == "False"
            assert discovered(kube)["message"] == str(backend.error)
            assert problems(kube) == [("failed", "DriverMissing")]
            await eventually(lambda: ("Node", "DriverMissing") in warnings(kube))
            # It is a trouble of the node, not of the agent.
            await node.register()
            assert (await fetch(node, "/readyz"))[0] == 200

    asyncio.run(life())


def test_conditions_of_the_publisher_stay(tmp_path: Path, hanging: Any) -> None:
    async def life() -> None:
        kube, backend = FakeClient(), hanging("slow", device(0))
        async with agent(tmp_path, kube, backend) as node:
            await eventually(lambda: inventory(kube))
            name = (inventory(kube) or {})["metadata"]["name"]
            mine = {"type": "Published", "status": "True", "reason": "Published"}
            mine |= {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
            await kube.merge_patch(
                DEVICE_INVENTORIES, name, {"status": {"conditions": [mine]}}, subresource="status"
            )
            backend.answer.clear()
            await node.plugin._table.scan()
            await eventually(lambda: discovered(kube).get("status") == "Unknown")
            held = (inventory(kube) or {})["status"]["conditions"]
            assert [c["type"] for c in held] == ["Published", "Discovered"]

    asyncio.run(life())


def test_a_wait_for_events_that_does_not_end_is_a_hang() -> None:
    async def life() -> None:
        backend = Waiting("slow", device(0))
        table = DeviceTable([backend])
        await table.scan()
        monitor = asyncio.create_task(HealthMonitor([backend], table, lambda _: None, late=0.05).run())
        backend.events.clear()
        await eventually(lambda: table.reports[0].state == "hanging")
        await table.scan()  # its looks end, and that changes nothing
        assert "slow: the wait for events of the hardware does not end" in table.reports[0].message
        assert reasons(table) == {"gpu-0": ["DriverHanging"]}
        backend.events.set()
        await eventually(lambda: table.reports[0].state == "ok")
        monitor.cancel()

    asyncio.run(life())


# --- the kubelet's stream -----------------------------------------------------------------------------------


def test_what_was_not_looked_at_for_too_long_is_unknown(hanging: Any) -> None:
    """Whatever keeps the agent from looking: an error, a file that says release, a bug."""

    async def life() -> None:
        clock = FakeClock()
        table = DeviceTable([hanging("a", device(0))], clock=clock)
        await table.scan()
        service = Health(
            pool=PoolName(NODE),
            table=table,
            state=RegistrationState(lambda: True),
            clock=clock,
            timeout_seconds=150,
        )
        clock.time += 150
        (fresh,) = service._list().devices
        assert (fresh.health, fresh.last_updated_time) == (health_v1_pb2.HEALTHY, 1_000_000)
        table.released = True
        await table.scan()
        clock.time += 1
        (stale,) = service._list().devices
        assert (stale.health, stale.last_updated_time) == (health_v1_pb2.UNKNOWN, 1_000_000)
        assert stale.message == "the device could not be scanned since 1970-01-12T13:46:40Z"

    asyncio.run(life())
