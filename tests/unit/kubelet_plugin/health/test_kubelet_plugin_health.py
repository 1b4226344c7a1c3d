"""What happens when a device falls ill and recovers: health stream, Events, claim status, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from fake_client import Call, FakeClient
from node_agent import DRIVER, NODE, Backend, Node, add_claim, claim, device, eventually, next_health, running

from dra_driver.api.core import EVENTS
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import DiscoveryError, Forbidden
from dra_driver.hardware import DeviceSample, DiscoveredDevice, HealthEvent, PartitioningMode
from dra_driver.preparation import ClaimState, PartitionRecord, PreparedClaim, PreparedDevice
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)
from kubelet_plugin.health.health import ailments
from kubelet_plugin.telemetry.metrics import Metrics, Sources

POD = {"resource": "pods", "name": "trainer", "uid": "pod-uid"}


class SickBackend(Backend):
    """Devices whose health a test sets, with an event for it."""

    def __init__(self, count: int) -> None:
        super().__init__([device(i) for i in range(count)])
        self.queue: queue.Queue[HealthEvent] = queue.Queue()
        self.samples: Sequence[DeviceSample] = ()

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        try:
            return [self.queue.get(timeout=min(seconds, 0.05))]
        except queue.Empty:
            return ()

    def sample(self) -> Sequence[DeviceSample]:
        return self.samples

    def ail(self, index: int, *health: DeviceHealth, code: int | None = None) -> None:
        changed = list(self.devices)
        changed[index] = dataclasses.replace(
            changed[index], device=msgspec.structs.replace(changed[index].device, health=health)
        )
        self.devices = tuple(changed)
        self.queue.put(HealthEvent(f"GPU-{index}", "Xid79", "failed", "off the bus", code))


OFF_THE_BUS = DeviceHealth(reason="Xid79", severity="failed", message="XID 79: off the bus")


@contextlib.asynccontextmanager
async def agent(root: Path, kube: FakeClient, backend: SickBackend, **settings: Any) -> AsyncIterator[Node]:
    async with running(root, kube, backend=backend, settings=settings) as node:
        yield node


async def prepare(node: Node, body: dict[str, Any]) -> None:
    async with node.channel() as channel:
        meta = body["metadata"]
        reference = dra_v1_pb2.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        answer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
            dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
        )
        assert answer.claims[meta["uid"]].error == ""


def held(name: str, *devices: str) -> dict[str, Any]:
    body = claim(name, *devices)
    body["status"]["reservedFor"] = [POD]
    return body


def events(kube: FakeClient) -> list[tuple[str, str, str]]:
    return [(e.involved_object.kind, e.involved_object.name, e.reason) for e in kube.all(EVENTS)]


def applied_conditions(kube: FakeClient, number: int) -> list[dict[str, Any]]:
    conditions: list[dict[str, Any]] = kube.applied[number][1]["status"]["devices"][0]["conditions"]
    return conditions


def test_an_event_reaches_the_kubelet_the_claim_and_people(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(2)
        other = {"driver": "other.example.com", "pool": NODE, "device": "nic-0"}
        body = held("sick", "gpu-0")
        body["status"]["allocation"]["devices"]["results"].append({"request": "nic", **other})
        body["status"]["devices"] = [other]
        add_claim(kube, body)
        well = add_claim(kube, held("well", "gpu-1"))
        async with agent(tmp_path, kube, backend) as node, node.channel() as channel:
            await prepare(node, body)
            await prepare(node, well)
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            first = await next_health(stream)
            assert first is not None
            assert [d.health for d in first.devices] == [health_v1alpha1_pb2.HEALTHY] * 2
            backend.ail(0, OFF_THE_BUS, code=79)
            async with asyncio.timeout(60):
                second = await next_health(stream)
            assert second is not None
            assert [(d.device.device_name, d.health, d.message) for d in second.devices] == [
                ("gpu-0", health_v1alpha1_pb2.UNHEALTHY, "Xid79: XID 79: off the bus"),
                ("gpu-1", health_v1alpha1_pb2.HEALTHY, ""),
            ]
            await eventually(lambda: kube.applied)
            stored = kube.raw(RESOURCE_CLAIMS, "sick", "ns")
            assert stored is not None
            entries = {d["driver"]: d for d in stored["status"]["devices"]}
            assert entries["other.example.com"].items() >= other.items()
            (condition,) = entries[DRIVER]["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == (
                "Healthy",
                "False",
                "Xid79",
            )
            await eventually(lambda: len(events(kube)) == 2)
            assert sorted(events(kube)) == [
                ("Node", NODE, "DeviceUnhealthy"),
                ("Pod", "trainer", "DeviceUnhealthy"),
            ]
            backend.ail(0)
            await eventually(lambda: len(kube.applied) == 2)
            assert applied_conditions(kube, 1)[0]["status"] == "True"
            await eventually(lambda: ("Node", NODE, "DeviceRecovered") in events(kube))
        assert {manager for manager, _ in kube.applied} == {"dra-driver-kubelet-plugin-health"}
        # The claim on the other device was never touched.
        assert ("get", "ResourceClaim", "well", "") in kube.calls
        assert "devices" not in (kube.raw(RESOURCE_CLAIMS, "well", "ns") or {})["status"]

    asyncio.run(main())


def test_a_pod_that_joins_a_prepared_claim_is_told_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, held("shared", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node:
            await prepare(node, body)
            # The kubelet does not call a second time for the second pod.
            joined = {"resource": "pods", "name": "evaluator", "uid": "u-2"}
            body["status"]["reservedFor"] = [POD, joined]
            add_claim(kube, body)
            backend.ail(0, OFF_THE_BUS, code=79)
            told = {("Pod", name, "DeviceUnhealthy") for name in ("trainer", "evaluator")}
            await eventually(lambda: told <= set(events(kube)))
            text = node.plugin.observation.metrics.render(()).decode()
            info = [x for x in text.splitlines() if x.startswith("dra_driver_device_claim_info{")]
            assert ['pod="trainer"' in info[0], 'pod="evaluator"' in info[1], len(info)] == [True, True, 2]
            # What cannot be read any more stays, and unprepare does not need it.
            kube.down = True
            await node.plugin.observation._reservations.refresh()
            state = node.plugin.observation.state()
            pods = [p["name"] for p in state["claims"][0]["pods"]]  # type: ignore[index]
            assert pods == ["trainer", "evaluator"]
            kube.down = False
            body["status"]["reservedFor"] = [joined]
            add_claim(kube, body)
            await node.plugin.observation._reservations.refresh()
            text = node.plugin.observation.metrics.render(()).decode()
            (healthy,) = [x for x in text.splitlines() if x.startswith("dra_driver_device_healthy{")]
            assert 'pod="evaluator"' in healthy

    asyncio.run(main())


def test_a_claim_of_a_template_is_not_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = held("own", "gpu-0")
        body["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
        add_claim(kube, body)
        async with agent(tmp_path, kube, backend) as node:
            await prepare(node, body)
            before = kube.calls.count(Call("get", "ResourceClaim", "own", ""))
            await node.plugin.observation._reservations.refresh()
            assert kube.calls.count(Call("get", "ResourceClaim", "own", "")) == before

    asyncio.run(main())


def test_a_claim_prepared_on_a_device_that_is_ill_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, held("late", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node:
            backend.ail(0, OFF_THE_BUS)
            await eventually(lambda: node.plugin._table.devices[0].device.health)
            await prepare(node, body)
            await eventually(lambda: kube.applied)

    asyncio.run(main())


def test_what_an_earlier_plugin_wrote_is_set_right_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, held("once-sick", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node:
            await prepare(node, body)
            backend.ail(0, OFF_THE_BUS)
            await eventually(lambda: kube.applied)
        async with agent(tmp_path, kube, SickBackend(1)):
            await eventually(lambda: len(kube.applied) == 2)
            assert applied_conditions(kube, 1)[0]["status"] == "True"

    asyncio.run(main())


def test_a_refusal_costs_only_the_condition(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)

        def forbid(verb: str, *_: str) -> None:
            if verb == "apply":
                raise Forbidden("may not patch resourceclaims/status", code=403)

        kube.before = forbid
        body = add_claim(kube, held("refused", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node:
            await prepare(node, body)
            backend.ail(0, OFF_THE_BUS)
            await eventually(lambda: ("Pod", "trainer", "DeviceUnhealthy") in events(kube))
            assert kube.applied == []
            # Allowed again, it is written at the next occasion.
            kube.before = lambda *_: None
            backend.ail(0, OFF_THE_BUS, DeviceHealth(reason="Worse", severity="degraded"))
            await eventually(lambda: kube.applied)

    asyncio.run(main())


def test_messages_to_the_kubelet_have_at_most_1024_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        backend.ail(0, DeviceHealth(reason="Long", severity="degraded", message="ü" * 1000))
        async with agent(tmp_path, kube, backend) as node, node.channel() as channel:
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            message = await next_health(stream)
            assert message is not None
            assert len(message.devices[0].message.encode()) <= 1024

    asyncio.run(main())


def test_a_device_that_vanished_from_under_a_claim_is_listed_as_ill(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(2)
        body = add_claim(kube, held("orphaned", "gpu-1"))
        async with agent(tmp_path, kube, backend) as node, node.channel() as channel:
            await prepare(node, body)
            backend.devices = backend.devices[:1]
            await node.plugin._table.scan()
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            message = await next_health(stream)
            assert message is not None
            assert [(d.device.device_name, d.health) for d in message.devices] == [
                ("gpu-0", health_v1alpha1_pb2.HEALTHY),
                ("gpu-1", health_v1alpha1_pb2.UNHEALTHY),
            ]
            await eventually(lambda: kube.applied)
            assert applied_conditions(kube, 0)[0]["reason"] == "NotFound"

    asyncio.run(main())


async def fetch(node: Node, path: str) -> tuple[int, str]:
    await eventually(lambda: node.plugin.observation.address)
    host, port = node.plugin.observation.address or ("", 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, await answer.text()


def test_metrics_name_the_claim_and_pod_that_hold_a_device(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(2)
        backend.samples = [
            DeviceSample("gpu-0", utilization=0.25, memory_used=1024, temperature=50.0),
            DeviceSample("gpu-1", power=70.5),
        ]
        body = add_claim(kube, held("train", "gpu-0"))
        async with agent(tmp_path, kube, backend, metrics_address="127.0.0.1:0") as node:
            await prepare(node, body)
            backend.ail(0, OFF_THE_BUS, code=79)
            await eventually(lambda: kube.applied)
            status, text = await fetch(node, "/metrics")
            lines = text.splitlines()
        assert status == 200
        labels = 'claim="train",device="gpu-0",model="A100",namespace="ns",pod="trainer",uuid="GPU-0"'
        for line in (
            f"dra_driver_device_utilization_ratio{{{labels}}} 0.25",
            f"dra_driver_device_memory_used_bytes{{{labels}}} 1024.0",
            f"dra_driver_device_temperature_celsius{{{labels}}} 50.0",
            f"dra_driver_device_healthy{{{labels}}} 0.0",
            f'dra_driver_device_xid_errors_total{{{labels},xid="79"}} 1.0',
            (
                'dra_driver_device_power_watts{claim="",device="gpu-1",model="A100",namespace="",pod="",uuid="GPU-1"}'
                " 70.5"
            ),
            'dra_driver_claim_operations_total{operation="prepare",result="success"} 1.0',
            'dra_driver_prepared_claims{state="prepared"} 1.0',
            'dra_driver_store_errors_total{store="checkpoint"} 0.0',
            "dra_driver_registrations_total 0.0",
        ):
            assert sorted_labels(line) in {sorted_labels(x) for x in lines}, line
        assert not any(x.startswith("dra_driver_device_power_watts") and "GPU-0" in x for x in lines)

    asyncio.run(main())


def sorted_labels(line: str) -> tuple[str, tuple[str, ...], str]:
    name, brace, rest = line.partition("{")
    inner, _, value = rest.rpartition("}") if brace else ("", "", line)
    return name, tuple(sorted(inner.split(","))), value.strip()


def test_errors_are_counted_by_what_failed(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, claim("c", "gpu-0"))
        async with agent(tmp_path, kube, backend, metrics_address="127.0.0.1:0") as node:
            node.config.cdi_dir.rmdir()
            node.config.cdi_dir.write_text("in the way")
            async with node.channel() as channel:
                reference = dra_v1_pb2.Claim(namespace="ns", name="c", uid=body["metadata"]["uid"])
                await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                    dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
                )
            _, text = await fetch(node, "/metrics")
            assert 'dra_driver_claim_operations_total{operation="prepare",result="error"} 1.0' in text
            (count,) = [
                x for x in text.splitlines() if x.startswith('dra_driver_store_errors_total{store="cdi"')
            ]
            assert float(count.rpartition(" ")[2]) >= 1
            node.config.cdi_dir.unlink()

    asyncio.run(main())


def test_names_are_for_those_who_may_and_probes_are_for_all(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        settings = {"metrics_address": "127.0.0.1:0", "http_authorization": "rbac"}
        async with agent(tmp_path, kube, backend, **settings) as node:
            for path in ("/metrics", "/debug/state"):
                status, text = await fetch(node, path)
                assert status == 401
                assert "gpu-0" not in text
            assert await fetch(node, "/healthz") == (200, "ok\n")
            assert (await fetch(node, "/readyz"))[0] == 503  # it is not registered, and says so

    asyncio.run(main())


def test_probes_ask_the_real_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        async with agent(tmp_path, kube, backend, metrics_address="127.0.0.1:0") as node:
            assert await fetch(node, "/healthz") == (200, "ok\n")
            assert (await fetch(node, "/readyz"))[0] == 503
            await node.register()
            assert await fetch(node, "/readyz") == (200, "ok\n")
            await node.plugin._dra.stop(0)
            status, why = await fetch(node, "/healthz")
            assert status == 503
            assert "does not answer" in why

    asyncio.run(main())


def test_debug_state_shows_claims_and_devices(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, held("train", "gpu-0"))
        async with agent(tmp_path, kube, backend, metrics_address="127.0.0.1:0") as node:
            await prepare(node, body)
            state = msgspec.json.decode((await fetch(node, "/debug/state"))[1])
        assert [d["uuid"] for d in state["devices"]] == ["GPU-0"]
        (seen,) = state["claims"]
        assert (seen["name"], seen["state"]) == ("train", "PrepareCompleted")
        assert seen["pods"] == [{"name": "trainer", "uid": "pod-uid"}]

    asyncio.run(main())


def test_the_mode_that_partitions_need_is_no_ailment_of_them() -> None:
    mode = DeviceHealth(reason="Divided", severity="degraded")
    gpu = DiscoveredDevice(
        InventoryDevice(name="gpu-0", health=(mode, OFF_THE_BUS)),
        "GPU-0",
        partitioning=PartitioningMode("divided mode", mode),
    )
    where = PartitionRecord(gpu="gpu-0", profile="1g.5gb", profile_id=19, start=0, size=1)
    part = PreparedDevice(requests=("gpu",), pool=PoolName(NODE), device="gpu-0-mig", partition=where)
    whole = PreparedDevice(requests=("gpu",), pool=PoolName(NODE), device="gpu-0")
    assert ailments(part, {"gpu-0": gpu}) == (OFF_THE_BUS,)
    assert ailments(whole, {"gpu-0": gpu}) == (mode, OFF_THE_BUS)
    assert [h.reason for h in ailments(part, {})] == ["NotFound"]


def test_what_discovery_could_not_look_at_is_not_taken_for_gone(tmp_path: Path) -> None:
    async def main() -> None:
        kube, backend = FakeClient(), SickBackend(1)
        body = add_claim(kube, held("waiting", "gpu-0"))
        async with agent(tmp_path, kube, backend) as node:
            await prepare(node, body)

        class Unloaded(SickBackend):
            def discover(self) -> Sequence[DiscoveredDevice]:
                raise DiscoveryError("the driver is not loaded")

        async with agent(tmp_path, kube, Unloaded(1)) as node, node.channel() as channel:
            stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            message = await next_health(stream)
            assert message is not None
            assert list(message.devices) == []
            await asyncio.sleep(0.1)
        assert kube.applied == []

    asyncio.run(main())


def test_xids_of_many_claims_do_not_fill_the_memory() -> None:
    names = iter(range(10_000))
    metrics = Metrics(
        Sources(
            devices=lambda: [device(0)],
            claims=lambda: [
                PreparedClaim(
                    uid=Uid("u"),
                    namespace="ns",
                    name=f"c{next(names)}",
                    state=ClaimState.COMPLETED,
                    devices=(PreparedDevice(requests=("gpu",), pool=PoolName(NODE), device="gpu-0"),),
                )
            ],
            failures=dict,
            registrations=lambda: 0,
            registered=lambda: True,
        )
    )
    for _ in range(1500):
        metrics.event(HealthEvent("GPU-0", "Xid31", "info", "", 31))
    text = metrics.render(()).decode()
    assert sum(x.startswith("dra_driver_device_xid_errors_total") for x in text.splitlines()) == 1000
    assert 'claim="c1499"' in text
