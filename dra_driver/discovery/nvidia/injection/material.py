"""What a container needs of NVIDIA's driver beside the GPU's nodes: from the toolkit's document, else found.

The order of preference: the CDI document that NVIDIA's toolkit has written for this node, unless it is out
of date; the driver's files as we find them; nothing but device nodes.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from dra_driver import cdi
from dra_driver.api import names
from dra_driver.discovery.core.bus.pci import PciAddress, exists
from dra_driver.discovery.core.host.host_view import HostView
from dra_driver.discovery.nvidia.driver.root import AUTO, find_driver_root
from dra_driver.discovery.nvidia.injection import capabilities, nodes
from dra_driver.discovery.nvidia.injection.driver_files import DriverPlace, find_driver
from dra_driver.discovery.nvidia.injection.edits import DriverEdits, driver_edits
from dra_driver.discovery.nvidia.injection.hooks import HOOK_PROGRAM, HookProgram, HookPrograms
from dra_driver.discovery.nvidia.injection.toolkit import (
    OwnNodes,
    ToolkitDocument,
    of_one_device,
    read_documents,
)
from dra_driver.hardware import DiscoveredDevice

__all__ = ["NvidiaMaterial"]

_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
# What real NVIDIA GPUs carry, and simulated ones do not.
_MARK: Final = "NVIDIA_VISIBLE_DEVICES"
_NO_PARTS: Final = {name: cdi.ContainerEdits() for name in capabilities.NAMES}

_log = structlog.get_logger(__name__)


class NvidiaMaterial:
    """What completes the material of NVIDIA GPUs.

    Args:
        host_root: where the host's file system is; ``/`` outside of a container.
        driver_root: where the driver is on the host: a path, or ``auto`` for the usual places.
        hook: path of ``nvidia-cdi-hook`` on the host; if empty, where it usually is, or none.
        sysfs_root: where sysfs is mounted: it shows which DRM nodes are a GPU's.
        dev_root: where the host's device nodes are.
        proc_root: where procfs is: parameters of the kernel module, and what of the host is mounted here.
    """

    def __init__(
        self,
        *,
        host_root: Path = Path("/"),
        driver_root: str = AUTO,
        hook: str = "",
        sysfs_root: Path = Path("/sys"),
        dev_root: Path = Path("/dev"),
        proc_root: Path = Path("/proc"),
    ) -> None:
        self._host_root = host_root
        self._driver_root = driver_root
        self._hook = hook
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._proc_root = proc_root
        self._programs = HookPrograms()
        self._logged: set[str] = set()

    def complete(self, devices: Sequence[DiscoveredDevice]) -> Sequence[DiscoveredDevice]:
        """Return the devices, NVIDIA's with all that a container needs. Blocks: it reads files."""
        if not any(_is_ours(d) for d in devices):
            return devices
        host = HostView(self._host_root, self._proc_root / "self/mountinfo")
        hook = self._programs.find(self._host_root, self._hook)
        sources = _Sources(
            documents=_Documents(host, hook, bool(self._hook), self._log),
            files=_Files(self._root(host), hook, self._log),
            sysfs_root=self._sysfs_root,
            dev_root=self._dev_root,
            more=nodes.nodes_of_modules(self._dev_root, host),
            channel=nodes.imex_channel(self._dev_root, self._proc_root),
            hook=hook,
        )
        return [sources.completed(d) if _is_ours(d) else d for d in devices]

    def _root(self, host: HostView) -> DriverPlace:
        # Looked for each time: a container may bring the driver later.
        found = find_driver_root(self._driver_root, host_root=self._host_root, sysfs_root=self._sysfs_root)
        path = found.path if found is not None else "/" if self._driver_root == AUTO else self._driver_root
        return DriverPlace(path, self._host_root / path.strip("/"), host, os.uname().release)

    def _log(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            _log.warning("NVIDIA's files are incomplete or out of date", reason=problem)


class _Documents:
    """The toolkit's documents, as far as they hold for this node."""

    def __init__(
        self, host: HostView, hook: HookProgram | None, named: bool, problem: Callable[[str], None]
    ) -> None:
        self._host = host
        self._hook = hook
        self._named = named
        self._problem = problem
        self._documents = read_documents(host.root, problem)

    def edits(
        self, device: DiscoveredDevice, own: OwnNodes, found: DriverEdits | None
    ) -> cdi.ContainerEdits | None:
        """Return the edits of the document that counts most and knows the device; None if there is none.

        Args:
            device: a GPU or a MIG device.
            own: the nodes of its GPU.
            found: what there is of the driver on the disk: a document that is out of date counts less.
        """
        older: list[tuple[ToolkitDocument, cdi.ContainerEdits, str]] = []
        for document in self._documents:
            edits = document.edits(device.uuid, own, self._problem)
            if edits is None:
                continue
            reason = document.out_of_date(_driver_version(device), self._host.absent)
            reason = reason or next((f"{h.path} is not there" for h in edits.hooks if not self._there(h)), "")
            if not reason:
                return self._usable(edits, document)
            older.append((document, edits, reason))
        for document, edits, reason in older:
            why = f"{document.path} is out of date ({reason})"
            if found is None:
                self._problem(f"{why}, and there is nothing newer on this node")
                return self._usable(edits, document)
            self._problem(f"{why}: the driver's files are taken as they are")
        return None

    def _usable(self, edits: cdi.ContainerEdits, document: ToolkitDocument) -> cdi.ContainerEdits:
        """Return the edits with hook programs that are on this node."""
        hooks = []
        for h in edits.hooks:
            if self._there(h):
                hooks.append(msgspec.structs.replace(h, path=self._program(h)))
            else:
                self._problem(f"{document.path}: hook {h.path} is not on this node; left out")
        # Without type and numbers, which may be of an earlier boot: the runtime takes the host node's.
        device_nodes = tuple(
            msgspec.structs.replace(
                n, host_path=n.host_path if n.host_path != n.path else "", type="", major=0, minor=0
            )
            for n in edits.device_nodes
        )
        return cdi.ContainerEdits(
            device_nodes=device_nodes,
            mounts=tuple(cdi.Mount(m.host_path, m.container_path, m.options) for m in edits.mounts),
            env=edits.env,
            hooks=tuple(hooks),
            additional_gids=edits.additional_gids,
        )

    def _there(self, hook: cdi.Hook) -> bool:
        return not self._host.absent(self._program(hook))

    def _program(self, hook: cdi.Hook) -> str:
        """Return the program to be run: that of the document unless another is named, or it has gone."""
        if self._hook is None or hook.path.rpartition("/")[2] != HOOK_PROGRAM:
            return hook.path
        return self._hook.path if self._named or self._host.absent(hook.path) else hook.path


class _Files:
    """The driver's files, by the version that is wanted."""

    def __init__(self, root: DriverPlace, hook: HookProgram | None, problem: Callable[[str], None]) -> None:
        self._root = root
        self._hook = hook
        self._problem = problem
        self._found: dict[str, DriverEdits | None] = {}

    def edits(self, version: str) -> DriverEdits | None:
        """Return what the files of one version do to a container; None where there are none."""
        if version not in self._found:
            files = find_driver(self._root, version)
            self._found[version] = (
                driver_edits(self._root, files, self._hook, os.uname().machine) if files is not None else None
            )
        return self._found[version]

    def report_absence(self, version: str) -> None:
        """Report that there are no files of a version."""
        self._problem(
            f"no files of NVIDIA driver {version or '(of unknown version)'} below {self._root.seen}: "
            "containers get device nodes only and their images have to bring the libraries"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """Everything from which one look at the node makes the material of devices.

    Attributes:
        more: nodes of other kernel modules, for every GPU.
        channel: of IMEX, if containers may have it.
    """

    documents: _Documents
    files: _Files
    sysfs_root: Path
    dev_root: Path
    more: cdi.ContainerEdits
    channel: cdi.ContainerEdits | None
    hook: HookProgram | None

    def completed(self, device: DiscoveredDevice) -> DiscoveredDevice:
        """Return the device with all that a container needs."""
        gpu = next((n.path for n in device.material.device_nodes if _GPU_NODE.fullmatch(n.path)), "")
        address = _address(device)
        drm = nodes.drm_nodes(self.sysfs_root, address) if address is not None else ()
        version = _driver_version(device)
        found = self.files.edits(version)
        material = self.documents.edits(device, OwnNodes(gpu, frozenset(drm)), found)
        parts = cdi.Parts(_NO_PARTS, capabilities.DEFAULT)
        if material is None and found is not None:
            material, parts = found.common, found.parts
        elif material is None:
            self.files.report_absence(version)
            material = cdi.ContainerEdits()
        if address is not None and not _is_partition(device):
            material = self._with_graphics(material, address, drm)
        return dataclasses.replace(
            device,
            material=_merged(device.material, material),
            own_nodes=_own_nodes(device, material),
            parts=self._with_modules(parts),
        )

    def _with_graphics(
        self, edits: cdi.ContainerEdits, address: PciAddress, drm: Sequence[str]
    ) -> cdi.ContainerEdits:
        """Return the edits of a whole GPU with its DRM nodes, where the document has not given them."""
        there = tuple(n for n in drm if exists(self.dev_root / n.removeprefix("/dev/")))
        known = {n.path for n in edits.device_nodes}
        missing = tuple(n for n in there if n not in known)
        links = nodes.drm_links(address, missing)
        hooks = self.hook.links(links) if self.hook is not None else ()
        return msgspec.structs.replace(
            edits,
            device_nodes=(*edits.device_nodes, *(cdi.DeviceNode(n) for n in missing)),
            hooks=(*edits.hooks, *hooks),
        )

    def _with_modules(self, parts: cdi.Parts) -> cdi.Parts:
        edits = dict(parts.edits)
        # What needs the libraries of a capability also needs the nodes that go with it.
        for name in (capabilities.COMPUTE, capabilities.VIDEO):
            edits[name] = cdi.merge(edits[name], self.more)
        if self.channel is not None:
            edits[nodes.IMEX] = self.channel
        return cdi.Parts(edits, parts.default)


def _is_ours(device: DiscoveredDevice) -> bool:
    return _MARK in _variables(device.material)


def _is_partition(device: DiscoveredDevice) -> bool:
    return device.is_partition or device.uuid.startswith("MIG-")


def _address(device: DiscoveredDevice) -> PciAddress | None:
    place = device.device.attributes.get(names.PCI_BUS_ID)
    return PciAddress.parse(place.string_value or "") if place is not None else None


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
    device_nodes = {n.path: n for n in (*own.device_nodes, *more.device_nodes)}
    variables = {**_variables(more), **_variables(own)}
    return msgspec.structs.replace(
        cdi.merge(own, more),
        device_nodes=tuple(device_nodes.values()),
        env=tuple(f"{name}={value}" for name, value in variables.items()),
    )
