"""The rows of the overview: sums over devices, and equal things said once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from dra_driver.api.quantity import Format, Quantity
from dra_driver.errors import InvalidQuantity
from dra_driver.fleet import STATES, DeviceView, PoolView, WaitingClaim
from dra_driver.ownership import AgentState

__all__ = [
    "Activity",
    "Memory",
    "NamespaceRow",
    "Row",
    "WaitingRow",
    "activity",
    "device_rows",
    "fold_notes",
    "fold_waiting",
    "matches",
    "named",
    "namespace_rows",
    "on_nodes",
    "utilisation",
]

# Names that a row gives before it says how many more there are.
_NAMED: Final = 3
_NANO: Final = 10**9
_AGENTS: Final = frozenset(state.value for state in AgentState)
# Values of the attribute ``type`` of devices that are parts of others.
_PARTS: Final = frozenset({"mig", "partition", "vf"})


@dataclass(slots=True)
class Memory:
    """Memory of devices, in 1e-9 bytes.

    Attributes:
        total: of all devices.
        used: of what is allocated: whole devices, and shares of them.
    """

    total: int = 0
    used: int = 0

    def add(self, device: DeviceView) -> None:
        """Add a device: all of it if a claim holds it, otherwise what shares of it take."""
        total = _nano(device.memory)
        self.total += total
        holders = [h for h in device.holders if not h.admin]
        if any(not h.shared for h in holders):
            self.used += total
        else:
            self.used += min(total, sum(_nano(h.share.get("memory", "")) for h in holders))

    def __str__(self) -> str:
        if not self.total:
            return "-"
        used, total = _binary(self.used), _binary(self.total)
        # The unit is written once where both have the same, so that the column stays narrow.
        return f"{used.removesuffix('Gi') if total.endswith('Gi') else used}/{total}"

    @property
    def held(self) -> str:
        """What is allocated, for people."""
        return _binary(self.used) if self.used else "-"

    def data(self) -> dict[str, Any]:
        """Return the sums for JSON, in bytes."""
        return {"total": self.total // _NANO, "allocated": self.used // _NANO}


def _nano(text: str) -> int:
    try:
        return Quantity.parse(text).nano if text else 0
    except InvalidQuantity:
        return 0


def _binary(nano: int) -> str:
    """Return an amount rounded to whole Gi, or as it is if it is less than one."""
    gib = nano // _NANO / 2**30
    return f"{gib:.0f}Gi" if gib >= 1 else str(Quantity.of(nano // _NANO, Format.BINARY_SI))


@dataclass(slots=True)
class Activity:
    """Devices by what runs on them, as far as their nodes report it.

    Attributes:
        busy: devices on which something runs.
        idle: devices on which nothing runs.
        idle_allocated: those of ``idle`` that a claim holds.
    """

    busy: int = 0
    idle: int = 0
    idle_allocated: int = 0

    def add(self, device: DeviceView) -> None:
        """Add a device; one of which nothing is reported counts as neither."""
        self.busy += device.activity == "busy"
        self.idle += device.activity == "idle"
        held = any(not h.admin for h in device.holders)
        self.idle_allocated += device.activity == "idle" and held

    @property
    def known(self) -> int:
        """The number of devices of which it is reported."""
        return self.busy + self.idle

    def data(self) -> dict[str, int]:
        """Return the counts for JSON."""
        return {"busy": self.busy, "idle": self.idle, "idleAllocated": self.idle_allocated}


@dataclass(slots=True)
class Row:
    """Devices of one model on one node, or on all nodes if ``node`` is empty."""

    node: str
    model: str
    type: str
    total: int = 0
    states: Counter[str] = field(default_factory=Counter)
    memory: Memory = field(default_factory=Memory)
    activity: Activity = field(default_factory=Activity)

    def data(self) -> dict[str, Any]:
        """Return the row for JSON."""
        states = {state: self.states[state] for state in STATES}
        row = {"node": self.node, "model": self.model, "type": self.type, "total": self.total, **states}
        return {**row, **self.activity.data(), "memoryBytes": self.memory.data()}


@dataclass(slots=True)
class NamespaceRow:
    """What the claims of a namespace hold, and how many of them wait."""

    namespace: str
    claims: set[str] = field(default_factory=set)
    devices: int = 0
    memory: Memory = field(default_factory=Memory)
    waiting: int = 0

    def data(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "namespace": self.namespace,
            "claims": len(self.claims),
            "devices": self.devices,
            "memoryBytes": self.memory.used // _NANO,
            "waiting": self.waiting,
        }


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """Claims of one namespace that wait for the same reason."""

    claims: tuple[str, ...]
    pods: tuple[str, ...]
    reason: str


def matches(node: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches a pattern with ``*`` and ``?``, or there is none."""
    return not patterns or any(fnmatchcase(node, p) for p in patterns)


def on_nodes(views: Iterable[PoolView], patterns: Sequence[str]) -> list[PoolView]:
    """Return the pools of nodes whose names match."""
    return [v for v in views if matches(v.node, patterns)]


def device_rows(views: Iterable[PoolView], by: str) -> tuple[Row, ...]:
    """Return sums over devices, by ``node`` and model, or by ``model`` alone."""
    rows: dict[tuple[str, str, str], Row] = {}
    for view in views:
        node = view.node if by == "node" else ""
        for device in view.devices:
            row = rows.setdefault((node, device.model, device.type), Row(node, device.model, device.type))
            row.total += 1
            row.states[device.state] += 1
            row.memory.add(device)
            row.activity.add(device)
    return tuple(row for _, row in sorted(rows.items()))


def namespace_rows(views: Iterable[PoolView], waiting: Iterable[WaitingClaim]) -> tuple[NamespaceRow, ...]:
    """Return what each namespace holds and waits for; those that hold most are first."""
    rows: dict[str, NamespaceRow] = {}

    def row(claim: str) -> NamespaceRow:
        namespace = claim.partition("/")[0]
        return rows.setdefault(namespace, NamespaceRow(namespace))

    for view in views:
        for device in view.devices:
            for claim in {h.claim for h in device.holders if not h.admin}:
                held = [h for h in device.holders if h.claim == claim and not h.admin]
                of = row(claim)
                of.claims.add(claim)
                of.devices += 1
                whole = any(not h.shared for h in held)
                shares = sum(_nano(h.share.get("memory", "")) for h in held)
                of.memory.used += _nano(device.memory) if whole else shares
    for waits in waiting:
        row(waits.claim).waiting += 1
    return tuple(sorted(rows.values(), key=lambda r: (-r.devices, -r.waiting, r.namespace)))


def fold_waiting(waiting: Iterable[WaitingClaim]) -> tuple[WaitingRow, ...]:
    """Return one row for the claims of a namespace that wait for the same reason, in their order."""
    same: dict[tuple[str, str], list[WaitingClaim]] = {}
    for claim in waiting:
        same.setdefault((claim.claim.partition("/")[0], claim.reason), []).append(claim)
    return tuple(
        WaitingRow(tuple(c.claim for c in alike), tuple(p for c in alike for p in c.pods), reason)
        for (_, reason), alike in same.items()
    )


def fold_notes(views: Iterable[PoolView]) -> list[str]:
    """Return the notes of pools, each once with the nodes that it is about.

    That the agent of a node is gone is a problem, and said as such.
    """
    nodes: dict[tuple[str, str], list[str]] = {}
    for view in views:
        for note in view.notes:
            if note.partition(":")[0] in _AGENTS:
                continue
            nodes.setdefault((view.driver, note), []).append(view.node)
    return [f"{named(where)} ({driver}): {note}" for (driver, note), where in nodes.items()]


def named(names: Sequence[str], none: str = "-") -> str:
    """Return the first few names, and how many more there are."""
    if not names:
        return none
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def activity(rows: Iterable[Row]) -> str:
    """Return how many devices are busy, of those that report it; empty if none does."""
    counts = [r.activity for r in rows]
    known = sum(a.known for a in counts)
    if not known:
        return ""
    text = f"{sum(a.busy for a in counts)} of the {known} devices that report activity are busy"
    idle = sum(a.idle_allocated for a in counts)
    return f"{text}; {idle} of the idle ones {'is' if idle == 1 else 'are'} allocated"


def utilisation(rows: Sequence[Row]) -> str:
    """Return how much is allocated: of the memory, or of the devices where none says how much it has.

    The memory of partitions is that of their GPU, which is published beside them.
    """
    whole = [r for r in rows if r.type not in _PARTS] or rows
    total = sum(r.memory.total for r in whole)
    if total:
        used = min(total, sum(r.memory.used for r in rows))
        return f"{used / total:.0%} of the memory is allocated: {_binary(used)} of {_binary(total)}"
    in_use = sum(r.states["allocated"] + r.states["shared"] for r in rows)
    return f"{in_use / max(1, sum(r.total for r in rows)):.0%} of the devices are allocated"
