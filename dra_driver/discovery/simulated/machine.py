"""The model of a machine that does not exist. Both views are made of it: devices, and trees of files.

A profile (``profile.py``) is decoded into it; ``devices.py`` says what the backends would publish of it,
``layout.py`` writes what the kernel would show of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dra_driver.api.own.inventory import DeviceHealth, PartitionPlacement
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.schema import Facts

__all__ = [
    "AmdGpu",
    "IntelGpu",
    "LinkGroup",
    "MigProfile",
    "NvidiaGpu",
    "PciFunction",
    "PublishedGpu",
    "RdmaNic",
    "SimulatedDevice",
    "SimulatedMachine",
    "default_root",
    "rdma_numbers",
    "virtual_function",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """What the kernel shows of any PCI function.

    Attributes:
        vendor_id: four hexadecimal digits.
        class_code: six hexadecimal digits.
        device_id: four hexadecimal digits; None if it is not known.
        revision: two hexadecimal digits.
        root: PCIe root complex, for example ``pci0000:3a``; None if the profile does not name one.
        numa_node: None if the firmware does not report it.
        driver: kernel driver; None if none is bound.
        driver_version: version of that driver's module; None if it shows none.
    """

    address: PciAddress
    vendor_id: str
    class_code: str
    device_id: str | None = None
    revision: str = "00"
    root: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    driver_version: str | None = None

    @property
    def pci_id(self) -> str | None:
        """Vendor and device id, for example ``1002:74a1``."""
        return None if self.device_id is None else f"{self.vendor_id}:{self.device_id}"

    @property
    def folder(self) -> str:
        """Path of the function's directory, relative to the root of the machine's tree."""
        return f"sys/devices/{self.root or default_root(self.address)}/{self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """An AMD GPU, whole or in partitions; amounts of memory are in bytes.

    Attributes:
        gfx_target: KFD's ``gfx_target_version``, for example 90402; 0 if unknown.
        compute_units: of the whole GPU; 0 if unknown.
        modes: compute partition modes that it supports; without any, the kernel shows no partition files.
        partitions: number of partitions in the present mode.
        partition_memory: of each partition.
        render_slots: render numbers that the driver reserves for the GPU.
        hive: id of its XGMI hive; 0 if it is in none.
        unique_ids: whether the driver shows the GPU's unique id.
        uncorrectable_errors: ECC errors of its memory that the driver has counted.
    """

    product_name: str = ""
    memory: int | None = None
    gfx_target: int = 0
    compute_units: int = 0
    simd_per_unit: int = 4
    modes: tuple[str, ...] = ()
    compute_partition: str = "SPX"
    memory_partition: str = "NPS1"
    partitions: int = 1
    partition_memory: int | None = None
    render_slots: int = 1
    hive: int = 0
    unique_ids: bool = True
    ecc: bool = False
    uncorrectable_errors: int = 0

    @property
    def mode(self) -> str | None:
        """Compute partition mode as the kernel shows it, in lower case; None without partition files."""
        return self.compute_partition.lower() if self.modes else None

    @property
    def partitioned(self) -> bool:
        """Whether the GPU is published as its partitions."""
        return self.mode not in (None, "spx") or self.partitions > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelGpu:
    """An Intel GPU with its virtual functions; amounts of memory are in bytes.

    Attributes:
        memory: None if the driver does not show it without privilege.
        total_vfs: virtual functions that it supports; None if it has no SR-IOV.
        vfs: virtual functions that are enabled.
        vf_memory: of each virtual function.
    """

    memory: int | None = None
    tiles: int = 1
    total_vfs: int | None = None
    vfs: int = 0
    vf_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpu:
    """An NVIDIA GPU as the kernel shows it. What NVML reports of it is a ``PublishedGpu``."""

    product_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNic:
    """An InfiniBand or RoCE adapter with one port, and its virtual functions. Texts are as sysfs has them."""

    link_layer: str = "InfiniBand"
    rate: str | None = None
    state: str = "4: ACTIVE"
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    netdev: str | None = None
    total_vfs: int | None = None
    vfs: int = 0

    def device_name(self, driver: str | None, number: int) -> str:
        """Return the name of the RDMA device, for example ``mlx5_3`` for driver ``mlx5_core``."""
        return f"{(driver or 'rdma').removesuffix('_core').removesuffix('_en')}_{number}"

    def interface(self, number: int) -> str | None:
        """Return the name of the network interface, for example ``eth3``; None if there is none."""
        return None if self.netdev is None else f"{self.netdev}{number}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of MIG partition; ``capacity`` by the names of the schema."""

    name: str
    profile_id: int
    placements: tuple[PartitionPlacement, ...]
    capacity: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGpu:
    """A GPU in the words of what is published of it: the only description of what NVML reports.

    Attributes:
        facts: attributes by the names of the schema; None if unknown.
        uuid: None if the backend has to make one.
        memory: bytes.
        device_nodes: paths that containers get.
        env: variables that containers get.
        load: percent of time in which the GPU works; None if it reports no load.
    """

    facts: Facts
    uuid: str | None = None
    memory: int | None = None
    multiprocessors: int | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    device_nodes: tuple[str, ...] = ()
    env: Mapping[str, str]
    health: tuple[DeviceHealth, ...] = ()
    load: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One physical device.

    Attributes:
        hardware: what files show of it.
        published: what is published of it, if the profile says so itself (every NVIDIA GPU, every entry of
            ``gpus``); otherwise it follows from ``hardware``.
    """

    function: PciFunction
    hardware: AmdGpu | IntelGpu | NvidiaGpu | RdmaNic
    published: PublishedGpu | None = None


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """GPUs that NVLink or XGMI connects: each pair directly, or all of them through a switch.

    Attributes:
        links: of each pair, or of each GPU if ``switched``.
    """

    type: Literal["nvlink", "xgmi"]
    members: tuple[PciAddress, ...]
    links: int
    switched: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine.

    Attributes:
        processors: number of cores of each NUMA node.
        modules: kernel module → the version that it shows.
        devices: in the order in which the kernel numbers them.
    """

    description: str
    processors: tuple[int, ...]
    modules: Mapping[str, str]
    cuda_driver_version: str | None
    devices: tuple[SimulatedDevice, ...]
    links: tuple[LinkGroup, ...]


def default_root(address: PciAddress) -> str:
    """Return the PCIe root complex of a device whose profile does not name one."""
    return f"pci{address.domain:04x}:{max(address.bus - 1, 0):02x}"


def virtual_function(address: PciAddress, number: int) -> PciAddress:
    """Return the address of virtual function ``number``, from 0: they follow the physical one."""
    slot = (address.device << 3 | address.function) + 1 + number
    return PciAddress(address.domain, address.bus + (slot >> 8), slot >> 3 & 0x1F, slot & 7)


def rdma_numbers(machine: SimulatedMachine) -> Mapping[PciAddress, int]:
    """Return the number of the RDMA device (``mlx5_3``) of every NIC and virtual function of one."""
    functions: list[PciAddress] = []
    for device in machine.devices:
        if isinstance(device.hardware, RdmaNic):
            own = device.function.address
            functions += [own, *(virtual_function(own, i) for i in range(device.hardware.vfs))]
    return {address: number for number, address in enumerate(functions)}
