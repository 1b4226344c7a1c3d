"""Where the members of a group that wait for devices can have them: all of them, or as many as suffice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from controller.allocate.decide.groups.group_bounds import Crowd, missing_in
from controller.allocate.decide.groups.group_levels import described, node_sets, part_to_fill, pinned
from controller.allocate.decide.groups.group_members import Standing
from controller.allocate.decide.messages import GroupWrite, PodID, Proceed, Wait, Write
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.pods.earlier_users import EarlierUsers
from controller.allocate.decide.pods.questions import (
    NoFit,
    Question,
    Trial,
)
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.state.claims import ClaimView, node_of
from controller.allocate.decide.state.objects import claims_of, is_finished
from dra_driver.api.core import Pod
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.structured import Budget, Failed, GroupRefused, GroupTerms, Level

__all__ = ["Asking", "GroupSearch"]

_Asked = tuple[Pod, Question]
# Of a group with more kinds of members the others wait for those before them.
_MOST_KINDS: Final = 8


@dataclass(frozen=True, slots=True)
class Asking:
    """Members of a group that need devices.

    Attributes:
        standing: of the group.
        pods: the members, in the order in which they get devices if not all can.
        least: how many of them have to.
    """

    standing: Standing
    pods: tuple[Pod, ...]
    least: int

    @classmethod
    def of(cls, standing: Standing) -> Asking:
        """Return what the group as it is now asks for."""
        pending = tuple(standing.pending)
        return cls(standing, pending, max(1, standing.gang.terms.least - len(standing.served)))

    def others(self, signature: Callable[[Pod], bytes]) -> list[Asking]:
        """Return what else may join an elastic group that has started, if its first member cannot.

        Those are the members that ask for something else, each kind by itself.

        Args:
            signature: gives what a member asks for.
        """
        if not self.standing.has_started or self.terms.parts is not None:
            return []
        kinds: dict[bytes, list[Pod]] = {}
        for pod in self.pods:
            kinds.setdefault(signature(pod), []).append(pod)
        return [Asking(self.standing, tuple(pods), 1) for pods in list(kinds.values())[1:_MOST_KINDS]]

    @property
    def terms(self) -> GroupTerms:
        """What the group asks for."""
        return self.standing.gang.terms

    @property
    def domain(self) -> str:
        """The levels that all members must share, for people; empty if there is none."""
        return described(self.terms.levels)


class GroupSearch:
    """Looks for devices of groups.

    Args:
        claims: what is taken.
        decider: for single pods.
        usage: while members are tried one after the other, they count where they would go.
        avoided: nodes that are left out for a pod at a time.
        earlier: pods that kube-scheduler looks at first.
    """

    def __init__(
        self,
        claims: ClaimView,
        decider: PodDecider,
        usage: NodeUsage,
        avoided: Callable[[Pod, float], Collection[str]],
        earlier: EarlierUsers,
    ) -> None:
        self._claims = claims
        self._decider = decider
        self._usage = usage
        self._avoided = avoided
        self._earlier = earlier

    def anywhere(
        self, asking: Asking, of: Sequence[Crowd], budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Return the answer in the best domain, if it is known to have devices enough.

        Args:
            asking: the members that need devices.
            of: those of them that are known to be alike.
            budget: what the answer may cost.
            now: the time.
        """
        domains = missing_in(of, self.domains(asking))
        if not domains:
            return NoFit(f"no node has the label {asking.domain}", new_node=True)
        spare = len(asking.pods) - asking.least
        fitting = [nodes for nodes, missing in domains if missing <= spare]
        if not fitting:
            return self._too_little_room(asking, of)
        asked = self._questions(asking, now)
        if not isinstance(asked, list):
            return asked
        if any(question.with_others for _, question in asked):
            return self._one_by_one(asking, fitting, budget, now)
        if not asked:
            return Proceed()
        answer = self._together(asking, asked, fitting, budget)
        if isinstance(answer, GroupWrite) and not self._volumes_suit(asking, answer):
            # Together they would attach too much to one node, or bind one volume twice.
            return self._one_by_one(asking, fitting, budget, now)
        return answer

    def _volumes_suit(self, asking: Asking, answer: GroupWrite) -> bool:
        """Return whether the volumes of all members can be used where they would go."""
        members = {pod.metadata.uid: pod for pod in asking.pods}
        with self._usage.placing() as place:
            for pod_id, write in answer.writes:
                pod = members[pod_id.uid]
                if pod.spec.node_name or not pod.spec.volumes:
                    continue
                if not self._decider.volumes_suit(pod, write.node):
                    return False
                place(pod, write.node)
        return True

    def domains(self, asking: Asking) -> list[set[str] | None]:
        """Return sets of nodes of which one must hold the group, smallest first; None for all nodes."""
        if not asking.terms.levels:
            return [None]
        return node_sets(asking.terms.levels, self._decider.labels(), set(self.held(asking)))

    def held(self, asking: Asking) -> Counter[str]:
        """Return the nodes of the group's allocations, with the number of members that have one there."""
        return Counter(node for pod in asking.standing.gang.members for node in self._nodes_of(pod))

    def _questions(self, asking: Asking, now: float) -> list[_Asked] | Wait | NoFit:
        """Return what each member asks for; those that an elastic group can do without may be left out."""
        asked: list[_Asked] = []
        problem: Wait | NoFit | None = None
        spare = len(asking.pods) - asking.least
        for pod in asking.pods:
            found: object = self._decider.question(
                pod, self._avoided(pod, now), earlier=self._earlier.of(pod, now)
            )
            if isinstance(found, Question) and not found.placement.nodes:
                found = NoFit(found.placement.summary(), found.ours, new_node=True)
            if isinstance(found, Question):
                asked.append((pod, found))
            elif isinstance(found, Wait | NoFit):
                spare -= 1
                problem = problem or found
                if spare < 0:
                    return problem
        return problem if problem is not None and not asked else asked

    def _together(
        self,
        asking: Asking,
        asked: Sequence[_Asked],
        fitting: Sequence[set[str] | None],
        budget: Budget,
    ) -> NoFit | GroupWrite:
        """Decide for all members that ask for something as one question."""
        part = self._part(asking, asked)
        if isinstance(part, NoFit):
            return part
        asked, levels, least = part
        within = None if None in fitting else set[str]().union(*(nodes for nodes in fitting if nodes))
        # One object for all members that can go to the same nodes: by that they are known to be alike.
        allowed: dict[int, Set[str]] = {}
        for _, question in asked:
            nodes = question.placement.nodes
            if id(nodes) not in allowed:
                allowed[id(nodes)] = nodes if within is None else nodes & within
        outcome = self._decider.solve_group(
            [(pod, question, allowed[id(question.placement.nodes)]) for pod, question in asked],
            levels,
            min(least, len(asked)),
            budget,
        )
        waiting = _claims(asked)
        if isinstance(outcome, GroupRefused):
            return NoFit(outcome.summary, waiting, new_node=True)
        if isinstance(outcome, Failed):
            return NoFit(outcome.message, waiting, gave_up=outcome.gave_up)
        left = {c.metadata.uid for c in waiting}
        writes: list[tuple[PodID, Write]] = []
        for (pod, question), answer in zip(asked, outcome.members, strict=True):
            if answer is None:
                continue  # an elastic group does without
            # A claim that members share is written with the first of them.
            results = zip(question.claims, answer.results, strict=True)
            mine = tuple((c, r) for c, r in results if c.metadata.uid in left)
            left -= {c.metadata.uid for c, _ in mine}
            if mine:
                writes.append((PodID(pod.key, pod.metadata.uid), Write(answer.node, mine)))
        return GroupWrite(tuple(writes))

    # --- domains --------------------------------------------------------------------------------------------

    def _part(
        self, asking: Asking, asked: Sequence[_Asked]
    ) -> tuple[Sequence[_Asked], list[Level], int] | NoFit:
        """Return the members that are decided at once, the levels that they share, and how many suffice.

        Those are all, but where so many members share each domain: then parts that are not complete come
        first, one after the other.
        """
        members = asking.standing.gang.members
        held = {level: set(self._values(members, level)) for level in asking.terms.levels if not level.count}
        levels = pinned(asking.terms.levels, held)
        level = asking.terms.parts
        if level is None:
            return asked, levels, asking.least
        others = [at for at in levels if not at.count]
        served = [pod for pod in members if pod.metadata.uid in asking.standing.served]
        lacking = part_to_fill(level, Counter(self._values(served, level)))
        if lacking is not None:
            value, number = lacking
            if len(asked) < number:
                return NoFit(
                    f"{level.name} {value} lacks {number} members, {len(asked)} are there", _claims(asked)
                )
            return asked[:number], [*others, replace(level, count=0, value=value)], number
        whole = len(asked) - len(asked) % level.count
        if not whole:
            text = f"{len(asked)} members are there of the {level.count} that share each {level.name}"
            return NoFit(text, _claims(asked))
        parts = -(-min(asking.least, whole) // level.count)
        return asked[:whole], levels, parts * level.count

    def _values(self, members: Sequence[Pod], level: Level) -> list[str]:
        """Return the domains of members that have devices, as far as they are known, one for each of them."""
        found: list[str] = []
        for pod in members:
            if level.attribute:
                values = self._decider.attribute_values(self._allocations(pod), level.attribute)
            else:
                nodes = self._nodes_of(pod)
                if level.count and is_finished(pod):
                    nodes = {pod.spec.node_name}  # it is a part of those that share the domain with it
                labels = (self._decider.labels_of(node) for node in nodes)
                values = {of[level.label] for of in labels if level.label in of}
            if len(values) == 1:
                found.append(values.pop())
        return found

    def _nodes_of(self, pod: Pod) -> set[str]:
        """Return the nodes of a member's allocations."""
        return {node for a in self._allocations(pod) if (node := node_of(a)) is not None}

    def _allocations(self, pod: Pod) -> list[AllocationResult]:
        claims = (self._claims.get(key) for key in claims_of(pod))
        return [c.status.allocation for c in claims if c is not None and c.status.allocation is not None]

    # --- refusals -------------------------------------------------------------------------------------------

    def _too_little_room(self, asking: Asking, of: Sequence[Crowd]) -> NoFit:
        """Return the refusal where no domain has enough devices: of the widest level that fails."""
        claims = (self._claims.get(key) for pod in asking.pods for key in claims_of(pod))
        waiting = {c.metadata.uid: c for c in claims if c is not None and c.status.allocation is None}
        levels = [at for at in asking.terms.levels if at.required and at.label and not at.count]
        spare, held = len(asking.pods) - asking.least, set(self.held(asking))
        where, best, missing = "the cluster does not have", "", 0
        for number in range(len(levels) + 1):
            sets = node_sets(levels[:number], self._decider.labels(), held)
            nodes, missing = min(missing_in(of, sets), key=lambda found: found[1])
            if number:
                labels = self._decider.labels_of(min(nodes or {""}))
                where = f"no nodes of one {described(levels[:number])} have"
                best = f" ({'/'.join(labels.get(at.label, '') for at in levels[:number])})"
            if missing > spare:
                break
        if missing <= spare:  # the budget did not suffice to tell
            text = f"{where} free devices for {asking.least} of them"
        elif asking.least == len(asking.pods):
            text = f"{where} free devices for all of them, at best for all but {missing}{best}"
        else:
            most = len(asking.pods) - missing
            text = f"{where} free devices for {asking.least} of them, at best for {most}{best}"
        return NoFit(text, tuple(waiting.values()), new_node=True)

    # --- members with claims of other drivers ---------------------------------------------------------------

    def _one_by_one(
        self, asking: Asking, fitting: Sequence[set[str] | None], budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Decide for the members one after the other: some have claims of other drivers as well.

        Their nodes must suit those, which is known for single pods only.
        """
        answer: Wait | Proceed | NoFit | GroupWrite = Proceed()
        levels = asking.terms.levels
        unknown = next((at for at in levels if at.required and (at.attribute or at.count)), None)
        if unknown is not None:
            what = f"{unknown.name} of devices" if unknown.attribute else f"{unknown.name} in parts"
            return NoFit(f"members with claims of other drivers cannot be asked to share {what}")
        by_demand = self._by_demand(asking.pods)
        # The first members of an elastic group come first.
        spare = asking.least < len(asking.pods)
        orders = (asking.pods,) if spare or by_demand == asking.pods else (by_demand, asking.pods)
        for within in fitting:
            for order in orders:
                answer = self._try(order, asking.least, within, budget, now)
                if not isinstance(answer, NoFit) or budget.exhausted:
                    return answer
        return answer

    def _by_demand(self, members: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return the members, those that ask for most first: the others can use what is left over."""

        def demand(pod: Pod) -> int:
            claims = (self._claims.get(key) for key in claims_of(pod))
            return sum(
                (r.exactly.count or 8) if r.exactly is not None else 1
                for claim in claims
                if claim is not None
                for r in claim.spec.devices.requests or ()
            )

        return tuple(sorted(members, key=lambda p: (-demand(p), p.key)))

    def _try(
        self, members: Sequence[Pod], least: int, within: set[str] | None, budget: Budget, now: float
    ) -> Wait | Proceed | NoFit | GroupWrite:
        """Decide for the members in this order, each as if the answers before it had been written."""
        writes: list[tuple[Pod, Write]] = []
        trial = Trial(self._decider.taken)
        with self._usage.placing() as place:
            for pod in members:
                if is_finished(pod):
                    continue
                avoid = self._avoided(pod, now)
                decision = self._decider.decide(
                    pod,
                    budget,
                    avoid,
                    earlier=self._earlier.of(pod, now),
                    trial=trial,
                    within=within,
                )
                if isinstance(decision, Wait | NoFit):
                    if len(writes) >= least:
                        break
                    return decision
                if isinstance(decision, Write):
                    writes.append((pod, decision))
                    trial.add(decision)
                    place(pod, decision.node)
        found = tuple((PodID(pod.key, pod.metadata.uid), write) for pod, write in writes)
        return GroupWrite(found) if found else Proceed()


def _claims(asked: Sequence[_Asked]) -> tuple[ResourceClaim, ...]:
    return tuple({c.metadata.uid: c for _, question in asked for c in question.ours}.values())
