"""Names of a device that are like those which a claim asks for and the device lacks: typos, as a rule."""

from __future__ import annotations

from dra_driver import cel
from dra_driver.api.resource import Device
from dra_driver.suggestions import did_you_mean, nearest

__all__ = ["attribute_hint", "capacity_hint", "selector_hint"]


def attribute_hint(name: str, device: Device, driver: str) -> str:
    """Return which attribute is like the one that a constraint compares; a bare one is the driver's.

    Names are compared without their domains, which are most of their characters.
    """
    domain, _, bare = name.rpartition("/")
    known: dict[str, list[str]] = {}
    for key in device.attributes:
        of, _, own = key.rpartition("/")
        known.setdefault(own, []).append(f"{of or driver}/{own}")
    meant = bare if bare in known else nearest(bare, known)
    found = sorted(known.get(meant, []), key=lambda full: not full.startswith(f"{domain}/"))
    return f"; did you mean `{found[0]}`?" if found else ""


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
