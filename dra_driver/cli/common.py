"""Parts that subcommands share: flags for logging and output, tables."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TextIO, cast

import structlog

from dra_driver.errors import ApiUnavailable, ServerBusy

__all__ = [
    "add_cluster_arguments",
    "add_driver_root_arguments",
    "add_http_authorization_argument",
    "add_logging_arguments",
    "add_output_argument",
    "add_watch_arguments",
    "configure_logging",
    "format_data",
    "print_data",
    "show",
    "table",
]

LEVELS = ("debug", "info", "warning", "error")


def add_logging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default="info", help="least severity that is logged, to stderr"
    )
    parser.add_argument(
        "--log-format",
        choices=("json", "console"),
        default="console",
        help="one JSON object per line, or text for people",
    )


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--output table|json|yaml`` for commands that print data."""
    parser.add_argument(
        "--output", "-o", choices=("table", "json", "yaml"), default="table", help="form of the output"
    )


def add_http_authorization_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--http-authorization``.

    Args:
        parser: of the command.
        what: the pages that are protected.
    """
    parser.add_argument(
        "--http-authorization",
        choices=("none", "rbac"),
        default="none",
        help=f"who may read {what}: everybody who reaches the address (none), or accounts that RBAC lets get "
        "the path (nonResourceURLs), by the token that they send (rbac); default: none",
    )


def add_driver_root_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--host-root`` and ``--nvidia-driver-root``."""
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the host's file system is mounted, with NVIDIA's CDI document and driver files",
    )
    parser.add_argument(
        "--nvidia-driver-root",
        default="auto",
        metavar="PATH",
        help="where NVIDIA's driver is on the host, such as /run/nvidia/driver if a container installs it; "
        "auto: the first of the usual places that has its libraries, of the loaded version where it is known",
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


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--watch`` and ``--interval``, for ``show``."""
    parser.add_argument("--watch", "-w", action="store_true", help="show it again whenever it has changed")
    parser.add_argument(
        "--interval", type=_interval, default=2.0, help="with --watch: seconds between two looks"
    )


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: must be between 0.1 and 3600 seconds")
    return value


async def show(look: Callable[[], Awaitable[str]], args: argparse.Namespace) -> None:
    """Print what ``look`` returns: once, or with ``--watch`` whenever it differs from what was printed last.

    While watching, a look that fails because the API server is away is reported once (stderr) and repeated.
    """
    shown = complaint = ""
    while True:
        try:
            text = await look()
            complaint = ""
        except (ServerBusy, ApiUnavailable) as e:
            if not args.watch:
                raise
            text = shown
            if str(e) != complaint:
                complaint = str(e)
                print(f"{complaint}; trying again", file=sys.stderr)
        if text != shown:
            if shown and args.output == "table":
                print(f"--- {time.strftime('%H:%M:%S')}")
            print(text)
            sys.stdout.flush()
            shown = text
        if not args.watch:
            return
        await asyncio.sleep(args.interval)


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
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
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
        import json

        return json.dumps(data, indent=2)
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False)).rstrip("\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns, three spaces between them, no trailing blanks."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )
