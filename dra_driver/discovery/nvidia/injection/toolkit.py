"""NVIDIA's own CDI document on this node (``nvidia-ctk cdi generate``): what it says about each GPU.

Its edits are copied into our documents and not referred to: a container gets exactly the devices of its
claim, and ours stay valid when the toolkit writes its document anew.

The document does not decide to which device a node belongs. It lists MIG devices with the node of their
GPU, it may be older than the present numbering of the GPUs, and tools move nodes to the edits of the whole
document. So a node of a single device is taken only where the caller knows that it is the GPU's own.
Capability nodes, which open MIG instances, are never taken.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.discovery.nvidia.injection.versions import is_version, same_version
from dra_driver.errors import DraError

__all__ = ["KIND", "OwnNodes", "ToolkitDocument", "of_one_device", "read_documents"]

KIND: Final = "nvidia.com/gpu"

# The directories of the CDI specification; what is in the second one counts more.
_DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_BYTES: Final = 4 * 1024 * 1024
_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
# What belongs to one device below any /dev (a driver in a container has one of its own), and the folders that
# contain such nodes, which could be mounted.
_OF_ONE_DEVICE: Final = re.compile(
    r".*?(/dev(?:/(?:nvidia[0-9]+|(?:dri|nvidia-caps[^/]*)(?:/.*)?))?)", re.DOTALL
)
# Where the MPS daemon of a whole node has its pipes.
_MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - of the host
# A library; of the first two the last name is the driver's version.
_LIBRARY: Final = re.compile(
    r"(?:.*/)?(?:(?P<leader>libcuda|libnvidia-ml)|lib[^/]+?)\.so(?:\.(?P<version>[^/]*))?", re.DOTALL
)
_LINK_OPTION: Final = re.compile(r"--?link(?:=(.*))?", re.DOTALL)
# By these NVIDIA's container runtime would add devices of its own accord.
_ASKING_FOR_DEVICES: Final = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
    }
)


@dataclass(frozen=True, slots=True)
class OwnNodes:
    """The device nodes of one GPU, from sources other than the document.

    Attributes:
        gpu: ``/dev/nvidia0``; empty where unknown.
        drm: ``/dev/dri/card0``, ``/dev/dri/renderD128``.
    """

    gpu: str
    drm: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ToolkitDocument:
    """One document of kind ``nvidia.com/gpu``."""

    path: Path
    spec: cdi.Spec

    def edits(self, uuid: str, own: OwnNodes, problem: Callable[[str], None]) -> cdi.ContainerEdits | None:
        """Return what a container needs for one device, or None where the document does not know its GPU.

        The result has no capability node and no node of another GPU. A device that the document knows by
        its UUID gets its own edits and the common ones. Where the document has only the GPU's node, because
        it names GPUs by index, the device gets the common edits alone: the entry with the node may be
        another tenant's MIG device.

        Args:
            uuid: NVIDIA's, of a GPU or a MIG device.
            own: the nodes of its GPU.
            problem: called with the nodes of the device's own edits that are not its GPU's and left out.
        """
        # A MIG device has DRM nodes only where the document says so of this very device.
        whole = not uuid.startswith("MIG-")
        common = _restricted(self.spec.container_edits, {own.gpu, *own.drm} if whole else {own.gpu})
        for device in self.spec.devices:
            if device.name == uuid:
                mine = _restricted(device.container_edits, {own.gpu, *own.drm})
                for node in device.container_edits.device_nodes:
                    if node not in mine.device_nodes and not _is_capability(node.path):
                        problem(f"{self.path}: {uuid}: {node.path} is not known to be its GPU's; left out")
                # As a runtime applies them: of one variable the device's value holds.
                return cdi.merge(common, mine)
        everything = (self.spec.container_edits, *(d.container_edits for d in self.spec.devices))
        if own.gpu and any(of_one_device(n.path) == own.gpu for e in everything for n in e.device_nodes):
            return common
        return None

    def out_of_date(self, version: str, absent: Callable[[str], bool]) -> str:
        """Return why the document does not describe the driver that is loaded; empty where it may.

        Sockets, configuration and programs come and go without that the driver becomes another one, so
        only libraries count.

        Args:
            version: of the loaded driver; if empty, it is not known.
            absent: whether the host has no file at a path, as far as that can be known.
        """
        for edits in (self.spec.container_edits, *(d.container_edits for d in self.spec.devices)):
            for mount in edits.mounts:
                library = _LIBRARY.fullmatch(mount.host_path)
                if library is None:
                    continue
                written = library["version"] or ""
                named = library["leader"] and is_version(written)
                if named and not same_version(written, version):
                    return f"it is of driver {written}, and {version} is loaded"
                if absent(mount.host_path):
                    return f"{mount.host_path} is not there"
        return ""


def _restricted(edits: cdi.ContainerEdits, own: Collection[str]) -> cdi.ContainerEdits:
    """Return the edits without what belongs to other devices than ``own``."""
    hooks = (_restricted_hook(h, own) for h in edits.hooks)
    return msgspec.structs.replace(
        edits,
        env=tuple(v for v in edits.env if v.partition("=")[0] not in _ASKING_FOR_DEVICES),
        device_nodes=tuple(n for n in edits.device_nodes if _is_own(n.path, n.host_path or n.path, own)),
        mounts=tuple(m for m in edits.mounts if _is_for_all(m)),
        hooks=tuple(h for h in hooks if h is not None),
    )


def _is_for_all(mount: cdi.Mount) -> bool:
    """Return whether what is mounted belongs to no device.

    By the pipes of a daemon of the whole node a container would use that daemon's GPUs, and could end it.
    """
    paths = (mount.host_path, mount.container_path)
    return not any(of_one_device(p) or posixpath.normpath(f"/{p.lstrip('/')}") == _MPS_PIPES for p in paths)


def _is_own(path: str, host_path: str, own: Collection[str]) -> bool:
    """Return whether both name the same node of ours, or none that belongs to one device."""
    there, here = of_one_device(path), of_one_device(host_path)
    return there == here and (not there or there in own)


def of_one_device(path: str) -> str:
    """Return the path from ``/dev`` on where it belongs to one device; empty for all others."""
    match = _OF_ONE_DEVICE.fullmatch(posixpath.normpath(f"/{path}"))
    return match[1] if match else ""


def _is_capability(path: str) -> bool:
    return of_one_device(path).startswith("/dev/nvidia-caps")


def _restricted_hook(hook: cdi.Hook, own: Collection[str]) -> cdi.Hook | None:
    """Return the hook without links to other devices; None where nothing is left of it to do."""
    arguments: list[str] = []
    links, kept = 0, 0
    rest = iter(hook.args)
    for argument in rest:
        option = _LINK_OPTION.fullmatch(argument)
        if option is None:
            arguments.append(argument)
            continue
        # --link=VALUE, or --link VALUE; the value is TARGET::LINK.
        joined = option[1] is not None
        value = option[1] if joined else next(rest, "")
        links += 1
        if _is_own_link(value, own):
            kept += 1
            arguments += [argument] if joined else [argument, value]
    if links and not kept:
        return None
    return msgspec.structs.replace(hook, args=tuple(arguments))


def _is_own_link(value: str, own: Collection[str]) -> bool:
    target, _, link = value.partition("::")
    leads_to = of_one_device(posixpath.join(posixpath.dirname(link), target))
    if leads_to:
        return leads_to in own
    return not of_one_device(link)


def read_documents(host_root: Path, problem: Callable[[str], None]) -> Sequence[ToolkitDocument]:
    """Return every readable document of the kind, the one that counts most first.

    Args:
        host_root: where the host's file system is.
        problem: called with what is wrong with files that cannot be used.
    """
    found = [d for folder in _DIRECTORIES for d in _in_folder(host_root / folder, problem)]
    return tuple(reversed(found))


def _in_folder(folder: Path, problem: Callable[[str], None]) -> Iterator[ToolkitDocument]:
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and not p.name.startswith("."))
    except OSError:
        return
    for path in files:
        try:
            if not path.is_file():
                continue
            if path.stat().st_size > _MAX_BYTES:
                problem(f"{path}: over {_MAX_BYTES} bytes, not read")
                continue
            data = path.read_bytes()
            # Most files of the directory are other drivers': they are not parsed.
            if KIND.encode() not in data:
                continue
            raw = msgspec.json.decode(cdi.json_of_yaml(data))
            if not isinstance(raw, dict) or raw.get("kind") != KIND:
                continue
            yield ToolkitDocument(path, codec.convert(cdi.Spec, raw))
        except (OSError, DraError) as e:
            problem(f"{path}: cannot be used: {str(e)[:300]}")
