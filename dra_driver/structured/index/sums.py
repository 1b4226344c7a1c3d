"""What is free, added up wherever it is: a bound for what can be allocated of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dra_driver.structured.matching import capacity
from dra_driver.structured.matching.capacity import Amounts
from dra_driver.structured.matching.plan import Alternative
from dra_driver.structured.model.pools import DeviceEntry

__all__ = ["UNLIMITED", "Sums", "sums_of"]

UNLIMITED: Final = 1_000
"""What a device counts for that can be shared without limits."""


@dataclass(slots=True)
class _Pooled:
    """Amounts of one kind of component, added up: what is left, and the least that a device takes."""

    left: dict[str, int] = field(default_factory=dict)
    need: dict[str, int] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """The number of devices that the amounts are enough for."""
        return min((self.left[n] // need for n, need in self.need.items()), default=0)


@dataclass(slots=True)
class Sums:
    """What is free for some requests, added up without regard to where it is.

    Attributes:
        whole: free devices that are allocated as a whole and share no counters.
        pooled: the rest, by the amounts that a device takes of it at least.
    """

    whole: int = 0
    pooled: dict[Hashable, _Pooled] = field(default_factory=dict)

    def add(self, other: Sums, times: int = 1) -> None:
        """Add what another part of the cluster has, several times."""
        self.whole += times * other.whole
        for key, amounts in other.pooled.items():
            mine = self.pooled.setdefault(key, _Pooled({}, amounts.need))
            for name, left in amounts.left.items():
                mine.left[name] = mine.left.get(name, 0) + times * left

    @property
    def units(self) -> int:
        """The number of devices that this is enough for."""
        return self.whole + sum(p.units for p in self.pooled.values())


def sums_of(
    entries: Sequence[DeviceEntry],
    serving: Mapping[int, Sequence[Alternative]],
    left: Mapping[tuple[str, str], int],
    used: Mapping[str, Amounts],
) -> Sums:
    """Return what the devices of one component that serve a request add to the sums.

    Args:
        entries: all devices of the component.
        serving: of these the ones that serve the request and are not allocated, with its alternatives.
        left: of the counters, by set and name.
        used: what shares consume, by device and capacity.
    """
    sums = Sums()
    sets = {c.counter_set for i in serving for c in entries[i].device.consumes_counters}
    needs: list[dict[str, int]] = []
    for i, alternatives in serving.items():
        entry = entries[i]
        if entry.shareable:
            _add_shares(sums, entry, alternatives, used.get(entry.id.device, {}))
        elif not entry.device.consumes_counters:
            sums.whole += 1
        else:
            needs.append(_family_needs(entry))
    amounts: dict[str, int] = {}
    for (counter_set, name), amount in left.items():
        if counter_set in sets:
            family = _family(name)
            amounts[family] = amounts.get(family, 0) + max(0, amount)
    if needs and not _pool(sums, needs, amounts):
        sums.whole += len(needs)
    return sums


def _add_shares(sums: Sums, entry: DeviceEntry, alternatives: Sequence[Alternative], used: Amounts) -> None:
    """Add what is left of a device that can be shared."""
    consumed = [capacity.consumption(a.capacity, entry.device.capacity) for a in alternatives]
    needs = [{name: amount.nano for name, amount in c.items()} for c in consumed if c is not None]
    amounts = {
        name: max(0, of.value.nano - (used[name].nano if name in used else 0))
        for name, of in entry.device.capacity.items()
    }
    if needs and not _pool(sums, needs, amounts):
        # It costs nothing, so there is no end to it.
        sums.whole += UNLIMITED


def _pool(sums: Sums, needs: Sequence[Mapping[str, int]], amounts: Mapping[str, int]) -> bool:
    """Add amounts to those of components whose devices need as much at least; False if they need nothing."""
    need = {n: least for n in needs[0] if (least := min(of.get(n, 0) for of in needs)) > 0}
    if not need:
        return False
    mine = sums.pooled.setdefault(tuple(sorted(need.items())), _Pooled({}, need))
    for name in need:
        mine.left[name] = mine.left.get(name, 0) + amounts.get(name, 0)
    return True


def _family(counter: str) -> str:
    """Return the name of counters that differ in their number only: ``memory-slice-`` of ``memory-slice-3``.

    A device takes certain ones of them, so their sum is what "so much is free" means.
    """
    return counter.rstrip("0123456789")


def _family_needs(entry: DeviceEntry) -> dict[str, int]:
    needs: dict[str, int] = {}
    for consumed in entry.device.consumes_counters:
        for name, counter in consumed.counters.items():
            family = _family(name)
            needs[family] = needs.get(family, 0) + counter.value.nano
    return needs
