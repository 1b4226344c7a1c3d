"""Areas of a node: devices that depend on one another because they share counters, as partitions do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import DeviceEntry, NodeView

__all__ = ["Areas", "areas_of", "devices_needed"]


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


def areas_of(entries: Sequence[DeviceEntry]) -> list[list[int]]:
    """Return the positions of devices, those together that share counters."""
    leader = list(range(len(entries)))

    def find(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    first: dict[object, int] = {}
    for i, entry in enumerate(entries):
        for consumed in entry.device.consumes_counters:
            key = (entry.id.pool_id, consumed.counter_set)
            a, b = sorted((find(i), find(first.setdefault(key, i))))
            leader[b] = a
    areas: dict[int, list[int]] = {}
    for i in range(len(entries)):
        areas.setdefault(find(i), []).append(i)
    return list(areas.values())


class Areas:
    """The devices of a node's view, by position, and which of them depend on one another.

    Args:
        view: of the node.
        suitable: devices that alone could serve a request.

    Attributes:
        suitable: as given.
        exclusive: whether each of these is had by one claim only.
        concerned: these, and devices that take from counters that these take from.
        countable: whether it can be had without others, besides.
    """

    def __init__(self, view: NodeView, suitable: frozenset[int]) -> None:
        self.suitable = suitable
        entries = [entry for pool in view.pools for entry in pool.devices]
        entries += [entry for pool in view.pools for entry in pool.elsewhere]
        self.exclusive = not any(entries[i].shareable for i in suitable)
        self.countable = self.exclusive and not any(entries[i].device.consumes_counters for i in suitable)
        self._area = {p: number for number, positions in enumerate(areas_of(entries)) for p in positions}
        wanted = {self._area[p] for p in suitable}
        self.concerned = frozenset(p for p, area in self._area.items() if area in wanted)

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
        areas: list[tuple[set[int], set[int]]] = []
        for number, devices in enumerate(held):
            mine = {self._area[i] for i in devices}
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
