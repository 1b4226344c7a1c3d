"""Whether containers may still use the devices of a claim that is gone, or that the kubelet unprepares.

Devices become free on proof only: no pod that had them has processes, by the node's cgroups or its procfs.
That the kubelet does not list a pod proves nothing. It forgets a pod at once that was deleted by force, and
unprepares its claims within a minute, while the containers have their whole grace period. A process that does
not end (in the kernel, for example) outlives that too, and one without work keeps the device open.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.preparation.claim import PreparedClaim, PreparedDevice

__all__ = [
    "NodeProcess",
    "ProcessView",
    "Use",
    "Verdict",
    "cdi_ids",
    "exclusive_nodes",
    "judge",
    "judge_unprepare",
]

_MOST_NAMED: Final = 3


class Use(enum.Enum):
    """What is known about the use of a claim's devices."""

    FREE = "no container uses them"
    IN_USE = "a container has them, or may open them"
    UNKNOWN = "nothing proves that no container has them"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known, and why, as a clause that names no claim, pod or namespace."""

    use: Use
    why: str = ""


_NOT_SEEN: Final = Verdict(Use.UNKNOWN, "the processes of the node's pods cannot be seen from here")
_PODS_UNKNOWN: Final = Verdict(Use.UNKNOWN, "not all pods that may have it are known")


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
    """What is seen of the processes of the node's pods.

    Attributes:
        pods: a few processes of each pod, by its UID, from procfs.
        open: processes that have a device node open, by the path of the node in their container.
        complete: whether the open files of every process of a pod could be read.
        cgroups: of pods that were asked for and have processes, the path of the cgroup.
    """

    pods: Mapping[Uid, tuple[NodeProcess, ...]] = field(default_factory=dict)
    open: Mapping[str, tuple[NodeProcess, ...]] = field(default_factory=dict)
    complete: bool = True
    cgroups: Mapping[Uid, str] = field(default_factory=dict)


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
    """Return whether containers may still use the devices of a claim that is gone.

    Args:
        record: of the claim.
        listed: whether the kubelet lists a pod that has it; None where it cannot be asked.
        view: what is seen of the node's pods; None where their processes cannot be seen.
        others: records of other claims: their pods may have the same nodes open.
    """
    if listed:
        return Verdict(Use.IN_USE, "the kubelet still lists a pod that has it")
    if view is None:
        return _NOT_SEEN
    if users := _users(record, view, others):
        return Verdict(Use.IN_USE, users)
    # Of a claim that was made for one pod, it is enough that this pod has no process. Of others the pods that
    # are known have none; a pod that is still active and unknown is listed.
    if view.complete or record.is_for_one_pod or (record.pods and listed is False):
        return Verdict(Use.FREE)
    return _PODS_UNKNOWN


def judge_unprepare(
    record: PreparedClaim,
    *,
    listed: bool | None,
    view: ProcessView | None,
    others: Iterable[PreparedClaim] = (),
) -> Verdict:
    """Return whether containers may still use the devices of a claim that the kubelet unprepares.

    The kubelet does so after it has stopped the containers, while it still lists the pod. But of a pod that
    was deleted by force it also does so within a minute, whatever its containers do.

    Args:
        record: of the claim.
        listed: whether the kubelet lists a pod that has it; False only if it did before; None where that is
            not known.
        view: see ``judge``.
        others: see ``judge``.
    """
    if view is not None and (users := _users(record, view, others, sure=True)):
        return Verdict(Use.IN_USE, users)
    if listed is not False:
        return Verdict(Use.FREE)
    if view is None:
        return _NOT_SEEN
    if view.complete or record.pods:
        return Verdict(Use.FREE)
    return _PODS_UNKNOWN


def _users(
    record: PreparedClaim, view: ProcessView, others: Iterable[PreparedClaim], *, sure: bool = False
) -> str:
    """Return what is seen to use a claim's devices, as a clause; empty if nothing is.

    Args:
        record: of the claim.
        view: what is seen.
        others: records of other claims.
        sure: leave out processes that may be of monitoring: no pod may be kept from ending because of those.
    """
    pods = {pod.uid for pod in record.pods}
    alive = [p for uid in sorted(pods) for p in view.pods.get(uid, ())]
    if alive:
        return f"its pod still has processes (PID {_named(alive)})"
    for uid in sorted(pods):
        if uid in view.cgroups:
            return f"its pod still has processes (cgroup {view.cgroups[uid]})"
    others_pods = {pod.uid for other in others if other.uid != record.uid for pod in other.pods}
    for node in sorted(exclusive_nodes(record)):
        opened = view.open.get(node, ())
        users = [
            p for p in opened if record.uid in p.claims or (not sure and _may_use(p, record, others_pods))
        ]
        if users:
            return f"processes of a pod have {node} open (PID {_named(users)})"
    return ""


def _may_use(process: NodeProcess, record: PreparedClaim, others_pods: set[Uid]) -> bool:
    """Return whether a process that has a node of the claim's device open may have got it from the claim.

    Monitoring has nodes of all devices open, for ever: a claim must not be kept for it.
    """
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
