"""``dra-driver explain``: why a claim is or is not allocatable."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from controller.allocate.state.taint_rules import served_rules
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.names import SYSTEM_NAMESPACE
from dra_driver.api.own.checking import Kinds
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceTaintRule,
    ResourceClaim,
)
from dra_driver.cli import common
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.capacity import object_notes, server_notes
from dra_driver.cli.display.report import Block, Line, Report, plain
from dra_driver.cli.explaining.answers import Answer, answer_data, answer_report, answers, unserved
from dra_driver.cli.explaining.grants import grant_sentences, grants_of, needs_grant
from dra_driver.cli.explaining.missing import missing_claims
from dra_driver.cli.explaining.parts import of_target, part_blocks, part_data
from dra_driver.cli.explaining.targets import (
    CLAIM,
    DEVICE,
    NODE,
    POD,
    Target,
    is_target,
    parse_targets,
    pods_of,
)
from dra_driver.cli.explaining.usable_pools import unguarded_notes
from dra_driver.cli.live import showing
from dra_driver.cli.live.controller import silence
from dra_driver.cli.live.grants import read_grants
from dra_driver.cli.live.reading import Lister, Source
from dra_driver.cli.status import overview_of
from dra_driver.errors import Forbidden, InvalidInput
from dra_driver.fleet import GrantsShown, preemptions_of, waiting_condition, withheld_notes
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import pod_claims
from dra_driver.structured import DoesNotFit, NodePolicy, with_rules
from dra_driver.suggestions import did_you_mean

__all__ = ["FAILURE", "Explained", "add_arguments", "explained", "run"]

FAILURE: Final = 3
"""Exit status where the cluster cannot be read: 1 means that something does not fit."""

_EPILOG = """examples:
  dra-driver explain                      the claims of the namespace; -A for all
  dra-driver explain pod/train -n team    the claims of a pod, and whom it would preempt
  dra-driver explain deploy/serve         the claims of its pods
  dra-driver explain device/n5/gpu-0      a device: what is wrong, who holds it, what to do; node/n5 for all
  dra-driver explain claim/gpu -o wide    a row for each device
  dra-driver explain -f slices.yaml -f claim.yaml    manifests, without a cluster

exit status: 0 all fit or are allocated, 1 one does not or does not exist, its parameters are wrong, or the
controller that would allocate it does not answer, 2 the input is wrong, 3 no cluster can be read

Parameters of a third party's driver are checked if its package is installed beside this command.
Nothing is written. For a pod with the driver's scheduling gate the pools of the controller count, for
others all pools: the taint by which the controller keeps kube-scheduler off its devices is ignored."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "target",
        nargs="*",
        metavar="KIND/NAME",
        help="what is explained: pod/NAME (or pod NAME), claim/NAME, or the pods of deploy/NAME, rs/, sts/, "
        "ds/, job/; node/NAME and device/NODE/NAME: what is wrong there, who holds the devices, what to do; "
        "default: all claims of the namespace",
    )
    where = parser.add_argument_group("source")
    common.add_cluster_arguments(where)
    common.add_namespace_arguments(where)
    allocator_manifests.add_file_argument(where)
    where.add_argument(
        "--system-namespace",
        default=SYSTEM_NAMESPACE,
        metavar="NS",
        help="namespace of the driver, where its controller reports which devices are granted",
    )
    what = parser.add_argument_group("what to answer")
    allocator_manifests.add_claim_argument(what)
    what.add_argument(
        "--all-drivers",
        action="store_true",
        help="also count devices of drivers from which the class selects none",
    )
    allocator_manifests.add_node_policy_argument(what)
    shown = parser.add_argument_group("output")
    common.add_output_argument(shown, wide="a row for each device")
    showing.add_watch_arguments(shown)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if all claims fit or are allocated, 1 if one does not or has wrong parameters.
    """
    targets = parse_targets(args.target)
    if args.all_namespaces and targets:
        raise InvalidInput("KIND/NAME is of one namespace (-n), -A is for the claims of all")
    if parts := [target for target in targets if target.kind in (NODE, DEVICE)]:
        if len(parts) < len(targets) or args.file or args.watch:
            raise InvalidInput("nodes and devices are explained by themselves, of a live cluster, once")
        return asyncio.run(_parts(args, parts))
    if not args.file:
        return asyncio.run(_live(args, targets))
    if missing := [name for name in args.file if is_target(name) and not Path(name).exists()]:
        raise InvalidInput(f"-f takes every word after it as a file: put {missing[0]} before it")
    wrong = [f for f in ("kubeconfig", "context", "watch", "all_namespaces") if getattr(args, f)]
    if wrong:
        flag = wrong[0].replace("_", "-")
        raise InvalidInput(f"--{flag} is for a live cluster, -f for manifests; give one of them")
    if any(target.kind != CLAIM for target in targets):
        raise InvalidInput("of manifests (-f) only claims are explained: claim/NAME")
    found = _asked(allocator_manifests.read(args.file).with_own_classes(), targets, args, args.namespace)
    showing.print_shown(found.shown)
    return 0 if found.fits else 1


async def _parts(args: argparse.Namespace, targets: Sequence[Target]) -> int:
    """Print what is known of nodes and devices; return 0 if nothing is wrong with them."""
    async with await KubeApi.connect(
        args.kubeconfig, context=args.context, user_agent="dra-driver-explain"
    ) as client:
        nodes = [target.name.partition("/")[0] for target in targets]
        lister = Lister(client)
        overview = await overview_of(lister, client, nodes=nodes, system=args.system_namespace)
        _warn(lister.notes)
        found = [(target, *of_target(target, overview)) for target in targets]
    if args.output in ("json", "yaml"):
        showing.print_shown(common.format_data([part_data(*part) for part in found], args.output))
    else:
        showing.print_shown([list(part_blocks(*part, overview.now)) for part in found])
    return 1 if any(problems for _, _, problems in found) else 0


def _asked(
    manifests: Manifests,
    targets: Sequence[Target],
    args: argparse.Namespace,
    namespace: str,
    granted: GrantsShown | None = None,
    silent: str = "",
) -> Explained:
    return explained(
        manifests,
        targets,
        namespace,
        claims=args.claim,
        output=args.output,
        policy=NodePolicy(args.node_policy),
        all_drivers=args.all_drivers,
        granted=granted,
        kinds=_installed_kinds,
        silent=silent,
    )


@functools.cache
def _installed_kinds() -> Kinds:
    # The webhook's package costs time at each start, and most claims have no parameters.
    from controller.admission.installed_kinds import installed_kinds

    return installed_kinds()


async def _live(args: argparse.Namespace, targets: Sequence[Target]) -> int:
    async with await KubeApi.connect(
        args.kubeconfig,
        context=args.context,
        field_manager="dra-driver-explain",
        user_agent="dra-driver-explain",
    ) as client:
        namespace = "" if args.all_namespaces else args.namespace or client.namespace
        rules = await served_rules(client)
        fits = True
        if not targets:
            _warn(await server_notes(client, namespace))

        async def look(source: Source) -> showing.Shown:
            nonlocal fits
            manifests = await _from_cluster(source, rules, namespace)
            if any(target.kind != CLAIM for target in targets):
                manifests.templates = await _templates(client, manifests, namespace or "default")
            if not targets and isinstance(source, Lister):
                # They are looked at once: a reader of their own, so that nobody watches them.
                once = Lister(client)
                templates = await once.all(
                    RESOURCE_CLAIM_TEMPLATES, or_in=namespace, without="templates are not looked at"
                )
                _warn([*once.notes, *object_notes(templates, manifests.claims, namespace)])
            granted = await read_grants(client, args.system_namespace) if targets else None
            silent = await silence(client, args.system_namespace, SystemClock())
            found = _asked(manifests, targets, args, namespace, granted, silent)
            fits = found.fits
            return found.shown

        await showing.show(client, look, args)
    return 0 if fits else 1


async def _templates(client: KubeClient, manifests: Manifests, namespace: str) -> frozenset[ObjectKey] | None:
    """Return the templates of a namespace; None if no claim of its pods is missing, or they may not be read.

    They are read anew each time, and not followed: a claim that is made of one is seen anyway.
    """
    there = {c.key for c in manifests.claims}
    of_namespace = (pod for pod in manifests.pods if pod.metadata.namespace == namespace)
    if not any(claim.template for pod in of_namespace for claim in missing_claims(pod, there, None)):
        return None
    try:
        found = await client.list(RESOURCE_CLAIM_TEMPLATES, namespace)
    except Forbidden:
        return None
    return frozenset([*(t.key for t in found.items), *(one.key for one in found.unreadable)])


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)


async def _from_cluster(source: Source, rules: Resource[DeviceTaintRule] | None, namespace: str) -> Manifests:
    """Return what the cluster has at this moment."""
    taints = await source.all(rules, without="DeviceTaintRules are left out") if rules is not None else ()
    withheld = "which devices are not published, and why, is unknown"
    return Manifests(
        nodes=list(await source.all(NODES, without="nodes are known by what slices say of them")),
        slices=[with_rules(s, taints) for s in await source.all(RESOURCE_SLICES)],
        classes=list(await source.all(DEVICE_CLASSES)),
        claims=list(
            await source.all(
                RESOURCE_CLAIMS,
                or_in=namespace,
                in_part="devices that claims of other namespaces hold look free",
            )
        ),
        pods=list(await source.all(PODS, or_in=namespace, without="pods are not looked at")),
        inventories=list(await source.all(DEVICE_INVENTORIES, without=withheld, optional=True)),
        source="the cluster has",
    )


# --- answering ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explained:
    """What is printed, and whether all of it fits."""

    shown: showing.Shown
    fits: bool

    def __str__(self) -> str:
        return self.shown if isinstance(self.shown, str) else plain(self.shown)


def explained(
    manifests: Manifests,
    targets: Sequence[Target] = (),
    namespace: str = "",
    *,
    claims: Sequence[str] = (),
    output: str = "table",
    policy: NodePolicy = NodePolicy.PACK,
    all_drivers: bool = False,
    granted: GrantsShown | None = None,
    kinds: Callable[[], Kinds] = dict,
    silent: str = "",
) -> Explained:
    """Return why claims can be allocated or not.

    Args:
        manifests: the cluster.
        targets: what is asked about; if there are neither targets nor claims, all claims.
        namespace: of the targets; empty: all.
        claims: further claims, by ``namespace/name`` or name.
        output: ``table``, ``wide``, ``json`` or ``yaml``.
        policy: which of several nodes that are equally good.
        all_drivers: whether devices of drivers that a claim is not about are counted.
        granted: what the controller says of grants; if None, that is not known.
        kinds: looks for the kinds of opaque parameters that installed packages bring.
        silent: for how long the controller has not answered; empty if it does.

    Raises:
        InvalidInput: something that is named is not there.
    """
    pods = _pods(manifests, [t for t in targets if t.kind != CLAIM], namespace)
    chosen = _claims(manifests, targets, claims, pods, namespace)
    found = answers(manifests, chosen, policy=policy, all_drivers=all_drivers, kinds=kinds)
    found = unserved(found, manifests, silent)
    there = {c.key for c in manifests.claims}
    complete = not any(True for pod in pods for _ in missing_claims(pod, there, None))
    fits = complete and all(a.fits and not a.parameters.wrong for a in found)
    withheld = () if all(a.fits for a in found) else withheld_notes(manifests.inventories)
    waits = any(not a.is_allocated for a in found) or any(not pod.spec.node_name for pod in pods)
    unguarded = unguarded_notes(manifests.inventories) if waits else ()
    if output in ("json", "yaml"):
        data: dict[str, Any] = {"fits": fits, "claims": [answer_data(a) for a in found]}
        if withheld:
            data["withheld"] = list(withheld)
        if unguarded:
            data["notOpen"] = list(unguarded)
        if pods:
            data["pods"] = [_pod_data(manifests, pod, found, granted) for pod in pods]
        return Explained(common.format_data(data, output), fits)
    named = bool(targets or claims)
    report: list[Sequence[Block]] = list(_pods_report(manifests, pods, found, granted))
    report += answer_report(found, wide=output == "wide", condense=not named)
    if withheld or unguarded:
        report.append([Line(note, "warning") for note in (*withheld, *unguarded)])
    return Explained(report, fits)


def _pods(manifests: Manifests, targets: Sequence[Target], namespace: str) -> list[Pod]:
    where = namespace or "default"
    pods: dict[str, Pod] = {}
    for target in targets:
        of_target = pods_of(target, where, manifests.pods)
        if not of_target:
            raise InvalidInput(_no_pods(manifests, target, where))
        pods |= {pod.metadata.name: pod for pod in of_target}
    return list(pods.values())


def _no_pods(manifests: Manifests, target: Target, namespace: str) -> str:
    """Return that a target has no pods, with what it was probably meant for."""
    what = f"no {target}" if target.kind == POD else f"no pod of {target}"
    text = f"there is {what} in namespace {namespace}"
    if target.kind != POD:
        return text + did_you_mean(namespace, manifests.namespaces())
    elsewhere = sorted(p.metadata.namespace for p in manifests.pods if p.metadata.name == target.name)
    if elsewhere:
        return f"{text}; namespace {elsewhere[0]} has one"
    names = {p.metadata.name for p in manifests.pods if p.metadata.namespace == namespace}
    return text + (did_you_mean(target.name, names) or did_you_mean(namespace, manifests.namespaces()))


def _claims(
    manifests: Manifests, targets: Sequence[Target], flags: Sequence[str], pods: Sequence[Pod], namespace: str
) -> list[ResourceClaim]:
    names = [*flags, *(t.name for t in targets if t.kind == CLAIM)]
    found = manifests.select(names, namespace) if names or not targets else []
    wanted = {used.key for pod in pods for used in pod_claims(pod)} - {c.key for c in found}
    return found + [c for c in manifests.claims if c.key in wanted]


def _pod_data(
    manifests: Manifests, pod: Pod, found: Sequence[Answer], granted: GrantsShown | None
) -> dict[str, Any]:
    own = [msgspec.to_builtins(row) for row in preemptions_of(manifests.pods) if row.pod == str(pod.key)]
    condition = waiting_condition(pod)
    missing = list(missing_claims(pod, {c.key for c in manifests.claims}, manifests.templates))
    return {
        "pod": str(pod.key),
        "node": pod.spec.node_name or "",
        "waits": str(condition.get("message") or "") if condition is not None else "",
        "claims": [str(used.key) for used in pod_claims(pod) if used.key is not None],
        "missingClaims": [claim.entry for claim in missing],
        "missing": [str(claim) for claim in missing],
        "preemptions": own,
        "needsGrant": needs_grant(manifests, pod, found),
        "grants": msgspec.to_builtins(grants_of(pod, granted)),
    }


def _waits(message: str, headlines: Sequence[str]) -> str:
    """Return the message of a pod's condition as a line, without what is said of its claims below."""
    for headline in headlines:
        before, found, _ = message.partition(headline)
        if found:
            message = before.rstrip(": ")
            break
    if not message:
        return "waits for its claims"
    # Some of these messages begin with the verb.
    return message if message.startswith("waits ") else f"waits: {message}"


def _headlines(pod: Pod, found: Sequence[Answer]) -> list[str]:
    """Return what the claims of a pod ask for that do not fit."""
    own = {used.key for used in pod_claims(pod)}
    return [a.outcome.headline for a in found if a.claim.key in own and isinstance(a.outcome, DoesNotFit)]


def _pods_report(
    manifests: Manifests, pods: Sequence[Pod], found: Sequence[Answer], granted: GrantsShown | None
) -> Report:
    """Return what is known of pods; those that wait for the same reason are one paragraph."""
    same: dict[tuple[str, ...], list[Pod]] = {}
    there = {c.key for c in manifests.claims}
    preemptions = preemptions_of(manifests.pods)
    for pod in pods:
        lines = [f"runs on node {pod.spec.node_name}"] if pod.spec.node_name else []
        condition = waiting_condition(pod)
        if condition is not None:
            lines.append(_waits(str(condition.get("message") or ""), _headlines(pod, found)))
        lines += grant_sentences(manifests, pod, found, granted)
        lines += [row.sentence for row in preemptions if row.pod == str(pod.key)]
        if not any(True for _ in pod_claims(pod)):
            lines.append("uses no ResourceClaim")
        lines += map(str, missing_claims(pod, there, manifests.templates))
        same.setdefault(tuple(lines), []).append(pod)
    paragraphs: list[list[Block]] = []
    for said, alike in same.items():
        names = ", ".join(str(pod.key) for pod in alike[:3])
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        paragraphs.append([Line(f"pod{'s' * (len(alike) > 1)} {names}{more}", "strong"), *map(Line, said)])
    return paragraphs
