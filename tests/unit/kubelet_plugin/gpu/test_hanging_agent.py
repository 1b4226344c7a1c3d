"""Real node agents whose NVIDIA library does not come back: what they say, what goes on, how they end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import nvml_stub_support as stub
import pytest
from forked import ForkedChild, fork
from manifest_files import documents
from node_agent import DRIVER, NODE, claim, nvidia_nodes
from paths import PROJECT

from dra_driver.api.own.inventory import inventory_name
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc, health_v1alpha1_pb2, health_v1alpha1_pb2_grpc

WHOLE, CUT = "gpu-0000-3b-00-0", "gpu-0000-07-00-0"
PARTITION = f"{CUT}-mig-3g-40gb-4"
PATIENCE = 60.0
# The DaemonSet's, after which the kubelet kills.
GRACE = 50.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.shared(tmp_path_factory)


class Machine:
    """A node with two GPUs, one of which can be cut, an API server, and agents one after the other."""

    def __init__(self, root: Path, library: Path, server: ApiServer, other: str = "T4") -> None:
        self.root = root
        self.library = library
        self.server = server
        self.process: ForkedChild | None = None
        self.url = ""
        gpus = [
            stub.Gpu("H100-80", "00000000:07:00.0", 3, "GPU-cut", extra=["supported_events 0xFFFF"]),
            stub.Gpu(other, "00000000:3b:00.0", 4, "GPU-whole", extra=["supported_events 0xFFFF"]),
        ]
        (root / "nvml.conf").write_text(stub.config(gpus))
        (root / "sys/module/nvidia").mkdir(parents=True)
        minors = root / "proc/driver/nvidia-caps/mig-minors"
        minors.parent.mkdir(parents=True)
        lines = [
            f"gpu{n}/gi{g}/access {3 + 135 * n + 9 * g}\ngpu{n}/gi{g}/ci0/access {4 + 135 * n + 9 * g}\n"
            for n in (3, 4)
            for g in range(15)
        ]
        minors.write_text("".join(lines))
        nvidia_nodes(root)

    def hang(self, *functions: str) -> None:
        """Calls of these functions of the library do not come back from now on."""
        (self.root / "hang").write_text("\n".join(functions))

    def add(self, name: str, device: str) -> dict[str, Any]:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim(name, device)}
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        self.server.store.collection("resource.k8s.io", "resourceclaims").put(Key("ns", name), body)
        return body

    async def start(self, *more: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        root = self.root
        arguments = [
            *(f"--kubeconfig={root}/kubeconfig", f"--node-name={NODE}", f"--plugins-dir={root}/plugins"),
            *(f"--registry-dir={root}/registry", f"--cdi-dir={root}/cdi", f"--state-dir={root}/state"),
            *(f"--procfs-root={root}/proc", f"--sysfs-root={root}/sys", f"--dev-root={root}/dev"),
            *(f"--host-root={root}", "--backend=nvml", f"--metrics-address=127.0.0.1:{port}"),
            *("--rescan-interval=1", "--scan-deadline=1", *more),
        ]
        environment = {
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_STUB_CONFIG": str(root / "nvml.conf"),
            "NVML_STUB_STATE": str(root / "stub"),
            "NVML_STUB_HANG": str(root / "hang"),
        }
        command = ["kubelet-plugin", "--log-level=warning", *arguments]
        with (root / "stderr").open("ab") as errors:
            self.process = await fork(command, environment, errors.fileno())

    async def stop(self) -> int:
        """SIGTERM, and the exit status; the kubelet would wait no longer."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(GRACE):
            return await self.process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        assert self.process is not None
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            while True:
                assert self.process.returncode is None, (self.root / "stderr").read_text()
                try:
                    async with session.get(f"{self.url}{path}") as answer:
                        return answer.status, await answer.text()
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)

    async def until_ready(self) -> None:
        """Registers the agent as the kubelet does, and waits until it knows its devices."""
        async with asyncio.timeout(PATIENCE):
            while len(json.loads((await self.get("/debug/state"))[1])["devices"]) < 2:
                await asyncio.sleep(0.05)
            while not list((self.root / "registry").glob("*.sock")):
                await asyncio.sleep(0.05)

    async def state(self) -> dict[str, Any]:
        """The state page."""
        return dict(json.loads((await self.get("/debug/state"))[1]))

    async def conditions(self, device: str, *wanted: str) -> list[dict[str, Any]]:
        """What is wrong with a device, as soon as it is that."""
        async with asyncio.timeout(PATIENCE):
            while True:
                (found,) = (d for d in (await self.state())["devices"] if d["name"] == device)
                wrong = [h for h in found.get("health", ()) if h["severity"] != "info"]
                if [h["reason"] for h in wrong] == list(wanted):
                    return wrong
                await asyncio.sleep(0.1)

    async def backend(self, state: str) -> dict[str, Any]:
        """What the state page says of the backend, as soon as its state is this one."""
        async with asyncio.timeout(PATIENCE):
            while True:
                (found,) = json.loads((await self.get("/debug/state"))[1])["backends"]
                if found["state"] == state:
                    return dict(found)
                await asyncio.sleep(0.1)

    async def condition(self, status: str) -> dict[str, Any]:
        """The condition ``Discovered`` of the inventory, as soon as it has this status."""
        name = inventory_name(NODE, DRIVER)
        async with asyncio.timeout(PATIENCE):
            while True:
                held = self.server.store.collection("dra-driver.dev", "deviceinventories").get(Key("", name))
                found = (held.raw if held is not None else {}).get("status", {}).get("conditions", [])
                if mine := [c for c in found if c["type"] == "Discovered" and c["status"] == status]:
                    return dict(mine[0])
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        (path,) = (self.root / "plugins" / DRIVER).glob("dra*.sock")
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield channel

    async def call(self, verb: str, body: dict[str, Any]) -> str:
        meta = body["metadata"]
        reference = dra_v1_pb2.Claim(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        async with self.channel() as channel:
            plugin = dra_v1_pb2_grpc.DRAPluginStub(channel)
            if verb == "prepare":
                request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
                return str((await plugin.NodePrepareResources(request)).claims[meta["uid"]].error)
            end = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
            return str((await plugin.NodeUnprepareResources(end)).claims[meta["uid"]].error)

    async def health(self) -> set[int]:
        """What the kubelet is told of the devices."""
        async with self.channel() as channel:
            service = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(channel)
            stream = service.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest())
            message = await stream.read()
            assert isinstance(message, health_v1alpha1_pb2.NodeWatchResourcesResponse)
            return {d.health for d in message.devices}


@asynccontextmanager
async def machine(root: Path, library: Path, other: str = "T4") -> AsyncIterator[Machine]:
    server = ApiServer()
    files = (PROJECT / "deploy/manifests/crds").glob("*.yaml")
    await server.install(documents(*files))
    await server.install([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}])
    await server.start()
    server.write_kubeconfig(root / "kubeconfig")
    node = Machine(root, library, server, other)
    try:
        yield node
    finally:
        if node.process is not None and node.process.returncode is None:
            node.process.send_signal(signal.SIGKILL)
            await node.process.wait()
        await server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetCount_v2",  # the look at the hardware
        pytest.param("nvmlDeviceGetTotalEccErrors", marks=pytest.mark.long),  # what it asks about health
        pytest.param("nvmlDeviceGetTemperature", marks=pytest.mark.long),  # samples
        pytest.param("nvmlEventSetWait_v2", marks=pytest.mark.long),  # the wait for events
    ],
)
def test_a_library_that_hangs_is_told_and_keeps_no_process(
    library: Path, tmp_path: Path, function: str
) -> None:
    async def life() -> None:
        async with machine(tmp_path, library) as node:
            await node.start()
            await node.until_ready()
            before = node.add("before", WHOLE)
            assert await node.call("prepare", before) == ""
            assert await node.health() == {health_v1alpha1_pb2.HEALTHY}
            node.hang(function)
            if function == "nvmlDeviceGetTemperature":
                await node.get("/metrics")
            page = await node.backend("hanging")
            assert "has not ended" in page["message"]
            assert (await node.condition("Unknown"))["reason"] == "DriverHanging"
            assert (await node.get("/readyz"))[0] == 503
            assert await node.health() == {health_v1alpha1_pb2.UNKNOWN}
            metrics = (await node.get("/metrics"))[1]
            assert 'dra_driver_backend_state{backend="nvml",state="hanging"} 1.0' in metrics
            # What the library is not needed for.
            assert await node.call("unprepare", before) == ""
            after = node.add("after", WHOLE)
            assert await node.call("prepare", after) == ""
            assert await node.stop() == 0
            # The next one finds what was durable, and the library still hangs at its start.
            await node.start()
            assert (await node.backend("hanging"))["backend"] == "nvml"
            node.hang()
            await node.backend("ok")
            await node.condition("True")
            assert await node.call("unprepare", after) == ""
            assert await node.stop() == 0

    asyncio.run(life())


@pytest.mark.slow
def test_one_gpu_that_hangs_costs_no_claim_of_another(library: Path, tmp_path: Path) -> None:
    async def life() -> None:
        async with machine(tmp_path, library) as node:
            await node.start("--scan-deadline=6")
            await node.until_ready()
            node.hang("nvmlDeviceGetTotalEccErrors GPU-whole")
            body = node.add("cut", PARTITION)
            assert await node.call("prepare", body) == ""
            hanging = await node.conditions(WHOLE, "DriverHanging")
            assert "a look at it that began at" in hanging[0]["message"]
            assert await node.call("unprepare", body) == ""
            (cut,) = (d for d in (await node.state())["devices"] if d["name"] == CUT)
            assert "DriverHanging" not in {h["reason"] for h in cut.get("health", ())}
            assert (await node.backend("ok"))["problems"]
            assert "has not ended" not in (await node.get("/readyz"))[1]
            node.hang()
            assert await node.conditions(WHOLE) == []
            assert await node.stop() == 0

    asyncio.run(life())


@pytest.mark.long
def test_an_agent_that_starts_beside_a_gpu_that_hangs_serves_the_others(
    library: Path, tmp_path: Path
) -> None:
    async def life() -> None:
        async with machine(tmp_path, library) as node:
            await node.start("--scan-deadline=6")
            await node.until_ready()
            first, whole = node.add("first", PARTITION), node.add("whole", WHOLE)
            assert await node.call("prepare", first) == ""
            assert await node.call("prepare", whole) == ""
            assert await node.stop() == 0
            node.hang("* GPU-whole")
            await node.start("--scan-deadline=6")
            while [d["name"] for d in (await node.state())["devices"]] != [CUT]:
                await asyncio.sleep(0.1)
            assert await node.conditions(CUT) == []
            assert {c["name"] for c in (await node.state())["claims"]} == {"first", "whole"}
            assert await node.call("unprepare", first) == ""
            assert await node.call("prepare", node.add("second", PARTITION)) == ""
            # What needs nothing of the hardware.
            assert await node.call("unprepare", whole) == ""
            node.hang()
            await node.until_ready()
            assert await node.conditions(WHOLE) == []

    asyncio.run(life())


@pytest.mark.long
def test_a_change_of_one_gpu_that_hangs_names_it_and_keeps_no_other(library: Path, tmp_path: Path) -> None:
    async def life() -> None:
        async with machine(tmp_path, library, other="H100-80") as node:
            await node.start("--scan-deadline=6")
            await node.until_ready()
            body = node.add("cut", PARTITION)
            node.hang("nvmlDeviceCreateGpuInstanceWithPlacement GPU-cut")
            calling = asyncio.create_task(node.call("prepare", body))
            await node.conditions(CUT, "DriverHanging")
            other = node.add("other", f"{WHOLE}-mig-3g-40gb-4")
            assert await node.call("prepare", other) == ""
            assert await node.call("unprepare", other) == ""
            assert await node.call("prepare", node.add("whole", WHOLE)) == ""
            error = await calling
            assert "GPU-cut" in error
            assert "does not answer" in error
            # What is refused meanwhile is refused because of this GPU, too.
            assert "GPU-cut" in await node.call("prepare", body)
            assert await node.conditions(WHOLE) == []
            node.hang()
            await node.conditions(CUT)
            assert await node.call("unprepare", body) == ""
            assert "instance" not in (tmp_path / "stub").read_text()

    asyncio.run(life())


# The agent waits 25 s for a call; ``test_passthrough_forms.py`` tries one that hangs inside this process.
@pytest.mark.long
@pytest.mark.parametrize("function", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"])
def test_a_change_of_a_gpu_that_hangs_is_told_and_repeated(
    library: Path, tmp_path: Path, function: str
) -> None:
    async def life() -> None:
        async with machine(tmp_path, library) as node:
            await node.start()
            await node.until_ready()
            body = node.add("cut", PARTITION)
            verb = "prepare" if "Create" in function else "unprepare"
            if verb == "unprepare":
                assert await node.call("prepare", body) == ""
            node.hang(function)
            calling = asyncio.create_task(node.call(verb, body))
            await node.backend("hanging")
            assert (await node.condition("Unknown"))["reason"] == "DriverHanging"
            whole = node.add("whole", WHOLE)
            assert await node.call("prepare", whole) == ""
            # The call under way is answered before the process ends without the thread.
            status = await node.stop()
            assert "does not answer" in await calling
            assert status == 0
            node.hang()
            await node.start()
            await node.until_ready()
            assert await node.call("unprepare", body) == ""
            assert not any(
                line.startswith("instance") for line in (tmp_path / "stub").read_text().split("\n")
            )
            assert await node.call("unprepare", whole) == ""

    asyncio.run(life())


@pytest.mark.slow
def test_an_end_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    """The last resort: whatever holds up the orderly end, the process is gone before it would be killed."""
    script = (
        "import threading; from kubelet_plugin.core import ending; "
        "ending.end_within(0.2); threading.Event().wait()"
    )

    async def life() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 1

    asyncio.run(life())
