"""A simulated machine as trees of sysfs, procfs and devfs, for tests, demonstrations and bare machines.

The backends that read files (``amdgpu``, ``intel``, ``rdma``, ``generic``) find the machine's devices in such
a tree when its ``sys`` and ``dev`` are given to them as roots. NVML is a library: of NVIDIA's GPUs the tree
has only what the kernel shows; ``--backend simulated`` stands in for the rest.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from dra_driver.discovery.simulated.amd_tree import AmdWriter
from dra_driver.discovery.simulated.machine import AmdGpu, IntelGpu, NvidiaGpu, SimulatedMachine, rdma_numbers
from dra_driver.discovery.simulated.tree import TreeWriter
from dra_driver.discovery.simulated.vendor_trees import write_intel, write_nvidia, write_rdma
from dra_driver.errors import ConfigurationError

__all__ = ["build"]


def build(machine: SimulatedMachine, root: Path, *, mknod: bool = False) -> None:
    """Write the machine's ``sys``, ``proc`` and ``dev`` below ``root``.

    Args:
        machine: what ``profile.load`` returns.
        root: a directory that is new or empty.
        mknod: make device nodes, all of the null device (needs root), instead of regular files.

    Raises:
        ConfigurationError: a device's PCI device id is not known, ``root`` is not empty or cannot be written,
            or device nodes cannot be made.
    """
    nameless = [str(d.function.address) for d in machine.devices if d.function.device_id is None]
    if nameless:
        raise ConfigurationError(
            f"deviceID of {', '.join(nameless)}: it is not known; a tree of files needs the PCI device id, "
            "four hex digits"
        )
    tree = TreeWriter(root, mknod=mknod)
    try:
        _write_devices(tree, machine)
        for module, version in machine.modules.items():
            tree.file(f"sys/module/{module}/version", version)
            if module == "nvidia":
                tree.file("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Kernel Module  {version}")
    except OSError as e:
        raise ConfigurationError(f"{e.filename or root}: {e.strerror or e}") from e


def _write_devices(tree: TreeWriter, machine: SimulatedMachine) -> None:
    amd: AmdWriter | None = None
    minors = itertools.count()
    numbers = rdma_numbers(machine)
    for device in machine.devices:
        hardware = device.hardware
        if isinstance(hardware, AmdGpu):
            amd = amd or AmdWriter(tree, machine.processors)
            amd.write(device.function, hardware)
        elif isinstance(hardware, IntelGpu):
            write_intel(tree, device.function, hardware)
        elif isinstance(hardware, NvidiaGpu):
            uuid = device.published.uuid if device.published else None
            write_nvidia(tree, device.function, hardware, next(minors), uuid)
        else:
            write_rdma(tree, device.function, hardware, numbers)
    if amd is not None:
        amd.write_links(machine.links)
