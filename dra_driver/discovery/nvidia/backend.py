"""Backend ``nvml``: NVIDIA GPUs through NVIDIA's management library, NUMA node and PCIe root from sysfs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.core.host.nodes import drm_folders
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.last_known_good import DRIVER_HANGING
from dra_driver.discovery.core.problems import Problem, ProblemLog
from dra_driver.discovery.nvidia.conditions import Conditions
from dra_driver.discovery.nvidia.control import NvmlControl
from dra_driver.discovery.nvidia.described import Descriptions
from dra_driver.discovery.nvidia.driver.handles import GpuAbsent, GpuFallenOff, Handles, Place
from dra_driver.discovery.nvidia.driver.lanes import Call, LaneBusy, Lanes
from dra_driver.discovery.nvidia.driver.library import Library, error_text
from dra_driver.discovery.nvidia.driver.loading import Driver, module_loaded
from dra_driver.discovery.nvidia.driver.root import AUTO, DriverRoot
from dra_driver.discovery.nvidia.driver.uvm import UvmNodes
from dra_driver.discovery.nvidia.gpu import (
    Asker,
    GpuLost,
    GpuReading,
    completed,
    read_address,
    read_gpu,
    read_uuid,
)
from dra_driver.discovery.nvidia.health import EventWatch
from dra_driver.discovery.nvidia.samples import read_partition_samples, read_sample
from dra_driver.errors import DiscoveryError, PrepareError
from dra_driver.hardware import DeviceSample, DiscoveredDevice, HealthEvent

__all__ = ["NvmlBackend"]

# A scan counts as hanging after a minute (--scan-deadline), and one GPU before that.
_PATIENCE_SECONDS: Final = 20.0
# For which the library is not closed because a call is under way.
_CLOSE_SECONDS: Final = 10.0
_MOST_TEXT: Final = 1000
# Of calls about no GPU.
_ALL: Final = "*"
_A_LOOK: Final = "a look at it"
_LOST: Final = DeviceHealth(
    reason="GpuLost",
    severity="failed",
    message="the GPU has fallen off the bus or become inaccessible; it was there before",
)


@dataclasses.dataclass(slots=True)
class _Look:
    """What a look at one GPU has found.

    Attributes:
        reading: None where NVML does not say which GPU it is, or it is lost.
        uuid: of the GPU that it is or was; empty where that is not known.
        lost: whether it has fallen off the bus.
    """

    ask: Asker
    reading: GpuReading | None = None
    uuid: str = ""
    lost: bool = False


class NvmlBackend:
    """NVIDIA GPUs of this machine.

    The library is opened by the first ``discover`` and stays open until ``close``; an open library keeps the
    driver's modules in use. Where the driver was reloaded meanwhile, the next ``discover`` opens it again.

    An error or a hang of NVML belongs to the GPU that was asked about. Of a GPU that does not answer a call,
    what that call told before stays; name and UUID never change because of an error. One that does not answer
    at all, or not in time, stays in the result as it was last seen, with a health entry that says why:
    ``GpuLost`` where it has fallen off the bus. One that is not counted any more is not in the result any
    more. One that has never said which it is cannot be named, and is left out.

    Attributes:
        problems: what the last ``discover`` could not learn.
        unnamed: whether there are GPUs that have never said which they are.
        patience: seconds after which a look at one GPU counts as hanging.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for; in containers' specs they are paths below ``/dev``.
        proc_root: where the host's procfs is; if None, nodes of unified memory are not made, nor missed.
        host_root: where the host's file system is.
        driver_root: where the driver is on the host: a path, or ``auto``.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        sysfs_root: Path,
        dev_root: Path,
        proc_root: Path | None = None,
        host_root: Path = Path("/"),
        driver_root: str = AUTO,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._software = Driver(
            sysfs_root=sysfs_root, dev_root=dev_root, host_root=host_root, wanted=driver_root
        )
        self._root: DriverRoot | None = None
        self._uvm = None if proc_root is None else UvmNodes(proc_root=proc_root, dev_root=dev_root)
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        # Looks and samples come one at a time, and none while the library is closed.
        self._looking = threading.Lock()
        self._lanes = Lanes(_PATIENCE_SECONDS)
        self._handles = Handles()
        self._log = ProblemLog(self.name)
        self._conditions = Conditions(now)
        self._library = Library(self._software, sysfs_root, self._conditions.reopened)
        self._descriptions = Descriptions(self._software, sysfs_root)
        self._events = EventWatch(self._conditions, self._lanes, self._handles.find)
        # What is known of each GPU, by UUID, and of all.
        self._last: dict[str, GpuReading] = {}
        self._common: schema.Facts = {}
        self._devices: dict[str, DiscoveredDevice] = {}
        self.unnamed = False

    @property
    def name(self) -> str:
        """``nvml``."""
        return "nvml"

    @property
    def patience(self) -> float:
        """See the class."""
        return self._lanes.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._lanes.patience = seconds

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return self._log.current

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every GPU, by PCI address.

        Raises:
            HardwareAbsent: there is no library, or no driver is loaded.
            DriverMissing: likewise, and there are GPUs on the PCI bus.
            DiscoveryError: the library or the driver is broken.
        """
        with self._looking:
            count = self._count()
            problems = self._facts_of_all()
            self._root = self._software.root()
            if count and self._uvm is not None and not self._has_own_uvm():
                problems += self._uvm.ensure()
            lanes = self._numbered(count)
            answers = self._lanes.each(lanes, _A_LOOK, lambda lane: self._look(lanes[lane], lane))
            readings: dict[str, GpuReading] = {}
            for look in answers.found.values():
                problems += look.ask.problems
                if (
                    look.reading is not None
                    and readings.setdefault(look.uuid, look.reading) is not look.reading
                ):
                    problems.append(Problem(look.ask.device, "uuid", "left out: another GPU has the same"))
            looks = {look.uuid: look for look in answers.found.values() if look.reading is None}
            problems += [Problem(self._called(lane), "GPU", str(call)) for lane, call in answers.late.items()]
            every = len(readings) == count
            missing = {} if every else self._missing(readings, looks, answers.late)
            self._note_health(readings, missing, every=every)
            health = {uuid: (*self._conditions.health(uuid), why) for uuid, why in missing.items()}
            health |= {uuid: self._conditions.health(uuid) for uuid in readings}
            self._last = readings | {uuid: self._last[uuid] for uuid in missing}
            places = {uuid: Place(r.address, r.index) for uuid, r in self._last.items()}
            self._handles.places = places
            found = self._descriptions.of(
                tuple(self._last.values()), self._common, health, self._root, problems
            )
            self._devices = {d.uuid: d for d in found}
            self._log.replace(problems)
            self.unnamed = "" in looks or any(lane not in self._last for lane in answers.late)
            if found:
                self._events.enable(self._devices)
            return sorted(found, key=lambda d: d.device.name)

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        """See ``ports.HealthSource``. A GPU that was lost is an event without a device's identity."""
        events, lost = self._events.wait(seconds)
        if lost:
            return (*events, HealthEvent("", "GpuLost", "failed", "a GPU has fallen off the bus"))
        return events

    def health_memory(self) -> bytes:
        """See ``ports.HealthMemory``."""
        return self._conditions.memory(self._library.loaded_driver() or "")

    def recall_health(self, data: bytes) -> None:
        """See ``ports.HealthMemory``."""
        self._conditions.recall(data, self._library.loaded_driver())

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``."""
        with self._looking:
            if not self._library.is_open:
                return ()
            answers = self._lanes.each(sorted(self._devices), "a sample", self._sample)
            return [s for samples in answers.found.values() for s in samples]

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``: the kernel does not report the device nodes of NVIDIA's driver."""
        folders = (
            (self._sysfs_root / "module" / "nvidia" / "drivers", ""),
            (self._dev_root, "nvidia"),
            *drm_folders(self._sysfs_root, self._dev_root),
        )
        return HotplugHints(folders, modules=frozenset({"nvidia", "nvidia_uvm"}))

    def close(self) -> None:
        """Close the library, and forget what was lost. Waits for calls that are under way."""
        with self._looking, self._events.released(), self._lanes.closed():
            self._library.close(released=True)
            self._forget()

    def control(self, places: ToolPaths) -> NvmlControl:
        """See ``control.ControllableBackend.control``."""
        return NvmlControl(
            self.gpu,
            smi=places.nvidia_smi,
            proc_root=places.proc_root,
            dev_root=self._dev_root,
            loaded=lambda: module_loaded(self._sysfs_root),
        )

    @contextlib.contextmanager
    def gpu(self, uuid: str, what: str) -> Iterator[Any]:
        """Hold the library open and one GPU's lane, and give NVML's handle of the GPU.

        Args:
            uuid: of the GPU.
            what: is done, as a noun phrase.

        Raises:
            HardwareAbsent: there is no library, or no driver is loaded.
            GpuAbsent: there is no such GPU.
            NVMLError: of this GPU.
            PrepareError: whether there is cannot be told, or a call about it does not come back; retryable.
            DiscoveryError: the library or the driver is broken.
        """
        unknown = ""
        for located in (False, True):
            if located:
                unknown = self._locate()
            if uuid not in self._handles.places:
                continue
            try:
                with self._lanes.enter(uuid, what):
                    self._library.open()
                    handle = self._handles.find(uuid)
                    if handle is not None:
                        yield handle
                        return
            except LaneBusy as e:
                raise PrepareError(str(e), retryable=True) from e
        if unknown:
            raise PrepareError(
                f"GPU {uuid} is not found, and not every GPU answers: {unknown}", retryable=True
            )
        raise GpuAbsent(f"nvml: there is no GPU {uuid}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See ``ports.Pausable``. A driver that is taken from one GPU waits until none is open.

        Raises:
            LaneBusy: a call does not come back, so that the library cannot be closed.
        """
        with self._looking, self._events.released(), self._lanes.closed(_CLOSE_SECONDS):
            self._library.close()
            yield

    # --- looking --------------------------------------------------------------------------------------------

    def _count(self) -> int:
        was_open = self._library.is_open
        try:
            return self._ask_for_count()
        except pynvml.NVMLError as first:
            with self._events.released(), self._lanes.closed(_CLOSE_SECONDS):
                reloaded = self._library.was_reloaded()
                self._library.close(released=reloaded is None)
            if not was_open:
                raise DiscoveryError(f"nvml: the GPUs cannot be counted: {error_text(first)}") from first
        # The driver was reloaded under us: what the library holds is stale.
        if reloaded is not False:  # where it can be seen whether it was, that decides
            self._forget()
        return self._count()

    def _ask_for_count(self) -> int:
        with self._lanes.enter(_ALL, "the count of the GPUs"):
            self._library.open()
            return self._library.count()

    def _facts_of_all(self) -> list[Problem]:
        """Learn what holds for all GPUs; return what could not be learned, which stays as it was."""
        ask = Asker("")
        with self._lanes.enter(_ALL, "the question for the driver's version"):
            try:
                driver = ask("driverVersion", pynvml.nvmlSystemGetDriverVersion)
                cuda = ask("cudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
            except GpuLost as e:
                ask.note("driverVersion", str(e))
                driver = cuda = None
        found = {
            "driverVersion": driver,
            "cudaDriverVersion": None if cuda is None else schema.cuda_version(cuda),
        }
        self._common = {**self._common, **{name: value for name, value in found.items() if value is not None}}
        return ask.problems

    def _numbered(self, count: int) -> dict[str, int]:
        """Return NVML's index of each lane; the lane of a GPU that is not known is called after its index."""
        known = {r.index: uuid for uuid, r in self._last.items()} if count == len(self._last) else {}
        return {known.get(index, f"index {index}"): index for index in range(count)}

    def _called(self, lane: str) -> str:
        known = self._last.get(lane)
        return (
            schema.device_name(known.address) if known is not None else f"GPU {lane.removeprefix('index ')}"
        )

    def _look(self, index: int, lane: str) -> _Look:
        """Read one GPU, in its lane."""
        look = _Look(Asker(self._called(lane)), uuid=lane if lane in self._last else "")
        try:
            handle = self._handle(index, lane)
            address, uuid, confirmed = self._identity(handle, look.ask)
            if address is None or uuid is None:
                raise DiscoveryError("NVML has never reported its PCI address and UUID, so it has no name")
            look.uuid = uuid
            look.ask.device = schema.device_name(address)
            reading = GpuReading(index=index, address=address, uuid=uuid, confirmed=confirmed)
            with (
                contextlib.nullcontext() if uuid == lane else self._lanes.enter(uuid, _A_LOOK, self.patience)
            ):
                read_gpu(reading, handle, look.ask, str(self._common.get("driverVersion") or ""))
            before = self._last.get(uuid)
            look.reading = reading if before is None else completed(reading, before)
        except GpuLost as e:
            look.lost = True
            look.ask.note("GPU", str(e))
        except DiscoveryError as e:
            look.lost = isinstance(e, GpuFallenOff)
            look.ask.note("GPU", str(e))
        except pynvml.NVMLError as e:
            look.lost = e.value == pynvml.NVML_ERROR_GPU_IS_LOST
            look.ask.note("GPU", error_text(e) if look.lost else f"NVML gives no handle: {error_text(e)}")
        return look

    def _handle(self, index: int, lane: str) -> Any:
        try:
            return pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:
            # One call that fails is no proof: there is another way to the same GPU, if it is known.
            handle = self._handles.find(lane)
            if handle is None:
                raise
            return handle

    def _identity(self, handle: Any, ask: Asker) -> tuple[PciAddress | None, str | None, bool]:
        """Return address and UUID of a GPU, and whether it has told both of them now.

        Where one is not told, it is what it was beside the other one.
        """
        address, uuid = read_address(handle, ask), read_uuid(handle, ask)
        confirmed = address is not None and uuid is not None
        if address is None and uuid in self._last:
            address = self._last[uuid].address
        if uuid is None and address is not None:
            uuid = next((u for u, r in self._last.items() if r.address == address), None)
        return address, uuid, confirmed

    def _missing(
        self, readings: Mapping[str, GpuReading], looks: Mapping[str, _Look], late: Mapping[str, Call]
    ) -> dict[str, DeviceHealth]:
        """Return why GPUs that were there are not among those that say which they are.

        Only where each GPU says which it is, one that is not among them has gone.
        """
        addresses = {r.address for r in readings.values()}
        missing: dict[str, DeviceHealth] = {}
        for uuid, before in self._last.items():
            if uuid in readings or before.address in addresses:
                continue
            look = looks.get(uuid)
            if uuid in late:
                why = f"{late[uuid]}: the GPU hangs, and others answer; what was found before stays published"
                missing[uuid] = DeviceHealth(reason=DRIVER_HANGING, severity="degraded", message=why)
            elif look is not None and look.lost:
                missing[uuid] = _LOST
            else:
                error = look.ask.problems[-1].message if look is not None else "no GPU reports this identity"
                why = f"it was found before and does not answer: {error}"[:_MOST_TEXT]
                missing[uuid] = DeviceHealth(reason="NotAnswering", severity="degraded", message=why)
        return missing

    def _note_health(
        self, readings: Mapping[str, GpuReading], missing: Mapping[str, DeviceHealth], *, every: bool
    ) -> None:
        for uuid, why in missing.items():
            if why is _LOST:
                self._conditions.lost(uuid)
        if every:
            self._conditions.seen(readings)
        for uuid, reading in readings.items():
            self._conditions.poll(uuid, reading.health)

    def _locate(self) -> str:
        """Ask each GPU which it is; return what prevents that, as clauses; empty if nothing does."""
        try:
            lanes = self._numbered(self._ask_for_count())
        except pynvml.NVMLError as e:
            return f"the GPUs cannot be counted: {error_text(e)}"
        answers = self._lanes.each(lanes, "the question which it is", lambda lane: self._place(lanes[lane]))
        found = {uuid: place for uuid, place, _ in answers.found.values() if place is not None}
        unknown = [f"{self._called(lane)}: {why}" for lane, (_, _, why) in answers.found.items() if why]
        unknown += [f"{self._called(lane)}: {call}" for lane, call in answers.late.items()]
        self._handles.places = {**self._handles.places, **found} if unknown else found
        return "; ".join(unknown)

    def _place(self, index: int) -> tuple[str, Place | None, str]:
        """Return UUID and place of a GPU, or why it tells them not."""
        ask = Asker("")
        try:
            address, uuid, _ = self._identity(pynvml.nvmlDeviceGetHandleByIndex(index), ask)
        except (GpuLost, pynvml.NVMLError) as e:
            return "", None, error_text(e) if isinstance(e, pynvml.NVMLError) else str(e)
        if address is None or uuid is None:
            return (
                "",
                None,
                "; ".join(p.message for p in ask.problems) or "it does not report a UUID or a PCI address",
            )
        return uuid, Place(address, index), ""

    def _sample(self, uuid: str) -> Sequence[DeviceSample]:
        gpu = self._devices[uuid].device
        try:
            handle = self._handles.find(uuid)
        except (DiscoveryError, pynvml.NVMLError):
            handle = None
        if handle is None:
            return (DeviceSample(device=gpu.name),)
        return (read_sample(handle, gpu.name), *read_partition_samples(handle, gpu))

    def _forget(self) -> None:
        self._last, self._devices, self._common = {}, {}, {}
        self._handles.places = {}

    def _has_own_uvm(self) -> bool:
        """Return whether a driver container has made the nodes of unified memory in its own ``/dev``."""
        return (
            self._root is not None and self._root.has_dev and pci.exists(self._root.here / "dev/nvidia-uvm")
        )
