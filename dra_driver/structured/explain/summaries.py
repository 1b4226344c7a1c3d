"""Reasons in words: one sentence over all nodes, of bounded length, for Events and the command line.

Nodes about which the same is said are folded into one part with their number; of names (claims, pools, nodes)
a part lists the first few. Where one node of each class was examined, a few more are, because names differ
from node to node.

Claims that hold devices are of any namespace. A tenant is told their number; their names are for those who
may read the claims of the whole cluster, and ask for them (``holders``).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.errors import InvalidQuantity
from dra_driver.structured.model.types import BY_DEFAULT, Exclusion, ExclusionReason, NodeReasons

__all__ = ["NEARNESS", "SimilarNodes", "largest", "left_of", "listed", "short", "summary", "summary_by_class"]

# From far to near. A device is excluded by the first check that fails, so the devices that passed
# most of them say best what is missing; "of the wrong class" says nothing on a node where another one fits.
NEARNESS: Final = {
    reason: i
    for i, reason in enumerate(
        (
            ExclusionReason.NODE_SELECTOR,
            ExclusionReason.NO_DEVICES,
            ExclusionReason.POOL_NOT_USABLE,
            ExclusionReason.CLASS,
            ExclusionReason.POOL_INVALID,
            ExclusionReason.POOL_INCOMPLETE,
            ExclusionReason.SELECTOR,
            ExclusionReason.SELECTOR_ERROR,
            ExclusionReason.NEWER,
            ExclusionReason.ATTRIBUTE,
            ExclusionReason.CAPACITY,
            ExclusionReason.TAINT,
            ExclusionReason.IN_USE,
            ExclusionReason.CAPACITY_IN_USE,
            ExclusionReason.COUNTERS,
            ExclusionReason.INCOMPATIBLE,
            ExclusionReason.CONSTRAINT,
        )
    )
}
# Names that a part lists before it says "and N more".
_LISTED: Final = 3
# Characters of an expression.
_EXPRESSION: Final = 120
# Reasons of which ``Exclusion.found`` differs between nodes of one class.
_DIFFERS_BY_NODE: Final = frozenset(
    {
        ExclusionReason.IN_USE,
        ExclusionReason.CONSTRAINT,
        ExclusionReason.POOL_NOT_USABLE,
        ExclusionReason.POOL_INVALID,
        ExclusionReason.POOL_INCOMPLETE,
    }
)
# Nodes of one part that are examined for what differs between them.
_EXAMINED: Final = 8
# In billionths of a byte, as quantities count.
_GIB: Final = 2**30 * 10**9


@dataclass(frozen=True, slots=True)
class SimilarNodes:
    """Nodes whose reasons differ in nothing but names: of devices, of pools, of claims that hold devices.

    Attributes:
        first: the reasons on the first of them.
        nodes: names, in order.
    """

    first: NodeReasons
    nodes: Sequence[str]


@dataclass(slots=True)
class _Part:
    """Nodes about which the same is said.

    Attributes:
        nodes: names of the first of them, in order.
        number: of all of them.
        exclusions: the decisive ones on one node of each class, with the number of nodes that they stand for.
        examined: the decisive ones of each node that was examined.
        complete: whether all nodes were examined.
    """

    nodes: list[str]
    number: int
    exclusions: list[tuple[Exclusion, int]]
    examined: list[list[Exclusion]]
    complete: bool = True

    def count(self, reason: ExclusionReason | None = None) -> int:
        """Return how many devices were excluded; by one reason, or by all."""
        return sum(n for e, n in self.exclusions if reason is None or e.reason is reason)

    def found(self, *reasons: ExclusionReason) -> str:
        """Return the names that some reasons found on the nodes, as a list."""
        by_node = self._names(*reasons)
        names = sorted(set().union(*by_node))
        # What is the same on every node that was examined (a pool for all nodes) is taken for all the others.
        if self.complete or (len(by_node) > 1 and all(of == by_node[0] for of in by_node)):
            return listed(names)
        return f"{', '.join(names[:_LISTED])} and others"

    def different(self, *reasons: ExclusionReason) -> int:
        """Return how many names some reasons found; 0 if not all nodes were examined."""
        return len(set().union(*self._names(*reasons))) if self.complete else 0

    def _names(self, *reasons: ExclusionReason) -> list[set[str]]:
        return [{e.found for e in of if e.found and e.reason in reasons} for of in self.examined]


def summary(reasons: Sequence[NodeReasons], *, holders: bool = False) -> str:
    """Return one sentence over all nodes: what they have, and why it is not enough.

    Nodes with the same text are counted together. On each node the request that is farthest from being served
    decides what is said.

    Args:
        reasons: of each node.
        holders: whether claims that hold devices are named.
    """
    return summary_by_class(
        [SimilarNodes(node, (node.node,)) for node in reasons],
        lambda name: NodeReasons(name, ()),
        holders=holders,
    )


def summary_by_class(
    classes: Sequence[SimilarNodes],
    examine: Callable[[str], NodeReasons],
    left: int = 0,
    *,
    holders: bool = False,
) -> str:
    """Return the ``summary`` over nodes of which one of each class was examined.

    Args:
        classes: the nodes.
        examine: returns the reasons on a node; called for a few nodes where their names matter.
        left: number of nodes of further classes.
        holders: whether claims that hold devices are named.
    """
    total = left + sum(len(similar.nodes) for similar in classes)
    if not total:
        return "0 of 0 nodes: there are no candidate nodes"
    parts: dict[str, list[SimilarNodes]] = defaultdict(list)
    for similar in itertools.chain.from_iterable(_split(of, examine) for of in classes):
        parts[_text_key(similar.first)].append(similar)
    folded = [_fold(of, examine) for of in parts.values()]
    folded.sort(key=lambda part: (-part.number, part.nodes[0]))
    sentences = [_sentence(part, holders) for part in folded]
    if left:
        sentences.append(f"{left} others, which differ from these, were not examined")
    return f"0 of {total} node{'s' * (total != 1)}: {'; '.join(sentences)}"


def _split(similar: SimilarNodes, examine: Callable[[str], NodeReasons]) -> list[SimilarNodes]:
    """Split nodes whose pools may not be used by the reasons, which are not part of an equivalence class."""
    if not 1 < len(similar.nodes) <= _EXAMINED or not _is_withheld(_decisive(similar.first)):
        return [similar]
    return [SimilarNodes(examine(name), (name,)) for name in similar.nodes]


def _is_withheld(exclusions: Sequence[Exclusion]) -> bool:
    return any(e.reason is ExclusionReason.POOL_NOT_USABLE for e in exclusions)


def _fold(classes: list[SimilarNodes], examine: Callable[[str], NodeReasons]) -> _Part:
    decisive = [_decisive(of.first) for of in classes]
    number = sum(len(of.nodes) for of in classes)
    part = _Part(
        # The first names of all are among the first names of each.
        nodes=sorted(name for of in classes for name in of.nodes[:_LISTED])[:_LISTED],
        number=number,
        exclusions=[(e, len(of.nodes)) for of, es in zip(classes, decisive, strict=True) for e in es],
        examined=decisive,
    )
    if any(e.reason in _DIFFERS_BY_NODE for es in decisive for e in es):
        further = (name for of in classes for name in of.nodes if name != of.first.node)
        for name in itertools.islice(further, max(0, _EXAMINED - len(classes))):
            part.examined.append(_decisive(examine(name)))
        part.complete = len(part.examined) == number
    return part


def _decisive(node: NodeReasons) -> list[Exclusion]:
    """Return the exclusions of the request that decides, and of these the ones that came latest."""
    requests: dict[tuple[str, str], list[Exclusion]] = defaultdict(list)
    for exclusion in node.exclusions:
        requests[exclusion.claim, exclusion.request].append(exclusion)
    if not requests:
        return []
    # A pod needs all of its requests, so the one whose nearest device is farthest away decides.
    worst = min(requests.values(), key=lambda es: (max(NEARNESS[e.reason] for e in es), len(es)))
    reason = max((e.reason for e in worst), key=NEARNESS.__getitem__)
    if reason is ExclusionReason.CONSTRAINT:
        return [
            e
            for e in worst
            if e.reason
            in (
                ExclusionReason.CONSTRAINT,
                ExclusionReason.IN_USE,
                ExclusionReason.CAPACITY_IN_USE,
                ExclusionReason.COUNTERS,
                ExclusionReason.INCOMPATIBLE,
            )
        ]
    return [e for e in worst if e.reason is reason]


def _text_key(node: NodeReasons) -> str:
    """Return a key that is equal for nodes about which the same is said, up to names and numbers."""
    decisive = _decisive(node)
    if not decisive:
        return ""
    devices = Counter(e.reason for e in decisive)
    wanted = sorted({e.wanted for e in decisive if e.reason is not ExclusionReason.IN_USE})
    withheld = sorted({e.found for e in decisive if e.reason is ExclusionReason.POOL_NOT_USABLE})
    free = devices.get(ExclusionReason.CONSTRAINT, 0)
    return "|".join([*sorted(r.value for r in devices), *wanted, *withheld, str(free)])


# --- a part of the sentence ---------------------------------------------------------------------------------


def _sentence(part: _Part, holders: bool) -> str:
    """Return what is said about the nodes of a part: a single node is named, several are counted."""
    exclusions = [e for e, _ in part.exclusions]
    if _is_withheld(exclusions):
        return _withheld(part)
    one = part.number == 1
    who = part.nodes[0] if one else str(part.number)
    if any(e.reason is ExclusionReason.NODE_SELECTOR for e in exclusions):
        claims = listed(sorted({e.claim for e in exclusions}))
        return f"{who} {'is' if one else 'are'} outside the node selector of allocated claim {claims}"
    return f"{who} {'has' if one else 'have'} {_offer(part, exclusions, holders)}"


def _withheld(part: _Part) -> str:
    """Return which nodes have only pools that may not be used, and why."""
    if part.number > 1:
        pools = "their pools are"
    else:
        pools = "its pool is" if len(part.exclusions) == 1 else "its pools are"
    more = f" and {part.number - len(part.nodes)} more" if part.number > len(part.nodes) else ""
    reasons = sorted({e.found for of in part.examined for e in of if e.found})
    return f"{', '.join(part.nodes)}{more}: {pools} {' or '.join(reasons)}"


def _offer(part: _Part, exclusions: Sequence[Exclusion], holders: bool) -> str:
    """Return what the nodes have, and what excludes it."""
    if not exclusions:
        return "no device to choose from"
    count = _devices(part.count())
    fit = f"{count} that fit{'s' * (part.count() == 1)}"
    reason = max((e.reason for e in exclusions), key=NEARNESS.__getitem__)
    match reason:
        case ExclusionReason.NO_DEVICES | ExclusionReason.NODE_SELECTOR | ExclusionReason.POOL_NOT_USABLE:
            return "no devices"
        case ExclusionReason.CLASS:
            return f"no device of class {exclusions[0].wanted}"
        case ExclusionReason.SELECTOR:
            expressions = listed([short(e) for e in dict.fromkeys(e.wanted for e in exclusions)])
            return f"{count} of the class, none selected by {expressions}"
        case ExclusionReason.SELECTOR_ERROR:
            return f"{count} on which a selector fails ({exclusions[0].found})"
        case ExclusionReason.NEWER:
            return f"{fit}, for which {exclusions[0].found} needs a newer controller"
        case ExclusionReason.POOL_INVALID:
            return f"{count} in an invalid pool ({part.found(reason)})"
        case ExclusionReason.POOL_INCOMPLETE:
            return f"{count} in a pool that is being updated ({part.found(reason)})"
        case ExclusionReason.ATTRIBUTE:
            return f"{count} {_without(exclusions)}"
        case ExclusionReason.CAPACITY:
            return _too_small(exclusions, part.count())
        case ExclusionReason.TAINT:
            return f"{fit}, tainted {listed(sorted({e.found for e in exclusions}))}"
        case ExclusionReason.IN_USE:
            return f"{fit}, all allocated{_holders(part, holders)}"
        case ExclusionReason.CAPACITY_IN_USE:
            return f"{fit}, {left_of([e for e in exclusions if e.wanted == exclusions[0].wanted])}"
        case ExclusionReason.COUNTERS:
            return f"{fit}, excluded by partitions in use ({exclusions[0].wanted} used up)"
        case ExclusionReason.INCOMPATIBLE:
            return (
                f"{fit}, excluded by the compatibility groups of partitions in use ({exclusions[0].wanted})"
            )
        case ExclusionReason.CONSTRAINT:
            return _together(part, holders)


def _devices(number: int) -> str:
    return f"{number} device{'s' * (number != 1)}"


def _without(exclusions: Sequence[Exclusion]) -> str:
    names = sorted({e.wanted for e in exclusions})
    return f"without the attribute{'s' * (len(names) > 1)} {listed(names)}, which a constraint requires"


def _too_small(exclusions: Sequence[Exclusion], count: int) -> str:
    wanted = exclusions[0].wanted
    found = [e.found for e in exclusions if e.wanted == wanted and e.found]
    if not wanted:
        return f"{_devices(count)} whose request policy does not allow the amount"
    name, _, amount = wanted.partition(" ")
    if not found:
        return f"{_devices(count)} without capacity {name}"
    return f"{_devices(count)} with {name} below {amount} (largest {largest(found)})"


def left_of(exclusions: Sequence[Exclusion]) -> str:
    """Return what other claims leave of shared devices, and what a request takes, named or by default."""
    name, _, amount = exclusions[0].wanted.partition(" ")
    most = largest([e.found for e in exclusions])
    if amount.endswith(BY_DEFAULT):
        taken = amount.removesuffix(BY_DEFAULT)
        return f"shared by other claims: a request without {name} takes {taken} of it, at most {most} is left"
    return f"with too little left of {name}: {amount} asked for (most {most})"


def largest(amounts: Iterable[str]) -> str:
    """Return the largest of some quantities, in words that read well: ``191.9Gi`` for ``196592Mi``.

    Never more than it is, so that what is just too small does not look as if it sufficed.
    """

    def size(text: str) -> int:
        try:
            return Quantity.parse(text).nano
        except InvalidQuantity:
            return 0

    text = max(amounts, key=size)
    nano = size(text)
    if not text.endswith("i") or nano < _GIB or nano % _GIB == 0:
        return text
    tenths = nano * 10 // _GIB
    return f"{tenths // 10}.{tenths % 10}Gi"


def _holders(part: _Part, named: bool) -> str:
    """Return which claims hold devices of a part, or how many, as far as that is known."""
    if not named:
        number = part.different(ExclusionReason.IN_USE)
        return f" to {number} claim{'s' * (number != 1)}" if number else ""
    holders = part.found(ExclusionReason.IN_USE)
    if not holders:
        return ""
    several = " " in holders  # a name has no space, a list of names has
    return f": by claim{'s' * several} {holders}"


def _together(part: _Part, holders: bool) -> str:
    """Return how many free devices that fit each of the nodes has, and what is asked of them together."""
    busy = part.count(ExclusionReason.IN_USE)
    number = part.count(ExclusionReason.CONSTRAINT) // part.number
    wanted = list(
        dict.fromkeys(e.wanted for e, _ in part.exclusions if e.reason is ExclusionReason.CONSTRAINT)
    )
    fit = f"{number} free device{'s' * (number != 1)} that fit{'s' * (number == 1)}"
    if part.number > 1:
        fit += " each"
    needed = wanted[0].removesuffix(" devices") if len(wanted) == 1 else ""
    if needed.isdecimal() and number < int(needed):
        text = f"only {fit}, {needed} are needed"
    else:
        text = f"{fit} one by one, not together ({listed(wanted)})"
    return f"{text}, {busy} more allocated{_holders(part, holders)}" if busy else text


def short(expression: str, length: int = _EXPRESSION) -> str:
    """Return an expression on one line, cut at a length that people read."""
    text = " ".join(expression.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
