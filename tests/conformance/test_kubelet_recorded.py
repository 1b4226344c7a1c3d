"""The calls that a real kubelet made (1.36, recorded), replayed against the plugin.

The recordings are of plugins made for the purpose, some of which failed on purpose; what is replayed is the
kubelet's side: registrations, confirmations and refusals, prepare and unprepare with their claims, order,
overlap and deadlines, health streams, plugins that end or are killed. Ours has to serve all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from fake_client import FakeClient
from kubelet_calls import records
from node_agent import NODE, Backend, add_claim, claim, device, next_health

from dra_driver.api.core import NODES
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from kubelet_plugin.app import Plugin
from kubelet_plugin.config import Configuration, Timings

RECORDED = Path(__file__).parent / "data/kubelet_calls.json.gz"
VERSIONS = {"v1": (dra_v1_pb2, dra_v1_pb2_grpc), "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)}
CALLS = {"NodePrepareResources": "Prepare", "NodeUnprepareResources": "Unprepare"}
Event = dict[str, Any]


@cache
def recorded() -> dict[str, list[Event]]:
    transcripts: dict[str, list[Event]] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return transcripts


class Instance:
    """One plugin, as the recording has it."""

    def __init__(self, plugin: Plugin, config: Configuration, stop: asyncio.Event, task: Any) -> None:
        self.plugin, self.config, self.stop, self.task = plugin, config, stop, task
        self.channel = grpc.aio.insecure_channel(f"unix:{config.dra_socket}")
        self.registrar = grpc.aio.insecure_channel(f"unix:{config.registrar_socket}")
        self.streams: list[asyncio.Task[Any]] = []

    async def end(self) -> None:
        for stream in self.streams:
            stream.cancel()
        self.stop.set()
        await self.task
        await self.channel.close(None)
        await self.registrar.close(None)
        assert not self.config.dra_socket.exists()
        assert not self.config.registrar_socket.exists()


class Replay:
    """The kubelet's part, event by event."""

    def __init__(self, root: Path, events: list[Event]) -> None:
        self.root = root
        self.events = events
        self.kube = FakeClient()
        self.kube.put(NODES, {"metadata": {"name": NODE}})
        self.instances: dict[str, Instance] = {}
        self.requests = self._requests()
        self.devices = {uid: f"gpu-{i}" for i, uid in enumerate(self.requests)}
        # By driver and claim.
        self.answers: dict[tuple[str, str], Any] = {}
        self.prepared: set[tuple[str, str]] = set()
        self.under_way: list[tuple[set[str], asyncio.Task[None], float]] = []

    def _requests(self) -> dict[str, list[str]]:
        """Every claim's requests, as far as an answer names them."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            for c in event.get("req", {}).get("claims", ()):
                found.setdefault(c["uid"], [])
        for event in self.events:
            for uid, answer in event.get("resp", {}).get("claims", {}).items():
                names = [n for d in answer.get("devices", ()) for n in d.get("requestNames", ())]
                if uid in found and not found[uid]:
                    found[uid] = names
        return found

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self.tasks:
            for event in self.events:
                await self._one(event)
            await self._finish(lambda uids, at: True)
            for name in list(self.instances):
                await self.instances.pop(name).end()
        for driver in {e["driver"] for e in self.events}:
            self._check_state(driver)

    async def _one(self, event: Event) -> None:
        kind, name = event["ev"], event["inst"]
        if kind == "signal_plugin":
            await self._finish(lambda uids, at: True)
            if name in self.instances:
                await self.instances.pop(name).end()
            return
        if kind == "start_plugin":
            if name in self.instances:
                await self.instances.pop(name).end()
            return
        if kind.endswith((".resp", ".rpc_error", ".hang_end")):
            answered = set(event.get("resp", {}).get("claims", event.get("resp", {})))
            await self._finish(lambda uids, at: bool(uids & answered))
            return
        instance = await self._instance(name, event["driver"])
        match kind:
            case "GetInfo":
                await self._get_info(instance, event)
            case "NotifyRegistrationStatus":
                status = pluginregistration_pb2.RegistrationStatus(**event["req"])
                stub = pluginregistration_pb2_grpc.RegistrationStub(instance.registrar)
                await stub.NotifyRegistrationStatus(status, timeout=event["deadline"])
            case "NodeWatchResources":
                await self._watch(instance)
            case _:
                # A call whose answer the recording does not have was an error or a timeout there.
                uids = {c["uid"] for c in event["req"]["claims"]}
                await self._finish(lambda of, at: bool(of & uids) and event["dt"] - at > 0.1)
                work = self.tasks.create_task(self._call(instance, event))
                self.under_way.append((uids, work, event["dt"]))
                await asyncio.sleep(0)

    async def _finish(self, which: Any) -> None:
        for entry in [e for e in self.under_way if which(e[0], e[2])]:
            self.under_way.remove(entry)
            await entry[1]

    async def _instance(self, name: str, driver: str) -> Instance:
        if name in self.instances:
            return self.instances[name]
        same = [i for i in self.instances.values() if i.config.driver_name == driver]
        config = Configuration(
            node_name=NODE,
            driver_name=driver,
            plugins_dir=self.root / "p",
            registry_dir=self.root / "r",
            cdi_dir=self.root / "cdi",
            rescan_seconds=3600.0,
            instance_id=name if same or name.startswith("w") else "",
        )
        assert config.findings() == ()
        devices = [device(i) for i in range(len(self.devices))]
        plugin = Plugin(
            config,
            client=self.kube,
            backends=[Backend(devices)],
            timings=Timings(handover=0.01),
            settle_seconds=0.05,
        )
        stop = asyncio.Event()
        task = self.tasks.create_task(plugin.run(stop))
        await asyncio.wait_for(plugin.ready.wait(), 60)
        self.instances[name] = instance = Instance(plugin, config, stop, task)
        return instance

    async def _get_info(self, instance: Instance, event: Event) -> None:
        stub = pluginregistration_pb2_grpc.RegistrationStub(instance.registrar)
        info = await stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=event["deadline"])
        assert (info.type, info.name) == ("DRAPlugin", event["driver"])
        # The kubelet connects to it as it stands, and takes the first version that it knows.
        assert Path(info.endpoint).is_absolute()
        assert Path(info.endpoint).is_socket()
        assert next(v for v in info.supported_versions if v in ("v1.DRAPlugin", "v1beta1.DRAPlugin"))

    async def _watch(self, instance: Instance) -> None:
        stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(instance.channel)
        stream = stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
        first = await asyncio.wait_for(next_health(stream), 60)
        assert first is not None
        names = {d.device.device_name for d in first.devices}
        assert names == set(self.devices.values())

        async def hold() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                while await next_health(stream) is not None:
                    pass

        instance.streams.append(self.tasks.create_task(hold()))

    async def _call(self, instance: Instance, event: Event) -> None:
        pb, rpc = VERSIONS[event["ver"]]
        claims = event["req"]["claims"]
        verb = event["ev"]
        if verb == "NodePrepareResources":
            for c in claims:
                self._allocate(c)
        request = getattr(pb, f"{verb}Request")(claims=[pb.Claim(**c) for c in claims])
        answer = await getattr(rpc.DRAPluginStub(instance.channel), verb)(request, timeout=event["deadline"])
        assert set(answer.claims) == {c["uid"] for c in claims}
        for c in claims:
            uid = c["uid"]
            assert answer.claims[uid].error == "", (event, answer.claims[uid].error)
            if verb == "NodeUnprepareResources":
                self.prepared.discard((instance.config.driver_name, uid))
                self.answers.pop((instance.config.driver_name, uid), None)
            else:
                self.prepared.add((instance.config.driver_name, uid))
                self._check_answer(instance, uid, answer.claims[uid])

    def _allocate(self, reference: Event) -> None:
        """The claim as the API server has it: with a device of every driver that is asked to prepare it."""
        uid = reference["uid"]
        names = self.requests[uid] or ["g"]
        body = claim(reference["name"], uid=uid, request=names[0])
        body["metadata"]["namespace"] = reference["namespace"]
        drivers = {e["driver"] for e in self.events if reference in e.get("req", {}).get("claims", ())}
        results = body["status"]["allocation"]["devices"]["results"]
        for driver in sorted(drivers):
            result = {"request": names[0], "driver": driver, "pool": NODE, "device": self.devices[uid]}
            results.append(result)
        add_claim(self.kube, body)

    def _check_answer(self, instance: Instance, uid: str, answer: Any) -> None:
        (got,) = answer.devices
        assert (got.pool_name, got.device_name) == (NODE, self.devices[uid])
        assert list(got.request_names) == (self.requests[uid] or ["g"])[:1]
        for name in got.cdi_device_ids:
            kind, _, _ = name.partition("=")
            assert kind == f"k8s.{instance.config.driver_name}/claim"
        file = self.root / "cdi" / f"k8s.{instance.config.driver_name}-claim_{uid}.json"
        assert file.exists()
        same = self.answers.setdefault((instance.config.driver_name, uid), answer)
        assert list(same.devices) == list(answer.devices)

    def _check_state(self, driver: str) -> None:
        checkpoint = self.root / "p" / driver / "checkpoint.json"
        left = records(checkpoint) if list(checkpoint.parent.glob(f"{checkpoint.name}*")) else {}
        assert set(left) == {uid for of, uid in self.prepared if of == driver}
        files = {p.name for p in (self.root / "cdi").glob(f"k8s.{driver}-claim_*")}
        assert files == {f"k8s.{driver}-claim_{uid}.json" for uid in left}


@pytest.mark.parametrize("name", recorded())
def test_recorded_calls_are_served(name: str, tmp_path: Path) -> None:
    asyncio.run(Replay(tmp_path, recorded()[name]).run())


def test_the_recordings_are_worth_it() -> None:
    events = [e for transcript in recorded().values() for e in transcript]
    kinds = [e["ev"] for e in events]
    assert kinds.count("NodePrepareResources") >= 90
    assert kinds.count("NodeUnprepareResources") >= 85
    assert kinds.count("GetInfo") >= 90
