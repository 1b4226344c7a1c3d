"""Best fit worked out node by node, without the index: what ``allocate`` has to answer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Budget,
    DoesNotFit,
    Failed,
    NodePolicy,
    NodeReasons,
    Outcome,
    PoolPolicies,
    PoolPolicy,
    Snapshot,
    Strategy,
)
from dra_driver.structured.explain import reasons, summaries
from dra_driver.structured.explain.asking import asked_for
from dra_driver.structured.matching.plan import FatalError, compile_claims
from dra_driver.structured.matching.problem import NodeProblem, Options
from dra_driver.structured.model.budget import BudgetExhausted
from dra_driver.structured.model.nodeselection import selector_matches
from dra_driver.structured.search.bestfit import best_solution, score_of
from dra_driver.structured.search.bounds import too_few_devices
from dra_driver.structured.search.results import allocation_results
from dra_driver.structured.search.search import Pick, Search, SearchLimitError

GAVE_UP = (
    "gave up: the claims allow more combinations of devices than can be tried; "
    "ask for fewer requests, alternatives or constraints at once"
)


def allocate_by_scan(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    policy: NodePolicy = NodePolicy.PACK,
) -> Outcome:
    """Best fit as ``allocate`` gives it, by solving every node: slow and simple."""
    options = Options(ignore_taint, pools, PoolPolicy(Strategy.BEST_FIT, policy))
    try:
        return _Scan(snapshot, claims, nodes, options).best_fit()
    except FatalError as e:
        return Failed(str(e))
    except BudgetExhausted:
        return Failed(GAVE_UP, gave_up=True)


class _Found:
    """An answer on one node, and its place among the answers of nodes whose pools are used in other ways."""

    def __init__(
        self, problem: NodeProblem, picks: Sequence[Sequence[Pick]], chosen: Sequence[Sequence[int]]
    ) -> None:
        node = problem.node.metadata.name
        self.outcome = Allocated(node, allocation_results(problem, picks, chosen))
        ranks = tuple(rank for claim in chosen for rank in claim)
        self.key = (*score_of(problem, picks, ranks).between_nodes, node)


class _Scan:
    def __init__(
        self,
        snapshot: Snapshot,
        claims: Sequence[ResourceClaim],
        nodes: Collection[str] | None,
        options: Options,
    ) -> None:
        self._snapshot = snapshot
        self._options = options
        self._plans = compile_claims(claims, snapshot.classes, snapshot.features)
        self._budget = Budget()
        wanted = snapshot.nodes if nodes is None else nodes
        self._candidates = [snapshot.nodes[name] for name in sorted(wanted) if name in snapshot.nodes]

    def _admitted(self) -> Iterator[Node]:
        """The candidates on which the claims that are allocated already can be used."""
        for node in self._candidates:
            held = [plan.allocation for plan in self._plans if plan.allocation is not None]
            if all(a.node_selector is None or selector_matches(a.node_selector, node) for a in held):
                yield node

    def _problem(
        self, node: Node, *, snapshot: Snapshot | None = None, budget: Budget | None = None
    ) -> NodeProblem:
        view = self._snapshot.index.view(node)
        return NodeProblem(
            snapshot or self._snapshot, self._plans, view, self._options, budget or self._budget
        )

    def best_fit(self) -> Outcome:
        # The best answer of nodes with best-fit pools only, and that of nodes that also have first-fit pools.
        best: dict[frozenset[Strategy], tuple[tuple[object, ...], _Found]] = {}
        first: _Found | Failed | None = None
        number = 0
        # Where a device could not be judged, or the search was too large, Kubernetes' search decides.
        doubtful: list[Node] = []
        for node in self._admitted():
            number += 1
            problem = self._problem(node)
            strategies = self._strategies(problem)
            if strategies == {Strategy.FIRST_FIT}:
                found = _by_kubernetes(problem)
                if isinstance(found, Failed) and found.only_this_node:
                    doubtful.append(node)
                elif first is None:
                    first = found
                continue
            try:
                solution = best_solution(problem)
                if solution is not None:
                    key = (solution.score.between_nodes, node.metadata.name)
                    if strategies not in best or key < best[strategies][0]:
                        best[strategies] = key, _Found(problem, solution.picks, solution.chosen)
                    continue
                if problem.may_fail():
                    doubtful.append(node)
            except (FatalError, SearchLimitError):
                doubtful.append(node)
        answers = [found for _, found in best.values()]
        if isinstance(first, Failed):
            if not answers:
                return first
        elif first is not None:
            answers.append(first)
        if answers:
            return min(answers, key=lambda found: found.key).outcome
        return self._last_word(doubtful, number)

    def _strategies(self, problem: NodeProblem) -> frozenset[Strategy]:
        """How the claims are served on a node; what is in use does not count.

        FIRST_FIT alone only where every device that serves them is of a first-fit pool.
        """
        rules = {p.id: problem.options.policy(p.id) for p in problem.pools}
        found = frozenset(rule.strategy for rule in rules.values() if rule is not None)
        if len(found) == 2:
            empty = self._problem(problem.node, snapshot=self._snapshot.with_allocated(AllocatedState()))
            found = frozenset(
                rule.strategy
                for pool in problem.pools
                if (rule := rules[pool.id]) is not None
                for entry in pool.devices
                for plan in self._plans
                for request in plan.requests
                for alternative in request.alternatives
                if empty.serves(alternative, entry, pool) is not None
            )
        return found or frozenset({Strategy.BEST_FIT})

    def _last_word(self, doubtful: Sequence[Node], number: int) -> Outcome:
        failures: list[Failed] = []
        for node in doubtful:
            found = _by_kubernetes(self._problem(node))
            if isinstance(found, _Found):
                return found.outcome
            if found is not None:
                if not found.only_this_node:
                    return found
                failures.append(found)
        if failures and len(failures) == number:
            return failures[0]
        if any(f.gave_up for f in failures):
            return Failed(GAVE_UP, gave_up=True)

        asked = asked_for(self._plans)

        def summarize(holders: bool) -> str:
            return summaries.summary(self._explain(), asked, holders=holders)

        head = functools.partial(summaries.headline, asked)
        return DoesNotFit(head, self._explain, summarize, lambda: summarize(True))

    def _explain(self) -> tuple[NodeReasons, ...]:
        budget = Budget(sys.maxsize)
        admitted = {node.metadata.name for node in self._admitted()}
        return tuple(
            reasons.node_reasons(self._problem(node, budget=budget))
            if node.metadata.name in admitted
            else reasons.refused_node(node, self._plans)
            for node in self._candidates
        )


def _by_kubernetes(problem: NodeProblem) -> _Found | Failed | None:
    """What Kubernetes answers for one node; None where nothing fits."""
    node = problem.node.metadata.name
    try:
        problem.prepare(strict=True)
        search = Search(problem, on_solution=lambda _: True)
        if not too_few_devices(problem) and search.run():
            return _Found(problem, search.picks, search.chosen)
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
