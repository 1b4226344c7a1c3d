"""The DeviceClasses that the chart installs, for manifests that are read without a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.api.resource import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector

__all__ = ["device_classes", "missing_classes"]

_PARTS: Final = ("mig", "partition", "vf")
_VENDORS: Final = ("nvidia", "amd", "intel")


def device_classes(driver: str = DEFAULT_DRIVER_NAME) -> tuple[DeviceClass, ...]:
    """Return the classes of GPUs and NICs, as far as they only select devices."""
    attributes, nics = (f'device.attributes["{name}"]' for name in (driver, RDMA_DRIVER_NAME))
    whole = f'{attributes}.type == "gpu"'

    def of_gpus(kind: str, condition: str) -> DeviceClass:
        return _class(f"{kind}.{driver}" if kind else driver, driver, condition)

    return (
        of_gpus("", whole),
        *(of_gpus(kind, f'{attributes}.type == "{kind}"') for kind in _PARTS),
        *(of_gpus(vendor, f'{whole} && {attributes}.vendor == "{vendor}"') for vendor in _VENDORS),
        of_gpus("vfio", f"{whole} && {attributes}.?passthrough.orValue(false)"),
        _class(RDMA_DRIVER_NAME, RDMA_DRIVER_NAME, f'{nics}.type in ["nic", "vf"]'),
    )


def missing_classes(there: Collection[DeviceClass]) -> list[DeviceClass]:
    """Return the classes of the driver that are not among some others."""
    names = {c.metadata.name for c in there}
    return [c for c in device_classes() if c.metadata.name not in names]


def _class(name: str, driver: str, condition: str) -> DeviceClass:
    expression = f'device.driver == "{driver}" && {condition}'
    selector = DeviceSelector(cel=CelSelector(expression=expression))
    return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(selectors=(selector,)))
