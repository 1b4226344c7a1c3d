"""Kubernetes' search on one node, and an answer there."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.structured.matching.plan import FatalError
from dra_driver.structured.matching.problem import NodeProblem
from dra_driver.structured.model.types import (
    Allocated,
    Failed,
)
from dra_driver.structured.search import bestfit
from dra_driver.structured.search.bounds import too_few_devices
from dra_driver.structured.search.results import allocation_results
from dra_driver.structured.search.search import Pick, Search, SearchLimitError

__all__ = ["Answer", "first_on_node", "search_on_node"]


class Answer:
    """An answer on one node, with the allocation results made.

    Raises:
        FatalError: a node selector that an allocation cannot carry.
    """

    __slots__ = ("_chosen", "_picks", "_problem", "outcome")

    def __init__(
        self, problem: NodeProblem, picks: Sequence[Sequence[Pick]], chosen: Sequence[Sequence[int]]
    ) -> None:
        self._problem, self._picks, self._chosen = problem, picks, chosen
        self.outcome = Allocated(problem.node.metadata.name, allocation_results(problem, picks, chosen))

    def key(self) -> tuple[object, ...]:
        """Return what decides between answers of different parts of a fleet; less is better."""
        ranks = tuple(rank for claim in self._chosen for rank in claim)
        score = bestfit.score_of(self._problem, self._picks, ranks)
        return (*score.between_nodes, self.outcome.node)


def first_on_node(problem: NodeProblem) -> Allocated | Failed | None:
    """Return Kubernetes' answer for one node; None if nothing fits."""
    found = search_on_node(problem)
    return found.outcome if isinstance(found, Answer) else found


def search_on_node(problem: NodeProblem) -> Answer | Failed | None:
    """Run Kubernetes' search on one node; return None if nothing fits."""
    node = problem.node.metadata.name
    try:
        problem.prepare(strict=True)
        search = Search(problem, on_solution=lambda _: True)
        if not too_few_devices(problem) and search.run():
            return Answer(problem, search.picks, search.chosen)
    except FatalError as e:
        return Failed(str(e), only_this_node=e.only_this_node, node=node)
    except SearchLimitError:
        return Failed(
            f"node {node}: gave up, the claims allow too many combinations of its devices",
            only_this_node=True,
            node=node,
            gave_up=True,
        )
    invalid = [str(pool.id) for pool in problem.pools if pool.invalid]
    if invalid:
        return Failed(
            f"node {node}: nothing fits, and these pools are invalid: {', '.join(invalid)}",
            only_this_node=True,
            node=node,
        )
    return None
