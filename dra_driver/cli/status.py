"""``dra-driver status``: an overview of the fleet, and why claims wait."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controller.allocate.state.taint_rules import served_rules
from dra_driver.api.core import CONFIG_MAPS, EVENTS, NODES, PODS, Event, Node, Pod
from dra_driver.api.meta import DriverName, PoolName, Resource
from dra_driver.api.names import DEFAULT_DRIVER_NAME, REQUEST_SHAPES, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, NODE_PUBLISHES, DeviceInventory
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.cli import common, shapes_argument
from dra_driver.cli.capacity import object_notes, server_notes
from dra_driver.cli.live import showing
from dra_driver.cli.live.controller import Unreadable, see_controller
from dra_driver.cli.live.grants import GrantsReader, read_grants
from dra_driver.cli.live.reading import Lister, Source
from dra_driver.cli.overview.devices import DeviceRow, device_list
from dra_driver.cli.overview.grants import of_namespace
from dra_driver.cli.overview.report import Overview, SetAsideRow, checked, overview_data, overview_report
from dra_driver.cli.overview.rows import (
    device_rows,
    fold_notes,
    matches,
    namespace_rows,
    on_nodes,
)
from dra_driver.errors import ConfigurationError, Forbidden, InvalidInput, NotFound
from dra_driver.fleet import (
    LONG_WAIT_SECONDS,
    REFUSALS,
    ControllerSeen,
    Fleet,
    PoolView,
    Problem,
    RequestShape,
    ShapeCount,
    controller_problem,
    controller_sentence,
    count_shapes,
    latest_reasons,
    parse_shapes,
    preemptions_of,
    set_aside_condition,
    wait_problem,
    waiting_condition,
)
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import PoolID, is_controller_taint, pool_of_inventory
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import is_gated
from dra_driver.structured import AllocatedState, Snapshot, with_rules
from dra_driver.suggestions import did_you_mean

__all__ = ["FAILURE", "add_arguments", "look", "overview_of", "run"]

FAILURE: Final = 3
"""Exit status where the cluster cannot be read: with ``--check``, 1 means that there are problems."""

_EPILOG = """examples:
  dra-driver status                        one line for each model on each node
  dra-driver status --by model --watch     sums over the fleet, and their changes
  dra-driver status --node 'rack7-*'       some nodes
  dra-driver status -n team                only what waits in a namespace
  dra-driver status --shape '8 gpu same nvlinkGroup'    how often a request still fits
  dra-driver status --devices --node n5    each device: its state, its holders, what is wrong, what to do
  dra-driver status --check                problems only, for scripts

It begins with problems: a controller, node agents or nodes that are gone, unhealthy devices, and pods that
have waited for more than 15 minutes, each with what to do.

exit status: 0; 1 with --check, if there are problems; 2 the input is wrong; 3 the cluster cannot be read,
with --check also if a part of it may not be read

MEMORY is the memory that claims hold, out of the total. It does not say how much programs use. BUSY counts
the devices on which something runs; the column exists if nodes report it. Claims that wait for the same
reason share a row, and so do equal notes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = _EPILOG
    where = parser.add_argument_group("source")
    common.add_cluster_arguments(where)
    where.add_argument(
        "--driver-name",
        action="append",
        metavar="NAME",
        help="driver whose devices are shown (repeatable); default: all drivers with a DeviceInventory",
    )
    where.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only nodes whose names match, with * and ? (repeatable)",
    )
    scope = where.add_mutually_exclusive_group()
    scope.add_argument(
        "-n", "--namespace", default="", metavar="NS", help="only claims of this namespace; default: all"
    )
    scope.add_argument(
        "-A", "--all-namespaces", action="store_true", help="claims of all namespaces, as without -n"
    )
    where.add_argument(
        "--system-namespace",
        default=SYSTEM_NAMESPACE,
        metavar="NS",
        help="namespace of the driver; without --shape, the shapes of the installation (the chart's "
        f"controller.shapes, in the ConfigMap {REQUEST_SHAPES}) are counted",
    )
    shown = parser.add_argument_group("output")
    shown.add_argument(
        "--by",
        choices=("node", "model"),
        default="node",
        help="one row per model on each node, or per model on all nodes",
    )
    shown.add_argument(
        "--devices", action="store_true", help="one line for each device: state, holders, problem, what to do"
    )
    shapes_argument.add_shape_argument(shown)
    shown.add_argument(
        "--check", action="store_true", help="show the problems only, and exit with 1 if there are any"
    )
    common.add_output_argument(shown)
    showing.add_watch_arguments(shown)


def run(args: argparse.Namespace) -> int:
    """Print the status once, or until interrupted.

    Returns:
        0; with ``--check`` 1 if there are problems, 3 if there are none in what may be read.
    """
    if args.check and args.watch:
        raise InvalidInput("--check looks once, --watch again and again; give one of them")
    drivers = tuple(args.driver_name or ())
    shapes = parse_shapes(args.shape, _first(drivers)) if args.shape and not args.check else None
    return asyncio.run(_main(args, drivers, () if args.check else shapes))


def _first(drivers: Sequence[str]) -> str:
    """Return the driver whose capacities and attributes shapes name without a domain."""
    return drivers[0] if drivers else DEFAULT_DRIVER_NAME


async def _main(
    args: argparse.Namespace, drivers: Sequence[str], shapes: Sequence[RequestShape] | None
) -> int:
    async with await KubeApi.connect(
        args.kubeconfig, context=args.context, user_agent="dra-driver-status"
    ) as client:
        question = await _question(
            client,
            drivers,
            by=args.by,
            shapes=shapes,
            system=args.system_namespace,
            nodes=args.node,
            namespace=args.namespace,
            devices=args.devices,
        )

        status = 0

        async def looked(source: Source) -> showing.Shown:
            nonlocal status
            overview = await _look(source, question)
            if args.check:
                partly = isinstance(source, Lister) and bool(source.notes)
                status = 1 if overview.problems else FAILURE if partly else 0
            if args.output == "table":
                return checked(overview) if args.check else overview_report(overview)
            data = overview_data(overview)
            return common.format_data({"problems": data["problems"]} if args.check else data, args.output)

        await showing.show(client, looked, args)
        return status


# --- looking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, and what is found out once however long the cluster is watched.

    Attributes:
        drivers: whose devices are shown; if there is none, all that DeviceInventories are of, as on the page.
        patterns: of names of nodes; all if there is none.
        namespace: of the claims that are shown; empty: all.
        rules: the kind of DeviceTaintRules that is served.
        notes: what is to be said about the installation.
        grants: reads whether devices are granted.
        devices: whether devices are listed one by one.
        controller: reads whether the controller works.
    """

    drivers: tuple[str, ...]
    by: str
    shapes: tuple[RequestShape, ...]
    patterns: tuple[str, ...]
    namespace: str
    rules: Resource[DeviceTaintRule] | None
    notes: tuple[str, ...]
    grants: GrantsReader
    devices: bool
    controller: Callable[[], Awaitable[ControllerSeen | Unreadable]]


async def _question(
    client: KubeClient,
    drivers: Sequence[str],
    *,
    by: str,
    shapes: Sequence[RequestShape] | None,
    system: str,
    nodes: Sequence[str],
    namespace: str,
    devices: bool,
) -> _Question:
    notes: list[str] = []
    if shapes is None:
        shapes, notes = await _configured(client, system, _first(drivers))
    rules = await served_rules(client) if shapes else None
    notes = [*await server_notes(client, namespace), *notes]
    grants = functools.partial(read_grants, client, system)
    controller = functools.partial(see_controller, client, system, SystemClock())
    said = tuple(notes)
    return _Question(
        tuple(drivers), by, tuple(shapes), tuple(nodes), namespace, rules, said, grants, devices, controller
    )


async def look(
    client: KubeClient,
    drivers: Sequence[str],
    *,
    by: str = "node",
    shapes: Sequence[RequestShape] | None = None,
    system: str = SYSTEM_NAMESPACE,
    nodes: Sequence[str] = (),
    namespace: str = "",
    devices: bool = False,
) -> Overview:
    """Read the cluster once.

    Args:
        client: of the cluster.
        drivers: whose devices are shown; if there is none, all that DeviceInventories are of.
        by: ``node`` or ``model``.
        shapes: to be counted, among the devices of all drivers; if None, those of the installation.
        system: namespace of the installation.
        nodes: patterns of names of nodes; all if there is none.
        namespace: of the claims that are shown; empty: all.
        devices: whether devices are listed one by one.

    Raises:
        ApiError, ApiUnavailable: the API server refuses, or cannot be reached.
    """
    question = await _question(
        client,
        drivers,
        by=by,
        shapes=shapes,
        system=system,
        nodes=nodes,
        namespace=namespace,
        devices=devices,
    )
    return await _look(Lister(client), question)


async def overview_of(
    source: Source, client: KubeClient, *, nodes: Sequence[str], system: str = SYSTEM_NAMESPACE
) -> Overview:
    """Return the overview of some nodes, with their devices one by one.

    Args:
        source: of the objects; takes note of rights that are missing.
        client: of the cluster.
        nodes: patterns of their names.
        system: namespace of the installation.
    """
    question = await _question(
        client, (), by="node", shapes=(), system=system, nodes=nodes, namespace="", devices=True
    )
    return await _look(source, question)


async def _look(source: Source, question: _Question) -> Overview:
    slices = await source.all(RESOURCE_SLICES)
    inventories = await source.all(
        DEVICE_INVENTORIES,
        optional=True,
        without="what nodes say of devices that are not published is unknown",
    )
    fleet = Fleet(question.drivers or {DEFAULT_DRIVER_NAME, *(i.spec.driver for i in inventories)})
    for slice_ in slices:
        fleet.put_slice(slice_)
    for inventory in inventories:
        fleet.put_inventory(inventory)
    namespace = question.namespace
    claims = await source.all(
        RESOURCE_CLAIMS, or_in=namespace, in_part="devices that claims of other namespaces hold look free"
    )
    for claim in claims:
        fleet.put_claim(claim)
    templates = await source.all(
        RESOURCE_CLAIM_TEMPLATES, or_in=namespace, without="templates are not looked at", optional=True
    )
    pods = await source.all(PODS, or_in=namespace, without="which pods wait is unknown")
    for pod in pods:
        fleet.put_pod(pod)
    nodes = await source.all(
        NODES, without="nodes without devices, and those that are not ready, are unknown"
    )
    for node in nodes:
        fleet.put_node(node)
    told = latest_reasons(await _refusals(source, namespace))
    now = SystemClock().now()
    seen = await question.controller()
    if isinstance(seen, Unreadable):
        source.note(seen)
        seen = ControllerSeen("", answers=True)
    elif not seen.found and all(i.spec.publisher == NODE_PUBLISHES for i in inventories):
        seen = ControllerSeen(seen.lease, answers=True)  # there need not be one
    silent = controller_sentence(seen, now)

    def reason_of(claim: ResourceClaim, users: Iterable[Pod]) -> str:
        own = list(users)
        waits = [str(c.get("message") or "") for p in own if (c := waiting_condition(p)) is not None]
        found = (*waits, *(told.get(o.metadata.uid, "") for o in (claim, *own)))
        return next((text for text in found if text), silent if any(map(is_gated, own)) else "")

    views = on_nodes(fleet.views(), question.patterns)
    waiting = [w for w in fleet.waiting(reason_of)[0] if not namespace or w.claim.startswith(f"{namespace}/")]
    return Overview(
        rows=device_rows(views, question.by),
        waiting=tuple(waiting),
        nodes=sum(matches(n.metadata.name, question.patterns) for n in nodes),
        nodes_with_devices=len({v.node for v in views if v.devices}),
        notes=(
            *fold_notes(views),
            *question.notes,
            *_nothing_in(namespace, [*claims, *pods]),
            *object_notes(templates, claims, namespace),
        ),
        shapes=await _count(source, question, nodes, slices, claims) if question.shapes else (),
        set_aside=tuple(s for s in _set_aside(pods) if not namespace or s.pod.startswith(f"{namespace}/")),
        preemptions=tuple(
            p
            for p in preemptions_of(pods)
            if not namespace or any(n.startswith(f"{namespace}/") for n in (p.pod, *p.victims))
        ),
        namespaces=tuple(row for row in namespace_rows(views, waiting) if namespace in ("", row.namespace)),
        grants=of_namespace(await question.grants(), namespace),
        problems=tuple(_problems(fleet, seen, reason_of, question, now)),
        listed=tuple(_listed(fleet, views, inventories)) if question.devices else (),
        now=now,
    )


def _nothing_in(namespace: str, objects: Sequence[ResourceClaim | Pod]) -> Iterator[str]:
    """Yield that a namespace has nothing that is shown, with the one that was probably meant."""
    there = {o.metadata.namespace for o in objects}
    if namespace and namespace not in there:
        yield f"namespace {namespace} has no claim and no pod{did_you_mean(namespace, there)}"


def _listed(
    fleet: Fleet, views: Iterable[PoolView], inventories: Iterable[DeviceInventory]
) -> Iterator[DeviceRow]:
    known = {pool_of_inventory(i): i for i in inventories}
    for view in views:
        pool = PoolID(DriverName(view.driver), PoolName(view.pool))
        yield from device_list(view, known.get(pool), fleet.holders(pool), fleet.pool_problems(pool))


def _problems(
    fleet: Fleet,
    seen: ControllerSeen,
    reason_of: Callable[[ResourceClaim, Iterable[Pod]], str],
    question: _Question,
    now: float,
) -> Iterator[Problem]:
    """Yield what is wrong, of the nodes and the namespace that are asked for."""
    found = controller_problem(seen)
    if found is not None:
        yield found
    for pool in fleet.pools():
        for problem in fleet.pool_problems(pool, answers=seen.answers):
            if matches(problem.node, question.patterns):
                yield problem
    for claim in fleet.long_waits(reason_of, rfc3339(now - LONG_WAIT_SECONDS))[0]:
        if not question.namespace or claim.claim.startswith(f"{question.namespace}/"):
            yield wait_problem(claim)


async def _refusals(source: Source, namespace: str) -> list[Event]:
    """Return the Events that say why something waits, and no others: a cluster has very many."""
    found: list[Event] = []
    for reason in REFUSALS:
        found += await source.all(
            EVENTS,
            fields=f"reason={reason}",
            or_in=namespace,
            without="why claims wait is known from the conditions of their pods alone",
        )
    return found


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
    source: Source,
    question: _Question,
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
) -> tuple[ShapeCount, ...]:
    """Count the shapes; our own taint excludes nothing."""
    rules: tuple[DeviceTaintRule, ...] = ()
    if question.rules is not None:
        rules = await source.all(question.rules, without="DeviceTaintRules are left out")
    snapshot = Snapshot.build(
        slices=[with_rules(s, rules) for s in slices],
        classes=await source.all(DEVICE_CLASSES),
        nodes=nodes,
        allocated=AllocatedState.from_claims(claims),
    )
    return count_shapes(snapshot, question.shapes, ignore_taint=is_controller_taint)
