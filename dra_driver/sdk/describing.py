"""Devices described in the words of the common schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_driver.api.own.inventory import (
    DeviceHealth,
    DeviceLink,
    InventoryDevice,
    PartitionPlacement,
    PartitionProfile,
)
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.problems import Problem

__all__ = ["Facts", "describe_device", "partition_profile"]

Facts = schema.Facts


def describe_device(
    name: str,
    facts: Facts,
    capacity: Mapping[str, int | None] | None = None,
    *,
    own: Facts | None = None,
    own_capacity: Mapping[str, int | None] | None = None,
    health: Sequence[DeviceHealth] = (),
    links: Sequence[DeviceLink] = (),
    note: list[Problem] | None = None,
    partitions: Sequence[PartitionProfile] = (),
) -> InventoryDevice:
    """Return a device for the inventory. A fact of None is unknown, and absent from the result.

    Args:
        name: a DNS label that stays the same while the device stays where it is (``device_name``).
        facts: attributes of the common schema (docs/attributes.md).
        capacity: capacities of the common schema, whole numbers: bytes for ``memory``.
        own: attributes that the schema does not have; text, whole number or truth, or several of one type: a
            list, of which an API server that keeps no lists gets the first value.
        own_capacity: capacities that the schema does not have.
        health: why the device should not be used.
        links: direct connections to other devices of the node.
        note: gets what the API would refuse (text over 64 bytes, numbers beyond 64 bits); it is left out.
        partitions: what the device can be cut into (``partition_profile``, ``PartitionMaker``).

    Raises:
        KeyError: ``facts`` or ``capacity`` have a name that is not in the schema, or ``own`` has one that is.
    """
    problems: list[Problem] = [] if note is None else note
    attributes, amounts = _described(name, facts, capacity or {}, own or {}, own_capacity or {}, problems)
    return InventoryDevice(
        name=name,
        attributes=attributes,
        capacity=amounts,
        partitions=tuple(partitions),
        health=tuple(health),
        links=tuple(links),
    )


def partition_profile(
    name: str,
    profile_id: int,
    starts: Sequence[int],
    size: int,
    facts: Facts,
    capacity: Mapping[str, int | None] | None = None,
    *,
    own: Facts | None = None,
    own_capacity: Mapping[str, int | None] | None = None,
    note: list[Problem] | None = None,
) -> PartitionProfile:
    """Return a kind of partition that a device can be cut into.

    A device has slices, numbered from 0, and two partitions go together where they have no slice in common:
    that is what is published as counters. A partition has the attributes of its device, but for those that
    are given here; as its device it is called ``<device>-<type>-<name>-<start>``.

    Args:
        name: of the profile.
        profile_id: by which the backend knows it.
        starts: first slices at which it can be.
        size: slices that it takes.
        facts: attributes of the common schema; ``type`` sets partitions apart from whole devices, a word in
            small letters.
        capacity: capacities of the common schema.
        own: attributes that the schema does not have.
        own_capacity: capacities that the schema does not have.
        note: as for ``describe_device``.

    Raises:
        KeyError: as ``describe_device``.
    """
    problems: list[Problem] = [] if note is None else note
    attributes, amounts = _described(name, facts, capacity or {}, own or {}, own_capacity or {}, problems)
    return PartitionProfile(
        name=name,
        profile_id=profile_id,
        placements=tuple(PartitionPlacement(start=start, size=size) for start in starts),
        attributes=attributes,
        capacity=amounts,
    )


def _described(
    name: str,
    facts: Facts,
    capacity: Mapping[str, int | None],
    own: Facts,
    own_capacity: Mapping[str, int | None],
    problems: list[Problem],
) -> tuple[dict[str, DeviceAttribute], dict[str, DeviceCapacity]]:
    common = schema.build(facts, capacity)
    known = {spec.name for spec in (*schema.ATTRIBUTES, *schema.CAPACITIES)}
    taken = sorted(known & {*own, *own_capacity})
    if taken:
        raise KeyError(f"in the schema, so not a device's own: {', '.join(taken)}")
    problems += [Problem(name, subject, why) for subject, why in common.rejected]
    attributes = dict(common.attributes)
    for key, value in own.items():
        if value is None:
            continue
        attribute = _own(value)
        if isinstance(attribute, str):
            problems.append(Problem(name, key, attribute))
        else:
            attributes[key] = attribute
    amounts = dict(common.capacity)
    for key, amount in own_capacity.items():
        if amount is not None:
            amounts[key] = DeviceCapacity(value=Quantity.of(amount, Format.DECIMAL_SI))
    return attributes, amounts


def _own(value: schema.Value | Sequence[schema.Value]) -> DeviceAttribute | str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return schema.typed_list(_kind(value[0]), value) if value else "a list without values"
    return schema.typed_attribute(_kind(value), value)


def _kind(value: schema.Value) -> schema.Kind:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
