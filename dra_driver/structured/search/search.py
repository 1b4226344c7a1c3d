"""Depth-first search for devices on one node, over all claims of a pod.

The order is that of Kubernetes' allocator: claims, requests, subrequests and devices in their order, and
within a request only forward. Unlike there, backtracking restores everything: counters, shares and
constraints are at any time exactly what the devices chosen at that time consume.

The worst case is exponential in the number of devices asked for. It is kept in bounds by steps, by not trying
interchangeable devices again, and by ``too_few_devices`` before the search.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dra_driver.api.quantity import Quantity
from dra_driver.ownership import PoolID
from dra_driver.structured.matching.capacity import Amounts, fits
from dra_driver.structured.matching.constraints import Constraint, make_constraint
from dra_driver.structured.matching.plan import MAX_RESULTS, Alternative, FatalError
from dra_driver.structured.matching.problem import Candidate, NodeProblem
from dra_driver.structured.model.compatibility import Groups
from dra_driver.structured.model.pools import DeviceEntry

__all__ = ["Pick", "Search", "SearchLimitError"]

_NONE: Amounts = {}


class SearchLimitError(Exception):
    """Too many combinations on one node.

    Attributes:
        cut: whether the search had fewer steps than a node gets otherwise, because the question has few left.
    """

    def __init__(self, *, cut: bool) -> None:
        super().__init__("too many combinations")
        self.cut = cut


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """A chosen device.

    Attributes:
        consumed: what a share consumes of it; None for a device that is allocated as a whole.
    """

    alternative: Alternative
    candidate: Candidate
    consumed: Amounts | None

    @property
    def entry(self) -> DeviceEntry:
        """The device."""
        return self.candidate.entry


@dataclass(slots=True, eq=False)
class _Usage:
    """What the devices chosen so far consume.

    Attributes:
        whole: how often a device is chosen as a whole; more than once with admin access only.
        by_claim: devices by index of the claim that chose them, other than as shares.
        shares: what each share of a device consumes, as a stack.
        counters: by (pool, counter set, counter), in 1e-9 units.
        groups: by (pool, counter set), the compatibility groups in common after each device, as a stack.
    """

    whole: Counter[DeviceEntry] = field(default_factory=Counter)
    by_claim: set[tuple[int, DeviceEntry]] = field(default_factory=set)
    shares: dict[DeviceEntry, list[Amounts]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[tuple[PoolID, str, str], int] = field(default_factory=lambda: defaultdict(int))
    groups: dict[tuple[PoolID, str], list[Groups]] = field(default_factory=lambda: defaultdict(list))


class Search:
    """One search on one node.

    Args:
        problem: the claims with the candidates of this node.
        on_solution: called for every solution, which ``picks`` and ``chosen`` then hold; True ends the
            search.
        order: returns the candidates of an alternative in the order in which they are tried.
        interchange_key: devices with the same value (other than None) are interchangeable: if one leads to no
            solution, the others are not tried.
        can_improve: whether the devices chosen so far can still become a better solution.
        strict: whether a selector that fails, or a constraint that "all devices" violate, ends the search, as
            in Kubernetes; otherwise the device is unsuitable, or the set impossible.
        max_steps: limit; if None, that of the budget for one node.
        ranks: the alternatives that the first requests have to get; all others may get any.

    Attributes:
        picks: the devices chosen so far, by claim.
        chosen: the alternative of each request, by claim; valid up to the request that is being served.
    """

    def __init__(
        self,
        problem: NodeProblem,
        *,
        on_solution: Callable[[Search], bool],
        order: Callable[[Alternative], Sequence[Candidate]] | None = None,
        interchange_key: Callable[[Candidate], object] | None = None,
        can_improve: Callable[[Search], bool] | None = None,
        strict: bool = True,
        max_steps: int | None = None,
        ranks: Sequence[int] = (),
    ) -> None:
        self._problem = problem
        self._claims = problem.claims
        self._on_solution = on_solution
        self._order = order or problem.candidates
        # With "all devices" Kubernetes' search may end with "does not fit" or with an error, depending on
        # which device it reaches first; leaving devices out would change that.
        self._interchange_key = interchange_key or (
            problem.interchange_key if not problem.has_all_requests else _never_interchangeable
        )
        self._can_improve = can_improve
        self._strict = strict
        self._budget = problem.budget
        most = problem.budget.per_node if max_steps is None else max_steps
        self._steps = min(most, problem.budget.grant())
        self._cut = self._steps < most
        self._used = _Usage()
        self._constraints: list[list[Constraint]] = [
            [make_constraint(c) for c in claim.constraints] for claim in problem.claims
        ]
        requests = ((ci, ri) for ci, claim in enumerate(problem.claims) for ri in range(len(claim.requests)))
        self._only = dict(zip(requests, ranks, strict=False))
        # The request that is being served: claim index, request index.
        self._at = (0, 0)
        self.picks: list[list[Pick]] = [[] for _ in problem.claims]
        self.chosen: list[list[int]] = [[0] * len(claim.requests) for claim in problem.claims]

    def run(self) -> bool:
        """Run the search.

        Returns:
            Whether ``on_solution`` ended it.

        Raises:
            FatalError: with ``strict``, the search reached something that Kubernetes refuses.
            SearchLimitError: too many combinations.
            BudgetExhausted: the question has no steps or no time left.
        """
        return self._request(0, 0)

    def ranks(self) -> tuple[int, ...]:
        """Return the alternative of each request, up to the one that is being served."""
        ci, ri = self._at
        done = [rank for claim in self.chosen[:ci] for rank in claim]
        return (*done, *(self.chosen[ci][: ri + 1] if ci < len(self.chosen) else ()))

    @property
    def steps_left(self) -> int:
        """Steps that the search may still take."""
        return max(0, self._steps)

    def limit(self, steps: int) -> None:
        """Leave at most so many more steps."""
        self._steps = min(steps, self._steps)

    def _request(self, ci: int, ri: int) -> bool:
        """Serve requests from this one on (claim index, request index)."""
        while ci < len(self._claims) and ri == len(self._claims[ci].requests):
            ci, ri = ci + 1, 0
        if ci == len(self._claims):
            self._at = (ci, 0)
            return self._on_solution(self)
        only = self._only.get((ci, ri))
        for index, alternative in enumerate(self._claims[ci].requests[ri].alternatives):
            if only is not None and index != only:
                continue
            self.chosen[ci][ri] = index
            self._at = (ci, ri)
            if alternative.count is None:
                candidates = self._problem.all_devices(alternative)
                if candidates and self._fill_all(ci, ri, alternative, candidates):
                    return True
            elif self._fill(ci, ri, alternative, self._order(alternative), alternative.count, 0):
                return True
        return False

    def _fill_all(self, ci: int, ri: int, alternative: Alternative, candidates: Sequence[Candidate]) -> bool:
        """Choose all devices for a request of mode All; there is nothing to try in place of any of them."""
        if len(self.picks[ci]) + len(candidates) > MAX_RESULTS:
            return False
        before = len(self.picks[ci])
        found = False
        for candidate in candidates:
            if not self._take(ci, alternative, candidate, must=True):
                break
        else:
            found = self._request(ci, ri + 1)
        if not found:
            while len(self.picks[ci]) > before:
                self._undo_last(ci)
        return found

    def _fill(
        self,
        ci: int,
        ri: int,
        alternative: Alternative,
        candidates: Sequence[Candidate],
        missing: int,
        start: int,
    ) -> bool:
        """Choose the missing devices of a request among the candidates from ``start`` on."""
        if missing == 0:
            return self._request(ci, ri + 1)
        if len(self.picks[ci]) + missing > MAX_RESULTS:
            return False
        # Devices are chosen forward only (sets, not sequences), so the last candidates cannot start a set of
        # the missing size. Where a selector fails, Kubernetes reaches them all the same and ends with an
        # error.
        last = len(candidates)
        if not (self._strict and self._problem.has_errors(alternative)):
            last -= missing - 1
        tried: set[object] = set()
        for i in range(start, last):
            candidate = candidates[i]
            if self._in_use(ci, alternative, candidate):
                continue
            if candidate.error is not None:
                if self._strict:
                    raise FatalError(candidate.error)
                continue
            # At this depth with the same devices chosen, an interchangeable device leads where this one led:
            # to no solution, or for best fit to none that is better.
            key = self._interchange_key(candidate)
            if key in tried:
                continue
            if not self._take(ci, alternative, candidate, must=False):
                continue
            self._at = (ci, ri)
            if (self._can_improve is None or self._can_improve(self)) and self._fill(
                ci, ri, alternative, candidates, missing - 1, i + 1
            ):
                return True
            self._undo_last(ci)
            if key is not None:
                tried.add(key)
        return False

    def _in_use(self, ci: int, alternative: Alternative, candidate: Candidate) -> bool:
        entry = candidate.entry
        # No claim has a device twice, whether or not it only looks at it once.
        looked_at = (ci, entry) in self._used.by_claim
        if alternative.admin:
            return looked_at
        return candidate.allocated or self._used.whole[entry] > 0 or (looked_at and not entry.shareable)

    def _take(self, ci: int, alternative: Alternative, candidate: Candidate, *, must: bool) -> bool:
        """Choose the device if nothing excludes it; otherwise return False and change nothing.

        Args:
            ci: index of the claim.
            alternative: the request.
            candidate: the device.
            must: whether it is one of "all devices".
        """
        self._steps -= 1
        if self._steps < 0:
            raise SearchLimitError(cut=self._cut)
        self._budget.spend()
        entry = candidate.entry
        if self._in_use(ci, alternative, candidate) or candidate.tainted:
            return False
        # Only the first share of a device consumes its counters.
        partial = bool(candidate.counters or candidate.groups)
        counts = partial and not (entry.shareable and self._used.shares[entry])
        if counts and not (self._counters_left(candidate) and all(self._groups_with(candidate))):
            return False
        if not self._constrain(ci, alternative, candidate):
            if must and self._strict:
                raise FatalError(
                    f"{alternative}: asks for all devices, but a constraint of the claim excludes {entry.id}"
                )
            return False
        consumed = self._problem.share(alternative, candidate)
        if consumed is not None and not self._share_fits(candidate, consumed):
            self._release(ci, alternative, candidate)
            return False
        if counts:
            for (of, _), common in zip(candidate.groups, self._groups_with(candidate), strict=True):
                self._used.groups[of].append(common)
            for key, amount, _ in candidate.counters:
                self._used.counters[key] += amount
        if consumed is not None:
            self._used.shares[entry].append(consumed)
        else:
            self._used.whole[entry] += alternative.consumes
            self._used.by_claim.add((ci, entry))
        self.picks[ci].append(Pick(alternative, candidate, consumed))
        return True

    def _undo_last(self, ci: int) -> None:
        """Undo the last choice for a claim; the exact inverse of ``_take``."""
        pick = self.picks[ci].pop()
        entry = pick.entry
        if pick.consumed is not None:
            self._used.shares[entry].pop()
        else:
            self._used.whole[entry] -= pick.alternative.consumes
            self._used.by_claim.discard((ci, entry))
        if not (entry.shareable and self._used.shares[entry]):
            for of, _ in pick.candidate.groups:
                self._used.groups[of].pop()
            for key, amount, _ in pick.candidate.counters:
                self._used.counters[key] -= amount
        self._release(ci, pick.alternative, pick.candidate)

    def _counters_left(self, candidate: Candidate) -> bool:
        taken = self._used.counters
        return all(taken[key] + amount <= left for key, amount, left in candidate.counters)

    def _groups_with(self, candidate: Candidate) -> list[Groups]:
        """Return the groups in common with the devices chosen so far, for each of the candidate's sets."""
        used = self._used.groups
        return [used[of][-1] & groups if used[of] else groups for of, groups in candidate.groups]

    def _share_fits(self, candidate: Candidate, consumed: Amounts) -> bool:
        used: Amounts = candidate.used
        for share in self._used.shares[candidate.entry]:
            used = _sum(used, share)
        return fits(consumed, candidate.entry.device.capacity, used)

    def _constrain(self, ci: int, alternative: Alternative, candidate: Candidate) -> bool:
        """Add the device to its constraints; otherwise return False and change nothing."""
        done: list[int] = []
        for index in alternative.constraints:
            if not self._constraints[ci][index].add(candidate.values[index]):
                for i in done:
                    self._constraints[ci][i].remove(candidate.values[i])
                return False
            done.append(index)
        return True

    def _release(self, ci: int, alternative: Alternative, candidate: Candidate) -> None:
        for index in alternative.constraints:
            self._constraints[ci][index].remove(candidate.values[index])


def _never_interchangeable(_: Candidate) -> object:
    return None


def _sum(a: Amounts, b: Amounts) -> Amounts:
    total: dict[str, Quantity] = dict(a)
    for name, amount in b.items():
        total[name] = total[name] + amount if name in total else amount
    return total
