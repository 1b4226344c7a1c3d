"""``dra-driver fake-hardware``: a tree of sysfs, procfs and device nodes of a machine that does not exist."""

from __future__ import annotations

import argparse
from pathlib import Path

from dra_driver.discovery.simulated import layout, profile

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--spec",
        required=True,
        metavar="NAME|FILE",
        help=f"a built-in profile ({', '.join(profile.built_in_profiles())}) or a YAML file",
    )
    parser.add_argument(
        "--root", required=True, type=Path, metavar="DIR", help="a new or empty directory for the trees"
    )
    parser.add_argument(
        "--mknod",
        action="store_true",
        help="make device nodes (all of the null device; needs root) instead of regular files",
    )


def run(args: argparse.Namespace) -> int:
    """Build the trees and print how to look at them.

    Raises:
        ConfigurationError: the profile is wrong, or the directory cannot be used.
    """
    machine = profile.load(args.spec)
    layout.build(machine, args.root, mknod=args.mknod)
    print(f"{args.root}: {machine.description or args.spec} ({len(machine.devices)} devices)")
    print(f"  dra-driver devices --sysfs-root {args.root}/sys --dev-root {args.root}/dev")
    return 0
