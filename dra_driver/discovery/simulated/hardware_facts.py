"""What is published of a simulated device that is described by what the kernel shows of it.

The same as the backends ``amdgpu``, ``intel`` and ``rdma`` make of its files, but for identities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery.amd import kfd
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci_products
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.schema import Facts
from dra_driver.discovery.rdma import backend as rdma
from dra_driver.discovery.simulated.machine import (
    AmdGpu,
    IntelGpu,
    PciFunction,
    RdmaNic,
    SimulatedDevice,
    virtual_function,
)

__all__ = ["HardwareFacts", "facts_of"]

_DRM_DRIVERS = ("i915", "xe")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFacts:
    """One device to be published, by the names of the schema."""

    name: str
    identity: str
    attributes: Facts
    capacity: Mapping[str, int | None]
    health: tuple[DeviceHealth, ...] = ()


def facts_of(
    device: SimulatedDevice, seeded: str, numbers: Mapping[PciAddress, int]
) -> Iterator[HardwareFacts]:
    """Yield a device, or its partitions, and its virtual functions.

    Args:
        device: the physical device.
        seeded: 16 hexadecimal digits that no other device has: its identity is made of them.
        numbers: PCI address → number of the RDMA device.
    """
    hardware, function = device.hardware, device.function
    if isinstance(hardware, AmdGpu):
        yield from _amd(function, hardware, seeded)
    elif isinstance(hardware, IntelGpu):
        yield _intel(function, hardware)
        for number in range(hardware.vfs):
            yield _intel_virtual(function, virtual_function(function.address, number), hardware)
    elif isinstance(hardware, RdmaNic):
        yield _rdma(function, function.address, hardware, seeded, numbers[function.address])
        for number in range(hardware.vfs):
            address = virtual_function(function.address, number)
            own = f"{int(seeded, 16) + 1 + number & (1 << 64) - 1:016x}"
            yield _rdma(function, address, hardware, own, numbers[address])


def _position(function: PciFunction, address: PciAddress) -> dict[str, str | int | bool | None]:
    return {
        names.PCI_BUS_ID: str(address),
        names.PCIE_ROOT: function.root,
        names.NUMA_NODE: function.numa_node,
        "kernelDriver": function.driver,
        "pciID": function.pci_id,
        "physicalFunction": None if address == function.address else str(function.address),
    }


def _amd(function: PciFunction, gpu: AmdGpu, seeded: str) -> Iterator[HardwareFacts]:
    name = schema.device_name(function.address)
    parent = seeded if gpu.unique_ids else None
    product = pci_products.amd_product(int(function.device_id or "0", 16), int(function.revision, 16))
    product_name = gpu.product_name or (product.name if product else None)
    model = product.model if product else None
    per_unit = gpu.simd_per_unit
    units = gpu.compute_units * per_unit // gpu.partitions // per_unit if per_unit else 0
    memory_mode = gpu.memory_partition.lower() if gpu.modes else None
    health = _uncorrectable(gpu)
    for index in range(gpu.partitions):
        suffix = f"-{gpu.mode or 'xcp'}-{index}" if gpu.partitioned else ""
        yield HardwareFacts(
            name=name + suffix,
            identity=(parent or f"pci:{function.address}") + suffix,
            attributes={
                **_position(function, function.address),
                "type": "partition" if gpu.partitioned else "gpu",
                "vendor": "amd",
                "productName": product_name,
                "model": model or (schema.model_of(product_name) if product_name else None),
                "uuid": None if parent is None else parent + suffix,
                "parentUUID": parent if gpu.partitioned else None,
                "profile": "-".join(m for m in (gpu.mode, memory_mode) if m) or None
                if gpu.partitioned
                else None,
                "architecture": kfd.gfx_target(gpu.gfx_target),
                "driverVersion": function.driver_version,
                "xgmiHive": f"{gpu.hive:016x}" if gpu.hive else None,
                "computePartition": gpu.mode,
                "memoryPartition": memory_mode,
                "eccEnabled": gpu.ecc,
            },
            capacity={
                "memory": gpu.partition_memory if gpu.partitions > 1 else gpu.memory,
                "multiprocessors": units or None,
            },
            health=health,
        )


def _uncorrectable(gpu: AmdGpu) -> tuple[DeviceHealth, ...]:
    if not gpu.ecc or not gpu.uncorrectable_errors:
        return ()
    message = f"the driver has counted errors that could not be corrected: umc {gpu.uncorrectable_errors}"
    return (DeviceHealth(reason="UncorrectableErrors", severity="degraded", message=message),)


def _intel(function: PciFunction, gpu: IntelGpu) -> HardwareFacts:
    drm = function.driver in _DRM_DRIVERS
    memory = gpu.memory
    if memory is not None and function.driver == "xe":
        memory = memory // gpu.tiles * gpu.tiles if gpu.tiles else None
    enabled = gpu.vfs if gpu.total_vfs is not None else 0
    attributes = {
        **_intel_attributes(function, function.address),
        "type": "gpu",
        "tiles": gpu.tiles or None if function.driver == "xe" else None,
        "sriovCapable": None if gpu.total_vfs is None else gpu.total_vfs > 0,
        "sriovVFs": enabled or None,
    }
    health: list[DeviceHealth] = []
    if not drm:
        what = (
            f"bound to {function.driver}, not to i915 or xe"
            if function.driver
            else "bound to no kernel driver"
        )
        health.append(DeviceHealth(reason="DriverNotBound", severity="degraded", message=f"it is {what}"))
    if enabled:
        message = f"{enabled} virtual functions are enabled: the GPU cannot be used as a whole"
        health.append(DeviceHealth(reason="VirtualFunctionsEnabled", severity="degraded", message=message))
    return HardwareFacts(
        name=schema.device_name(function.address),
        identity=f"pci:{function.address}/{function.device_id}",
        attributes=attributes,
        capacity={"memory": memory if drm else None},
        health=tuple(health),
    )


def _intel_virtual(function: PciFunction, address: PciAddress, gpu: IntelGpu) -> HardwareFacts:
    return HardwareFacts(
        name=schema.device_name(address),
        identity=f"pci:{address}/{function.device_id}",
        attributes={**_intel_attributes(function, address), "type": "vf"},
        capacity={"memory": gpu.vf_memory if function.driver in _DRM_DRIVERS else None},
    )


def _intel_attributes(function: PciFunction, address: PciAddress) -> dict[str, str | int | bool | None]:
    product = pci_products.intel_product(int(function.device_id or "0", 16))
    # The GPU of a processor is function 2.0 of the first bus.
    onboard = (address.domain, address.bus, address.device) == (0, 0, 2)
    return {
        **_position(function, address),
        "vendor": "intel",
        "model": product.model if product else None,
        "productName": product.name if product else None,
        "family": product.family if product else None,
        "architecture": product.architecture if product else None,
        "driverVersion": function.driver_version,
        "integrated": True if onboard or (product is not None and product.integrated) else None,
    }


def _rdma(function: PciFunction, address: PciAddress, nic: RdmaNic, guid: str, number: int) -> HardwareFacts:
    product = pci_products.rdma_product(function.pci_id) if function.pci_id else None
    physical = address == function.address
    identity = ":".join(guid[i : i + 4] for i in range(0, 16, 4))
    active = nic.state.partition(":")[0].strip() == "4"
    message = "none of its ports is active"
    return HardwareFacts(
        name=schema.device_name(address, "nic"),
        identity=identity,
        attributes={
            **_position(function, address),
            "type": "nic" if physical else "vf",
            "vendor": rdma.VENDORS.get(int(function.vendor_id, 16)),
            "model": product.model if product else None,
            "productName": product.name if product else None,
            "uuid": identity,
            "nodeGUID": identity,
            "linkLayer": nic.link_layer if nic.link_layer in ("InfiniBand", "Ethernet") else None,
            "rdmaDevice": nic.device_name(function.driver, number),
            "netdev": nic.interface(number),
            "ports": 1,
            "firmwareVersion": nic.firmware,
            "hcaType": nic.hca_type,
            "boardID": nic.board_id,
            "sriovCapable": nic.total_vfs > 0 if physical and nic.total_vfs is not None else None,
            "sriovVFs": nic.vfs or None if physical and nic.total_vfs is not None else None,
        },
        capacity={"bandwidth": rdma.parse_rate(nic.rate) if nic.rate and active else None},
        health=() if active else (DeviceHealth(reason="PortDown", severity="degraded", message=message),),
    )
