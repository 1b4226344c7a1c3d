"""Arrivals of claims: generated from a seed, or read from a file of JSON lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.errors import ConfigurationError, InvalidInput
from dra_driver.fleet import RequestShape, parse_shapes

__all__ = [
    "DEFAULT_JOBS",
    "Arrival",
    "Job",
    "generated",
    "parse_jobs",
    "read_arrivals",
    "written",
]

DEFAULT_JOBS: Final = (
    "notebook=66:2h:1 gpu memory 16Gi",
    "tuning=25:6h:2 gpu memory 32Gi same nvlinkGroup",
    "training=7:12h:4 gpu memory 64Gi same nvlinkGroup",
    "large-training=2:18h:8 gpu memory 64Gi same nvlinkGroup",
)
HOURS: Final = (2, 2, 1, 1, 1, 1, 2, 4, 7, 10, 11, 10, 8, 10, 11, 10, 9, 7, 5, 4, 4, 3, 3, 2)
"""How often claims come in each hour of a working day, relative to one another."""
WEEKEND: Final = 0.35
"""How often they come at weekends, relative to working days. A week begins on Monday at midnight."""
SIGMA: Final = 0.8
"""Durations are log-normal: the standard deviation of their natural logarithm."""
SHORTEST, LONGEST = 60.0, 3 * 86_400.0
"""Seconds that durations are kept between."""
_HOUR: Final = 3600.0
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": _HOUR, "d": 86_400.0}
_MOST_ARRIVALS: Final = 1_000_000
_MOST_FINDINGS: Final = 20


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of work.

    Attributes:
        weight: how often it comes, relative to the others.
        median: of its duration, in seconds.
        shape: what it asks for.
    """

    weight: float
    median: float
    shape: RequestShape

    @property
    def mean(self) -> float:
        """The mean duration in seconds, before the shortest and longest are cut."""
        return self.median * math.exp(SIGMA * SIGMA / 2)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A claim that comes.

    Attributes:
        at: seconds from the start.
        seconds: for which it keeps its devices.
        name: of the claim, unique.
        shape: what it asks for; claims of one shape are equal.
    """

    at: float
    seconds: float
    name: str
    shape: RequestShape


def parse_jobs(texts: Sequence[str]) -> tuple[Job, ...]:
    """Return the kinds of work of ``NAME=WEIGHT:DURATION:SHAPE``.

    Raises:
        ConfigurationError: with every finding.
    """
    findings: list[str] = []
    jobs: list[Job] = []
    for text in texts:
        name, _, rest = text.partition("=")
        weight, _, rest = rest.partition(":")
        median, _, words = rest.partition(":")
        seconds = _seconds(median)
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", weight) or not float(weight) > 0 or seconds is None:
            findings.append(
                f"--job {text!r}: must be NAME=WEIGHT:DURATION:SHAPE with a weight above 0 and a "
                "duration from 1m to 3d, for example train=10:12h:8 gpu same nvlinkGroup"
            )
            continue
        try:
            (shape,) = parse_shapes([f"{name}={words}"], DEFAULT_DRIVER_NAME, where="--job")
        except ConfigurationError as e:
            findings += e.findings
            continue
        jobs.append(Job(float(weight), seconds, shape))
    names = [job.shape.name for job in jobs]
    findings += [f"--job: {n} is given twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    if findings:
        raise ConfigurationError(findings)
    return tuple(jobs)


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found is not None else 0.0
    return seconds if SHORTEST <= seconds <= LONGEST else None


def generated(
    jobs: Sequence[Job], sizes: Sequence[float], *, devices: float, load: float, days: int, seed: int
) -> tuple[Arrival, ...]:
    """Return arrivals, the same for equal arguments.

    They come independently of each other (a Poisson process) at a rate that follows ``HOURS`` and
    ``WEEKEND``, so high that the claims of seven days would keep ``load`` of the devices in use if each got
    its devices at once.

    Args:
        jobs: the mix.
        sizes: devices that a claim of each kind takes.
        devices: of the fleet.
        load: a part of them; above 1 more is asked for than there is.
        days: how many.
        seed: of the random numbers.

    Raises:
        InvalidInput: there would be too many.
    """
    random = Random(seed)  # noqa: S311  not for secrets: it has to be repeatable
    weights = [job.weight for job in jobs]
    each = sum(j.weight * j.mean * n for j, n in zip(jobs, sizes, strict=True)) / sum(weights)
    week = sum(HOURS) * (5 + 2 * WEEKEND)
    # Claims per unit of ``HOURS``.
    scale = load * devices * 7 * 86_400 / each / week
    if scale * week * days / 7 > _MOST_ARRIVALS:
        raise InvalidInput(f"more than {_MOST_ARRIVALS} claims would come; simulate fewer nodes or days")
    arrivals: list[Arrival] = []
    for hour in range(24 * days):
        rate = scale * HOURS[hour % 24] * (WEEKEND if hour // 24 % 7 >= 5 else 1.0)
        at = hour * _HOUR
        while rate and (at := at + random.expovariate(rate / _HOUR)) < (hour + 1) * _HOUR:
            (job,) = random.choices(jobs, weights)
            seconds = min(max(random.lognormvariate(math.log(job.median), SIGMA), SHORTEST), LONGEST)
            name = f"{job.shape.name}-{len(arrivals)}"
            arrivals.append(Arrival(round(at, 3), round(seconds, 3), name, job.shape))
    return tuple(arrivals)


# --- files --------------------------------------------------------------------------------------------------


class ArrivalLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a file of arrivals."""

    at: float
    seconds: float
    shape: str | dict[str, Any]
    name: str = ""


def read_arrivals(file: Path) -> tuple[Arrival, ...]:
    """Return the arrivals of a file of JSON lines, in the order of their times.

    Each line is ``{"at": SECONDS, "seconds": DURATION, "shape": WORDS or ResourceClaimSpec, "name": NAME}``;
    the name may be absent. Times are from the start of the recording.

    Raises:
        ConfigurationError: with every finding, the first of them.
        InvalidInput: the file cannot be read, or is empty.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as e:
        raise InvalidInput(f"{file}: {e.strerror or e}") from e
    if len(lines) > _MOST_ARRIVALS:
        raise InvalidInput(f"{file}: {len(lines)} lines; at most {_MOST_ARRIVALS} can be replayed")
    findings: list[str] = []
    arrivals: list[Arrival] = []
    shapes: dict[str, RequestShape] = {}
    names: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            arrival = _arrival(line, number, shapes)
            if arrival.name in names:
                raise InvalidInput(f"the name {arrival.name} is given twice")
            names.add(arrival.name)
            arrivals.append(arrival)
        except ConfigurationError as e:
            findings += [f"{file}, line {number}: {f.removeprefix('shape ')}" for f in e.findings]
        except InvalidInput as e:
            findings.append(f"{file}, line {number}: {e}")
        if len(findings) > _MOST_FINDINGS:
            findings.append("and more")
            break
    if findings:
        raise ConfigurationError(findings)
    if not arrivals:
        raise InvalidInput(f"{file}: no arrivals")
    return tuple(sorted(arrivals, key=lambda a: (a.at, a.name)))


def _arrival(line: bytes, number: int, shapes: dict[str, RequestShape]) -> Arrival:
    given = codec.decode(ArrivalLine, line)
    if not 0 <= given.at <= 366 * 86_400 or not 0 < given.seconds <= 366 * 86_400:
        raise InvalidInput(f"at {given.at:g}, seconds {given.seconds:g}: must be within a year, from 0 on")
    text = given.shape if isinstance(given.shape, str) else codec.encode(given.shape).decode()
    shape = shapes.get(text)
    if shape is None:
        named = text if isinstance(given.shape, str) else f"shape-{len(shapes)}={text}"
        (shape,) = parse_shapes([named], DEFAULT_DRIVER_NAME, where="shape")
        shapes[text] = shape
    return Arrival(given.at, given.seconds, given.name or f"line-{number}", shape)


def written(arrivals: Sequence[Arrival]) -> Iterator[bytes]:
    """Yield the lines of a file that ``read_arrivals`` reads."""
    for a in arrivals:
        shape: object = f"{a.shape.name}={a.shape.text}" if not a.shape.text.startswith("{") else a.shape.spec
        yield codec.encode({"at": a.at, "seconds": a.seconds, "shape": shape, "name": a.name}) + b"\n"
