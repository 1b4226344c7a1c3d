"""Contents of nodes as columns: what the expressions and constraints of claims can see of devices.

A column is one attribute, expression or constraint; its value on a node has one entry per device. Equal
values have equal numbers, so two nodes are compared by a few integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dra_driver.api.resource import DeviceAttribute
from dra_driver.api.version import Version
from dra_driver.errors import InvalidVersion
from dra_driver.structured.matching.constraints import TOPOLOGY, Value, attribute_of, attribute_values
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.compatibility import groups_of
from dra_driver.structured.model.pools import DeviceEntry, NodeView, PoolView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.search.cost import is_busy, topology_of

__all__ = ["BASE", "TOPOLOGY_COLUMN", "Column", "Columns", "Facts"]

# ("attribute", domain, name), ("expression", text), ("derived", text) or ("same", attribute of a constraint).
Column = tuple[str, ...]

BASE: Final[Column] = ("base",)
"""Everything about pools and devices but attributes: the pools at 0, then one entry per device."""
TOPOLOGY_COLUMN: Final[Column] = ("topology",)


# Bytes, measured: of a column; of its number for a node; of a value, and of an item of it, which is a set
# where a constraint compares; of the content of a device; of what is known of a node, and of each device.
_PER_COLUMN, _PER_NUMBER, _PER_ENTRY, _PER_ITEM, _PER_SET = 1024, 64, 240, 32, 256
# Of each value in such a set, where attributes have lists.
_PER_VALUE: Final = 64
_PER_CONTENT, _PER_NODE, _PER_DEVICE = 1024, 640, 16
# Items of a value that are computed in the time of a step, if they are known.
_ENTRIES_PER_STEP: Final = 8


@dataclass(slots=True, eq=False)
class Facts:
    """What is known about one node while its view is the same object.

    Attributes:
        entries: its devices, pool by pool.
        bits: by pool, a bit per device name; filled when a device is in use.
        columns: number of the value of each column that was computed.
        begun: results of expressions on the first devices, where the rest has to be evaluated yet.
    """

    view: NodeView
    entries: tuple[DeviceEntry, ...]
    bits: tuple[dict[str, int], ...] = ()
    columns: dict[Column, int] = field(default_factory=dict)
    begun: dict[Column, list[Hashable]] = field(default_factory=dict)


class Columns:
    """Values of columns, each computed once per node and shared by all projections.

    Attributes:
        weight: estimated bytes of everything that is kept.
    """

    def __init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        self._ids: dict[Column, dict[Hashable, int]] = {}
        self._values: dict[Column, list[tuple[Hashable, ...]]] = {}
        self._contents: dict[Hashable, int] = {}
        self.weight = 0
        # Bytes by column, and of what is known about the nodes that there are.
        self._weights: dict[Column, int] = {}
        self._of_nodes = 0

    @property
    def least(self) -> int:
        """Estimated bytes that are needed for every fleet of this size, whatever is asked."""
        return 2 * self._of_nodes

    def _weigh(self, column: Column, more: int) -> None:
        self._weights[column] = self._weights.get(column, 0) + more
        self.weight += more

    def _add(self, more: int) -> None:
        self._of_nodes += more
        self.weight += more

    def facts(self, view: NodeView) -> Facts:
        """Return what is known about the node; nothing if its view is new."""
        name = view.node.metadata.name
        known = self._facts.get(name)
        if known is None or known.view is not view:
            self.forget(name)
            known = self._facts[name] = Facts(view, tuple(e for p in view.pools for e in p.devices))
            self._add(_weight_of(known))
        return known

    def forget(self, node: str) -> None:
        """Drop what is known about a node that no longer exists."""
        known = self._facts.pop(node, None)
        if known is not None:
            self._add(-_weight_of(known))
            for column in known.columns:
                self._weigh(column, -_PER_NUMBER)

    def value(self, column: Column, number: int) -> tuple[Hashable, ...]:
        """Return the value that stands behind a number, one entry per device."""
        return self._values[column][number]

    def number(
        self, snapshot: Snapshot, facts: Facts, column: Column, budget: Budget, evaluations: Budget
    ) -> int:
        """Return the number of a node's value of a column; equal values have equal numbers.

        Args:
            snapshot: that the node is of.
            facts: about the node.
            column: which one.
            budget: of the question; it is charged with the upkeep.
            evaluations: what evaluating an expression on all nodes may cost.

        Raises:
            BudgetExhausted: an expression had to be evaluated, and nothing is left for it.
            IndexUnfinished: the question may do no more upkeep.
        """
        number = facts.columns.get(column)
        if number is None:
            if column[0] in ("expression", "derived"):
                value = self._evaluate(snapshot, facts, column, budget, evaluations)
            else:
                budget.keep_up(1 + len(facts.entries) // _ENTRIES_PER_STEP)
                value = self._compute(snapshot, facts, column)
            ids = self._ids.setdefault(column, {})
            number = ids.get(value)
            weight = (
                _PER_NUMBER if column in self._weights else _PER_NUMBER + _PER_COLUMN + 4 * len(column[-1])
            )
            if number is None:
                number = ids[value] = len(ids)
                self._values.setdefault(column, []).append(value)
                per_item = _PER_SET if column[0] == "same" else _PER_ITEM
                weight += _PER_ENTRY + per_item * len(facts.entries)
                weight += _PER_VALUE * sum(len(item) for item in value if isinstance(item, frozenset))
            self._weigh(column, weight)
            facts.columns[column] = number
        return number

    @property
    def known(self) -> Set[Column]:
        """The columns of which values are cached."""
        return self._ids.keys()

    def keep(self, columns: Set[Column]) -> None:
        """Forget all columns but these and those of every projection."""
        for column in self._ids.keys() - columns - {BASE, TOPOLOGY_COLUMN}:
            del self._ids[column]
            self._values.pop(column, None)
            self.weight -= self._weights.pop(column, 0)
            for facts in self._facts.values():
                facts.columns.pop(column, None)
                facts.begun.pop(column, None)

    def distinct(self, column: Column) -> int:
        """Return how many different values a column has."""
        return len(self._ids.get(column, ()))

    def _evaluate(
        self, snapshot: Snapshot, facts: Facts, column: Column, budget: Budget, evaluations: Budget
    ) -> tuple[Hashable, ...]:
        """Return the results of an expression; a question that ends between two devices leaves the first."""
        done = facts.begun.setdefault(column, [])
        evaluate = snapshot.selectors.derive if column[0] == "derived" else snapshot.selectors.matches
        for entry in facts.entries[len(done) :]:
            # The evaluation itself is charged besides.
            budget.keep_up(len(done) % _ENTRIES_PER_STEP == 0)
            done.append(evaluate(column[1], entry, evaluations))
        del facts.begun[column]
        return tuple(done)

    def _compute(self, snapshot: Snapshot, facts: Facts, column: Column) -> tuple[Hashable, ...]:
        match column:
            case ("attribute", domain, name):
                full = f"{domain}/{name}"
                return tuple([_attribute(e, domain, name, full) for e in facts.entries])
            case ("same", name):
                lists = snapshot.features.list_type_attributes
                # Constraints compare devices of one node, so only which values are equal counts, not what
                # they are.
                numbers: dict[object, int] = {}
                return tuple(
                    frozenset(
                        numbers.setdefault(v, len(numbers))
                        for v in sorted(
                            attribute_values(attribute_of(e.device, e.id.driver, name), lists=lists), key=repr
                        )
                    )
                    for e in facts.entries
                )
            case ("topology",):
                return _topology(facts.entries)
            case _:
                return self._base(snapshot, facts)

    def _base(self, snapshot: Snapshot, facts: Facts) -> tuple[Hashable, ...]:
        pools = tuple(_pool_content(p) for p in facts.view.pools)
        contents: list[Hashable] = [pools]
        for pool in facts.view.pools:
            for entry in pool.devices:
                content = _content(snapshot, entry, entry.id.device in pool.off_node)
                number = self._contents.get(content)
                if number is None:
                    number = self._contents[content] = len(self._contents)
                    self.weight += _PER_CONTENT
                contents.append(number)
        return tuple(contents)


def _weight_of(facts: Facts) -> int:
    # A bit per device, in a dict, as soon as one of them is in use.
    return _PER_NODE + (_PER_DEVICE + _PER_NUMBER) * len(facts.entries)


def _attribute(entry: DeviceEntry, domain: str, name: str, full: str) -> Hashable:
    attributes = entry.device.attributes
    found = attributes.get(full)
    if domain != entry.id.driver:
        return found
    bare = attributes.get(name)
    return bare if found is None else (found, bare)


def _topology(entries: Sequence[DeviceEntry]) -> tuple[Hashable, ...]:
    """Return which devices are in one group, by level of ``TOPOLOGY``; groups are numbered, not named.

    A device with a list of values is in several groups.
    """
    numbers: dict[object, int] = {}

    def numbered(level: str, values: frozenset[Value] | None) -> Hashable:
        if values is None:
            return None
        found = [numbers.setdefault((level, v), len(numbers)) for v in sorted(values, key=repr)]
        return found[0] if len(found) == 1 else frozenset(found)

    return tuple(
        tuple(numbered(level, facts.get(level)) for level in TOPOLOGY)
        for facts in (topology_of(entry) for entry in entries)
    )


def _pool_content(pool: PoolView) -> Hashable:
    return (
        pool.id.driver,
        len(pool.devices),
        pool.incomplete,
        pool.invalid,
        tuple(
            (name, tuple(sorted((n, c.value.nano) for n, c in s.counters.items())))
            for name, s in sorted(pool.counter_sets.items())
        ),
        tuple(e.device.consumes_counters and _needs(e) for e in pool.elsewhere),
    )


def _needs(entry: DeviceEntry) -> tuple[Hashable, ...]:
    return tuple(
        (c.counter_set, tuple((n, a.value.nano) for n, a in c.counters.items()), groups_of(c))
        for c in entry.device.consumes_counters
    )


def _content(snapshot: Snapshot, entry: DeviceEntry, off_node: bool) -> Hashable:
    """Return everything about a device but its attributes."""
    device = entry.device
    # An attribute that selectors cannot read fails all of them, even those that do not use it.
    error = None
    if any(_is_odd(a) for a in device.attributes.values()):
        error = snapshot.selectors.view(entry).error
    return (
        entry.id.driver,
        tuple(sorted(device.capacity.items())),
        entry.shareable,
        device.allow_multiple_allocations,
        bool(device.binding_conditions),
        # Without their times, which the API server sets: they would differ on every node.
        tuple([(t.key, t.value, t.effect) for t in device.taints]),
        device.consumes_counters and _needs(entry),
        entry.ambiguous_selector,
        is_busy(entry),
        off_node,
        error,
        entry.newer,
    )


def _is_odd(attribute: DeviceAttribute) -> bool:
    if attribute.string_value is not None or attribute.int_value is not None:
        return False
    if attribute.version_value is not None:
        return not _is_version(attribute.version_value)
    return attribute.bool_value is None


@lru_cache(maxsize=4096)
def _is_version(text: str) -> bool:
    try:
        Version.parse(text)
    except InvalidVersion:
        return False
    return True
