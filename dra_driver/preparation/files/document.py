"""The CDI document of a claim, made of what its devices need now and what each gets for the claim's sake.

The same function makes it at the first prepare and whenever the devices' nodes or files have become others,
so that no document can hold what is not in the claim's record or in what discovery says now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.api import names as api_names
from dra_driver.errors import DeviceNodeAbsent, PrepareError
from dra_driver.preparation.claim import ClaimState, PreparedClaim, PreparedDevice

__all__ = [
    "RECORD_ANNOTATION",
    "annotated",
    "documented",
    "named_on_host",
    "without_absent",
]

# Annotation of our CDI documents: the claim's record, from which a lost checkpoint is rebuilt.
RECORD_ANNOTATION: Final = "dra-driver.dev/prepared-claim"


def documented(driver: str, record: PreparedClaim, edits: Sequence[cdi.ContainerEdits]) -> PreparedClaim:
    """Return the record with its document.

    Args:
        driver: ours.
        record: of a claim with devices that have their ``own`` edits.
        edits: what a container needs to use each of the devices, in their order; of a partition, without
            what only the instance knows (see ``complete``).

    Raises:
        PrepareError: a runtime would refuse the document.
    """
    shared = _shared(edits)
    devices = tuple(
        cdi.Device(
            name=record.cdi_name(d),
            container_edits=cdi.merge(_rest(e, shared), d.own or cdi.ContainerEdits()),
        )
        for d, e in zip(record.devices, edits, strict=True)
    )
    spec = cdi.Spec(
        cdi_version="0.3.0", kind=api_names.cdi_kind(driver), container_edits=shared, devices=devices
    )
    record = annotated(msgspec.structs.replace(record, spec=spec))
    assert record.spec is not None
    spec = cdi.with_minimum_version(record.spec)
    findings = cdi.validate(spec)
    if findings:
        raise PrepareError(f"the CDI document would be invalid: {'; '.join(findings[:3])}")
    return msgspec.structs.replace(record, spec=spec)


def annotated(record: PreparedClaim) -> PreparedClaim:
    """Return the record with itself in its document's annotation, as it is now."""
    if record.spec is None:
        return record
    # Always with the same state, or the document of a claim would change without need.
    text = codec.encode(msgspec.structs.replace(record, state=ClaimState.STARTED, spec=None)).decode()
    spec = msgspec.structs.replace(
        record.spec, annotations={**record.spec.annotations, RECORD_ANNOTATION: text}
    )
    return msgspec.structs.replace(record, spec=spec)


# --- what of it has to be on the host -----------------------------------------------------------------------


def named_on_host(record: PreparedClaim) -> Set[str]:
    """Return paths of the device nodes and files that the document names and this driver does not make.

    A node that is given by its numbers is made by the container runtime and need not be on the host.
    """
    paths: set[str] = set()
    for edits, own in _judged(record):
        paths |= {n.host_path or n.path for n in edits.device_nodes if not _by_number(n)}
        paths |= {m.host_path for m in edits.mounts if m not in own.mounts}
        paths |= {h.path for h in edits.hooks if h not in own.hooks}
    return paths


def without_absent(record: PreparedClaim, absent: Set[str]) -> cdi.Spec | None:
    """Return the document without what is not on the host.

    Args:
        record: of a claim.
        absent: those of ``named_on_host`` that are not there.

    Raises:
        DeviceNodeAbsent: a node that belongs to a single device is not there; the document must not be used.
    """
    if record.spec is None or not absent:
        return record.spec
    by_name = {record.cdi_name(d): d for d in record.devices}
    devices = []
    for device in record.spec.devices:
        here = by_name.get(device.name)
        edits = device.container_edits
        if here is None or not here.simulated:
            name = device.name if here is None else here.device
            needed = cdi.own_nodes(edits, here.own_nodes if here is not None else None)
            edits = _without(edits, _own(here), needed, absent, name)
            if device.container_edits.device_nodes and not edits.device_nodes:
                raise _absent_node(name, device.container_edits.device_nodes[0].path)
        devices.append(msgspec.structs.replace(device, container_edits=edits))
    shared = record.spec.container_edits
    if not all(d.simulated for d in record.devices):
        needed = tuple(n for d in record.devices for n in cdi.own_nodes(shared, d.own_nodes))
        names = ", ".join(d.device for d in record.devices)
        shared = _without(shared, cdi.ContainerEdits(), needed, absent, names)
    spec = msgspec.structs.replace(record.spec, devices=tuple(devices), container_edits=shared)
    return cdi.with_minimum_version(spec)


def _judged(record: PreparedClaim) -> Sequence[tuple[cdi.ContainerEdits, cdi.ContainerEdits]]:
    """Return edits of devices that are no simulations, each with those that are for the claim's sake."""
    if record.spec is None or all(d.simulated for d in record.devices):
        return ()
    by_name = {record.cdi_name(d): d for d in record.devices}
    found = [(record.spec.container_edits, cdi.ContainerEdits())]
    for device in record.spec.devices:
        here = by_name.get(device.name)
        if here is None or not here.simulated:
            found.append((device.container_edits, _own(here)))
    return found


def _without(
    edits: cdi.ContainerEdits,
    own: cdi.ContainerEdits,
    needed: Collection[cdi.DeviceNode],
    absent: Set[str],
    device: str,
) -> cdi.ContainerEdits:
    missing = [n for n in edits.device_nodes if not _by_number(n) and (n.host_path or n.path) in absent]
    for node in missing:
        if node in needed:
            raise _absent_node(device, node.host_path or node.path)
    return msgspec.structs.replace(
        edits,
        device_nodes=tuple(n for n in edits.device_nodes if n not in missing),
        mounts=tuple(m for m in edits.mounts if m in own.mounts or m.host_path not in absent),
        hooks=tuple(h for h in edits.hooks if h in own.hooks or h.path not in absent),
    )


def _own(device: PreparedDevice | None) -> cdi.ContainerEdits:
    return device.own if device is not None and device.own is not None else cdi.ContainerEdits()


def _absent_node(device: str, path: str) -> DeviceNodeAbsent:
    text = f"device {device}: its device node {path} is not there; is its driver being reloaded?"
    return DeviceNodeAbsent(text, retryable=True)


def _by_number(node: cdi.DeviceNode) -> bool:
    return bool(node.type and (node.major or node.minor))


# --- parts --------------------------------------------------------------------------------------------------


def _shared(edits: Sequence[cdi.ContainerEdits]) -> cdi.ContainerEdits:
    """Return mounts and nodes that all devices need (driver libraries, control nodes): once per document."""
    if len(edits) < 2:
        return cdi.ContainerEdits()
    first, *rest = edits
    # Sets: eight GPUs of 150 files each are compared.
    mounts = [frozenset(e.mounts) for e in rest]
    nodes = [frozenset(e.device_nodes) for e in rest]
    hooks = tuple(h for h in first.hooks if all(h in e.hooks for e in rest))
    return cdi.ContainerEdits(
        mounts=tuple(m for m in first.mounts if all(m in each for each in mounts)),
        device_nodes=tuple(n for n in first.device_nodes if all(n in each for each in nodes)),
        # A runtime runs them before those of the devices, and no hook may come before one that it followed.
        hooks=hooks if all(e.hooks[: len(hooks)] == hooks for e in edits) else (),
    )


def _rest(edits: cdi.ContainerEdits, shared: cdi.ContainerEdits) -> cdi.ContainerEdits:
    mounts, nodes = frozenset(shared.mounts), frozenset(shared.device_nodes)
    return msgspec.structs.replace(
        edits,
        mounts=tuple(m for m in edits.mounts if m not in mounts),
        device_nodes=tuple(n for n in edits.device_nodes if n not in nodes),
        hooks=tuple(h for h in edits.hooks if h not in shared.hooks),
    )
