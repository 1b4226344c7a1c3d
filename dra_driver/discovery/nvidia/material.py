"""What a container needs of NVIDIA's driver beside the GPU's nodes: from the toolkit's document, else found.

The order of preference: the CDI document that NVIDIA's toolkit has written for this node; the driver's files
as we find them; nothing but device nodes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from dra_driver import cdi
from dra_driver.api import names
from dra_driver.discovery.core import sysfs
from dra_driver.discovery.core.pci import PciAddress
from dra_driver.discovery.nvidia.driver_root import AUTO, DriverRoot, find_driver_root
from dra_driver.discovery.nvidia.libraries import HOOK_PROGRAM, driver_material, find_hook
from dra_driver.discovery.nvidia.toolkit import OwnNodes, ToolkitDocument, of_one_device, read_documents
from dra_driver.hardware import DiscoveredDevice

__all__ = ["NvidiaMaterial"]

_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
# What real NVIDIA GPUs carry, and simulated ones do not.
_MARK: Final = "NVIDIA_VISIBLE_DEVICES"

_log = structlog.get_logger(__name__)


class NvidiaMaterial:
    """What completes the material of NVIDIA GPUs.

    Args:
        host_root: where the host's file system is; ``/`` outside of a container.
        driver_root: where the driver is on the host: a path, or ``auto`` for the usual places.
        hook: path of ``nvidia-cdi-hook`` on the host; if empty, where it usually is, or none.
        sysfs_root: where sysfs is mounted: it tells which DRM nodes are a GPU's.
    """

    def __init__(
        self,
        *,
        host_root: Path = Path("/"),
        driver_root: str = AUTO,
        hook: str = "",
        sysfs_root: Path = Path("/sys"),
    ) -> None:
        self._host_root = host_root
        self._sysfs_root = sysfs_root
        self._driver_root = driver_root
        self._hook = hook
        self._told: set[str] = set()

    def complete(self, devices: Sequence[DiscoveredDevice]) -> Sequence[DiscoveredDevice]:
        """Return the devices, NVIDIA's with all that a container needs. Blocks: it reads files."""
        if not any(_is_ours(d) for d in devices):
            return devices
        documents = read_documents(self._host_root, self._tell)
        hook = self._hook or find_hook(self._host_root)
        # Asked each time: a container may bring the driver later.
        root = find_driver_root(
            self._driver_root, host_root=self._host_root, sysfs_root=self._sysfs_root
        ) or DriverRoot("/" if self._driver_root == AUTO else self._driver_root, self._host_root)
        found: dict[str, cdi.ContainerEdits] = {}
        completed = []
        for device in devices:
            if not _is_ours(device):
                completed.append(device)
                continue
            material = self._from_toolkit(documents, device, hook)
            if material is None:
                version = _driver_version(device)
                if version not in found:
                    found[version] = driver_material(self._host_root, root.path, version, hook)
                material = found[version]
                if not material.mounts:
                    self._tell(
                        f"no files of NVIDIA driver {version or '(of unknown version)'} below "
                        f"{root.here}: containers get device nodes only "
                        "and their images have to bring the libraries"
                    )
            completed.append(
                dataclasses.replace(
                    device,
                    material=_merged(device.material, material),
                    own_nodes=_own_nodes(device, material),
                )
            )
        return completed

    def _from_toolkit(
        self, documents: Sequence[ToolkitDocument], device: DiscoveredDevice, hook: str
    ) -> cdi.ContainerEdits | None:
        own = self._own_nodes(device)
        for document in documents:
            edits = document.edits(device.uuid, own, self._tell)
            if edits is not None:
                return self._material(edits, document.path, hook)
        return None

    def _own_nodes(self, device: DiscoveredDevice) -> OwnNodes:
        """Return the nodes of the device's GPU, without capabilities, which a document must not give."""
        gpu = next((n.path for n in device.material.device_nodes if _GPU_NODE.fullmatch(n.path)), "")
        place = device.device.attributes.get(names.PCI_BUS_ID)
        address = PciAddress.parse(place.string_value or "") if place is not None else None
        if address is None:
            return OwnNodes(gpu)
        drm = sysfs.entries(sysfs.pci_function(self._sysfs_root, address) / "drm") or ()
        return OwnNodes(gpu, frozenset(f"/dev/dri/{name}" for name in drm))

    def _material(self, edits: cdi.ContainerEdits, path: Path, hook: str) -> cdi.ContainerEdits:
        hooks = []
        for h in edits.hooks:
            program = h.path
            if self._hook and program.rpartition("/")[2] == HOOK_PROGRAM:
                program = self._hook
            if not (self._host_root / program.strip("/")).is_file():
                if not hook or program.rpartition("/")[2] != HOOK_PROGRAM:
                    self._tell(f"{path}: hook {program} is not on this node; left out")
                    continue
                program = hook
            hooks.append(cdi.Hook(h.hook_name, program, h.args, h.env))
        # Without type and numbers, which may be of an earlier boot: the runtime takes the host node's.
        nodes = ((n.path, n.host_path if n.host_path != n.path else "") for n in edits.device_nodes)
        return cdi.ContainerEdits(
            device_nodes=tuple(cdi.DeviceNode(path, host_path) for path, host_path in nodes),
            mounts=tuple(cdi.Mount(m.host_path, m.container_path, m.options) for m in edits.mounts),
            env=edits.env,
            hooks=tuple(hooks),
        )

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            _log.warning("NVIDIA's files are incomplete", reason=problem)


def _is_ours(device: DiscoveredDevice) -> bool:
    return _MARK in _variables(device.material)


def _own_nodes(device: DiscoveredDevice, more: cdi.ContainerEdits) -> tuple[str, ...]:
    """Return the paths of the nodes that are the device's alone, with those that ``more`` adds."""
    known = (n.path for n in cdi.own_nodes(device.material, device.own_nodes))
    added = (n.path for n in more.device_nodes if of_one_device(n.path))
    return tuple(dict.fromkeys((*known, *added)))


def _driver_version(device: DiscoveredDevice) -> str:
    value = device.device.attributes.get("driverVersion")
    return str(value.version_value) if value is not None and value.version_value is not None else ""


def _variables(edits: cdi.ContainerEdits) -> dict[str, str]:
    return dict(variable.partition("=")[::2] for variable in edits.env)


def _merged(own: cdi.ContainerEdits, more: cdi.ContainerEdits) -> cdi.ContainerEdits:
    """Return both; of one node ``more`` knows better, of one variable ``own``."""
    nodes = {n.path: n for n in (*own.device_nodes, *more.device_nodes)}
    variables = {**_variables(more), **_variables(own)}
    return cdi.ContainerEdits(
        device_nodes=tuple(nodes.values()),
        mounts=tuple(dict.fromkeys((*own.mounts, *more.mounts))),
        env=tuple(f"{name}={value}" for name, value in variables.items()),
        hooks=tuple(dict.fromkeys((*own.hooks, *more.hooks))),
    )
