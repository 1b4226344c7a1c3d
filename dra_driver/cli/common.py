"""What the subcommands share: logging flags, ``--output``, tables."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TextIO, cast

import structlog

__all__ = [
    "add_logging_arguments",
    "add_output_argument",
    "configure_logging",
    "format_data",
    "print_data",
    "table",
]

LEVELS = ("debug", "info", "warning", "error")


def add_logging_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default="info", help="least severity that is logged (stderr)"
    )
    parser.add_argument(
        "--log-format",
        choices=("json", "console"),
        default="console",
        help="one JSON object a line, or text for people",
    )


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--output table|json|yaml`` for commands that print data."""
    parser.add_argument(
        "--output", "-o", choices=("table", "json", "yaml"), default="table", help="form of the output"
    )


class _Stderr:
    """Whatever ``sys.stderr`` is when a line is written: loggers outlive a redirection of the stream."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logging(level: str, form: str) -> None:
    """Configures structlog and the standard library's logging: everything to stderr."""
    number = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
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
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )


def print_data(data: object, form: str) -> None:
    """Prints plain data as JSON or YAML to stdout."""
    print(format_data(data, form))


def format_data(data: object, form: str) -> str:
    """Plain data as JSON or YAML, without a newline at the end."""
    if form == "json":
        import json

        return json.dumps(data, indent=2)
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False)).rstrip("\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with aligned columns, three spaces between them, no trailing blanks."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "   ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )
