"""A prepared claim's document, made again of what its devices are now.

Numbers of device nodes, versions and files of drivers change: with a reboot, a driver that is loaded anew, a
device that is taken out and put in. A device is found again by its name and its UUID, never by a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.errors import PrepareError
from dra_driver.preparation.claim import ClaimState, PreparedClaim, PreparedDevice
from dra_driver.preparation.files.document import documented
from dra_driver.preparation.files.metadata import CONTAINER_DIRECTORY
from dra_driver.preparation.node_device import NodeDevice
from dra_driver.preparation.plan import complete
from dra_driver.preparation.sharing import MPS_PIPES, read_only_pipes

__all__ = ["check_identity", "ended", "renewed"]

# What earlier versions put into a document for the claim's sake.
_OWN_VARIABLE: Final = re.compile(
    r"(?:DRA_[A-Z0-9_]+__[A-Z0-9_]+__[0-9]+_[A-Z_]+"
    r"|CUDA_MPS_(?:PIPE_DIRECTORY|PINNED_DEVICE_MEM_LIMIT|ACTIVE_THREAD_PERCENTAGE))=.*",
    re.DOTALL,
)
_OWN_MOUNTS: Final = (MPS_PIPES, "/dev/shm")  # noqa: S108 - of the container


def renewed(driver: str, record: PreparedClaim, devices: Mapping[str, NodeDevice]) -> PreparedClaim:
    """Return the record with the document and the attributes that its devices have now.

    What only the hardware knows is added when partitions and bindings are made: groups of passed-through
    functions are left out here, and so are nodes of partitions unless their GPU has the same node still.

    Args:
        driver: ours.
        record: of a claim that is prepared or planned.
        devices: the node's devices by name.

    Raises:
        PrepareError: a device is not there, or not the one that the claim was given: no document may be in
            force.
    """
    if record.spec is None:
        return record
    check_identity(record, devices)
    before = {d.name: d.container_edits for d in record.spec.devices}
    found, edits = [], []
    for device in record.devices:
        held = before.get(record.cdi_name(device), cdi.ContainerEdits())
        own = read_only_pipes(device.own if device.own is not None else _own(device, held))
        now = _now(device, devices)
        if now is None:
            raise PrepareError(f"device {device.device} is not on this node now", retryable=True)
        if device.binding is not None:
            # Its own driver does not have it, so that discovery knows nothing of its nodes.
            found.append(msgspec.structs.replace(device, own=own, own_nodes=()))
            edits.append(cdi.ContainerEdits())
            continue
        nodes = cdi.own_nodes(now.edits, now.own_nodes)
        if device.partition is None and not nodes and _loses(device, held, now):
            raise PrepareError(f"device {device.device}: its device node is not known now", retryable=True)
        found.append(
            msgspec.structs.replace(
                device,
                own=own,
                attributes=now.attributes,
                simulated=now.simulated,
                own_nodes=tuple(n.path for n in nodes),
            )
        )
        edits.append(now.parts.added_to(now.edits, device.capabilities))
    fresh = documented(driver, msgspec.structs.replace(record, devices=tuple(found)), edits)
    return complete(fresh, _instances(record, before, devices))


def check_identity(record: PreparedClaim, devices: Mapping[str, NodeDevice]) -> None:
    """Refuse a device that was replaced under its name: it is not what the claim was given.

    Raises:
        PrepareError: the text says which.
    """
    for device in record.devices:
        now = _now(device, devices)
        if now is not None and device.uuid and now.uuid != device.uuid:
            raise PrepareError(
                f"device {device.device} was prepared with uuid {device.uuid!r}, but the hardware now "
                f"says {now.uuid!r}: it was replaced; delete the pod to get another device"
            )


def ended(record: PreparedClaim) -> PreparedClaim:
    """Return what is remembered of a claim whose devices a reboot has given back."""
    return msgspec.structs.replace(
        record,
        # For versions that do not know ``ended``: they undo it, and there is nothing to be undone.
        state=ClaimState.STARTED,
        devices=tuple(
            PreparedDevice(
                requests=d.requests,
                pool=d.pool,
                device=d.device,
                uuid=d.uuid,
                share_id=d.share_id,
                admin_access=d.admin_access,
            )
            for d in record.devices
        ),
        settings=(),
        spec=None,
        ended=True,
    )


def _now(device: PreparedDevice, devices: Mapping[str, NodeDevice]) -> NodeDevice | None:
    """Return the device as the node sees it; of a partition that is not listed now, what its GPU says."""
    found = devices.get(device.device)
    gpu = devices.get(device.partition.gpu) if device.partition is not None else None
    if found is not None or gpu is None:
        return found
    return dataclasses.replace(gpu.shared, name=device.device, attributes=device.attributes)


def _loses(device: PreparedDevice, held: cdi.ContainerEdits, now: NodeDevice) -> bool:
    """Return whether a node that was the device's own is none that it has now."""
    given = {n.path for n in now.edits.device_nodes}
    return any(n.path not in given for n in cdi.own_nodes(held, device.own_nodes))


def _own(device: PreparedDevice, held: cdi.ContainerEdits) -> cdi.ContainerEdits:
    """Return what a document of an earlier version holds for the claim's sake."""
    if device.binding is not None:
        return cdi.ContainerEdits(env=held.env, mounts=held.mounts)
    places = (*_OWN_MOUNTS, CONTAINER_DIRECTORY)
    return cdi.ContainerEdits(
        env=tuple(v for v in held.env if _OWN_VARIABLE.fullmatch(v)),
        mounts=tuple(
            m
            for m in held.mounts
            if any(m.container_path == p or m.container_path.startswith(f"{p}/") for p in places)
        ),
    )


def _instances(
    record: PreparedClaim, before: Mapping[str, cdi.ContainerEdits], devices: Mapping[str, NodeDevice]
) -> dict[str, tuple[str, cdi.ContainerEdits]]:
    """Return UUIDs and nodes of the partitions as the document has them, where they are right still.

    An instance is opened by the node of its GPU and by nodes of its own. Their numbers change together, and
    only that of the GPU is known to discovery: where none of the nodes is the GPU's now, the hardware is
    asked for the instance again.
    """
    kept: dict[str, tuple[str, cdi.ContainerEdits]] = {}
    for device in record.devices:
        partition = device.partition
        if partition is None or not partition.uuid:
            continue
        held = before.get(record.cdi_name(device), cdi.ContainerEdits())
        # In a record that does not say which nodes are the device's own, a numbered one may be the driver's.
        found = _now(device, devices)
        given = found.edits.device_nodes if found is not None else ()
        nodes = tuple(n for n in cdi.own_nodes(held, device.own_nodes) if n not in given)
        gpu = devices.get(partition.gpu)
        now = {n.path for n in cdi.own_nodes(gpu.edits, gpu.own_nodes)} if gpu is not None else set()
        if not nodes or any(n.path in now for n in nodes):
            kept[device.device] = (partition.uuid, cdi.ContainerEdits(device_nodes=nodes))
    return kept
