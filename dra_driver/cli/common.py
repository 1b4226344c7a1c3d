"""Parts that subcommands share: flags for logging and output, tables."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

import structlog

from dra_driver.cli.display.report import Table, plain
from dra_driver.cli.display.terminal import print_report

__all__ = [
    "add_cluster_arguments",
    "add_driver_root_arguments",
    "add_http_authorization_argument",
    "add_logging_arguments",
    "add_namespace_arguments",
    "add_output_argument",
    "configure_logging",
    "format_data",
    "print_data",
    "print_table",
    "table",
    "whole_number",
]

LEVELS = ("debug", "info", "warning", "error")


def whole_number(text: str) -> int:
    """Return the number of a flag; for ``type=``."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: expected a whole number") from None


def add_logging_arguments(parser: argparse._ActionsContainer, level: str = "info") -> None:
    """Add ``--log-level``, with its default, and ``--log-format``."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default=level, help="least severity that is logged, to stderr"
    )
    parser.add_argument(
        "--log-format",
        choices=("json", "console"),
        default="console",
        help="one JSON object per line, or text for people",
    )


def add_output_argument(parser: argparse._ActionsContainer, wide: str = "") -> None:
    """Add ``--output table|json|yaml`` for commands that print data.

    Args:
        parser: of the command.
        wide: what ``--output wide`` shows; if empty, there is no such form.
    """
    more = f"; wide: {wide}" if wide else ""
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", *(["wide"] if wide else []), "json", "yaml"),
        default="table",
        help=f"output format{more}",
    )


def add_http_authorization_argument(parser: argparse._ActionsContainer, what: str) -> None:
    """Add ``--http-authorization``.

    Args:
        parser: of the command.
        what: the pages that are protected.
    """
    parser.add_argument(
        "--http-authorization",
        choices=("none", "rbac"),
        default="none",
        help=f"who may read {what}: everybody who reaches the address (none), or accounts that RBAC allows "
        "to get the path (nonResourceURLs), by the token that they send (rbac); default: none",
    )


def add_driver_root_arguments(parser: argparse._ActionsContainer) -> None:
    """Add ``--host-root`` and ``--nvidia-driver-root``."""
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="mount of the host's file system, with NVIDIA's CDI document and driver files",
    )
    parser.add_argument(
        "--nvidia-driver-root",
        default="auto",
        metavar="PATH",
        help="root of NVIDIA's driver on the host, such as /run/nvidia/driver if a container installs it; "
        "auto: the first usual place with its libraries, preferably of the loaded version",
    )


def add_cluster_arguments(parser: argparse._ActionsContainer) -> None:
    """Add ``--kubeconfig`` and ``--context``, as kubectl has them."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig; default: the KUBECONFIG variable, the pod's service account, ~/.kube/config",
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="context of the kubeconfig; default: the current one"
    )


def add_namespace_arguments(parser: argparse._ActionsContainer) -> None:
    """Add ``--namespace`` and ``--all-namespaces``, as kubectl has them."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "-n", "--namespace", default="", metavar="NS", help="namespace; default: that of the context"
    )
    which.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")


class _Stderr:
    """The current ``sys.stderr`` of each write: loggers outlive a redirection of the stream."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logging(level: str, form: str) -> None:
    """Configure structlog and the standard library's logging: everything to stderr."""
    number = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        # By default tracebacks show the values of variables, where the package rich is installed.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if form == "json":
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Stderr())),
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def print_data(data: object, form: str) -> None:
    """Print plain data as JSON or YAML to stdout."""
    print(format_data(data, form))


def format_data(data: object, form: str) -> str:
    """Return plain data as JSON or YAML, without a newline at the end."""
    if form == "json":
        return json.dumps(data, indent=2)
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False)).rstrip("\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table that fits the terminal; in a pipe each row is one line."""
    print_report([[Table(header, rows)]])


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns and three spaces between them, for pipes and terminals alike."""
    return plain([[Table(header, rows)]])
