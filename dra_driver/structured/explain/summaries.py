"""Reasons in words: what is asked for, and a part for each cause, for Events and the command line.

Nodes about which the same is said are folded into one part with their number; of names (claims, pools, nodes)
a part lists the first few. Where one node of each class was examined, a few more are, because names differ
from node to node. The nodes that come nearest to serving the request come first, and of parts there are few,
so that the text stays short however many nodes differ.

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
from dra_driver.structured.explain.asking import Asked
from dra_driver.structured.model.types import BY_DEFAULT, Exclusion, ExclusionReason, NodeReasons

__all__ = [
    "NEARNESS",
    "SEPARATOR",
    "SimilarNodes",
    "as_lines",
    "headline",
    "hint",
    "largest",
    "left_of",
    "listed",
    "number_of",
    "short",
    "summary",
    "summary_by_class",
]

SEPARATOR: Final = " · "
"""Between the parts of a ``summary``."""

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
# Names that a part lists before it says "and N more", and parts.
_LISTED: Final = 3
_PARTS: Final = 6
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


def summary(reasons: Sequence[NodeReasons], asked: Asked, *, holders: bool = False) -> str:
    """Return what is asked for, and what all nodes have instead.

    Nodes with the same text are counted together. On each node the request that is farthest from being served
    decides what is said.

    Args:
        reasons: of each node.
        asked: what the claims ask for.
        holders: whether claims that hold devices are named.
    """
    return summary_by_class(
        [SimilarNodes(node, (node.node,)) for node in reasons],
        lambda name: NodeReasons(name, ()),
        asked,
        holders=holders,
    )


def summary_by_class(
    classes: Sequence[SimilarNodes],
    examine: Callable[[str], NodeReasons],
    asked: Asked,
    left: int = 0,
    *,
    holders: bool = False,
) -> str:
    """Return the ``summary`` over nodes of which one of each class was examined.

    Args:
        classes: the nodes.
        examine: returns the reasons on a node; called for a few nodes where their names matter.
        asked: what the claims ask for.
        left: number of nodes of further classes.
        holders: whether claims that hold devices are named.
    """
    total = left + sum(len(similar.nodes) for similar in classes)
    if not total:
        return f"{headline(asked)}: there are no candidate nodes"
    parts: dict[str, list[SimilarNodes]] = defaultdict(list)
    for similar in itertools.chain.from_iterable(_split(of, examine) for of in classes):
        parts[_text_key(similar.first)].append(similar)
    ordered = sorted(parts.values(), key=_order)
    folded = [_fold(of, examine) for of in ordered[:_PARTS]]
    sentences = [_sentence(part, asked, holders) for part in folded]
    if more := sum(len(similar.nodes) for of in ordered[_PARTS:] for similar in of):
        sentences.append(f"{_nodes(more)} with other reasons")
    if left:
        sentences.append(f"{_nodes(left)} not examined")
    return f"{headline(asked)}: {SEPARATOR.join(sentences)}"


def headline(asked: Asked) -> str:
    """Return the text before the colon of every ``summary``."""
    return f"needs {asked.text}"


def as_lines(text: str) -> list[str]:
    """Return a ``summary`` as what is asked for and a line for each part; another text as it is."""
    first, *rest = text.split(SEPARATOR)
    before, needs, after = first.partition("needs ")
    if not (rest and needs):
        return [text]
    asked, _, part = after.partition(": ")
    return [f"{before}{needs}{asked}:", part, *rest]


def _order(classes: list[SimilarNodes]) -> tuple[int, int, int, str]:
    """Return a key that puts the nodes first that come nearest to serving the request."""
    decisive = _decisive(classes[0].first)
    nearest = max((NEARNESS[e.reason] for e in decisive), default=-1)
    free = sum(e.reason is ExclusionReason.CONSTRAINT for e in decisive)
    number = sum(len(similar.nodes) for similar in classes)
    return -nearest, -free, -number, min(similar.nodes[0] for similar in classes)


def _nodes(number: int) -> str:
    return f"{number:,} more node{'s' * (number != 1)}"


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


def _sentence(part: _Part, asked: Asked, holders: bool) -> str:
    """Return what is said about the nodes of a part: a single node is named, several are counted."""
    exclusions = [e for e, _ in part.exclusions]
    if _is_withheld(exclusions):
        return _withheld(part)
    one = part.number == 1
    who = part.nodes[0] if one else f"{part.number:,} nodes"
    if any(e.reason is ExclusionReason.NODE_SELECTOR for e in exclusions):
        claims = listed(sorted({e.claim for e in exclusions}))
        return f"{who} {'is' if one else 'are'} outside the node selector of allocated claim {claims}"
    return f"{who} {'has' if one else 'have'} {_offer(part, exclusions, asked, holders)}"


def _withheld(part: _Part) -> str:
    """Return which nodes have only pools that may not be used, and why."""
    if part.number > 1:
        pools = "their pools are"
    else:
        pools = "its pool is" if len(part.exclusions) == 1 else "its pools are"
    more = f" and {part.number - len(part.nodes):,} more" if part.number > len(part.nodes) else ""
    reasons = sorted({e.found for of in part.examined for e in of if e.found})
    return f"{', '.join(part.nodes)}{more} skipped: {pools} {' or '.join(reasons)}"


def _offer(part: _Part, exclusions: Sequence[Exclusion], asked: Asked, holders: bool) -> str:
    """Return what the nodes have, and what excludes it."""
    if not exclusions:
        return "no device to choose from"
    count = _devices(part.count())
    fit = f"{part.count():,} that fit{'s' * (part.count() == 1)}"
    reason = max((e.reason for e in exclusions), key=NEARNESS.__getitem__)
    match reason:
        case ExclusionReason.NO_DEVICES | ExclusionReason.NODE_SELECTOR | ExclusionReason.POOL_NOT_USABLE:
            return "no devices"
        case ExclusionReason.CLASS:
            return f"no device of class {exclusions[0].wanted}"
        case ExclusionReason.SELECTOR:
            expressions = listed([short(e) for e in dict.fromkeys(e.wanted for e in exclusions)])
            return f"{count} of the class, none selected by {expressions}{hint(exclusions)}"
        case ExclusionReason.SELECTOR_ERROR:
            return f"{count} on which a selector fails ({exclusions[0].found})"
        case ExclusionReason.NEWER:
            return f"{fit}, for which {exclusions[0].found} needs a newer controller"
        case ExclusionReason.POOL_INVALID:
            return f"{count} in an invalid pool ({part.found(reason)})"
        case ExclusionReason.POOL_INCOMPLETE:
            return f"{count} in a pool that is being updated ({part.found(reason)})"
        case ExclusionReason.ATTRIBUTE:
            return f"{count} {_without(exclusions)}{hint(exclusions)}"
        case ExclusionReason.CAPACITY:
            return f"{_too_small(exclusions, part.count())}{hint(exclusions)}"
        case ExclusionReason.TAINT:
            return f"{fit}, tainted {listed(sorted({e.found for e in exclusions}))}"
        case ExclusionReason.IN_USE:
            return f"none free ({_held(part, holders)})"
        case ExclusionReason.CAPACITY_IN_USE:
            return f"{fit}, {left_of([e for e in exclusions if e.wanted == exclusions[0].wanted])}"
        case ExclusionReason.COUNTERS:
            return f"{fit}, excluded by partitions in use ({exclusions[0].wanted} used up)"
        case ExclusionReason.INCOMPATIBLE:
            return (
                f"{fit}, excluded by the compatibility groups of partitions in use ({exclusions[0].wanted})"
            )
        case ExclusionReason.CONSTRAINT:
            return _together(part, asked, holders)


def _devices(number: int) -> str:
    return f"{number:,} device{'s' * (number != 1)}"


def hint(exclusions: Sequence[Exclusion]) -> str:
    """Return which name was probably meant, if it is the same for every device that has one like it."""
    hints = {e.hint for e in exclusions if e.hint}
    return next(iter(hints)) if len(hints) == 1 else ""


def _without(exclusions: Sequence[Exclusion]) -> str:
    names = sorted({e.wanted for e in exclusions})
    return f"without the attribute{'s' * (len(names) > 1)} {listed(names)}, which a constraint requires"


def _too_small(exclusions: Sequence[Exclusion], count: int) -> str:
    wanted = exclusions[0].wanted
    found = [e.found for e in exclusions if e.wanted == wanted and e.found]
    if not wanted:
        return f"{_devices(count)} whose request policy does not allow the amount"
    name, _, _ = wanted.partition(" ")
    if not found:
        return f"{_devices(count)} without capacity {name}"
    return f"{_devices(count)} with {name} of at most {largest(found)}"


def left_of(exclusions: Sequence[Exclusion]) -> str:
    """Return what other claims leave of shared devices, and what a request takes, named or by default."""
    name, _, amount = exclusions[0].wanted.partition(" ")
    most = largest([e.found for e in exclusions])
    if amount.endswith(BY_DEFAULT):
        taken = amount.removesuffix(BY_DEFAULT)
        return f"shared by other claims: a request without {name} takes {taken} of it, at most {most} is left"
    return f"with at most {most} of {name} left"


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


def _held(part: _Part, named: bool) -> str:
    """Return how many devices of a part are held, and by which claims or how many if that is known."""
    held = f"{part.count(ExclusionReason.IN_USE):,} held"
    if not named:
        number = part.different(ExclusionReason.IN_USE)
        return f"{held} by {number:,} claim{'s' * (number != 1)}" if number else held
    holders = part.found(ExclusionReason.IN_USE)
    if not holders:
        return held
    several = " " in holders  # a name has no space, a list of names has
    return f"{held} by claim{'s' * several} {holders}"


def _together(part: _Part, asked: Asked, holders: bool) -> str:
    """Return how many free devices that fit each of the nodes has, and what is asked of them together."""
    free = part.count(ExclusionReason.CONSTRAINT) // part.number
    wanted = list(
        dict.fromkeys(e.wanted for e, _ in part.exclusions if e.reason is ExclusionReason.CONSTRAINT)
    )
    text = f"{free:,} free{' each' if part.number > 1 else ''}"
    needed = number_of(wanted[0]) if len(wanted) == 1 else 0
    if not needed:
        text += f", but not together: {listed(wanted)}"
    elif free >= needed:
        text += ", but not for all requests together"
    elif needed != asked.devices:
        text += f" of {needed} needed"
    return f"{text} ({_held(part, holders)})" if part.count(ExclusionReason.IN_USE) else text


def number_of(wanted: str) -> int:
    """Return how many devices are wanted, if that is all that is asked of them together; else 0."""
    number, _, more = wanted.partition(" device")
    return int(number) if number.isdecimal() and more in ("", "s") else 0


def short(expression: str, length: int = _EXPRESSION) -> str:
    """Return an expression on one line, cut at a length that people read."""
    text = " ".join(expression.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
