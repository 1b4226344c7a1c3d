"""An independent reader of CDI specs: what a container runtime would make of them.

It shares no code with ``dra_driver.cdi``, which writes specs, so that a mistake there does not cancel itself
out here. It behaves as recorded of containerd 1.7: versions 0.3.0 to 0.8.0, ``.json`` and ``.yaml`` files
only, a bad spec disables only itself, a device that two files of one directory define cannot be resolved.

Source: the CDI specification (cncf-tags/container-device-interface, SPEC.md).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dra_driver.errors import DraError

__all__ = [
    "CdiError",
    "CdiRegistry",
    "ContainerView",
    "DeviceView",
    "MountView",
    "UnresolvableDevices",
    "simulated_device_node",
    "stat_device_node",
]

# The versions that containerd 1.7 accepts; it refuses 0.2.0 and 1.0.0.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0")
HOOK_NAMES = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
MAX_SPEC_BYTES = 4 * 1024 * 1024
_VENDOR = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


class CdiError(DraError):
    """A spec is wrong, or its edits cannot be applied to a container."""


class UnresolvableDevices(CdiError):
    """Device IDs that no valid spec defines, or that two define. The text is the runtime's."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"CDI device injection failed: unresolvable CDI devices {', '.join(names)}")


# --- the documents ------------------------------------------------------------------------------------------


class _Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass


class _DeviceNode(_Strict, frozen=True, kw_only=True):
    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class _Mount(_Strict, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class _Hook(_Strict, frozen=True, kw_only=True):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class _IntelRdt(_Strict, frozen=True, kw_only=True):
    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")


class _Edits(_Strict, frozen=True, kw_only=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    intel_rdt: _IntelRdt | None = None
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")

    @property
    def empty(self) -> bool:
        return self == _Edits()


class _Device(_Strict, frozen=True, kw_only=True):
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    container_edits: _Edits = _Edits()


class _Spec(_Strict, frozen=True, kw_only=True):
    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    devices: tuple[_Device, ...] = ()
    container_edits: _Edits = _Edits()


def _parse(path: Path) -> _Spec:
    """Decode and validate one file.

    Raises:
        CdiError: the runtime would not use it.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise CdiError(f"cannot be read: {e.strerror}") from e
    if len(data) > MAX_SPEC_BYTES:
        raise CdiError(f"has {len(data)} bytes, more than {MAX_SPEC_BYTES}")
    try:
        raw = msgspec.json.decode(data) if path.suffix == ".json" else yaml.safe_load(data)
        spec = msgspec.convert(raw, _Spec)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as e:
        raise CdiError(f"is not a CDI spec: {e}") from e
    findings = list(_findings(spec))
    if findings:
        raise CdiError("; ".join(findings))
    return spec


def _findings(spec: _Spec) -> Iterable[str]:
    if spec.cdi_version not in VERSIONS:
        yield f"cdiVersion {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}"
        return
    needed, why = _needed_version(spec)
    if VERSIONS.index(spec.cdi_version) < VERSIONS.index(needed):
        yield f"cdiVersion {spec.cdi_version} is too old for {why}, which needs {needed}"
    vendor, slash, device_class = spec.kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(device_class):
        yield f"kind {spec.kind!r} is not vendor/class"
    if not spec.devices:
        yield "devices is empty"
    yield from _edit_findings(spec.container_edits, "containerEdits")
    seen: set[str] = set()
    for i, device in enumerate(spec.devices):
        where = f"devices[{i}]"
        if not _DEVICE.fullmatch(device.name):
            yield f"{where}.name {device.name!r} is not a device name"
        if device.name in seen:
            yield f"{where}.name {device.name!r} occurs twice"
        seen.add(device.name)
        if device.container_edits.empty:
            yield f"{where}.containerEdits is empty"
        yield from _edit_findings(device.container_edits, f"{where}.containerEdits")


def _edit_findings(edits: _Edits, where: str) -> Iterable[str]:
    for variable in edits.env:
        if "=" not in variable or variable.startswith("="):
            yield f"{where}.env {variable!r} is not NAME=value"
    for node in edits.device_nodes:
        if not node.path:
            yield f"{where}.deviceNodes: a path is empty"
        if node.type not in ("", "b", "c", "u", "p"):
            yield f"{where}.deviceNodes {node.path}: type {node.type!r} is not one of b, c, u, p"
        if set(node.permissions) - set("rwm"):
            yield f"{where}.deviceNodes {node.path}: permissions {node.permissions!r} are not of r, w, m"
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            yield f"{where}.mounts: a hostPath or containerPath is empty"
    for hook in edits.hooks:
        if hook.hook_name not in HOOK_NAMES:
            yield f"{where}.hooks: hookName {hook.hook_name!r} is not one of {', '.join(sorted(HOOK_NAMES))}"
        if not hook.path:
            yield f"{where}.hooks: a path is empty"
    for gid in edits.additional_gids:
        if gid < 0:
            yield f"{where}.additionalGids: {gid} is negative"


def _needed_version(spec: _Spec) -> tuple[str, str]:
    """Return the oldest cdiVersion that has every feature of the spec, and the feature that decides it."""
    needs = [("0.3.0", "anything")]
    if spec.annotations or any(d.annotations for d in spec.devices):
        needs.append(("0.6.0", "annotations"))
    if "." in spec.kind.partition("/")[2]:
        needs.append(("0.6.0", "a class with dots"))
    digits = [d.name for d in spec.devices if d.name[:1].isdigit()]
    if digits:
        needs.append(("0.5.0", f"the device name {digits[0]!r} that starts with a digit"))
    for edits in (spec.container_edits, *(d.container_edits for d in spec.devices)):
        if edits.intel_rdt is not None:
            needs.append(("0.7.0", "intelRdt"))
        if edits.additional_gids:
            needs.append(("0.7.0", "additionalGids"))
        if any(node.host_path for node in edits.device_nodes):
            needs.append(("0.5.0", "deviceNodes.hostPath"))
        if any(mount.type for mount in edits.mounts):
            needs.append(("0.4.0", "mounts.type"))
    return max(needs, key=lambda need: VERSIONS.index(need[0]))


# --- the container ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device node in the container (OCI ``linux.devices[]``)."""

    path: str
    host_path: str
    type: str
    major: int
    minor: int
    permissions: str
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class MountView:
    """A mount of the container (OCI ``mounts[]``)."""

    source: str
    destination: str
    options: tuple[str, ...]
    type: str = "bind"


@dataclass(slots=True)
class ContainerView:
    """The part of an OCI runtime spec that CDI edits touch."""

    env: dict[str, str] = field(default_factory=dict)
    devices: list[DeviceView] = field(default_factory=list)
    mounts: list[MountView] = field(default_factory=list)
    hooks: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    additional_gids: list[int] = field(default_factory=list)
    cdi_devices: tuple[str, ...] = ()

    def as_oci(self) -> dict[str, Any]:
        """Return the edits as fields of an OCI ``config.json``."""
        hooks: dict[str, list[dict[str, Any]]] = {}
        for name, path, args in self.hooks:
            hooks.setdefault(name, []).append({"path": path, **({"args": list(args)} if args else {})})
        return {
            "process": {
                "env": [f"{k}={v}" for k, v in self.env.items()],
                "user": {"uid": 0, "gid": 0, "additionalGids": list(self.additional_gids)},
            },
            "mounts": [
                {"source": m.source, "destination": m.destination, "type": m.type, "options": list(m.options)}
                for m in self.mounts
            ],
            "linux": {"devices": [_oci_device(d) for d in self.devices]},
            "hooks": hooks,
        }


def _oci_device(device: DeviceView) -> dict[str, Any]:
    optional = {"fileMode": device.file_mode, "uid": device.uid, "gid": device.gid}
    return {
        "path": device.path,
        "type": device.type,
        "major": device.major,
        "minor": device.minor,
        **{k: v for k, v in optional.items() if v is not None},
    }


StatDevice = Callable[[str], tuple[str, int, int]]


def stat_device_node(path: str) -> tuple[str, int, int]:
    """Return type (``b`` or ``c``), major and minor of a device node, as a runtime reads them.

    Raises:
        CdiError: it is absent, or no device node.
    """
    try:
        status = Path(path).stat()
    except OSError as e:
        raise CdiError(
            f'CDI device injection failed: failed to stat CDI host device "{path}": {e.strerror}'
        ) from e
    if stat.S_ISBLK(status.st_mode):
        kind = "b"
    elif stat.S_ISCHR(status.st_mode):
        kind = "c"
    else:
        raise CdiError(f'CDI device injection failed: "{path}" is not a device node')
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)


def simulated_device_node(path: str) -> tuple[str, int, int]:
    """Return what ``stat_device_node`` does, or numbers for a device node that does not exist.

    Simulated nodes have no device nodes, as mknod needs root. A path that exists is read as a runtime would,
    unless it is a regular file in the place of a device node.
    """
    if not Path(path).exists() or Path(path).is_file():
        return "c", 0, 0
    return stat_device_node(path)


class CdiRegistry:
    """The specs below some directories; a later directory has priority over an earlier one.

    Args:
        directories: usually ``/etc/cdi`` and ``/var/run/cdi``; absent ones are empty.
        stat_device: returns type, major and minor of a device node of the host.
    """

    def __init__(self, directories: Iterable[Path], *, stat_device: StatDevice = stat_device_node) -> None:
        self._directories = tuple(directories)
        self._stat_device = stat_device
        self._devices: dict[str, tuple[_Spec, _Device]] = {}
        self.errors: dict[Path, str] = {}
        self.conflicts: set[str] = set()
        self.refresh()

    @property
    def devices(self) -> tuple[str, ...]:
        """The IDs that can be resolved, sorted."""
        return tuple(sorted(self._devices))

    def refresh(self) -> None:
        """Read the directories again. It never raises: mistakes in a file are kept in ``errors``."""
        self._devices, self.errors, self.conflicts = {}, {}, set()
        for directory in self._directories:
            self._read_directory(directory)

    def _read_directory(self, directory: Path) -> None:
        found: dict[str, tuple[_Spec, _Device]] = {}
        conflicts: set[str] = set()
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if path.suffix not in (".json", ".yaml") or not path.is_file():
                continue
            try:
                spec = _parse(path)
            except CdiError as e:
                self.errors[path] = str(e)
                continue
            for device in spec.devices:
                name = f"{spec.kind}={device.name}"
                if name in found:
                    conflicts.add(name)
                found[name] = (spec, device)
        for name in conflicts:
            # Neither is used, nor an earlier directory: the runtime cannot know which one is meant.
            found.pop(name)
            self._devices.pop(name, None)
        self.conflicts |= conflicts
        self._devices.update(found)

    def inject(self, names: Sequence[str], view: ContainerView | None = None) -> ContainerView:
        """Apply the edits of the devices to a container.

        A spec's own edits are applied once, before those of its first device. Devices named twice count once.

        Raises:
            UnresolvableDevices: names that no spec defines, or that two define.
            CdiError: a device node is missing on the host or is none.
        """
        view = view if view is not None else ContainerView()
        unknown = [n for n in names if n not in self._devices]
        if unknown:
            raise UnresolvableDevices(unknown)
        specs_done: set[int] = set()
        for name in dict.fromkeys(names):
            spec, device = self._devices[name]
            if id(spec) not in specs_done:
                specs_done.add(id(spec))
                self._apply(spec.container_edits, view)
            self._apply(device.container_edits, view)
        view.cdi_devices = (*view.cdi_devices, *dict.fromkeys(names))
        return view

    def _apply(self, edits: _Edits, view: ContainerView) -> None:
        for variable in edits.env:
            key, _, value = variable.partition("=")
            view.env[key] = value
        for node in edits.device_nodes:
            view.devices = [d for d in view.devices if d.path != node.path]
            view.devices.append(self._device(node))
        for mount in edits.mounts:
            view.mounts = [m for m in view.mounts if m.destination != mount.container_path]
            view.mounts.append(
                MountView(mount.host_path, mount.container_path, mount.options, mount.type or "bind")
            )
        # Parents before what is mounted inside them.
        view.mounts.sort(key=lambda m: m.destination.rstrip("/").count("/"))
        view.hooks.extend((hook.hook_name, hook.path, hook.args) for hook in edits.hooks)
        view.additional_gids.extend(g for g in edits.additional_gids if g and g not in view.additional_gids)

    def _device(self, node: _DeviceNode) -> DeviceView:
        host_path = node.host_path or node.path
        kind, major, minor = node.type, node.major, node.minor
        if not kind or (not major and kind != "p"):
            # Like the runtime: what the spec leaves out is read from the device node of the host.
            kind, major, minor = self._stat_device(host_path)
        return DeviceView(
            path=node.path,
            host_path=host_path,
            type=kind,
            major=major,
            minor=minor,
            permissions=node.permissions or "rwm",
            file_mode=node.file_mode,
            uid=node.uid,
            gid=node.gid,
        )
