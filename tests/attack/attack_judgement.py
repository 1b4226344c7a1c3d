"""What is measured beside an attack, and the bars that judge it: pure, so that tests can plant violations."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

__all__ = [
    "BARS",
    "Bars",
    "DeviceWatch",
    "Holder",
    "Lag",
    "Measured",
    "findings",
    "lag_between",
    "lag_of",
    "p999",
    "quantile",
    "table",
    "together",
]

_LAG = "dra_driver_controller_event_loop_lag"
_BUCKET = re.compile(rf'^{_LAG}_seconds_bucket\{{le="([^"]+)"\}} (\S+)$', re.MULTILINE)
_LONGEST = re.compile(rf"^{_LAG}_max_seconds (\S+)$", re.MULTILINE)
_MIB = 1 << 20


# --- the event loop -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """Delays of an event loop.

    Attributes:
        buckets: upper bound in seconds → number of samples up to it, cumulative as Prometheus has them.
        longest: seconds.
    """

    buckets: Mapping[float, float]
    longest: float

    @property
    def samples(self) -> float:
        """Number of samples."""
        return self.buckets.get(math.inf, 0.0)


def lag_of(metrics: str) -> Lag | None:
    """Return the delays since the start of a process from its metrics; None if they have none."""
    buckets = {float(bound): float(number) for bound, number in _BUCKET.findall(metrics)}
    longest = _LONGEST.search(metrics)
    return Lag(buckets, float(longest[1])) if buckets and longest else None


def lag_between(before: Lag | None, after: Lag) -> Lag:
    """Return the delays from one look at a process to a later one; ``before`` is None if it began in between.

    The longest is exact if it is the longest since the start of the process, otherwise the upper bound of its
    bucket, and never more than the longest since the start.
    """
    if before is None:
        return after
    buckets = {bound: number - before.buckets.get(bound, 0.0) for bound, number in after.buckets.items()}
    if after.longest > before.longest:
        return Lag(buckets, after.longest)
    return Lag(buckets, min(quantile(buckets, 1.0), after.longest))


def quantile(buckets: Mapping[float, float], share: float) -> float:
    """Return the upper bound of the bucket in which the quantile lies; 0 without samples."""
    return _holding(buckets, share * buckets.get(math.inf, 0.0))


def _holding(buckets: Mapping[float, float], rank: float) -> float:
    """Return the upper bound of the bucket of the sample of that rank; 0 without samples."""
    return next((b for b in sorted(buckets) if buckets[b] >= max(rank, 1)), 0.0)


def p999(buckets: Mapping[float, float]) -> float:
    """Return the upper bound of the bucket in which the 99.9th percentile lies.

    Of less than a thousand samples the largest is left out: one says nothing about how often it comes. What
    all attacks show together (``together``) is judged with all of them.
    """
    whole = buckets.get(math.inf, 0.0)
    return _holding(buckets, whole - max(1, whole // 1000))


def together(rows: Iterable[Measured]) -> dict[float, float]:
    """Return the delays of all replicas beside all attacks."""
    found: dict[float, float] = {}
    for row in rows:
        for lag in row.lag or ():
            for bound, number in lag.buckets.items():
                found[bound] = found.get(bound, 0.0) + number
    return found


# --- devices --------------------------------------------------------------------------------------------


class Holder(NamedTuple):
    """A claim that holds a device."""

    claim: str
    uid: str


class DeviceWatch:
    """Follows the allocations of all claims, event by event, and notes each device that two of them hold.

    Admin access holds nothing. Shares of one device do not exclude each other.

    Attributes:
        doubled: what was found, for people.
    """

    def __init__(self) -> None:
        self.doubled: list[str] = []
        self._holders: dict[tuple[str, str, str], dict[Holder, bool]] = {}
        self._held: dict[Holder, set[tuple[str, str, str]]] = {}

    def seen(self, claim: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Take in a version of a claim, in the order in which they were written."""
        meta = claim["metadata"]
        holder = Holder(f"{meta.get('namespace', '')}/{meta['name']}", meta["uid"])
        allocation = {} if deleted else (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        wanted = {
            (r["driver"], r["pool"], r["device"]): bool(r.get("shareID"))
            for r in results
            if not r.get("adminAccess")
        }
        for device in self._held.pop(holder, set()) - wanted.keys():
            self._holders[device].pop(holder, None)
        for device, shared in wanted.items():
            self._take(device, holder, shared)
        if wanted:
            self._held[holder] = set(wanted)

    def _take(self, device: tuple[str, str, str], holder: Holder, shared: bool) -> None:
        holders = self._holders.setdefault(device, {})
        new = holder not in holders
        holders[holder] = shared
        if new and len(holders) > 1 and not all(holders.values()):
            names = " and ".join(sorted(h.claim for h in holders))
            self.doubled.append(f"{'/'.join(device)} is held by {names}")

    def replace(self, claims: Sequence[Mapping[str, Any]]) -> None:
        """Take in all claims at once, after events were missed."""
        present = {c["metadata"]["uid"] for c in claims}
        for holder in [h for h in self._held if h.uid not in present]:
            for device in self._held.pop(holder):
                self._holders[device].pop(holder, None)
        for claim in claims:
            self.seen(claim)


# --- bars -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """What an attack may cost. Times in seconds.

    Attributes:
        memory: of one controller with its processes, in MiB: half of the limit that the chart sets.
    """

    median: float = 1.0
    worst: float = 3.0
    restarts: int = 0
    lag_p999: float = 0.05
    lag_longest: float = 0.25
    probe: float = 0.3
    review: float = 1.0
    memory: float = 704.0
    doubled: int = 0


BARS = Bars()


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was measured beside one attack.

    Attributes:
        attack: its name.
        honest: seconds until each honest claim was allocated; infinite where it was given up.
        restarts: main processes that ended by themselves.
        lag: delays of the event loops of all replicas that were not attacked themselves; None where none
            could be read.
        probe: longest answer to a probe, in seconds; None if none was asked for.
        review: longest answer to an admission review, in seconds; None if none was asked for.
        memory: highest PSS of all processes of one controller, in MiB; None if none could be read.
        doubled: devices in two claims.
        problems: why the attack did not take place as it should have.
        notes: what happened, for people.
        seconds: how long the attack lasted, with its preparation and what came after.
        noise: longest delay of a process that does nothing, in seconds: what the machine adds. It excuses
            nothing, but says when to look again.
        server: longest answer of the API server to a small question, in seconds: what it adds to the waits.
    """

    attack: str
    honest: list[float] = field(default_factory=list)
    restarts: int = 0
    lag: list[Lag] | None = None
    probe: float | None = None
    review: float | None = None
    memory: float | None = None
    doubled: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    noise: float = 0.0
    server: float = 0.0

    @property
    def median(self) -> float | None:
        """Median of the honest claims."""
        return statistics.median(self.honest) if self.honest else None

    @property
    def worst(self) -> float | None:
        """The slowest honest claim."""
        return max(self.honest, default=None)

    @property
    def lag_p999(self) -> float | None:
        """The worst replica's 99.9th percentile, see ``p999``."""
        return max((p999(lag.buckets) for lag in self.lag), default=None) if self.lag else None

    @property
    def lag_longest(self) -> float | None:
        """The worst replica's longest delay."""
        return max((lag.longest for lag in self.lag), default=None) if self.lag else None


def findings(measured: Measured, bars: Bars = BARS) -> list[str]:
    """Return every bar that is missed, with what was measured; empty: the attack is withstood.

    What could not be measured is a finding, too: otherwise a controller that answers nothing passes.
    """
    found = list(measured.problems)
    for name, value, bar, unit in (
        ("median", measured.median, bars.median, "s"),
        ("worst", measured.worst, bars.worst, "s"),
        ("lag p99.9", measured.lag_p999, bars.lag_p999, "s"),
        ("longest lag", measured.lag_longest, bars.lag_longest, "s"),
        ("probe", measured.probe, bars.probe, "s"),
        ("review", measured.review, bars.review, "s"),
        ("memory", measured.memory, bars.memory, "MiB"),
        ("restarts", measured.restarts, bars.restarts, ""),
        ("devices in two claims", len(measured.doubled), bars.doubled, ""),
    ):
        if value is None:
            found.append(f"{name} was not measured")
        elif not value <= bar:
            found.append(f"{name} {value:.3g} over {bar:g} {unit}".strip())
    return found


# --- for people -----------------------------------------------------------------------------------------

_COLUMNS: Final[tuple[str, ...]] = (
    *(
        "attack",
        "honest",
        "median",
        "worst",
        "restarts",
        "lag p99.9",
        "longest",
        "probe",
        "review",
        "PSS MiB",
    ),
    *("doubled", "server", "noise", "verdict"),
)


def table(rows: Sequence[tuple[Measured, Sequence[str]]]) -> str:
    """Return the figures of all attacks, times in milliseconds, with why each of them failed."""
    cells = [_COLUMNS]
    for row, failed in rows:
        lags = (row.lag_p999, row.lag_longest, row.probe, row.review)
        cells.append(
            (
                row.attack,
                str(len(row.honest)),
                *map(_milliseconds, (row.median, row.worst)),
                str(row.restarts),
                *map(_milliseconds, lags),
                "?" if row.memory is None else f"{row.memory:.0f}",
                str(len(row.doubled)),
                _milliseconds(row.server),
                _milliseconds(row.noise),
                "FAIL: " + "; ".join(failed) if failed else "pass",
            )
        )
    widths = [max(len(c[i]) for c in cells) for i in range(len(_COLUMNS))]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(c, widths, strict=True)).rstrip() for c in cells)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return "never" if math.isinf(seconds) else f"{1000 * seconds:.0f}"
