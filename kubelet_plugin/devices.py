"""The devices of the node as discovery sees them, kept in memory so that prepare never waits for hardware."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor

import structlog

from dra_driver import cdi
from dra_driver.errors import DraError
from dra_driver.ports import CdiMaterial, DeviceBackend, DiscoveredDevice
from dra_driver.preparation import NodeDevice
from kubelet_plugin.signals import Changes

__all__ = ["DeviceTable"]

log = structlog.get_logger(__name__)


class DeviceTable:
    """What all backends found last.

    A backend that fails keeps what it found before: a driver that is being reloaded must not withdraw devices
    that pods use.

    Attributes:
        changes: notified when a scan found something else than the one before.
        complete: set when every backend has answered once.
    """

    def __init__(self, backends: Sequence[DeviceBackend], executor: Executor) -> None:
        self._backends = tuple(backends)
        self._executor = executor
        self._found: dict[int, tuple[DiscoveredDevice, ...]] = {}
        self._devices: dict[str, DiscoveredDevice] = {}
        self._published: Mapping[str, str] = {}
        self._view: Mapping[str, NodeDevice] = {}
        self.changes = Changes()
        self.complete = asyncio.Event()

    @property
    def devices(self) -> Sequence[DiscoveredDevice]:
        """Every device, in the order of discovery."""
        return tuple(self._devices.values())

    @property
    def for_prepare(self) -> Mapping[str, NodeDevice]:
        """Every device by name, as prepare needs it."""
        return self._view

    def published(self, uuids: Mapping[str, str]) -> None:
        """Notes name and uuid of the devices in the inventory that the API server has."""
        if uuids != self._published:
            self._published = dict(uuids)
            self._refresh()

    async def scan(self) -> None:
        """Asks every backend; never raises for hardware."""
        loop = asyncio.get_running_loop()
        for i, backend in enumerate(self._backends):
            try:
                self._found[i] = tuple(await loop.run_in_executor(self._executor, backend.discover))
            except DraError as e:
                log.error(
                    "discovery failed; what it found before stays",
                    backend=backend.name,
                    devices=len(self._found.get(i, ())),
                    error=str(e),
                )
        devices = _by_name(d for i in sorted(self._found) for d in self._found[i])
        if len(self._found) == len(self._backends):
            self.complete.set()
        if devices != self._devices or self.changes.count == 0:
            log.info("devices discovered", devices=len(devices), before=len(self._devices))
            self._devices = devices
            self._refresh()
            self.changes.notify()

    async def scan_forever(self, seconds: float) -> None:
        """Scans every so many seconds; sooner while a backend has never answered."""
        while True:
            await asyncio.sleep(seconds if self.complete.is_set() else min(seconds, 5.0))
            await self.scan()

    def close(self) -> None:
        """Releases what the backends hold. Blocks."""
        for backend in self._backends:
            try:
                backend.close()
            except DraError as e:
                log.warning("a backend could not be closed", backend=backend.name, error=str(e))

    def _refresh(self) -> None:
        self._view = {
            name: NodeDevice(
                name=name,
                uuid=d.uuid,
                published_uuid=self._published.get(name),
                model=_text(d, "model") or _text(d, "productName"),
                memory=_memory(d),
                edits=_edits(d.material),
            )
            for name, d in self._devices.items()
        }


def _by_name(found: Iterable[DiscoveredDevice]) -> dict[str, DiscoveredDevice]:
    devices: dict[str, DiscoveredDevice] = {}
    for device in found:
        name = device.device.name
        if name in devices:
            log.error("two devices have one name; the later one is left out", device=name, uuid=device.uuid)
            continue
        devices[name] = device
    return devices


def _text(device: DiscoveredDevice, attribute: str) -> str:
    value = device.device.attributes.get(attribute)
    return (value.string_value or "") if value is not None else ""


def _memory(device: DiscoveredDevice) -> str:
    capacity = device.device.capacity.get("memory")
    return str(capacity.value) if capacity is not None else ""


def _edits(material: CdiMaterial) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in (material.env or {}).items()),
        device_nodes=tuple(
            cdi.DeviceNode(
                path=n.path, host_path=n.host_path if n.host_path and n.host_path != n.path else ""
            )
            for n in material.device_nodes
        ),
        mounts=tuple(
            cdi.Mount(host_path=m.host_path, container_path=m.container_path, options=m.options)
            for m in material.mounts
        ),
    )
