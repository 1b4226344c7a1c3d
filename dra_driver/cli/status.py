"""``dra-driver status``: the fleet at a glance, and which claims wait for what."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.api.core import EVENTS, NODES, PODS, Event, Pod
from dra_driver.api.inventory import DEVICE_INVENTORIES
from dra_driver.api.meta import ObjectKey, Resource, WireObject
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Device,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.cli import common
from dra_driver.errors import NotFound
from dra_driver.kube import KubeApi
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import pod_claims
from dra_driver.resourceslice import HEALTH_TAINT

HELP = "the fleet: devices free, allocated, shared, unhealthy by model and node; claims that wait and why"

_WAITING = ("FailedAllocation", "WaitingForGroup", "FailedScheduling")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "--kubeconfig", type=Path, help="default: the KUBECONFIG variable, then the pod's service account"
    )
    parser.add_argument(
        "--driver-name",
        action="append",
        metavar="NAME",
        help=f"whose devices; may be repeated; default: {DEFAULT_DRIVER_NAME}",
    )
    parser.add_argument("--watch", "-w", action="store_true", help="show it again whenever it has changed")
    parser.add_argument(
        "--interval", type=float, default=2.0, help="with --watch: seconds from one look to the next"
    )
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the status once, or until interrupted."""
    asyncio.run(_main(args))
    return 0


async def _main(args: argparse.Namespace) -> None:
    drivers = tuple(args.driver_name or [DEFAULT_DRIVER_NAME])
    async with await KubeApi.connect(args.kubeconfig, user_agent="dra-driver-status") as client:
        shown = ""
        while True:
            fleet = await look(client, drivers)
            text = _text(fleet, args.output)
            if text != shown:
                if shown and args.output == "table":
                    print(f"--- {time.strftime('%H:%M:%S')}")
                print(text)
                sys.stdout.flush()
                shown = text
            if not args.watch:
                return
            await asyncio.sleep(max(args.interval, 0.1))


# --- looking ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """Devices of one model on one node."""

    node: str
    model: str
    type: str
    total: int = 0
    states: Counter[str] = field(default_factory=Counter)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        states = {state: self.states[state] for state in STATES}
        return {"node": self.node, "model": self.model, "type": self.type, "total": self.total, **states}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claim that is not allocated."""

    claim: ObjectKey
    pods: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that is shown."""

    rows: tuple[Row, ...]
    waiting: tuple[Waiting, ...]
    nodes: int
    notes: tuple[str, ...]


# A device counts once: the first that applies. Blocked: other partitions of the GPU, or all of it, are held.
STATES = ("unhealthy", "shared", "allocated", "blocked", "free")


async def look(client: KubeClient, drivers: Sequence[str]) -> Fleet:
    """Reads the cluster.

    Raises:
        ApiError, ApiUnavailable: the API server does not let us, or is not there.
    """
    slices = (await client.list(RESOURCE_SLICES)).items
    claims = (await client.list(RESOURCE_CLAIMS)).items
    pods = (await client.list(PODS)).items
    nodes = (await client.list(NODES)).items
    events = (await client.list(EVENTS)).items
    notes = await _notes(client, drivers)
    return Fleet(
        rows=_rows([s for s in slices if s.spec.driver in drivers], claims),
        waiting=_waiting(claims, pods, events),
        nodes=len(nodes),
        notes=notes,
    )


async def _notes(client: KubeClient, drivers: Sequence[str]) -> tuple[str, ...]:
    """What the controller says about pools that are not published as they should be."""
    notes: list[str] = []
    for inventory in await _list_if_there(client, DEVICE_INVENTORIES):
        if inventory.spec.driver not in drivers:
            continue
        notes += [
            f"{inventory.metadata.name}: {c.reason}: {c.message}"
            for c in inventory.status.conditions
            if c.reason != "Published"
        ]
        if not inventory.status.registration.registered:
            notes.append(f"{inventory.metadata.name}: the kubelet does not know the node's plugin")
    return tuple(sorted(notes))


async def _list_if_there(client: KubeClient, resource: Resource[Any]) -> tuple[Any, ...]:
    try:
        return (await client.list(resource)).items
    except NotFound:
        return ()


def _rows(slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> tuple[Row, ...]:
    whole: set[tuple[str, str, str]] = set()
    shared: set[tuple[str, str, str]] = set()
    for claim in claims:
        for r in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
            if not r.admin_access:
                (whole if r.share_id is None else shared).add((r.driver, r.pool, r.device))
    pools: dict[tuple[str, str], list[ResourceSlice]] = {}
    for s in slices:
        pools.setdefault((s.spec.driver, s.spec.pool.name), []).append(s)
    rows: dict[tuple[str, str, str], Row] = {}
    for (driver, pool), found in pools.items():
        newest = max(s.spec.pool.generation for s in found)
        devices = [(s, d) for s in found if s.spec.pool.generation == newest for d in s.spec.devices]
        held = _memory_slices(d for _, d in devices if (driver, pool, d.name) in whole | shared)
        for s, device in devices:
            node, model, type_ = s.spec.node_name or pool, _text_of(device, "model"), _text_of(device, "type")
            row = rows.setdefault((node, model, type_), Row(node, model, type_))
            row.total += 1
            row.states[_state(device, (driver, pool, device.name), whole, shared, held)] += 1
    return tuple(row for _, row in sorted(rows.items()))


def _memory_slices(devices: Iterable[Device]) -> set[tuple[str, str]]:
    """Memory slices of GPUs that these partitions, or whole GPUs, take."""
    return {
        (c.counter_set, name)
        for device in devices
        for c in device.consumes_counters
        for name in c.counters
        if name.startswith("memory-slice-")
    }


def _state(
    device: Device,
    id_: tuple[str, str, str],
    whole: set[tuple[str, str, str]],
    shared: set[tuple[str, str, str]],
    held: set[tuple[str, str]],
) -> str:
    if any(t.key == HEALTH_TAINT for t in device.taints):
        return "unhealthy"
    if id_ in shared:
        return "shared"
    if id_ in whole:
        return "allocated"
    return "blocked" if _memory_slices([device]) & held else "free"


def _text_of(device: Device, name: str) -> str:
    attribute = device.attributes.get(name)
    return (attribute.string_value or "-") if attribute is not None else "-"


def _waiting(
    claims: Iterable[ResourceClaim], pods: Iterable[Pod], events: Iterable[Event]
) -> tuple[Waiting, ...]:
    users: dict[ObjectKey, list[Pod]] = {}
    for pod in pods:
        for used in pod_claims(pod):
            if used.key is not None:
                users.setdefault(used.key, []).append(pod)
    latest: dict[str, tuple[str, str]] = {}
    for event in events:
        if event.reason in _WAITING:
            uid, when = event.involved_object.uid, event.last_timestamp or ""
            if when >= latest.get(uid, ("", ""))[0]:
                latest[uid] = (when, event.message)
    found = []
    for claim in claims:
        if claim.status.allocation is not None:
            continue
        mine = users.get(claim.key, [])
        objects: list[WireObject] = [claim, *mine]
        told = [latest[o.metadata.uid] for o in objects if o.metadata.uid in latest]
        reason = max(told)[1] if told else ("not looked at yet" if mine else "no pod uses it")
        found.append(Waiting(claim.key, tuple(p.metadata.name for p in mine), reason))
    return tuple(sorted(found, key=lambda w: w.claim))


# --- showing ------------------------------------------------------------------------------------------------


def _text(fleet: Fleet, form: str) -> str:
    if form != "table":
        return common.format_data(_data(fleet), form)
    parts = []
    if fleet.rows:
        rows = [(r.node, r.model, r.type, r.total, *(r.states[s] for s in STATES)) for r in fleet.rows]
        header = ("NODE", "MODEL", "TYPE", "DEVICES", *(s.upper() for s in STATES))
        parts.append(common.table(header, rows))
        total = sum(r.total for r in fleet.rows)
        sums = ", ".join(f"{n} {s}" for s in STATES if (n := sum(r.states[s] for r in fleet.rows)))
        parts.append(f"{total} devices on {len({r.node for r in fleet.rows})} of {fleet.nodes} nodes: {sums}")
    else:
        parts.append(f"no devices on {fleet.nodes} nodes")
    if fleet.waiting:
        waits = [(str(w.claim), ", ".join(w.pods) or "-", w.reason) for w in fleet.waiting]
        parts.append(common.table(("WAITING CLAIM", "PODS", "WHY"), waits))
    if fleet.notes:
        parts.append("\n".join(fleet.notes))
    return "\n\n".join(parts)


def _data(fleet: Fleet) -> dict[str, Any]:
    return {
        "devices": [r.data() for r in fleet.rows],
        "waiting": [{"claim": str(w.claim), "pods": list(w.pods), "reason": w.reason} for w in fleet.waiting],
        "nodes": fleet.nodes,
        "notes": list(fleet.notes),
    }
