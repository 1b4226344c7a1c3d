"""One GPU as NVML sees it: every call on its own, so that a call that fails costs only its own answer.

What a call told before it failed stays (``completed``): an error says nothing about the GPU.

pynvml is a thin layer of ctypes over ``libnvidia-ml.so.1``; it raises ``NVMLError`` for every return code but
success. Memory is in bytes, MIG memory in MiB, versions are numbers to be taken apart.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pynvml

from dra_driver.api import names
from dra_driver.api.own.inventory import PartitionPlacement
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.problems import Problem
from dra_driver.discovery.nvidia.conditions import HealthReading
from dra_driver.discovery.nvidia.driver.library import error_text
from dra_driver.discovery.nvidia.health import read_health
from dra_driver.discovery.nvidia.products import MIB

__all__ = [
    "UNSUPPORTED",
    "Asker",
    "GpuLost",
    "GpuReading",
    "MigRow",
    "completed",
    "read_address",
    "read_gpu",
    "read_uuid",
]

_T = TypeVar("_T")

ARCHITECTURES: Final = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    13: "Rubin",
}

# Spelt as NVIDIA's driver publishes them, so that its users' selectors hold.
BRANDS: Final = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}

ADDRESSING_MODES: Final = {0: "None", 1: "HMM", 2: "ATS"}
VIRTUALIZATION: Final = {1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}

# NVML reports CUDA cores, not multiprocessors; cores per multiprocessor by compute capability (CUDA C++
# Programming Guide, "Compute Capabilities"). One that is not here leaves the capacity absent.
_CORES_PER_MULTIPROCESSOR: Final = {
    (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,
    (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128,
}  # fmt: skip

# What a GPU instance profile is called after its size, by the number that NVML enumerates it with.
_MIG_SUFFIXES: Final = {
    0x7: "+me", 0x8: "+me", 0xA: "+gfx", 0xB: "+gfx", 0xC: "+gfx", 0xD: "-me", 0xE: "-me",
    0xF: "+me.all", 0x10: "+me.all", 0x11: "+gfx",
}  # fmt: skip
_MIG_NAME: Final = re.compile(r"(?:MIG )?([1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z.]{1,12})*)", re.ASCII)

# How NVML says that this GPU, this library or this driver does not know a call or the form of its answer.
UNSUPPORTED: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
)

# More than any GPU has; guards against a library that answers nonsense.
_MAX_PLACEMENTS: Final = 64


class GpuLost(Exception):
    """A GPU that has fallen off the bus, as NVML says (GPU_IS_LOST)."""


class Asker:
    """Calls of NVML about one GPU; what it does not answer becomes None.

    A call that the GPU or the library does not support is nothing to report; any other failure is noted.

    Attributes:
        unanswered: the subjects of which nothing was learned, supported or not.
        problems: those that were noted.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.problems: list[Problem] = []
        self.unanswered: set[str] = set()

    def __call__(self, subject: str, call: Callable[..., _T], *args: object) -> _T | None:
        """Return the result of ``call(*args)``.

        Raises:
            GpuLost: there is no point in asking any further.
        """
        try:
            return call(*args)
        except pynvml.NVMLError as e:
            if e.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost(error_text(e)) from e
            self.failed(subject, e)
        except UnicodeDecodeError:
            self.note(subject, "NVML answered with bytes that are no text")
        return None

    def failed(self, subject: str, error: pynvml.NVMLError) -> None:
        """Note that a call has failed."""
        self.unanswered.add(subject)
        if error.value not in UNSUPPORTED:
            self.note(subject, error_text(error))

    def note(self, subject: str, message: str) -> None:
        """Note a problem."""
        self.unanswered.add(subject)
        self.problems.append(Problem(self.device, subject, message))


@dataclass(frozen=True, slots=True)
class MigRow:
    """One kind of GPU instance; capacities by the names of the schema.

    Attributes:
        number: with which NVML enumerates it.
    """

    number: int
    name: str
    profile_id: int
    slices: int
    placements: tuple[PartitionPlacement, ...]
    capacity: dict[str, int | None]


@dataclass(slots=True)
class GpuReading:
    """What NVML reported of one GPU; None where it did not.

    Attributes:
        index: NVML's own number; it may change when GPUs come and go.
        confirmed: whether address and UUID were told just now.
        minor: N of ``/dev/nvidiaN``.
        minor_confirmed: whether that was told just now.
        links: the other end of each active NVLink: a PCI address, or None for a switch.
        unanswered: see ``Asker``.
        failed: the subjects of ``Asker.problems``.
    """

    index: int
    address: PciAddress
    uuid: str
    confirmed: bool = True
    minor: int | None = None
    minor_confirmed: bool = True
    memory: int | None = None
    multiprocessors: int | None = None
    mig_enabled: bool = False
    facts: dict[str, str | int | bool | None] = field(default_factory=dict)
    partitions: tuple[MigRow, ...] = ()
    links: tuple[PciAddress | None, ...] = ()
    health: HealthReading = field(default_factory=HealthReading)
    unanswered: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


def read_address(handle: Any, ask: Asker) -> PciAddress | None:
    """Read the PCI address of the GPU behind ``handle``."""
    pci = ask(names.PCI_BUS_ID, pynvml.nvmlDeviceGetPciInfo_v3, handle)
    return None if pci is None else _address(pci, ask)


def read_uuid(handle: Any, ask: Asker) -> str | None:
    """Read the UUID of the GPU behind ``handle``."""
    return ask("uuid", pynvml.nvmlDeviceGetUUID, handle) or None


def read_gpu(reading: GpuReading, handle: Any, ask: Asker, driver_version: str) -> None:
    """Read everything else that NVML reports of the GPU behind ``handle``.

    Args:
        reading: that is completed.
        handle: NVML's.
        ask: about this GPU: an error is noted as its own.
        driver_version: of the kernel driver; empty if it is not known.

    Raises:
        GpuLost: the GPU has fallen off the bus.
    """
    reading.minor = ask("device node", pynvml.nvmlDeviceGetMinorNumber, handle)
    memory = ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    reading.memory = int(memory.total) if memory is not None and memory.total else None
    capability = ask("cudaComputeCapability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    reading.multiprocessors = _multiprocessors(handle, capability, ask)
    name = ask("productName", pynvml.nvmlDeviceGetName, handle)
    ecc = ask("eccEnabled", pynvml.nvmlDeviceGetEccMode, handle)
    mode = ask("addressingMode", pynvml.nvmlDeviceGetAddressingMode, handle)
    brand = ask("brand", pynvml.nvmlDeviceGetBrand, handle)
    architecture = ask("architecture", pynvml.nvmlDeviceGetArchitecture, handle)
    virtualization = ask("virtualization", pynvml.nvmlDeviceGetVirtualizationMode, handle)
    reading.facts = {
        "productName": name or None,
        "model": schema.model_of(name) if name else None,
        "architecture": None if architecture is None else ARCHITECTURES.get(architecture),
        "brand": None if brand is None else BRANDS.get(brand),
        "cudaComputeCapability": None if capability is None else f"{capability[0]}.{capability[1]}.0",
        "addressingMode": None if mode is None else ADDRESSING_MODES.get(mode),
        "eccEnabled": None if ecc is None else bool(ecc[0]),
        "virtualization": None if virtualization is None else VIRTUALIZATION.get(virtualization),
        "fabricClique": _fabric_clique(handle, ask),
    }
    reading.links = tuple(_links(handle, ask))
    if virtualization == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
        # The mode and the instances behind a virtual GPU are the hypervisor's: here it is one whole GPU.
        reading.facts["migCapable"] = False
    else:
        _read_mig(reading, handle, ask)
    reading.health = read_health(handle, ask, driver_version)
    reading.unanswered = frozenset(ask.unanswered)
    reading.failed = frozenset(p.subject for p in ask.problems)


# The calls that facts come from, where they are called otherwise.
_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("productName",),
    "multiprocessors": ("multiprocessors", "cudaComputeCapability"),
}
_HEALTH_SOURCES: Final = {
    "uncorrected": "ECC errors",
    "remap_pending": "remapped rows",
    "remap_failed": "remapped rows",
    "retirement_pending": "retired pages",
    "recovery_action": "recovery action",
}


def completed(now: GpuReading, before: GpuReading) -> GpuReading:
    """Return what is known of a GPU: what calls did not answer is as they told it before.

    A call that was supported stays so as long as the driver is not loaded anew. Of its health that does not
    hold: NVML does not tell of memory rows while MIG mode is on.

    Args:
        now: what was read.
        before: what was known, of the same GPU and the same loading of the driver.
    """

    def lacks(name: str) -> bool:
        return not now.unanswered.isdisjoint(_SOURCES.get(name, (name,)))

    health = {
        name: getattr(before.health, name) for name, call in _HEALTH_SOURCES.items() if call in now.failed
    }
    numbers = {row.number for row in now.partitions}
    facts = {name: before.facts.get(name) if lacks(name) else value for name, value in now.facts.items()}
    partitions = _by_size((*now.partitions, *(r for r in before.partitions if r.number not in numbers)))
    mig_enabled = before.mig_enabled if lacks("migCapable") else now.mig_enabled
    if facts.get("virtualization") == VIRTUALIZATION[pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU]:
        facts["migCapable"], partitions, mig_enabled = False, (), False
    # A switch of MIG mode may number the device nodes anew.
    minor_lacks = now.minor is None and mig_enabled == before.mig_enabled
    return dataclasses.replace(
        now,
        minor=before.minor if minor_lacks else now.minor,
        minor_confirmed=now.minor is not None,
        memory=before.memory if lacks("memory") else now.memory,
        multiprocessors=before.multiprocessors if lacks("multiprocessors") else now.multiprocessors,
        mig_enabled=mig_enabled,
        facts=facts,
        partitions=partitions,
        links=before.links if any(s.startswith("nvlink") for s in now.unanswered) else now.links,
        health=dataclasses.replace(now.health, **health),
    )


def _by_size(rows: Iterable[MigRow]) -> tuple[MigRow, ...]:
    """Return kinds of instances from the smallest to the largest, as people list them.

    NVML's numbers follow the history of the library.
    """
    return tuple(
        sorted(rows, key=lambda r: (r.slices, max((p.size for p in r.placements), default=0), r.name))
    )


def _address(pci: Any, ask: Asker) -> PciAddress | None:
    try:
        address = PciAddress.parse(pci.busId)
    except UnicodeDecodeError:
        address = None
    if address is None and pci.bus <= 0xFF and pci.device <= 0x1F:
        # The text is garbage; the numbers beside it leave out only the function, which is 0 on every GPU.
        ask.note(names.PCI_BUS_ID, "NVML's bus id is no PCI address; its numbers are used")
        address = PciAddress(pci.domain, pci.bus, pci.device)
    return address


def _multiprocessors(handle: Any, capability: tuple[int, int] | None, ask: Asker) -> int | None:
    cores = ask("multiprocessors", pynvml.nvmlDeviceGetNumGpuCores, handle)
    per_multiprocessor = _CORES_PER_MULTIPROCESSOR.get(capability) if capability else None
    if not cores or not per_multiprocessor or cores % per_multiprocessor:
        return None
    return int(cores // per_multiprocessor)


def _fabric_clique(handle: Any, ask: Asker) -> str | None:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    if ask("fabricClique", pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return None
    cluster = bytes(info.clusterUuid)
    # HGX boards complete with an all-zero cluster: they are on no multi-node fabric.
    # NVML's state is one byte; pynvml reads the padding after it, too.
    completed = info.state & 0xFF == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    if not completed or info.status != 0 or not any(cluster):
        return None
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}"


def _links(handle: Any, ask: Asker) -> Iterator[PciAddress | None]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError as e:
            if e.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost(error_text(e)) from e
            # Past the last link (or without NVLink) NVML says so; there is no call for the number of links.
            if e.value in (*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                if not link:
                    ask.unanswered.add("nvlink 0")
                return
            ask.note(f"nvlink {link}", error_text(e))
            continue
        if not active:
            continue
        kind = ask(f"nvlink {link}", pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield None
        elif kind in (None, pynvml.NVML_NVLINK_DEVICE_TYPE_GPU):
            remote = ask(f"nvlink {link}", pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            address = None if remote is None else _address(remote, ask)
            if address is not None:
                yield address


def _read_mig(reading: GpuReading, handle: Any, ask: Asker) -> None:
    try:
        mode = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as e:
        if e.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise GpuLost(error_text(e)) from e
        ask.failed("migCapable", e)
        if e.value in UNSUPPORTED:
            reading.facts["migCapable"] = False
            return
        reading.facts["migCapable"] = None
    else:
        reading.facts["migCapable"] = True
        reading.mig_enabled = bool(mode[0])
    rows = [
        row
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        if (row := _mig_row(number, handle, reading.memory, ask)) is not None
    ]
    reading.partitions = _by_size(rows)


def _mig_info(number: int, handle: Any, ask: Asker) -> Any:
    """Return the profile, in the form that the library knows; None where this GPU has no such profile."""
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
        except pynvml.NVMLError as e:
            if e.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost(error_text(e)) from e
            if e.value in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                continue  # An older driver: it knows the first form only.
            if e.value not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                ask.note(f"MIG profile {number}", error_text(e))
            return None
    return None


def _mig_row(number: int, handle: Any, total: int | None, ask: Asker) -> MigRow | None:
    info = _mig_info(number, handle, ask)
    if info is None:
        return None
    name = _mig_name(number, info, total)
    if name is None:
        ask.note(
            f"MIG profile {number}",
            "NVML gives it no name, and without the memory of the GPU none can be made",
        )
        return None
    placements = _placements(name, info.id, handle, ask)
    if not placements:
        return None
    return MigRow(
        number=number,
        name=name,
        profile_id=info.id,
        slices=info.sliceCount,
        placements=placements,
        capacity={
            "memory": int(info.memorySizeMB) * MIB,
            "multiprocessors": info.multiprocessorCount,
            "copyEngines": info.copyEngineCount,
            "decoders": info.decoderCount,
            "encoders": info.encoderCount,
            "jpegEngines": info.jpegCount,
            "ofaEngines": info.ofaCount,
        },
    )


def _mig_name(number: int, info: Any, total: int | None) -> str | None:
    try:
        match = _MIG_NAME.fullmatch(getattr(info, "name", "") or "")
    except UnicodeDecodeError:
        match = None
    if match:
        return match[1]
    if not total:
        return None
    return mig_profile_name(number, info.sliceCount, int(info.memorySizeMB), total)


def mig_profile_name(number: int, slices: int, memory_mib: int, total: int) -> str:
    """Return the name of a profile on a GPU with ``total`` bytes: eighths of the whole GiB, rounded.

    The rule holds for every table that was recorded (A30, A100, H100, H200, GH200, B200, GB200).
    """
    gib = -(-total // (1 << 30))
    eighths = -(-8 * memory_mib * MIB // total)
    # Half a GiB rounds up: 1g.5gb of 40, 3g.71gb of 141.
    size = (2 * eighths * gib + 8) // 16
    return f"{slices}g.{size}gb{_MIG_SUFFIXES.get(number, '')}"


def _placements(name: str, profile_id: int, handle: Any, ask: Asker) -> tuple[PartitionPlacement, ...]:
    subject = f"placements of {name}"
    count = ctypes.c_uint(0)
    call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    # Asked twice, as NVML wants it: for the number, then for the list.
    if ask(subject, call, handle, profile_id, None, ctypes.byref(count)) is None:
        return ()
    if not 0 < count.value <= _MAX_PLACEMENTS:
        ask.note(
            subject, f"NVML tells of {count.value} placements; from 1 to {_MAX_PLACEMENTS} are plausible"
        )
        return ()
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if ask(subject, call, handle, profile_id, ctypes.byref(array), ctypes.byref(count)) is None:
        return ()
    found = {(p.start, p.size) for p in array[: min(count.value, len(array))] if p.size}
    return tuple(PartitionPlacement(start=start, size=size) for start, size in sorted(found))
