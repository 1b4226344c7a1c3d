"""A DRA plugin made for tests: serves the kubelet's interfaces on real sockets, remembers the calls."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

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


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """pytest's own directories are too long for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="dt-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@dataclass
class FakePlugin:
    """Serves registration and DRA (v1 and v1beta1); ``calls`` has everything in order."""

    directory: Path
    registry: Path
    driver: str = "a.example.com"
    versions: Sequence[str] = ("v1.DRAPlugin",)
    type: str = "DRAPlugin"
    endpoint: str | None = None
    instance: str = ""
    claim_error: str = ""
    cdi: bool = True
    prepare_seconds: float = 0.0
    unprepare_seconds: float = 0.0
    health: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    get_info_failures: int = 0

    def __post_init__(self) -> None:
        self.dra_socket = self.directory / f"d{self.instance}.sock"
        self.reg_socket = self.registry / f"r{self.instance}.sock"
        self._dra: grpc.aio.Server | None = None
        self._reg: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._dra = grpc.aio.server()
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Dra(self, "v1", dra_v1_pb2), self._dra)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(
            _Dra(self, "v1beta1", dra_v1beta1_pb2), self._dra
        )
        health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(_Health(self), self._dra)
        self._dra.add_insecure_port(f"unix:{self.dra_socket}")
        await self._dra.start()
        self._reg = grpc.aio.server()
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(_Registration(self), self._reg)
        self._reg.add_insecure_port(f"unix:{self.reg_socket}")
        await self._reg.start()

    async def stop(self, *, keep_registration: bool = False) -> None:
        for server in (self._dra, None if keep_registration else self._reg):
            if server is not None:
                await server.stop(None)
        if not keep_registration:
            self.reg_socket.unlink(missing_ok=True)

    def notes(self) -> list[tuple[bool, str]]:
        return [value for name, value in self.calls if name == "Notify"]


class _Registration(pluginregistration_pb2_grpc.RegistrationServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self._plugin = plugin

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._plugin.calls.append(("GetInfo", asyncio.get_running_loop().time()))
        if self._plugin.get_info_failures:
            self._plugin.get_info_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        endpoint = self._plugin.endpoint
        return pluginregistration_pb2.PluginInfo(
            type=self._plugin.type,
            name=self._plugin.driver,
            endpoint=str(self._plugin.dra_socket) if endpoint is None else endpoint,
            supported_versions=self._plugin.versions,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._plugin.calls.append(("Notify", (request.plugin_registered, request.error)))
        return pluginregistration_pb2.RegistrationStatusResponse()


class _Dra(dra_v1_pb2_grpc.DRAPluginServicer, dra_v1beta1_pb2_grpc.DRAPluginServicer):
    def __init__(self, plugin: FakePlugin, version: str, messages: Any) -> None:
        self._plugin = plugin
        self._version = version
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        uids = [c.uid for c in request.claims]
        self._plugin.calls.append((f"Prepare {self._version}", uids))
        await asyncio.sleep(self._plugin.prepare_seconds)
        answer = self._messages.NodePrepareResourcesResponse()
        for uid in uids:
            if self._plugin.claim_error:
                answer.claims[uid].error = self._plugin.claim_error
                continue
            device = answer.claims[uid].devices.add()
            device.pool_name, device.device_name = "pool", "dev-0"
            device.request_names.append("g")
            if self._plugin.cdi:
                device.cdi_device_ids.append(f"a.example.com/dev=c-{uid}")
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        uids = [c.uid for c in request.claims]
        self._plugin.calls.append((f"Unprepare {self._version}", uids))
        while self._plugin.unprepare_seconds > 0:
            await asyncio.sleep(min(self._plugin.unprepare_seconds, 0.05))
            self._plugin.unprepare_seconds -= 0.05
        answer = self._messages.NodeUnprepareResourcesResponse()
        for uid in uids:
            answer.claims[uid].error = self._plugin.claim_error
        return answer


class _Health(health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self._plugin = plugin

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self._plugin.calls.append(("Watch", None))
        while True:
            healthy = await self._plugin.health.get()
            yield health_v1alpha1_pb2.NodeWatchResourcesResponse(
                devices=[
                    health_v1alpha1_pb2.DeviceHealth(
                        device=health_v1alpha1_pb2.DeviceIdentifier(pool_name="pool", device_name="dev-0"),
                        health=health_v1alpha1_pb2.HEALTHY if healthy else health_v1alpha1_pb2.UNHEALTHY,
                    )
                ]
            )


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Waits until ``condition()`` is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
