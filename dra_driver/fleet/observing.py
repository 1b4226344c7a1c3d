"""Writes the history of a fleet: compares what API objects say with what they said before."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.own.inventory import DeviceHealth, DeviceInventory
from dra_driver.api.resource import ResourceClaim
from dra_driver.fleet.history import History, Subject
from dra_driver.fleet.views import holders_of
from dra_driver.fleet.waiting import waiting_condition
from dra_driver.ownership import PoolID, is_ready, pool_of_inventory

__all__ = ["Observer", "device_subject", "node_trouble"]

_FIGURES: Final = re.compile(r"\d+")
# Devices, as ``driver/pool/device``, that an entry about their claim names.
_NAMED: Final = 4


class _Claim(NamedTuple):
    """What is compared of a claim. ``admin`` are those of its devices of which it takes nothing."""

    uid: Uid
    devices: tuple[tuple[PoolID, str], ...]
    admin: frozenset[tuple[PoolID, str]]


class _Pod(NamedTuple):
    """What is compared of a pod. ``like`` is the text of ``why`` without its figures, which change often."""

    uid: Uid
    phase: str
    node: str
    why: str
    like: str


class _Inventory(NamedTuple):
    health: Mapping[str, Mapping[str, DeviceHealth]]
    busy: frozenset[str]
    idle: frozenset[str]


def device_subject(pool: PoolID, device: str) -> Subject:
    """Return the subject of entries about a device."""
    return Subject("device", f"{pool.driver}/{pool.pool}/{device}")


def node_trouble(node: Node) -> str:
    """Return why a node takes no pods, for people; empty where it does."""
    troubles = [] if is_ready(node) else ["not ready"]
    return ", ".join([*troubles, *(["cordoned"] if node.spec.unschedulable else [])])


class Observer:
    """Notes what changes. What it is told between ``begin`` and the first ``settle`` is how things were.

    Objects may be put again from another source, between ``begin`` and ``settle``: only what differs is
    noted then.

    Args:
        drivers: whose devices are looked at.
        history: takes the entries.
        now: returns seconds since the epoch.
    """

    def __init__(self, drivers: Collection[str], history: History, now: Callable[[], float]) -> None:
        self._drivers = frozenset(drivers)
        self._history = history
        self._now = now
        self._claims: dict[ObjectKey, _Claim] = {}
        self._pods: dict[ObjectKey, _Pod] = {}
        self._inventories: dict[PoolID, _Inventory] = {}
        self._nodes: dict[str, str] = {}
        # None once things have settled; until then, what has been put.
        self._put: set[object] | None = set()
        self._quiet = True

    def begin(self) -> None:
        """Expect everything to be put, from a source that is new."""
        self._put = set()

    def settle(self) -> None:
        """Take what has not been put since ``begin`` for gone, and note every change from now on."""
        put, self._put = self._put or set(), None
        self._quiet = False
        for claim in [k for k in self._claims if ("claim", k) not in put]:
            self._drop_claim(claim)
        for pod in [k for k in self._pods if ("pod", k) not in put]:
            self._drop_pod(pod)
        for pool in [k for k in self._inventories if ("inventory", k) not in put]:
            del self._inventories[pool]
        for node in [k for k in self._nodes if ("node", k) not in put]:
            self._drop_node(node)

    # --- claims ---------------------------------------------------------------------------------------------

    def put_claim(self, claim: ResourceClaim) -> None:
        """Take a claim as it is now."""
        self._see("claim", claim.key)
        holders = [(p, d, h) for p, d, h in holders_of(claim) if p.driver in self._drivers]
        held = dict.fromkeys((p, d) for p, d, _ in holders)
        taken = {(p, d) for p, d, h in holders if not h.admin}
        new = _Claim(claim.metadata.uid, tuple(held), frozenset(held.keys() - taken))
        old = self._claims.get(claim.key)
        if old is not None and old.uid != new.uid:
            self._drop_claim(claim.key)
            old = None
        self._claims[claim.key] = new
        subject = Subject("claim", str(claim.key))
        if old is None:
            self._note(subject, "created", "created")
        if (before := old.devices if old is not None else ()) == new.devices:
            return
        if old is not None:
            self._freed(claim.key, old, [d for d in before if d not in held], "deallocated")
        fresh = [d for d in new.devices if d not in before]
        if fresh:
            self._note(subject, "allocated", f"allocated: {_devices(fresh)}")
        for pool, device in fresh:
            admin = (pool, device) in new.admin
            kind, text = ("admin", "admin access for") if admin else ("allocated", "allocated to")
            self._note(device_subject(pool, device), kind, f"{text} claim {claim.key}")

    def remove_claim(self, claim: ResourceClaim) -> None:
        """Take a claim for deleted."""
        self._drop_claim(claim.key)

    def _drop_claim(self, key: ObjectKey) -> None:
        old = self._claims.pop(key, None)
        if old is not None:
            self._freed(key, old, old.devices, "")
            self._note(Subject("claim", str(key)), "deleted", "deleted")

    def _freed(self, claim: ObjectKey, was: _Claim, devices: Iterable[tuple[PoolID, str]], why: str) -> None:
        freed = list(devices)
        if freed and why:
            self._note(Subject("claim", str(claim)), "freed", f"{why}: {_devices(freed)}")
        for pool, device in freed:
            admin = (pool, device) in was.admin
            kind, text = ("admin", "no more admin access for") if admin else ("freed", "freed by")
            self._note(device_subject(pool, device), kind, f"{text} claim {claim}")

    # --- pods -----------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Take a pod as it is now. Those without claims are passed over."""
        if not pod.spec.resource_claims and pod.status.extended_resource_claim_status is None:
            return
        self._see("pod", pod.key)
        condition = waiting_condition(pod) or {}
        why = ": ".join(str(condition[f]) for f in ("reason", "message") if condition.get(f))
        like = _FIGURES.sub("0", why[:300])
        new = _Pod(pod.metadata.uid, pod.status.phase, pod.spec.node_name, why[:300], like)
        old = self._pods.get(pod.key)
        if old is not None and old.uid != new.uid:
            self._drop_pod(pod.key)
            old = None
        self._pods[pod.key] = new
        subject = Subject("pod", str(pod.key))
        if old is None:
            self._note(subject, "created", f"created with priority {pod.spec.priority}")
        if new.like and (old is None or old.like != new.like):
            self._note(subject, "waits", f"waits: {why}")
        if new.node and (old is None or old.node != new.node):
            self._note(subject, "node", f"bound to node {new.node}")
        if old is not None and old.phase != new.phase:
            self._note(subject, "phase", f"is {new.phase or 'of no phase'} now")

    def remove_pod(self, pod: Pod) -> None:
        """Take a pod for deleted."""
        self._drop_pod(pod.key)

    def _drop_pod(self, key: ObjectKey) -> None:
        if self._pods.pop(key, None) is not None:
            self._note(Subject("pod", str(key)), "deleted", "deleted")

    # --- inventories and nodes ------------------------------------------------------------------------------

    def put_inventory(self, inventory: DeviceInventory) -> None:
        """Take an inventory as it is now."""
        pool = pool_of_inventory(inventory)
        if pool.driver not in self._drivers:
            return
        self._see("inventory", pool)
        activity = inventory.status.activity
        health = {d.name: {h.reason: h for h in d.health} for d in inventory.spec.devices if d.health}
        # A node can name any devices there, as often as it likes.
        devices = frozenset(d.name for d in inventory.spec.devices)
        new = _Inventory(health, devices.intersection(activity.busy), devices.intersection(activity.idle))
        old = self._inventories.get(pool)
        self._inventories[pool] = new
        if old is None:
            return
        node = Subject("node", inventory.spec.node_name)
        for device in sorted(old.health.keys() | new.health.keys()):
            self._health(pool, node, device, old.health.get(device, {}), new.health.get(device, {}))
        for devices, before, text in (
            (new.busy, old.busy, "something runs on it"),
            (new.idle, old.idle, "nothing runs on it"),
        ):
            for device in sorted(devices - before):
                self._note(device_subject(pool, device), "activity", text)

    def _health(
        self,
        pool: PoolID,
        node: Subject,
        device: str,
        old: Mapping[str, DeviceHealth],
        new: Mapping[str, DeviceHealth],
    ) -> None:
        texts = []
        for reason, health in new.items():
            if reason not in old or old[reason].severity != health.severity:
                said = f": {health.message}" if health.message else ""
                texts.append(f"{reason} ({health.severity}){said}")
        texts += [f"{reason} is over" for reason in old if reason not in new]
        for text in texts:
            self._note(device_subject(pool, device), "health", text)
            self._note(node, "health", f"{device}: {text}")

    def remove_inventory(self, inventory: DeviceInventory) -> None:
        """Take an inventory for deleted."""
        self._inventories.pop(pool_of_inventory(inventory), None)

    def put_node(self, node: Node) -> None:
        """Take a node as it is now."""
        name, trouble = node.metadata.name, node_trouble(node)
        self._see("node", name)
        known = name in self._nodes
        before = self._nodes.get(name, "")
        self._nodes[name] = trouble
        if not known:
            self._note(Subject("node", name), "created", "joined the cluster")
        if trouble != before:
            self._note(Subject("node", name), "node", trouble or "ready, and takes pods")

    def remove_node(self, node: Node) -> None:
        """Take a node for deleted."""
        self._drop_node(node.metadata.name)

    def _drop_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._note(Subject("node", name), "deleted", "left the cluster")

    # --- inside ---------------------------------------------------------------------------------------------

    def _see(self, kind: str, key: object) -> None:
        if self._put is not None:
            self._put.add((kind, key))

    def _note(self, subject: Subject, kind: str, text: str) -> None:
        if not self._quiet:
            self._history.note(subject, self._now(), kind, text)


def _devices(devices: list[tuple[PoolID, str]]) -> str:
    """Return devices for people: a few by name, and on which nodes' pools they are."""
    if len(devices) <= _NAMED:
        return ", ".join(f"{device} of {pool.pool}" for pool, device in devices)
    pools = Counter(pool.pool for pool, _ in devices)
    named = ", ".join(f"{n} of {pool}" for pool, n in sorted(pools.items())[:_NAMED])
    return f"{len(devices)} devices, {named}" + (" …" if len(pools) > _NAMED else "")
