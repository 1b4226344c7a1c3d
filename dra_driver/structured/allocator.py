"""``allocate``: a node and devices for the claims of a pod, or the reasons for which nothing fits.

First fit asks one node after the other, as Kubernetes does. Best fit asks the ``Fleet``, which solves each
class of equal nodes once; a refusal is then checked against Kubernetes' search on one node of each class
where that may end in an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured.explain import reasons, summaries
from dra_driver.structured.explain.asking import Asked, asked_for
from dra_driver.structured.index.demand import Choice
from dra_driver.structured.index.evaluations import SelectorsTooExpensive
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.index.request_classes import RequestClass, Role
from dra_driver.structured.matching.plan import ClaimPlan, FatalError, compile_claims
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Options
from dra_driver.structured.model import nodeselection
from dra_driver.structured.model.budget import STEPS_PER_QUESTION, Budget, BudgetExhausted
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import (
    DoesNotFit,
    Failed,
    NodePolicy,
    NodeReasons,
    Outcome,
    PoolID,
    PoolPolicies,
    PoolPolicy,
    Strategy,
)
from dra_driver.structured.search.one_node import Answer, first_on_node, search_on_node
from dra_driver.structured.search.search import Pick

__all__ = ["allocate"]

# Steps of a question that is answered from what is known.
_FEW_STEPS: Final = 8
# Layouts of which a node is examined for a brief reason.
_BRIEF_LAYOUTS: Final = 2
# Classes of nodes, the largest ones, of which a node is examined for the summary.
_MAX_CLASSES: Final = 128


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    strategy: Strategy = Strategy.BEST_FIT,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    withheld: Mapping[PoolID, str] | None = None,
    policy: NodePolicy = NodePolicy.PACK,
    budget: Budget | None = None,
) -> Outcome:
    """Find a node and devices for all claims of one pod together.

    Args:
        snapshot: the cluster.
        claims: solved together. Those that are allocated keep their devices and only restrict the node.
        strategy: how to choose among several answers, where ``pools`` does not say.
        nodes: names of candidates; if None, every node of the snapshot. Unknown names are ignored. Sets and
            maps are copied for a refusal only, so that reasons asked for later are those of the question.
        ignore_taint: taints that do not count, for example our own that keeps kube-scheduler away.
        pools: those that this allocation may use, and how; if None, all of them, with ``strategy`` and
            ``policy``. Make the next map with ``updated``: then a change costs work for its pools only.
        withheld: why pools that ``pools`` lacks may not be used, as a predicate ("allocated by
            kube-scheduler"); said in the reasons of a refusal, without influence on the answer.
        policy: for best fit, which of several nodes that are equally good, where ``pools`` does not say.
        budget: what the question may cost; if None, ``Budget()``. Questions that belong together (the members
            of a group) share one. When it is used up, the answer is the best one so far, or ``Failed`` with
            ``gave_up``.

    Raises:
        IndexUnfinished: the budget limits upkeep, and what is kept about the fleet is not up to date. The
            next question gets further.

    Where pools have different strategies, a node counts by those of its pools that have a device for the
    claims. Nodes with first-fit pools only give one answer, that of Kubernetes: the first devices of the
    first node where they fit. All other nodes give their best; there, devices of first-fit pools are taken in
    Kubernetes' order and the others by score. Of the two answers the one with the better score is returned,
    of equal ones that of the first node by name. So what fits does not depend on strategies.
    """
    options = Options(ignore_taint, pools, PoolPolicy(strategy, policy), withheld)
    question = _Question(snapshot, claims, nodes, options, budget or Budget())
    try:
        question.budget.spend(STEPS_PER_QUESTION)
    except BudgetExhausted:
        return _gave_up()
    if strategy is Strategy.FIRST_FIT and pools is None:
        return question.first_fit()
    return question.best_fit()


class _Question:
    """One call of ``allocate``: its claims, the nodes that it allows, and its budget."""

    def __init__(
        self,
        snapshot: Snapshot,
        claims: Sequence[ResourceClaim],
        nodes: Collection[str] | None,
        options: Options,
        budget: Budget,
    ) -> None:
        self._snapshot = snapshot
        self._claims = tuple(claims)
        self._node_names: Set[str] | None = (
            nodes if nodes is None or isinstance(nodes, Set) else frozenset(nodes)
        )
        self._options = options
        self.budget = budget

    @cached_property
    def plans(self) -> tuple[ClaimPlan, ...]:
        """The claims, compiled. Raises FatalError."""
        return compile_claims(self._claims, self._snapshot.classes, self._snapshot.features)

    def _nodes(self) -> Iterator[Node]:
        """Iterate over the candidates that allocated claims admit, in the order of their names."""
        plans = self.plans
        for node in self._candidates():
            if self._admitted_by(plans, node):
                yield node

    def _candidates(self) -> Iterator[Node]:
        """Iterate over the nodes that the caller allows, in the order of their names."""
        for name in self._snapshot.nodes if self._node_names is None else sorted(self._node_names):
            node = self._snapshot.nodes.get(name)
            if node is not None:
                yield node

    def _admitted(self, node: Node) -> bool:
        """Return whether the claims that are allocated already can be used on the node."""
        return self._admitted_by(self.plans, node)

    def _admitted_by(self, plans: Sequence[ClaimPlan], node: Node) -> bool:
        return all(
            plan.allocation is None
            or plan.allocation.node_selector is None
            or nodeselection.selector_matches(plan.allocation.node_selector, node)
            for plan in plans
        )

    def _problem(self, node: Node, budget: Budget | None = None) -> NodeProblem:
        view = self._snapshot.index.view(node)
        return NodeProblem(self._snapshot, self.plans, view, self._options, budget or self.budget)

    def first_fit(self) -> Outcome:
        """Return the answer of the first node that has one; a fatal error ends the search."""
        failures: list[Failed] = []
        number = 0
        try:
            assert self.plans is not None  # compiled here: the error is the claims', not a node's
        except FatalError as e:
            return Failed(str(e))
        for node in self._nodes():
            number += 1
            try:
                outcome = first_on_node(self._problem(node))
            except (BudgetExhausted, RecursionError):
                return _gave_up()
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
            elif outcome is not None:
                return outcome
        return failures[0] if failures and len(failures) == number else self._does_not_fit()

    def best_fit(self) -> Outcome:
        """Return the best answer of all nodes."""
        try:
            return self._by_classes()
        except FatalError as e:
            return Failed(str(e))
        except SelectorsTooExpensive as e:
            return Failed(str(e), gave_up=True)
        except (BudgetExhausted, RecursionError):
            # The search recurses once per device: thousands of requests served by a few shared devices nest
            # deeper than Python can.
            return _gave_up()

    def _by_classes(self) -> Outcome:
        fleet = self._snapshot.memory.of(Fleet)
        budget = self.budget
        before = budget.left - budget.upkeep
        try:
            return self._of_fleet(fleet)
        finally:
            # What is worked out costs steps, so a question that cost few has added nothing to speak of.
            if before - budget.left + budget.upkeep > _FEW_STEPS:
                fleet.settle()

    def _of_fleet(self, fleet: Fleet) -> Outcome:
        request_class = fleet.request_class(
            self._snapshot, self._claims, self._options, self._policies, self.budget
        )
        refused: set[str] = set()
        if request_class.index.first_fit:
            outcome = self._by_pool_strategies(fleet, request_class, refused)
        else:
            found = self._best(request_class, request_class.best, self._allowed(), refused)
            outcome = None if found is None else found.outcome
        if outcome is not None:
            return outcome
        return _gave_up() if self.budget.cut else self._confirm_refusal(fleet, request_class, refused)

    @cached_property
    def _policies(self) -> PoolPolicies | None:
        pools = self._options.pools
        return pools if pools is None or isinstance(pools, PersistentMap) else PersistentMap(pools)

    def _best(
        self,
        request_class: RequestClass,
        best: Callable[[Snapshot, Callable[[str], bool] | None], Choice | None],
        allowed: Callable[[str], bool] | None,
        refused: set[str],
    ) -> Answer | None:
        """Return the best answer of which an allocation can be made; add other nodes to ``refused``."""
        while True:
            choice = best(self._snapshot, allowed)
            if choice is None:
                return None
            try:
                return self._found(request_class, choice)
            except FatalError:
                # A node selector that an allocation cannot carry is met only when the result is made.
                refused.add(choice.node)
                allowed = _without(allowed, refused)

    def _by_pool_strategies(
        self, fleet: Fleet, request_class: RequestClass, refused: set[str]
    ) -> Outcome | None:
        """Return the better of the answers of first-fit and best-fit nodes. See ``allocate``."""
        snapshot, allowed = self._snapshot, self._allowed()

        def only(role: Role) -> Callable[[str], bool]:
            def in_role(name: str) -> bool:
                layout = request_class.index.class_of(name).layout
                return request_class.role(snapshot, layout) is role and (allowed is None or allowed(name))

            return in_role

        answers: list[Answer | None] = []
        try:
            answers.append(self._best(request_class, request_class.best, only(Role.BEST), refused))
            answers.append(self._best(request_class, request_class.best_mixed, only(Role.MIXED), refused))
            first = self._first_by_classes(fleet, request_class)
            if isinstance(first, Failed):
                if not any(answers):
                    return first
            else:
                answers.append(first)
        except BudgetExhausted:
            if not any(answers):
                raise
        found = [a for a in answers if a is not None]
        if len(found) > 1:
            found.sort(key=Answer.key)
        return found[0].outcome if found else None

    def _first_by_classes(self, fleet: Fleet, request_class: RequestClass) -> Answer | Failed | None:
        """Return Kubernetes' answer for nodes with first-fit pools only; one node of each class is asked."""
        for names, nodes in fleet.classes(request_class, self._allowed()):
            if (
                nodes in request_class.infeasible
                or request_class.role(self._snapshot, nodes.layout) is not Role.FIRST
            ):
                continue
            problem = self._problem(self._snapshot.nodes[names[0]])
            found = search_on_node(problem)
            if found is None:
                request_class.infeasible.add(nodes)
            elif isinstance(found, Answer) or not found.only_this_node:
                return found
            elif found.gave_up:
                request_class.unsolved.add(nodes)
        return None

    def _allowed(self) -> Callable[[str], bool] | None:
        """Return which nodes may be used, as a predicate; None for all."""
        wanted, nodes = self._node_names, self._snapshot.nodes
        if self._has_allocated:
            plans = self.plans
            return lambda name: (wanted is None or name in wanted) and self._admitted_by(plans, nodes[name])
        return None if wanted is None else wanted.__contains__

    @property
    def _has_allocated(self) -> bool:
        """Whether a claim is allocated already, which may exclude nodes."""
        return any(c.status.allocation is not None for c in self._claims)

    def _found(self, request_class: RequestClass, choice: Choice) -> Answer:
        """Return the answer for these claims on this node, from one for equal claims on an equal node."""
        plans = tuple(
            replace(plan, name=str(claim.key), claim=claim, allocation=claim.status.allocation)
            for plan, claim in zip(request_class.plans, self._claims, strict=True)
        )
        view = self._snapshot.index.view(self._snapshot.nodes[choice.node])
        # With steps of its own: an answer must not be lost because the search for it used up the budget.
        problem = NodeProblem(self._snapshot, plans, view, self._options, Budget())
        devices = [(e, p) for p in view.pools for e in p.devices]
        picks: list[list[Pick]] = [[] for _ in plans]
        for place in choice.places:
            alternative = plans[place.claim].requests[place.request].alternatives[place.alternative]
            entry, pool = devices[place.position]
            candidate = problem.look(alternative, entry, pool)
            assert isinstance(candidate, Candidate), candidate
            picks[place.claim].append(Pick(alternative, candidate, problem.share(alternative, candidate)))
        return Answer(problem, picks, choice.chosen)

    def _confirm_refusal(self, fleet: Fleet, request_class: RequestClass, refused: set[str]) -> Outcome:
        """Refuse, after asking Kubernetes' search once per class where it might say something else."""
        failures: list[Failed] = []
        number = failed = 0
        gave_up = False
        # Best fit leaves devices out on which Kubernetes' search ends in an error, so where nothing fits the
        # two may differ. One node stands for its class, and most classes cannot differ at all (``may_fail``).
        for names, nodes in fleet.classes(request_class, self._allowed()):
            number += len(names)
            mine = refused & set(names) if refused else ()
            if not (
                nodes in request_class.unsolved
                or mine
                or request_class.may_fail(self._snapshot, nodes.layout)
            ):
                continue
            outcome = first_on_node(self._problem(self._snapshot.nodes[names[0]]))
            if isinstance(outcome, Failed) and outcome.only_this_node:
                failures.append(outcome)
                failed += len(names)
                gave_up = gave_up or outcome.gave_up
            elif outcome is not None:
                return outcome
        if failures and failed == number:
            return failures[0]
        if gave_up:
            return _gave_up()
        return self._refuse(
            lambda holders: self._summarize(fleet, request_class, holders),
            lambda: self._brief(request_class),
        )

    def _summarize(self, fleet: Fleet, request_class: RequestClass, holders: bool) -> str:
        """Return the summary, examining one node of each class, of at most ``_MAX_CLASSES``."""
        if request_class.index.shows(self._snapshot, self._policies):
            known = [names for names, _ in fleet.classes(request_class, self._allowed())]
        else:
            # The index has gone on to another snapshot since.
            known = [[node.metadata.name] for node in self._nodes()]
        if len(known) > _MAX_CLASSES:
            known.sort(key=lambda names: (-len(names), names[0]))
        shown = sorted(known[:_MAX_CLASSES], key=lambda names: names[0])
        budget = self.budget.for_reasons()
        left = sum(len(names) for names in known[_MAX_CLASSES:])
        classes = []
        for names in shown:
            looked = self._reasons_on(names[0], budget)
            if looked is None:
                left += len(names)
            else:
                classes.append(summaries.SimilarNodes(looked, names))
        if self._has_allocated:
            refused = [node for node in self._candidates() if not self._admitted(node)]
            if refused:
                names = [node.metadata.name for node in refused]
                classes.append(summaries.SimilarNodes(reasons.refused_node(refused[0], self.plans), names))

        def examine(name: str) -> NodeReasons:
            return self._reasons_on(name, budget) or NodeReasons(name, ())

        return summaries.summary_by_class(classes, examine, self._asked, left, holders=holders)

    def _reasons_on(self, name: str, budget: Budget) -> NodeReasons | None:
        """Return the reasons on a node; None if there are more than the budget pays for."""
        try:
            return reasons.node_reasons(self._problem(self._snapshot.nodes[name], budget))
        except BudgetExhausted:
            return None

    @property
    def _asked(self) -> Asked:
        return asked_for(self.plans)

    def _brief(self, request_class: RequestClass) -> str:
        """Return the reasons on one node of each of a few layouts, and the number of the others."""
        number = len(self._snapshot.nodes if self._node_names is None else self._node_names)
        budget = self.budget.for_reasons()
        names = self._sample(request_class)
        some = [found for name in names if (found := self._reasons_on(name, budget)) is not None]
        classes = [summaries.SimilarNodes(reasons_, (reasons_.node,)) for reasons_ in some]
        left = max(0, number - len(some))
        return summaries.summary_by_class(
            classes, lambda name: NodeReasons(name, ()), self._asked, left, holders=True
        )

    def _sample(self, request_class: RequestClass) -> list[str]:
        """Return a few candidates, of layouts that differ."""
        if not request_class.index.shows(self._snapshot, self._policies):
            # The index has gone on to another snapshot since.
            return [node.metadata.name for node in islice(self._candidates(), _BRIEF_LAYOUTS)]
        layouts: dict[object, str] = {}
        for nodes in request_class.index.classes:
            if nodes.layout in layouts:
                continue
            name = next((n for n in nodes.nodes if self._node_names is None or n in self._node_names), None)
            if name is not None:
                layouts[nodes.layout] = name
            if len(layouts) == _BRIEF_LAYOUTS:
                break
        return sorted(layouts.values())

    def _does_not_fit(self) -> DoesNotFit:
        """Return the refusal whose reasons are those of every node."""

        def summarize(holders: bool) -> str:
            return summaries.summary(self._explain(), self._asked, holders=holders)

        return self._refuse(summarize, lambda: summarize(True))

    def _refuse(self, summarize: Callable[[bool], str], shorten: Callable[[], str]) -> DoesNotFit:
        """Return the refusal, with sets and maps as they were asked about: the caller may change its own."""
        if self._node_names is not None:
            self._node_names = frozenset(self._node_names)
        withheld = self._options.withheld
        if withheld is not None and not isinstance(withheld, PersistentMap):
            self._options = replace(self._options, withheld=dict(withheld))
        return DoesNotFit(lambda: summaries.headline(self._asked), self._explain, summarize, shorten)

    def _explain(self) -> tuple[NodeReasons, ...]:
        """Return the reasons of every node, whatever it costs: the caller asked for all of them."""
        refused = [node for node in self._candidates() if not self._admitted(node)]
        unlimited = Budget(sys.maxsize)
        looked_at = [reasons.node_reasons(self._problem(node, unlimited)) for node in self._nodes()]
        return tuple(
            sorted(
                [*looked_at, *(reasons.refused_node(node, self.plans) for node in refused)],
                key=lambda r: r.node,
            )
        )


def _gave_up() -> Failed:
    return Failed(
        "gave up: the claims allow more combinations of devices than can be tried; "
        "ask for fewer requests, alternatives or constraints at once",
        gave_up=True,
    )


def _without(allowed: Callable[[str], bool] | None, refused: Collection[str]) -> Callable[[str], bool]:
    return lambda name: name not in refused and (allowed is None or allowed(name))
