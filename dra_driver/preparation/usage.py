"""Whether containers may still use the devices of a claim that the API server does not have any more.

Two witnesses are heard: the kubelet, which lists what its pods have, and the processes of the node. Either
may be missing. The kubelet does not list a pod whose object was deleted by force while its containers are
being stopped; a process that does not end (in the kernel, for example) is seen in procfs only.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.preparation.claim import PreparedClaim, PreparedDevice

__all__ = ["NodeProcess", "ProcessView", "Use", "Verdict", "cdi_ids", "exclusive_nodes", "judge"]

_MOST_NAMED: Final = 3


class Use(enum.Enum):
    """What is known about the use of a claim's devices."""

    FREE = "no container uses them"
    IN_USE = "a container has them, or may open them"
    UNKNOWN = "neither the kubelet nor procfs could be asked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known, and why, as a clause that names no claim, pod or namespace."""

    use: Use
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A process of a pod.

    Attributes:
        pod: UID of its pod, from its cgroup.
        claims: UIDs of claims whose files are mounted in its container, of those that were asked for.
    """

    pid: int
    pod: Uid
    claims: frozenset[Uid] = frozenset()


@dataclass(frozen=True, slots=True)
class ProcessView:
    """What procfs shows of the node's pods.

    Attributes:
        pods: a few processes of each pod, by its UID.
        open: processes that have a device node open, by the path of the node in their container.
        complete: whether the open files of every process of a pod could be read.
    """

    pods: Mapping[Uid, tuple[NodeProcess, ...]] = field(default_factory=dict)
    open: Mapping[str, tuple[NodeProcess, ...]] = field(default_factory=dict)
    complete: bool = True


def cdi_ids(record: PreparedClaim) -> frozenset[str]:
    """Return the CDI names that the kubelet got for the claim. They hold the claim's UID."""
    return frozenset(name for device in record.devices for name in device.cdi_device_ids)


def exclusive_nodes(record: PreparedClaim) -> frozenset[str]:
    """Return the paths, in containers, of the device nodes that belong to the claim's devices alone."""
    edits = {d.name: d.container_edits for d in record.spec.devices} if record.spec is not None else {}
    paths: set[str] = set()
    for device in record.devices:
        for name in device.cdi_device_ids:
            given = edits.get(name.partition("=")[2], cdi.ContainerEdits())
            known = None if device.binding is not None else device.own_nodes
            paths |= {n.path for n in cdi.own_nodes(given, known)}
    return frozenset(paths)


def judge(
    record: PreparedClaim,
    *,
    listed: bool | None,
    view: ProcessView | None,
    others: Iterable[PreparedClaim] = (),
) -> Verdict:
    """Return whether containers may still use a claim's devices.

    Args:
        record: of the claim.
        listed: whether the kubelet lists a pod that has it; None where it cannot be asked.
        view: what procfs shows; None where the processes of pods cannot be seen.
        others: records of other claims: their pods may have the same nodes open.
    """
    if listed:
        return Verdict(Use.IN_USE, "the kubelet still lists a pod that has it")
    pods = {pod.uid for pod in record.pods}
    if view is not None:
        alive = [p for uid in sorted(pods) for p in view.pods.get(uid, ())]
        if alive:
            return Verdict(Use.IN_USE, f"its pod still has processes (PID {_named(alive)})")
        others_pods = {pod.uid for other in others if other.uid != record.uid for pod in other.pods}
        for node in sorted(exclusive_nodes(record)):
            users = [p for p in view.open.get(node, ()) if _is_user(p, record, others_pods)]
            if users:
                return Verdict(Use.IN_USE, f"processes of a pod have {node} open (PID {_named(users)})")
    # Of a claim that was made for one pod, it is enough that this pod has no process.
    if listed is False or (view is not None and (view.complete or record.is_for_one_pod)):
        return Verdict(Use.FREE)
    return Verdict(
        Use.UNKNOWN, "neither the kubelet's list of pods nor the node's processes can be seen from here"
    )


def _is_user(process: NodeProcess, record: PreparedClaim, others_pods: set[Uid]) -> bool:
    """Return whether a process that has a node of the claim's device open got it from the claim.

    Monitoring has nodes of all devices open, for ever: a claim must not be kept for it.
    """
    if record.uid in process.claims:
        return True
    if process.pod in others_pods or record.is_for_one_pod:
        return False
    return not any(_has_own_files(device, record.uid) for device in record.devices)


def _has_own_files(device: PreparedDevice, uid: Uid) -> bool:
    """Return whether containers have a file mounted whose path on the host names the claim."""
    return device.own is not None and any(f"/{uid}/" in m.host_path for m in device.own.mounts)


def _named(processes: list[NodeProcess]) -> str:
    more = len(processes) - _MOST_NAMED
    names = ", ".join(str(p.pid) for p in processes[:_MOST_NAMED])
    return f"{names} and {more} more" if more > 0 else names
