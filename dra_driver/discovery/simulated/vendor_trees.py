"""What sysfs, procfs and devfs show of Intel's and NVIDIA's GPUs and of RDMA NICs of a simulated machine."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Mapping

from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.simulated.machine import (
    IntelGpu,
    NvidiaGpu,
    PciFunction,
    RdmaNic,
    default_root,
    virtual_function,
)
from dra_driver.discovery.simulated.tree import TreeWriter

__all__ = ["write_intel", "write_nvidia", "write_rdma"]

_DRM_DRIVERS = ("i915", "xe")


def _sriov(hardware: IntelGpu | RdmaNic) -> dict[str, object]:
    if hardware.total_vfs is None:
        return {}
    return {"sriov_totalvfs": hardware.total_vfs, "sriov_numvfs": hardware.vfs}


def _write_virtual_functions(tree: TreeWriter, physical: PciFunction, count: int) -> list[PciFunction]:
    """Write the virtual functions of a device."""
    root = physical.root or default_root(physical.address)
    functions: list[PciFunction] = []
    for number in range(count):
        address = virtual_function(physical.address, number)
        function = dataclasses.replace(physical, address=address, root=root)
        tree.pci_function(function)
        tree.link(f"{function.folder}/physfn", physical.folder)
        tree.link(f"{physical.folder}/virtfn{number}", function.folder)
        functions.append(function)
    return functions


def write_intel(tree: TreeWriter, function: PciFunction, gpu: IntelGpu) -> None:
    """Write an Intel GPU with its virtual functions."""
    folder = function.folder
    tree.pci_function(function, _sriov(gpu))
    virtual = _write_virtual_functions(tree, function, gpu.vfs)
    if function.driver == "vfio-pci":
        tree.link(f"{folder}/iommu_group", "sys/kernel/iommu_groups/42")
        tree.node("vfio/vfio")
        tree.node("vfio/42")
    if function.driver not in _DRM_DRIVERS:
        return
    card, _ = tree.drm(folder, function.address)
    if function.driver == "i915":
        tree.files(folder, {f"drm/card{card}/lmem_total_bytes": gpu.memory})
    else:
        for tile in range(gpu.tiles):
            tree.folder(f"{folder}/tile{tile}/gt0")
            share = None if gpu.memory is None else gpu.memory // gpu.tiles
            tree.files(folder, {f"tile{tile}/physical_vram_size_bytes": share})
    for number, virtual_gpu in enumerate(virtual, start=1):
        tree.drm(virtual_gpu.folder, virtual_gpu.address)
        quota = (
            f"drm/card{card}/prelim_iov/vf{number}/gt/lmem_quota"
            if function.driver == "i915"
            else f"sriov_admin/vf{number}/profile/vram_quota"
        )
        tree.files(folder, {quota: gpu.vf_memory})


def write_nvidia(
    tree: TreeWriter, function: PciFunction, gpu: NvidiaGpu, minor: int, gpu_uuid: str | None
) -> None:
    """Write an NVIDIA GPU as the kernel shows it; what NVML reports of it is in no file.

    Args:
        tree: where it is written.
        function: its PCI function.
        gpu: the GPU.
        minor: number of its device node.
        gpu_uuid: its UUID; if None, it is made of the address.
    """
    address = function.address
    tree.pci_function(function)
    tree.drm(function.folder, address)
    identity = gpu_uuid or f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, str(address))}"
    tree.file(
        f"proc/driver/nvidia/gpus/{address}/information",
        f"Model: \t\t {gpu.product_name or 'NVIDIA GPU'}\nGPU UUID: \t {identity}\n"
        f"Bus Location: \t {address}\nDevice Minor: \t {minor}",
    )
    for node in (f"nvidia{minor}", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        tree.node(node)


def write_rdma(
    tree: TreeWriter, function: PciFunction, nic: RdmaNic, numbers: Mapping[PciAddress, int]
) -> None:
    """Write a NIC and its virtual functions.

    Args:
        tree: where they are written.
        function: PCI function of the NIC.
        nic: the NIC.
        numbers: PCI address → number of the RDMA device.
    """
    tree.pci_function(function, _sriov(nic))
    for own in (function, *_write_virtual_functions(tree, function, nic.vfs)):
        _write_rdma_device(tree, own, nic, numbers[own.address])
    tree.node("infiniband/rdma_cm")


def _write_rdma_device(tree: TreeWriter, function: PciFunction, nic: RdmaNic, number: int) -> None:
    folder = function.folder
    name = nic.device_name(function.driver, number)
    device = f"{folder}/infiniband/{name}"
    digest = hashlib.sha256(folder.encode()).hexdigest()
    tree.files(
        device,
        {
            "node_guid": ":".join(digest[i : i + 4] for i in range(0, 16, 4)),
            "node_type": "1: CA",
            "fw_ver": nic.firmware,
            "hca_type": nic.hca_type,
            "board_id": nic.board_id,
            "ports/1/state": nic.state,
            "ports/1/phys_state": "5: LinkUp",
            "ports/1/rate": nic.rate,
            "ports/1/link_layer": nic.link_layer,
        },
    )
    tree.link(f"sys/class/infiniband/{name}", device)
    tree.link(f"{device}/device", folder)
    tree.files(f"{folder}/infiniband_verbs/uverbs{number}", {"ibdev": name, "dev": f"231:{192 + number}"})
    tree.link(f"sys/class/infiniband_verbs/uverbs{number}", f"{folder}/infiniband_verbs/uverbs{number}")
    tree.node(f"infiniband/uverbs{number}")
    tree.files(f"{folder}/infiniband_mad/umad{number}", {"ibdev": name, "port": 1})
    tree.link(f"sys/class/infiniband_mad/umad{number}", f"{folder}/infiniband_mad/umad{number}")
    tree.node(f"infiniband/umad{number}")
    interface = nic.interface(number)
    if interface is not None:
        tree.files(f"{folder}/net/{interface}", {"dev_port": 0, "operstate": "up"})
        tree.link(f"sys/class/net/{interface}", f"{folder}/net/{interface}")
