"""The CDI document as typed structs, and reading and writing it.

Source: SPEC.md of the Container Device Interface, versions 0.3.0 to 1.1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import Wire
from dra_driver.errors import DecodeError

__all__ = [
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Spec",
    "character_device",
    "decode",
    "encode",
    "merge",
    "read_only_mount",
]

_T = TypeVar("_T")

# A spec that a runtime could not want; keeps a hostile file from filling our memory.
MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
_PERMISSIONS: Final = "rw"
_READ_ONLY: Final = ("ro", "nosuid", "nodev", "bind")


class DeviceNode(Wire, frozen=True):
    """A device node of the container, by its path.

    Attributes:
        host_path: path on the host where it differs from ``path`` (0.5.0).
        type: ``b``, ``c``, ``u`` or ``p``; if empty, the runtime takes type and numbers from the host's node.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(Wire, frozen=True):
    """A mount. ``type`` needs 0.4.0."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(Wire, frozen=True):
    """An OCI hook: a program on the host that the runtime runs as root."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(Wire, frozen=True, kw_only=True):
    """``intelRdt`` (0.7.0; schemata and monitoring 1.1.0)."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = msgspec.field(default="", name="memBwSchema")
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class NetDevice(Wire, frozen=True, kw_only=True):
    """A network interface to move into the container (1.1.0)."""

    host_interface_name: str
    name: str


class ContainerEdits(Wire, frozen=True, kw_only=True):
    """What is done to a container. ``env`` holds ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
    intel_rdt: IntelRdt | None = None
    net_devices: tuple[NetDevice, ...] = ()

    def __bool__(self) -> bool:
        return self != ContainerEdits()


class Device(Wire, frozen=True, kw_only=True):
    """One device that a container can ask for by ``kind=name``. ``annotations`` need 0.6.0."""

    name: str
    container_edits: ContainerEdits
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)


class Spec(Wire, frozen=True, kw_only=True):
    """A CDI document: devices of one kind.

    Attributes:
        kind: ``vendor/class``.
        container_edits: applied once to a container that gets any device of this document.
    """

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    container_edits: ContainerEdits = ContainerEdits()


def character_device(path: str, major: int, minor: int, file_mode: int | None = None) -> DeviceNode:
    """Return a node that the container runtime makes by its numbers; the host's ``/dev`` need not have it.

    So do container runtimes with CDI library 0.3.0 to 1.1.0 where type and major are given. The cgroup need
    not let the container create nodes, so the permissions are without ``m``.
    """
    return DeviceNode(path, type="c", major=major, minor=minor, file_mode=file_mode, permissions=_PERMISSIONS)


def read_only_mount(host_path: str, container_path: str) -> Mount:
    """Return a bind mount by which a container can read a file of the host and no more."""
    return Mount(host_path, container_path, _READ_ONLY)


def encode(spec: Spec) -> bytes:
    """Return the document as a runtime reads it: JSON, indented, one newline at the end; deterministic."""
    return msgspec.json.format(codec.encode(spec), indent=2) + b"\n"


def decode(data: bytes) -> Spec:
    """Read a JSON document strictly: unknown fields and wrong types are refused, with their paths.

    Raises:
        DecodeError: it is not a CDI document in JSON.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DecodeError(f"Spec: {len(data)} bytes, at most {MAX_DOCUMENT_BYTES} are read")
    return codec.decode_strict(Spec, data)


def merge(*edits: ContainerEdits) -> ContainerEdits:
    """Return all edits together, in order; exact repetitions appear once.

    Of two different values for one variable the runtime takes the last, so both stay, in order. The last
    ``intel_rdt`` wins.
    """
    return ContainerEdits(
        env=_unique(v for e in edits for v in e.env),
        device_nodes=_unique(v for e in edits for v in e.device_nodes),
        mounts=_unique(v for e in edits for v in e.mounts),
        hooks=_unique(v for e in edits for v in e.hooks),
        additional_gids=_unique(v for e in edits for v in e.additional_gids),
        intel_rdt=next((e.intel_rdt for e in reversed(edits) if e.intel_rdt is not None), None),
        net_devices=_unique(v for e in edits for v in e.net_devices),
    )


def _unique(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
