"""``dra-driver simulate``: a week of claims under first fit and best fit, and the difference."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.cli import common
from dra_driver.cli.allocator import manifests as allocator_manifests
from dra_driver.cli.described_fleet import FleetObjects, described_fleet
from dra_driver.cli.display.progress import Progress
from dra_driver.cli.shapes_argument import add_shape_argument
from dra_driver.cli.simulation import plot, workload
from dra_driver.cli.simulation.replay import Played, play, sizes_of, weights_of
from dra_driver.cli.simulation.report import data_of, text_of
from dra_driver.errors import ConfigurationError, InvalidInput
from dra_driver.fleet import RequestShape, parse_shapes
from dra_driver.structured import Strategy

__all__ = ["add_arguments", "run"]

_EPILOG = """The allocator is the controller's; only time is simulated. A claim that does not fit waits, and
is tried again, the oldest first, whenever devices are freed; it blocks no other claim. Processors and
memory of nodes, priorities and the work of kube-scheduler are not simulated. The same arguments give the
same numbers."""
_FLEET: Final = "dgx-h100:12,dgx-a100-40:4,l4x8:4"
_DAY: Final = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.epilog = _EPILOG
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument(
        "--fleet",
        default="",
        metavar="PROFILE:NODES,…",
        help="profiles and numbers of nodes, such as h100x8:40; profiles as for --backend simulated=, or a "
        f"known GPU and its number; default: {_FLEET}",
    )
    fleet.add_argument(
        "--partitions",
        action="append",
        default=[],
        metavar="PROFILE",
        help="MIG profile that is published beside whole GPUs (repeatable; * for all); default: none",
    )
    allocator_manifests.add_file_argument(fleet)
    arrivals = parser.add_argument_group("the claims")
    arrivals.add_argument(
        "--arrivals",
        type=Path,
        metavar="FILE",
        help="recorded arrivals, one JSON object per line: at and seconds, shape, name; default: generated",
    )
    arrivals.add_argument(
        "--job",
        action="append",
        metavar="NAME=WEIGHT:DURATION:SHAPE",
        help="kind of work that is generated (repeatable): how often, its median duration (s, m, h, d), what "
        f"it asks for; default: {'; '.join(workload.DEFAULT_JOBS)}",
    )
    arrivals.add_argument(
        "--load",
        type=float,
        metavar="PART",
        help="part of the devices that the claims would use on average; default: 0.6",
    )
    arrivals.add_argument(
        "--seed", type=common.whole_number, metavar="N", help="seed of the random numbers; default: 1"
    )
    arrivals.add_argument("--days", type=common.whole_number, metavar="N", help="number of days; default: 7")
    arrivals.add_argument(
        "--write-arrivals", type=Path, metavar="FILE", help="write the generated arrivals, for --arrivals"
    )
    add_shape_argument(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the difference as SVG")
    common.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    _check(args)
    jobs = workload.parse_jobs(args.job or workload.DEFAULT_JOBS)
    shapes = parse_shapes(args.shape, DEFAULT_DRIVER_NAME)
    days = args.days or 7
    fleet = _fleet(args)
    _, devices = weights_of(fleet)
    if not devices:
        raise InvalidInput("the fleet has no devices")
    if args.arrivals is not None:
        arrivals = workload.read_arrivals(args.arrivals)
    else:
        load = 0.6 if args.load is None else args.load
        seed = 1 if args.seed is None else args.seed
        sizes = sizes_of(fleet, [job.shape for job in jobs])
        arrivals = workload.generated(jobs, sizes, devices=devices, load=load, days=days, seed=seed)
    if args.write_arrivals is not None:
        _write(args.write_arrivals, b"".join(workload.written(arrivals)))
    if not shapes:
        asked = {a.shape.name: a.shape for a in arrivals}
        shapes = _largest(list(asked.values()), sizes_of(fleet, list(asked.values())))
    replays = [
        _replayed(fleet, arrivals, strategy, days, shapes)
        for strategy in (Strategy.FIRST_FIT, Strategy.BEST_FIT)
    ]
    if args.plot is not None:
        title = (
            f"{len(arrivals)} claims on {len(fleet.nodes)} nodes with {devices:g} devices in {_days(days)}"
        )
        _write(args.plot, plot.drawn(replays, shapes, title).encode())
    _print(args.output, replays, shapes, fleet, round(devices), len(arrivals), days)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check what goes together.

    Raises:
        ConfigurationError: with every finding.
    """
    findings = []
    if args.file and (args.fleet or args.partitions):
        findings.append("-f is a fleet by itself; leave --fleet and --partitions out")
    if args.arrivals is not None:
        findings += [
            f"--{flag} is for arrivals that are generated, not for --arrivals"
            for flag in ("job", "load", "seed")
            if getattr(args, flag) is not None
        ]
    findings += [
        f"--{flag} {file}: there is no folder {file.parent}"
        for flag, file in (("plot", args.plot), ("write-arrivals", args.write_arrivals))
        if file is not None and not file.parent.is_dir()
    ]
    if args.load is not None and not 0 < args.load <= 10:
        findings.append(f"--load {args.load:g}: must be above 0 and at most 10")
    if args.days is not None and not 1 <= args.days <= 366:
        findings.append(f"--days {args.days}: must be between 1 and 366")
    if findings:
        raise ConfigurationError(findings)


def _fleet(args: argparse.Namespace) -> FleetObjects:
    if not args.file:
        return described_fleet(args.fleet or _FLEET, args.partitions, mixed=True)
    found = allocator_manifests.read(args.file)
    snapshot = found.snapshot()
    return FleetObjects(tuple(snapshot.nodes.values()), tuple(found.slices), tuple(found.classes))


def _largest(shapes: Sequence[RequestShape], sizes: Sequence[float]) -> tuple[RequestShape, ...]:
    """Return at most four of the shapes, those that ask for most first."""
    ordered = sorted(zip(shapes, sizes, strict=True), key=lambda s: (-s[1], s[0].name))
    return tuple(shape for shape, _ in ordered[:4])


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as e:
        raise InvalidInput(f"{file}: {e.strerror or e}") from e


def _print(
    form: str,
    replays: Sequence[Played],
    shapes: Sequence[RequestShape],
    fleet: FleetObjects,
    devices: int,
    arrivals: int,
    days: int,
) -> None:
    if form == "table":
        print(f"{arrivals} claims on {len(fleet.nodes)} nodes with {devices} devices in {_days(days)}\n")
        print(text_of(replays, shapes))
        return
    data: dict[str, Any] = {
        "nodes": len(fleet.nodes),
        "devices": devices,
        "days": days,
        "claims": arrivals,
        "shapes": {s.name: s.text for s in shapes},
        "strategies": {r.strategy.value: data_of(r, shapes) for r in replays},
    }
    common.print_data(data, form)


def _days(number: int) -> str:
    return "a day" if number == 1 else f"{number} days"


def _replayed(
    fleet: FleetObjects,
    arrivals: Sequence[workload.Arrival],
    strategy: Strategy,
    days: int,
    shapes: Sequence[RequestShape],
) -> Played:
    line = Progress()

    def progress(at: float, number: int) -> None:
        line.show(f"{strategy.value}: day {at / _DAY:.1f} of {days}, {number} of {len(arrivals)} claims")

    try:
        return play(fleet, arrivals, strategy, until=days * _DAY, shapes=shapes, progress=progress)
    finally:
        line.clear()
