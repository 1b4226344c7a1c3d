"""The plugins of a kubelet: found by their sockets, registered, called and lost.

The behaviour is that of the recorded kubelet: any failure of a registration is tried again per socket with
growing delays; the first entry of a plugin's list that the kubelet supports decides which version is spoken;
the newest connected instance of a driver gets the calls; a removed socket deregisters; slices of a driver
without a connected instance are wiped after a delay, unless one connects meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import structlog

from dra_driver.sim.kubelet.settings import KubeletSettings
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

__all__ = ["ClaimRef", "DeviceHealth", "Plugin", "PluginManager", "PreparedDevice", "choose_service"]

log = structlog.get_logger(__name__)

SUPPORTED = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
# A plugin that is back on its old socket is called again at once, not after gRPC's two minutes.
CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet sends it to a plugin."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device in the answer of a plugin."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One entry of the health stream; ``health`` is as in pod status."""

    pool: str
    device: str
    health: str
    message: str


def choose_service(driver: str, endpoint: str, offered: Sequence[str]) -> str:
    """Return the service that the kubelet calls.

    Raises:
        ValueError: none is supported; the text is the kubelet's.
    """
    prefix = f"invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: "
    if not offered:
        raise ValueError(prefix + "empty list of supported gRPC services (aka supported versions)")
    for service in offered:
        if service in SUPPORTED:
            return service

    def quoted(names: Sequence[str]) -> str:
        return "[" + " ".join(f'"{n}"' for n in names) + "]"

    raise ValueError(
        f"{prefix}none of services supported by the plugin ({quoted(offered)}) are supported by the kubelet "
        f"({quoted(SUPPORTED)})"
    )


class Plugin:
    """One registered instance of a driver: a connection to its endpoint."""

    def __init__(self, driver: str, endpoint: str, service: str, socket: Path, timeout: float) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.service = service
        self.socket = socket
        self.connected = False
        self._timeout = timeout
        self.channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=CHANNEL_OPTIONS)

    async def prepare(
        self, claims: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[tuple[PreparedDevice, ...], str]]:
        """Call NodePrepareResources.

        Returns:
            claim UID → the devices, and an error text that is empty on success.

        Raises:
            grpc.aio.AioRpcError: the call itself failed.
        """
        if self.service == "v1.DRAPlugin":
            answer = await dra_v1_pb2_grpc.DRAPluginStub(self.channel).NodePrepareResources(
                dra_v1_pb2.NodePrepareResourcesRequest(
                    claims=[dra_v1_pb2.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
                ),
                timeout=self._timeout,
            )
            return {
                uid: (
                    tuple(
                        PreparedDevice(
                            d.pool_name,
                            d.device_name,
                            tuple(d.request_names),
                            tuple(d.cdi_device_ids),
                            d.share_id,
                        )
                        for d in entry.devices
                    ),
                    entry.error,
                )
                for uid, entry in answer.claims.items()
            }
        old = await dra_v1beta1_pb2_grpc.DRAPluginStub(self.channel).NodePrepareResources(
            dra_v1beta1_pb2.NodePrepareResourcesRequest(
                claims=[dra_v1beta1_pb2.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
            ),
            timeout=self._timeout,
        )
        return {
            uid: (
                tuple(
                    PreparedDevice(
                        d.pool_name, d.device_name, tuple(d.request_names), tuple(d.cdi_device_ids)
                    )
                    for d in result.devices
                ),
                result.error,
            )
            for uid, result in old.claims.items()
        }

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """Call NodeUnprepareResources; return claim UID → an error text that is empty on success.

        Raises:
            grpc.aio.AioRpcError: the call itself failed.
        """
        if self.service == "v1.DRAPlugin":
            answer = await dra_v1_pb2_grpc.DRAPluginStub(self.channel).NodeUnprepareResources(
                dra_v1_pb2.NodeUnprepareResourcesRequest(
                    claims=[dra_v1_pb2.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
                ),
                timeout=self._timeout,
            )
            return {uid: entry.error for uid, entry in answer.claims.items()}
        old = await dra_v1beta1_pb2_grpc.DRAPluginStub(self.channel).NodeUnprepareResources(
            dra_v1beta1_pb2.NodeUnprepareResourcesRequest(
                claims=[dra_v1beta1_pb2.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
            ),
            timeout=self._timeout,
        )
        return {uid: result.error for uid, result in old.claims.items()}

    async def watch_health(self, report: Callable[[str, Sequence[DeviceHealth]], None], retry: float) -> None:
        """Keep a health stream open until cancelled, whether or not the plugin offers the service."""
        stub = health_v1alpha1_pb2_grpc.DRAResourceHealthStub(self.channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for answer in stub.NodeWatchResources(health_v1alpha1_pb2.NodeWatchResourcesRequest()):
                    report(self.driver, [_health(d) for d in answer.devices])
            await asyncio.sleep(retry)

    async def watch_connection(self, changed: Callable[[Plugin], None]) -> None:
        """Follow the state of the connection until cancelled."""
        state = self.channel.get_state(try_to_connect=True)
        while True:
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self.connected:
                self.connected = connected
                changed(self)
            await self.channel.wait_for_state_change(state)
            state = self.channel.get_state(try_to_connect=True)


def _health(device: health_v1alpha1_pb2.DeviceHealth) -> DeviceHealth:
    names = {health_v1alpha1_pb2.HEALTHY: "Healthy", health_v1alpha1_pb2.UNHEALTHY: "Unhealthy"}
    return DeviceHealth(
        device.device.pool_name,
        device.device.device_name,
        names.get(device.health, "Unknown"),
        device.message,
    )


@dataclass(slots=True)
class _Socket:
    """One socket in the registry directory.

    Attributes:
        identity: inode and mtime of the file; if they change, the plugin has made it again.
        task: registers the plugin, then follows its connection.
        plugin: the plugin, once it is registered.
    """

    identity: tuple[int, int]
    task: asyncio.Task[None] | None = None
    plugin: Plugin | None = None


@dataclass(slots=True)
class _Retry:
    """The delay of a path, which outlives the plugin: a new process on the path waits for its end, too."""

    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class PluginManager:
    """Watches the registry directory and holds the plugins.

    Attributes:
        wipe: deletes the slices of a driver on this node.
        report_health: called with every answer of a health stream.
    """

    registry: Path
    settings: KubeletSettings
    wipe: Callable[[str], Awaitable[None]]
    report_health: Callable[[str, Sequence[DeviceHealth]], None] = lambda _driver, _devices: None
    _sockets: dict[Path, _Socket] = field(default_factory=dict)
    _retries: dict[Path, _Retry] = field(default_factory=dict)
    _plugins: list[Plugin] = field(default_factory=list)
    _wipes: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _stopping: bool = False

    def plugin(self, driver: str) -> Plugin | None:
        """Return the instance that gets calls: the newest connected one, else the newest."""
        instances = [p for p in self._plugins if p.driver == driver]
        connected = [p for p in instances if p.connected]
        candidates = connected or instances
        return candidates[-1] if candidates else None

    @property
    def drivers(self) -> frozenset[str]:
        """The registered drivers."""
        return frozenset(p.driver for p in self._plugins)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            try:
                while True:
                    self._look(group)
                    await asyncio.sleep(self.settings.registry_tick)
            finally:
                self._stopping = True

    def _look(self, group: asyncio.TaskGroup) -> None:
        present = dict(_sockets_below(self.registry))
        for path, known in list(self._sockets.items()):
            if present.get(path) != known.identity:
                del self._sockets[path]
                if known.task is not None:
                    known.task.cancel()
        now = asyncio.get_running_loop().time()
        for path, identity in present.items():
            known_socket = self._sockets.setdefault(path, _Socket(identity))
            if known_socket.task is not None and not known_socket.task.done():
                continue
            if now >= self._retries.setdefault(path, _Retry()).not_before:
                known_socket.task = group.create_task(self._live(group, path, known_socket))

    async def _live(self, group: asyncio.TaskGroup, path: Path, socket: _Socket) -> None:
        retry = self._retries[path]
        plugin = await self._register(path)
        if plugin is None:
            delay = min(
                self.settings.registration_backoff * 2**retry.failures, self.settings.registration_cap
            )
            retry.failures = min(retry.failures + 1, 30)
            retry.not_before = asyncio.get_running_loop().time() + delay
            return
        retry.failures = 0
        socket.plugin = plugin
        self._plugins.append(plugin)
        log.info("plugin registered", driver=plugin.driver, service=plugin.service, socket=path.name)
        try:
            async with asyncio.TaskGroup() as own:
                own.create_task(plugin.watch_connection(lambda p: self._connection_changed(group, p)))
                own.create_task(plugin.watch_health(self.report_health, self.settings.health_retry))
        finally:
            self._plugins.remove(plugin)
            log.info("plugin deregistered", driver=plugin.driver, socket=path.name)
            if not self._stopping:
                self._connection_changed(group, plugin)
            await plugin.channel.close(None)

    async def _register(self, path: Path) -> Plugin | None:
        """Try once to register a plugin; a refusal is reported to it."""
        async with grpc.aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            try:
                info = await stub.GetInfo(
                    pluginregistration_pb2.InfoRequest(), timeout=self.settings.get_info_timeout
                )
            except grpc.aio.AioRpcError as e:
                log.info("GetInfo failed", socket=str(path), code=e.code().name, error=e.details())
                return None
            plugin, error = self._accept(info, path)
            try:
                await stub.NotifyRegistrationStatus(
                    pluginregistration_pb2.RegistrationStatus(
                        plugin_registered=plugin is not None,
                        error=f"RegisterPlugin error -- {error}" if error else "",
                    ),
                    timeout=self.settings.notify_timeout,
                )
            except grpc.aio.AioRpcError as e:
                log.info("NotifyRegistrationStatus failed", socket=str(path), code=e.code().name)
                if plugin is not None:
                    await plugin.channel.close(None)
                return None
            return plugin

    def _accept(self, info: pluginregistration_pb2.PluginInfo, path: Path) -> tuple[Plugin | None, str]:
        if info.type != "DRAPlugin":
            return None, f"no handler registered for plugin type: {info.type} at socket {path}"
        endpoint = info.endpoint or str(path)
        try:
            service = choose_service(info.name, endpoint, tuple(info.supported_versions))
        except ValueError as e:
            return None, f"plugin validation failed with err: {e}"
        if any(p.endpoint == endpoint and p.driver == info.name for p in self._plugins):
            return None, f"endpoint {endpoint} already registered for plugin {info.name}"
        return Plugin(info.name, endpoint, service, path, self.settings.call_timeout), ""

    def _connection_changed(self, group: asyncio.TaskGroup, plugin: Plugin) -> None:
        driver = plugin.driver
        pending = self._wipes.get(driver)
        if any(p.connected for p in self._plugins if p.driver == driver):
            if pending is not None:
                self._wipes.pop(driver).cancel()
        elif pending is None:
            wiping = self._wipe_later(driver)
            try:
                self._wipes[driver] = group.create_task(wiping)
            except RuntimeError:  # the kubelet is ending, and takes no more tasks
                wiping.close()

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self.settings.wipe_delay)
        self._wipes.pop(driver, None)
        await self.wipe(driver)


def _sockets_below(directory: Path) -> list[tuple[Path, tuple[int, int]]]:
    found: list[tuple[Path, tuple[int, int]]] = []
    for path in sorted(directory.rglob("*")) if directory.is_dir() else ():
        if path.name.startswith("."):
            continue
        with contextlib.suppress(OSError):  # deleted after it was listed
            if path.is_socket():
                status = path.stat()
                # Not ctime: a change of the file's mode does not make it a new one.
                found.append((path, (status.st_ino, status.st_mtime_ns)))
    return found
