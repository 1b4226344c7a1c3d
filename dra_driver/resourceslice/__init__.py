"""ResourceSlices of a pool: what they should be, and the steps from what is there.

``build_slices`` makes the desired pool of one inventory; ``plan`` compares it with the slices that exist and
says what to create, update and delete so that no reader ever sees a mix of two states. Both are pure and
deterministic: no I/O, no clock, no logging.

Sources: ``resource.k8s.io/v1 ResourceSlice`` (limits, pool generation), KEP-4381, KEP-5055 (taints).
"""

from __future__ import annotations

from dra_driver.resourceslice.build import build_slices
from dra_driver.resourceslice.devices import HEALTH_TAINT, MAX_FACTS, clean_devices
from dra_driver.resourceslice.plan import Plan, SliceWrite, altered, owner_of, plan, slice_name
from dra_driver.resourceslice.types import (
    GATES,
    DesiredPool,
    PoolAllocator,
    PublishOptions,
    ServerFeatures,
    SliceContent,
)

__all__ = [
    "GATES",
    "HEALTH_TAINT",
    "MAX_FACTS",
    "DesiredPool",
    "Plan",
    "PoolAllocator",
    "PublishOptions",
    "ServerFeatures",
    "SliceContent",
    "SliceWrite",
    "altered",
    "build_slices",
    "clean_devices",
    "owner_of",
    "plan",
    "slice_name",
]
