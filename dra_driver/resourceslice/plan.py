"""``plan_slices``: from the slices that exist to those that should.

Readers (kube-scheduler, our allocator) take the slices of a pool's highest generation, and only if there are
exactly ``resourceSliceCount`` of them. Hence:

* one slice differs and the number stays: it is written in place, with the same generation;
* anything else: every slice is written with a new generation. Until the last one is there, the pool counts as
  incomplete, so no reader sees a mix;
* slices that are no longer wanted have an older generation by then, which no reader uses; they go last.

Names are deterministic, other than those of Kubernetes' own slice controller (``generateName``): a controller
that was killed between creating a slice and noting it meets its own slice again and not a second one, and
``status.publication.slices`` can name slices before their answers are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dra_driver.api.meta import ObjectMeta, OwnerReference
from dra_driver.api.names import ALLOCATOR_LABEL, COUNTERS_ANNOTATION
from dra_driver.api.resource import Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.api.shared import with_fields
from dra_driver.ownership import OPEN_POOL, is_marked_open, is_owned_by, slice_name
from dra_driver.resourceslice.types import DesiredPool

__all__ = ["MAX_GENERATION", "SlicePlan", "SliceWrite", "altered", "plan_slices"]

MAX_GENERATION: Final = 2**63 - 1
"""The API server takes no larger one. Only a node that lies gets there, and stays there with its own pool."""

_SPEC_FIELDS: Final = tuple(f for f in ResourceSliceSpec.__struct_fields__ if f not in ("devices", "newer"))
_DEVICE_FIELDS: Final = tuple(f for f in Device.__struct_fields__ if f not in ("taints", "newer"))


@dataclass(frozen=True, slots=True)
class SliceWrite:
    """A slice as it should be stored.

    Attributes:
        slice: complete; an update carries the resourceVersion and uid of the slice that it replaces.
        replaces: None for a slice that is to be created.
    """

    slice: ResourceSlice
    replaces: ResourceSlice | None = None


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Steps, to be taken in the order creates, updates, deletes.

    Attributes:
        creates: slices that do not exist.
        updates: slices whose content changes.
        deletes: slices that are not wanted; delete them only after they are out of the record.
        generation: pool generation when all is done.
        names: of all slices of the pool when all is done, in order.
    """

    creates: tuple[SliceWrite, ...]
    updates: tuple[SliceWrite, ...]
    deletes: tuple[ResourceSlice, ...]
    generation: int
    names: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not (self.creates or self.updates or self.deletes)


def plan_slices(
    existing: Iterable[ResourceSlice],
    desired: DesiredPool,
    owner: OwnerReference,
    *,
    least_generation: int = 1,
    labels: Mapping[str, str] | None = None,
) -> SlicePlan:
    """Return the steps from the slices that exist to those that should.

    Args:
        existing: every slice of the driver with this pool's name, whoever made it.
        desired: from ``build_slices``.
        owner: the Node.
        least_generation: a new generation is at least this one: the one noted before, plus one.
        labels: for slices that are created.
    """
    there = {s.metadata.name: s for s in existing}
    names = tuple(slice_name(desired.node_name, desired.driver, i) for i in range(len(desired.slices)))
    generation = max((s.spec.pool.generation for s in there.values()), default=0)
    present = [there.get(name) for name in names]
    stale = [s for name, s in sorted(there.items()) if name not in names]

    same = _writes(desired, names, present, generation, owner, labels)
    in_place = (
        all(p is not None and p.spec.pool.generation == generation for p in present)
        and all(s.spec.pool.generation < generation for s in stale)
        and len(same) <= 1
    )
    if in_place:
        writes = same
    else:
        generation = min(max(generation + 1, least_generation), MAX_GENERATION)
        writes = _writes(desired, names, present, generation, owner, labels)
    return SlicePlan(
        creates=tuple(w for w in writes if w.replaces is None),
        updates=tuple(w for w in writes if w.replaces is not None),
        deletes=tuple(stale),
        generation=generation,
        names=names,
    )


def _writes(
    desired: DesiredPool,
    names: Sequence[str],
    present: Sequence[ResourceSlice | None],
    generation: int,
    owner: OwnerReference,
    labels: Mapping[str, str] | None,
) -> list[SliceWrite]:
    """Return the slices that are not as they should be with this generation."""
    pool = ResourcePool(name=desired.pool, generation=generation, resource_slice_count=len(names))
    writes: list[SliceWrite] = []
    for name, content, old in zip(names, desired.slices, present, strict=True):
        spec = ResourceSliceSpec(
            driver=desired.driver,
            pool=pool,
            node_name=desired.node_name,
            devices=_with_times(content.devices, old),
            shared_counters=content.shared_counters,
            partition_type_attribute=content.partition_type_attribute,
        )
        if old is None:
            meta = ObjectMeta(
                name=name,
                labels=_labels(labels, is_open=desired.open),
                owner_references=(owner,),
            )
            writes.append(SliceWrite(ResourceSlice(metadata=meta, spec=spec)))
        elif (
            altered(spec, old.spec)
            or not is_owned_by(old, owner)
            or old.withholds_counters
            or is_marked_open(old) is not desired.open
        ):
            others = tuple(o for o in old.metadata.owner_references or () if not o.controller)
            meta = msgspec.structs.replace(
                old.metadata,
                labels=_labels(old.metadata.labels, is_open=desired.open),
                annotations=_without_counters(old.metadata.annotations),
                owner_references=(*others, owner),
            )
            writes.append(SliceWrite(ResourceSlice(metadata=meta, spec=spec), old))
    return writes


def _labels(old: Mapping[str, str] | None, *, is_open: bool) -> Mapping[str, str] | None:
    """Return the labels of a slice, with or without the one of an open pool."""
    others = {key: value for key, value in (old or {}).items() if key != ALLOCATOR_LABEL}
    return {**others, **OPEN_POOL} if is_open else others or None


def _without_counters(old: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the annotations of a slice without the one in which an earlier version stored its counters."""
    return {key: value for key, value in (old or {}).items() if key != COUNTERS_ANNOTATION} or None


def _with_times(devices: tuple[Device, ...], old: ResourceSlice | None) -> tuple[Device, ...]:
    """Return the devices with the times at which their taints were added: eviction counts from them."""
    if old is None:
        return devices
    times = {(d.name, t.key, t.value, t.effect): t.time_added for d in old.spec.devices for t in d.taints}
    result = []
    for device in devices:
        taints = tuple(
            msgspec.structs.replace(t, time_added=times.get((device.name, t.key, t.value, t.effect)))
            if t.time_added is None
            else t
            for t in device.taints
        )
        result.append(with_fields(device, taints=taints) if taints else device)
    return tuple(result)


def altered(sent: ResourceSliceSpec, stored: ResourceSliceSpec) -> bool:
    """Whether the server holds something else than we mean (it drops fields of disabled gates in silence).

    The time of a taint that was sent without one is the server's to set, and so is a field that this version
    does not know: it would be written again and again otherwise.
    """
    return (
        len(sent.devices) != len(stored.devices)
        or not all(map(_is_same_device, sent.devices, stored.devices))
        or any(getattr(sent, name) != getattr(stored, name) for name in _SPEC_FIELDS)
    )


def _is_same_device(sent: Device, stored: Device) -> bool:
    return (
        len(sent.taints) == len(stored.taints)
        and all(map(_is_same_taint, sent.taints, stored.taints))
        and all(getattr(sent, name) == getattr(stored, name) for name in _DEVICE_FIELDS)
    )


def _is_same_taint(sent: DeviceTaint, stored: DeviceTaint) -> bool:
    same = (sent.key, sent.value, sent.effect) == (stored.key, stored.value, stored.effect)
    return same and sent.time_added in (None, stored.time_added)
