"""Nodes that are alike for some claims, and which of their devices could serve these, whatever is in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.matching.constraints import attribute_of
from dra_driver.structured.matching.plan import compile_claims
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.pools import DeviceEntry
from dra_driver.structured.model.snapshot import Memory, Snapshot
from dra_driver.structured.model.state import AllocatedState
from dra_driver.structured.model.types import PoolPolicies

__all__ = ["attribute_text", "emptied", "node_layouts", "similar_nodes", "suitable_devices"]

# Nothing is searched here: every node and every device is looked at once.
_UNLIMITED = 1 << 60


def emptied(snapshot: Snapshot) -> Snapshot:
    """Return the cluster with nothing allocated.

    It has caches of its own, so that those of the snapshot do not have to follow to and fro.
    """
    return replace(snapshot, allocated=AllocatedState(), memory=Memory())


def similar_nodes(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
) -> list[list[str]]:
    """Return the names of all nodes, those together that are equal for the claims, with what is allocated.

    Of two nodes that are equal, the devices in the same place of the node's view stand for one another.

    Raises:
        FatalError: the claims ask for something that does not exist.
    """
    budget = Budget(_UNLIMITED, _UNLIMITED)
    fleet = snapshot.memory.of(Fleet)
    found = fleet.request_class(snapshot, claims, Options(ignore_taint), None, budget)
    return [names for names, _ in fleet.classes(found, None)]


def node_layouts(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    budget: Budget,
) -> dict[str, int]:
    """Return a number for each node, equal where claims could not tell nodes apart if nothing were in use.

    On such nodes the devices in the same place of the node's view stand for one another.

    Args:
        snapshot: the cluster, with what is allocated.
        claims: what looks at it.
        ignore_taint: as for ``allocate``.
        pools: as for ``allocate``.
        budget: is charged.

    Raises:
        FatalError: the claims ask for something that does not exist.
        BudgetExhausted: the budget is used up.
    """
    fleet = snapshot.memory.of(Fleet)
    index = fleet.request_class(snapshot, claims, Options(ignore_taint, pools), pools, budget).index
    numbers: dict[int, int] = {}
    return {
        name: numbers.setdefault(id(of.layout), len(numbers)) for of in index.classes for name in of.nodes
    }


def suitable_devices(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    node: str,
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
) -> frozenset[int]:
    """Return the devices of a node that could serve a request by themselves, free or allocated as a whole.

    They are given as places among all devices of the node's view. A device without enough capacity left is
    not among them; whether it would be, were it free, an ``emptied`` snapshot tells.

    Raises:
        FatalError: the claims ask for something that does not exist.
    """
    budget = Budget(_UNLIMITED, _UNLIMITED)
    plans = compile_claims(claims, snapshot.classes, snapshot.features)
    problem = NodeProblem(snapshot, plans, snapshot.view(node), Options(ignore_taint), budget)
    alternatives = [a for plan in plans for request in plan.requests for a in request.alternatives]
    entries = [(entry, pool) for pool in problem.pools for entry in pool.devices]

    def suits(place: int) -> bool:
        entry, pool = entries[place]
        looks = (problem.look(alternative, entry, pool) for alternative in alternatives)
        return any(isinstance(c, Candidate) and not c.tainted and c.error is None for c in looks)

    return frozenset(filter(suits, range(len(entries))))


def attribute_text(entry: DeviceEntry, attribute: str) -> str | None:
    """Return the text that a device has as an attribute, by its qualified name; None if it has none."""
    found = attribute_of(entry.device, entry.id.driver, attribute)
    return None if found is None else found.string_value
