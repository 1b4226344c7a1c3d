"""Bounds before any search: whether there are fewer devices than are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.structured.matching.plan import Alternative
from dra_driver.structured.matching.problem import NodeProblem
from dra_driver.structured.model.pools import DeviceEntry

__all__ = ["devices_needed", "too_few_devices"]


def devices_needed(problem: NodeProblem) -> int:
    """Return the least number of devices that the requests need."""
    return sum(min(a.count or 0 for a in r.alternatives) for c in problem.claims for r in c.requests)


def too_few_devices(problem: NodeProblem, ranks: Sequence[int] = ()) -> bool:
    """Return whether the requests need more devices than can serve them, whichever are chosen.

    A device serves one request, so requests have to be matched with devices: a maximum bipartite matching,
    found with augmenting paths in O(units x edges). If it is incomplete, the depth-first search would try
    every combination to find that out: 8 alternatives to the power of 9 requests, say.

    Only a necessary condition is checked. Constraints and counters are left to the search, and so are
    requests that do not use devices up: with admin access, for all devices, or served by shareable ones.

    Args:
        problem: the claims on the node.
        ranks: the alternatives that the first requests have to get; all others may get any.

    Raises:
        BudgetExhausted: the question has no steps or no time left.
    """
    alternatives = [a for c in problem.claims for r in c.requests for a in r.alternatives]
    if problem.has_all_requests or any(problem.has_errors(a) for a in alternatives):
        return False  # Kubernetes' search may end in an error here, so ours has to run
    wanted: list[Sequence[DeviceEntry]] = []
    requests = [request for claim in problem.claims for request in claim.requests]
    for i, request in enumerate(requests):
        of = request.alternatives
        wanted += _units(problem, (of[ranks[i]],) if i < len(ranks) else of)
    if len(wanted) < 2:
        return bool(wanted) and not wanted[0]
    return not _Matching(wanted).is_complete(problem)


def _units(problem: NodeProblem, alternatives: Sequence[Alternative]) -> list[Sequence[DeviceEntry]]:
    """Return the devices that can serve a request, once for every device that it needs at least."""
    if any(a.admin for a in alternatives):
        return []
    # Of alternatives, the union of devices and the least count: the search cannot do with less than that.
    candidates = dict.fromkeys(c.entry for a in alternatives for c in problem.candidates(a))
    if any(entry.shareable for entry in candidates):
        return []
    least = min(a.count or 0 for a in alternatives)
    return [tuple(candidates)] * least


class _Matching:
    """A matching of units (one per device needed) with devices."""

    def __init__(self, wanted: Sequence[Sequence[DeviceEntry]]) -> None:
        self._wanted = wanted
        self._holder: dict[DeviceEntry, int] = {}

    def is_complete(self, problem: NodeProblem) -> bool:
        """Return whether every unit gets a device of its own."""
        for unit in range(len(self._wanted)):
            seen: set[DeviceEntry] = set()
            found = self._place(unit, seen)
            problem.budget.spend(1 + len(seen))
            if not found:
                return False
        return True

    def _place(self, unit: int, seen: set[DeviceEntry]) -> bool:
        """Give the unit a device, moving the units that hold one if needed.

        Args:
            unit: without a device so far.
            seen: devices on the augmenting path; each is tried once per unit.
        """
        # Free devices first: an augmenting path is needed only where all of them are held.
        for entry in self._wanted[unit]:
            if entry not in self._holder:
                self._holder[entry] = unit
                return True
        for entry in self._wanted[unit]:
            if entry not in seen:
                seen.add(entry)
                if self._place(self._holder[entry], seen):
                    self._holder[entry] = unit
                    return True
        return False
