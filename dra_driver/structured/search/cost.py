"""What best fit minimises: unused capacity, destroyed partitions, distance between devices.

All costs are integers, so that sums are exact and equal costs compare as equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.resource import DeviceCapacity
from dra_driver.structured.matching.constraints import STANDARD, TOPOLOGY, Value, attribute_values
from dra_driver.structured.matching.plan import Alternative
from dra_driver.structured.matching.problem import Candidate, NodeProblem
from dra_driver.structured.model.pools import DeviceEntry, PoolView

__all__ = ["Costs", "DeviceCost", "is_busy", "topology_of", "topology_spread"]

# An attribute (bool) with which a driver reports that the device is in use without a claim: of devices that
# are equally good an idle one is preferred.
BUSY: Final = "busy"

# Resolution of amounts: parts of the largest amount of the capacity in the cluster. That makes bytes and
# cores comparable, and integer sums exact. Beside a device that is as large as is believed (1Pi) all others
# still differ by kilobytes.
_PARTS: Final = 10**12
_PRIMARY: Final = "memory"


@dataclass(frozen=True, slots=True, order=True)
class DeviceCost:
    """The cost of choosing a device; the fields are compared in their order.

    Attributes:
        binding: 1 if the device has binding conditions (it may never become ready).
        waste: unused part of the capacity that counts: what was asked for, else memory, else everything.
        destroyed: capacity of the partitions that become impossible.
        busy: 1 if the device is known to be in use without a claim.
        other_waste: unused part of the other capacity.
    """

    binding: int
    waste: int
    destroyed: int
    busy: int
    other_waste: int


class Costs:
    """Costs of the candidates of one node, computed on demand."""

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._scale = problem.snapshot.index.capacity_scale
        self._known: dict[tuple[Alternative, DeviceEntry], DeviceCost] = {}

    def of(self, alternative: Alternative, candidate: Candidate) -> DeviceCost:
        """Return the cost of serving this request with this device."""
        key = (alternative, candidate.entry)
        cost = self._known.get(key)
        if cost is None:
            waste, other = self.waste(alternative, candidate)
            cost = self._known[key] = DeviceCost(
                binding=int(bool(candidate.entry.device.binding_conditions)),
                waste=waste,
                destroyed=self.destroyed(candidate) if candidate.counters else 0,
                busy=int(is_busy(candidate.entry)),
                other_waste=other,
            )
        return cost

    def waste(self, alternative: Alternative, candidate: Candidate) -> tuple[int, int]:
        """Return the unused capacity that counts, and the unused rest, in parts of the largest device."""
        device = candidate.entry.device
        primary = {n for n in device.capacity if n in alternative.capacity}
        if not primary:
            primary = {n for n in device.capacity if _bare(n) == _PRIMARY} or set(device.capacity)
        waste = other = 0
        for name, capacity in device.capacity.items():
            left = capacity.value.nano
            if candidate.entry.shareable:
                # What remains of a shared device stays usable, but a fuller device is the better place.
                left -= candidate.consumption[name].nano if name in candidate.consumption else 0
                left -= candidate.used[name].nano if name in candidate.used else 0
            elif name in alternative.capacity:
                left -= alternative.capacity[name].nano
            part = left * _PARTS // self._largest(name, capacity)
            if name in primary:
                waste += part
            else:
                other += part
        return waste, other

    def destroyed(self, candidate: Candidate) -> int:
        """Return the capacity of the partitions that fit now and would not fit any more.

        In parts of the largest device, and 1 for each partition, so that those without memory count, too.
        """
        left = self._problem.snapshot.counters_left(candidate.pool)
        total = 0
        touched = {key[1] for key, _, _ in candidate.counters}
        taken = {(key[1], key[2]): amount for key, amount, _ in candidate.counters}
        for entry in self._partitions(candidate.pool, touched):
            if entry is candidate.entry:
                continue
            # Becomes impossible: enough counters are left for it now, and too few after this choice.
            needs = [
                ((c.counter_set, name), amount.value.nano)
                for c in entry.device.consumes_counters
                for name, amount in c.counters.items()
            ]
            if all(left.get(k, 0) >= n for k, n in needs) and any(
                left.get(k, 0) - taken.get(k, 0) < n for k, n in needs
            ):
                total += 1 + self._size(entry)
        return total

    def _partitions(self, pool: PoolView, sets: set[str]) -> Sequence[DeviceEntry]:
        # With several sets a partition may be in more than one of them; it is counted once.
        by_set = self._problem.snapshot.index.consumers(pool)
        if len(sets) == 1:
            return by_set.get(next(iter(sets)), ())
        return list({id(e): e for s in sorted(sets) for e in by_set.get(s, ())}.values())

    def _largest(self, name: str, capacity: DeviceCapacity) -> int:
        """Return the largest amount of a capacity in the cluster.

        The device that an index keeps as the example of its kind may have left the cluster, or not be there
        yet in an older snapshot, as the only one with this capacity. Nothing is allocated from that kind
        before it is back; then the largest amounts are others, and its costs are worked out anew.
        """
        return self._scale.get(_bare(name)) or max(1, capacity.value.nano)

    def _size(self, entry: DeviceEntry) -> int:
        return sum(
            c.value.nano * _PARTS // self._largest(n, c)
            for n, c in entry.device.capacity.items()
            if _bare(n) == _PRIMARY
        )


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


def is_busy(entry: DeviceEntry) -> bool:
    """Return whether the driver reports that the device is in use without a claim."""
    return any(a.bool_value is True and _bare(n) == BUSY for n, a in entry.device.attributes.items())


def topology_of(entry: DeviceEntry) -> Mapping[str, frozenset[Value]]:
    """Return the topology attributes of the device, by their name in ``TOPOLOGY``."""
    found: dict[str, frozenset[Value]] = {}
    for name, attribute in entry.device.attributes.items():
        bare = _bare(name)
        if bare not in TOPOLOGY:
            continue
        standard = STANDARD.get(bare)
        # The standard attribute wins over one of the vendor's with the same last part.
        if (bare not in found or name == standard) and (values := attribute_values(attribute, lists=True)):
            found[bare] = values
    return found


def topology_spread(entries: Sequence[DeviceEntry]) -> tuple[int, ...]:
    """Return, for each level of ``TOPOLOGY``, over how many groups the devices are spread, beyond the first.

    A device without the attribute is a group of its own if other devices of its driver have it; otherwise the
    level does not apply to it (a network card has no NVLink). One with a list of values is close to every
    device that has one of them.
    """
    if len(entries) < 2:
        return (0,) * len(TOPOLOGY)
    facts = [(e.id.driver, topology_of(e)) for e in entries]
    spread: list[int] = []
    for level in TOPOLOGY:
        drivers = {driver for driver, topology in facts if level in topology}
        groups: set[frozenset[Value]] = set()
        ungrouped = 0
        for driver, topology in facts:
            if level in topology:
                groups.add(topology[level])
            elif driver in drivers:
                ungrouped += 1
        spread.append(max(0, _number_of(groups) + ungrouped - 1))
    return tuple(spread)


def _number_of(groups: set[frozenset[Value]]) -> int:
    """Return how many values are needed at least, so that each set has one of them.

    Exact up to two beyond the sets of one value. It has to grow with the sets (the search gives up what is
    worse already) and to depend on which values are equal alone, not on what they are (nodes with equal
    patterns have to have equal scores).
    """
    single = frozenset(value for values in groups if len(values) == 1 for value in values)
    others = [values for values in groups if not values & single]
    if not others:
        return len(single)
    return len(single) + (1 if frozenset.intersection(*others) else 2)
