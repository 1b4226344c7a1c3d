"""NVIDIA's own CDI document on this node (``nvidia-ctk cdi generate``): what it says about each GPU.

Its edits are copied into our documents and not referred to: a container gets exactly the devices of its
claim, and ours stay valid when the toolkit writes its document anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.errors import DraError

__all__ = ["KIND", "ToolkitDocument", "read_documents"]

KIND: Final = "nvidia.com/gpu"

# The directories of the CDI specification; what is in the second one counts more.
_DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_BYTES: Final = 4 * 1024 * 1024
_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")


@dataclass(frozen=True, slots=True)
class ToolkitDocument:
    """One document of kind ``nvidia.com/gpu``."""

    path: Path
    spec: cdi.Spec

    def edits(self, uuid: str, node: str) -> cdi.ContainerEdits | None:
        """What a container needs for one GPU, common edits included; None where the document has no such GPU.

        Args:
            uuid: NVIDIA's.
            node: its device node, for documents that name GPUs by index only.
        """
        for device in self.spec.devices:
            if device.name == uuid:
                return cdi.merge(device.container_edits, self.spec.container_edits)
        for device in self.spec.devices:
            # "all" has the nodes of every GPU; the index of the toolkit need not be ours.
            if [n.path for n in device.container_edits.device_nodes if _GPU_NODE.fullmatch(n.path)] == [node]:
                return cdi.merge(device.container_edits, self.spec.container_edits)
        return None


def read_documents(host_root: Path, problem: Callable[[str], None]) -> Sequence[ToolkitDocument]:
    """Every readable document of the kind, the one that counts most first.

    Args:
        host_root: where the host's file system is.
        problem: told about files that cannot be used.
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
