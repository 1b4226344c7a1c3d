"""Showing what a command finds: once, or again whenever it has changed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from dra_driver.cli.display.progress import AFTER, Progress
from dra_driver.cli.display.report import Line, Report, plain, printable
from dra_driver.cli.display.terminal import is_terminal, print_report
from dra_driver.cli.live.reading import Informers, Lister, Source
from dra_driver.errors import DraError
from dra_driver.ports import KubeClient

__all__ = ["Shown", "add_watch_arguments", "print_shown", "show"]

_PATIENCE_SECONDS: Final = 15.0

Shown: TypeAlias = "Report | str"
"""A report for people, or data as text."""


def add_watch_arguments(parser: argparse._ActionsContainer) -> None:
    """Add ``--watch`` and ``--interval``, for ``show``."""
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="repeat the output when it changes",
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="SECONDS",
        help="with --watch: minimum time between two updates",
    )


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: must be between 0.1 and 3600 seconds")
    return value


def print_shown(shown: Shown, *, clear: bool = False) -> None:
    """Print a report, or data as text."""
    if isinstance(shown, str):
        print(shown)
    else:
        print_report(shown, clear=clear)
    sys.stdout.flush()


async def show(
    client: KubeClient, look: Callable[[Source], Awaitable[Shown]], args: argparse.Namespace
) -> None:
    """Print what ``look`` finds: once, or with ``--watch`` whenever it differs from what was printed last.

    While watching, informers keep up with the cluster; they report on stderr that the API server is away.
    """
    lister = Lister(client)
    try:
        async with _progress(lister):
            shown = await look(lister)
    except DraError:
        # What is not there may only be out of sight.
        _warn(lister.notes)
        raise
    # On a terminal that is cleared for each picture, they are part of it.
    kept = [Line(f"warning: {n}", "warning") for n in lister.notes] if args.watch and is_terminal() else []
    _warn([] if kept and not isinstance(shown, str) else lister.notes)
    print_shown(_with(shown, kept), clear=args.watch)
    if not args.watch:
        return
    source = Informers(client, lister.read)
    async with source.running():
        last = _text(shown)
        while True:
            shown = await look(source)
            if _text(shown) != last:
                last = _text(shown)
                if not isinstance(shown, str) and not is_terminal():
                    print(f"--- {time.strftime('%H:%M:%S')}")
                print_shown(_with(shown, kept), clear=True)
            # Nothing changes where a part is gone, but the time since then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(args.interval, _PATIENCE_SECONDS)):
                    await source.changed()
            await asyncio.sleep(args.interval)


def _warn(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"warning: {printable(note)}", file=sys.stderr)


@contextlib.asynccontextmanager
async def _progress(lister: Lister) -> AsyncIterator[None]:
    """Say what is being read, if that takes long."""
    line = Progress()

    async def tick() -> None:
        while True:
            await asyncio.sleep(AFTER / 4)
            line.show(f"reading {lister.reading}")

    task = asyncio.get_running_loop().create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        line.clear()


def _with(shown: Shown, notes: Sequence[Line]) -> Shown:
    return shown if isinstance(shown, str) else [*shown, notes]


def _text(shown: Shown) -> str:
    return shown if isinstance(shown, str) else plain(shown)
