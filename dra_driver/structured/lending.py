"""Which devices to lend to kube-scheduler for a pod that it alone can place, so that it takes these.

Our search chooses: it knows which devices are best, and shares, counters and constraints as the API documents
them. kube-scheduler may fail where ours succeeds (``search.upstream``), so a choice counts only where the
search of Kubernetes succeeds on the slices as they would be published. Where it does not, the devices are
tried that it would take if it could have any that is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from dra_driver.api.resource import (
    Device,
    DeviceRequest,
    DeviceSelector,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.ownership import PoolID, is_controller_taint, newest_generation, pool_of_slice
from dra_driver.structured.allocator import allocate
from dra_driver.structured.matching.taintrules import with_rules
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import (
    Allocated,
    DeviceID,
    DoesNotFit,
    Failed,
    PoolPolicies,
)
from dra_driver.structured.search.upstream import scheduler_takes

__all__ = ["LoanChoice", "NoLoan", "choose_loans", "lent_view", "understood"]

# Nodes on which kube-scheduler's search is tried in vain.
_MOST_NODES: Final = 3
# Of the budget, after which no more nodes are looked for than there are.
_SHARE: Final = 2


@dataclass(frozen=True, slots=True)
class LoanChoice:
    """Devices to be lent.

    Attributes:
        node: where kube-scheduler finds all that the pod asks for with them.
        devices: to be lent, by pool; kube-scheduler takes devices of these and none that is not lent.
    """

    node: str
    devices: Mapping[PoolID, frozenset[str]]


@dataclass(frozen=True, slots=True)
class NoLoan:
    """Nothing is to be lent.

    Attributes:
        why: for people.
        gave_up: whether there may be a choice that could not be found.
        new_node: whether another node might serve the claims.
    """

    why: Callable[[], str]
    gave_up: bool = False
    new_node: bool = False


def lent_view(slices: Iterable[ResourceSlice], lent: Collection[str]) -> list[ResourceSlice]:
    """Return the slices of one pool as they would be published with these devices lent.

    Lent devices have no taint of ours and come first, as ``build_slices`` puts them.

    Args:
        slices: of the pool; those of the newest generation count.
        lent: names of devices.
    """
    ordered = sorted(newest_generation(slices), key=lambda s: s.metadata.name)
    devices = [d for s in ordered for d in s.spec.devices]
    devices.sort(key=lambda d: d.name not in lent)
    left = iter(devices)
    found: list[ResourceSlice] = []
    for slice_ in ordered:
        own = tuple(_bare(d) if d.name in lent else d for d in islice(left, len(slice_.spec.devices)))
        spec = msgspec.structs.replace(slice_.spec, devices=own)
        found.append(msgspec.structs.replace(slice_, spec=spec))
    return found


def _bare(device: Device) -> Device:
    return msgspec.structs.replace(
        device, taints=tuple(t for t in device.taints if not is_controller_taint(t))
    )


def understood(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim without what a later version of the API may have: the same object where that is nothing.

    Left out are fields that this version does not know, selectors that have no CEL expression, and
    constraints on something else than attributes; so what is chosen for the rest may not suit the claim. An
    unknown allocation mode stays: nothing can be chosen for that.
    """
    if claim.newer:
        claim = msgspec.structs.replace(claim, newer="")
    devices = claim.spec.devices
    requests = tuple(map(_understood_request, devices.requests or ()))
    constraints = tuple(
        c for c in devices.constraints if c.match_attribute is not None or c.distinct_attribute is not None
    )
    if len(constraints) == len(devices.constraints) and all(
        a is b for a, b in zip(requests, devices.requests or (), strict=True)
    ):
        return claim
    known = msgspec.structs.replace(devices, requests=requests, constraints=constraints)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=known))


def _understood_request(request: DeviceRequest) -> DeviceRequest:
    parts = (*((request.exactly,) if request.exactly is not None else ()), *request.first_available)
    if all(selector.cel is not None for part in parts for selector in part.selectors):
        return request
    exactly = request.exactly
    if exactly is not None:
        exactly = msgspec.structs.replace(exactly, selectors=_with_cel(exactly.selectors))
    return msgspec.structs.replace(
        request,
        exactly=exactly,
        first_available=tuple(
            msgspec.structs.replace(sub, selectors=_with_cel(sub.selectors))
            for sub in request.first_available
        ),
    )


def _with_cel(selectors: Iterable[DeviceSelector]) -> tuple[DeviceSelector, ...]:
    return tuple(selector for selector in selectors if selector.cel is not None)


def choose_loans(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    nodes: Collection[str],
    most: int = 1,
    ours: Collection[PoolID],
    pools: PoolPolicies,
    slices: Iterable[ResourceSlice],
    rules: Collection[DeviceTaintRule],
    held: AllocatedState,
    budget: Budget,
) -> tuple[LoanChoice, ...] | NoLoan:
    """Choose nodes with devices of ours that would serve the claims of one pod there if they were lent.

    Args:
        snapshot: the cluster; what must not be lent counts as allocated.
        claims: of the pod. Those that are allocated restrict the node only.
        nodes: that the pod may go to.
        most: number of nodes that are chosen, if there are so many. Half of the budget is left alone once
            there is one.
        ours: pools of which devices can be lent.
        pools: those that devices may be chosen from, ours and those of kube-scheduler, with their policies.
        slices: all, as they are published.
        rules: that add taints to them.
        held: what claims have: what kube-scheduler knows to be allocated.
        budget: what the choice may cost.

    Returns:
        at least one, the best one first.
    """
    left = set(nodes)
    known = tuple(slices)
    found: list[LoanChoice] = []
    first: NoLoan | None = None
    vain = 0
    while len(found) < most and vain < _MOST_NODES and not (found and budget.spent > budget.steps // _SHARE):
        outcome = allocate(
            snapshot, claims, nodes=left, ignore_taint=is_controller_taint, pools=pools, budget=budget
        )
        if not isinstance(outcome, Allocated):
            first = first or _no_loan(outcome)
            break
        wanted = _of_ours(claims, outcome, ours)
        if isinstance(wanted, str):
            first = first or NoLoan(partial(str, wanted))
            break
        seen = _SeenByScheduler(snapshot, outcome.node, known, rules, held)
        choice = _checked(seen, outcome.node, wanted, claims, ours, snapshot, budget)
        if isinstance(choice, LoanChoice):
            found.append(choice)
        else:
            vain += 1
            first = first or choice
        left.discard(outcome.node)
    if found:
        return tuple(found)
    assert first is not None
    return first


def _checked(
    seen: _SeenByScheduler,
    node: str,
    wanted: Mapping[PoolID, frozenset[str]],
    claims: Sequence[ResourceClaim],
    ours: Collection[PoolID],
    snapshot: Snapshot,
    budget: Budget,
) -> LoanChoice | NoLoan:
    """Return the devices that kube-scheduler takes on a node if they are lent: the wanted ones, or others."""
    problem = ""
    for devices in (wanted, None):
        tried = devices if devices is not None else seen.would_take(claims, ours, snapshot, budget)
        problem = tried if isinstance(tried, str) else seen.problem(claims, ours, tried, budget)
        if not problem and not isinstance(tried, str):
            return LoanChoice(node, tried)
    text = f"kube-scheduler would not find them on node {node}: {problem}"
    return NoLoan(partial(str, text), gave_up=budget.exhausted)


def _no_loan(outcome: DoesNotFit | Failed) -> NoLoan:
    if isinstance(outcome, DoesNotFit):
        return NoLoan(outcome.summary, new_node=True)
    return NoLoan(partial(str, outcome.message), gave_up=outcome.gave_up)


def _of_ours(
    claims: Sequence[ResourceClaim], outcome: Allocated, ours: Collection[PoolID]
) -> dict[PoolID, frozenset[str]] | str:
    """Return the devices of our pools that claims get which have none yet, or why they cannot be lent."""
    found: dict[PoolID, set[str]] = defaultdict(set)
    for claim, result in zip(claims, outcome.results, strict=True):
        if claim.status.allocation is not None:
            continue
        for device in result.devices.results:
            pool = PoolID(device.driver, device.pool)
            if pool not in ours:
                continue
            if device.admin_access:
                return "admin access to devices that are in use cannot be lent"
            found[pool].add(device.device)
    return {pool: frozenset(names) for pool, names in found.items()}


class _SeenByScheduler:
    """A node as kube-scheduler would see it with devices lent."""

    def __init__(
        self,
        snapshot: Snapshot,
        node: str,
        slices: Sequence[ResourceSlice],
        rules: Collection[DeviceTaintRule],
        held: AllocatedState,
    ) -> None:
        visible = {pool.id for pool in snapshot.view(node).pools}
        self._pools: dict[PoolID, list[ResourceSlice]] = {pool: [] for pool in visible}
        for slice_ in slices:
            if (pool := pool_of_slice(slice_)) in visible:
                self._pools[pool].append(slice_)
        self._snapshot = snapshot
        self._node = node
        self._rules = rules
        self._held = held

    def problem(
        self,
        claims: Sequence[ResourceClaim],
        ours: Collection[PoolID],
        devices: Mapping[PoolID, frozenset[str]],
        budget: Budget,
    ) -> str:
        """Return why kube-scheduler would not take devices that are lent, and no others of ours; or empty."""
        taken = scheduler_takes(self._with(devices), claims, self._node, budget)
        if isinstance(taken, str):
            return taken
        return next(
            (
                f"it would take {one}"
                for one in _flat(taken)
                if one.pool_id in ours and one.device not in devices.get(one.pool_id, ())
            ),
            "",
        )

    def would_take(
        self, claims: Sequence[ResourceClaim], ours: Collection[PoolID], snapshot: Snapshot, budget: Budget
    ) -> dict[PoolID, frozenset[str]] | str:
        """Return which devices of ours it would take if all that are free were lent, or why none."""
        free: dict[PoolID, frozenset[str]] = {}
        for pool in snapshot.view(self._node).pools:
            if pool.id in ours:
                taken = snapshot.allocated.pool(pool.id)
                names = (e.id.device for e in pool.devices)
                free[pool.id] = frozenset(n for n in names if n not in taken.devices)
        found = scheduler_takes(self._with(free), claims, self._node, budget)
        if isinstance(found, str):
            return found
        wanted: dict[PoolID, set[str]] = defaultdict(set)
        for one in _flat(found):
            if one.pool_id in ours:
                wanted[one.pool_id].add(one.device)
        return {pool: frozenset(names) for pool, names in wanted.items()}

    def _with(self, devices: Mapping[PoolID, frozenset[str]]) -> Snapshot:
        made = Snapshot.build(
            slices=[
                with_rules(s, self._rules)
                for pool, slices in sorted(self._pools.items())
                for s in (lent_view(slices, devices[pool]) if pool in devices else slices)
            ],
            classes=self._snapshot.classes.values(),
            nodes=[self._snapshot.nodes[self._node]],
            allocated=self._held,
            features=self._snapshot.features,
        )
        return replace(made, selectors=self._snapshot.selectors)


def _flat(taken: Iterable[Iterable[DeviceID]]) -> Iterable[DeviceID]:
    return (one for of_claim in taken for one in of_claim)
