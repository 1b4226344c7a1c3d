"""Bounds before any search for several pods: how many of them the free devices of nodes are enough for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured.index.equivalence import NodeClass
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.index.request_classes import RequestClass
from dra_driver.structured.matching.plan import FatalError
from dra_driver.structured.matching.problem import Options
from dra_driver.structured.model.budget import Budget, BudgetExhausted
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import PoolPolicies

__all__ = ["Room", "room"]


class Room:
    """How many pods with the same claims nodes can hold at most, and the state that this rests on.

    Holds until the next question.
    """

    def __init__(self, snapshot: Snapshot, request_class: RequestClass) -> None:
        self._snapshot = snapshot
        self._request_class = request_class
        self._known: dict[NodeClass, tuple[int | None, int]] = {}

    def holds(self, pods: int, nodes: Iterable[str]) -> int:
        """Return how many of the pods the nodes can hold at most.

        Constraints, counters and what the pods need besides devices are left to the search.

        Raises:
            BudgetExhausted: the question has no steps or no time left.
        """
        found = 0
        for nodes_class in self._classes(nodes):
            most = self._look(nodes_class)[0]
            found = pods if most is None else found + most
            if found >= pods:
                return pods
        return found

    def state(self, nodes: Iterable[str]) -> int:
        """Return a number that changes when devices become free, or change, that the claims can use.

        What happens to other devices, and to nodes without free devices for the claims, does not change it.

        Raises:
            BudgetExhausted: as for ``holds``.
        """
        names = list(nodes)
        looks = zip(names, self._classes(names), strict=True)
        return hash(frozenset((name, self._look(c)[1]) for name, c in looks if self._look(c)[0] != 0))

    def _classes(self, nodes: Iterable[str]) -> Iterable[NodeClass]:
        return map(self._request_class.index.class_of, nodes)

    def _look(self, nodes: NodeClass) -> tuple[int | None, int]:
        known = self._known.get(nodes)
        if known is None:
            known = self._known[nodes] = self._request_class.room_on(self._snapshot, nodes)
        return known


def room(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    budget: Budget,
) -> Room | None:
    """Return the room for pods with such claims; None if nothing is known beforehand.

    Args:
        snapshot: the cluster.
        claims: of one pod, none of them allocated or shared with other pods.
        ignore_taint: as for ``allocate``.
        pools: as for ``allocate``.
        budget: what the look may cost.
    """
    fleet = snapshot.memory.of(Fleet)
    try:
        found = fleet.request_class(snapshot, claims, Options(ignore_taint, pools), pools, budget)
    except (FatalError, BudgetExhausted):
        return None
    finally:
        fleet.settle()
    return Room(snapshot, found)
