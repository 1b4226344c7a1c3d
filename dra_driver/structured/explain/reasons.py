"""Why nothing fits: per node, request and device, and in words."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.quantity import Quantity
from dra_driver.errors import InvalidQuantity
from dra_driver.structured.matching.constraints import ANY_DOMAIN
from dra_driver.structured.matching.plan import Alternative, ClaimPlan
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Verdict
from dra_driver.structured.model.pools import DeviceEntry, PoolView
from dra_driver.structured.model.types import Exclusion, ExclusionReason, NodeReasons
from dra_driver.structured.search.bounds import devices_needed, too_few_devices

__all__ = ["Alike", "node_reasons", "refused_node", "summary", "summary_of"]

# How near a device was to be taken: of the devices of a node those excluded latest tell most.
_NEARNESS: Final = {
    rule: i
    for i, rule in enumerate(
        (
            ExclusionReason.NODE_SELECTOR,
            ExclusionReason.NO_DEVICES,
            ExclusionReason.POOL_NOT_USABLE,
            ExclusionReason.CLASS,
            ExclusionReason.POOL_INVALID,
            ExclusionReason.POOL_INCOMPLETE,
            ExclusionReason.SELECTOR,
            ExclusionReason.SELECTOR_ERROR,
            ExclusionReason.CAPACITY,
            ExclusionReason.TAINT,
            ExclusionReason.IN_USE,
            ExclusionReason.CAPACITY_IN_USE,
            ExclusionReason.COUNTERS,
            ExclusionReason.CONSTRAINT,
        )
    )
}
# Names that a sentence lists before it says "and N more".
_LISTED: Final = 3
_EXPRESSION: Final = 120
# What was found are names: other ones on each node, as a rule.
_WITH_NAMES: Final = frozenset(
    {
        ExclusionReason.IN_USE,
        ExclusionReason.CONSTRAINT,
        ExclusionReason.POOL_NOT_USABLE,
        ExclusionReason.POOL_INVALID,
        ExclusionReason.POOL_INCOMPLETE,
    }
)
# Of nodes about which the same is said, so many are looked at one by one for names.
_LOOKED_AT: Final = 8


# --- per device ---------------------------------------------------------------------------------------------


def node_reasons(problem: NodeProblem) -> NodeReasons:
    """Return the first rule that excluded each device, for each request and subrequest.

    Raises:
        BudgetExhausted: there are more devices and requests than the problem's budget pays for.
    """
    found: list[Exclusion] = []
    # Known only where it matters: a device that fits by itself.
    lacking = cache(lambda: devices_needed(problem) if too_few_devices(problem) else 0)
    for claim in problem.claims:
        for request in claim.requests:
            for alternative in request.alternatives:
                devices = [
                    _exclude(problem, alternative, entry, pool, lacking)
                    for pool in problem.pools
                    for entry in pool.devices
                ]
                found += devices or _nothing(problem, alternative)
    return NodeReasons(problem.node.metadata.name, tuple(found))


def _nothing(problem: NodeProblem, alternative: Alternative) -> list[Exclusion]:
    """The node has no device in a pool that may be used."""
    pools = [str(pool.id) for pool in problem.unusable if pool.devices]
    rule = ExclusionReason.POOL_NOT_USABLE if pools else ExclusionReason.NO_DEVICES
    return [Exclusion(alternative.claim, alternative.request, None, rule, "", _list(pools))]


def refused_node(node: Node, plans: Sequence[ClaimPlan]) -> NodeReasons:
    """A node that is excluded by the allocation of another claim of the pod."""
    held = [plan for plan in plans if plan.allocation is not None]
    return NodeReasons(
        node.metadata.name,
        tuple(Exclusion(plan.name, "", None, ExclusionReason.NODE_SELECTOR) for plan in held),
    )


def _exclude(
    problem: NodeProblem,
    alternative: Alternative,
    entry: DeviceEntry,
    pool: PoolView,
    lacking: Callable[[], int],
) -> Exclusion:
    def because(rule: ExclusionReason, wanted: str = "", found: str = "") -> Exclusion:
        return Exclusion(alternative.claim, alternative.request, entry.id, rule, wanted, found)

    looked = problem.look(alternative, entry, pool)
    if isinstance(looked, Verdict):
        return because(looked.rule, looked.wanted, looked.found)
    if looked.error is not None:
        return because(ExclusionReason.SELECTOR_ERROR, "", looked.error)
    if pool.invalid or pool.incomplete:
        return because(
            ExclusionReason.POOL_INVALID if pool.invalid else ExclusionReason.POOL_INCOMPLETE,
            "",
            str(pool.id),
        )
    if looked.tainted:
        taints = problem.blocking_taints(alternative, entry)
        return because(ExclusionReason.TAINT, "", ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints))
    if looked.allocated and not alternative.admin:
        holder = problem.snapshot.allocated.pool(pool.id).devices[entry.id.device]
        return because(ExclusionReason.IN_USE, "", holder)
    short = next((key for key, amount, left in looked.counters if amount > left), None)
    if short is not None:
        return because(ExclusionReason.COUNTERS, f"counter {short[2]} of {short[1]}")
    return because(ExclusionReason.CONSTRAINT, _demand(problem, alternative, looked, lacking()))


def _demand(problem: NodeProblem, alternative: Alternative, candidate: Candidate, lacking: int) -> str:
    """Return what a device that fits by itself fails to be part of.

    Args:
        problem: the claims on the node.
        alternative: a request.
        candidate: the device, for this request.
        lacking: how many devices all requests need, where that alone is too many; otherwise 0.
    """
    if lacking > 1:
        return f"{lacking} devices"
    claim = problem.claims[alternative.claim_index]
    count = alternative.count
    parts = [f"{count} device{'s' * (count != 1)}" if count is not None else "all devices"]
    for index in alternative.constraints:
        constraint = claim.constraints[index]
        name = (constraint.match_attribute or constraint.distinct_attribute or "").removeprefix(ANY_DOMAIN)
        kind = "the same" if constraint.match_attribute is not None else "a different"
        missing = "" if candidate.values[index] else " (absent)"
        parts.append(f"{kind} {name}{missing}")
    return ", ".join(parts)


# --- in words -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes whose reasons differ in nothing but names: of devices, of pools, of claims that hold devices.

    Attributes:
        first: the reasons on the first of them.
        nodes: names, in order.
    """

    first: NodeReasons
    nodes: Sequence[str]


@dataclass(slots=True)
class _Group:
    """Nodes about which the same sentence is said.

    Attributes:
        first: name of the first of them.
        number: of nodes.
        exclusions: those that decide on one node of each kind, and on how many nodes.
        named: those that decide on nodes that were looked at one by one.
        complete: whether these were all nodes.
    """

    first: str
    number: int
    exclusions: list[tuple[Exclusion, int]]
    named: list[list[Exclusion]]
    complete: bool = True

    def count(self, rule: ExclusionReason | None = None) -> int:
        """How many devices were excluded; by one rule, or by all."""
        return sum(n for e, n in self.exclusions if rule is None or e.rule is rule)

    def found(self, *rules: ExclusionReason) -> str:
        """What was found on the nodes by some rules, as a list of names."""
        by_node = [{e.found for e in of if e.found and e.rule in rules} for of in self.named]
        names = sorted(set().union(*by_node))
        # Names that are the same wherever we looked will be the same elsewhere (a pool for all nodes).
        if self.complete or (len(by_node) > 1 and all(of == by_node[0] for of in by_node)):
            return _list(names)
        return f"{', '.join(names[:_LISTED])} and others"


def summary(reasons: Sequence[NodeReasons]) -> str:
    """One sentence over all nodes: what they have, and why it is not enough.

    Nodes with the same text are counted together. On a node, the request that is farthest from being served
    speaks for it.
    """
    return summary_of([Alike(node, (node.node,)) for node in reasons], lambda name: NodeReasons(name, ()))


def summary_of(alike: Sequence[Alike], look: Callable[[str], NodeReasons], left: int = 0) -> str:
    """``summary`` of nodes of which one of each kind was looked at.

    Args:
        alike: nodes by kind.
        look: gives the reasons on a node; used for a few nodes where their names matter.
        left: nodes of further kinds.
    """
    total = left + sum(len(kind.nodes) for kind in alike)
    if not total:
        return "0 of 0 nodes: there is no node to look at"
    groups: dict[str, list[Alike]] = defaultdict(list)
    for kind in alike:
        groups[_shape(kind.first)].append(kind)
    found = [_group(kinds, look) for kinds in groups.values()]
    found.sort(key=lambda group: (-group.number, group.first))
    parts = [f"{group.number} {_sentence(group)}" for group in found]
    if left:
        parts.append(f"{left} others, which differ from these, were not looked into")
    return f"0 of {total} node{'s' * (total != 1)}: {'; '.join(parts)}"


def _group(kinds: Sequence[Alike], look: Callable[[str], NodeReasons]) -> _Group:
    decisive = [_decisive(kind.first) for kind in kinds]
    number = sum(len(kind.nodes) for kind in kinds)
    made = _Group(
        first=min(kind.nodes[0] for kind in kinds),
        number=number,
        exclusions=[(e, len(kind.nodes)) for kind, es in zip(kinds, decisive, strict=True) for e in es],
        named=decisive,
    )
    if any(e.rule in _WITH_NAMES for es in decisive for e in es):
        further = (name for kind in kinds for name in kind.nodes if name != kind.first.node)
        for name in itertools.islice(further, max(0, _LOOKED_AT - len(kinds))):
            made.named.append(_decisive(look(name)))
        made.complete = len(made.named) == number
    return made


def _decisive(node: NodeReasons) -> list[Exclusion]:
    """The exclusions of the request that decides, and of it those that came latest."""
    requests: dict[tuple[str, str], list[Exclusion]] = defaultdict(list)
    for exclusion in node.exclusions:
        requests[exclusion.claim, exclusion.request].append(exclusion)
    if not requests:
        return []
    # Of several requests the one without anything near; alternatives of one request are near each other.
    worst = min(requests.values(), key=lambda es: (max(_NEARNESS[e.rule] for e in es), len(es)))
    rule = max((e.rule for e in worst), key=_NEARNESS.__getitem__)
    if rule is ExclusionReason.CONSTRAINT:
        return [
            e
            for e in worst
            if e.rule
            in (
                ExclusionReason.CONSTRAINT,
                ExclusionReason.IN_USE,
                ExclusionReason.CAPACITY_IN_USE,
                ExclusionReason.COUNTERS,
            )
        ]
    return [e for e in worst if e.rule is rule]


def _shape(node: NodeReasons) -> str:
    decisive = _decisive(node)
    if not decisive:
        return ""
    rules = Counter(e.rule for e in decisive)
    wanted = sorted({e.wanted for e in decisive if e.rule is not ExclusionReason.IN_USE})
    free = rules.get(ExclusionReason.CONSTRAINT, 0)
    return "|".join([*sorted(r.value for r in rules), *wanted, str(free)])


def _sentence(group: _Group) -> str:
    have = "has" if group.number == 1 else "have"
    exclusions = [e for e, _ in group.exclusions]
    if not exclusions:
        return f"{have} nothing to offer"
    count = _devices(group.count())
    fit = f"{count} that fit{'s' * (group.count() == 1)}"
    rule = max((e.rule for e in exclusions), key=_NEARNESS.__getitem__)
    match rule:
        case ExclusionReason.NODE_SELECTOR:
            claims = _list(sorted({e.claim for e in exclusions}))
            return (
                f"{'is' if group.number == 1 else 'are'} not where the allocated claim {claims} can be used"
            )
        case ExclusionReason.NO_DEVICES:
            return f"{have} no devices"
        case ExclusionReason.POOL_NOT_USABLE:
            return f"{have} devices only in pools that may not be used here ({group.found(rule)})"
        case ExclusionReason.CLASS:
            return f"{have} no device of class {exclusions[0].wanted}"
        case ExclusionReason.SELECTOR:
            expressions = _list([_short(e) for e in dict.fromkeys(e.wanted for e in exclusions)])
            return f"{have} {count} of the class, none selected by {expressions}"
        case ExclusionReason.SELECTOR_ERROR:
            return f"{have} {count} that a selector cannot judge ({exclusions[0].found})"
        case ExclusionReason.POOL_INVALID | ExclusionReason.POOL_INCOMPLETE:
            what = (
                "an invalid pool" if rule is ExclusionReason.POOL_INVALID else "a pool that is being updated"
            )
            return f"{have} {count} in {what} ({group.found(rule)})"
        case ExclusionReason.CAPACITY:
            return f"{have} {_too_small(exclusions, group.count())}"
        case ExclusionReason.TAINT:
            return f"{have} {fit}, tainted {_list(sorted({e.found for e in exclusions}))}"
        case ExclusionReason.IN_USE:
            return f"{have} {fit}, all allocated{_holders(group)}"
        case ExclusionReason.CAPACITY_IN_USE:
            return f"{have} {fit}, with too little left of {_left(exclusions)}"
        case ExclusionReason.COUNTERS:
            return f"{have} {fit}, excluded by partitions in use ({exclusions[0].wanted} used up)"
        case ExclusionReason.CONSTRAINT:
            return f"{have} {_together(group)}"


def _devices(number: int) -> str:
    return f"{number} device{'s' * (number != 1)}"


def _too_small(exclusions: Sequence[Exclusion], count: int) -> str:
    wanted = exclusions[0].wanted
    found = [e.found for e in exclusions if e.wanted == wanted and e.found]
    if not wanted:
        return f"{_devices(count)} whose request policy does not allow the amount"
    name, _, amount = wanted.partition(" ")
    if not found:
        return f"{_devices(count)} without capacity {name}"
    return f"{_devices(count)} with {name} below {amount} (largest {_largest(found)})"


def _left(exclusions: Sequence[Exclusion]) -> str:
    name, _, amount = exclusions[0].wanted.partition(" ")
    return f"{name}: {amount} asked for (most {_largest([e.found for e in exclusions])})"


def _largest(amounts: Iterable[str]) -> str:
    def size(text: str) -> int:
        try:
            return Quantity.parse(text).nano
        except InvalidQuantity:
            return 0

    return max(amounts, key=size)


def _holders(group: _Group) -> str:
    holders = group.found(ExclusionReason.IN_USE)
    if not holders:
        return ""
    many = " " in holders  # names have none
    return f": by claim{'s' * many} {holders}"


def _together(group: _Group) -> str:
    """Devices that are free and would fit: how many each of the nodes has, and what is asked of them."""
    busy = group.count(ExclusionReason.IN_USE)
    number = group.count(ExclusionReason.CONSTRAINT) // group.number
    wanted = list(
        dict.fromkeys(e.wanted for e, _ in group.exclusions if e.rule is ExclusionReason.CONSTRAINT)
    )
    fit = f"{number} free device{'s' * (number != 1)} that fit{'s' * (number == 1)}"
    if group.number > 1:
        fit += " each"
    needed = wanted[0].removesuffix(" devices") if len(wanted) == 1 else ""
    if needed.isdecimal() and number < int(needed):
        text = f"only {fit}, {needed} are needed"
    else:
        text = f"{fit} one by one, not together ({_list(wanted)})"
    return f"{text}, {busy} more allocated{_holders(group)}" if busy else text


def _short(expression: str) -> str:
    text = " ".join(expression.split())
    return text if len(text) <= _EXPRESSION else text[: _EXPRESSION - 1] + "…"


def _list(names: Sequence[str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
