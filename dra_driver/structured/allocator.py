"""``allocate``: the one question that the allocator answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured import bestfit, nodeselection, reasons
from dra_driver.structured.budget import Budget
from dra_driver.structured.node import NodeProblem, Options
from dra_driver.structured.plan import ClaimPlan, FatalError, compile_claims
from dra_driver.structured.results import allocation_results
from dra_driver.structured.search import Search, SearchLimitError
from dra_driver.structured.snapshot import Snapshot
from dra_driver.structured.types import Allocated, DoesNotFit, Failed, NodeReasons, Outcome, Strategy

__all__ = ["allocate"]


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    strategy: Strategy = Strategy.BEST_FIT,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    usable: Callable[[DriverName, PoolName], bool] | None = None,
) -> Outcome:
    """Finds a node and devices for all claims of one pod together.

    Args:
        snapshot: the cluster.
        claims: solved together. Those that have an allocation keep it and restrict the node only.
        strategy: how to choose among several answers.
        nodes: candidates, by name; None for every node of the snapshot. Names that the snapshot does not
            have are ignored.
        ignore_taint: taints that do not count, for example our own that keeps kube-scheduler away.
        usable: pools that this allocation may use.
    """
    question = _Question(snapshot, claims, nodes, Options(ignore_taint, usable))
    try:
        question.plans = compile_claims(claims, snapshot.classes, snapshot.features)
    except FatalError as e:
        return Failed(str(e))
    return question.first_fit() if strategy is Strategy.FIRST_FIT else question.best_fit()


class _Question:
    def __init__(
        self,
        snapshot: Snapshot,
        claims: Sequence[ResourceClaim],
        nodes: Collection[str] | None,
        options: Options,
    ) -> None:
        self._snapshot = snapshot
        self._claims = claims
        self._wanted = frozenset(nodes) if nodes is not None else None
        self._options = options
        self.plans: tuple[ClaimPlan, ...] = ()
        self.budget = Budget()

    def _nodes(self) -> Iterator[Node]:
        """Candidates in the order of their names."""
        for name, node in self._snapshot.nodes.items():
            if (self._wanted is None or name in self._wanted) and self._admitted(node):
                yield node

    def _admitted(self, node: Node) -> bool:
        """Whether the claims that are allocated already can be used on the node."""
        return all(
            plan.allocation is None
            or plan.allocation.node_selector is None
            or nodeselection.selector_matches(plan.allocation.node_selector, node)
            for plan in self.plans
        )

    def _problem(self, node: Node) -> NodeProblem:
        return NodeProblem(
            self._snapshot, self.plans, self._snapshot.index.view(node), self._options, self.budget
        )

    def first_fit(self) -> Outcome:
        """The first node with an answer. Kubernetes' fatal errors end the search, as there."""
        failures: list[Failed] = []
        number = 0
        for node in self._nodes():
            number += 1
            outcome = _first_on_node(self._problem(node))
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
            elif outcome is not None:
                return outcome
        return failures[0] if failures and len(failures) == number else DoesNotFit(self._explain)

    def best_fit(self) -> Outcome:
        """The best answer of all nodes."""
        best: tuple[bestfit.Score, str] | None = None
        answer: Allocated | None = None
        number = 0
        # Where a device could not be judged, or the search was too large, Kubernetes' search decides.
        doubtful: list[Node] = []
        for node in self._nodes():
            number += 1
            problem = self._problem(node)
            try:
                solution = bestfit.best_solution(problem)
                if solution is not None:
                    key = (solution.score, node.metadata.name)
                    if best is None or key < best:
                        results = allocation_results(problem, solution.picks, solution.chosen)
                        best, answer = key, Allocated(node.metadata.name, results)
                    continue
                if problem.doubtful():
                    doubtful.append(node)
            except (FatalError, SearchLimitError):
                doubtful.append(node)
        if answer is not None:
            return answer
        return self._last_word(doubtful, number)

    def _last_word(self, doubtful: Sequence[Node], number: int) -> Outcome:
        failures: list[Failed] = []
        for node in doubtful:
            outcome = _first_on_node(self._problem(node))
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
            elif outcome is not None:
                return outcome
        return failures[0] if failures and len(failures) == number else DoesNotFit(self._explain)

    def _explain(self) -> tuple[NodeReasons, ...]:
        refused = [
            node
            for name, node in self._snapshot.nodes.items()
            if (self._wanted is None or name in self._wanted) and not self._admitted(node)
        ]
        looked_at = [reasons.node_reasons(self._problem(node)) for node in self._nodes()]
        return tuple(
            sorted(
                [*looked_at, *(reasons.refused_node(node, self.plans) for node in refused)],
                key=lambda r: r.node,
            )
        )


def _first_on_node(problem: NodeProblem) -> Allocated | Failed | None:
    """What Kubernetes answers for one node; None where nothing fits."""
    node = problem.node.metadata.name
    try:
        problem.prepare(strict=True)
        search = Search(problem, on_solution=lambda _: True)
        if search.run():
            return Allocated(node, allocation_results(problem, search.picks, search.chosen))
    except FatalError as e:
        return Failed(str(e), only_this_node=e.only_this_node, node=node)
    except SearchLimitError:
        return Failed(
            f"node {node}: gave up, the claims allow too many combinations of its devices",
            only_this_node=True,
            node=node,
        )
    invalid = [str(pool.id) for pool in problem.pools if pool.invalid]
    if invalid:
        return Failed(
            f"node {node}: nothing fits, and these pools are invalid: {', '.join(invalid)}",
            only_this_node=True,
            node=node,
        )
    return None
