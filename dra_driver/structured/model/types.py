"""What goes into the allocator and what comes out: identities, feature switches, strategies, outcomes."""

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
    """A device in the cluster."""

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
    """Which of Kubernetes' optional semantics apply.

    A field of a disabled feature is an error or ignored, as there.

    The defaults are those of Kubernetes 1.36.

    Attributes:
        admin_access: DRAAdminAccess.
        consumable_capacity: DRAConsumableCapacity (capacity requests, devices allocated several times).
        device_binding_and_status: DRADeviceBindingConditions with the claim's device status.
        device_taints: DRADeviceTaints.
        list_type_attributes: DRAListTypeAttributes (alpha, off).
        partitionable_devices: DRAPartitionableDevices (shared counters, node selection per device).
        prioritized_list: DRAPrioritizedList (``firstAvailable``).
    """

    admin_access: bool = True
    consumable_capacity: bool = True
    device_binding_and_status: bool = True
    device_taints: bool = True
    list_type_attributes: bool = False
    partitionable_devices: bool = True
    prioritized_list: bool = True

    @classmethod
    def from_names(cls, switches: Mapping[str, bool]) -> Features:
        """Switches by Kubernetes' names (``AdminAccess`` …); absent ones keep the default.

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
    """How to choose among the allocations that are possible."""

    FIRST_FIT = "first-fit"
    """The devices that Kubernetes' allocator takes: the first that fit, on the first node where they do."""
    BEST_FIT = "best-fit"
    """Over all nodes and devices: least left unused, then tightest topology, then fewest nodes opened."""


class NodePolicy(enum.Enum):
    """Which node best fit takes of those where devices are equally good."""

    PACK = "pack"
    """One that is in use already, and of these the fullest: whole nodes stay free."""
    SPREAD = "spread"
    """The one with the most free devices."""


class PoolPolicy(NamedTuple):
    """How the devices of a pool are chosen.

    Attributes:
        strategy: which devices.
        nodes: for best fit, which of several nodes that are equally good. Those whose pools say SPREAD come
            before those that say PACK.
    """

    strategy: Strategy = Strategy.BEST_FIT
    nodes: NodePolicy = NodePolicy.PACK


DEFAULT_POLICY: Final = PoolPolicy()

PoolPolicies = PersistentMap[PoolID, PoolPolicy]
"""Pools that may be used, and how."""


class ExclusionReason(enum.Enum):
    """The first thing that excluded a device (or a whole node) for a request, in the order of the checks."""

    NODE_SELECTOR = "node selector"
    """A claim is already allocated and its node selector excludes the node."""
    NO_DEVICES = "no devices"
    """The node has no device at all in a usable pool."""
    POOL_INCOMPLETE = "pool incomplete"
    POOL_INVALID = "pool invalid"
    POOL_NOT_USABLE = "pool not usable"
    """The caller does not let this allocation use the pool."""
    CLASS = "device class"
    """A selector of the DeviceClass says no."""
    SELECTOR = "selector"
    """A selector of the request says no."""
    SELECTOR_ERROR = "selector error"
    CAPACITY = "capacity"
    TAINT = "taint"
    IN_USE = "in use"
    CAPACITY_IN_USE = "capacity in use"
    """The device is shared, and what other claims left of it is too little."""
    COUNTERS = "counters"
    """Partitions in use take what this one needs of the physical device."""
    CONSTRAINT = "constraint"
    """It would fit by itself; the claim's constraints or its other requests leave no room for it."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why one device does not serve one request.

    Attributes:
        claim: ``namespace/name``.
        request: ``name`` or ``name/subrequest``.
        device: None where the rule holds for the node or the pool as a whole.
        reason: what excluded it.
        wanted: what was asked, in words that people know from their manifests (``memory 32Gi``).
        found: what was there (``24Gi``; for devices in use the claims that hold it).
    """

    claim: str
    request: str
    device: DeviceID | None
    reason: ExclusionReason
    wanted: str = ""
    found: str = ""


@dataclass(frozen=True, slots=True)
class NodeReasons:
    """Everything that was excluded on one node."""

    node: str
    exclusions: tuple[Exclusion, ...]


@dataclass(frozen=True, slots=True)
class Allocated:
    """It fits.

    Attributes:
        node: where.
        results: one per claim, in the order of the claims; ``allocation_timestamp`` is None. A claim that
            was allocated before keeps its allocation.
    """

    node: str
    results: tuple[AllocationResult, ...]


@dataclass(frozen=True)
class DoesNotFit:
    """Nothing fits now. The reasons are worked out when somebody asks for them.

    Attributes:
        explain: gives the reasons of every node.
        summarize: gives one sentence over all nodes.
        shorten: gives one from a few nodes.
    """

    explain: Callable[[], tuple[NodeReasons, ...]]
    summarize: Callable[[], str]
    shorten: Callable[[], str]

    @cached_property
    def reasons(self) -> tuple[NodeReasons, ...]:
        """Per node that was looked at, the first rule that excluded each device."""
        return self.explain()

    def summary(self) -> str:
        """Return one sentence for people, for example for the Event on the pod."""
        return self.summarize()

    def brief(self) -> str:
        """Return the like from a few nodes that differ; its cost does not grow with the cluster."""
        return self.shorten()


@dataclass(frozen=True, slots=True)
class Failed:
    """The question cannot be answered, for example because a class does not exist.

    Attributes:
        message: what is wrong, with claim and request.
        only_this_node: other nodes may give an answer (invalid pools).
        node: where it was found; empty where the claims themselves are wrong.
        gave_up: there may be an answer: the question had too many combinations to try them all.
    """

    message: str
    only_this_node: bool = False
    node: str = ""
    gave_up: bool = False


Outcome = Allocated | DoesNotFit | Failed
