"""The claims of a pod on one node: which devices can serve which request, before any choice is made.

A ``NodeProblem`` works everything out on demand and once, so a search that ends early pays for little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver.api.resource import DeviceTaint
from dra_driver.ownership import PoolID, taints
from dra_driver.structured.matching import capacity
from dra_driver.structured.matching.capacity import Amounts
from dra_driver.structured.matching.constraints import Value, attribute_of, attribute_values
from dra_driver.structured.matching.hints import selector_hint
from dra_driver.structured.matching.plan import (
    MAX_RESULTS,
    Alternative,
    ClaimPlan,
    DerivedAttributeError,
    FatalError,
)
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.compatibility import Groups, groups_of
from dra_driver.structured.model.pools import DeviceEntry, NodeView, PoolView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import (
    BY_DEFAULT,
    DEFAULT_POLICY,
    ExclusionReason,
    PoolPolicy,
)

__all__ = ["Candidate", "CounterNeed", "NodeProblem", "Options", "Verdict"]

# (pool, counter set, counter), what the device consumes of it, and what is left of it, both in 1e-9 units.
CounterNeed = tuple[tuple[PoolID, str, str], int, int]
# (pool, counter set), and the groups of the device that those which are allocated leave it.
GroupNeed = tuple[tuple[PoolID, str], Groups]
Values = Mapping[int, frozenset[Value]]

_NONE: Amounts = {}


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of ``allocate`` decides.

    Attributes:
        ignore_taint: taints that do not count.
        pools: those that may be used, and how; if None, all of them, by ``default``.
        default: how pools are used if ``pools`` is None.
        withheld: why pools that ``pools`` lacks may not be used, for the reasons of a refusal.
        left_out: devices that may not be used, as positions among all devices of the node.
    """

    ignore_taint: Callable[[DeviceTaint], bool] | None = None
    pools: Mapping[PoolID, PoolPolicy] | None = None
    default: PoolPolicy = DEFAULT_POLICY
    withheld: Mapping[PoolID, str] | None = None
    left_out: frozenset[int] = frozenset()

    def policy(self, pool: PoolID) -> PoolPolicy | None:
        """Return how devices of a pool are chosen; None if it may not be used."""
        return self.default if self.pools is None else self.pools.get(pool)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a device is not a candidate; the fields are those of ``Exclusion``."""

    reason: ExclusionReason
    wanted: str = ""
    found: str = ""


@dataclass(slots=True, eq=False)
class Candidate:
    """A device that may serve a request.

    Attributes:
        allocated: allocated as a whole to another claim (admin access may have it all the same).
        used: what other claims' shares consume of its capacity; nothing for a request that consumes nothing.
        counters: counters that it would consume; empty if it consumes none or no more of them.
        groups: compatibility groups on the counter sets, where a device of the pool has any.
        consumption: what a share would consume for this request.
        values: of the attributes that constraints of the claim compare, by index of the constraint.
        tainted: whether a taint is not tolerated.
        error: why a selector or a derived attribute cannot be evaluated.
        fatal: whether that ends the allocation (``check``), wherever else there may be devices.
    """

    entry: DeviceEntry
    pool: PoolView
    allocated: bool
    used: Amounts
    counters: tuple[CounterNeed, ...]
    consumption: Amounts
    values: Values
    tainted: bool = False
    error: str | None = None
    groups: tuple[GroupNeed, ...] = ()
    fatal: bool = False

    @property
    def excluded(self) -> bool:
        """Whether partitions that are allocated exclude it: by counters, or by compatibility groups."""
        return any(amount > left for _, amount, left in self.counters) or not all(g for _, g in self.groups)

    def check(self) -> Candidate:
        """Return the candidate itself.

        Raises:
            DerivedAttributeError: a derived attribute cannot be evaluated on the device.
        """
        if self.fatal and not self.tainted:
            raise DerivedAttributeError(self.error or "")
        return self


@dataclass(slots=True, eq=False)
class _State:
    """What other claims leave of a device, whatever is requested: fields of ``Candidate``."""

    allocated: bool
    used: Amounts
    counters: tuple[CounterNeed, ...]
    groups: tuple[GroupNeed, ...]


class NodeProblem:
    """The claims with the devices of one node; devices are examined on demand.

    Attributes:
        pools: those that may be used, in the order in which they are tried.
        unusable: those that the caller withholds.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        claims: tuple[ClaimPlan, ...],
        view: NodeView,
        options: Options,
        budget: Budget,
    ) -> None:
        self.snapshot = snapshot
        self.claims = claims
        self.node = view.node
        self.options = options
        self.budget = budget
        pools = options.pools
        self.pools = view.pools if pools is None else tuple(p for p in view.pools if p.id in pools)
        self.unusable = () if pools is None else tuple(p for p in view.pools if p.id not in pools)
        self._left_out: frozenset[DeviceEntry] = frozenset()
        if options.left_out:
            entries = (entry for pool in view.pools for entry in pool.devices)
            self._left_out = frozenset(e for i, e in enumerate(entries) if i in options.left_out)
        self._states: dict[DeviceEntry, _State] = {}
        self._values: dict[tuple[int, DeviceEntry], Values] = {}
        self._candidates: dict[Alternative, list[Candidate]] = {}
        self._all: dict[Alternative, list[Candidate]] = {}
        self._interchange_keys: dict[DeviceEntry, object] = {}

    def prepare(self, *, strict: bool) -> None:
        """Check what can be decided before the search, in Kubernetes' order.

        Args:
            strict: whether a selector that fails on a device of "all devices" is an error.

        Raises:
            FatalError: "all devices" of a pool that is not complete, or too many devices.
        """
        for claim in self.claims:
            least = 0
            for request in claim.requests:
                least += min(self._size(alternative, strict=strict) for alternative in request.alternatives)
            if least > MAX_RESULTS:
                raise FatalError(
                    f"claim {claim.name}: asks for {least} devices; a claim can have {MAX_RESULTS} at most"
                )

    def _size(self, alternative: Alternative, *, strict: bool) -> int:
        if alternative.count is not None:
            return alternative.count
        devices = self.all_devices(alternative)
        if strict:
            for candidate in self._all[alternative]:
                if candidate.error is not None:
                    raise FatalError(candidate.error)
        return len(devices)

    def candidates(self, alternative: Alternative) -> Sequence[Candidate]:
        """Return the free devices for a request with a count, in the order of the pools."""
        found = self._candidates.get(alternative)
        if found is None:
            found = self._candidates[alternative] = [
                candidate
                for pool in self.pools
                if not (pool.incomplete or pool.invalid)
                for entry in pool.devices
                if alternative.admin or not self._state(entry, pool).allocated
                if isinstance(candidate := self.look(alternative, entry, pool), Candidate)
                and not candidate.check().tainted
            ]
        return found

    def all_devices(self, alternative: Alternative) -> Sequence[Candidate]:
        """Return the devices of a request for all devices, without those whose selector fails.

        Raises:
            FatalError: a pool of the node is being updated or invalid.
        """
        if alternative not in self._all:
            found: list[Candidate] = []
            for pool in self.pools:
                if pool.incomplete or pool.invalid:
                    why = "being updated" if pool.incomplete else "invalid"
                    raise FatalError(f"{alternative}: asks for all devices, but pool {pool.id} is {why}")
                looked = (self.look(alternative, entry, pool) for entry in pool.devices)
                found += [c.check() for c in looked if isinstance(c, Candidate)]
            self._all[alternative] = found
        return [c for c in self._all[alternative] if c.error is None]

    def bare_candidate(self, entry: DeviceEntry, pool: PoolView) -> Candidate:
        """Return a device with what other claims leave of it, without any request."""
        state = self._state(entry, pool)
        return Candidate(
            entry, pool, state.allocated, state.used, state.counters, _NONE, {}, groups=state.groups
        )

    def look(self, alternative: Alternative, entry: DeviceEntry, pool: PoolView) -> Candidate | Verdict:
        """Return everything about a device and a request that does not depend on other choices.

        The order of the checks is that of ``ExclusionReason``: the first that fails is reported.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        self.budget.spend()
        state = self._state(entry, pool)
        candidate = Candidate(
            entry,
            pool,
            state.allocated,
            state.used if alternative.consumes else _NONE,
            state.counters if alternative.consumes else (),
            _NONE,
            self._values_of(alternative, entry),
            groups=state.groups if alternative.consumes else (),
        )
        matches = self.snapshot.selectors
        for i, expression in enumerate(alternative.selectors):
            result = matches.matches(expression, entry, self.budget)
            if result is True:
                continue
            # A selector that fails is no verdict: Kubernetes' search ends with an error, but only if it gets
            # as far as this device.
            of_class = i < alternative.class_selectors
            if result is False:
                return (
                    Verdict(ExclusionReason.CLASS, alternative.device_class.metadata.name)
                    if of_class
                    else Verdict(ExclusionReason.SELECTOR, expression)
                )
            where = f"class {alternative.device_class.metadata.name}" if of_class else str(alternative)
            hint = selector_hint(matches.references(expression), matches.view(entry))
            candidate.error = f"{where}: selector fails on device {entry.id}: {result}{hint}"
            return candidate
        if entry.newer:
            return Verdict(ExclusionReason.NEWER, found=entry.newer)
        if entry.id.device in pool.off_node or entry in self._left_out:
            return Verdict(ExclusionReason.NODE_SELECTOR)
        if not self._measure(alternative, candidate):
            return self._too_small(alternative, candidate)
        candidate.tainted = self.snapshot.features.device_taints and any(
            self._taint_counts(alternative, taint) for taint in entry.device.taints
        )
        if alternative.derived:
            self._derive(alternative, candidate)
        return candidate

    def _derive(self, alternative: Alternative, candidate: Candidate) -> None:
        """Put derived attributes in the place of those that the constraints compare."""
        entry, found = candidate.entry, dict(candidate.values)
        for index, expression in alternative.derived:
            value = self.snapshot.selectors.derive(expression, entry, self.budget)
            if isinstance(value, str):
                candidate.error = f"{alternative}: derivedAttributes fail on device {entry.id}: {value}"
                candidate.fatal = True
                return
            found[index] = value
        candidate.values = found

    def _measure(self, alternative: Alternative, candidate: Candidate) -> bool:
        """Return whether the device's capacity is enough for the request beside other claims' shares."""
        device = candidate.entry.device
        if not self.snapshot.features.consumable_capacity or not (device.capacity or alternative.capacity):
            return True
        taken = capacity.consumption(alternative.capacity, device.capacity)
        if taken is None:
            return False
        if candidate.entry.shareable:
            candidate.consumption = taken
        return capacity.fits(taken, device.capacity, candidate.used)

    def _too_small(self, alternative: Alternative, candidate: Candidate) -> Verdict:
        """Return which capacity is too small: the device's, or what other claims leave of it."""
        device = candidate.entry.device
        taken = capacity.consumption(alternative.capacity, device.capacity)
        if taken is not None and capacity.fits(taken, device.capacity, _NONE):
            short = capacity.shortfall(taken, device.capacity, candidate.used) or ""
            left = device.capacity[short].value - candidate.used[short]
            unasked = "" if short in alternative.capacity else BY_DEFAULT
            return Verdict(ExclusionReason.CAPACITY_IN_USE, f"{short} {taken[short]}{unasked}", str(left))
        for name, amount in alternative.capacity.items():
            have = device.capacity.get(name)
            if have is None:
                return Verdict(ExclusionReason.CAPACITY, f"{name} {amount}", "")
            if taken is None or amount > have.value or taken[name] > have.value:
                return Verdict(ExclusionReason.CAPACITY, f"{name} {amount}", str(have.value))
        return Verdict(ExclusionReason.CAPACITY)

    def serves(self, alternative: Alternative, entry: DeviceEntry, pool: PoolView) -> Candidate | None:
        """Return the device as a candidate for a claim with one device, whether or not it is allocated.

        None if it is no candidate.
        """
        looked = self.look(alternative, entry, pool)
        if (
            isinstance(looked, Verdict)
            or looked.error is not None
            or looked.tainted
            or entry.ambiguous_selector
            or any(not looked.values[i] for i in alternative.constraints)
        ):
            return None
        return looked

    def _taint_counts(self, alternative: Alternative, taint: DeviceTaint) -> bool:
        ignore = self.options.ignore_taint
        return (
            taints.blocks(taint)
            and not (ignore is not None and ignore(taint))
            and not taints.tolerates(alternative.tolerations, taint)
        )

    def blocking_taints(self, alternative: Alternative, entry: DeviceEntry) -> tuple[DeviceTaint, ...]:
        """Return the taints that exclude the device."""
        return tuple(t for t in entry.device.taints if self._taint_counts(alternative, t))

    def has_errors(self, alternative: Alternative) -> bool:
        """Return whether a selector fails on one of the candidates."""
        if alternative not in self._errors:
            self._errors[alternative] = any(c.error is not None for c in self.candidates(alternative))
        return self._errors[alternative]

    @cached_property
    def _errors(self) -> dict[Alternative, bool]:
        return {}

    @cached_property
    def has_all_requests(self) -> bool:
        """Whether a request asks for all devices."""
        return any(a.count is None for c in self.claims for r in c.requests for a in r.alternatives)

    def may_fail(self) -> bool:
        """Return whether Kubernetes' search may end in an error where ours finds that nothing fits.

        That is so if a selector fails, if "all devices" meet a constraint or an incomplete pool, and if a
        pool is invalid. Otherwise both searches are exhaustive and agree.
        """
        if any(pool.invalid or pool.incomplete for pool in self.pools):
            return True
        if any(entry.ambiguous_selector for pool in self.pools for entry in pool.devices):
            return True
        alternatives = [a for c in self.claims for r in c.requests for a in r.alternatives]
        if any(a.count is None or a.count > MAX_RESULTS for a in alternatives):
            return True
        return any(self.has_errors(a) for a in alternatives) or self._too_many()

    def _too_many(self) -> bool:
        try:
            self.prepare(strict=True)
        except FatalError:
            return True
        return False

    def interchange_key(self, candidate: Candidate) -> object:
        """Return a value that is equal for interchangeable devices; None if there is no other like this one.

        Devices with equal values are candidates of the same requests, have the same values for every
        constraint and consume the same counters, so in any solution one can be replaced by another that is
        free.
        """
        entry = candidate.entry
        # Shares are left apart: what is left of a device changes with each of them.
        if entry.shareable:
            return None
        if entry not in self._interchange_keys:
            # Whatever this request consumes of it: another one may get it as well.
            state = self._state(entry, candidate.pool)
            self._interchange_keys[entry] = (
                state.allocated,
                tuple((key, amount) for key, amount, _ in state.counters),
                state.groups,
                tuple(self.snapshot.selectors.derive(e, entry, self.budget) for e in self._derived),
                tuple(sorted_values(self._values_of_claim(claim, entry)) for claim in self.claims),
                tuple(self._membership.get(entry, ())),
            )
        return self._interchange_keys[entry]

    @cached_property
    def _derived(self) -> tuple[str, ...]:
        """The expressions of all derived attributes."""
        alternatives = (a for c in self.claims for r in c.requests for a in r.alternatives)
        return tuple(dict.fromkeys(e for a in alternatives for _, e in a.derived))

    @staticmethod
    def share(alternative: Alternative, candidate: Candidate) -> Amounts | None:
        """Return what the request consumes of a device that is shared; None if it gets no share of it."""
        return candidate.consumption if candidate.entry.shareable and alternative.consumes else None

    @cached_property
    def _membership(self) -> dict[DeviceEntry, list[tuple[int, bool]]]:
        """For each device the alternatives (numbered) that it is a candidate of; whether a selector fails."""
        members: dict[DeviceEntry, list[tuple[int, bool]]] = {}
        number = 0
        for claim in self.claims:
            for request in claim.requests:
                for alternative in request.alternatives:
                    devices = (
                        self.candidates(alternative)
                        if alternative.count is not None
                        else self.all_devices(alternative)
                    )
                    for c in devices:
                        members.setdefault(c.entry, []).append((number, c.error is not None))
                    number += 1
        return members

    def values(self, claim: ClaimPlan, constraint: int, entry: DeviceEntry) -> frozenset[Value]:
        """Return the values of a device for one constraint of a claim."""
        return self._values_of_claim(claim, entry)[constraint]

    def _state(self, entry: DeviceEntry, pool: PoolView) -> _State:
        state = self._states.get(entry)
        if state is None:
            taken = self.snapshot.allocated.pool(pool.id)
            name = entry.id.device
            shared = name in taken.shares
            counters: tuple[CounterNeed, ...] = ()
            groups: tuple[GroupNeed, ...] = ()
            # A device of which a share is allocated has consumed its counters already.
            if entry.device.consumes_counters and not (entry.shareable and shared):
                counters = self._counter_needs(entry, pool)
                groups = self._group_needs(entry, pool)
            used = taken.capacity.get(name, _NONE) if entry.shareable else _NONE
            state = self._states[entry] = _State(name in taken.devices, used, counters, groups)
        return state

    def _counter_needs(self, entry: DeviceEntry, pool: PoolView) -> tuple[CounterNeed, ...]:
        if not self.snapshot.features.partitionable_devices:
            return ()
        left = self.snapshot.counters_left(pool)
        return tuple(
            (
                (pool.id, consumed.counter_set, name),
                counter.value.nano,
                left.get((consumed.counter_set, name), 0),
            )
            for consumed in entry.device.consumes_counters
            for name, counter in consumed.counters.items()
        )

    def _group_needs(self, entry: DeviceEntry, pool: PoolView) -> tuple[GroupNeed, ...]:
        if not (pool.grouped and self.snapshot.features.partitionable_devices):
            return ()
        left = self.snapshot.groups_left(pool)
        found: list[GroupNeed] = []
        for consumed in entry.device.consumes_counters:
            own = groups_of(consumed)
            found.append(((pool.id, consumed.counter_set), own & left.get(consumed.counter_set, own)))
        return tuple(found)

    def _values_of(self, alternative: Alternative, entry: DeviceEntry) -> Values:
        return self._values_of_claim(self.claims[alternative.claim_index], entry)

    def _values_of_claim(self, claim: ClaimPlan, entry: DeviceEntry) -> Values:
        if not claim.constraints:
            return {}
        key = (claim.index, entry)
        values = self._values.get(key)
        if values is None:
            lists = self.snapshot.features.list_type_attributes
            values = self._values[key] = {
                i: attribute_values(
                    attribute_of(
                        entry.device, entry.id.driver, c.match_attribute or c.distinct_attribute or ""
                    ),
                    lists=lists,
                )
                for i, c in enumerate(claim.constraints)
            }
        return values


def sorted_values(values: Values) -> tuple[frozenset[Value], ...]:
    """Return the values in the order of the constraints, so that they can be compared."""
    return tuple(values[i] for i in sorted(values))
