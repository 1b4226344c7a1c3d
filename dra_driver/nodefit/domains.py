"""Nodes by the values of their labels: the domains of a topology."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

__all__ = ["Domains"]

_MOST_KEYS: Final = 32


class _Domain:
    """Nodes with a label.

    Attributes:
        values: node → value; another object after each change.
        members: value → nodes.
    """

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.members: dict[str, set[str]] = {}

    def put(self, name: str, value: str | None) -> None:
        """Note the value of a node; None: it has none."""
        old = self.values.pop(name, None)
        if old is not None:
            self.members[old].discard(name)
            if not self.members[old]:
                del self.members[old]
        if value is not None:
            self.values[name] = value
            self.members.setdefault(value, set()).add(name)


class Domains:
    """Indices of nodes by label, for the labels that were asked for last.

    Args:
        nodes: gives the name and the labels of every node.

    Attributes:
        version: another number whenever a node has changed.
    """

    def __init__(self, nodes: Callable[[], Iterable[tuple[str, Mapping[str, str]]]]) -> None:
        self.version = 0
        self._nodes = nodes
        self._names: set[str] | None = None
        self._keys: OrderedDict[str, _Domain] = OrderedDict()

    @property
    def names(self) -> Set[str]:
        """All nodes."""
        if self._names is None:
            self._names = {name for name, _ in self._nodes()}
        return self._names

    def changed(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Note that a node has changed; without labels: that it is gone."""
        self.version += 1
        self._names = None
        for key, domain in self._keys.items():
            value = labels.get(key) if labels is not None else None
            if domain.values.get(name) != value:
                domain.values = dict(domain.values)
                domain.put(name, value)

    def values(self, key: str) -> Mapping[str, str]:
        """Return the value of a label of each node that has it."""
        return self._domain(key).values

    def members(self, key: str) -> Mapping[str, Set[str]]:
        """Return the nodes for each value of a label."""
        return self._domain(key).members

    def _domain(self, key: str) -> _Domain:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _Domain()
            for name, labels in self._nodes():
                if key in labels:
                    known.put(name, labels[key])
            if len(self._keys) > _MOST_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(key)
        return known
