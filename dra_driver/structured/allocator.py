"""``allocate``: the one question that the allocator answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured import bestfit, nodeselection, reasons
from dra_driver.structured.budget import Budget
from dra_driver.structured.fleet import Fleet
from dra_driver.structured.node import Candidate, NodeProblem, Options
from dra_driver.structured.plan import ClaimPlan, FatalError, compile_claims
from dra_driver.structured.results import allocation_results
from dra_driver.structured.search import Pick, Search, SearchLimitError
from dra_driver.structured.shapes import Choice, Shape
from dra_driver.structured.snapshot import Snapshot
from dra_driver.structured.types import (
    Allocated,
    DoesNotFit,
    Failed,
    NodePolicy,
    NodeReasons,
    Outcome,
    Strategy,
)

__all__ = ["allocate", "allocate_by_scan"]

# Nodes of so many kinds are looked at for a brief reason.
_SAMPLE: Final = 2


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    strategy: Strategy = Strategy.BEST_FIT,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    usable: Callable[[DriverName, PoolName], bool] | None = None,
    policy: NodePolicy = NodePolicy.PACK,
) -> Outcome:
    """Finds a node and devices for all claims of one pod together.

    Args:
        snapshot: the cluster.
        claims: solved together. Those that have an allocation keep it and restrict the node only.
        strategy: how to choose among several answers.
        nodes: candidates, by name; None for every node of the snapshot. Names that the snapshot does not
            have are ignored. A set is not copied: reasons that are asked for later are those of its content
            then.
        ignore_taint: taints that do not count, for example our own that keeps kube-scheduler away.
        usable: pools that this allocation may use. What is learned of a fleet is kept by function: give the
            same one as long as its answers stay the same.
        policy: for best fit, which of several nodes that are equally good.
    """
    question = _Question(snapshot, claims, nodes, Options(ignore_taint, usable, policy))
    return question.first_fit() if strategy is Strategy.FIRST_FIT else question.best_fit()


def allocate_by_scan(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    usable: Callable[[DriverName, PoolName], bool] | None = None,
    policy: NodePolicy = NodePolicy.PACK,
) -> Outcome:
    """Best fit as ``allocate`` gives it, worked out node by node: for tests of the fast way."""
    question = _Question(snapshot, claims, nodes, Options(ignore_taint, usable, policy))
    try:
        return question.best_fit_by_scan()
    except FatalError as e:
        return Failed(str(e))


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
        self._wanted: Set[str] | None = nodes if nodes is None or isinstance(nodes, Set) else frozenset(nodes)
        self._options = options
        self.budget = Budget()

    @cached_property
    def plans(self) -> tuple[ClaimPlan, ...]:
        """The claims, taken apart. Raises FatalError."""
        return compile_claims(self._claims, self._snapshot.classes, self._snapshot.features)

    def _nodes(self) -> Iterator[Node]:
        """Candidates in the order of their names."""
        plans = self.plans
        names = self._snapshot.nodes if self._wanted is None else sorted(self._wanted)
        for name in names:
            node = self._snapshot.nodes.get(name)
            if node is not None and self._admitted_by(plans, node):
                yield node

    def _admitted(self, node: Node) -> bool:
        """Whether the claims that are allocated already can be used on the node."""
        return self._admitted_by(self.plans, node)

    def _admitted_by(self, plans: Sequence[ClaimPlan], node: Node) -> bool:
        return all(
            plan.allocation is None
            or plan.allocation.node_selector is None
            or nodeselection.selector_matches(plan.allocation.node_selector, node)
            for plan in plans
        )

    def _problem(self, node: Node) -> NodeProblem:
        return NodeProblem(
            self._snapshot, self.plans, self._snapshot.index.view(node), self._options, self.budget
        )

    def first_fit(self) -> Outcome:
        """The first node with an answer. Kubernetes' fatal errors end the search, as there."""
        failures: list[Failed] = []
        number = 0
        try:
            assert self.plans is not None
        except FatalError as e:
            return Failed(str(e))
        for node in self._nodes():
            number += 1
            outcome = _first_on_node(self._problem(node))
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
            elif outcome is not None:
                return outcome
        return failures[0] if failures and len(failures) == number else DoesNotFit(self._explain)

    def best_fit(self) -> Outcome:
        """The best answer of all nodes, by classes of equal nodes."""
        try:
            return self._by_classes()
        except FatalError as e:
            return Failed(str(e))

    def _by_classes(self) -> Outcome:
        fleet = self._snapshot.memory.of(Fleet)
        shape = fleet.shape(self._snapshot, self._claims, self._options)
        allowed = self._allowed()
        refused: set[str] = set()
        while True:
            choice = shape.best(self._snapshot, allowed)
            if choice is None:
                break
            try:
                return self._allocated(shape, choice)
            except FatalError:
                # A node selector that an allocation cannot carry: seen only when the result is made.
                refused.add(choice.node)
                allowed = _without(allowed, refused)
        return self._last_word_of_classes(fleet, shape, refused)

    def _allowed(self) -> Callable[[str], bool] | None:
        wanted, nodes = self._wanted, self._snapshot.nodes
        if any(c.status.allocation is not None for c in self._claims):
            plans = self.plans
            return lambda name: (wanted is None or name in wanted) and self._admitted_by(plans, nodes[name])
        return None if wanted is None else wanted.__contains__

    def _allocated(self, shape: Shape, choice: Choice) -> Allocated:
        """The answer for these claims and this node, from one for claims and nodes like them."""
        plans = tuple(
            replace(plan, name=str(claim.key), claim=claim, allocation=claim.status.allocation)
            for plan, claim in zip(shape.plans, self._claims, strict=True)
        )
        view = self._snapshot.index.view(self._snapshot.nodes[choice.node])
        problem = NodeProblem(self._snapshot, plans, view, self._options, self.budget)
        devices = [(e, p) for p in view.pools for e in p.devices]
        picks: list[list[Pick]] = [[] for _ in plans]
        for place in choice.places:
            alternative = plans[place.claim].requests[place.request].alternatives[place.alternative]
            entry, pool = devices[place.position]
            candidate = problem.look(alternative, entry, pool)
            assert isinstance(candidate, Candidate), candidate
            consumed = candidate.consumption if entry.shareable else None
            picks[place.claim].append(Pick(alternative, candidate, consumed))
        return Allocated(choice.node, allocation_results(problem, picks, choice.chosen))

    def _last_word_of_classes(self, fleet: Fleet, shape: Shape, refused: set[str]) -> Outcome:
        """Nothing fits: where Kubernetes' search might say something else, it is asked, once per class."""
        failures: list[Failed] = []
        number = failed = 0
        for names, nodes in fleet.classes(shape, self._allowed()):
            number += len(names)
            mine = refused & set(names) if refused else ()
            if not (nodes in shape.unsolved or mine or shape.doubtful(self._snapshot, nodes.layout)):
                continue
            outcome = _first_on_node(self._problem(self._snapshot.nodes[names[0]]))
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
                failed += len(names)
            elif outcome is not None:
                return outcome
        if failures and failed == number:
            return failures[0]
        return DoesNotFit(self._explain, lambda: self._sample(shape))

    def _sample(self, shape: Shape) -> tuple[int, tuple[NodeReasons, ...]]:
        """The number of nodes, and the reasons on one node of each of a few layouts."""
        layouts: dict[object, str] = {}
        for nodes in shape.index.classes:
            if nodes.nodes and nodes.layout not in layouts:
                layouts[nodes.layout] = nodes.nodes[0]
            if len(layouts) == _SAMPLE:
                break
        some = [self._snapshot.nodes[name] for name in sorted(layouts.values())]
        number = len(self._snapshot.nodes if self._wanted is None else self._wanted)
        return number, tuple(reasons.node_reasons(self._problem(node)) for node in some)

    def best_fit_by_scan(self) -> Outcome:
        """The same answer as ``best_fit``, by solving every node: slow and simple."""
        best: tuple[tuple[object, ...], str] | None = None
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
                    key = (solution.score.between_nodes, node.metadata.name)
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


def _without(allowed: Callable[[str], bool] | None, refused: Collection[str]) -> Callable[[str], bool]:
    return lambda name: name not in refused and (allowed is None or allowed(name))


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
