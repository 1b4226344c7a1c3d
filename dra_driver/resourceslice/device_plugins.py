"""Which devices of a node a device plugin hands out: two that hand out one device give it away twice.

A device plugin shows in ``status.capacity`` of its Node. The kubelet counts the plugin's resource there until
five minutes after the plugin has gone, then sets it to 0. ``status.allocatable`` says less: it is 0 as soon
as the plugin restarts or all its devices are unhealthy. What kube-scheduler serves by way of a DeviceClass
(``spec.extendedResourceName``, KEP-5004) is never counted in a Node.

The well-known names are those of the vendors' plugins:

* NVIDIA ``k8s-device-plugin``: ``nvidia.com/gpu``, ``nvidia.com/gpu.shared``, ``nvidia.com/mig-PROFILE``;
* AMD ``k8s-device-plugin``: ``amd.com/gpu``, ``amd.com/gpu_pf``, ``amd.com/gpu_vf``, partitions such
  as ``amd.com/cpx_nps4``;
* Intel ``intel-device-plugins-for-kubernetes``: ``gpu.intel.com/i915``, ``gpu.intel.com/xe``;
* ``k8s-rdma-shared-dev-plugin``: the prefix ``rdma/``; AWS: ``vpc.amazonaws.com/efa``.

A plugin may be configured to use a name of its own. Such a name says nothing about its devices unless a
DeviceClass with that ``extendedResourceName`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.meta import DriverName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device, DeviceClass

__all__ = ["PluginDevices", "counted", "handed_out", "is_well_known", "selected_by"]

# A GPU of ours has one of these types, or none where it was described by hand.
_GPU_TYPES: Final = ("", "gpu", "mig", "vf", "partition")
# Resources that a person is shown; a hostile node may count any number of them.
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A vendor's device plugins: names of resources, and the devices behind them."""

    names: re.Pattern[str]
    whose: str
    vendor: str = ""
    nics: bool = False

    def serves(self, _: DriverName, device: Device) -> bool:
        if self.vendor and _text(device, "vendor") != self.vendor:
            return False
        # A virtual function of a NIC has the type ``vf``, as one of a GPU has.
        nic = "rdmaDevice" in device.attributes or _text(device, "type") == "nic"
        return nic if self.nics else not nic and _text(device, "type") in _GPU_TYPES


_VENDORS: Final = (
    _Vendor(re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)"), "NVIDIA GPUs", "nvidia"),
    _Vendor(re.compile(r"amd\.com/(gpu|gpu_[pv]f|[sdtqc]px_nps[0-9]+)"), "AMD GPUs", "amd"),
    # The monitoring resource lets a pod look at all GPUs and takes none. The other three are amounts that
    # Node Feature Discovery writes beside i915 and xe; they stay when the plugin has gone.
    _Vendor(
        re.compile(r"gpu\.intel\.com/(?!(.+_)?monitoring$|millicores$|memory\.max$|tiles$).+"),
        "Intel GPUs",
        "intel",
    ),
    _Vendor(re.compile(r"rdma/.+"), "RDMA NICs", nics=True),
    _Vendor(re.compile(r"vpc\.amazonaws\.com/efa"), "EFA NICs", "amazon", nics=True),
)


@dataclass(frozen=True, slots=True)
class PluginDevices:
    """Devices of a node that a device plugin hands out.

    Attributes:
        resources: by which the plugin does so, with the amounts in ``status.capacity``; 0: lately gone.
        whose: which devices, for people: ``NVIDIA GPUs``.
        serves: whether a device, as it would be published, is one of them.
    """

    resources: Mapping[str, Quantity]
    whose: str
    serves: Callable[[DriverName, Device], bool]

    @property
    def leaving(self) -> bool:
        """Whether the node counts none of the resources any more."""
        return not any(self.resources.values())

    @property
    def text(self) -> str:
        """The resources for people: ``8 nvidia.com/gpu``."""
        names = sorted(self.resources)
        shown = [n if self.leaving else f"{self.resources[n]} {n}" for n in names[:_SHOWN]]
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return ", ".join((*shown, *more))


def is_well_known(resource: str) -> bool:
    """Whether a device plugin of a vendor uses this name."""
    return _vendor_of(resource) is not None


def counted(capacity: Mapping[str, Quantity], served: Collection[str] = ()) -> dict[str, Quantity]:
    """Return what device plugins count on a node.

    Args:
        capacity: ``status.capacity`` of the Node.
        served: other names than the well-known ones that matter: those that DeviceClasses serve.
    """
    return {
        name: amount
        for name, amount in capacity.items()
        if amount.nano > 0 and (name in served or is_well_known(name))
    }


def handed_out(
    resources: Mapping[str, Quantity], classes: Iterable[DeviceClass] = ()
) -> tuple[PluginDevices, ...]:
    """Return whose devices the resources of a node stand for.

    Args:
        resources: what device plugins count, with an amount of 0 for what counts as if it were there.
        classes: DeviceClasses; those with an ``extendedResourceName`` say what other names stand for.
    """
    found = []
    for vendor in _VENDORS:
        mine = {name: amount for name, amount in resources.items() if _vendor_of(name) is vendor}
        if mine:
            found.append(PluginDevices(mine, vendor.whose, vendor.serves))
    for class_ in sorted(classes, key=lambda c: c.metadata.name):
        name = class_.spec.extended_resource_name or ""
        if name in resources and not is_well_known(name):
            whose = f"devices of DeviceClass {class_.metadata.name}, which serves that resource too,"
            found.append(PluginDevices({name: resources[name]}, whose, _selector(class_)))
    return tuple(found)


def selected_by(class_: DeviceClass, driver: DriverName, device: Device) -> bool:
    """Whether all selectors of the class accept the device; one that fails selects nothing."""
    # Imported here: a node agent whose slices the controller publishes never needs these 3 MiB.
    from dra_driver import cel

    view = cel.DeviceView(driver, device)
    try:
        return all(
            s.cel is None or cel.compile_selector(s.cel.expression).matches(view)
            for s in class_.spec.selectors
        )
    except (cel.CelCompileError, cel.CelRuntimeError):
        return False


def _selector(class_: DeviceClass) -> Callable[[DriverName, Device], bool]:
    return lambda driver, device: selected_by(class_, driver, device)


def _vendor_of(resource: str) -> _Vendor | None:
    if "/" not in resource:
        return None
    return next((v for v in _VENDORS if v.names.fullmatch(resource)), None)


def _text(device: Device, name: str) -> str:
    attribute = device.attributes.get(name)
    return (attribute.string_value or "") if attribute is not None else ""
