"""What the crash test counts, and how it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# What is always counted, most of all where it is nothing.
ZERO = (
    "leaked CDI files",
    "leaked instances",
    "leaked settings",
    "leaked daemons",
    "leaked mounts",
    "leaked drivers",
    "leaked metadata files",
    "lost claims",
    "doubled claims",
    "half-prepared claims",
    "documents of other devices",
)


class Violation(AssertionError):
    """What a crash must never leave."""


@dataclass
class Figures:
    """What runs of one kind have to say.

    Attributes:
        faults: reboots, jumps, hangs and what else a scenario did, beside kills.
        errors: calls and starts of agents that were answered with an error.
    """

    runs: int = 0
    starts: int = 0
    kills: int = 0
    faults: int = 0
    errors: int = 0
    calls: int = 0
    power_failures: int = 0
    undone: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    killed_at: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)

    @property
    def leaks(self) -> int:
        """How much was left that should be gone."""
        return sum(n for kind, n in self.violations.items() if kind.startswith("leaked"))


def table(figures: Mapping[str, Figures], skipped: Mapping[str, str]) -> Iterator[str]:
    """Return a line for each kind of runs."""
    yield f"{'':20}  runs starts  calls errors  kills faults  leaks others"
    for name, f in figures.items():
        others = sum(f.violations.values()) - f.leaks
        numbers = (f.starts, f.calls, f.errors, f.kills, f.faults + f.power_failures, f.leaks, others)
        yield f"{name:20} {f.runs:5d}" + "".join(f"{n:7d}" for n in numbers)
    for name, why in skipped.items():
        yield f"{name:20} skipped: {why}"


def summary(figures: Iterable[Figures], seconds: float) -> Iterator[str]:
    """Return what is said of all runs together."""
    every = list(figures)
    sums = (f"{n} {sum(getattr(f, n) for f in every)}" for n in ("runs", "starts", "calls", "kills"))
    yield f"{', '.join(sums)}, duration {seconds:.1f} s"
    failures, undone = sum(f.power_failures for f in every), sum(f.undone for f in every)
    yield f"power failures {failures}, {undone} of them undid a write of the checkpoint"
    killed_at = sum((f.killed_at for f in every), Counter[str]())
    yield "killed at: " + ", ".join(f"{k} {n}" for k, n in killed_at.most_common())
    violations = sum((f.violations for f in every), Counter[str]())
    for kind in (*ZERO, *(kind for kind in violations if kind not in ZERO)):
        yield f"{kind}: {violations[kind]}"
