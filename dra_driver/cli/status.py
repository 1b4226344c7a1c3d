"""``dra-driver status``: an overview of the fleet, and why claims wait."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller.allocate.state.taint_rules import served_rules
from dra_driver.api.core import CONFIG_MAPS, EVENTS, NODES, PODS, Node, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME, REQUEST_SHAPES, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.cli import common, shapes_argument
from dra_driver.cli.capacity import dropped_notes
from dra_driver.errors import ConfigurationError, Forbidden, NotFound
from dra_driver.fleet import (
    STATES,
    Fleet,
    PoolView,
    PreemptionRow,
    RequestShape,
    ShapeCount,
    WaitingClaim,
    count_shapes,
    latest_reasons,
    parse_shapes,
    preemptions_of,
    set_aside_condition,
    waiting_condition,
)
from dra_driver.kube import KubeApi
from dra_driver.ownership import is_controller_taint
from dra_driver.ports import KubeClient
from dra_driver.structured import AllocatedState, Snapshot, with_rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    common.add_cluster_arguments(parser)
    parser.add_argument(
        "--driver-name",
        action="append",
        metavar="NAME",
        help=f"driver whose devices are shown; may be repeated; default: {DEFAULT_DRIVER_NAME}",
    )
    parser.add_argument(
        "--by",
        choices=("node", "model"),
        default="node",
        help="one line per model on each node, or per model on all nodes",
    )
    shapes_argument.add_shape_argument(parser)
    parser.add_argument(
        "--system-namespace",
        default=SYSTEM_NAMESPACE,
        metavar="NS",
        help="where the driver is installed: without --shape, the shapes of the installation (the chart's "
        f"controller.shapes, in the ConfigMap {REQUEST_SHAPES}) are counted",
    )
    common.add_watch_arguments(parser)
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the status once, or until interrupted."""
    drivers = tuple(args.driver_name or [DEFAULT_DRIVER_NAME])
    shapes = parse_shapes(args.shape, drivers[0]) if args.shape else None
    asyncio.run(_main(args, drivers, shapes))
    return 0


async def _main(
    args: argparse.Namespace, drivers: Sequence[str], shapes: Sequence[RequestShape] | None
) -> None:
    async with await KubeApi.connect(
        args.kubeconfig, context=args.context, user_agent="dra-driver-status"
    ) as client:

        async def text() -> str:
            return _text(
                await look(client, drivers, by=args.by, shapes=shapes, namespace=args.system_namespace),
                args.output,
            )

        await common.show(text, args)


# --- looking ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """Devices of one model on one node, or on all nodes if ``node`` is empty."""

    node: str
    model: str
    type: str
    total: int = 0
    states: Counter[str] = field(default_factory=Counter)

    def data(self) -> dict[str, Any]:
        """Return the row for JSON."""
        states = {state: self.states[state] for state in STATES}
        return {"node": self.node, "model": self.model, "type": self.type, "total": self.total, **states}


@dataclass(frozen=True, slots=True)
class SetAsideRow:
    """Devices that are set aside for a pod.

    Attributes:
        pod: ``namespace/name``.
        since: RFC 3339.
        devices: which, and until when, for people.
    """

    pod: str
    since: str
    devices: str


@dataclass(frozen=True, slots=True)
class Overview:
    """All rows and claims that are shown."""

    rows: tuple[Row, ...]
    waiting: tuple[WaitingClaim, ...]
    nodes: int
    nodes_with_devices: int
    notes: tuple[str, ...]
    shapes: tuple[ShapeCount, ...] = ()
    set_aside: tuple[SetAsideRow, ...] = ()
    preemptions: tuple[PreemptionRow, ...] = ()


async def look(
    client: KubeClient,
    drivers: Sequence[str],
    *,
    by: str = "node",
    shapes: Sequence[RequestShape] | None = None,
    namespace: str = SYSTEM_NAMESPACE,
) -> Overview:
    """Read the cluster.

    Args:
        client: of the cluster.
        drivers: whose devices are shown.
        by: ``node`` or ``model``.
        shapes: to be counted, among the devices of all drivers; if None, those of the installation.
        namespace: of the installation.

    Raises:
        ApiError, ApiUnavailable: the API server refuses, or cannot be reached.
    """
    fleet = Fleet(drivers)
    slices = (await client.list(RESOURCE_SLICES)).items
    for slice_ in slices:
        fleet.put_slice(slice_)
    for inventory in await _list_if_there(client, DEVICE_INVENTORIES):
        fleet.put_inventory(inventory)
    claims = (await client.list(RESOURCE_CLAIMS)).items
    for claim in claims:
        fleet.put_claim(claim)
    pods = (await client.list(PODS)).items
    for pod in pods:
        fleet.put_pod(pod)
    nodes = (await client.list(NODES)).items
    told = latest_reasons((await client.list(EVENTS)).items)

    def reason_of(claim: ResourceClaim, users: Iterable[Pod]) -> str:
        own = list(users)
        waits = [str(c.get("message") or "") for p in own if (c := waiting_condition(p)) is not None]
        found = (*waits, *(told.get(o.metadata.uid, "") for o in (claim, *own)))
        return next((text for text in found if text), "")

    notes = list(await dropped_notes(client, claims))
    if shapes is None:
        shapes, unread = await _configured(client, namespace, drivers[0])
        notes += unread
    views = fleet.views()
    waiting, _ = fleet.waiting(reason_of)
    return Overview(
        rows=_rows(views, by),
        waiting=tuple(waiting),
        nodes=len(nodes),
        nodes_with_devices=len({v.node for v in views if v.devices}),
        notes=(*(f"{v.node} ({v.driver}): {note}" for v in views for note in v.notes), *notes),
        shapes=await _count(client, shapes, nodes, slices, claims) if shapes else (),
        set_aside=tuple(_set_aside(pods)),
        preemptions=tuple(preemptions_of(pods)),
    )


def _set_aside(pods: Iterable[Pod]) -> Iterator[SetAsideRow]:
    for pod in pods:
        condition = set_aside_condition(pod)
        if condition is not None:
            since, devices = (str(condition.get(field) or "") for field in ("lastTransitionTime", "message"))
            yield SetAsideRow(str(pod.key), since, devices)


async def _configured(
    client: KubeClient, namespace: str, driver: str
) -> tuple[tuple[RequestShape, ...], list[str]]:
    """Return the shapes that the chart was given, and what is wrong with them."""
    try:
        found = (await client.get(CONFIG_MAPS, REQUEST_SHAPES, namespace)).data or {}
    except (NotFound, Forbidden):
        return (), []
    texts = [f"{name}={text}" for name, text in sorted(found.items())]
    try:
        return parse_shapes(texts, driver, where=f"ConfigMap {namespace}/{REQUEST_SHAPES}"), []
    except ConfigurationError as e:
        return (), list(e.findings)


async def _count(
    client: KubeClient,
    shapes: Sequence[RequestShape],
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
) -> tuple[ShapeCount, ...]:
    """Count the shapes; our own taint excludes nothing."""
    rules = await _rules(client)
    snapshot = Snapshot.build(
        slices=[with_rules(s, rules) for s in slices],
        classes=(await client.list(DEVICE_CLASSES)).items,
        nodes=nodes,
        allocated=AllocatedState.from_claims(claims),
    )
    return count_shapes(snapshot, shapes, ignore_taint=is_controller_taint)


async def _rules(client: KubeClient) -> tuple[DeviceTaintRule, ...]:
    resource = await served_rules(client)
    try:
        return (await client.list(resource)).items if resource is not None else ()
    except Forbidden:
        return ()


async def _list_if_there(client: KubeClient, resource: Resource[Any]) -> tuple[Any, ...]:
    try:
        return (await client.list(resource)).items
    except NotFound:
        return ()


def _rows(views: Iterable[PoolView], by: str) -> tuple[Row, ...]:
    rows: dict[tuple[str, str, str], Row] = {}
    for view in views:
        node = view.node if by == "node" else ""
        for device in view.devices:
            row = rows.setdefault((node, device.model, device.type), Row(node, device.model, device.type))
            row.total += 1
            row.states[device.state] += 1
    return tuple(row for _, row in sorted(rows.items()))


# --- showing ------------------------------------------------------------------------------------------------


def _text(overview: Overview, form: str) -> str:
    if form != "table":
        return common.format_data(_data(overview), form)
    parts = []
    if overview.rows:
        named = any(r.node for r in overview.rows)
        rows = [
            (*([r.node] if named else []), r.model, r.type, r.total, *(r.states[s] for s in STATES))
            for r in overview.rows
        ]
        header = (*(["NODE"] if named else []), "MODEL", "TYPE", "DEVICES", *(s.upper() for s in STATES))
        parts.append(common.table(header, rows))
        total = sum(r.total for r in overview.rows)
        sums = ", ".join(f"{n} {s}" for s in STATES if (n := sum(r.states[s] for r in overview.rows)))
        parts.append(f"{total} devices on {overview.nodes_with_devices} of {overview.nodes} nodes: {sums}")
    else:
        parts.append(f"no devices on {overview.nodes} nodes")
    if overview.shapes:
        parts.append(shapes_argument.shapes_table(overview.shapes))
    if overview.waiting:
        waits = [(w.claim, ", ".join(w.pods) or "-", w.reason) for w in overview.waiting]
        parts.append(common.table(("WAITING CLAIM", "PODS", "WHY"), waits))
    if overview.set_aside:
        kept = [(s.pod, s.since, s.devices) for s in overview.set_aside]
        parts.append(common.table(("SET ASIDE FOR POD", "SINCE", "DEVICES"), kept))
    if overview.preemptions:
        found = [(p.pod, p.state, p.since, p.whom) for p in overview.preemptions]
        parts.append(common.table(("PREEMPTOR", "STATE", "SINCE", "PODS"), found))
    if overview.notes:
        parts.append("\n".join(overview.notes))
    return "\n\n".join(parts)


def _data(overview: Overview) -> dict[str, Any]:
    return {
        "devices": [r.data() for r in overview.rows],
        "waiting": [{"claim": w.claim, "pods": list(w.pods), "reason": w.reason} for w in overview.waiting],
        "setAside": [{"pod": s.pod, "since": s.since, "devices": s.devices} for s in overview.set_aside],
        "preemptions": [msgspec.to_builtins(p) for p in overview.preemptions],
        "shapes": [s.data() for s in overview.shapes],
        "nodes": overview.nodes,
        "notes": list(overview.notes),
    }
