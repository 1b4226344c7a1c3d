"""What is asked: a preemptor, and a cluster with what holds its devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured import GroupMember, Level, PoolPolicies, Snapshot

__all__ = ["HoldingPod", "OccupiedCluster", "Preemptor"]


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod, or a group of pods, that does not fit.

    Attributes:
        name: for people, such as ``Pod ns/a``.
        members: one for each pod, with its claims. ``nodes`` are those that can take the pod when nothing but
            devices, room and host ports keeps it away.
        priority: ``spec.priority`` of the pod; of a group the lowest of its members.
        levels: of topology that the members share.
        least: for an elastic group, for how many members, the first ones, room is made; if None, for all.
        preempts: False where ``spec.preemptionPolicy`` of a member is ``Never``.
        pods: the members' own, which are never victims; nor are other pods of the group.
        group: as in ``HoldingPod.group``; empty for a single pod.
    """

    name: str
    members: tuple[GroupMember, ...]
    priority: int
    levels: tuple[Level, ...] = ()
    least: int | None = None
    preempts: bool = True
    pods: frozenset[ObjectKey] = frozenset()
    group: str = ""


@dataclass(frozen=True, slots=True)
class HoldingPod:
    """A pod that uses allocated claims, or belongs to a group of which another pod does.

    Attributes:
        key: of the pod.
        priority: ``spec.priority``.
        claims: that it uses, as far as they are allocated.
        started: ``status.startTime`` in seconds since 1970; 0 counts as the oldest. Of a pod that has not
            started, the time of the question.
        node: where it is; empty where that is not decided.
        takes: what the node has more of without it, in the order of ``OccupiedCluster.free``.
        budgets: PodDisruptionBudgets (``namespace/name``) that count its removal as a disruption.
        group: for people, such as ``group namespace/name``: it must go as a whole; empty where there is none.
        going: whether it is being deleted: what it holds comes without a removal.
        hangs: whether it is being deleted, and its end is not near: what it holds stays for now, and nobody
            need remove it. It does not keep pods that belong together with it.
        kept: why it may not be removed, as a predicate ("opts out by its label"); empty where it may. That
            its priority is too high, or its devices are not ours, need not be said here.
    """

    key: ObjectKey
    priority: int = 0
    claims: tuple[ObjectKey, ...] = ()
    started: int = 0
    node: str = ""
    takes: tuple[int, ...] = ()
    budgets: tuple[str, ...] = ()
    group: str = ""
    going: bool = False
    hangs: bool = False
    kept: str = ""


@dataclass(frozen=True, slots=True)
class OccupiedCluster:
    """The cluster at one moment.

    Attributes:
        snapshot: with everything that is allocated or assumed.
        claims: all claims that hold devices in it, with ``status.allocation``, of whatever kind.
        pods: all pods that use these claims, and the other pods of their groups. A claim without any pod here
            stays.
        budgets: disruptions that are allowed now (``status.disruptionsAllowed``), by ``namespace/name``; one
            that is absent allows none.
        free: what pods leave of nodes besides devices, in the order of ``GroupMember.needs``: less than 0
            where they take more than there is. Absent nodes have enough. A pod that is ``going`` still takes
            its part.
        ours: pools whose devices may be taken away; if None, all of them.
        coupled: whether nodes share devices, or counters.
        pools: as for ``allocate``.
        withheld: as for ``allocate``.
    """

    snapshot: Snapshot
    claims: tuple[ResourceClaim, ...] = ()
    pods: tuple[HoldingPod, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ours: Collection[PoolID] | None = None
    coupled: bool = False
    pools: PoolPolicies | None = None
    withheld: Mapping[PoolID, str] | None = None
