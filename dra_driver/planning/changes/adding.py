"""How many more nodes of a kind a workload needs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dra_driver.api.core import Node
from dra_driver.api.resource import ResourceSlice
from dra_driver.planning.checks import Checks
from dra_driver.planning.question import Template, Workload, units_of, want_room
from dra_driver.structured import GroupAllocated, GroupMember, Snapshot

__all__ = ["Added", "fewest_nodes", "with_nodes"]

_HOST_NAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Added:
    """Nodes that are added, and where the workload then is.

    Attributes:
        template: what the nodes are like.
        names: of the new nodes.
        answer: of the allocator, with them.
        proven: whether fewer are not enough.
    """

    template: Template
    names: tuple[str, ...]
    answer: GroupAllocated
    proven: bool


def with_nodes(snapshot: Snapshot, template: Template, number: int) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the cluster with some more nodes, and their names."""
    names: list[str] = []
    slices: list[ResourceSlice] = []
    nodes: list[Node] = []
    i = 0
    while len(names) < number:
        i += 1
        name = f"new-{template.node.metadata.name}-{i}"
        if name in snapshot.nodes:
            continue
        names.append(name)
        nodes.append(_node(template.node, name))
        slices += [_slice(s, template.node.metadata.name, name) for s in template.slices]
    return snapshot.with_nodes(nodes).with_slices(slices), tuple(names)


def _node(node: Node, name: str) -> Node:
    labels = {**(node.metadata.labels or {}), _HOST_NAME: name}
    metadata = msgspec.structs.replace(node.metadata, name=name, labels=labels)
    spec = msgspec.structs.replace(node.spec, unschedulable=False)
    return msgspec.structs.replace(node, metadata=metadata, spec=spec)


def _slice(slice_: ResourceSlice, node: str, name: str) -> ResourceSlice:
    spec = slice_.spec
    # A node may have several pools of one driver; the one of its name is the usual case.
    of = name if spec.pool.name == node else f"{name}-{spec.pool.name}"
    pool = msgspec.structs.replace(spec.pool, name=of)
    metadata = msgspec.structs.replace(slice_.metadata, name=f"{name}-{slice_.metadata.name}")
    return msgspec.structs.replace(
        slice_, metadata=metadata, spec=msgspec.structs.replace(spec, node_name=name, pool=pool)
    )


def fewest_nodes(checks: Checks, workload: Workload, template: Template) -> tuple[Added | None, bool]:
    """Return the fewest more nodes with which a workload fits; None, and whether that is proven, if none do.

    Each unit of a workload is on one node, so more nodes than units are of no use.

    Raises:
        OutOfTime: the deadline has passed.
    """
    most = len(units_of(workload.members))
    checks.unsure = False

    def solve(number: int) -> tuple[tuple[str, ...], GroupAllocated] | None:
        checks.progress(f"{number} more nodes like {template.name}")
        snapshot, names = with_nodes(checks.cluster.snapshot, template, number)
        members = [_also_on(m, template, names) for m in workload.members]
        room = dict(checks.cluster.free)
        room.update((name, template.room) for name in names if template.room)
        needs = bool(room) and want_room(members)
        answer = checks.ask(snapshot, members, workload.levels, room if needs else None)
        return (names, answer) if isinstance(answer, GroupAllocated) else None

    found = solve(most)
    if found is None:
        return None, not checks.unsure
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        fewer = solve(middle)
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
    names, answer = found
    return Added(template, names, answer, not checks.unsure), False


def _also_on(member: GroupMember, template: Template, names: tuple[str, ...]) -> GroupMember:
    """Return the member with the new nodes allowed where the node that they are like is."""
    if member.nodes is None or template.node.metadata.name not in member.nodes:
        return member
    return GroupMember(member.claims, frozenset((*member.nodes, *names)), member.needs)
