"""``dra-driver explain``: why a claim is or is not allocatable."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec

from controller.allocate.state.taint_rules import served_rules
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import common
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.capacity import dropped_notes
from dra_driver.errors import Forbidden, InvalidInput
from dra_driver.fleet import preemptions_of, waiting_condition
from dra_driver.kube import KubeApi
from dra_driver.resourceclaim import pod_claims
from dra_driver.structured import NodePolicy, with_rules

__all__ = ["add_arguments", "run"]


_EPILOG = """Without -f, a live cluster is read (and nothing is written). The taint by which the controller
keeps kube-scheduler off its devices excludes nothing, in a cluster and in manifests."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "pod",
        nargs="?",
        default="",
        metavar="pod/NAME",
        help="a pod that waits, of the namespace (default: default): its claims, and whom it would preempt",
    )
    allocator_manifests.add_file_argument(parser)
    common.add_cluster_arguments(parser)
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        metavar="NS",
        help="only claims of this namespace; default: all namespaces",
    )
    allocator_manifests.add_claim_argument(parser)
    allocator_manifests.add_node_policy_argument(parser)
    common.add_watch_arguments(parser)
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; the exit status says that there was an answer, not which one."""
    if args.pod and not (args.pod.startswith("pod/") and args.pod[4:]):
        raise InvalidInput(f"{args.pod!r}: a pod is named pod/NAME, a claim by --claim NS/NAME")
    if args.file:
        if args.pod:
            raise InvalidInput("pod/NAME is for a live cluster, -f for manifests; give one of them")
        wrong = [flag for flag in ("kubeconfig", "context", "watch") if getattr(args, flag)]
        if wrong:
            raise InvalidInput(f"--{wrong[0]} is for a live cluster, -f for manifests; give one of them")
        manifests = allocator_manifests.read(args.file)
        policy = NodePolicy(args.node_policy)
        print(
            allocator_manifests.explained(
                manifests, args.claim, args.output, namespace=args.namespace, policy=policy
            )
        )
        return 0
    asyncio.run(_live(args))
    return 0


async def _live(args: argparse.Namespace) -> None:
    async with await KubeApi.connect(
        args.kubeconfig,
        context=args.context,
        field_manager="dra-driver-explain",
        user_agent="dra-driver-explain",
    ) as client:

        async def look() -> str:
            manifests = await _from_cluster(client)
            if args.pod:
                key = ObjectKey(args.namespace or "default", args.pod[4:])
                return explained_pod(manifests, key, args.output, NodePolicy(args.node_policy))
            for note in await dropped_notes(client, manifests.claims, args.namespace):
                print(f"warning: {note}", file=sys.stderr)
            return allocator_manifests.explained(
                manifests,
                args.claim,
                args.output,
                namespace=args.namespace,
                policy=NodePolicy(args.node_policy),
            )

        await common.show(look, args)


def explained_pod(manifests: Manifests, key: ObjectKey, output: str, policy: NodePolicy) -> str:
    """Return, as printed, what is known of a pod, and why its claims can be allocated or not.

    Raises:
        InvalidInput: there is no such pod.
    """
    pod = next((p for p in manifests.pods if p.key == key), None)
    if pod is None:
        raise InvalidInput(f"there is no pod {key}, or pods may not be read")
    there = {c.key for c in manifests.claims}
    claims = [str(used.key) for used in pod_claims(pod) if used.key in there]
    own = [row for row in preemptions_of(manifests.pods) if row.pod == str(key)]
    if output != "table":
        found = {"pod": str(key), "preemptions": [msgspec.to_builtins(row) for row in own]}
        return common.format_data(found | {"claims": claims}, output)
    condition = waiting_condition(pod)
    lines = [f"pod {key}"]
    lines += [f"waits: {condition.get('message')}"] if condition is not None else []
    lines += [row.sentence for row in own]
    text = "\n".join(lines)
    if not claims:
        return text
    return text + "\n\n" + allocator_manifests.explained(manifests, claims, output, policy=policy)


async def _from_cluster(client: KubeApi) -> Manifests:
    """Return what the cluster has at this moment."""
    resource = await served_rules(client)
    try:
        rules = (await client.list(resource)).items if resource is not None else ()
    except Forbidden:
        rules = ()
    try:
        pods = (await client.list(PODS)).items
    except Forbidden:
        pods = ()
    return Manifests(
        nodes=list((await client.list(NODES)).items),
        slices=[with_rules(s, rules) for s in (await client.list(RESOURCE_SLICES)).items],
        classes=list((await client.list(DEVICE_CLASSES)).items),
        claims=list((await client.list(RESOURCE_CLAIMS)).items),
        pods=list(pods),
        source="the cluster has",
    )
