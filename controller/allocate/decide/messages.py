"""Changes, questions and answers: all that crosses the border of this room. Plain values that can be pickled.

Times are seconds of one monotonic clock, that of the sender.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from controller.allocate.decide.learned import GroupHeld, Learned, NamespaceStruck, QuestionHeavy
from controller.allocate.decide.order import Rank
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.api.scheduling import PodGroup
from dra_driver.fleet import RequestShape
from dra_driver.nodefit.volumes import StorageObject
from dra_driver.ownership import PoolID
from dra_driver.structured import DEFAULT_POLICY, GroupLabels, PoolPolicy

__all__ = [
    "Change",
    "ClaimAssumed",
    "ClaimGone",
    "ClaimRenewed",
    "ClaimSeen",
    "Decision",
    "DecisionOverran",
    "DevicesSetAside",
    "GrantDevices",
    "GrantedDevices",
    "GrantedNode",
    "GroupMembers",
    "GroupWrite",
    "Lane",
    "NeedsSlowLane",
    "NodeTurnedDown",
    "NotYet",
    "ObjectGone",
    "ObjectSeen",
    "PodAnswer",
    "PodExpected",
    "PodGroupsUnknown",
    "PodID",
    "PodPlacement",
    "PodQuestion",
    "PoolBusy",
    "PoolChanged",
    "Proceed",
    "Refuse",
    "SetAside",
    "Settings",
    "VolumesKnown",
    "Wait",
    "Watched",
    "Write",
]

# Timers may be early by a little.
_SLACK_SECONDS: Final = 0.1


Watched = Node | Pod | PodGroup | DeviceClass | ResourceSlice | DeviceTaintRule | StorageObject
"""Objects of which decisions need no more than what the API server has."""


class PodID(NamedTuple):
    """One pod: another one may get its name later."""

    key: ObjectKey
    uid: Uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What does not change while the process runs.

    Attributes:
        drivers: whose pools may be ours.
        policy: how to choose the devices of a pool, where ``PoolChanged`` has named no other policy.
        group_seconds: for which members of a group may hold devices while others of it are missing.
        avoid_seconds: for which a node is left out where kube-scheduler could not place a pod; doubled each
            time that it could not place the pod there again.
        longest_avoid_seconds: the most that doubling leads to.
        rest_seconds: for which a pod that no node suits is not tried after a second attempt in vain; doubled
            each time, too. A cycle of kube-scheduler has ended by then, whatever it does.
        decision_seconds: CPU time that a decision for a pod may take in the slow lane.
        group_decision_seconds: likewise for all pods of a group.
        grants: whether devices are granted to kube-scheduler for pods that it alone can place.
        shapes: requests that are counted now and then.
        group_labels: labels of others that make pods a group.
    """

    drivers: tuple[DriverName, ...]
    policy: PoolPolicy = DEFAULT_POLICY
    group_seconds: float = 30.0
    avoid_seconds: float = 15.0
    longest_avoid_seconds: float = 600.0
    rest_seconds: float = 60.0
    decision_seconds: float = 2.0
    group_decision_seconds: float = 10.0
    grants: bool = False
    shapes: tuple[RequestShape, ...] = ()
    group_labels: tuple[str, ...] = tuple(GroupLabels)


# --- changes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """An object was added or changed."""

    object: Watched


@dataclass(frozen=True, slots=True)
class ObjectGone:
    """An object was deleted.

    Attributes:
        kind: its class.
        key: its namespace and name.
    """

    kind: type[Watched]
    key: ObjectKey


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The newest version of a claim that is known, answers to our own writes included."""

    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ClaimRenewed:
    """A claim has another version that says nothing new to decisions; a write must name it.

    Attributes:
        key: of the claim.
        uid: of the claim.
        version: its resourceVersion from now on.
    """

    key: ObjectKey
    uid: Uid
    version: str


@dataclass(frozen=True, slots=True)
class ClaimGone:
    """A claim was deleted. What is assumed of it stays until ``ClaimAssumed`` ends that."""

    key: ObjectKey
    uid: Uid


@dataclass(frozen=True, slots=True)
class ClaimAssumed:
    """An allocation is being written; its devices are taken as if it had been.

    Attributes:
        allocation: None ends the assumption: from now on the claim holds what its newest version says.
    """

    key: ObjectKey
    uid: Uid
    allocation: AllocationResult | None


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """What the publishing side says about a pool.

    Attributes:
        pool: which one.
        blocked: it is changing hands or its form: protected by our taint, yet not ours to decide on.
        policy: how to choose its devices.
        granted: devices that are granted to kube-scheduler, or on their way there or back, and all that these
            exclude: neither free nor ours to give back.
        open: it is ours although its devices have no taint of ours: the API server refuses others.
    """

    pool: PoolID
    blocked: bool
    policy: PoolPolicy
    granted: frozenset[str] = frozenset()
    open: bool = False


@dataclass(frozen=True, slots=True)
class PoolBusy:
    """A node reports on which devices of a pool of its own something runs.

    Attributes:
        pool: which one.
        devices: their names; all others are idle, or report nothing.
    """

    pool: PoolID
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodExpected:
    """A pod will run on a node, because its devices are allocated there.

    Attributes:
        node: None ends the expectation: the pod counts where it is bound, if it is.
    """

    pod: PodID
    node: str | None


@dataclass(frozen=True, slots=True)
class NodeTurnedDown:
    """kube-scheduler could not place a pod on the node of its allocation; ``EVERYWHERE``: on no node."""

    pod: Uid
    node: str
    at: float


@dataclass(frozen=True, slots=True)
class DecisionOverran:
    """A decision about a pod was stopped from outside: from now on it is asked for in the slow lane."""

    pod: ObjectKey
    at: float


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Devices that would serve a pod.

    Attributes:
        pod: which one.
        node: of the devices.
        allocations: that it would have; other claims may hold the devices.
    """

    pod: PodID
    node: str
    allocations: tuple[AllocationResult, ...]


@dataclass(frozen=True, slots=True)
class DevicesSetAside:
    """Devices are kept from pods that come after one, in place of those that were before.

    Attributes:
        rank: of the pod, or of its group; None: no devices are set aside any more.
        places: of the pod, or of the members of its group.
        preemptor: for which others were preempted, the UID of a pod; empty: for the pod that starves.
    """

    rank: Rank | None
    places: tuple[PodPlacement, ...]
    preemptor: str = ""


@dataclass(frozen=True, slots=True)
class VolumesKnown:
    """Whether all storage objects are known; else volumes are left to kube-scheduler."""

    known: bool


@dataclass(frozen=True, slots=True)
class PodGroupsUnknown:
    """Why PodGroups cannot be read; empty where they can."""

    reason: str


Change = (
    ObjectSeen
    | ObjectGone
    | ClaimSeen
    | ClaimRenewed
    | ClaimGone
    | ClaimAssumed
    | PoolChanged
    | PodExpected
    | NodeTurnedDown
    | DecisionOverran
    | QuestionHeavy
    | NamespaceStruck
    | GroupHeld
    | DevicesSetAside
    | VolumesKnown
    | PodGroupsUnknown
    | PoolBusy
)


# --- questions and answers ----------------------------------------------------------------------------------


class Lane(enum.Enum):
    """How much work a question may cause, and whom it may keep waiting."""

    FAST = "fast"
    """Little work: all other questions wait meanwhile. What needs more is answered with ``NeedsSlowLane``."""
    SLOW = "slow"
    """Much work, beside the other questions."""


@dataclass(frozen=True, slots=True)
class PodQuestion:
    """What is to be done about a pod that uses claims and is neither finished nor being deleted?

    Attributes:
        pod: which one.
        now: when the question is asked.
        lane: how much work it may cause.
        set_aside: asked is not what to do now, but which devices to set aside for it. It fits nowhere.
        grants: whether devices may be granted for it now where the controller could allocate itself.
        awaited: whether kube-scheduler was seen binding it: then its kubelet waits for the devices, and it
            comes before the pods for which devices are set aside. Anybody can make a pod with a node.
        shows: whether it is to be shown to autoscalers if it is refused. They believe in every device that
            looks free, so ``Refuse.new_node`` is false where one would serve it, or a member of its group.
    """

    pod: PodID
    now: float
    lane: Lane = Lane.FAST
    set_aside: bool = False
    grants: bool = False
    awaited: bool = False
    shows: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is missing that will come as an event, such as a claim to be generated.

    Attributes:
        reason: what.
        poll: seconds after which to look again all the same; 0: not.
        volumes: whether it is volumes, without which the pod cannot be placed anywhere.
    """

    reason: str
    poll: float = 0.0
    volumes: bool = False


@dataclass(frozen=True, slots=True)
class Proceed:
    """Nothing is left to be allocated here: the pod goes to kube-scheduler.

    Attributes:
        node: where its claims are allocated, as far as they are and it is one node.
        theirs: it still needs devices, but none that are ours at present.
    """

    node: str | None = None
    theirs: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The claims cannot be allocated now. It is tried again when something changes.

    Attributes:
        message: what was asked, what is there, and why it does not fit.
        claims: claims of ours that wait.
        undo: allocations written before, without a reservation, that keep the rest from fitting: they
            are to be deallocated, then the pod is looked at again.
        elsewhere: kube-scheduler has what the claims ask for in pools of its own.
        signature: pods of one signature are served or not together.
        new_node: what is missing is devices, or room on the nodes that have them, so that another node might
            serve the claims.
    """

    message: str
    claims: tuple[ResourceClaim, ...] = ()
    undo: tuple[ResourceClaim, ...] = ()
    elsewhere: bool = False
    signature: bytes = b""
    new_node: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Allocations to be written, all on one node, each to the version of the claim that the decision saw."""

    node: str
    allocations: tuple[tuple[ResourceClaim, AllocationResult], ...]


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """Allocations of members of a group, to be written all or none."""

    writes: tuple[tuple[PodID, Write], ...]


@dataclass(frozen=True, slots=True)
class SetAside:
    """Devices that would serve a pod, or all pods of its group, if those that have them now had ended.

    Attributes:
        rank: of the pod, or of its group.
        places: where.
    """

    rank: Rank
    places: tuple[PodPlacement, ...]


class GrantedDevices(NamedTuple):
    """Devices of one pool for one claim.

    Attributes:
        pool: of ours.
        key: of the claim (``dra_driver.ownership.grant_key``).
        names: of the devices.
    """

    pool: PoolID
    key: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrantedNode:
    """A node on which kube-scheduler finds all that a pod asks for.

    Attributes:
        node: where.
        devices: of ours that it picks there.
    """

    node: str
    devices: tuple[GrantedDevices, ...]


@dataclass(frozen=True, slots=True)
class GrantDevices:
    """Devices to be granted to kube-scheduler.

    Nothing is taken by this: until they are granted, others may get them, and the pod is asked about again.

    Attributes:
        nodes: each of which will do; the best one first.
        instead: whether the controller could allocate itself; its own choice may be in vain.
        slow: whether volumes are to be made for the pod before its claims are written.
        suitable: how many nodes suit the pod but for its devices: kube-scheduler looks at all of these where
            the pod does not fit on the best one.
    """

    nodes: tuple[GrantedNode, ...]
    instead: bool = False
    slow: bool = False
    suitable: int = field(default=1, compare=False)

    @property
    def node(self) -> str:
        """The best node."""
        return self.nodes[0].node

    @property
    def pools(self) -> frozenset[PoolID]:
        """Those of the devices, on all nodes."""
        return frozenset(one.pool for node in self.nodes for one in node.devices)


@dataclass(frozen=True, slots=True)
class NeedsSlowLane:
    """The question needs more work than the fast lane gives; it is to be asked in the slow lane."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """It is not known yet whether the claims can be allocated: the index that tells is being prepared.

    The worker goes on preparing it, and the question is to be asked again soon, in the fast lane.

    Attributes:
        message: what is being prepared, and how far it is.
        claims: claims of ours that wait.
        signature: as for ``Refuse``.
    """

    message: str
    claims: tuple[ResourceClaim, ...] = ()
    signature: bytes = b""


Decision = Wait | Proceed | Refuse | Write | GroupWrite | GrantDevices | NeedsSlowLane | SetAside | NotYet


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The group that a decision is for.

    Attributes:
        namespace: of all its pods.
        name: in its key.
        size: number of members that there can be; 0 where the labels make no sense.
        pods: members that count, in the order of their names; none in an answer that is remembered.
        waiting: those of them that do not go on to kube-scheduler yet.
        allocated: number of members that have their devices, or get them by this answer.
        running: number of members that are bound, or about to be.
        priority: of the PodGroup, where it has one.
    """

    namespace: str
    name: str
    size: int = 0
    pods: tuple[PodID, ...] = ()
    waiting: tuple[PodID, ...] = ()
    allocated: int = 0
    running: int = 0
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """The answer to a ``PodQuestion``.

    Attributes:
        version: number of changes that the decision has seen.
        decision: what is to be done, about all members where there is a group.
        group: of the pod; None where it has none.
        steps: of work (``Budget``) that the decision took; None where an earlier answer still holds.
        seconds: of CPU time that it took.
        gave_up: whether the decision met a limit of work: what is refused may fit all the same.
        cut: whether more work might have led to another decision.
        pause: seconds for which the question will not be worked out again, because it took much work.
        avoided: nodes that are left out for the pod, or for members of its group that wait, with the seconds
            for which they still are.
        learned: what is remembered from now on; None where that is as before.
        overrun: seconds of CPU time that it took for indexes, beyond those that it was given for that.
    """

    version: int
    decision: Decision
    group: GroupMembers | None = None
    steps: int | None = None
    seconds: float = 0.0
    gave_up: bool = False
    cut: bool = False
    pause: float = 0.0
    avoided: tuple[tuple[str, float], ...] = ()
    learned: Learned | None = None
    overrun: float = 0.0

    @property
    def remembered(self) -> bool:
        """Whether nothing was worked out: an earlier answer still holds."""
        return self.steps is None

    @property
    def next_node(self) -> float | None:
        """Seconds after which another node may be tried; None where none is left out."""
        return min(seconds for _, seconds in self.avoided) + _SLACK_SECONDS if self.avoided else None
