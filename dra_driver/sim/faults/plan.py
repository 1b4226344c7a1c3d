"""Faults as values.

A plan's time starts at zero when it is put in force. ``str`` of everything here is the language that
``parse`` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

__all__ = [
    "REQUEST_VERBS",
    "Drop",
    "Error",
    "Expire",
    "Fault",
    "FaultPlan",
    "FullDisk",
    "Jump",
    "Kill",
    "Latency",
    "Lose",
    "Reset",
    "Stall",
    "Target",
    "Timing",
    "Traffic",
    "show_duration",
]

REQUEST_VERBS = (
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "apply",
    "delete",
    "deletecollection",
)


def show_duration(seconds: float) -> str:
    """Return a duration as the language writes it: ``1.5s``, ``250ms``."""
    if seconds and abs(seconds) < 1:
        return f"{seconds * 1000:g}ms"
    return f"{seconds:g}s"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a fault is active, in seconds from the start of the plan.

    Attributes:
        at: the first time.
        duration: how long it is active each time; if None, to the end, or for a moment.
        every: time from one beginning to the next; if None, it begins once.
        until: time from which on it does not begin any more; None for no limit.
        times: how often it strikes at most, over all; None for no limit.
    """

    at: float = 0.0
    duration: float | None = None
    every: float | None = None
    until: float | None = None
    times: int | None = None

    def active(self, elapsed: float) -> bool:
        """Return whether a fault with a duration is active."""
        if elapsed < self.at:
            return False
        if self.every is None:
            started = self.at
        else:
            started = self.at + (elapsed - self.at) // self.every * self.every
        if self.until is not None and started >= self.until:
            return False
        return self.duration is None or elapsed - started < self.duration

    def moments(self) -> Iterator[float]:
        """Yield the times at which the fault begins.

        With ``every`` they are endless; without ``at``, the first one is then after one interval.
        """
        now = self.at if self.at or self.every is None else self.every
        count = 0
        while (self.until is None or now < self.until) and (self.times is None or count < self.times):
            yield now
            if self.every is None:
                return
            count += 1
            now = round(now + self.every, 6)

    def __str__(self) -> str:
        words = []
        if self.at:
            words.append(f"at {show_duration(self.at)}")
        if self.duration is not None:
            words.append(f"for {show_duration(self.duration)}")
        if self.every is not None:
            words.append(f"every {show_duration(self.every)}")
        if self.until is not None:
            words.append(f"until {show_duration(self.until)}")
        if self.times is not None:
            words.append(f"times {self.times}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests that a fault concerns.

    Attributes:
        verbs: verbs of ``REQUEST_VERBS``; all if empty.
        resources: plural names, with ``/status`` and the like for a subresource; all if empty.
        agents: prefixes of the ``User-Agent``; all clients if empty.
        percent: share of these requests, by chance.
    """

    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    percent: float = 100.0

    def concerns(self, verb: str, resource: str, agent: str) -> bool:
        """Return whether a request is concerned; ``resource`` is for example ``pods`` or ``pods/status``."""
        return (
            (not self.verbs or verb in self.verbs)
            and (not self.resources or resource in self.resources)
            and (not self.agents or agent.startswith(self.agents))
        )

    def __str__(self) -> str:
        words = [f"{self.percent:g}%"] if self.percent < 100 else []
        if self.verbs or self.resources:
            words.append("on " + (",".join(self.verbs) or "all"))
            words += [",".join(self.resources)] if self.resources else []
        if self.agents:
            words.append("from " + ",".join(self.agents))
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Latency:
    """Requests wait between ``low`` and ``high`` seconds before they are handled."""

    low: float
    high: float
    traffic: Traffic = Traffic()
    timing: Timing = Timing()

    def __str__(self) -> str:
        span = show_duration(self.low)
        if self.high != self.low:
            span += f"..{show_duration(self.high)}"
        return _join("latency", span, self.traffic, self.timing)


@dataclass(frozen=True, slots=True)
class Error:
    """Requests are answered with an error code and have no effect."""

    code: int
    traffic: Traffic = Traffic()
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("error", self.code, self.traffic, self.timing)


@dataclass(frozen=True, slots=True)
class Reset:
    """Connections are closed without an answer, and the request has no effect."""

    traffic: Traffic = Traffic()
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("reset", self.traffic, self.timing)


@dataclass(frozen=True, slots=True)
class Lose:
    """Requests have their effect; then the connection is closed without the answer."""

    traffic: Traffic = Traffic()
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("lose", self.traffic, self.timing)


@dataclass(frozen=True, slots=True)
class Drop:
    """Open watches end without warning."""

    traffic: Traffic = Traffic(verbs=("watch",))
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("drop", _watches(self.traffic), self.timing)


@dataclass(frozen=True, slots=True)
class Stall:
    """Watches stay open, and get no events."""

    traffic: Traffic = Traffic(verbs=("watch",))
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("stall", _watches(self.traffic), self.timing)


@dataclass(frozen=True, slots=True)
class Expire:
    """The history is forgotten: watches, old and new, that are not up to date get 410 Expired."""

    traffic: Traffic = Traffic(verbs=("watch",))
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("expire", _watches(self.traffic), self.timing)


@dataclass(frozen=True, slots=True)
class Jump:
    """The API server's clock goes forward, or back."""

    seconds: float
    timing: Timing = Timing()

    def __str__(self) -> str:
        sign = "-" if self.seconds < 0 else "+"
        return _join("clock", sign + show_duration(abs(self.seconds)), self.timing)


@dataclass(frozen=True, slots=True)
class Target:
    """A part of the cluster: ``apiserver``, ``controller``, ``plugin`` or ``kubelet`` of a node."""

    part: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.part} {self.node}".rstrip()


@dataclass(frozen=True, slots=True)
class Kill:
    """A part is killed, and started again after the duration; without one it stays stopped."""

    target: Target
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("kill", self.target, self.timing)


@dataclass(frozen=True, slots=True)
class FullDisk:
    """The plugin of a node cannot write to files."""

    node: str
    timing: Timing = Timing()

    def __str__(self) -> str:
        return _join("fulldisk", self.node, self.timing)


Fault = Latency | Error | Reset | Lose | Drop | Stall | Expire | Jump | Kill | FullDisk


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault plan.

    Attributes:
        faults: the statements, in order; of several that answer a request, the first one counts.
        seed: seed of everything that happens by chance.
    """

    faults: Sequence[Fault] = field(default_factory=tuple)
    seed: int = 0

    def for_cluster(self) -> tuple[Fault, ...]:
        """Return the faults that an API server alone cannot carry out: killed processes, full disks."""
        return tuple(f for f in self.faults if not for_server(f))

    def for_server(self) -> FaultPlan:
        """Return the plan with the faults that the API server carries out."""
        return FaultPlan(tuple(f for f in self.faults if for_server(f)), self.seed)

    def __str__(self) -> str:
        statements = [f"seed {self.seed}"] if self.seed else []
        return "\n".join(statements + [str(f) for f in self.faults])


def for_server(fault: Fault) -> bool:
    """Return whether an API server alone can carry out the fault."""
    match fault:
        case FullDisk():
            return False
        case Kill(target=target):
            return target.part == "apiserver"
        case _:
            return True


def _watches(traffic: Traffic) -> str:
    words = ["watches"]
    if traffic.resources:
        words.append("on " + ",".join(traffic.resources))
    if traffic.agents:
        words.append("from " + ",".join(traffic.agents))
    return " ".join(words)


def _join(*parts: object) -> str:
    return " ".join(filter(None, map(str, parts)))
