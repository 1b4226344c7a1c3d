"""DeviceTaintRules (KEP-5055): taints that an admin sets on devices, beside those in the slices."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dra_driver.api.resource import Device, DeviceTaint, DeviceTaintRule, DeviceTaintSelector, ResourceSlice

__all__ = ["concerns", "with_rules"]


def concerns(rule: DeviceTaintRule, slice_: ResourceSlice) -> bool:
    """Return whether the rule may select a device of the slice. A rule without a selector selects none."""
    selector = rule.spec.device_selector
    return (
        selector is not None
        and selector.driver in (None, slice_.spec.driver)
        and selector.pool in (None, slice_.spec.pool.name)
    )


def with_rules(slice_: ResourceSlice, rules: Collection[DeviceTaintRule]) -> ResourceSlice:
    """Return the slice with the taints of the rules on its devices; the same object if no rule selects any.

    Of a selector, driver, pool and device are evaluated. Versions before v1beta2 have further fields; a rule
    that uses them taints more devices than it says, which withholds devices for a while and evicts no pod.
    """
    mine = [r for r in rules if concerns(r, slice_)]
    if not mine:
        return slice_
    devices = tuple(_tainted(d, mine) for d in slice_.spec.devices)
    if all(new is old for new, old in zip(devices, slice_.spec.devices, strict=True)):
        return slice_
    return msgspec.structs.replace(slice_, spec=msgspec.structs.replace(slice_.spec, devices=devices))


def _tainted(device: Device, rules: Collection[DeviceTaintRule]) -> Device:
    added: list[DeviceTaint] = []
    for rule in sorted(rules, key=lambda r: r.metadata.name):
        assert rule.spec.device_selector is not None
        if _selects(rule.spec.device_selector, device) and rule.spec.taint not in added:
            added.append(rule.spec.taint)
    return msgspec.structs.replace(device, taints=(*device.taints, *added)) if added else device


def _selects(selector: DeviceTaintSelector, device: Device) -> bool:
    return selector.device in (None, device.name)
