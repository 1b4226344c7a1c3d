"""Input and output of the allocator: identities, feature switches, strategies, outcomes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final, NamedTuple

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import AllocationResult
from dra_driver.errors import InvalidInput
from dra_driver.ownership import PoolID
from dra_driver.structured.model.persistent import PersistentMap

__all__ = [
    "BY_DEFAULT",
    "DEFAULT",
    "DEFAULT_POLICY",
    "Allocated",
    "DeviceID",
    "DoesNotFit",
    "Exclusion",
    "ExclusionReason",
    "Failed",
    "Features",
    "NodePolicy",
    "NodeReasons",
    "Outcome",
    "PoolID",
    "PoolPolicies",
    "PoolPolicy",
    "Strategy",
]


class DeviceID(NamedTuple):
    """A device in the cluster: driver, pool and name."""

    driver: DriverName
    pool: PoolName
    device: str

    @property
    def pool_id(self) -> PoolID:
        """The pool that it belongs to."""
        return PoolID(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True)
class Features:
    """Feature gates of Kubernetes whose semantics apply.

    A field of a disabled feature is an error or ignored, as in Kubernetes. The defaults are those of
    Kubernetes 1.36, with lists in attributes: where the gate is off, the API server has dropped them.

    Attributes:
        admin_access: DRAAdminAccess.
        admin_access_in_use: ours, not a gate. A request with admin access takes nothing: no counters of a
            GPU, no capacity of a shared one, no device from another claim of the pod. If False, it needs
            counters and capacity like any other, as in Kubernetes 1.36.
        consumable_capacity: DRAConsumableCapacity (capacity requests, devices allocated several times).
        device_binding_and_status: DRADeviceBindingConditions with the claim's device status.
        device_taints: DRADeviceTaints.
        list_type_attributes: DRAListTypeAttributes (alpha in 1.36, off there by default).
        partitionable_devices: DRAPartitionableDevices (shared counters, node selection per device).
        prioritized_list: DRAPrioritizedList (``firstAvailable``).
    """

    admin_access: bool = True
    admin_access_in_use: bool = True
    consumable_capacity: bool = True
    device_binding_and_status: bool = True
    device_taints: bool = True
    list_type_attributes: bool = True
    partitionable_devices: bool = True
    prioritized_list: bool = True

    @classmethod
    def from_names(cls, switches: Mapping[str, bool]) -> Features:
        """Return the features by Kubernetes' names (``AdminAccess`` …); absent names keep the default.

        Raises:
            InvalidInput: a name that does not exist.
        """
        known = {"".join(part.capitalize() for part in f.name.split("_")): f.name for f in fields(cls)}
        unknown = sorted(set(switches) - set(known))
        if unknown:
            raise InvalidInput(f"unknown features {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        return cls(**{known[name]: on for name, on in switches.items()})


DEFAULT = Features()


class Strategy(enum.Enum):
    """How to choose among several possible allocations."""

    FIRST_FIT = "first-fit"
    """The devices that Kubernetes' allocator takes: the first ones that fit, on the first node by name."""
    BEST_FIT = "best-fit"
    """Over all nodes and devices: least capacity unused, then tightest topology, then fewest idle nodes."""


class NodePolicy(enum.Enum):
    """Which node best fit prefers of those whose devices are equally good."""

    PACK = "pack"
    """A node that is in use already, and of these the fullest, so that whole nodes stay free."""
    SPREAD = "spread"
    """The node with the most free devices."""


class PoolPolicy(NamedTuple):
    """How devices of a pool are chosen.

    Attributes:
        strategy: which devices.
        nodes: for best fit, which of several nodes that are equally good. Nodes whose pools say SPREAD come
            before those whose pools say PACK.
    """

    strategy: Strategy = Strategy.BEST_FIT
    nodes: NodePolicy = NodePolicy.PACK


DEFAULT_POLICY: Final = PoolPolicy()

PoolPolicies = PersistentMap[PoolID, PoolPolicy]
"""Pools that may be used, and how."""


BY_DEFAULT: Final = " by default"
"""Follows the amount in ``Exclusion.wanted`` that a request consumes without naming the capacity."""


class ExclusionReason(enum.Enum):
    """The first check that excluded a device (or a whole node) for a request."""

    NODE_SELECTOR = "node selector"
    """A claim is already allocated and its node selector excludes the node."""
    NO_DEVICES = "no devices"
    """The node has no device."""
    POOL_INCOMPLETE = "pool incomplete"
    POOL_INVALID = "pool invalid"
    POOL_NOT_USABLE = "pool not usable"
    """The caller withholds the pools of the node."""
    CLASS = "device class"
    """A selector of the DeviceClass is false."""
    SELECTOR = "selector"
    """A selector of the request is false."""
    SELECTOR_ERROR = "selector error"
    NEWER = "needs a newer controller"
    """The device has a field that may change what an allocation of it means, and is not known here."""
    ATTRIBUTE = "attribute of a constraint"
    """The device lacks an attribute that a constraint of the claim compares."""
    CAPACITY = "capacity"
    TAINT = "taint"
    IN_USE = "in use"
    CAPACITY_IN_USE = "capacity in use"
    """The device is shared, and the capacity that other claims leave is too little.

    What is wanted ends with ``BY_DEFAULT`` where the request does not name the capacity.
    """
    COUNTERS = "counters"
    """Partitions that are allocated consume counters that this one needs."""
    INCOMPATIBLE = "compatibility groups"
    """Partitions that are allocated have no compatibility group in common with this one."""
    CONSTRAINT = "constraint"
    """The device would fit by itself, not together with the claim's constraints and other requests."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why one device does not serve one request.

    Attributes:
        claim: ``namespace/name``.
        request: ``name`` or ``name/subrequest``.
        device: None if the reason holds for the node or the pool as a whole.
        reason: the check that excluded it.
        wanted: what was asked for, in the words of manifests (``memory 32Gi``).
        found: what was there (``24Gi``; the claim that holds a device; why a pool may not be used).
        hint: which name of the device is like one that it lacks, in words that end a sentence.
    """

    claim: str
    request: str
    device: DeviceID | None
    reason: ExclusionReason
    wanted: str = ""
    found: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class NodeReasons:
    """Everything that was excluded on one node."""

    node: str
    exclusions: tuple[Exclusion, ...]


@dataclass(frozen=True, slots=True)
class Allocated:
    """The claims fit.

    Attributes:
        node: name of the node.
        results: one per claim, in the order of the claims; ``allocation_timestamp`` is None. A claim that
            was allocated before keeps its allocation.
    """

    node: str
    results: tuple[AllocationResult, ...]


@dataclass(frozen=True)
class DoesNotFit:
    """Nothing fits now. The reasons are worked out on demand.

    Attributes:
        ask: returns what is asked for.
        explain: returns the reasons of every node.
        summarize: returns one sentence over all nodes; given whether it names the claims that hold devices.
        shorten: returns one sentence over a few nodes.
    """

    ask: Callable[[], str]
    explain: Callable[[], tuple[NodeReasons, ...]]
    summarize: Callable[[bool], str]
    shorten: Callable[[], str]

    @cached_property
    def headline(self) -> str:
        """What is asked for, as in ``needs 4 gpu.dra-driver.dev together``; every summary begins with it."""
        return self.ask()

    @cached_property
    def reasons(self) -> tuple[NodeReasons, ...]:
        """For each node that was examined, the first reason that excluded each device."""
        return self.explain()

    def summary(self, *, holders: bool = False) -> str:
        """Return one sentence for people, for example for the Event on the pod.

        Args:
            holders: names the claims that hold devices. They are of any namespace, so this is for those only
                who may read them all; others are given their number.
        """
        return self.summarize(holders)

    def brief(self) -> str:
        """Return one sentence over a few nodes that differ; its cost does not grow with the cluster.

        It names the claims that hold devices, as ``summary`` does on request.
        """
        return self.shorten()


@dataclass(frozen=True, slots=True)
class Failed:
    """The question cannot be answered, for example because a DeviceClass does not exist.

    Attributes:
        message: the problem, with claim and request.
        only_this_node: whether other nodes may give an answer (the pool is invalid on this one).
        node: where it was found; empty if the claims themselves are wrong.
        gave_up: whether there may be an answer: the claims allow more combinations than could be tried.
    """

    message: str
    only_this_node: bool = False
    node: str = ""
    gave_up: bool = False


Outcome = Allocated | DoesNotFit | Failed
