"""``build_slices``: inventory + policies + health + what is in use → the complete set of slices of a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import PUBLISH, DevicePolicy
from dra_driver.api.resource import CounterSet, Device
from dra_driver.ownership import PoolAllocator
from dra_driver.resourceslice.device_plugins import PluginDevices
from dra_driver.resourceslice.devices import clean_devices, has_lists
from dra_driver.resourceslice.other_drivers import OtherDriver
from dra_driver.resourceslice.partition_types import declared, with_types
from dra_driver.resourceslice.policies import PolicyOutcome, PoolSettings, merge_policies
from dra_driver.resourceslice.published import Forms, PublishedDevice
from dra_driver.resourceslice.together import MAX_DEVICES_WITH_TAINTS, pack
from dra_driver.resourceslice.types import (
    DesiredPool,
    Pending,
    PublishOptions,
    ServerFeatures,
    SliceContent,
    Usage,
    Withheld,
)

__all__ = ["build_slices"]

# Limits of resource.k8s.io/v1: devices in a slice; the smaller one as soon as any of them has taints,
# consumes counters or has list-valued attributes; counter sets in a slice, which has no devices then.
MAX_DEVICES: Final = 128
MAX_COUNTER_SETS: Final = 8


def build_slices(
    inventory: DeviceInventory,
    policies: Iterable[DevicePolicy] = (),
    usage: Usage | None = None,
    *,
    options: PublishOptions | None = None,
    features: ServerFeatures | None = None,
    plugins: Sequence[PluginDevices] = (),
    others: Sequence[OtherDriver] = (),
) -> DesiredPool:
    """Return the slices that should exist for an inventory. Health is in the inventory.

    Devices come smallest memory first and healthy before unhealthy, because kube-scheduler takes the first
    that fits: a claim for 32Gi then gets 40Gi before 80Gi, and a partition before a whole GPU. Devices of one
    NVLink group stand together. Counters come last, in slices of their own; where the server wants them
    beside the devices that consume them, each slice has devices, smallest first, with all their counters.

    What the server would drop is not published in another meaning: without taints, unhealthy devices are left
    out and the pool cannot be allocated by the controller, unless it is open; without counters there are
    whole devices only; without multiple allocations nothing is shared; without lists an attribute has its
    first value. The types of partitions are an attribute only where the server can count by it.

    What a device plugin of the node hands out, or another driver publishes, is left out whole and in parts,
    unless a policy publishes it all the same. Claims that hold such devices keep them; nothing new is
    allocated from them.

    Args:
        inventory: what the node's plugin found; not trusted.
        policies: those that match the node.
        usage: what claims hold; devices in use keep what matters to those who hold them.
        options: how the pool is published; if None, the defaults.
        features: what the API server keeps; if None, every field.
        plugins: what device plugins hand out on the node.
        others: what other drivers have of the pool.
    """
    options = options or PublishOptions()
    features = features or ServerFeatures()
    devices, problems = clean_devices(inventory.spec.devices)
    settings = merge_policies(policies, inventory.spec.driver, devices)
    wanted = PoolAllocator(settings.allocator) if settings.allocator else options.allocator
    allocator = options.forced or wanted
    if not features.taints and not options.open:
        allocator = PoolAllocator.SCHEDULER
    forms = Forms(settings, usage or Usage(), features, problems)
    found = {d.name: d for d in inventory.spec.devices}
    withheld: Counter[int] = Counter()
    elsewhere: dict[OtherDriver, set[str]] = {}
    for device in devices:
        made = Forms(settings, usage or Usage(), features, [])
        made.add(found[device.name], device)
        taken = _handed_out(plugins, inventory.spec.driver, device, made, settings)
        rivals = _had_by(others, device, made, settings)
        for other in rivals:
            elsewhere.setdefault(other, set()).add(device.name)
        if taken is not None:
            withheld[taken] += 1
        elif not rivals:
            forms.join(made)
    if inventory.spec.truncated:
        problems.append(f"{inventory.spec.truncated} devices did not fit into the inventory")
    protected = allocator is PoolAllocator.CONTROLLER and not options.open
    ordered = sorted(forms.forms, key=_preference)
    published = [form.device(protected=protected) for form in ordered]
    attribute: str | None = None
    if features.partition_types:
        types = [form.type for form in ordered]
        published, attribute = with_types(published, types, inventory.spec.driver)
    slices = _split(published, forms.counters, together=features.together)
    return DesiredPool(
        driver=inventory.spec.driver,
        pool=PoolName(inventory.spec.node_name),
        node_name=inventory.spec.node_name,
        allocator=allocator,
        slices=declared(slices, attribute),
        problems=tuple(problems),
        wanted=wanted,
        strategy=settings.strategy,
        node_policy=settings.node_policy,
        missing=forms.missing,
        pending=tuple(sorted(set(forms.pending))),
        outcomes=_outcomes(settings, forms.pending),
        sources=settings.sources,
        partitioned=bool(forms.counters),
        open=options.open and allocator is PoolAllocator.CONTROLLER,
        withheld=tuple(Withheld(plugins[i], withheld[i]) for i in sorted(withheld)),
        other_drivers=tuple(replace(o, devices=frozenset(elsewhere[o])) for o in others if o in elsewhere),
    )


def _handed_out(
    plugins: Sequence[PluginDevices],
    driver: DriverName,
    device: Device,
    made: Forms,
    settings: PoolSettings,
) -> int | None:
    """Return the index of the plugin that hands out the device, or a part of it that would be published."""
    of_device = settings.devices.get(device.name)
    if not made.forms or (of_device is not None and of_device.beside_device_plugin == PUBLISH):
        return None
    candidates = (device, *(form.base for form in made.forms))
    return next((i for i, p in enumerate(plugins) if any(p.serves(driver, c) for c in candidates)), None)


def _had_by(
    others: Sequence[OtherDriver], device: Device, made: Forms, settings: PoolSettings
) -> tuple[OtherDriver, ...]:
    """Return the other drivers that have the device, of which something would be published."""
    of_device = settings.devices.get(device.name)
    if not made.forms or (of_device is not None and of_device.beside_other_driver == PUBLISH):
        return ()
    return tuple(other for other in others if device.name in other.devices)


def _preference(form: PublishedDevice) -> tuple[bool, int, str, str]:
    capacity = form.base.capacity.get("memory")
    group = form.base.attributes.get("nvlinkGroup")
    return (
        form.unhealthy,
        capacity.value.nano if capacity is not None else 0,
        (group.string_value or "") if group is not None else "",
        form.base.name,
    )


def _outcomes(settings: PoolSettings, pending: Sequence[Pending]) -> dict[str, PolicyOutcome]:
    result = dict(settings.outcomes)
    for name in {p.policy for p in pending} & result.keys():
        old = result[name]
        texts = tuple(sorted({p.text for p in pending if p.policy == name}))
        result[name] = PolicyOutcome(old.devices, old.overridden, old.problems, texts)
    return result


def _split(devices: list[Device], counters: list[CounterSet], *, together: bool) -> tuple[SliceContent, ...]:
    limited = any(d.taints or d.consumes_counters or has_lists(d) for d in devices)
    size = MAX_DEVICES_WITH_TAINTS if limited else MAX_DEVICES
    sets = sorted(counters, key=lambda c: c.name)
    if together and sets:
        return tuple(pack(devices, sets))
    # A pool without devices still has one slice: none at all would read as "not published yet".
    slices = [
        SliceContent(devices=tuple(devices[i : i + size])) for i in range(0, max(len(devices), 1), size)
    ]
    slices += [
        SliceContent(shared_counters=tuple(sets[i : i + MAX_COUNTER_SETS]))
        for i in range(0, len(sets), MAX_COUNTER_SETS)
    ]
    return tuple(slices)
