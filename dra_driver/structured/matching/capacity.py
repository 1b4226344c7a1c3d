"""What a request consumes of a device's capacity (KEP-5075, ``requestPolicy``).

Quantities are exact; a step rounds up on whole numbers, as the API defines it (``Quantity.Value()``).
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity

__all__ = ["Amounts", "consumption", "fits", "shortfall"]

Amounts = Mapping[str, Quantity]
_NOTHING: Amounts = {}


def consumption(requested: Amounts, capacity: Mapping[str, DeviceCapacity]) -> dict[str, Quantity] | None:
    """Return what the request consumes of each capacity of the device, after its request policy.

    Args:
        requested: amounts that the request names.
        capacity: of the device; of a capacity that is not named, its policy's default or all of it is
            consumed.

    Returns:
        None if the device cannot serve it: a requested capacity is missing, or the policy does not allow the
        amount.
    """
    if not requested.keys() <= capacity.keys():
        return None
    taken: dict[str, Quantity] = {}
    for name, entry in capacity.items():
        amount = _rounded(requested.get(name), entry)
        if entry.request_policy is not None and not _allowed(amount, entry.request_policy):
            return None
        taken[name] = amount
    return taken


def fits(
    taken: Amounts, capacity: Mapping[str, DeviceCapacity], used: Amounts, also_used: Amounts = _NOTHING
) -> bool:
    """Return whether ``taken`` is left beside what is used already."""
    return shortfall(taken, capacity, used, also_used) is None


def shortfall(
    taken: Amounts, capacity: Mapping[str, DeviceCapacity], used: Amounts, also_used: Amounts = _NOTHING
) -> str | None:
    """Return the first capacity of which too little is left, or None."""
    for name, amount in taken.items():
        total = amount
        if name in used:
            total = total + used[name]
        if name in also_used:
            total = total + also_used[name]
        if total > capacity[name].value:
            return name
    return None


def _rounded(requested: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    policy = capacity.request_policy
    if requested is None:
        return capacity.value if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.valid_range is not None:
        return _rounded_to_range(requested, policy.valid_range)
    if policy.valid_values:
        return next((v for v in policy.valid_values if requested <= v), requested)
    return requested


def _rounded_to_range(requested: Quantity, valid: CapacityRequestPolicyRange) -> Quantity:
    if requested < valid.min:
        return valid.min
    if valid.step is None or valid.step.value() == 0:
        return requested
    low, step = valid.min.value(), valid.step.value()
    steps = -(-(requested.value() - low) // step)
    return Quantity.of(low + step * steps, Format.BINARY_SI)


def _allowed(amount: Quantity, policy: CapacityRequestPolicy) -> bool:
    if policy.default is not None and amount == policy.default:
        return True
    if policy.valid_range is not None:
        return policy.valid_range.max is None or amount <= policy.valid_range.max
    if policy.valid_values:
        return amount in policy.valid_values
    return True
