"""Simulated machines for the tests of backends, and their devices as text that people can compare."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import paths
import pytest
from once import once_in_a_run

from dra_driver.discovery.simulated import layout, profile
from dra_driver.hardware import DiscoveredDevice

GOLDEN = paths.GOLDEN / "hardware"
# Recordings of real machines; they are not a part of this repository.
CORPUS = paths.PROJECT.parent / "shared" / "corpus" / "hardware"

GIB = 1 << 30
MIB = 1 << 20


def machine(root: Path, spec: str) -> Path:
    """Lay out a built-in profile, or one that is YAML text, and return the directory of its trees."""
    described = profile.decode(spec, "test") if "\n" in spec else profile.load(spec)
    layout.build(described, root / "machine")
    return root / "machine"


def shared_machine(factory: pytest.TempPathFactory, spec: str) -> Path:
    """Return the directory of the trees of a built-in profile, laid out once in a run, to be read only."""
    return once_in_a_run(factory, f"machine-{spec}", lambda root: machine(root, spec)) / "machine"


def recording(name: str) -> Path:
    """A file of the corpus; skips the test where there is none."""
    path = CORPUS / name
    if not path.exists():
        pytest.skip(f"needs the recordings of real hardware: {path} is not there")
    return path


def unpack(archive: Path, target: Path) -> None:
    """Unpacks a recording: folders, files and links, all with the rights of new ones."""
    target.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            # extractall asks the file system about each part of each path: a second for a large machine.
            path = target / member.name
            assert path.is_relative_to(target)
            assert ".." not in path.parts
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            if member.isdir():
                continue
            if member.issym():
                path.symlink_to(member.linkname)
            else:
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())


def write_tree(recorded: Path, root: Path) -> None:
    """Writes a recording of files and links (``sys/…`` → content) below ``root``."""
    tree = json.loads(recorded.read_text())
    for path, content in tree["files"].items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    for path, target in tree["symlinks"].items():
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def value(device: DiscoveredDevice, name: str) -> str | int | bool | None:
    """An attribute, whatever its type."""
    attribute = device.device.attributes.get(name)
    if attribute is None:
        return None
    values = (attribute.string_value, attribute.int_value, attribute.version_value, attribute.bool_value)
    return next(v for v in values if v is not None)


def memory(device: DiscoveredDevice) -> int | None:
    """Capacity ``memory`` in bytes."""
    capacity = device.device.capacity.get("memory")
    return None if capacity is None else capacity.value.value()


def nodes(device: DiscoveredDevice) -> list[str]:
    """Paths of the device nodes."""
    return [n.path for n in device.material.device_nodes]


def describe(devices: Sequence[DiscoveredDevice]) -> str:
    """Everything about the devices, a line each."""
    lines: list[str] = []
    for found in devices:
        lines += [found.device.name, f"  identity: {found.uuid}"]
        lines += [f"  {name}: {value(found, name)}" for name in sorted(found.device.attributes)]
        lines += [f"  capacity {n}: {c.value}" for n, c in sorted(found.device.capacity.items())]
        lines += [f"  link {link.type} {link.count} x {link.peer}" for link in found.device.links]
        lines += [f"  health {h.severity} {h.reason}: {h.message}" for h in found.device.health]
        for node in found.material.device_nodes:
            lines.append(f"  node {node.path}" + (f" = {node.host_path}" if node.host_path else ""))
        lines += [f"  env {variable}" for variable in sorted(found.material.env)]
    return "\n".join(lines) + "\n"
