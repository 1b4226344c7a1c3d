"""Request shapes on the command line: the flag, and the table of their counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from dra_driver.cli.display.report import Table
from dra_driver.fleet import ShapeCount

__all__ = ["add_shape_argument", "shapes_table"]


def add_shape_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--shape``."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=]SHAPE",
        help="count how often this request still fits (repeatable): '[COUNT] KIND [profile NAME] "
        "[model TEXT] [memory QUANTITY] [same ATTRIBUTE]', such as '8 gpu same nvlinkGroup' or "
        "'mig profile 7g.80gb'; KIND is gpu, mig, partition, vf, nvidia … or a DeviceClass; or a "
        "ResourceClaimSpec in JSON",
    )


def shapes_table(counts: Iterable[ShapeCount]) -> Table:
    """Return how often shapes fit."""
    rows = []
    for count in counts:
        if count.problem:
            rows.append((count.shape, "-", "-", "-", count.problem))
            continue
        fits = f"{count.fits}" if count.exact else f"{count.fits} or more"
        lost = f"{count.fragmentation:.0%}"
        rows.append((count.shape, fits, str(count.suggested), lost, ""))
    header = ("SHAPE", "FITS", "SUM OF FREE SUGGESTS", "FRAGMENTED")
    if any(row[4] for row in rows):
        return Table((*header, "PROBLEM"), rows)
    return Table(header, [row[:4] for row in rows])
