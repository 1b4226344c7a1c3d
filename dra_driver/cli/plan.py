"""``dra-driver plan``: would it fit, and what would make it fit."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from controller.allocate.plans import ClusterBuilder, plan_data
from dra_driver.api.names import SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.cli import common
from dra_driver.cli.display.progress import Progress
from dra_driver.cli.display.report import printable
from dra_driver.cli.live.controller import silence
from dra_driver.cli.planning import flags, inputs, output
from dra_driver.cli.planning.inputs import Objects
from dra_driver.cli.planning.whose_pools import ANYBODY, allocator_for, slices_for
from dra_driver.cli.planning.workloads import Questions, full_name
from dra_driver.errors import ConfigurationError, DraError, InvalidInput
from dra_driver.fleet import withheld_notes
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.ownership import PoolAllocator, allocating_pools
from dra_driver.planning import Checks, LeftOut, Plan, PlannedCluster, Template, Workload, make_plan, take_in

__all__ = ["add_arguments", "run", "until_interrupted"]

# Seconds after which all time is over.
_FOREVER = 1e9

_EPILOG = """examples:
  dra-driver plan -f job.yaml                         does it fit now, and if not, what would make it fit
  dra-driver plan --gpus 8 --memory 32Gi --same nvlinkGroup --how-many
  dra-driver plan --claim team/training               a claim that waits
  dra-driver plan -f job.yaml --fleet h100x8:40       on nodes that are not there yet

exit status: 0 all fit, 1 one does not, or the controller does not answer, 2 the input is wrong, 3 the
cluster cannot be read

The cluster is a live one (the default), exported objects (-s), or a described fleet (--fleet). Nothing is
written. Several workloads are answered one after the other, each beside what the ones before it got. Ctrl-C
ends the search: what is known by then is printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.epilog = _EPILOG
    asked = parser.add_argument_group("workload")
    asked.add_argument(
        "-f", "--file", metavar="FILE", nargs="+", action="extend", default=[],
        help="claims, templates, pods, Deployments, StatefulSets, Jobs, JobSets, PodGroups (YAML or JSON, "
        "several documents a file; - for stdin)",
    )  # fmt: skip
    asked.add_argument("--claim", metavar="NS/NAME", help="a waiting claim of the cluster, instead of -f")
    asked.add_argument("--pod", metavar="NS/NAME", help="a waiting pod of the cluster, with its group")
    asked.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NS",
        help="namespace of --claim and --pod if they name none; default: that of the context",
    )
    flags.add_request_arguments(parser)
    _add_cluster(parser.add_argument_group("cluster"))
    answer = parser.add_argument_group("output")
    answer.add_argument("--how-many", action="store_true", help="count how many copies of the workload fit")
    answer.add_argument(
        "--node-profile",
        metavar="PROFILE",
        action="append",
        default=[],
        help="a kind of node to add (repeatable); default: the kinds that exist",
    )
    answer.add_argument(
        "--seconds",
        metavar="S",
        default="30",
        help="time limit for all answers; unproven answers are marked",
    )
    common.add_output_argument(answer)


def _add_cluster(parser: argparse._ActionsContainer) -> None:
    common.add_cluster_arguments(parser)
    parser.add_argument(
        "--allocator",
        choices=("controller", "scheduler", ANYBODY),
        help="whose pools to consider; default: those of the controller, or all for --pod and --claim of "
        "waiting pods without the controller's gate",
    )
    parser.add_argument(
        "--system-namespace",
        default=SYSTEM_NAMESPACE,
        metavar="NS",
        help="namespace of the driver, in which its controller has a Lease",
    )
    parser.add_argument(
        "-s", "--snapshot", metavar="FILE", nargs="+", action="extend", default=[],
        help="exported objects instead of a live cluster: kubectl get "
        "nodes,pods,resourceslices,resourceclaims,resourceclaimtemplates,deviceclasses -A -o json; add "
        "deviceinventories to learn what is not published",
    )  # fmt: skip
    parser.add_argument(
        "--fleet",
        metavar="PROFILE:N,…",
        help="a fleet instead of a live cluster: profiles and numbers of nodes, such as h100x8:40,l4x4:10",
    )
    parser.add_argument(
        "--partitions",
        action="append",
        default=[],
        metavar="PROFILE",
        help="with --fleet: MIG profile that is published beside whole GPUs (repeatable; * for all); "
        "default: all with --mig, otherwise none",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if everything fits, 1 if something does not, 3 if the cluster cannot be read.

    Raises:
        ConfigurationError: with everything that is wrong with the input.
    """
    line = Progress()
    progress, done = line.show, line.clear
    # What is read stays until the end: to look for garbage in it would take a third of the time.
    gc.disable()
    try:
        return _run(args, progress, done)
    except InvalidInput:
        raise
    except DraError as e:
        # Not 1: that means that something does not fit.
        done()
        print(printable(f"dra-driver plan: {e}"), file=sys.stderr)
        return 3
    finally:
        done()
        gc.enable()


def _run(args: argparse.Namespace, progress: Callable[[str], None], done: Callable[[], None]) -> int:
    findings: list[str] = []
    notes: list[str] = []
    seconds = _seconds(args.seconds, findings)
    _check_sources(args, findings)
    if args.fleet is None and not args.snapshot and (wrong := flags.wrong_numbers(args)):
        raise ConfigurationError([*findings, *wrong])  # no cluster is asked for that
    asked = inputs.from_files(args.file, findings, ask=True)
    objects = _objects(args, asked, findings, notes, progress)
    left_out = _leave_out(args, objects, notes)
    progress("the pods of nodes")
    builder = ClusterBuilder(objects)
    workloads = _workloads(args, asked, objects, builder, findings, notes)
    templates = _templates(args, builder, asked, findings)
    if findings:
        raise ConfigurationError(findings)
    progress("the devices of nodes")
    cluster = builder.build(not_held=[key for w in workloads for key in w.claims])
    cluster = replace(cluster, left_out=left_out)
    gc.freeze()
    gc.enable()
    with until_interrupted() as clock:
        shown = _plans(args, cluster, workloads, templates, seconds, clock, progress)
    silent = _silence(args, objects) if any(plan.placed is not None for plan, _ in shown) else ""
    if any(plan.placed is None for plan, _ in shown):
        notes += withheld_notes(_inventories(args, asked, objects))
    done()
    for note in dict.fromkeys(notes):
        print(f"note: {printable(note)}", file=sys.stderr)
    wrong = [f"{plan.workload.name} cannot be allocated: {plan.reason}" for plan, _ in shown if plan.error]
    if args.output == "table":
        # What is wrong with a request is an error, and said as such.
        texts = [output.text_of(plan, cluster, silent) for plan, cluster in shown if not plan.error]
        if texts:
            print(printable("\n\n".join(texts)))
    else:
        data: dict[str, Any] = {"plans": [plan_data(plan, cluster) for plan, cluster in shown]}
        data |= {"notes": notes, **({"controller": silent} if silent else {})}
        common.print_data(data, args.output)
    if wrong:
        raise ConfigurationError(wrong)
    return 0 if all(plan.placed is not None for plan, _ in shown) and not silent else 1


@contextmanager
def until_interrupted() -> Iterator[Callable[[], float]]:
    """Give a clock in seconds; the first Ctrl-C ends all time, so that what is known by then is shown."""
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield time.monotonic
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: time.monotonic() + (_FOREVER if interrupted else 0)
    finally:
        signal.signal(signal.SIGINT, before)


def _plans(
    args: argparse.Namespace,
    cluster: PlannedCluster,
    workloads: Sequence[Workload],
    templates: Sequence[Template],
    seconds: float,
    clock: Callable[[], float],
    progress: Callable[[str], None],
) -> list[tuple[Plan, PlannedCluster]]:
    """Return a plan for each workload, with the cluster that it is about."""
    end = clock() + seconds
    found: list[tuple[Plan, PlannedCluster]] = []
    for number, workload in enumerate(workloads):
        now = min(clock(), end)
        deadline = now + (end - now) / (len(workloads) - number)
        checks = Checks(cluster, clock, deadline, progress)
        plan = make_plan(checks, workload, templates=templates, count=args.how_many)
        found.append((plan, cluster))
        cluster = take_in(cluster, plan)
    return found


# --- input --------------------------------------------------------------------------------------------------


def _seconds(text: str, findings: list[str]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        findings.append(f"--seconds {text}: expected 0.1 to 3600")
        return 1.0
    return value


def _check_sources(args: argparse.Namespace, findings: list[str]) -> None:
    given = flags.request_given(args)
    questions = [
        name
        for name, is_given in (("-f", args.file), ("--claim", args.claim), ("--pod", args.pod))
        if is_given
    ]
    if len(questions) > 1 or (questions and given):
        findings.append(
            f"{', '.join([*questions, *given])}: give one of -f, --claim, --pod, or a request in flags"
        )
    if not questions and not given:
        findings.append(
            "nothing is asked: give -f FILE, --claim, --pod, or a request in flags such as --gpus 8"
        )
    live = [f"--{name}" for name in ("kubeconfig", "context") if getattr(args, name)]
    described = args.fleet is not None
    sources = [n for n, is_given in (("--snapshot", args.snapshot), ("--fleet", described)) if is_given]
    if len(sources) > 1 or (sources and live):
        findings.append(f"{', '.join([*sources, *live])}: give one cluster only, live, exported or described")
    if described and (args.claim or args.pod):
        findings.append("--claim and --pod are about a cluster; a described fleet has neither")
    if args.partitions and not (described or args.node_profile):
        findings.append("--partitions goes with --fleet or --node-profile")


def _objects(
    args: argparse.Namespace,
    asked: Objects,
    findings: list[str],
    notes: list[str],
    progress: Callable[[str], None],
) -> Objects:
    """Return the cluster's objects: of the fleet, of files, or of the API server."""
    if args.fleet is not None:
        objects = _described(args, asked, findings)
    elif args.snapshot:
        progress(f"reading {', '.join(args.snapshot)}")
        objects = inputs.from_files(args.snapshot, findings, ask=False)
        if not findings and not objects.slices:
            findings.append(
                f"{', '.join(args.snapshot)}: no ResourceSlices; export them with kubectl get -o json"
            )
        if not objects.claims:
            notes.append("no ResourceClaims are exported: all devices count as free")
        if not objects.pods_known:
            notes.append("no pods are exported: priorities and what pods take of nodes are not looked at")
    elif findings:
        return Objects()
    else:
        objects = asyncio.run(_live(args, notes, progress))
    # A draft may bring slices, classes and nodes of its own.
    objects.nodes += asked.nodes
    objects.slices += asked.slices
    names = {c.metadata.name for c in asked.classes}
    objects.classes = [c for c in objects.classes if c.metadata.name not in names] + asked.classes
    objects.rules += asked.rules
    return objects


def _leave_out(args: argparse.Namespace, objects: Objects, notes: list[str]) -> LeftOut | None:
    """Leave out, and return, the pools from which somebody else would allocate for what is asked about."""
    pod, claim = (full_name(given, args.namespace) if given else "" for given in (args.pod, args.claim))
    allocator = args.allocator or allocator_for(objects.pods, pod, claim)
    objects.slices, left_out, note = slices_for(objects.slices, allocator)
    if note:
        notes.append(note)
    return left_out


def _described(args: argparse.Namespace, asked: Objects, findings: list[str]) -> Objects:
    # The discovery behind it takes a quarter of a second to import.
    from dra_driver.cli.described_fleet import described_fleet

    try:
        found = described_fleet(
            args.fleet, _partitions(args), driver=args.driver_name, policies=asked.policies
        )
    except ConfigurationError as e:
        findings += e.findings
        return Objects()
    return Objects(nodes=list(found.nodes), slices=list(found.slices), classes=list(found.classes))


def _partitions(args: argparse.Namespace) -> list[str]:
    """Return the profiles of partitions that a described fleet publishes; all where one is asked for."""
    given: list[str] = args.partitions
    return given or (["*"] if args.mig else [])


async def _client(args: argparse.Namespace) -> KubeApi:
    return await KubeApi.connect(
        args.kubeconfig, context=args.context, field_manager="dra-driver-plan", user_agent="dra-driver-plan"
    )


async def _live(args: argparse.Namespace, notes: list[str], progress: Callable[[str], None]) -> Objects:
    async with await _client(args) as client:
        args.namespace = args.namespace or client.namespace
        return await inputs.from_cluster(client, notes, progress)


def _silence(args: argparse.Namespace, objects: Objects) -> str:
    """Return for how long a controller that would allocate in a live cluster has not answered."""
    allocators = allocating_pools(objects.slices).values()
    if args.fleet is not None or args.snapshot or PoolAllocator.CONTROLLER not in allocators:
        return ""

    async def read() -> str:
        async with await _client(args) as client:
            return await silence(client, args.system_namespace, SystemClock())

    return asyncio.run(read())


def _inventories(args: argparse.Namespace, asked: Objects, objects: Objects) -> list[DeviceInventory]:
    """Return what says which devices are not published; a live cluster is asked only when that matters."""
    if args.fleet is not None or args.snapshot:
        return objects.inventories + asked.inventories

    async def read() -> list[DeviceInventory]:
        async with await _client(args) as client:
            return await inputs.inventories_of(client)

    return asyncio.run(read())


def _workloads(
    args: argparse.Namespace,
    asked: Objects,
    objects: Objects,
    builder: ClusterBuilder,
    findings: list[str],
    notes: list[str],
) -> list[Workload]:
    questions = Questions(asked, objects, builder, findings, notes)
    if args.claim:
        return questions.existing(args.claim, "claim", args.namespace)
    if args.pod:
        if not builder.objects.pods_known and builder.objects.nodes:
            findings.append(f"--pod {args.pod}: there are no pods, or they may not be listed")
            return []
        return questions.existing(args.pod, "pod", args.namespace)
    if args.file:
        found = questions.workloads()
        if not found and not findings:
            findings.append(
                f"{', '.join(args.file)}: nothing that asks for devices; a claim or a pod is expected"
            )
        return found
    one = flags.workload_of(args, builder, findings)
    return [one] if one is not None else []


def _templates(
    args: argparse.Namespace, builder: ClusterBuilder, asked: Objects, findings: list[str]
) -> list[Template]:
    """Return the kinds of nodes of which more are tried."""
    if not args.node_profile:
        return builder.templates()
    from dra_driver.cli.described_fleet import NodeFactory, name_of

    factory = NodeFactory(args.driver_name, asked.policies, _partitions(args))
    found: list[Template] = []
    for profile in args.node_profile:
        try:
            nodes, slices = factory.nodes(profile, [name_of(profile)])
        except ConfigurationError as e:
            findings += [f"--node-profile: {finding}" for finding in e.findings]
            continue
        found.append(Template(profile, nodes[0], tuple(slices)))
    return found
