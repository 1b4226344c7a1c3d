"""Components of a layout: devices connected by counter sets that they have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from dra_driver.structured.model.pools import PoolView
from dra_driver.structured.model.types import (
    NodePolicy,
    PoolPolicy,
)

__all__ = ["Component", "components_of"]


@dataclass(slots=True, eq=False)
class Component:
    """Devices of a layout that share counters, or a single device.

    Attributes:
        pool: position of the pool in the view.
        positions: of the devices, among all devices of the node.
        offset: position of the pool's first device.
        content: kinds of the devices, counter sets that they consume, and how the pool is used.
        sets: counter sets that the devices consume.
        shareable: whether shares of a device can be allocated.
        spread: whether the policy for nodes of the pool is to spread.
    """

    pool: int
    positions: tuple[int, ...]
    offset: int
    content: tuple[Hashable, ...]
    sets: tuple[str, ...]
    shareable: bool
    spread: bool


def components_of(
    pools: Sequence[PoolView], kinds: Sequence[int], policies: Sequence[PoolPolicy | None]
) -> Iterable[Component]:
    """Iterate over the components of a layout: devices connected by counter sets that they have in common."""
    offset = 0
    for number, pool in enumerate(pools):
        groups: list[tuple[set[str], list[int]]] = []
        for i, entry in enumerate(pool.devices):
            sets = {c.counter_set for c in entry.device.consumes_counters}
            positions = [offset + i]
            # Union of the groups that this device connects; the lists are short, a GPU has some dozen
            # partitions.
            if sets:
                touching = [g for g in groups if g[0] & sets]
                for group in touching:
                    sets |= group[0]
                    positions = [*group[1], *positions]
                    groups.remove(group)
            groups.append((sets, sorted(positions)))
        for sets, positions in groups:
            entries = [pool.devices[p - offset] for p in positions]
            policy = policies[number]
            spread = policy is not None and policy.nodes is NodePolicy.SPREAD
            yield Component(
                number,
                tuple(positions),
                offset,
                (tuple(kinds[p] for p in positions), tuple(sorted(sets)), spread),
                tuple(sorted(sets)),
                any(e.shareable for e in entries),
                spread,
            )
        offset += len(pool.devices)
