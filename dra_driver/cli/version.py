"""``dra-driver version``: what runs here."""

from __future__ import annotations

import argparse
import platform

import dra_driver
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.cli import common

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the version, the interpreter's, and that of the API that is spoken."""
    found = {
        "version": dra_driver.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
        "api": RESOURCE_CLAIMS.api_version,
    }
    if args.output == "table":
        print("\n".join(f"{name:<10}{value}" for name, value in found.items()))
    else:
        common.print_data(found, args.output)
    return 0
