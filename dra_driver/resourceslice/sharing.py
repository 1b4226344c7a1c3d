"""A device as one that several claims share (KEP-5075: allowMultipleAllocations and request policies)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dra_driver.api import names
from dra_driver.api.own.policy import SharePolicy
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Device,
    DeviceCapacity,
)

__all__ = ["SHARES", "several_times", "shared_form"]

# Capacity that limits the number of shares: each takes one.
SHARES: Final = "shares"
_ONE: Final = Quantity.of(1)
_NONE: Final = Quantity.of(0)
_MIB: Final = 1 << 20


def shared_form(device: Device, policy: SharePolicy) -> tuple[Device, str]:
    """Return the device with ``allowMultipleAllocations``, or unchanged with the reason why not.

    Memory is given out in ``min`` plus multiples of ``step``. Without a step, amounts are whole MiB. A
    request without an amount gets ``default``: of the policy, or an equal part where the number of shares is
    limited, or the smallest share. Other capacities belong to all shares together, so a share takes none of
    them unless it asks.
    """
    memory = device.capacity.get("memory")
    if memory is None:
        return device, "it has no capacity named memory"
    total = memory.value.value() * max(policy.over_commit_percent, 100) // 100
    wanted = policy.memory
    step = wanted.step.value() if wanted.step is not None else _MIB
    low = wanted.min.value() if wanted.min is not None else step
    if step <= 0 or low <= 0 or low + step > total:
        return device, f"shares of {low} bytes in steps of {step} do not fit into {total} bytes of memory"
    high = low + (total - low) // step * step
    if wanted.default is not None:
        default = low + max(0, -(-(wanted.default.value() - low) // step)) * step
    elif policy.max_shares:
        default = low + max(0, total // policy.max_shares - low) // step * step
    else:
        default = low
    if default > high:
        return device, f"the default share of {default} bytes is more than the device has"
    capacity = {
        name: DeviceCapacity(value=c.value, request_policy=CapacityRequestPolicy(default=_NONE))
        for name, c in device.capacity.items()
    }
    capacity["memory"] = DeviceCapacity(
        value=_bytes(total) if total != memory.value.value() else memory.value,
        request_policy=CapacityRequestPolicy(
            default=_bytes(default),
            valid_range=CapacityRequestPolicyRange(min=_bytes(low), max=_bytes(high), step=_bytes(step)),
        ),
    )
    if policy.max_shares:
        capacity[SHARES] = DeviceCapacity(
            value=Quantity.of(policy.max_shares),
            request_policy=CapacityRequestPolicy(default=_ONE, valid_values=(_ONE,)),
        )
    return several_times(device, capacity), ""


def several_times(device: Device, capacity: Mapping[str, DeviceCapacity]) -> Device:
    """Return the device as one that several claims hold at once, so that none has all of its hardware."""
    attributes = {n: a for n, a in device.attributes.items() if n != names.PASSTHROUGH}
    return msgspec.structs.replace(
        device, attributes=attributes, capacity=capacity, allow_multiple_allocations=True
    )


def _bytes(amount: int) -> Quantity:
    return Quantity.of(amount, Format.BINARY_SI)
