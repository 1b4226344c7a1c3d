"""The search of Kubernetes 1.36 with the defects that were recorded of it: what kube-scheduler would do.

Our own search (``search``) finds what the API documents. kube-scheduler may fail where that succeeds, or take
other devices. Before devices are granted to it, this says which ones it takes of what it sees.

What differs, each confirmed against the Go allocator (``tests/conformance``):

* counters are taken before taints, constraints and capacity are looked at, and not given back when the device
  is rejected for one of these; those of shared devices also not on the way back;
* counters belong to the name of a pool, whatever its driver; the first pool that is looked at counts;
* a device that consumes counters is rejected where any counter of its pool is over-committed;
* ``distinctAttribute`` compares with the last device of each request only;
* ``matchAttribute`` over lists goes on with what devices had in common that were taken and given back, until
  none is left;
* where lists are not enabled, one satisfies ``matchAttribute`` on the first device, and none after it;
* "all devices" that are rejected late leave their constraints, and whole devices rejected for their capacity
  stay in use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec

from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import ResourceClaim
from dra_driver.structured.matching.capacity import Amounts, fits
from dra_driver.structured.matching.constraints import Value, attribute_of
from dra_driver.structured.matching.plan import MAX_RESULTS, Alternative, FatalError, compile_claims
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model.budget import Budget, BudgetExhausted
from dra_driver.structured.model.pools import DeviceEntry, PoolView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import DeviceID
from dra_driver.structured.search.search import Pick

__all__ = ["UpstreamSearch", "scheduler_picks", "scheduler_takes"]

_CounterKey = tuple[str, str, str]
# The values of an attribute whose type is not enabled.
_UNSUPPORTED: Final[frozenset[Value]] = frozenset({("unsupported", None)})


class _TooManyError(Exception):
    """A claim would have more devices than it can: another alternative may need fewer."""


@dataclass(slots=True)
class _Constraint:
    """State of one constraint, as Kubernetes keeps it.

    Attributes:
        distinct: ``distinctAttribute``, else ``matchAttribute``.
        number: of devices.
        common: what they have in common, or what the first one has.
        last: the value of the last device, by request.
    """

    distinct: bool
    number: int = 0
    common: frozenset[Value] = frozenset()
    last: dict[str, frozenset[Value]] = field(default_factory=dict)

    def add(self, request: str, values: frozenset[Value]) -> bool:
        if not values or (values is _UNSUPPORTED and (self.last or (self.number and not self.distinct))):
            return False
        if self.distinct:
            if self.number and any(values & others for others in self.last.values()):
                return False
            # In place of the request's device before, which is compared with no more.
            self.last[request] = values
        elif self.number == 0:
            self.common = values
        elif values & self.common:
            self.common = values & self.common
        else:
            return False
        self.number += 1
        return True

    def remove(self, request: str) -> None:
        # ``common`` stays as narrow as the device has made it.
        if self.distinct:
            self.last.pop(request, None)
        self.number -= 1


class UpstreamSearch:
    """One search on one node.

    Args:
        problem: the claims with the devices of the node as kube-scheduler sees them, tainted ones among them.

    Attributes:
        picks: the devices chosen, by claim, after ``run``.
        chosen: the alternative of each request, by claim.
    """

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._whole: dict[DeviceEntry, set[int]] = defaultdict(set)
        self._shares: dict[DeviceEntry, list[Amounts]] = {}
        self._consumed: Counter[_CounterKey] = Counter()
        self._available: dict[str, Mapping[tuple[str, str], int]] = {}
        self._devices = [
            (pool, entry)
            for pool in problem.pools
            if not (pool.incomplete or pool.invalid)
            for entry in pool.devices
        ]
        self._looked: dict[tuple[Alternative, DeviceEntry], Candidate | None] = {}
        self._constraints = [
            [_Constraint(c.match_attribute is None) for c in claim.constraints] for claim in problem.claims
        ]
        self.picks: list[list[Pick]] = [[] for _ in problem.claims]
        self.chosen: list[list[int]] = [[0] * len(claim.requests) for claim in problem.claims]

    def run(self) -> bool:
        """Return whether kube-scheduler finds devices; ``picks`` are the ones that it takes.

        Raises:
            FatalError: it ends with an error.
            BudgetExhausted: the question has no steps or no time left.
        """
        self._problem.prepare(strict=True)
        if not self._claim(0):
            return False
        for of_claim in self.picks:
            for pick in of_claim:
                if pick.entry.node_name or pick.entry.device.binds_to_node:
                    break  # the allocation is for this node, whatever devices come behind
                if pick.entry.ambiguous_selector:
                    raise FatalError(f"the node selector of {pick.entry.id} has several terms")
        return True

    def _claim(self, ci: int) -> bool:
        while ci < len(self._problem.claims) and self._problem.claims[ci].allocation is not None:
            ci += 1
        return ci == len(self._problem.claims) or self._request(ci, 0)

    def _request(self, ci: int, ri: int) -> bool:
        requests = self._problem.claims[ci].requests
        if ri == len(requests):
            try:
                return self._claim(ci + 1)
            except _TooManyError:
                return False
        alternatives = requests[ri].alternatives
        if alternatives[0].request == alternatives[0].parent:
            return self._serve(ci, ri, alternatives[0])
        exceeded = True
        for index, alternative in enumerate(alternatives):
            self.chosen[ci][ri] = index
            try:
                if self._serve(ci, ri, alternative):
                    return True
            except _TooManyError:
                continue
            exceeded = False
        if exceeded:
            raise _TooManyError
        return False

    def _serve(self, ci: int, ri: int, alternative: Alternative) -> bool:
        if alternative.count is not None:
            return self._fill(ci, ri, alternative, alternative.count, 0)
        candidates = self._problem.all_devices(alternative)
        return bool(candidates) and self._fill_all(ci, ri, alternative, candidates, 0)

    def _fill_all(
        self, ci: int, ri: int, alternative: Alternative, candidates: Sequence[Candidate], done: int
    ) -> bool:
        """Choose all devices from ``done`` on."""
        if done == len(candidates):
            return self._request(ci, ri + 1)
        self._check_number(ci, len(candidates) - done)
        if not self._take(ci, alternative, candidates[done], must=True):
            return False
        return self._go_on(ci, partial(self._fill_all, ci, ri, alternative, candidates, done + 1))

    def _fill(self, ci: int, ri: int, alternative: Alternative, missing: int, start: int) -> bool:
        """Choose the missing devices of a request among those from ``start`` on."""
        if missing == 0:
            return self._request(ci, ri + 1)
        self._check_number(ci, missing)
        for i in range(start, len(self._devices)):
            candidate = self._selectable(ci, alternative, *self._devices[i])
            if candidate is None or not self._take(ci, alternative, candidate, must=False):
                continue
            if self._go_on(ci, partial(self._fill, ci, ri, alternative, missing - 1, i + 1)):
                return True
        return False

    def _go_on(self, ci: int, rest: Callable[[], bool]) -> bool:
        """Serve the rest with the device that was chosen last, and undo the choice if that fails."""
        done = False
        try:
            done = rest()
        finally:
            if not done:
                self._undo_last(ci)
        return done

    def _check_number(self, ci: int, more: int) -> None:
        if len(self.picks[ci]) + more > MAX_RESULTS:
            raise _TooManyError

    # --- one device -----------------------------------------------------------------------------------------

    def _selectable(
        self, ci: int, alternative: Alternative, pool: PoolView, entry: DeviceEntry
    ) -> Candidate | None:
        """Return a device that a request with a count can select, whether or not it can be had."""
        if alternative.admin:
            if ci in self._whole[entry]:
                return None
        elif self._whole[entry] or self._is_allocated(entry, pool):
            return None
        key = (alternative, entry)
        if key not in self._looked:
            looked = self._problem.look(alternative, entry, pool)
            self._looked[key] = looked if isinstance(looked, Candidate) else None
        candidate = self._looked[key]
        if candidate is None:
            return None
        if candidate.error is not None:
            raise FatalError(candidate.error)
        return candidate if self._capacity_left(candidate) else None

    def _is_allocated(self, entry: DeviceEntry, pool: PoolView) -> bool:
        return entry.id.device in self._problem.snapshot.allocated.pool(pool.id).devices

    def _capacity_left(self, candidate: Candidate) -> bool:
        used: dict[str, Quantity] = dict(candidate.used)
        for share in self._shares.get(candidate.entry, ()):
            for name, amount in share.items():
                used[name] = used[name] + amount if name in used else amount
        return fits(candidate.consumption, candidate.entry.device.capacity, used)

    def _take(self, ci: int, alternative: Alternative, candidate: Candidate, *, must: bool) -> bool:
        """Choose the device; what a rejection leaves behind is what Kubernetes leaves behind."""
        self._problem.budget.spend()
        entry, shareable = candidate.entry, candidate.entry.shareable
        if alternative.admin:
            if not shareable and ci in self._whole[entry]:
                return False
        elif self._whole[entry] or candidate.allocated:
            return False
        # Of a shared device only the first share takes counters.
        in_use = shareable and bool(self._shares.get(entry))
        # They stay taken when one of the checks below rejects the device.
        if candidate.counters and not in_use and not self._take_counters(candidate):
            return False
        if candidate.groups and not in_use and not self._is_compatible(candidate):
            self._add_counters(candidate, -1)
            return False
        if candidate.tainted or not self._constrain(ci, alternative, candidate, must=must):
            return False
        if not shareable:
            self._whole[entry].add(ci)
        if not self._capacity_left(candidate):
            # A whole device stays in use, and its values stay in the constraints.
            return False
        if shareable:
            self._shares.setdefault(entry, []).append(candidate.consumption)
        self.picks[ci].append(Pick(alternative, candidate, candidate.consumption if shareable else None))
        return True

    def _undo_last(self, ci: int) -> None:
        pick = self.picks[ci].pop()
        entry = pick.entry
        for index in pick.alternative.constraints:
            self._constraints[ci][index].remove(pick.alternative.parent)
        if entry.shareable:
            # Its counters are not given back.
            self._shares[entry].pop()
            return
        self._whole[entry].discard(ci)
        if pick.candidate.counters:
            self._add_counters(pick.candidate, -1)

    def _constrain(self, ci: int, alternative: Alternative, candidate: Candidate, *, must: bool) -> bool:
        done: list[int] = []
        for index in alternative.constraints:
            if self._constraints[ci][index].add(alternative.parent, self._values(ci, index, candidate)):
                done.append(index)
                continue
            if must:
                raise FatalError(f"{alternative}: a constraint of the claim excludes {candidate.entry.id}")
            # The constraints before this one forget the device again.
            for other in done:
                self._constraints[ci][other].remove(alternative.parent)
            return False
        return True

    def _values(self, ci: int, index: int, candidate: Candidate) -> frozenset[Value]:
        values = candidate.values[index]
        if values or self._problem.snapshot.features.list_type_attributes:
            return values
        constraint, entry = self._problem.claims[ci].constraints[index], candidate.entry
        name = constraint.match_attribute or constraint.distinct_attribute or ""
        found = attribute_of(entry.device, entry.id.driver, name)
        return values if found is None else _UNSUPPORTED

    def _take_counters(self, candidate: Candidate) -> bool:
        pool = candidate.pool
        name = pool.id.pool
        # By the name alone: of two drivers' pools of one name, that counts which is looked at first.
        if name not in self._available:
            self._available[name] = self._problem.snapshot.counters_left(pool)
        self._add_counters(candidate, 1)
        # Any counter of the pool: also one that this device does not consume.
        if any(left < self._consumed[name, *key] for key, left in self._available[name].items()):
            self._add_counters(candidate, -1)
            return False
        return True

    def _is_compatible(self, candidate: Candidate) -> bool:
        """Return whether all devices of the counter sets have a group in common with this one."""
        common = dict(candidate.groups)
        for pick in (pick for picks in self.picks for pick in picks):
            for of, groups in pick.candidate.groups:
                if of in common:
                    common[of] &= groups
        return all(common.values())

    def _add_counters(self, candidate: Candidate, times: int) -> None:
        name = candidate.pool.id.pool
        for (_, counters, counter), amount, _ in candidate.counters:
            self._consumed[name, counters, counter] += times * amount


def scheduler_takes(
    snapshot: Snapshot, claims: Sequence[ResourceClaim], node: str, budget: Budget | None = None
) -> tuple[tuple[DeviceID, ...], ...] | str:
    """Return the devices that kube-scheduler takes on a node, by claim, or why it takes none.

    Args:
        snapshot: the cluster as kube-scheduler sees it.
        claims: of one pod, in its order. Those that are allocated already get nothing more.
        node: name of a node of the snapshot.
        budget: what the question may cost; if None, ``Budget()``.
    """
    found = scheduler_picks(snapshot, claims, node, budget)
    if isinstance(found, str):
        return found
    return tuple(tuple(pick.entry.id for pick in of_claim) for of_claim in found)


def scheduler_picks(
    snapshot: Snapshot, claims: Sequence[ResourceClaim], node: str, budget: Budget | None = None
) -> tuple[tuple[Pick, ...], ...] | str:
    """Return what kube-scheduler picks on a node, by claim, or why nothing; as for ``scheduler_takes``."""
    features = replace(snapshot.features, admin_access_in_use=False)
    snapshot = replace(snapshot, features=features)
    try:
        plans = compile_claims(list(map(_as_kubernetes, claims)), snapshot.classes, features)
        problem = NodeProblem(snapshot, plans, snapshot.view(node), Options(), budget or Budget())
        search = UpstreamSearch(problem)
        if search.run():
            return tuple(map(tuple, search.picks))
    except FatalError as e:
        return str(e)
    except (BudgetExhausted, RecursionError):
        return "the claims allow too many combinations of devices"
    invalid = [str(pool.id) for pool in problem.pools if pool.invalid]
    return f"these pools are invalid: {', '.join(invalid)}" if invalid else "no devices fit"


def _as_kubernetes(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim without annotations of ours, which Kubernetes does not know."""
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=None))
