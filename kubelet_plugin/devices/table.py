"""The devices of the node as discovery sees them, kept in memory so that prepare never waits for hardware."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

import structlog

from dra_driver.api import names
from dra_driver.api.partitions import partition_devices
from dra_driver.api.resource import DeviceCapacity
from dra_driver.discovery import BackendReport, LastKnownGood, is_simulated
from dra_driver.discovery.core.pci import PciAddress
from dra_driver.errors import DraError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import Daemons, DeviceBackend, GpuControl
from dra_driver.preparation import NodeDevice, PartitionRecord
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.gpu.mps import NO_DAEMON, NO_TIME_SLICES, NoDaemons

__all__ = ["DeviceTable"]

_FUNCTIONS: Final = ("gpu", "vf")

log = structlog.get_logger(__name__)


class DeviceTable:
    """What all backends found last.

    A backend that fails keeps what it found before (``discovery.LastKnownGood``): a driver that is being
    reloaded must not withdraw devices that pods use, and no backend costs another one its devices.

    Attributes:
        changes: notified when a scan found something else than the one before, or a backend
            fails or recovers.
        complete: set when every backend has answered once.
        looked: when the look began that found what there is, a time of the loop's clock; below 0 before the
            first.
        released: whether the hardware is released: backends are not asked, and what they found stays.

    Args:
        optional: whether the backends stand for hardware that may be there or not, as where none was named.
        controls: of each backend, what changes its devices; None where nothing does.
        daemons: the sharing daemons of the node.
        complete: adds to what backends found; blocks.
        keep: awaited around each look: makes durable what the backends know, before anything is published.
        elsewhere: devices that backends cannot find because claims have them.
        passthrough: devices may be handed over as bare PCI functions.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend],
        executor: Executor,
        *,
        optional: bool = False,
        controls: Sequence[GpuControl | None] = (),
        daemons: Daemons | None = None,
        complete: Callable[[Sequence[DiscoveredDevice]], Sequence[DiscoveredDevice]] = tuple,
        keep: Callable[[], Awaitable[None]] | None = None,
        elsewhere: Callable[[], Iterable[DiscoveredDevice]] = tuple,
        passthrough: bool = False,
    ) -> None:
        self._backends = tuple(LastKnownGood(b, optional=optional) for b in backends)
        self._controls = tuple(controls) or (None,) * len(self._backends)
        self._daemons = daemons or NoDaemons()
        self._complete = complete
        self._keep = keep
        self._elsewhere = elsewhere
        self._passthrough = passthrough
        self._executor = executor
        self._reports: tuple[BackendReport, ...] = tuple(b.report for b in self._backends)
        self._devices: dict[str, DiscoveredDevice] = {}
        self._away: frozenset[str] = frozenset()
        self._one = asyncio.Lock()
        self._published: Mapping[str, str] = {}
        self._view: Mapping[str, NodeDevice] = {}
        self.changes = Changes()
        self.complete = asyncio.Event()
        self.looked = -1.0
        self.released = False

    @property
    def devices(self) -> Sequence[DiscoveredDevice]:
        """Every device, in the order of discovery."""
        return tuple(self._devices.values())

    @property
    def for_prepare(self) -> Mapping[str, NodeDevice]:
        """Every device by name, as prepare needs it."""
        return self._view

    @property
    def reports(self) -> Sequence[BackendReport]:
        """How each backend is."""
        return self._reports

    def published(self, uuids: Mapping[str, str]) -> None:
        """Note name and uuid of the devices in the inventory that the API server has."""
        if uuids != self._published:
            self._published = dict(uuids)
            self._refresh()

    async def scan(self) -> None:
        """Ask every backend; never raise for hardware."""
        async with self._one:
            await self._scan()

    async def _scan(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._kept()  # a look may hang, and what events said is known already
        away = {d.device.name: d for d in self._elsewhere()}
        for backend in self._backends:
            if self.released:
                return
            await loop.run_in_executor(self._executor, self._look, backend)
        await self._kept()
        devices = _by_name(d for b in self._backends for d in b.devices)
        # In place of what a backend says of a device that is on its way there or back: one that came back
        # during the look may have been looked at before, and is seen by the next look.
        away |= {d.device.name: d for d in self._elsewhere()}
        devices |= away
        self.looked = began
        reports = tuple(b.report for b in self._backends)
        for before, now in zip(self._reports, reports, strict=True):
            _log_change(before, now)
        if all(b.answered for b in self._backends):
            self.complete.set()
        if (
            devices != self._devices
            or reports != self._reports
            or away.keys() != self._away
            or self.changes.count == 0
        ):
            log.info("devices discovered", devices=len(devices), before=len(self._devices))
            self._devices, self._reports, self._away = devices, reports, frozenset(away)
            self._refresh()
            self.changes.notify()

    async def _kept(self) -> None:
        if self._keep is not None:
            await self._keep()

    def _look(self, backend: LastKnownGood) -> None:
        if not self.released:  # while this waited for its turn
            backend.look(self._complete)

    async def scan_forever(self, seconds: float) -> None:
        """Scan every so many seconds; sooner while a backend has never answered."""
        while True:
            await asyncio.sleep(seconds if self.complete.is_set() else min(seconds, 5.0))
            await self.scan()

    def close(self) -> None:
        """Release what the backends hold. Blocks."""
        for kept in self._backends:
            try:
                kept.backend.close()
            except DraError as e:
                log.warning("a backend could not be closed", backend=kept.backend.name, error=str(e))

    def _refresh(self) -> None:
        control_of: dict[str, GpuControl | None] = {}
        simulated: dict[str, bool] = {}
        for kept, control in zip(self._backends, self._controls, strict=True):
            for d in kept.devices:  # the first of one name is the device, as in ``_by_name``
                control_of.setdefault(d.device.name, control)
                simulated.setdefault(d.device.name, is_simulated(kept.backend))
        addresses = Counter(_text(d, names.PCI_BUS_ID) for d in self._devices.values())
        view: dict[str, NodeDevice] = {}
        for name, found in self._devices.items():
            control = control_of.get(name)
            why_not = self._no_passthrough(found, addresses)
            # One backend may tell of several vendors' devices.
            if control is not None and _text(found, "vendor") != control.vendor:
                control = None
            device = NodeDevice(
                name=name,
                uuid=found.uuid,
                published_uuid=self._published.get(name),
                model=_text(found, "model") or _text(found, "productName"),
                memory=_memory(found.device.capacity),
                edits=found.material,
                own_nodes=found.own_nodes,
                controllable=control is not None,
                partitioning=found.partitioning.name if found.partitioning is not None else "",
                is_partition=found.is_partition,
                no_time_slices=NO_TIME_SLICES,
                mps_directory=self._daemons.directory(name) if control and control.runs_daemons else "",
                no_mps=NO_DAEMON,
                attributes=found.device.attributes,
                address="" if why_not else _text(found, names.PCI_BUS_ID),
                no_passthrough=why_not,
                found=None if why_not else found.device,
                away=name in self._away,
                simulated=simulated.get(name, False),
            )
            if control is not None:
                for partition in _partitions(found, device):
                    pipes = self._daemons.directory(partition.name) if control.runs_daemons else ""
                    view[partition.name] = dataclasses.replace(partition, mps_directory=pipes)
            view[name] = device
        self._view = view

    def _no_passthrough(self, found: DiscoveredDevice, addresses: Mapping[str, int]) -> str:
        if not self._passthrough:
            return "passthrough is off on this node (the agent runs without --passthrough)"
        address = _text(found, names.PCI_BUS_ID)
        if PciAddress.parse(address) is None or _text(found, "type") not in _FUNCTIONS:
            return "it is no PCI function of its own"
        if addresses[address] > 1:
            return f"it shares the PCI function {address} with other devices of the node"
        return ""


def _log_change(before: BackendReport, now: BackendReport) -> None:
    if (before.state, before.message) == (now.state, now.message):
        return
    if now.broken:
        log.error(
            "discovery failed; what it found before stays",
            backend=now.backend,
            state=now.state,
            error=now.message,
        )
    elif before.broken:
        log.info("discovery works again", backend=now.backend, state=now.state)


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


def _memory(capacity: Mapping[str, DeviceCapacity]) -> str:
    memory = capacity.get("memory")
    return str(memory.value) if memory is not None else ""


def _partitions(found: DiscoveredDevice, gpu: NodeDevice) -> Iterator[NodeDevice]:
    """Return the devices that the GPU can be cut into. They have its identity until they are made."""
    # The number of the GPU's own node may change with the mode, so that the instance names it.
    shared = gpu.shared
    for p in partition_devices(found.device):
        yield NodeDevice(
            name=p.name,
            uuid=gpu.uuid,
            published_uuid=gpu.published_uuid,
            model=gpu.model,
            memory=_memory(p.profile.capacity),
            edits=shared.edits,
            own_nodes=shared.own_nodes,
            partition=PartitionRecord(
                gpu=gpu.name,
                profile=p.profile.name,
                profile_id=p.profile.profile_id,
                start=p.placement.start,
                size=p.placement.size,
            ),
            controllable=True,
            no_mps=gpu.no_mps,
            attributes={**found.device.attributes, **p.profile.attributes},
            simulated=gpu.simulated,
        )
