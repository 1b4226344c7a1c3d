"""Names of a device that are like those which a claim asks for and the device lacks: typos, as a rule."""

from __future__ import annotations

from dra_driver import cel
from dra_driver.api.resource import Device
from dra_driver.suggestions import did_you_mean

__all__ = ["attribute_hint", "capacity_hint", "selector_hint"]


def attribute_hint(name: str, device: Device, driver: str) -> str:
    """Return which attribute is like the one that a constraint compares; a bare one is the driver's."""
    return did_you_mean(name, (key if "/" in key else f"{driver}/{key}" for key in device.attributes))


def capacity_hint(name: str, device: Device) -> str:
    """Return which capacity is like the one that is asked for."""
    return did_you_mean(name, device.capacity)


def selector_hint(references: cel.References | None, view: cel.DeviceView) -> str:
    """Return which name is like the first one that a selector reads and the device lacks."""
    if references is None:
        return ""
    for names, content in ((references.attributes, view.attributes), (references.capacity, view.capacity)):
        for domain, name in names:
            known = content.get(domain, {})
            if name not in known and (hint := did_you_mean(name, known)):
                return hint
    return ""
