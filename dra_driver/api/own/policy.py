"""``dra-driver.dev/v1alpha1 DevicePolicy``: what an admin wants of devices and pools beyond what was found.

Cluster-scoped, written by admins; the controller writes ``status``. What is not set is left to policies of
lower rank, and in the end to the controller's flags. ``dra_driver.resourceslice`` merges and applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver.api.meta import Resource, Wire, WireObject
from dra_driver.api.own.inventory import GROUP
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Condition, DeviceAttribute, DeviceSelector, DeviceTaint, NodeSelector

__all__ = [
    "DEVICE_POLICIES",
    "PUBLISH",
    "WITHHOLD",
    "DevicePolicy",
    "DevicePolicySpec",
    "DevicePolicyStatus",
    "HealthPolicy",
    "PartitionPolicy",
    "ShareMemory",
    "SharePolicy",
]


# ``besideDevicePlugin``: devices that a device plugin of the node hands out. ``besideOtherDriver``: devices
# that another DRA driver publishes for the node.
WITHHOLD: Final = "withhold"
PUBLISH: Final = "publish"


class ShareMemory(Wire, frozen=True, kw_only=True):
    """Amounts of memory that a share may have.

    Attributes:
        min: smallest share, and what smaller requests are rounded up to.
        step: requests are rounded up to ``min`` plus a multiple of it.
        default: of a request that names no amount; absent: an equal part, or ``min``.
    """

    min: Quantity | None = None
    step: Quantity | None = None
    default: Quantity | None = None


class SharePolicy(Wire, frozen=True, kw_only=True):
    """Sharing of a device by several claims.

    Attributes:
        max_shares: most claims at a time; 0: as many as the memory allows; 1: the device is not shared.
        memory: which amounts.
        over_commit_percent: memory that is given out, of what is there; 100 unless an admin says more.
    """

    max_shares: int = 0
    memory: ShareMemory = ShareMemory()
    over_commit_percent: int = 100

    @property
    def shares(self) -> bool:
        """Whether the device is shared at all."""
        return self.max_shares != 1


class PartitionPolicy(Wire, frozen=True, kw_only=True):
    """Kinds of partition that are published; ``*`` means all. Without any, only the whole device is."""

    profiles: tuple[str, ...] = ()


class HealthPolicy(Wire, frozen=True, kw_only=True):
    """Severity of a health entry → effect of the taint: None, NoSchedule, NoExecute; empty: no taint.

    Attributes:
        info: of entries that are only shown.
        degraded: of entries that keep new pods away.
        failed: of entries that evict pods.
    """

    info: str = ""
    degraded: str = "NoSchedule"
    failed: str = "NoExecute"


class DevicePolicySpec(Wire, frozen=True, kw_only=True):
    """Settings, and the devices that get them.

    Attributes:
        priority: policies with a higher one win; between equals, the name that sorts first.
        driver: only devices of this driver; empty: of every driver that the controller handles.
        node_selector: nodes; if None, all of them.
        device_selectors: CEL, as in a DeviceClass; a device must match all of them.
        allocator: of the whole pool: ``scheduler`` or ``controller``.
        strategy: of the whole pool: ``first-fit`` or ``best-fit``.
        node_policy: of the whole pool: ``pack`` or ``spread``.
        hide: the devices are not published.
        taints: effect None, NoSchedule or NoExecute (which evicts the pods that use the devices).
        attributes: added; what the node found out is never replaced.
        beside_device_plugin: of devices that a device plugin of the node seems to hand out: ``withhold`` (the
            default) or ``publish``.
        beside_other_driver: of devices that another DRA driver publishes for the node: ``withhold`` (the
            default) or ``publish``.
        autoscaled: whether an autoscaler adds nodes that the policy selects, so that pods which only such a
            node could serve are shown to it; absent: where ``allocator`` is ``scheduler``, but for groups.
    """

    priority: int = 0
    driver: str = ""
    node_selector: NodeSelector | None = None
    device_selectors: tuple[DeviceSelector, ...] = ()
    allocator: str = ""
    strategy: str = ""
    node_policy: str = ""
    hide: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    share: SharePolicy | None = None
    partitions: PartitionPolicy | None = None
    health: HealthPolicy | None = None
    beside_device_plugin: str = ""
    beside_other_driver: str = ""
    autoscaled: bool | None = None


class DevicePolicyStatus(Wire, frozen=True, kw_only=True):
    """Written by the controller.

    Attributes:
        observed_generation: of the spec that the rest is about.
        nodes: pools with devices that the policy matches.
        devices: devices that it matches.
        conditions: ``Applied``, ``Conflicting``, ``Pending``.
    """

    observed_generation: int = 0
    nodes: int = 0
    devices: int = 0
    conditions: tuple[Condition, ...] = ()


class DevicePolicy(WireObject, frozen=True, kw_only=True):
    """One policy."""

    spec: DevicePolicySpec = DevicePolicySpec()
    status: DevicePolicyStatus = DevicePolicyStatus()

    @property
    def rank(self) -> tuple[int, str]:
        """Return a key that sorts the policy that wins first."""
        return (-self.spec.priority, self.metadata.name)


DEVICE_POLICIES = Resource(
    GROUP, "v1alpha1", "devicepolicies", "DevicePolicy", DevicePolicy, namespaced=False
)
