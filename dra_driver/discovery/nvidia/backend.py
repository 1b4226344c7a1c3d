"""Backend ``nvml``: NVIDIA GPUs through NVIDIA's management library, NUMA node and PCIe root from sysfs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pynvml

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, DeviceLink, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core import links as link_groups
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.core.host.nodes import drm_folders
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.problems import Problem, ProblemLog
from dra_driver.discovery.nvidia import products
from dra_driver.discovery.nvidia.conditions import Conditions
from dra_driver.discovery.nvidia.control import NvmlControl
from dra_driver.discovery.nvidia.driver.loading import Driver, module_loaded
from dra_driver.discovery.nvidia.driver.root import AUTO, LIBRARY, DriverRoot
from dra_driver.discovery.nvidia.driver.uvm import UvmNodes
from dra_driver.discovery.nvidia.gpu import Asker, GpuLost, GpuReading, error_text, read_gpu
from dra_driver.discovery.nvidia.health import EventWatch
from dra_driver.discovery.nvidia.mig_mode import mig_mode
from dra_driver.discovery.nvidia.samples import read_partition_samples, read_sample
from dra_driver.errors import DiscoveryError
from dra_driver.hardware import DeviceSample, DiscoveredDevice, HealthEvent, PartitioningMode

__all__ = ["NvmlBackend"]

# Nodes that every GPU needs beside its own; which of them exist depends on the driver's modules.
_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")

# CUDA images ask for all GPUs with this variable, and NVIDIA's container runtime obeys it, whatever was
# allocated; "void" makes that runtime add nothing to what CDI says.
_ENV: Final = ("NVIDIA_VISIBLE_DEVICES=void",)

# More than any machine has; guards against a library that answers nonsense.
_MAX_GPUS: Final = 256


class NvmlBackend:
    """NVIDIA GPUs of this machine.

    The library is opened by the first ``discover`` and stays open until ``close``; an open library keeps the
    driver's modules in use. Where the driver was reloaded meanwhile, the next ``discover`` opens it again.

    A GPU that falls off the bus while the library is open stays in the result as it was last seen, with a
    health entry ``GpuLost``. One that is not counted any more is not in the result any more.

    Attributes:
        problems: what the last ``discover`` could not learn.

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
        self._lock = threading.Lock()
        self._open = False
        # Opened for the first time, the library says nothing about resets: see ``_opened``.
        self._driver: str | None = ""
        self._released = False
        self._last: dict[int, DiscoveredDevice] = {}
        self._log = ProblemLog(self.name)
        self._conditions = Conditions(now)
        self._events = EventWatch(self._conditions)

    @property
    def name(self) -> str:
        """``nvml``."""
        return "nvml"

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
        with self._lock:
            count = self._count()
            self._root = self._software.root()
            driver = Asker("")
            common = _driver_facts(driver)
            problems = driver.problems
            if count and self._uvm is not None and not self._has_own_uvm():
                problems += self._uvm.ensure()
            readings: list[GpuReading] = []
            lost: dict[int, DiscoveredDevice] = {}
            for index in range(count):
                ask = Asker(f"GPU {index}")
                try:
                    readings.append(_read(index, ask))
                except GpuLost as e:
                    ask.note("GPU", str(e))
                    if index in self._last:
                        lost[index] = self._last[index]
                        self._conditions.lost(lost[index].uuid)
                except DiscoveryError as e:
                    ask.note("GPU", str(e))
                problems += ask.problems
            if len(readings) == count:
                self._conditions.seen({r.uuid for r in readings if r.uuid is not None})
            devices = self._devices(readings, common, problems)
            present = {d.device.name for d in devices.values()}
            lost = {i: d for i, d in lost.items() if d.device.name not in present}
            self._last = devices | lost
            self._log.replace(problems)
            if devices:
                self._events.enable()
            return sorted([*devices.values(), *map(_as_lost, lost.values())], key=lambda d: d.device.name)

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        """See ``ports.HealthSource``. A GPU that was lost is an event without a device's identity."""
        events, lost = self._events.wait(seconds)
        if lost:
            return (*events, HealthEvent("", "GpuLost", "failed", "a GPU has fallen off the bus"))
        return events

    def health_memory(self) -> bytes:
        """See ``ports.HealthMemory``."""
        return self._conditions.memory(self._loaded_driver() or "")

    def recall_health(self, data: bytes) -> None:
        """See ``ports.HealthMemory``."""
        self._conditions.recall(data, self._loaded_driver())

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``."""
        with self._lock:
            if not self._open:
                return ()
            return [s for index, d in sorted(self._last.items()) for s in _samples(index, d.device)]

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``: the kernel does not report the device nodes of NVIDIA's driver."""
        folders = (
            (self._sysfs_root / "module" / "nvidia" / "drivers", ""),
            (self._dev_root, "nvidia"),
            *drm_folders(self._sysfs_root, self._dev_root),
        )
        return HotplugHints(folders, modules=frozenset({"nvidia", "nvidia_uvm"}))

    def close(self) -> None:
        """Close the library, and forget what was lost."""
        with self._lock:
            self._shut_down()
            self._last = {}
            self._released = True

    def control(self, places: ToolPaths) -> NvmlControl:
        """See ``control.ControllableBackend.control``."""
        return NvmlControl(
            self.session,
            smi=places.nvidia_smi,
            proc_root=places.proc_root,
            dev_root=self._dev_root,
            loaded=lambda: module_loaded(self._sysfs_root),
        )

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold the library open, for one caller at a time.

        Raises:
            HardwareAbsent: there is no library, or no driver is loaded.
            DiscoveryError: the library or the driver is broken.
        """
        with self._lock:
            self._initialize()
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See ``ports.Pausable``. A driver that is taken from one GPU waits until none is open."""
        with self._lock:
            self._shut_down()
            yield

    def _count(self) -> int:
        was_open = self._open
        self._initialize()
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as first:
            self._shut_down()
            if not was_open:
                raise DiscoveryError(f"nvml: the GPUs cannot be counted: {error_text(first)}") from first
            # The driver was reloaded under us: what the library holds is stale.
            self._last = {}
            self._released = not self._driver  # where it can be seen whether it was, that decides
            return self._count()
        if count > _MAX_GPUS:
            raise DiscoveryError(f"nvml: {count} GPUs are not plausible; at most {_MAX_GPUS} are looked at")
        return count

    def _initialize(self) -> None:
        if self._open:
            return
        self._software.load()
        try:
            pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
        except pynvml.NVMLError as e:
            if e.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
                raise self._software.not_loaded(error_text(e)) from e
            raise _initialization_error(e) from e
        self._open = True
        self._opened()

    def _opened(self) -> None:
        """Note that GPUs may have been reset while the library was closed, or with the driver."""
        before, self._driver = self._driver, self._loaded_driver()
        if self._released or (before and before != self._driver):
            self._conditions.reopened()
        self._released = False

    def _loaded_driver(self) -> str | None:
        """Return which loading of the kernel driver this is: empty if unknown, None if it is not loaded.

        sysfs gives the module's folder another inode number each time that it is made, and no number twice.
        """
        modules = self._sysfs_root / "module"
        try:
            return str((modules / "nvidia").stat().st_ino)
        except FileNotFoundError:
            return None if modules.is_dir() else ""
        except OSError:
            return ""

    def _shut_down(self) -> None:
        if not self._open:
            return
        self._open = False
        self._events.release()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as e:
            # Nothing can be done about it, and the next opening will say what is wrong.
            self._log.replace([*self._log.current, Problem("", "nvmlShutdown", error_text(e))])

    def _devices(
        self, readings: Sequence[GpuReading], common: schema.Facts, problems: list[Problem]
    ) -> dict[int, DiscoveredDevice]:
        by_name: dict[str, GpuReading] = {}
        for reading in readings:
            first = by_name.setdefault(_name(reading), reading)
            if first is not reading:
                message = f"left out: GPU {first.index} has the same address"
                problems.append(Problem(f"GPU {reading.index}", "GPU", message))
        links = {name: _links(reading, by_name) for name, reading in by_name.items()}
        groups = link_groups.groups({name: [link.peer for link in ls] for name, ls in links.items()})
        return {
            reading.index: self._device(
                name, reading, {**common, "nvlinkGroup": groups.get(name)}, links[name], problems
            )
            for name, reading in by_name.items()
        }

    def _device(
        self,
        name: str,
        reading: GpuReading,
        common: schema.Facts,
        links: tuple[DeviceLink, ...],
        problems: list[Problem],
    ) -> DiscoveredDevice:
        address = reading.address
        partitions = tuple(
            products.mig_partition(
                name=row.name,
                profile_id=row.profile_id,
                placements=row.placements,
                capacity=row.capacity,
                parent_uuid=reading.uuid,
            )
            for row in reading.partitions
        )
        properties = schema.build(
            {
                **common,
                **reading.facts,
                "type": "gpu",
                "vendor": "nvidia",
                "uuid": reading.uuid,
                "index": reading.index,
                names.PCI_BUS_ID: None if address is None else str(address),
                names.PCIE_ROOT: None if address is None else pci.pcie_root(self._sysfs_root, address),
                names.NUMA_NODE: None if address is None else pci.numa_node(self._sysfs_root, address),
            },
            {
                **schema.partition_maxima(partitions),
                "memory": reading.memory,
                "multiprocessors": reading.multiprocessors,
            },
        )
        problems += [Problem(name, subject, why) for subject, why in properties.rejected]
        needs_reset = reading.facts.get("architecture") == "Ampere"
        mode = mig_mode(needs_reset=needs_reset) if reading.mig_enabled else None
        return DiscoveredDevice(
            device=InventoryDevice(
                name=name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                partitions=partitions,
                links=links,
                health=(*_health(reading, mode), *self._known_health(reading)),
            ),
            uuid=reading.uuid or f"pci:{address}",
            material=self._material(name, reading, problems),
            own_nodes=_own_nodes(reading),
            partitioning=mode,
        )

    def _known_health(self, reading: GpuReading) -> tuple[DeviceHealth, ...]:
        if reading.uuid is None:
            return ()
        self._conditions.poll(reading.uuid, reading.health)
        return self._conditions.health(reading.uuid)

    def _has_own_uvm(self) -> bool:
        """Return whether a driver container has made the nodes of unified memory in its own ``/dev``."""
        return (
            self._root is not None and self._root.has_dev and pci.exists(self._root.here / "dev/nvidia-uvm")
        )

    def _material(self, name: str, reading: GpuReading, problems: list[Problem]) -> ContainerEdits:
        nodes = []
        for path in _own_nodes(reading):
            at, host_path = self._software.node(path, self._root)
            if not pci.exists(at):
                # Kept all the same: a container that fails to start is better than one without its GPU.
                problems.append(Problem(name, "device node", f"{at} is not there"))
            nodes.append(DeviceNode(path, host_path))
        for path in (f"/dev/{n}" for n in _COMMON_NODES):
            at, host_path = self._software.node(path, self._root)
            if pci.exists(at):
                nodes.append(DeviceNode(path, host_path))
        return ContainerEdits(device_nodes=tuple(nodes), env=_ENV)


def _own_nodes(reading: GpuReading) -> tuple[str, ...]:
    """Return the paths of the device nodes that are the GPU's alone."""
    return () if reading.minor is None else (f"/dev/nvidia{reading.minor}",)


def _initialization_error(error: pynvml.NVMLError) -> DiscoveryError:
    text = error_text(error)
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return DiscoveryError(
            f"nvml: {LIBRARY} and the loaded kernel driver are of different versions (the driver was "
            f"upgraded): start this process again, or load the new driver: {text}"
        )
    return DiscoveryError(f"nvml: the library cannot be initialized: {text}")


def _samples(index: int, gpu: InventoryDevice) -> Iterator[DeviceSample]:
    yield read_sample(index, gpu.name)
    yield from read_partition_samples(index, gpu)


def _driver_facts(ask: Asker) -> dict[str, str | int | bool | None]:
    try:
        driver = ask("driverVersion", pynvml.nvmlSystemGetDriverVersion)
        cuda = ask("cudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    except GpuLost as e:
        ask.note("driverVersion", str(e))
        return {}
    return {"driverVersion": driver, "cudaDriverVersion": None if cuda is None else schema.cuda_version(cuda)}


def _read(index: int, ask: Asker) -> GpuReading:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as e:
        if e.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise GpuLost(error_text(e)) from e
        raise DiscoveryError(f"NVML gives no handle: {error_text(e)}") from e
    reading = read_gpu(index, handle, ask)
    if reading.address is None and reading.uuid is None:
        raise DiscoveryError("NVML tells neither its PCI address nor its UUID: it cannot be named")
    return reading


def _name(reading: GpuReading) -> str:
    if reading.address is not None:
        return schema.device_name(reading.address)
    # A DNS label, whatever the text is.
    text = re.sub(r"[^a-z0-9]+", "-", (reading.uuid or "").lower().removeprefix("gpu-"))
    return f"gpu-{text[:59].strip('-')}"


def _links(reading: GpuReading, by_name: Mapping[str, GpuReading]) -> tuple[DeviceLink, ...]:
    counts: dict[str, int] = {}
    for remote in reading.links:
        if remote is None:
            peer = "switch"
        else:
            peer = schema.device_name(remote)
            if peer not in by_name:
                continue  # A GPU that we do not see: of another virtual machine, or lost.
        counts[peer] = counts.get(peer, 0) + 1
    return tuple(DeviceLink(peer=peer, type="nvlink", count=n) for peer, n in sorted(counts.items()))


def _health(reading: GpuReading, mode: PartitioningMode | None) -> list[DeviceHealth]:
    health = []
    if reading.minor is None:
        health.append(
            DeviceHealth(
                reason="DeviceNodeUnknown",
                severity="degraded",
                message="NVML does not tell the device node, so that no container can be given this GPU",
            )
        )
    if mode is not None:
        health.append(mode.condition)
    return health


def _as_lost(device: DiscoveredDevice) -> DiscoveredDevice:
    lost = DeviceHealth(
        reason="GpuLost",
        severity="failed",
        message="the GPU has fallen off the bus or become inaccessible; it was there before",
    )
    health = (*(h for h in device.device.health if h.reason != lost.reason), lost)
    return dataclasses.replace(device, device=msgspec.structs.replace(device.device, health=health))
