"""The node agent as the kubelet sees it: a real process, real sockets, files on a real disk.

One Python client plays the kubelet; the API server runs in the client's process, so its share of the work is
in the figures. The state directory is on the disk of the temporary directory, where fsync is what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import yaml

from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.assets import deploy_directory
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

DRIVER = "gpu.dra-driver.dev"
NODE = "bench-node"
DEVICES = 16
# Measured once with the same kind of client on another machine: a driver in Go of the same shape, 1.36.
GO = "a Go driver, measured elsewhere"

Row = dict[str, Any]


class Agent:
    """The process, its API server and a connection."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server = ApiServer()
        self.pid = 0
        self.seconds_to_registered = 0.0
        self.channel: grpc.aio.Channel
        self.stub: dra_v1_pb2_grpc.DRAPluginAsyncStub

    def allocate(self, device: int, **more: object) -> dra_v1_pb2.Claim:
        """A new claim, as the kubelet names it; more goes into its result."""
        name, uid = f"claim-{uuid.uuid4().hex[:8]}", str(uuid.uuid4())
        name_of_device = f"gpu-0000-{device:02x}-00-0"
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": name_of_device, **more}
        raw = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        self.server.store.collection("resource.k8s.io", "resourceclaims").put(Key("default", name), raw)
        return dra_v1_pb2.Claim(namespace="default", name=name, uid=uid)

    async def prepare(self, claim: dra_v1_pb2.Claim) -> float:
        """Milliseconds."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        started = time.perf_counter()
        answer = await self.stub.NodePrepareResources(request, timeout=45)
        spent = time.perf_counter() - started
        if error := answer.claims[claim.uid].error:
            raise RuntimeError(error)
        return spent * 1000

    async def unprepare(self, claim: dra_v1_pb2.Claim) -> float:
        """Milliseconds."""
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim])
        started = time.perf_counter()
        answer = await self.stub.NodeUnprepareResources(request, timeout=45)
        spent = time.perf_counter() - started
        if error := answer.claims[claim.uid].error:
            raise RuntimeError(error)
        return spent * 1000

    def resident_mib(self) -> float:
        """VmRSS."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")


def profile(root: Path) -> Path:
    """A node with sixteen GPUs."""
    gpus = [
        {"product": "H100-80", "pciAddress": f"0000:{i:02x}:00.0", "pcieRoot": f"pci0000:{i:02x}"}
        for i in range(DEVICES)
    ]
    path = root / "sixteen.yaml"
    text = {"description": "bench", "driverVersion": "580.105.08", "cudaDriverVersion": "13.0", "gpus": gpus}
    path.write_text(yaml.safe_dump(text))
    return path


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Agent]:
    """An agent that the kubelet has registered."""
    root = Path(tempfile.mkdtemp(prefix="dra-bench-"))
    agent = Agent(root)
    for file in sorted((deploy_directory("manifests") / "crds").glob("*.yaml")):
        await agent.server.install(d for d in yaml.safe_load_all(file.read_text()) if d)
    await agent.server.install([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}])
    await agent.server.start()
    agent.server.write_kubeconfig(root / "kubeconfig")
    command = [
        str(Path(sys.executable).with_name("dra-driver")),
        "kubelet-plugin",
        f"--node-name={NODE}",
        f"--kubeconfig={root}/kubeconfig",
        f"--plugins-dir={root}/plugins",
        f"--registry-dir={root}/registry",
        f"--cdi-dir={root}/cdi",
        f"--backend=simulated={profile(root)}",
        "--log-level=error",
    ]
    started = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command)
    agent.pid = process.pid
    try:
        await register(root / "registry" / f"{DRIVER}-reg.sock")
        agent.seconds_to_registered = time.perf_counter() - started
        agent.channel = grpc.aio.insecure_channel(f"unix:{root}/plugins/{DRIVER}/dra.sock")
        agent.stub = dra_v1_pb2_grpc.DRAPluginStub(agent.channel)
        yield agent
        await agent.channel.close(None)
    finally:
        os.kill(process.pid, signal.SIGTERM)
        await process.wait()
        await agent.server.stop()
        shutil.rmtree(root, ignore_errors=True)


async def register(socket: Path) -> None:
    """What the kubelet does when the socket appears; looked for every 5 ms instead of once a second."""
    async with asyncio.timeout(30):
        while not socket.is_socket():
            await asyncio.sleep(0.005)
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            await stub.GetInfo(pluginregistration_pb2.InfoRequest(), wait_for_ready=True)
            await stub.NotifyRegistrationStatus(
                pluginregistration_pb2.RegistrationStatus(plugin_registered=True)
            )


async def side_by_side(calls: Sequence[Callable[[], Awaitable[float]]]) -> list[float]:
    """All at once."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(_awaited(call)) for call in calls]
    return [t.result() for t in started]


async def _awaited(call: Callable[[], Awaitable[float]]) -> float:
    return await call()


def summary(name: str, times: list[float], p50: float = 0.0, p99: float = 0.0) -> list[Row]:
    """Two rows: p50 and p99."""
    ordered = sorted(times)
    values = (("p50", statistics.median(ordered), p50), ("p99", ordered[int(len(ordered) * 0.99)], p99))
    return [
        {
            "name": f"{name}, {which} of {len(times)}",
            "value": round(value, 3),
            "unit": "ms",
            **({"baseline": baseline, "baseline_of": GO} if baseline else {}),
        }
        for which, value, baseline in values
    ]


def fsync_ms(folder: Path, count: int = 100) -> float:
    """What one fsync of a small new file costs on this disk: the floor of every durable step."""
    times = []
    for i in range(count):
        with (folder / f"probe-{i}").open("wb") as file:
            file.write(b"x" * 4096)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


async def measure() -> list[Row]:
    """Everything, on one agent."""
    rows: list[Row] = []
    starts = []
    for _ in range(2):
        async with running() as agent:
            starts.append(agent.seconds_to_registered)
    async with running() as agent:
        starts.append(agent.seconds_to_registered)
        idle = agent.resident_mib()
        warm = agent.allocate(0)
        await agent.prepare(warm)
        new, undone = [], []
        repeated = [await agent.prepare(warm) for _ in range(200)]
        for i in range(208):
            claim = agent.allocate(1 + i % (DEVICES - 1))
            new.append(await agent.prepare(claim))
            undone.append(await agent.unprepare(claim))
        await agent.unprepare(warm)
        many_new, many_repeated, many_undone = [], [], []
        for _ in range(15):
            claims = [agent.allocate(i) for i in range(DEVICES)]
            many_new += await side_by_side([functools.partial(agent.prepare, c) for c in claims])
            many_repeated += await side_by_side([functools.partial(agent.prepare, c) for c in claims])
            many_undone += await side_by_side([functools.partial(agent.unprepare, c) for c in claims])
        after = agent.resident_mib()
        floor = fsync_ms(agent.root)
    rows.append({"name": "start to registered, best of 3", "value": round(min(starts), 3), "unit": "s"})
    rows.append(
        {
            "name": "resident, idle",
            "value": round(idle, 1),
            "unit": "MiB",
            "baseline": 45.2,
            "baseline_of": GO,
        }
    )
    rows.append(
        {
            "name": "resident, after",
            "value": round(after, 1),
            "unit": "MiB",
            "baseline": 49.2,
            "baseline_of": GO,
        }
    )
    rows.append({"name": "one fsync of a 4 KiB file, p50", "value": round(floor, 3), "unit": "ms"})
    rows += summary("prepare, new, 1 at a time", new, 1.35, 4.7)
    rows += summary("prepare, repeated, 1 at a time", repeated, 1.11, 5.1)
    rows += summary("unprepare, 1 at a time", undone, 0.30, 0.76)
    rows += summary("prepare, new, 16 at a time", many_new)
    rows += summary("prepare, repeated, 16 at a time", many_repeated)
    rows += summary("unprepare, 16 at a time", many_undone)
    return rows


def run() -> list[Row]:
    """See ``run.py``."""
    return asyncio.run(measure())
