"""Reasons folded over devices and nodes: one row for all devices that the same check excluded.

``explain.summaries`` puts the decisive reason into one sentence. Here every device of every node is counted,
with what the checks saw of them: the largest amount, the values of the attributes that a selector reads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver import cel
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import Device
from dra_driver.structured.explain.summaries import NEARNESS, hint, largest, left_of, listed, number_of, short
from dra_driver.structured.model.types import DeviceID, Exclusion, ExclusionReason, NodeReasons

__all__ = ["Folded", "FoldedReason", "fold", "seen_values"]

# Most attributes and capacities of a selector whose values are shown, and most different values of each.
_MOST_READ: Final = 4
_MOST_VALUES: Final = 4
# Characters of an expression in a row.
_EXPRESSION: Final = 60
_ABSENT: Final = "absent"
# Checks that each device fails with a text of its own: the texts are listed, not counted.
_ONE_ROW: Final = frozenset(
    {
        ExclusionReason.IN_USE,
        ExclusionReason.COUNTERS,
        ExclusionReason.INCOMPATIBLE,
        ExclusionReason.SELECTOR_ERROR,
        ExclusionReason.NEWER,
        ExclusionReason.POOL_INVALID,
        ExclusionReason.POOL_INCOMPLETE,
    }
)
# Checks whose result does not depend on what is allocated, or tainted, at the moment.
_LASTING: Final = frozenset(
    {
        ExclusionReason.NO_DEVICES,
        ExclusionReason.POOL_NOT_USABLE,
        ExclusionReason.CLASS,
        ExclusionReason.SELECTOR,
        ExclusionReason.ATTRIBUTE,
        ExclusionReason.CAPACITY,
    }
)


@dataclass(frozen=True, slots=True)
class FoldedReason:
    """Devices that one check excluded for one request.

    Attributes:
        claim: ``namespace/name``.
        request: ``name`` or ``name/subrequest``; empty if the reason holds whatever is asked.
        reason: the check.
        text: what was asked for and what was there, for people.
        devices: number of them; 0 if the reason holds for nodes or pools as a whole.
        of: number of devices that were looked at for the request.
        nodes: names of their nodes, in order, each with its number of these devices.
    """

    claim: str
    request: str
    reason: ExclusionReason
    text: str
    devices: int
    of: int
    nodes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of ``fold``.

    Attributes:
        reasons: by request; within a request those that came nearest to being served are first.
        hidden: driver → number of its devices that are left out, because the class is for other drivers.
    """

    reasons: tuple[FoldedReason, ...]
    hidden: Mapping[str, int]

    @property
    def unservable(self) -> tuple[str, ...]:
        """The requests that no device can serve, allocated or not: for them nothing need become free."""
        of_request: dict[str, list[ExclusionReason]] = {}
        for row in self.reasons:
            of_request.setdefault(row.request.partition("/")[0], []).append(row.reason)
        return tuple(name for name, reasons in of_request.items() if _LASTING.issuperset(reasons))


@dataclass(slots=True)
class _Request:
    """What was excluded for one request, each exclusion with the node that it is about."""

    found: list[tuple[str, Exclusion]]

    def foreign(self) -> frozenset[str]:
        """Return the drivers that the class has no device of, if it has devices of others."""
        passed, seen = set(), set()
        for _, e in self.found:
            if e.device is not None:
                seen.add(e.device.driver)
                if e.reason is not ExclusionReason.CLASS:
                    passed.add(e.device.driver)
        return frozenset(seen - passed) if passed else frozenset()


def fold(
    reasons: Iterable[NodeReasons], devices: Mapping[DeviceID, Device], *, all_drivers: bool = False
) -> Folded:
    """Fold the reasons of all nodes.

    Args:
        reasons: of each node.
        devices: what selectors saw; nothing is shown of devices that it lacks.
        all_drivers: whether devices of drivers that the class is not about are counted too.
    """
    requests: dict[tuple[str, str], _Request] = {}
    for node in reasons:
        for e in node.exclusions:
            requests.setdefault((e.claim, e.request), _Request([])).found.append((node.node, e))
    rows: list[FoldedReason] = []
    hidden: dict[str, int] = {}
    for (claim, request), asked in requests.items():
        foreign = frozenset() if all_drivers else asked.foreign()
        left_out = Counter(e.device.driver for _, e in asked.found if e.device and e.device.driver in foreign)
        for driver, number in left_out.items():
            hidden[driver] = max(number, hidden.get(driver, 0))
        shown = [(n, e) for n, e in asked.found if e.device is None or e.device.driver not in foreign]
        rows += _rows(claim, request, shown, devices)
    return Folded(tuple(rows), hidden)


def _rows(
    claim: str,
    request: str,
    found: Sequence[tuple[str, Exclusion]],
    devices: Mapping[DeviceID, Device],
) -> Iterator[FoldedReason]:
    groups: dict[tuple[ExclusionReason, str], list[tuple[str, Exclusion]]] = defaultdict(list)
    for node, e in found:
        groups[e.reason, _key(e)].append((node, e))
    of = sum(e.device is not None for _, e in found)
    for (reason, _), members in sorted(groups.items(), key=lambda item: -NEARNESS[item[0][0]]):
        exclusions = [e for _, e in members]
        by_node = _by_node(members)
        yield FoldedReason(
            claim=claim,
            request=request,
            reason=reason,
            text=_text(reason, exclusions, devices, max(by_node.values())),
            devices=sum(e.device is not None for e in exclusions),
            of=of,
            nodes=by_node,
        )


def _by_node(members: Sequence[tuple[str, Exclusion]]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for node, e in members:
        numbers[node] = numbers.get(node, 0) + (e.device is not None)
    return numbers


def _key(e: Exclusion) -> str:
    """Return a key that is equal for exclusions of one check about which the same is said."""
    if e.reason in _ONE_ROW:
        return ""
    if e.reason in (ExclusionReason.TAINT, ExclusionReason.POOL_NOT_USABLE):
        return e.found
    return f"{e.wanted}|{'' if e.found else _ABSENT}"


# --- words --------------------------------------------------------------------------------------------------


def _text(
    reason: ExclusionReason,
    exclusions: Sequence[Exclusion],
    devices: Mapping[DeviceID, Device],
    most: int,
) -> str:
    """Return what the devices have instead of what was asked for; at ``most`` so many are on one node."""
    first = exclusions[0]
    found = sorted({e.found for e in exclusions if e.found})
    match reason:
        case ExclusionReason.NODE_SELECTOR:
            return "outside the nodes that an allocated claim is bound to"
        case ExclusionReason.NO_DEVICES:
            return "no devices"
        case ExclusionReason.POOL_NOT_USABLE:
            return f"the pool is {first.found}"
        case ExclusionReason.CLASS:
            return f"not of class {first.wanted}"
        case ExclusionReason.SELECTOR:
            seen = _seen(first.wanted, exclusions, devices)
            return f"not selected by {short(first.wanted, _EXPRESSION)}{seen}{hint(exclusions)}"
        case ExclusionReason.SELECTOR_ERROR:
            return f"a selector fails: {listed(sorted({_error(e) for e in exclusions}))}"
        case ExclusionReason.NEWER:
            return f"a newer controller is needed because of {listed(found)}"
        case ExclusionReason.POOL_INVALID:
            return f"in an invalid pool ({listed(found)})"
        case ExclusionReason.POOL_INCOMPLETE:
            return f"in a pool that is being updated ({listed(found)})"
        case ExclusionReason.ATTRIBUTE:
            return f"without the attribute {first.wanted}, which a constraint requires{hint(exclusions)}"
        case ExclusionReason.CAPACITY:
            return f"{_capacity(first, found)}{hint(exclusions)}"
        case ExclusionReason.TAINT:
            return f"tainted {first.found}"
        case ExclusionReason.IN_USE:
            return f"held by {listed(found)}" if found else "held"
        case ExclusionReason.CAPACITY_IN_USE:
            return left_of(exclusions)
        case ExclusionReason.COUNTERS:
            used = sorted({e.wanted for e in exclusions})
            return f"partitions of the same GPU are allocated ({listed(used)} used up)"
        case ExclusionReason.INCOMPATIBLE:
            used = sorted({e.wanted for e in exclusions})
            return f"partitions of other compatibility groups are allocated ({listed(used)})"
        case ExclusionReason.CONSTRAINT:
            needed = number_of(first.wanted)
            if needed > most:
                return f"free, but {needed} are needed together"
            if needed:
                return "free, but not for all requests together"
            return f"free, but not together: {first.wanted}"


def _capacity(first: Exclusion, found: Sequence[str]) -> str:
    name, _, _ = first.wanted.partition(" ")
    if not name:
        return "the device's request policy does not allow the amount"
    return f"{name} of at most {largest(found)}" if found else f"without capacity {name}"


def _error(e: Exclusion) -> str:
    """Return why a selector fails, without the device's name, which differs from row to row."""
    return e.found.partition(f" on device {e.device}: ")[2] or e.found


def _seen(expression: str, exclusions: Sequence[Exclusion], devices: Mapping[DeviceID, Device]) -> str:
    """Return the values that the selector read on the devices which it refused."""
    try:
        selector = cel.compile_selector(expression)
    except cel.CelCompileError:
        return ""
    views = [
        cel.DeviceView(e.device.driver, devices[e.device])
        for e in exclusions
        if e.device is not None and e.device in devices
    ]
    if not views:
        return ""
    return f"; saw {told}" if (told := seen_values(selector, views)) else ""


def seen_values(selector: cel.Selector, views: Sequence[cel.DeviceView]) -> str:
    """Return what a selector reads of devices, with the values; empty if it reads no part by its name.

    Of several devices each value is told with the number of those that have it, and many amounts as a range.
    """
    reads = selector.references
    told = [_with_values(name, [v.attributes for v in views], domain) for domain, name in reads.attributes]
    told += [_with_values(name, [v.capacity for v in views], domain) for domain, name in reads.capacity]
    if reads.driver:
        told.append(f"driver {_values([v.driver for v in views], str)}")
    return "; ".join(told[:_MOST_READ])


def _with_values(name: str, content: Sequence[Mapping[str, Mapping[str, object]]], domain: str) -> str:
    return f"{name} {_values([c[domain].get(name) for c in content], _value)}"


def _values(values: Sequence[object], text: Callable[[object], str]) -> str:
    """Return different values with the number of devices that have them; many amounts as a range."""
    counted = Counter(map(text, values))
    amounts = sorted((v for v in values if isinstance(v, Quantity)), key=lambda v: v.nano)
    if len(counted) > _MOST_VALUES and len(amounts) == len(values):
        return f"{amounts[0]} to {amounts[-1]}"
    if len(counted) == 1:
        return next(iter(counted))
    shown = [f"{value} ({number})" for value, number in counted.most_common(_MOST_VALUES)]
    more = len(counted) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _value(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return short(str(value))
