"""In which form each device is published: whole, shared, cut into partitions, with which taints.

What claims hold keeps its form. A policy that wants another one waits, the device takes nothing new in the
meantime where that would prolong the wait, and both are reported as pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice
from dra_driver.api.own.partitions import PartitionDevice, partition_devices
from dra_driver.api.resource import (
    CounterSet,
    Device,
    DeviceCounterConsumption,
    DeviceTaint,
)
from dra_driver.api.shared import with_fields
from dra_driver.ownership import PROTECTION_TAINT
from dra_driver.resourceslice import partitioning
from dra_driver.resourceslice.devices import (
    clean_device,
    first_values,
    has_lists,
    health_taints,
    limit_facts,
    pending_taint,
    problem_of_attribute,
)
from dra_driver.resourceslice.partition_types import WHOLE
from dra_driver.resourceslice.policies import DeviceSettings, PoolSettings
from dra_driver.resourceslice.sharing import several_times, shared_form
from dra_driver.resourceslice.together import problem_of_unit
from dra_driver.resourceslice.types import GATES, Pending, ServerFeatures, Usage

__all__ = ["Forms", "PublishedDevice"]


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device to be published.

    Attributes:
        base: with its final attributes and capacity.
        taints: without the one that protects a pool.
        unhealthy: has a taint for its health; such devices come last.
        consumes: counters of a partition, or of a GPU that can be cut.
        type: of a partition, or that it is a GPU that can be cut.
    """

    base: Device
    taints: tuple[DeviceTaint, ...] = ()
    unhealthy: bool = False
    consumes: tuple[DeviceCounterConsumption, ...] = ()
    type: str = WHOLE

    def device(self, *, protected: bool) -> Device:
        """Return the device as it goes into the slice."""
        taints = (PROTECTION_TAINT, *self.taints) if protected else self.taints
        return with_fields(self.base, taints=taints, consumes_counters=self.consumes)


class Forms:
    """Collects the forms of a pool.

    Attributes:
        forms: in no particular order.
        counters: of the GPUs that can be cut.
        missing: feature gate → what could not be published without it.
        pending: what waits for devices in use.
    """

    def __init__(
        self, settings: PoolSettings, usage: Usage, features: ServerFeatures, problems: list[str]
    ) -> None:
        self._settings = settings
        self._usage = usage
        self._features = features
        self._problems = problems
        self.forms: list[PublishedDevice] = []
        self.counters: list[CounterSet] = []
        self.missing: dict[str, str] = {}
        self.pending: list[Pending] = []

    def add(self, found: InventoryDevice, base: Device) -> None:
        """Publish one device of the inventory, in the form that applies to it.

        Args:
            found: as in the inventory.
            base: the same, cleaned.
        """
        settings = self._settings.devices.get(found.name, DeviceSettings())
        base = self._as_kept(self._with_attributes(base, settings))
        partitions = partition_devices(found)
        held = [p for p in partitions if self._in_use(p.name)]
        if settings.hide and not held and not self._in_use(base.name):
            return
        if self._loses(base, held):
            return
        # A condition that leaves room for partitions is none of all of them.
        everywhere = health_taints((h for h in found.health if h.places is None), settings.health)
        sick = health_taints(found.health, settings.health)
        taints = (*settings.taints, *sick)
        if not self._features.taints:
            if self._left_out(base, settings, everywhere):
                return
            taints = ()
        if settings.hide:
            self._wait(settings, "hide", f"device {base.name} is in use and is hidden when it is free")
            taints = self._blocked(taints)
        chosen = self._chosen(partitions, settings)
        kept = [p for p in held if p not in chosen]
        for p in kept:
            self._wait(
                settings, "partitions", f"partition {p.name} is in use and is withdrawn when it is free"
            )
        if (settings.share is not None and not settings.hide) or base.name in self._usage.shared:
            base, taints = self._shared(base, settings, taints, cut=bool(kept))
        self._publish(
            found, base, taints, sick, settings, partitions, {p.name: p for p in (*chosen, *kept)}, kept
        )

    def _loses(self, base: Device, held: Sequence[PartitionDevice]) -> bool:
        """Return whether the server would drop that parts in use leave no room for others: a rollback of it.

        Whole, the device would be given to a second claim, so it is left out until its parts are free.
        """
        lost = {}
        if held and not self._features.counters:
            lost[GATES["counters"]] = "partitions; whole devices are published instead"
        if base.name in self._usage.shared and not self._features.multi_allocation:
            lost[GATES["multi_allocation"]] = "shares; devices are published unshared instead"
        if lost:
            self.missing |= lost
            self._problems.append(f"device {base.name}: left out, parts of it are in use")
        return bool(lost)

    def join(self, other: Forms) -> None:
        """Take over what another one has collected."""
        self.forms += other.forms
        self.counters += other.counters
        self.missing |= other.missing
        self.pending += other.pending
        self._problems += other._problems

    # --- the whole device, and its parts --------------------------------------------------------------------

    def _publish(
        self,
        found: InventoryDevice,
        base: Device,
        taints: tuple[DeviceTaint, ...],
        sick: tuple[DeviceTaint, ...],
        settings: DeviceSettings,
        partitions: Sequence[PartitionDevice],
        wanted: dict[str, PartitionDevice],
        kept: Sequence[PartitionDevice],
    ) -> None:
        counters = self._counter_set(found, partitions, tuple(wanted.values()))
        if counters is None and any(self._in_use(name) for name in wanted):
            # Without counters nothing would keep the whole device from a second claim.
            self._problems.append(f"device {found.name}: left out, parts of it are in use")
            return
        if self._features.taints or not self._left_out(base, DeviceSettings(), sick):
            takes = () if counters is None else (partitioning.taken_whole(counters),)
            self.forms.append(PublishedDevice(base, taints, bool(sick), takes))
        if counters is None:
            return
        self.counters.append(counters)
        withdrawn = {p.name for p in kept}
        ailing = _conditions_of_parts(found, partitions, counters)
        for partition in wanted.values():
            ill = health_taints(ailing(partition), settings.health)
            if not self._features.taints and self._left_out(partition, DeviceSettings(), ill):
                continue
            inventory = InventoryDevice(
                name=partition.name,
                attributes=partitioning.partition_attributes(base, partition.profile),
                capacity=partition.profile.capacity,
            )
            device = self._as_kept(clean_device(inventory, self._problems))
            own = taints
            if ill != sick and self._features.taints:
                own = (*(t for t in taints if t not in sick), *ill)
            blocked = self._blocked(own) if partition.name in withdrawn else own
            takes = (partitioning.taken_by(partition, counters),)
            self.forms.append(PublishedDevice(device, blocked, bool(ill), takes, partition.profile.name))

    def _counter_set(
        self,
        found: InventoryDevice,
        partitions: Sequence[PartitionDevice],
        wanted: Sequence[PartitionDevice],
    ) -> CounterSet | None:
        """Return the counters of a device of which partitions are wanted; None where there can be none."""
        if not wanted:
            return None
        # Of all partitions, so that the set stays the same when a policy lists other profiles.
        counters = partitioning.counter_set(found, partitions)
        if isinstance(counters, str):
            problem = counters
        else:
            taken = [partitioning.taken_by(p, counters) for p in wanted]
            unit = (partitioning.taken_whole(counters), *taken)
            problem = problem_of_unit(counters, unit) if self._features.together else ""
            if not problem:
                return counters
        self._problems.append(f"device {found.name}: no partitions, {problem}")
        return None

    def _chosen(
        self, partitions: Sequence[PartitionDevice], settings: DeviceSettings
    ) -> tuple[PartitionDevice, ...]:
        if settings.partitions is None or settings.hide:
            return ()
        chosen = partitioning.chosen_partitions(partitions, settings.partitions.profiles)
        if chosen and not self._features.counters:
            self.missing[GATES["counters"]] = "partitions; whole devices are published instead"
            return ()
        if chosen and partitions[0].gpu in self._usage.shared:
            self._wait(
                settings, "partitions", f"shares of device {partitions[0].gpu} are in use; it is cut later"
            )
            return ()
        return chosen

    def _shared(
        self, base: Device, settings: DeviceSettings, taints: tuple[DeviceTaint, ...], *, cut: bool
    ) -> tuple[Device, tuple[DeviceTaint, ...]]:
        """Return the device as it is shared, and its taints."""
        name, share = base.name, settings.share
        new = base
        if share is not None and share.shares and not settings.hide:
            if not self._features.multi_allocation:
                self.missing[GATES["multi_allocation"]] = "shares; devices are published unshared instead"
            else:
                new, problem = shared_form(base, share)
                if problem:
                    self._problems.append(f"device {name}: not shared, {problem}")
                new = limit_facts(new, self._problems)
        if name in self._usage.shared:
            return self._still_shared(base, new, settings, taints)
        if new.allow_multiple_allocations and (name in self._usage.whole or cut):
            self._wait(settings, "share", f"device {name} is in use and is shared when it is free")
            return base, taints
        return new, taints

    def _still_shared(
        self, base: Device, new: Device, settings: DeviceSettings, taints: tuple[DeviceTaint, ...]
    ) -> tuple[Device, tuple[DeviceTaint, ...]]:
        """Return a device of which shares are held: the amounts stay until the last one is free."""
        old = self._usage.published.get(base.name)
        if old is not None and not old.allow_multiple_allocations:
            old = None
        same = old is not None and (old.allow_multiple_allocations, old.capacity) == (
            new.allow_multiple_allocations,
            new.capacity,
        )
        if same or (old is None and new.allow_multiple_allocations):
            return new, taints
        self._wait(
            settings, "share", f"shares of device {base.name} are in use; it changes when all are free"
        )
        capacity = old.capacity if old is not None else base.capacity
        kept = several_times(base, capacity)
        return limit_facts(kept, self._problems), self._blocked(taints)

    # --- taints, attributes ---------------------------------------------------------------------------------

    def _left_out(
        self, base: Device | PartitionDevice, settings: DeviceSettings, sick: Sequence[DeviceTaint]
    ) -> bool:
        """Decide whether to leave a device out, as a server without taints needs it to keep claims off."""
        keeping = [t for t in (*sick, *settings.taints) if t.effect != "None"]
        if settings.taints:
            self.missing[GATES["taints"]] = "taints of policies; tainted devices are left out instead"
        if keeping:
            self._problems.append(f"device {base.name}: left out, {keeping[0].value or keeping[0].key}")
        return bool(keeping)

    def _blocked(self, taints: tuple[DeviceTaint, ...]) -> tuple[DeviceTaint, ...]:
        taint = pending_taint()
        return (*taints, taint) if self._features.taints and taint not in taints else taints

    def _with_attributes(self, base: Device, settings: DeviceSettings) -> Device:
        added = dict(base.attributes)
        for name, attribute in sorted(settings.attributes.items()):
            problem = problem_of_attribute(name, attribute)
            if name in base.attributes:
                problem = "the node's own value is kept"
            if problem:
                self._problems.append(f"device {base.name}: attribute {name[:100]!r} of a policy: {problem}")
            else:
                added[name] = attribute
        if len(added) == len(base.attributes):
            return base
        return limit_facts(msgspec.structs.replace(base, attributes=added), self._problems)

    def _as_kept(self, device: Device) -> Device:
        if self._features.lists or not has_lists(device):
            return device
        self.missing[names.LISTS_GATE] = "lists in attributes; only the first value of each is published"
        return first_values(device)

    def _in_use(self, name: str) -> bool:
        return name in self._usage.whole or name in self._usage.shared

    def _wait(self, settings: DeviceSettings, field: str, text: str) -> None:
        self.pending.append(Pending(settings.sources.get(field, ""), text))


def _conditions_of_parts(
    found: InventoryDevice, partitions: Sequence[PartitionDevice], counters: CounterSet
) -> Callable[[PartitionDevice], Iterator[DeviceHealth]]:
    """Return what yields the conditions of a device that concern one of its partitions."""
    taken = [partitioning.taken_by_existing(h.places or (), partitions, counters) for h in found.health]

    def ailing(partition: PartitionDevice) -> Iterator[DeviceHealth]:
        for condition, others in zip(found.health, taken, strict=True):
            if condition.places is None or not partitioning.has_room(partition, others, counters):
                yield condition

    return ailing
