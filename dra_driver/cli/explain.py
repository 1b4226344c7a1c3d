"""``dra-driver explain``: why a claim is or is not allocatable."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from controller.interest import is_our_taint
from dra_driver.api.core import NODES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import allocator_manifests, common
from dra_driver.cli.allocator_manifests import Manifests
from dra_driver.kube import KubeApi

__all__ = ["HELP", "add_arguments", "run"]

HELP = "why a claim is or is not allocatable: per node, request and device the first reason"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    group = parser.add_mutually_exclusive_group(required=True)
    allocator_manifests.add_file_argument(group)
    group.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="a live cluster instead of files (read only). The taint by which the controller keeps "
        "kube-scheduler off its devices excludes nothing here",
    )
    allocator_manifests.add_claim_argument(parser)
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status says that there was an answer, not which one."""
    if args.kubeconfig is None:
        return allocator_manifests.run_explain(allocator_manifests.read(args.file), args.claim, args.output)
    manifests = asyncio.run(_from_cluster(args.kubeconfig))
    return allocator_manifests.run_explain(manifests, args.claim, args.output, ignore_taint=is_our_taint)


async def _from_cluster(kubeconfig: Path) -> Manifests:
    """What the cluster has at this moment."""
    async with (
        await KubeApi.connect(
            kubeconfig, field_manager="dra-driver-explain", user_agent="dra-driver-explain"
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        slices = group.create_task(client.list(RESOURCE_SLICES))
        classes = group.create_task(client.list(DEVICE_CLASSES))
        nodes = group.create_task(client.list(NODES))
        claims = group.create_task(client.list(RESOURCE_CLAIMS))
    return Manifests(
        nodes=list(nodes.result().items),
        slices=list(slices.result().items),
        classes=list(classes.result().items),
        claims=list(claims.result().items),
        source=f"the cluster of {kubeconfig} has",
    )
