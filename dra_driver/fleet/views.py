"""One pool as people see it: its devices, each in one state, with the claims that hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import CLAIM_GONE_IN_USE
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import Device, DeviceAttribute, ResourceClaim, ResourceSlice
from dra_driver.ownership import AGENT_CONDITION, PoolID, newest_generation, shown_agent_state
from dra_driver.resourceclaim import consumer_names
from dra_driver.resourceslice import HEALTH_TAINT

__all__ = ["SEVERITIES", "STATES", "DeviceView", "Holder", "PoolView", "holders_of", "pool_view"]

STATES: Final = ("unhealthy", "shared", "allocated", "blocked", "free")
"""States of devices; a device is in the first one that applies. It is ``blocked`` if too little of its GPU is
left for it, because other partitions of the GPU, or the whole of it, are allocated."""
SEVERITIES: Final = ("info", "degraded", "failed")
"""Severities of what is wrong with a device, the worst last."""

# Of devices that stay with claims that are gone, those that are named.
_MOST_KEPT: Final = 4


class Holder(msgspec.Struct, frozen=True, rename="camel"):
    """A claim to which the device, or a share of it, is allocated.

    Attributes:
        claim: ``namespace/name``.
        request: name of the claim's request, with the subrequest that was chosen.
        pods: names of the pods that the claim is reserved for; of PodGroups, ``podgroup:NAME``.
        admin: whether it is admin access, which takes nothing from other claims.
        share: capacity → amount that is allocated to the share; empty if the whole device is allocated.
        shared: whether the allocation is a share of the device.
    """

    claim: str
    request: str
    pods: tuple[str, ...] = ()
    admin: bool = False
    share: Mapping[str, str] = msgspec.field(default_factory=dict)
    shared: bool = False


class DeviceView(msgspec.Struct, frozen=True, rename="camel"):
    """One device.

    Attributes:
        model: attribute ``model``; ``-`` if it is not known.
        type: attribute ``type``: gpu, vf, partition, nic …
        memory: capacity ``memory`` as a quantity; empty if it is not known.
        state: one of ``STATES``.
        problems: what is wrong with it, for people.
        severity: the worst of its conditions (``info``, ``degraded``, ``failed``); ``tainted`` where only a
            taint says that it is not healthy; empty if nothing is known to be wrong.
        activity: ``busy`` or ``idle``, by what runs on it; empty if its node does not report it.
    """

    name: str
    model: str
    type: str
    memory: str
    state: str
    holders: tuple[Holder, ...] = ()
    problems: tuple[str, ...] = ()
    severity: str = ""
    activity: str = ""


class PoolView(msgspec.Struct, frozen=True, rename="camel"):
    """The devices of a pool's newest generation.

    Attributes:
        node: Node that the devices are on; the pool's name if they are not tied to one.
        notes: conditions of the pool's publication that are not as they should be, and devices that stay with
            claims that are gone.
    """

    driver: str
    pool: str
    node: str
    devices: tuple[DeviceView, ...] = ()
    notes: tuple[str, ...] = ()

    def states(self) -> Counter[str]:
        """Return how many devices are in each state."""
        return Counter(d.state for d in self.devices)


def holders_of(claim: ResourceClaim) -> Iterator[tuple[PoolID, str, Holder]]:
    """Yield pool, device and holder of each device that is allocated to the claim."""
    if claim.status.allocation is None:
        return
    pods = tuple(sorted(consumer_names(claim)))
    for r in claim.status.allocation.devices.results:
        holder = Holder(
            claim=str(ObjectKey(claim.metadata.namespace, claim.metadata.name)),
            request=r.request,
            pods=pods,
            admin=bool(r.admin_access),
            share={name: str(amount) for name, amount in r.consumed_capacity.items()},
            shared=r.share_id is not None,
        )
        yield PoolID(r.driver, r.pool), r.device, holder


def pool_view(
    key: PoolID,
    slices: Iterable[ResourceSlice],
    holders: Mapping[str, Sequence[Holder]],
    inventory: DeviceInventory | None = None,
) -> PoolView | None:
    """Return the view of a pool; None if it has neither slices nor an inventory.

    Args:
        key: the pool.
        slices: ResourceSlices of the pool, of any generation.
        holders: device → its holders.
        inventory: the DeviceInventory that the slices were made of; None for pools of others.
    """
    found = tuple(sorted(newest_generation(slices), key=lambda s: s.metadata.name))
    if not found and inventory is None:
        return None
    node = next((s.spec.node_name for s in found if s.spec.node_name), None) or (
        inventory.spec.node_name if inventory is not None else key.pool
    )
    devices = [d for s in found for d in s.spec.devices]
    left = _left(found, devices, holders)
    health = {d.name: d.health for d in inventory.spec.devices} if inventory is not None else {}
    activity = _activity(inventory)
    views = []
    for d in devices:
        mine = tuple(sorted(holders.get(d.name, ()), key=lambda h: (h.claim, h.request)))
        said = [f"{h.reason}: {h.message}" if h.message else h.reason for h in health.get(d.name, ())]
        taints = [f"{t.key}={t.value}:{t.effect}" for t in d.taints if t.key == HEALTH_TAINT and not said]
        memory = d.capacity.get("memory")
        views.append(
            DeviceView(
                name=d.name,
                model=_text(d.attributes.get("model")),
                type=_text(d.attributes.get("type")),
                memory=str(memory.value) if memory is not None else "",
                state=_state(d, mine, left),
                holders=mine,
                problems=(*said, *taints),
                severity=_severity([h.severity for h in health.get(d.name, ())], tainted=bool(taints)),
                activity=activity.get(d.name, ""),
            )
        )
    return PoolView(key.driver, key.pool, node, tuple(views), _notes(inventory))


def _left(
    slices: Iterable[ResourceSlice], devices: Iterable[Device], holders: Mapping[str, Sequence[Holder]]
) -> dict[tuple[str, str], int]:
    """Return what is left of each counter of each counter set, in nano units."""
    left = {
        (s.name, name): counter.value.nano
        for slice_ in slices
        for s in slice_.spec.shared_counters
        for name, counter in s.counters.items()
    }
    for device in devices:
        if any(not h.admin for h in holders.get(device.name, ())):
            for consumed in device.consumes_counters:
                for name, counter in consumed.counters.items():
                    if (consumed.counter_set, name) in left:
                        left[consumed.counter_set, name] -= counter.value.nano
    return left


def _state(device: Device, holders: Sequence[Holder], left: Mapping[tuple[str, str], int]) -> str:
    if any(t.key == HEALTH_TAINT for t in device.taints):
        return "unhealthy"
    taking = [h for h in holders if not h.admin]
    if taking:
        return "shared" if any(h.shared for h in taking) else "allocated"
    short = any(
        counter.value.nano > left.get((consumed.counter_set, name), counter.value.nano)
        for consumed in device.consumes_counters
        for name, counter in consumed.counters.items()
    )
    return "blocked" if short else "free"


def _activity(inventory: DeviceInventory | None) -> dict[str, str]:
    if inventory is None:
        return {}
    activity = inventory.status.activity
    return dict.fromkeys(activity.idle, "idle") | dict.fromkeys(activity.busy, "busy")


def _severity(severities: Sequence[str], *, tainted: bool) -> str:
    worst = next((s for s in reversed(SEVERITIES) if s in severities), "")
    return worst or ("tainted" if tainted else "")


def _text(attribute: DeviceAttribute | None) -> str:
    return (attribute.string_value or "-") if attribute is not None else "-"


def _notes(inventory: DeviceInventory | None) -> tuple[str, ...]:
    if inventory is None:
        return ()
    notes = [
        f"{c.reason}: {c.message}"
        for c in inventory.status.conditions
        if c.reason not in ("Published", "") and (c.type, c.status) != (AGENT_CONDITION, "True")
    ]
    if shown_agent_state(inventory) is None and not inventory.status.registration.registered:
        notes.append("the kubelet does not know the node's plugin")
    kept = [
        f"{d.name}: {h.message}"
        for d in inventory.spec.devices
        for h in d.health
        if h.reason == CLAIM_GONE_IN_USE
    ]
    notes += kept[:_MOST_KEPT]
    if len(kept) > _MOST_KEPT:
        notes.append(f"{len(kept) - _MOST_KEPT} more devices stay with claims that are gone")
    return tuple(notes)
