"""What a publisher knows of a pool when it looks at it, and the plan that comes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.publishing.device_plugins import LEAVING_SECONDS
from dra_driver.publishing.epochs import EpochState
from dra_driver.publishing.freeze import Freeze
from dra_driver.publishing.handover import Handover, HandoverEffect
from dra_driver.publishing.other_drivers import Elsewhere
from dra_driver.publishing.steps import Step
from dra_driver.resourceslice import DesiredPool, ServerFeatures, SlicePlan, Usage

__all__ = ["Guarding", "PublicationPlan", "Seen", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """Whether the API server keeps the devices of pools for the controller (``publishing.grants``).

    Attributes:
        gates: whether the pods of every namespace get our gate; None: that is not known yet.
        policy: whether the policy is in force; None: it may come to be.
        closed: whether it refuses what others allocate from this pool, and all that came before is known.
        problem: why pools cannot be open, for people; empty where they can, or are not to be.
    """

    gates: bool | None = False
    policy: bool | None = False
    closed: bool = False
    problem: str = ""

    @property
    def may_open(self) -> bool:
        """Whether the pool is open, or may become that: kube-scheduler allocates from it by grants."""
        return self.gates is not False and self.policy is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a publisher knows of a pool when it looks at it.

    Attributes:
        inventory: of the pool.
        node: that the inventory names; if None, it is not there (yet).
        slices: of the driver with this pool's name, whoever made them.
        features: what the API server keeps.
        by_node: whether the publisher is the agent of the node (``--publish=node``), not the controller.
        allocator: who allocates where no policy says.
        policies: those that match the node.
        usage: what claims hold of the pool, assumed allocations included.
        withholds: whether devices that a device plugin hands out are withheld.
        classes: DeviceClasses that serve an extended resource.
        gone: device plugins that have gone, as of the last look.
        elsewhere: what other drivers have of the node; if None, nothing is withheld because of them.
        gone_drivers: other drivers that do not publish devices any more, as of the last look.
        leaving: seconds for which what has gone goes on counting.
        handover: whose the pool is, as of the last look.
        doubts: what of the inventory can hardly be true, for people.
        refusal: why kube-scheduler could allocate from a tainted pool all the same; empty if it cannot.
        writing: whether an allocation from the pool is being written.
        claims_seen: whether all claims that the API server has are known; if None, they were not read again.
        drain: seconds between the last decision of one allocator and the first of the other.
        freeze: whether the pool is frozen, as of the last look.
        guarding: whether the pool can be open.
        begun: the epoch for which this process has begun to create slices, with every write answered.
        now: monotonic time in seconds.
    """

    inventory: DeviceInventory
    node: Node | None
    slices: tuple[ResourceSlice, ...]
    features: ServerFeatures
    by_node: bool = False
    allocator: PoolAllocator = PoolAllocator.SCHEDULER
    policies: tuple[DevicePolicy, ...] = ()
    usage: Usage = field(default_factory=Usage)
    withholds: bool = True
    classes: tuple[DeviceClass, ...] = ()
    gone: Mapping[str, float] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    gone_drivers: Mapping[tuple[DriverName, str], float] = field(default_factory=dict)
    leaving: float = LEAVING_SECONDS
    handover: Handover = field(default_factory=Handover)
    doubts: tuple[str, ...] = ()
    refusal: str = ""
    writing: bool = False
    claims_seen: bool | None = None
    drain: float = 0.0
    freeze: Freeze = field(default_factory=Freeze)
    guarding: Guarding = field(default_factory=Guarding)
    begun: int = 0
    now: float = 0.0


class Verdict(enum.Enum):
    """What the inventory is to the publisher."""

    PUBLISHES = "it publishes the pool, as far as the epoch allows"
    REFUSED = "the inventory is not believed"
    NO_NODE = "there is no such Node yet"
    LEFT_TO_NODE = "the agent of the node publishes"
    UNDECIDED = "who is to allocate is not known yet: it depends on the policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationPlan:
    """What is to be done about a pool. Every write is under the resourceVersion of what was seen.

    Attributes:
        pool: which one.
        verdict: where it is not ``PUBLISHES``, only conditions are written.
        reason: why the inventory is refused.
        steps: in order.
        desired: what should be published; None where that was not looked into.
        slices: how the slices become that, whether or not the epoch allows it.
        state: how far the publication was.
        handover: whose the pool is from now on.
        handover_effects: what follows from that.
        freezes: whether the allocator must leave the pool alone while the steps are carried out, and until
            the informer shows what they wrote.
        gone: device plugins that have gone, for the next look.
        gone_drivers: other drivers that do not publish devices any more, for the next look.
        again: seconds after which to look again although nothing has changed; 0: not.
    """

    pool: PoolID
    verdict: Verdict = Verdict.PUBLISHES
    reason: str = ""
    steps: tuple[Step, ...] = ()
    desired: DesiredPool | None = None
    slices: SlicePlan | None = None
    state: EpochState = EpochState.UNPUBLISHED
    handover: Handover = field(default_factory=Handover)
    handover_effects: tuple[HandoverEffect, ...] = ()
    freezes: bool = False
    gone: Mapping[str, float] = field(default_factory=dict)
    gone_drivers: Mapping[tuple[DriverName, str], float] = field(default_factory=dict)
    again: float = 0.0

    @property
    def reads_claims(self) -> bool:
        """Whether the claims have to be read again, and then the pool looked at again."""
        return HandoverEffect.READ_CLAIMS in self.handover_effects
