"""Names, versions and validity of CDI documents.

Recorded from containerd 1.7: versions 0.3.0 to 0.8.0 are accepted, 1.0.0 is not, so a document names the
oldest version that its content allows; and a vendor or class of a single character makes that containerd
panic, so we refuse to write one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dra_driver.cdi.spec import ContainerEdits, Device, Spec
from dra_driver.errors import InvalidInput

__all__ = ["minimum_version", "qualified_name", "validate", "with_minimum_version"]

_VENDOR: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])")
_CLASS: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])")
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATION: Final = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_HOOK_NAMES: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
_NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})
_MAX_ANNOTATION_BYTES: Final = 256 * 1024
_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")


def qualified_name(kind: str, device: str) -> str:
    """Return ``vendor/class=device``, by which a container runtime knows a device.

    Raises:
        InvalidInput: the kind or the name cannot stand in a CDI document.
    """
    findings = [*_kind_findings(kind), *_name_findings(device)]
    if findings:
        raise InvalidInput("; ".join(findings))
    return f"{kind}={device}"


def minimum_version(spec: Spec) -> str:
    """Return the oldest CDI version whose rules allow the content; 0.3.0 at least."""
    return max(("0.3.0", *_needs(spec)), key=_VERSIONS.index)


def with_minimum_version(spec: Spec) -> Spec:
    """Return the same document under ``minimum_version``."""
    return msgspec.structs.replace(spec, cdi_version=minimum_version(spec))


def validate(spec: Spec) -> tuple[str, ...]:
    """Return every reason why a runtime would refuse the document; empty where it is valid."""
    return tuple(_findings(spec))


def _needs(spec: Spec) -> Iterator[str]:
    _, _, class_ = spec.kind.partition("/")
    if "." in class_ or spec.annotations or any(d.annotations for d in spec.devices):
        yield "0.6.0"
    if any(not d.name[:1].isalpha() for d in spec.devices):
        yield "0.5.0"
    for edits in _all_edits(spec):
        if any(n.host_path for n in edits.device_nodes):
            yield "0.5.0"
        if any(m.type for m in edits.mounts):
            yield "0.4.0"
        if edits.additional_gids or edits.intel_rdt is not None:
            yield "0.7.0"
        rdt = edits.intel_rdt
        if edits.net_devices or (rdt is not None and (rdt.schemata or rdt.enable_monitoring)):
            yield "1.1.0"


def _all_edits(spec: Spec) -> Iterable[ContainerEdits]:
    return (spec.container_edits, *(d.container_edits for d in spec.devices))


def _findings(spec: Spec) -> Iterator[str]:
    if spec.cdi_version not in _VERSIONS:
        yield f"cdiVersion {spec.cdi_version!r}: known are {', '.join(_VERSIONS)}"
    elif _VERSIONS.index(spec.cdi_version) < _VERSIONS.index(minimum_version(spec)):
        yield f"cdiVersion {spec.cdi_version}: the content needs {minimum_version(spec)}"
    yield from _kind_findings(spec.kind)
    yield from _annotation_findings("annotations", spec.annotations.items())
    if not spec.devices:
        yield "devices: none, at least one is needed"
    names = [d.name for d in spec.devices]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"devices: the name {name!r} appears more than once"
    yield from _edit_findings("containerEdits", spec.container_edits)
    for i, device in enumerate(spec.devices):
        yield from _device_findings(f"devices[{i}]", device)


def _device_findings(where: str, device: Device) -> Iterator[str]:
    for finding in _name_findings(device.name):
        yield f"{where}.name: {finding}"
    if not device.container_edits:
        yield f"{where}.containerEdits: empty, a device must change something"
    yield from _annotation_findings(f"{where}.annotations", device.annotations.items())
    yield from _edit_findings(f"{where}.containerEdits", device.container_edits)


def _edit_findings(where: str, edits: ContainerEdits) -> Iterator[str]:
    for i, variable in enumerate(edits.env):
        name, equals, _ = variable.partition("=")
        if not name or not equals or "\0" in variable:
            yield f"{where}.env[{i}]: {variable!r} is not NAME=value"
    for i, node in enumerate(edits.device_nodes):
        if not node.path:
            yield f"{where}.deviceNodes[{i}].path: empty"
        if node.type not in _NODE_TYPES:
            yield f"{where}.deviceNodes[{i}].type: {node.type!r}, allowed are b, c, u, p"
        if set(node.permissions) - set("rwm"):
            yield f"{where}.deviceNodes[{i}].permissions: {node.permissions!r}, allowed are letters of rwm"
    for i, mount in enumerate(edits.mounts):
        if not mount.host_path or not mount.container_path:
            yield f"{where}.mounts[{i}]: hostPath and containerPath are both needed"
    for i, hook in enumerate(edits.hooks):
        if hook.hook_name not in _HOOK_NAMES:
            allowed = ", ".join(sorted(_HOOK_NAMES))
            yield f"{where}.hooks[{i}].hookName: {hook.hook_name!r}, allowed are {allowed}"
        if not hook.path:
            yield f"{where}.hooks[{i}].path: empty"


def _annotation_findings(where: str, annotations: Iterable[tuple[str, str]]) -> Iterator[str]:
    size = 0
    for key, value in annotations:
        size += len(key.encode()) + len(value.encode())
        if not _ANNOTATION.fullmatch(key):
            yield f"{where}: {key!r} is not an annotation name such as example.com/name"
    if size > _MAX_ANNOTATION_BYTES:
        yield f"{where}: {size} bytes, at most {_MAX_ANNOTATION_BYTES} are allowed"


def _kind_findings(kind: str) -> Iterator[str]:
    vendor, slash, class_ = kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(class_):
        yield (
            f"kind {kind!r}: expected vendor/class, each of two or more letters, digits, '_', '-', '.', "
            "beginning with a letter and ending with a letter or digit"
        )


def _name_findings(name: str) -> Iterator[str]:
    if not _DEVICE.fullmatch(name):
        yield (
            f"device name {name!r}: expected letters, digits, '_', '-', '.', ':', "
            "beginning and ending with a letter or digit"
        )
