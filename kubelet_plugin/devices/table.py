"""The devices of the node as discovery sees them, kept in memory so that prepare never waits for hardware."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec
import structlog

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.api.own.partitions import partition_devices
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.discovery import BackendReport, LastKnownGood, is_simulated
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.control import SeparateLooks
from dra_driver.discovery.core.partition_control import PartitionsOnly
from dra_driver.hardware import DiscoveredDevice
from dra_driver.kube import SystemClock
from dra_driver.ports import ClaimPreparation, Clock, Daemons, DeviceBackend, GpuControl
from dra_driver.preparation import NodeDevice, PartitionRecord
from kubelet_plugin.core.notices import DRIVER_HANGING, DRIVER_MISSING
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.devices.looks import Looks
from kubelet_plugin.gpu.mps import NO_DAEMON, NO_TIME_SLICES, NoDaemons

__all__ = ["UNMANAGED_PARTITIONS", "DeviceTable"]

# The reason of the condition of a device with partitions that no claim holds.
UNMANAGED_PARTITIONS: Final = "UnmanagedPartitions"

_FUNCTIONS: Final = ("gpu", "vf")
# States of backends that an Event of the Node reports, and its reason.
_NOTICES: Final = {"driverless": DRIVER_MISSING, "hanging": DRIVER_HANGING}

# After which what some backends have found is not kept back any more by others.
_PROMPT_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class DeviceTable:
    """What all backends found last.

    A backend that fails keeps what it found before (``discovery.LastKnownGood``): a driver that is being
    reloaded must not withdraw devices that pods use, and no backend costs another one its devices. One that
    does not come back is left to itself (``looks``), and its devices have a condition meanwhile.

    Attributes:
        changes: notified when a scan found something else than the one before, or a backend
            fails, hangs or recovers.
        complete: set when every backend has answered once.
        looked: when the looks began that found what there is, a time of the loop's clock; of several, the
            oldest; below 0 before the first.
        occupied_known: whether it was looked once for partitions that no claim holds.
        released: whether the hardware is released: backends are not asked, and what they found stays.

    Args:
        optional: whether the backends stand for hardware that may be there or not, as where none was named.
        controls: of each backend, what changes its devices; None where nothing does.
        daemons: the sharing daemons of the node.
        complete: adds to what backends found; blocks.
        keep: awaited around each look: makes durable what the backends know, before anything is published.
        elsewhere: devices that backends cannot find because claims have them.
        passthrough: devices may be handed over as bare PCI functions.
        deadline: seconds after which a look counts as hanging.
        report: called with the kind (see ``notices``) and the text of what is found.
        in_iommu_group: whether the function at a PCI address is in an IOMMU group, without which that cannot
            be.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend],
        *,
        clock: Clock | None = None,
        optional: bool = False,
        controls: Sequence[GpuControl | None] = (),
        daemons: Daemons | None = None,
        complete: Callable[[Sequence[DiscoveredDevice]], Sequence[DiscoveredDevice]] = tuple,
        keep: Callable[[], Awaitable[None]] | None = None,
        elsewhere: Callable[[], Iterable[DiscoveredDevice]] = tuple,
        passthrough: bool = False,
        deadline: float = 60.0,
        report: Callable[[str, str], None] = lambda *_: None,
        in_iommu_group: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._clock = clock or SystemClock()
        self._late = Changes()
        for backend in backends:
            if isinstance(backend, SeparateLooks):
                # Several devices that hang must not make the look hang.
                backend.patience = deadline / 3
        self._looks = tuple(
            Looks(
                LastKnownGood(b, optional=optional),
                complete=complete,
                clock=self._clock,
                late=self._late.notify,
            )
            for b in backends
        )
        self._controls = tuple(controls) or (None,) * len(self._looks)
        self._daemons = daemons or NoDaemons()
        self._deadline = deadline
        self._report = report
        self._keep = keep
        self._elsewhere = elsewhere
        self._passthrough = passthrough
        self._in_iommu_group = in_iommu_group
        self._reports: tuple[BackendReport, ...] = tuple(look.report for look in self._looks)
        self._known_at: Mapping[str, float | None] = {}
        self._devices: dict[str, DiscoveredDevice] = {}
        self._away: frozenset[str] = frozenset()
        self._one = asyncio.Lock()
        self._published: Mapping[str, str] = {}
        self._view: Mapping[str, NodeDevice] = {}
        self._occupied: dict[str, DeviceHealth] = {}
        self.occupied_known = False
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
    def looked_once(self) -> bool:
        """Whether it is known of every backend how its first look went, if only that it does not end."""
        return all(r.state != "waiting" for r in self._reports)

    @property
    def reports(self) -> Sequence[BackendReport]:
        """How each backend is."""
        return self._reports

    def known_at(self, device: str) -> float | None:
        """Return when what is known of a device was learned, in seconds since the epoch; None if nothing is.

        Of a device that is not found, that is when the last backend said so.
        """
        if device in self._known_at:
            return self._known_at[device]
        times = [look.known_at for look in self._looks if look.known_at is not None]
        return min(times) if times and len(times) == len(self._looks) else None

    def last_looks(self) -> Mapping[str, float | None]:
        """Return when what is known was learned, by backend, as ``known_at`` does."""
        return {look.report.backend: look.known_at for look in self._looks}

    def executor_of(self, backend: object) -> Executor:
        """Return the thread in which a backend is asked for whatever it is asked."""
        return next(look.executor for look in self._looks if look.backend.backend is backend)

    def control_of(self, uuid: str) -> GpuControl | None:
        """Return the control of the backend that has found the device; None if none has, or changes it."""
        for look, control in zip(self._looks, self._controls, strict=True):
            if any(d.uuid == uuid for d in look.devices):
                return control
        return None

    def is_found(self, uuid: str) -> bool:
        """Return whether a look that went well has found a device which a third party's backend cuts.

        Where a vendor's control says that a device is gone, it has asked the kernel as well.
        """
        return any(
            look.report.state == "ok" and any(d.uuid == uuid for d in look.devices)
            for look, control in zip(self._looks, self._controls, strict=True)
            if isinstance(control, PartitionsOnly)
        )

    def published(self, uuids: Mapping[str, str]) -> None:
        """Note name and uuid of the devices in the inventory that the API server has."""
        if uuids != self._published:
            self._published = dict(uuids)
            self._refresh()

    async def scan(self) -> None:
        """Ask every backend, each for the time of the deadline at most; never raise for hardware."""
        async with self._one:
            await self._kept()  # a look may hang, and what events said is known already
            before = {d.device.name: d for d in self._elsewhere()}
            if self.released:
                return
            begun = [b for look in self._looks if (b := look.begin(lambda: self.released)) is not None]
            prompt = min(_PROMPT_SECONDS, self._deadline / 2)
            late = (await asyncio.wait(begun, timeout=prompt))[1] if begun else ()
            if late:
                # It does not keep back what the others have found.
                await self._kept()
                self._settle(dict(before), overdue=False)
                await asyncio.wait(late, timeout=self._deadline - prompt)
            await self._kept()
            self._settle(before)

    async def stall(self, backend: object, why: str) -> None:
        """Count a backend as hanging, or not any more, because of something else than its looks.

        Args:
            backend: the backend.
            why: what of it hangs, as a clause; empty if that has ended.
        """
        async with self._one:
            for look in self._looks:
                if look.backend.backend is backend:
                    look.stalled = why
            self._settle({})

    async def occupied(self, conditions: Mapping[str, DeviceHealth | None]) -> None:
        """Note conditions of devices, by UUID, for partitions that no claim holds; None if there are none."""
        async with self._one:
            merged = {**self._occupied, **conditions}
            self._occupied = {uuid: c for uuid, c in merged.items() if c is not None}
            known, self.occupied_known = self.occupied_known, True
            self._settle({})
            if not known:
                self.changes.notify()

    def _settle(self, away: dict[str, DiscoveredDevice], *, overdue: bool = True) -> None:
        """Take what the looks have found.

        Args:
            away: devices that claims had before the looks.
            overdue: whether a look that has not ended is late.
        """
        for look in self._looks:
            look.settle(overdue=overdue)
        devices = _by_name(d for look in self._looks for d in look.devices)
        self._known_at = {d.device.name: look.known_at for look in self._looks for d in look.devices}
        # In place of what a backend says of a device that is on its way there or back: one that came back
        # during the look may have been looked at before, and is seen by the next look.
        away |= {d.device.name: d for d in self._elsewhere()}
        # In one step with the rest: it reads links of sysfs, which no driver can hold up.
        devices = {n: self._with_condition(d) for n, d in self._marked(devices | away).items()}
        self._known_at |= dict.fromkeys(away, self._clock.now())
        self.looked = min((look.began for look in self._looks), default=-1.0)
        reports = tuple(look.report for look in self._looks)
        for before, now in zip(self._reports, reports, strict=True):
            self._note_change(before, now)
        if all(look.answered for look in self._looks):
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

    def _marked(self, devices: Mapping[str, DiscoveredDevice]) -> dict[str, DiscoveredDevice]:
        """Return the devices with the attribute that says which can be handed over, whatever backends say."""
        addresses = Counter(_text(d, names.PCI_BUS_ID) for d in devices.values())
        marked: dict[str, DiscoveredDevice] = {}
        for name, found in devices.items():
            attributes = {n: a for n, a in found.device.attributes.items() if n != names.PASSTHROUGH}
            can = not self._no_passthrough(found, addresses)
            if can and self._in_iommu_group(_text(found, names.PCI_BUS_ID)):
                attributes[names.PASSTHROUGH] = DeviceAttribute(bool_value=True)
            if attributes.keys() == found.device.attributes.keys():
                marked[name] = found
            else:
                device = msgspec.structs.replace(found.device, attributes=attributes)
                marked[name] = dataclasses.replace(found, device=device)
        return marked

    def _with_condition(self, found: DiscoveredDevice) -> DiscoveredDevice:
        condition = self._occupied.get(found.uuid)
        if condition is None or not found.device.partitions:
            return found
        health = (*(h for h in found.device.health if h.reason != condition.reason), condition)
        return dataclasses.replace(found, device=msgspec.structs.replace(found.device, health=health))

    async def scan_forever(self, seconds: float) -> None:
        """Scan every so many seconds; sooner while a backend has never answered, or when one comes back."""
        seen = 0
        while True:
            pause = seconds if self.complete.is_set() else min(seconds, 5.0)
            seen = await self._late.wait(seen, pause)
            await self.scan()

    def close(self) -> None:
        """Release what the backends hold. Blocks: for a time when none is under way."""
        for look in self._looks:
            look.release()

    async def release(self) -> bool:
        """Release what the backends hold, each behind its look; return whether none of them hangs."""
        loop = asyncio.get_running_loop()
        closing = [loop.run_in_executor(look.executor, look.release) for look in self._looks]
        return not closing or not (await asyncio.wait(closing, timeout=self._deadline))[1]

    async def end(self, seconds: float) -> bool:
        """Release what the backends hold and take no more work; return whether none of them hangs.

        Args:
            seconds: waited for at most.
        """
        closing = [look.end() for look in self._looks]
        return not closing or not (await asyncio.wait(closing, timeout=seconds))[1]

    def _note_change(self, before: BackendReport, now: BackendReport) -> None:
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
        if now.state != before.state and now.state in _NOTICES:
            self._report(_NOTICES[now.state], now.message)

    def _refresh(self) -> None:
        control_of: dict[str, GpuControl | None] = {}
        simulated: dict[str, bool] = {}
        prepared_by: dict[str, str] = {}
        for look, control in zip(self._looks, self._controls, strict=True):
            for d in look.devices:  # the first of one name is the device, as in ``_by_name``
                control_of.setdefault(d.device.name, control)
                simulated.setdefault(d.device.name, is_simulated(look.backend.backend))
                prepared_by.setdefault(d.device.name, _preparing(look.backend.backend))
        addresses = Counter(_text(d, names.PCI_BUS_ID) for d in self._devices.values())
        view: dict[str, NodeDevice] = {}
        for name, found in self._devices.items():
            control = control_of.get(name)
            why_not = self._no_passthrough(found, addresses)
            # One backend may report devices of several vendors.
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
                parts=found.parts,
                prepared_by=prepared_by.get(name, ""),
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
            return "it is not a PCI function of its own"
        if addresses[address] > 1:
            return f"it shares the PCI function {address} with other devices of the node"
        return ""


def _by_name(found: Iterable[DiscoveredDevice]) -> dict[str, DiscoveredDevice]:
    devices: dict[str, DiscoveredDevice] = {}
    for device in found:
        name = device.device.name
        if name in devices:
            log.error("two devices have one name; the later one is left out", device=name, uuid=device.uuid)
            continue
        devices[name] = device
    return devices


def _preparing(backend: DeviceBackend) -> str:
    return backend.name if isinstance(backend, ClaimPreparation) else ""


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
    attributes = {n: a for n, a in found.device.attributes.items() if n != names.PASSTHROUGH}
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
            attributes={**attributes, **p.profile.attributes},
            simulated=gpu.simulated,
            parts=gpu.parts,
            prepared_by=gpu.prepared_by,
        )
