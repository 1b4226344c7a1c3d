"""``dra-driver allocate``: the allocator on manifests, or on recorded cases."""

from __future__ import annotations

import argparse
import sys

from dra_driver.cli import common
from dra_driver.cli.allocator import cases as allocator_cases
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.allocator import stream as allocator_stream
from dra_driver.errors import ConfigurationError
from dra_driver.structured import NodePolicy, Strategy

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    source = parser.add_mutually_exclusive_group(required=True)
    allocator_manifests.add_file_argument(source)
    source.add_argument(
        "--cases", metavar="FILE", help="recorded cases (JSON), of which every result is printed"
    )
    source.add_argument(
        "--stream",
        action="store_true",
        help="serve requests on stdin: one JSON object per line (op: load, allocate, free, slice), with one "
        "line of answer each, in order",
    )
    allocator_manifests.add_claim_argument(parser)
    parser.add_argument(
        "--strategy",
        choices=[s.value for s in Strategy],
        default=Strategy.BEST_FIT.value,
        help="first-fit: the devices that kube-scheduler would choose; best-fit: the best of all that fit",
    )
    allocator_manifests.add_node_policy_argument(parser)
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0 if everything fits (always with ``--cases``), 1 if a claim does not fit.
    """
    strategy, policy = Strategy(args.strategy), NodePolicy(args.node_policy)
    if args.file is None and policy is not NodePolicy.PACK:
        raise ConfigurationError("--node-policy goes with -f")
    if args.stream:
        if args.claim:
            raise ConfigurationError("--claim goes with -f, not with --stream")
        allocator_stream.serve(sys.stdin.buffer, sys.stdout.buffer, strategy)
        return 0
    if args.cases is not None:
        if args.claim:
            raise ConfigurationError("--claim goes with -f, not with --cases")
        form = "json" if args.output == "table" else args.output
        common.print_data(allocator_cases.run_file(args.cases, strategy), form)
        return 0
    return allocator_manifests.run_allocate(args.file, args.claim, strategy, policy, args.output)
