"""What can be said before any search: that there are fewer devices than are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.structured.matching.plan import RequestPlan
from dra_driver.structured.matching.problem import NodeProblem
from dra_driver.structured.model.pools import DeviceEntry

__all__ = ["devices_needed", "too_few_devices"]


def devices_needed(problem: NodeProblem) -> int:
    """Return how many devices the requests need at least."""
    return sum(min(a.count or 0 for a in r.alternatives) for c in problem.claims for r in c.requests)


def too_few_devices(problem: NodeProblem) -> bool:
    """Return whether the requests need more devices than can serve them, whichever are chosen.

    A device serves one request, so the requests have to be matched with devices (a maximum matching, found by
    augmenting paths). Where there is none, the depth-first search would try every combination to find that
    out: 8 alternatives to the power of 9 requests, say. Constraints and counters are left to the search, and
    so are requests that do not use devices up: with admin access, for all devices, or served by shared ones.

    Raises:
        BudgetExhausted: the question has no steps or no time left.
    """
    alternatives = [a for c in problem.claims for r in c.requests for a in r.alternatives]
    if problem.has_all_requests or any(problem.has_errors(a) for a in alternatives):
        return False  # the search may end in an error, as in Kubernetes
    wanted: list[Sequence[DeviceEntry]] = []
    for claim in problem.claims:
        for request in claim.requests:
            wanted += _units(problem, request)
    if len(wanted) < 2:
        return bool(wanted) and not wanted[0]
    return not _Matching(wanted).is_complete(problem)


def _units(problem: NodeProblem, request: RequestPlan) -> list[Sequence[DeviceEntry]]:
    """Return what each device of the request can be: once for every device that it needs at least."""
    if any(a.admin for a in request.alternatives):
        return []
    candidates = dict.fromkeys(c.entry for a in request.alternatives for c in problem.candidates(a))
    if any(entry.shareable for entry in candidates):
        return []
    least = min(a.count or 0 for a in request.alternatives)
    return [tuple(candidates)] * least


class _Matching:
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
        """Give the unit a device, moving those that hold one as far as needed."""
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
