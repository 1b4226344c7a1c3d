"""ResourceSlices of a pool: what they should be, and the steps from what is there.

``build_slices`` makes the desired pool of one inventory and the policies that apply to it; ``plan_slices``
compares it with the slices that exist and says what to create, update and delete so that no reader ever
sees a mix of two states. Both are pure and deterministic: no I/O, no clock, no logging.

Sources: ``resource.k8s.io/v1 ResourceSlice`` (limits, pool generation), KEP-4381, KEP-5055 (taints).
"""

from __future__ import annotations

from dra_driver.resourceslice.build import build_slices
from dra_driver.resourceslice.conflicts import extended_resource_conflicts
from dra_driver.resourceslice.device_plugins import (
    PluginDevices,
    counted,
    handed_out,
    is_well_known,
    selected_by,
)
from dra_driver.resourceslice.devices import (
    HEALTH_TAINT,
    MAX_FACTS,
    PENDING_TAINT,
    clean_devices,
)
from dra_driver.resourceslice.other_drivers import (
    OtherDriver,
    Presence,
    identities,
    is_of_one_node,
    share_a_device,
)
from dra_driver.resourceslice.plan import SlicePlan, SliceWrite, altered, plan_slices
from dra_driver.resourceslice.policies import Overridden, PolicyOutcome, merge_policies
from dra_driver.resourceslice.sharing import SHARES
from dra_driver.resourceslice.types import (
    GATES,
    DesiredPool,
    Pending,
    PoolAllocator,
    PublishOptions,
    ServerFeatures,
    SliceContent,
    Usage,
    Withheld,
)

__all__ = [
    "GATES",
    "HEALTH_TAINT",
    "MAX_FACTS",
    "PENDING_TAINT",
    "SHARES",
    "DesiredPool",
    "OtherDriver",
    "Overridden",
    "Pending",
    "PluginDevices",
    "PolicyOutcome",
    "PoolAllocator",
    "Presence",
    "PublishOptions",
    "ServerFeatures",
    "SliceContent",
    "SlicePlan",
    "SliceWrite",
    "Usage",
    "Withheld",
    "altered",
    "build_slices",
    "clean_devices",
    "counted",
    "extended_resource_conflicts",
    "handed_out",
    "identities",
    "is_of_one_node",
    "is_well_known",
    "merge_policies",
    "plan_slices",
    "selected_by",
    "share_a_device",
]
