"""Areas of a node: devices that depend on one another because they share counters, as partitions do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dra_driver.api.resource import Device, ResourceClaim
from dra_driver.structured import NodeView

__all__ = ["Areas", "devices_needed"]


def devices_needed(claims: Sequence[ResourceClaim]) -> tuple[int, int | None]:
    """Return how many devices claims take at least and at most; None for as many as there are."""
    least, most = 0, 0
    unlimited = False
    for claim in claims:
        if claim.status.allocation is not None:
            continue
        for request in claim.spec.devices.requests or ():
            of = (request.exactly,) if request.exactly is not None else request.first_available
            counts = [0 if r.allocation_mode == "All" else max(1, r.count) for r in of]
            unlimited = unlimited or 0 in counts
            admin = request.exactly is not None and bool(request.exactly.admin_access)
            least += 0 if admin else min(counts, default=0)
            most += max(counts, default=0)
    return least, None if unlimited else most


def partitions_at_most(devices: Iterable[Device], left: Mapping[tuple[str, str], int]) -> int:
    """Return how many of some devices of a pool the counters that are left are enough for, at most.

    Args:
        devices: of one pool.
        left: of its counters, by set and name, in 1e-9 units.
    """
    whole = 0
    # Counter set → counter → the least amount of it that a device takes.
    least: dict[str, dict[str, int]] = {}
    for device in devices:
        if not device.consumes_counters:
            whole += 1
            continue
        # A device that takes from several sets counts with the first; that makes the bound no smaller.
        first = device.consumes_counters[0]
        amounts = {name: counter.value.nano for name, counter in first.counters.items()}
        known = least.setdefault(first.counter_set, amounts)
        # A counter that some device does not take is no bound.
        least[first.counter_set] = {n: min(a, amounts[n]) for n, a in known.items() if n in amounts}
    unlimited = 1 << 30
    for counter_set, of in least.items():
        rooms = (max(0, left.get((counter_set, n), 0)) // a for n, a in of.items() if a > 0)
        whole += min(rooms, default=unlimited)
    return whole


class Areas:
    """The devices of a node's view, by position, and which of them depend on one another.

    Args:
        view: of the node.
        suitable: devices that alone could serve a request.

    Attributes:
        suitable: as given.
        countable: whether each of these can be had without others, and by one claim only.
    """

    def __init__(self, view: NodeView, suitable: frozenset[int]) -> None:
        self.suitable = suitable
        entries = [entry for pool in view.pools for entry in pool.devices]
        self.countable = not any(
            entries[i].shareable or entries[i].device.consumes_counters for i in suitable
        )
        self._sets: list[frozenset[object]] = []
        for entry in entries:
            consumed = {(entry.id.pool_id, c.counter_set) for c in entry.device.consumes_counters}
            self._sets.append(frozenset(consumed) or frozenset([entry.id]))

    def least(
        self, needed: int, held: Sequence[Sequence[int]], kept: Collection[int], left_out: Collection[int]
    ) -> int:
        """Return a number of holders below which there are too few devices; 1 where they cannot be counted.

        Args:
            needed: number of devices.
            held: devices of each holder.
            kept: devices that cannot be freed.
            left_out: devices that may not be used.
        """
        if not self.countable:
            return 1
        usable = self.suitable.difference(kept, left_out)
        missing = needed - len(usable.difference(*held))
        number = 0
        for gain in sorted((len(usable.intersection(of)) for of in held), reverse=True):
            if missing <= 0:
                break
            missing -= gain
            number += 1
        return max(1, number)

    def likely(
        self,
        needed: int,
        held: Sequence[Sequence[int]],
        kept: Collection[int],
        left_out: Collection[int],
        order: Sequence[int],
    ) -> frozenset[int]:
        """Return as few holders as have devices enough in number; the last of ``order`` are preferred."""
        usable = self.suitable.difference(kept, left_out)
        missing = needed - len(usable.difference(*held))
        gains = {i: len(usable.intersection(held[i])) for i in order}
        number = self.least(needed, held, kept, left_out)
        chosen: set[int] = set()
        for left in range(number - 1, -1, -1):
            for i in reversed(order):
                others = sorted((g for j, g in gains.items() if j != i and j not in chosen), reverse=True)
                if i not in chosen and missing - gains[i] <= sum(others[:left]):
                    chosen.add(i)
                    missing -= gains[i]
                    break
        return frozenset(chosen)

    def together(self, held: Sequence[Sequence[int]]) -> list[frozenset[int]]:
        """Return the holders by area, those together that depend on one another."""
        areas: list[tuple[set[object], set[int]]] = []
        for number, devices in enumerate(held):
            mine = set[object]().union(*(self._sets[i] for i in devices))
            members = {number}
            rest = []
            for of, others in areas:
                if of & mine:
                    mine |= of
                    members |= others
                else:
                    rest.append((of, others))
            areas = [*rest, (mine, members)]
        return [frozenset(members) for _, members in areas]
