"""``dra-driver explain``: why a claim is or is not allocatable."""

from __future__ import annotations

import argparse

from dra_driver.cli import allocator_manifests, common

__all__ = ["HELP", "add_arguments", "run"]

HELP = "why a claim is or is not allocatable: per node, request and device the first reason"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    group = parser.add_mutually_exclusive_group(required=True)
    allocator_manifests.add_file_argument(group)
    allocator_manifests.add_claim_argument(parser)
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; the exit status says that there was an answer, not which one."""
    return allocator_manifests.run_explain(args.file, args.claim, args.output)
