"""Pods whose claims are allocated all or none: the workers of one training job, say.

Members are pods of one namespace that carry, themselves or on a claim that they use, the labels
``dra-driver.dev/group`` (a name) and ``dra-driver.dev/group-size`` (their number). What holds:

* No member is allocated, and none loses its gate, before all are there and all fit at the same time.
* A member that somebody else holds back by a scheduling gate counts as one that is not there yet.
* All allocations are decided in one step on one state of the cluster, so two groups never hold a part each.
* Where some are written and the rest cannot be (a refusal by the API server, a member that is deleted, a
  restart in between and no room afterwards), everything that gated members hold is given back; where the rest
  is merely missing, after ``--group-timeout``.
* Once all are allocated, the group has started. A member that fails later leaves the others alone: they keep
  running and keep their devices. A pod that takes its place (same labels) is allocated by itself as soon as
  the number of members is right again. Failed pods and pods that are being deleted do not count as members,
  pods that have succeeded do.
* With the annotation ``dra-driver.dev/group-domain`` (a node label) all members go to nodes of one value of
  the label: of those values that have room for all the one with the fewest nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from controller.allocate.assume_cache import AssumeCache, node_of
from controller.allocate.decisions import Decider, Proceed, Refuse, Wait, Write
from controller.allocate.placement import NodeUsage, is_finished
from controller.allocate.writer import Writer
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.errors import ApiError
from dra_driver.kube import EventRecorder, Informer
from dra_driver.ports import Clock
from dra_driver.resourceclaim import foreign_gates, held_by, is_gated, pod_claims
from dra_driver.structured import Budget

__all__ = ["GROUP_INDEX", "Gang", "GroupKey", "GroupProblem", "Groups", "groups_of"]

log = structlog.get_logger(__name__)

GROUP_INDEX: Final = "group"
LARGEST_GROUP: Final = 1024

GroupKey = tuple[str, str]


def groups_of(item: Pod | ResourceClaim) -> Iterable[GroupKey]:
    """Index function of pods and of claims: namespace and name of the group on the label."""
    name = _label(item.metadata, GROUP_LABEL)
    if name:
        yield (item.metadata.namespace, name)


def _label(meta: ObjectMeta, key: str) -> str:
    return (meta.labels or {}).get(key, "")


@dataclass(frozen=True, slots=True)
class Gang:
    """A group as it is now.

    Attributes:
        key: namespace and name.
        size: number of members that there must be.
        members: that count, in the order of their names.
        domain: a node label that is to have one value on all nodes of the group; empty: none.
    """

    key: GroupKey
    size: int
    members: tuple[Pod, ...]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """The labels make no sense."""

    key: GroupKey
    message: str


class Groups:
    """Finds the members of groups, decides for all of them, and writes for all of them."""

    def __init__(
        self,
        decider: Decider,
        assume_cache: AssumeCache,
        usage: NodeUsage,
        writer: Writer,
        recorder: EventRecorder,
        clock: Clock,
        *,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        users: Callable[[ResourceClaim], Iterable[Pod]],
        avoided: Callable[[Pod], set[str]],
        timeout: float = 30.0,
    ) -> None:
        """Connects the parts.

        Args:
            decider: for single pods.
            assume_cache: assumptions of the members decided first are seen by the others.
            usage: likewise for CPU, memory and pods.
            writer: of allocations.
            recorder: for Events.
            clock: for ``timeout``.
            pods: with the index ``GROUP_INDEX``.
            claims: with the index ``GROUP_INDEX``.
            users: pods that use a claim.
            avoided: nodes where kube-scheduler could not place a pod a short while ago.
            timeout: seconds for which members may hold devices while others of their group are missing.
        """
        self._timeout = timeout
        self._decider = decider
        self._assume_cache = assume_cache
        self._usage = usage
        self._writer = writer
        self._recorder = recorder
        self._clock = clock
        self._pods = pods
        self._claims = claims
        self._users = users
        self._avoided = avoided
        self._partial_since: dict[GroupKey, float] = {}
        # What was refused, and on what that rests: while it is the same, so is the answer.
        self._refused: dict[GroupKey, tuple[object, Refuse]] = {}

    # --- who is in it ---------------------------------------------------------------------------------------

    def of(self, pod: Pod) -> Gang | GroupProblem | None:
        """The group of a pod; None: it has none."""
        metas = [pod.metadata, *(c.metadata for c in self._claims_of(pod))]
        names = sorted({_label(m, GROUP_LABEL) for m in metas} - {""})
        if not names:
            return None
        key = (pod.metadata.namespace, names[0])
        if self._pods.number_by_index(GROUP_INDEX, key) > LARGEST_GROUP:
            return GroupProblem(key, f"group {key[1]} has more than {LARGEST_GROUP} pods")
        if len(names) > 1:
            return GroupProblem(key, f"the pod and its claims name several groups: {', '.join(names)}")
        members = self._members(key)
        sizes = {
            size
            for member in members
            for m in (member.metadata, *(c.metadata for c in self._claims_of(member)))
            if (size := _label(m, GROUP_SIZE_LABEL))
        }
        if len(sizes) != 1:
            found = ", ".join(sorted(sizes)) or "nothing"
            return GroupProblem(
                key, f"group {key[1]}: its members need one {GROUP_SIZE_LABEL}; they say {found}"
            )
        text = sizes.pop()
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST_GROUP:
            return GroupProblem(
                key, f"group {key[1]}: {GROUP_SIZE_LABEL} is {text!r}, expected 1 to {LARGEST_GROUP}"
            )
        if len(members) > int(text):
            return GroupProblem(
                key, f"group {key[1]} has {len(members)} pods, its {GROUP_SIZE_LABEL} is {text}"
            )
        domains = {
            domain
            for member in members
            for m in (member.metadata, *(c.metadata for c in self._claims_of(member)))
            if (domain := (m.annotations or {}).get(GROUP_DOMAIN_ANNOTATION, ""))
        }
        if len(domains) > 1:
            found = ", ".join(sorted(domains))
            return GroupProblem(
                key, f"group {key[1]}: its members name several {GROUP_DOMAIN_ANNOTATION}: {found}"
            )
        return Gang(key, int(text), members, domains.pop() if domains else "")

    def _members(self, key: GroupKey) -> tuple[Pod, ...]:
        found = {p.key: p for p in self._pods.by_index(GROUP_INDEX, key)}
        for claim in self._claims.by_index(GROUP_INDEX, key):
            found.update((p.key, p) for p in self._users(claim))
        return tuple(
            p
            for _, p in sorted(found.items())
            if p.status.phase != "Failed" and not p.metadata.deletion_timestamp
        )

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        keys = [used.key for used in pod_claims(pod) if used.key is not None]
        return [c for c in map(self._assume_cache.get, keys) if c is not None]

    # --- what to do -----------------------------------------------------------------------------------------

    def decide(
        self, gang: Gang, budget: Budget, changes: int = 0
    ) -> Wait | Proceed | Refuse | list[tuple[Pod, Write]]:
        """Decide for all members on one state. The answers of a list are assumed in the cache already.

        Args:
            gang: the group.
            budget: what the decision may cost, over all members, domains and orders together.
            changes: as for ``known_refusal``, which remembers the answer.

        Returns:
            ``Proceed``: every member is allocated as far as it concerns us. ``Wait``, ``Refuse``: for all.
        """
        missing = gang.size - len(gang.members)
        if missing > 0:
            reason = f"group {gang.key[1]}: {len(gang.members)} of {gang.size} pods are there"
            return self._incomplete(gang, reason)
        waiting = [p for p in gang.members if foreign_gates(p)]
        if waiting:
            reason = f"group {gang.key[1]}: {len(waiting)} of {gang.size} pods are {held_by(waiting)}"
            return self._incomplete(gang, reason)
        answer = self._anywhere(gang, budget)
        if isinstance(answer, Refuse):
            where = f" on nodes of one {gang.domain}" if gang.domain else ""
            text = f"group {gang.key[1]}, all {gang.size} pods together{where}: {answer.message}"
            refusal = Refuse(text, answer.claims, self._held(gang))
            # What was given up may be answered the next time, although nothing has changed.
            if not (refusal.undo or budget.exhausted or budget.cut):
                self._refused[gang.key] = self._rests_on(gang, changes), refusal
            return refusal
        held = self._held(gang) if isinstance(answer, list) else ()
        if isinstance(answer, list) and held and self._time_left(gang) <= 0:
            self._retract(answer)
            return Refuse(f"group {gang.key[1]} was not allocated as a whole in time", (), held)
        if not held and not isinstance(answer, Wait):
            self._partial_since.pop(gang.key, None)
        return answer

    def known_refusal(self, gang: Gang, changes: int) -> Refuse | None:
        """Return the answer of the last decision where it was a refusal that still holds.

        Each member of a group is looked at after each event of its own; only the first look costs a decision.

        Args:
            gang: the group.
            changes: another number whenever something has changed that may help a group.
        """
        known = self._refused.get(gang.key)
        if known is not None and known[0] == self._rests_on(gang, changes):
            return known[1]
        self._refused.pop(gang.key, None)
        return None

    def _rests_on(self, gang: Gang, changes: int) -> object:
        """Return what a refusal depends on, besides the members' claims, which cannot change."""
        members = [
            (p.metadata.uid, p.spec.tolerations, bool(foreign_gates(p)), sorted(self._avoided(p)))
            for p in gang.members
        ]
        return changes, gang.size, gang.domain, members

    def _anywhere(self, gang: Gang, budget: Budget) -> Wait | Proceed | Refuse | list[tuple[Pod, Write]]:
        """Return the first answer of a domain; that of the last one that was tried where none has one."""
        answer: Wait | Proceed | Refuse | list[tuple[Pod, Write]] = Refuse(
            f"no node has the label {gang.domain}"
        )
        by_demand = self._by_demand(gang.members)
        orders = (by_demand,) if by_demand == gang.members else (by_demand, gang.members)
        for within in self._domains(gang):
            for order in orders:
                answer = self._try(order, within, budget)
                if not isinstance(answer, Refuse) or budget.exhausted:
                    return answer
        return answer

    def _domains(self, gang: Gang) -> list[set[str] | None]:
        """Sets of nodes of which one must hold the whole group, the smallest first; None: all nodes."""
        if not gang.domain:
            return [None]
        by_value = self._decider.nodes_by_label(gang.domain)
        held = {
            node
            for pod in gang.members
            for claim in self._claims_of(pod)
            if claim.status.allocation is not None and (node := node_of(claim.status.allocation)) is not None
        }
        # Members that run already, or whose allocation was written before, decide for the others.
        fitting = ((len(nodes), value) for value, nodes in by_value.items() if held <= nodes)
        return [by_value[value] for _, value in sorted(fitting)]

    def _incomplete(self, gang: Gang, reason: str) -> Wait | Refuse:
        held = self._held(gang)
        if not held:
            self._partial_since.pop(gang.key, None)
            return Wait(reason)
        left = self._time_left(gang)
        return Wait(reason, poll=left) if left > 0 else Refuse(reason, (), held)

    def _time_left(self, gang: Gang) -> float:
        """Seconds for which a part of the group may go on holding devices."""
        now = self._clock.monotonic()
        return self._partial_since.setdefault(gang.key, now) + self._timeout - now

    def _held(self, gang: Gang) -> tuple[ResourceClaim, ...]:
        """What members that have not started hold: allocations that nobody has reserved yet."""
        return tuple(
            {
                claim.metadata.uid: claim
                for pod in gang.members
                if is_gated(pod)
                for claim in self._claims_of(pod)
                if claim.status.allocation is not None
                and not claim.status.reserved_for
                and not self._assume_cache.in_flight(claim)
                and self._decider.is_ours(claim.status.allocation)
            }.values()
        )

    def forget(self, key: GroupKey) -> None:
        """The last member is gone."""
        if not self._members(key):
            self._partial_since.pop(key, None)
            self._refused.pop(key, None)

    def _by_demand(self, members: Sequence[Pod]) -> tuple[Pod, ...]:
        """Those that ask for most first: what is left over is then of more use to the others."""

        def demand(pod: Pod) -> int:
            return sum(
                (r.exactly.count or 8) if r.exactly is not None else 1
                for claim in self._claims_of(pod)
                for r in claim.spec.devices.requests or ()
            )

        return tuple(sorted(members, key=lambda p: (-demand(p), p.key)))

    def _try(
        self, members: Sequence[Pod], within: set[str] | None, budget: Budget
    ) -> Wait | Proceed | Refuse | list[tuple[Pod, Write]]:
        writes: list[tuple[Pod, Write]] = []
        assumed: dict[Uid, ResourceClaim] = {}
        answer: Wait | Refuse | None = None
        for pod in members:
            if is_finished(pod):
                continue
            decision = self._decider.decide(pod, self._avoided(pod), assumed, within, budget)
            if isinstance(decision, Wait | Refuse):
                answer = decision
                break
            if isinstance(decision, Write):
                writes.append((pod, decision))
                self._usage.place(pod, decision.node)
                for claim, allocation in decision.allocations:
                    self._assume_cache.assume(claim, allocation)
                    assumed[claim.metadata.uid] = _with(claim, allocation)
        if answer is None:
            return writes or Proceed()
        self._retract(writes)
        return answer

    def _retract(self, writes: Sequence[tuple[Pod, Write]]) -> None:
        """What was assumed while trying is forgotten; nothing of it was written."""
        self._assume_cache.retract([c for _, w in writes for c, _ in w.allocations])
        for pod, _ in writes:
            self._usage.not_placed(pod, pod)

    async def write(self, gang: Gang, writes: Sequence[tuple[Pod, Write]]) -> None:
        """Writes all allocations. Where one is refused, the next decision completes the group or gives back.

        Raises:
            ApiError: of the first one that was refused.
        """
        written: list[ResourceClaim] = []
        problems: list[ApiError] = []

        async def one(pod: Pod, claim: ResourceClaim, allocation: AllocationResult) -> None:
            try:
                await self._writer.allocate(claim, allocation, pod if pod.spec.node_name else None)
            except ApiError as e:
                problems.append(e)
            else:
                written.append(claim)

        async with asyncio.TaskGroup() as group:
            for pod, decision in writes:
                for claim, allocation in decision.allocations:
                    group.create_task(one(pod, claim, allocation))
        log.info(
            "group allocated" if not problems else "group could not be allocated",
            group="/".join(gang.key),
            pods=len(writes),
            claims=len(written),
        )
        if problems:
            for pod, _ in writes:
                self._usage.not_placed(pod, self._pods.get(pod.key))
            raise problems[0]
        for pod, decision in writes:
            message = f"allocated on node {decision.node}, with all {gang.size} pods of group {gang.key[1]}"
            self._recorder.event(PODS, pod, "Normal", "GroupAllocated", message)


def _with(claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim:
    status = msgspec.structs.replace(claim.status, allocation=allocation)
    return msgspec.structs.replace(claim, status=status)
