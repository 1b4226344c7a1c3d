"""Opaque parameters: what a claim or a class may ask of our driver beyond which device it wants.

``dra-driver.dev/v1alpha1`` ``GpuConfig``, ``MigConfig`` and ``ShareConfig``; under the driver name
``gpu.nvidia.com`` also NVIDIA's ``resource.nvidia.com/v1beta1`` ``GpuConfig``, ``MigDeviceConfig`` and
``VfioDeviceConfig``. All are decoded into one ``Parameters``. docs/parameters.md is for people.

Parameters are text of users: unknown fields are refused, numbers have bounds, and every finding is
reported at once with its path.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import msgspec

from dra_driver.api.names import NVIDIA_DRIVER_NAME
from dra_driver.api.own.inventory import API_VERSION
from dra_driver.api.own.opaque import read_object, shown, shown_name
from dra_driver.api.quantity import Quantity
from dra_driver.errors import InvalidParameters, InvalidQuantity

__all__ = [
    "DEFAULT_SHARE",
    "MIN_MEMORY_LIMIT",
    "NVIDIA_API_VERSION",
    "Capability",
    "DeviceType",
    "IommuBackend",
    "KernelDriver",
    "Parameters",
    "SharedWith",
    "Strategy",
    "TimeSlice",
    "decode_parameters",
]

NVIDIA_API_VERSION: Final = "resource.nvidia.com/v1beta1"

# MPS counts pinned memory in whole MiB.
MIN_MEMORY_LIMIT: Final = 1 << 20
_MAX_MEMORY_LIMIT: Final = 1 << 50
_MAX_ENTRIES: Final = 64
_CAPABILITIES: Final = "driverCapabilities"

_E = TypeVar("_E", bound=enum.Enum)


class DeviceType(enum.Enum):
    """Kind of an allocated device; parameters are made for some of them."""

    GPU = "whole GPU"
    PARTITION = "MIG partition"
    SHARE = "share of a GPU"


class Strategy(enum.Enum):
    """The way in which processes of several containers share a device."""

    NONE = "None"  # nothing is set, nothing is enforced
    AUTO = "Auto"  # of a share: MPS where the node has it, else nothing
    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class SharedWith(enum.Enum):
    """Whose claims may have other shares of the device."""

    ANY = "Any"
    OWN_NAMESPACE = "OwnNamespace"


class KernelDriver(enum.Enum):
    """Driver that a device is bound to while a claim holds it."""

    DEFAULT = "Default"  # what it is bound to anyway
    VFIO_PCI = "vfio-pci"  # handed over as a bare PCI function


class Capability(enum.Enum):
    """What a container gets of a GPU's driver; the names of ``NVIDIA_DRIVER_CAPABILITIES``."""

    COMPUTE = "compute"
    UTILITY = "utility"
    VIDEO = "video"
    GRAPHICS = "graphics"
    DISPLAY = "display"
    NGX = "ngx"
    COMPAT32 = "compat32"
    ALL = "all"  # those above
    IMEX = "imex"  # channel 0, by which GPUs of several nodes share memory; ours


class IommuBackend(enum.Enum):
    """Interface of the kernel by which a container uses a device that is handed over as a bare PCI function.

    The names are those of NVIDIA's ``iommu.backendPolicy``, but for the last one.
    """

    LEGACY_ONLY = "LegacyOnly"  # the IOMMU group: /dev/vfio/<group>
    PREFER_IOMMUFD = "PreferIommuFD"  # IOMMUFD where the node has it, else the group
    IOMMUFD_ONLY = "IommuFDOnly"  # IOMMUFD: /dev/vfio/devices/<device>


class TimeSlice(enum.Enum):
    """Length of a time slice; the driver does not say how many milliseconds each has."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of any kind, checked, with defaults filled in.

    Attributes:
        kind: as written, for messages.
        types: what they may be applied to.
        interval: None where the time slice is left alone.
        thread_percentage: most of a GPU's threads that one process may use; None means no limit.
        memory_limit: most device memory that one process may pin, in bytes; None means what the
            share has, and no limit on other devices.
        memory_limits: likewise for single devices, by UUID or by position in the claim.
        driver: the kernel driver that the device is bound to.
        capabilities: values of ``Capability`` without ``all``, in its order: what a container gets of the
            device's driver; None means the driver's defaults.
        iommu: how a device that is bound to ``vfio-pci`` is used.
        api_device: whether the container gets ``/dev/vfio/vfio`` or ``/dev/iommu`` beside that device's own
            node.
        own_namespace: of a share: only claims of one namespace may hold the device at once.
    """

    kind: str
    types: frozenset[DeviceType]
    strategy: Strategy = Strategy.NONE
    interval: TimeSlice | None = None
    thread_percentage: int | None = None
    memory_limit: int | None = None
    memory_limits: tuple[tuple[str, int], ...] = ()
    driver: KernelDriver = KernelDriver.DEFAULT
    capabilities: tuple[str, ...] | None = None
    iommu: IommuBackend = IommuBackend.LEGACY_ONLY
    api_device: bool = True
    own_namespace: bool = False

    def memory_limit_of(self, uuid: str, position: int) -> int | None:
        """Return the limit for one device of a claim."""
        limits = dict(self.memory_limits)
        return limits.get(uuid, limits.get(str(position), self.memory_limit))


# Parameters of a share for which none are given.
DEFAULT_SHARE: Final = Parameters(
    kind="ShareConfig", types=frozenset({DeviceType.SHARE}), strategy=Strategy.AUTO
)


def decode_parameters(
    data: bytes | msgspec.Raw, driver: str, others: Iterable[tuple[str, str]] = ()
) -> Parameters:
    """Read the JSON of ``opaque.parameters``.

    Args:
        data: at most ``opaque.MAX_BYTES`` bytes of JSON.
        driver: the name under which we run; NVIDIA's kinds are understood under NVIDIA's name only.
        others: ``apiVersion`` and ``kind`` of what else is understood, for the message about a kind that
            is not.

    Raises:
        InvalidParameters: every finding, with the path of its field.
    """
    value = read_object(data)
    kinds = {**_OWN, **(_NVIDIA if driver == NVIDIA_DRIVER_NAME else {})}
    identity = (value.pop("apiVersion", None), value.pop("kind", None))
    reader = kinds.get(identity) if all(isinstance(part, str) for part in identity) else None
    if reader is None:
        known = ", ".join(f"{version} {kind}" for version, kind in (*kinds, *others))
        raise InvalidParameters(
            f"apiVersion {shown(identity[0])}, kind {shown(identity[1])}: unknown; {driver} knows {known}"
        )
    fields = _Fields(value, "")
    parameters = reader(fields)
    fields.end()
    if fields.findings:
        raise InvalidParameters([f"{identity[1]}: {finding}" for finding in fields.findings])
    return parameters


class _Fields:
    """Reader of an object, which notes what is wrong and goes on.

    All objects of one document share the list of findings.
    """

    def __init__(self, raw: Mapping[str, object], path: str, findings: list[str] | None = None) -> None:
        self._raw = dict(raw)
        self._path = path
        self.findings: list[str] = findings if findings is not None else []

    def note(self, name: str, problem: str) -> None:
        """Note what is wrong with a field."""
        self.findings.append(f"{self._at(name)}: {problem}")

    def has(self, name: str) -> bool:
        """Return whether the field is there; one that is null is read as an absent one."""
        if self._raw.get(name) is None:
            self._raw.pop(name, None)
        return name in self._raw

    def drop_empty(self, name: str) -> None:
        """Read a field of an empty text as an absent one."""
        if self._raw.get(name) == "":
            del self._raw[name]

    def inner(self, name: str) -> _Fields:
        """Read an object; empty where absent."""
        value = self._raw.pop(name, None)
        if value is not None and not isinstance(value, dict):
            self.note(name, f"expected an object, got {shown(value)}")
            value = None
        return _Fields(value or {}, self._at(name), self.findings)

    def choice(self, name: str, kind: type[_E], default: _E, *allowed: _E) -> _E:
        """Read one of the values of an enumeration; all of them where ``allowed`` is empty."""
        value = self._raw.pop(name, None)
        options = allowed or tuple(kind)
        if value is None:
            return default
        for option in options:
            if option.value == value:
                return option
        self.note(name, f"expected {', '.join(str(o.value) for o in options)}; got {shown(value)}")
        return default

    def capabilities(self, name: str) -> tuple[str, ...] | None:
        """Read a list of capabilities; None where absent."""
        value = self._raw.pop(name, None)
        if value is None:
            return None
        known = {c.value: c for c in Capability}
        if isinstance(value, list):
            value = [v for v in value if v is not None]
        if not isinstance(value, list) or any(not isinstance(v, str) or v not in known for v in value):
            self.note(name, f"expected a list of {', '.join(known)}; got {shown(value)}")
            return None
        asked = {known[v] for v in value}
        if Capability.ALL in asked:
            asked |= set(Capability) - {Capability.IMEX}
        return tuple(c.value for c in Capability if c in asked and c is not Capability.ALL)

    def truth(self, name: str, default: bool) -> bool:
        """Read a truth value."""
        value = self._raw.pop(name, None)
        if value is not None and not isinstance(value, bool):
            self.note(name, f"expected true or false, got {shown(value)}")
            return default
        return default if value is None else value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Read a whole number within bounds."""
        value = self._raw.pop(name, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.note(name, f"expected a whole number from {low} to {high}, got {shown(value)}")
            return None
        return value

    def memory(self, name: str) -> int | None:
        """Read an amount of memory, in bytes."""
        return self._memory(name, self._raw.pop(name, None))

    def memories(self, name: str) -> tuple[tuple[str, int], ...]:
        """Read amounts of memory by name."""
        inner = self.inner(name)
        if len(inner._raw) > _MAX_ENTRIES:
            self.note(name, f"{len(inner._raw)} entries, at most {_MAX_ENTRIES} are read")
            return ()
        amounts = [(key, inner._memory(key, value)) for key, value in inner._raw.items()]
        return tuple((key, amount) for key, amount in amounts if amount is not None)

    def end(self) -> None:
        """Note every field that was not read."""
        for name in self._raw:
            self.note(name, "unknown field")

    def _memory(self, name: str, value: object) -> int | None:
        if value is None:
            return None
        try:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise InvalidQuantity(shown(value))
            amount = Quantity.parse(str(value)).value()
        except InvalidQuantity:
            self.note(name, f"expected a quantity such as 8Gi, got {shown(value)}")
            return None
        if not MIN_MEMORY_LIMIT <= amount <= _MAX_MEMORY_LIMIT:
            self.note(name, f"expected from 1Mi to 1Pi, got {shown(value)}")
            return None
        return amount

    def _at(self, name: str) -> str:
        return f"{self._path}.{shown_name(name)}" if self._path else shown_name(name)


# --- our kinds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the fields of one kind."""

    slicing: str = "timeSlicing"
    mps: str = "mps"
    threads: str = "activeThreadPercentage"
    memory: str = "pinnedDeviceMemoryLimit"
    memories: str = ""
    least_threads: int = 1


_OURS: Final = _Names()


def _gpu_config(fields: _Fields) -> Parameters:
    driver = fields.choice("driver", KernelDriver, KernelDriver.DEFAULT)
    capabilities = fields.capabilities(_CAPABILITIES)
    if fields.has("iommu") and driver is KernelDriver.DEFAULT:
        fields.note("iommu", f"needs driver {KernelDriver.VFIO_PCI.value}")
    iommu, api_device = _iommu(fields, tuple(IommuBackend), api_device=True)
    parameters = _shared("GpuConfig", frozenset({DeviceType.GPU}), fields, _OURS)
    if driver is not KernelDriver.DEFAULT and parameters.strategy is not Strategy.NONE:
        fields.note("driver", f"{driver.value} goes with sharing strategy None only")
    if driver is not KernelDriver.DEFAULT and capabilities is not None:
        fields.note(_CAPABILITIES, f"driver {driver.value} gives nothing of the vendor's driver")
    return replace(parameters, driver=driver, capabilities=capabilities, iommu=iommu, api_device=api_device)


def _mig_config(fields: _Fields) -> Parameters:
    capabilities = fields.capabilities(_CAPABILITIES)
    parameters = _shared("MigConfig", frozenset({DeviceType.PARTITION}), fields, _OURS)
    return replace(parameters, capabilities=capabilities)


def _share_config(fields: _Fields) -> Parameters:
    allowed = (Strategy.AUTO, Strategy.MPS, Strategy.NONE)
    strategy = fields.choice("enforcement", Strategy, Strategy.AUTO, *allowed)
    interval: TimeSlice | None = None
    if fields.has("timeSlicing"):
        if strategy is not Strategy.NONE:
            fields.note("timeSlicing", "needs enforcement None: MPS does not slice time")
        strategy, interval = Strategy.TIME_SLICING, _interval(fields, _OURS)
    if fields.has("mps") and strategy not in (Strategy.AUTO, Strategy.MPS):
        fields.note("mps", "needs enforcement Auto or MPS")
    threads, memory, _ = _mps(fields, _OURS)
    shared_with = fields.choice("sharedWith", SharedWith, SharedWith.ANY)
    return Parameters(
        kind="ShareConfig",
        types=frozenset({DeviceType.SHARE}),
        strategy=strategy,
        interval=interval,
        thread_percentage=threads,
        memory_limit=memory,
        capabilities=fields.capabilities(_CAPABILITIES),
        own_namespace=shared_with is SharedWith.OWN_NAMESPACE,
    )


# --- NVIDIA's kinds -----------------------------------------------------------------------------------------

_THEIRS: Final = _Names(
    slicing="timeSlicingConfig",
    mps="mpsConfig",
    threads="defaultActiveThreadPercentage",
    memory="defaultPinnedDeviceMemoryLimit",
    memories="defaultPerDevicePinnedMemoryLimit",
    least_threads=0,
)


def _nvidia_gpu(fields: _Fields) -> Parameters:
    return _shared("GpuConfig", frozenset({DeviceType.GPU, DeviceType.SHARE}), fields, _THEIRS)


def _nvidia_mig(fields: _Fields) -> Parameters:
    return _shared("MigDeviceConfig", frozenset({DeviceType.PARTITION}), fields, _THEIRS)


def _nvidia_vfio(fields: _Fields) -> Parameters:
    allowed = (IommuBackend.LEGACY_ONLY, IommuBackend.PREFER_IOMMUFD)
    iommu, api_device = _iommu(fields, allowed, api_device=False)
    return Parameters(
        kind="VfioDeviceConfig",
        types=frozenset({DeviceType.GPU}),
        driver=KernelDriver.VFIO_PCI,
        iommu=iommu,
        api_device=api_device,
    )


# --- what they have in common -------------------------------------------------------------------------------


def _shared(kind: str, types: frozenset[DeviceType], fields: _Fields, names: _Names) -> Parameters:
    """Read ``sharing: {strategy, timeSlicing…: {interval}, mps…: {…}}``."""
    sharing = fields.inner("sharing")
    allowed = [Strategy.TIME_SLICING, Strategy.MPS]
    if names is _OURS:
        allowed.insert(0, Strategy.NONE)
    strategy = sharing.choice("strategy", Strategy, Strategy.NONE, *allowed)
    for name, needed in ((names.slicing, Strategy.TIME_SLICING), (names.mps, Strategy.MPS)):
        if sharing.has(name) and strategy is not needed:
            sharing.note(name, f"needs strategy {needed.value}")
    interval: TimeSlice | None = None
    if sharing.has(names.slicing) and types == {DeviceType.PARTITION}:
        sharing.note(names.slicing, "a MIG partition has no time slice of its own to set")
        sharing.inner(names.slicing)
    elif (strategy is Strategy.TIME_SLICING and types != {DeviceType.PARTITION}) or sharing.has(
        names.slicing
    ):
        interval = _interval(sharing, names)
    threads, memory, memories = _mps(sharing, names)
    sharing.end()
    return Parameters(kind, types, strategy, interval, threads, memory, memories)


def _iommu(
    fields: _Fields, allowed: tuple[IommuBackend, ...], *, api_device: bool
) -> tuple[IommuBackend, bool]:
    """Read ``iommu: {backendPolicy, enableAPIDevice}``; ``api_device`` is the default of the latter."""
    iommu = fields.inner("iommu")
    iommu.drop_empty("backendPolicy")  # what clients in Go write where nothing is chosen
    backend = iommu.choice("backendPolicy", IommuBackend, IommuBackend.LEGACY_ONLY, *allowed)
    wanted = iommu.truth("enableAPIDevice", api_device)
    iommu.end()
    return backend, wanted


def _interval(fields: _Fields, names: _Names) -> TimeSlice:
    slicing = fields.inner(names.slicing)
    interval = slicing.choice("interval", TimeSlice, TimeSlice.DEFAULT)
    slicing.end()
    return interval


def _mps(fields: _Fields, names: _Names) -> tuple[int | None, int | None, tuple[tuple[str, int], ...]]:
    mps = fields.inner(names.mps)
    threads = mps.integer(names.threads, names.least_threads, 100) or None
    memory = mps.memory(names.memory)
    memories = mps.memories(names.memories) if names.memories else ()
    mps.end()
    return threads, memory, memories


_Reader = Callable[[_Fields], Parameters]

_OWN: Final[Mapping[tuple[object, object], _Reader]] = {
    (API_VERSION, "GpuConfig"): _gpu_config,
    (API_VERSION, "MigConfig"): _mig_config,
    (API_VERSION, "ShareConfig"): _share_config,
}
_NVIDIA: Final[Mapping[tuple[object, object], _Reader]] = {
    (NVIDIA_API_VERSION, "GpuConfig"): _nvidia_gpu,
    (NVIDIA_API_VERSION, "MigDeviceConfig"): _nvidia_mig,
    (NVIDIA_API_VERSION, "VfioDeviceConfig"): _nvidia_vfio,
}
