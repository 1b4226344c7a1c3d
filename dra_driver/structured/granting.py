"""Which devices to grant to kube-scheduler for the claims of a pod that it alone can place.

kube-scheduler sees every free device of an open pool, so nothing makes it take ours. A grant is of use only
where it is for the devices that kube-scheduler picks by itself: its search (``search.upstream``) says which.
Our own search chooses the node, because it knows which is best for the fleet; on the node kube-scheduler's
search decides, and what it would pick there has to be free for us, too: kube-scheduler knows neither what is
set aside nor what is granted to others.

While a device is granted, kube-scheduler is the only one that takes something of its unit. What it does not
know yet are shares that others got a moment before, so each device that is granted must be able to hold all
shares that the claims may get of it, however kube-scheduler distributes them (``_crowded``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceRequest, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID, pool_of_slice
from dra_driver.structured.allocator import allocate
from dra_driver.structured.matching.capacity import Amounts, consumption, fits
from dra_driver.structured.matching.taintrules import with_rules
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.pools import DeviceEntry
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import Allocated, DeviceID, DoesNotFit, Failed, PoolPolicies
from dra_driver.structured.search.search import Pick
from dra_driver.structured.search.upstream import scheduler_picks

__all__ = ["GrantChoice", "NoGrant", "choose_grants"]

# Nodes on which kube-scheduler's search is tried in vain.
_MOST_NODES: Final = 3
# Of the budget, after which no more nodes are looked for than there are.
_SHARE: Final = 2


@dataclass(frozen=True, slots=True)
class GrantChoice:
    """Devices to be granted.

    Attributes:
        node: where kube-scheduler finds all that the pod asks for.
        claims: the devices of ours that it picks there, by claim, in the order of the claims; admin access
            needs no grant.
    """

    node: str
    claims: tuple[frozenset[DeviceID], ...]

    @property
    def devices(self) -> frozenset[DeviceID]:
        """Those of all claims."""
        return frozenset(chain.from_iterable(self.claims))


@dataclass(frozen=True, slots=True)
class NoGrant:
    """Nothing is to be granted.

    Attributes:
        why: for people.
        gave_up: whether there may be a choice that could not be found.
        new_node: whether another node might serve the claims.
    """

    why: Callable[[], str]
    gave_up: bool = False
    new_node: bool = False


def choose_grants(
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
) -> tuple[GrantChoice, ...] | NoGrant:
    """Choose nodes on which kube-scheduler finds all that a pod asks for, with devices of ours.

    Args:
        snapshot: the cluster; what must not be granted counts as allocated.
        claims: of the pod. Those that are allocated restrict the node only.
        nodes: that the pod may go to.
        most: number of nodes that are chosen, if there are so many. Half of the budget is left alone once
            there is one.
        ours: pools of which kube-scheduler takes nothing without a grant.
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
    found: list[GrantChoice] = []
    first: NoGrant | None = None
    vain = 0
    while len(found) < most and vain < _MOST_NODES and not (found and budget.spent > budget.steps // _SHARE):
        outcome = allocate(snapshot, claims, nodes=left, pools=pools, budget=budget)
        if not isinstance(outcome, Allocated):
            first = first or _no_grant(outcome)
            break
        seen = _Prediction(snapshot, outcome.node, known, rules, held, budget)
        picked = seen.picks(claims, ours, pools)
        if isinstance(picked, str):
            vain += 1
            text = f"on node {outcome.node}: {picked}"
            first = first or NoGrant(partial(str, text), gave_up=budget.exhausted)
        else:
            found.append(GrantChoice(outcome.node, picked))
        left.discard(outcome.node)
    if found:
        return tuple(found)
    assert first is not None
    return first


def _no_grant(outcome: DoesNotFit | Failed) -> NoGrant:
    if isinstance(outcome, DoesNotFit):
        return NoGrant(outcome.summary, new_node=True)
    return NoGrant(partial(str, outcome.message), gave_up=outcome.gave_up)


class _Prediction:
    """What kube-scheduler picks on a node, as the slices are published."""

    def __init__(
        self,
        snapshot: Snapshot,
        node: str,
        slices: Iterable[ResourceSlice],
        rules: Collection[DeviceTaintRule],
        held: AllocatedState,
        budget: Budget,
    ) -> None:
        visible = {pool.id for pool in snapshot.view(node).pools}
        of_node = [s for s in slices if pool_of_slice(s) in visible]
        made = Snapshot.build(
            slices=[with_rules(s, rules) for s in sorted(of_node, key=pool_of_slice)],
            classes=snapshot.classes.values(),
            nodes=[snapshot.nodes[node]],
            allocated=held,
            features=snapshot.features,
        )
        self._seen = replace(made, selectors=snapshot.selectors)
        self._taken = snapshot.allocated
        # Whether more is taken there than kube-scheduler knows.
        self._differs = any(held.pool(pool) != snapshot.allocated.pool(pool) for pool in visible)
        self._node = node
        self._budget = budget

    def picks(
        self, claims: Sequence[ResourceClaim], ours: Collection[PoolID], pools: Collection[PoolID]
    ) -> tuple[frozenset[DeviceID], ...] | str:
        """Return the devices of ours that kube-scheduler picks, by claim, or why they are not granted."""
        picked = scheduler_picks(self._seen, claims, self._node, self._budget)
        if isinstance(picked, str):
            return f"kube-scheduler would not find them: {picked}"
        if self._differs:
            allowed = scheduler_picks(
                self._seen.with_allocated(self._taken), claims, self._node, self._budget
            )
            before, after = _served(picked), _served(allowed)
            if before != after:
                kept = next((f"{one[0]}, which is" for one in before if one not in after), "devices that are")
                return f"kube-scheduler would take {kept} kept for others"
        for pick in chain.from_iterable(picked):
            if pick.entry.id.pool_id not in pools:
                return f"kube-scheduler would take {pick.entry.id}, of a pool that is not used now"
        granted = [
            [p for p in of_claim if p.entry.id.pool_id in ours and not p.alternative.admin]
            for of_claim in picked
        ]
        if crowded := self._crowded(claims, granted):
            return f"the claims could get more shares of {crowded} than there is room for"
        return tuple(frozenset(p.entry.id for p in of_claim) for of_claim in granted)

    def _crowded(self, claims: Sequence[ResourceClaim], granted: Sequence[Sequence[Pick]]) -> DeviceID | None:
        """Return a device that has no room for all shares that claims may get of it; None: there is room.

        kube-scheduler may not know yet which claims have shares of it, and so find room there for more than
        it picks now: for another request, or for an alternative that it prefers.
        """
        most: dict[DeviceID, tuple[DeviceEntry, list[Amounts]]] = {}
        for claim, of_claim in zip(claims, granted, strict=True):
            for entry in {p.entry.id: p.entry for p in of_claim if p.consumed is not None}.values():
                most.setdefault(entry.id, (entry, []))[1].append(_most(claim, entry))
        for id_, (entry, amounts) in most.items():
            used = self._taken.pool(id_.pool_id).capacity.get(id_.device, {})
            if not fits(_sum(amounts), entry.device.capacity, used):
                return id_
        return None


def _served(picked: Iterable[Iterable[Pick]] | str) -> list[tuple[DeviceID, str]]:
    """Return the devices in their order, each with the request or the alternative that it serves."""
    if isinstance(picked, str):
        return []
    return [(p.entry.id, p.alternative.request) for of_claim in picked for p in of_claim]


def _most(claim: ResourceClaim, entry: DeviceEntry) -> Amounts:
    """Return what all requests of a claim consume of a device together, each by its largest alternative."""
    of_requests: list[Amounts] = []
    for request in claim.spec.devices.requests or ():
        largest: dict[str, Quantity] = {}
        for requested in _requested(request):
            for name, amount in (consumption(requested, entry.device.capacity) or {}).items():
                if name not in largest or largest[name] < amount:
                    largest[name] = amount
        of_requests.append(largest)
    return _sum(of_requests)


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: dict[str, Quantity] = {}
    for some in amounts:
        for name, amount in some.items():
            total[name] = total[name] + amount if name in total else amount
    return total


def _requested(request: DeviceRequest) -> Iterable[Mapping[str, Quantity]]:
    """Yield the amounts that each alternative of a request names."""
    parts = (*((request.exactly,) if request.exactly is not None else ()), *request.first_available)
    for part in parts:
        yield part.capacity.requests if part.capacity is not None else {}
