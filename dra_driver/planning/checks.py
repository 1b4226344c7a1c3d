"""Questions to the allocator on changed clusters: without some holders, with more nodes, with other requests.

Every answer of a plan comes from here. Time is limited by the clock that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from dra_driver.api.resource import AllocationResult
from dra_driver.ownership import is_controller_taint
from dra_driver.planning.holdings import Holdings, NodeHoldings
from dra_driver.planning.question import PlannedCluster, Workload, units_of, want_room
from dra_driver.structured import (
    Allocated,
    Budget,
    DeviceEntry,
    DoesNotFit,
    Failed,
    GroupAllocated,
    GroupMember,
    GroupRefused,
    Level,
    Snapshot,
    allocate,
    allocate_group,
    emptied,
)

__all__ = ["Answer", "Checks", "OutOfTime", "allocated_with", "less_room"]

Answer = GroupAllocated | GroupRefused | Failed
# More than any question needs in the seconds that it has.
_STEPS = 20_000_000
_PER_NODE = 30_000


class OutOfTime(Exception):
    """The plan has used up its seconds."""


class Checks:
    """The allocator on one cluster and what it could become.

    Args:
        cluster: as it is.
        clock: seconds from any start.
        deadline: by the clock.
        progress: is given a word about what is being done, now and then.

    Attributes:
        unsure: whether an answer was "gave up" since this was last set to False.
        asked: number of questions so far.
    """

    def __init__(
        self,
        cluster: PlannedCluster,
        clock: Callable[[], float],
        deadline: float,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cluster = cluster
        self.unsure = False
        self.asked = 0
        self.progress = progress
        self._clock = clock
        self._deadline = deadline
        self._holdings = Holdings(cluster.snapshot, [h.claims for h in cluster.holders], cluster.kept)

    def on(self, cluster: PlannedCluster) -> Checks:
        """Return the same questions about another cluster, with the same deadline."""
        return Checks(cluster, self._clock, self._deadline, self.progress)

    @contextmanager
    def share(self, part: float) -> Iterator[None]:
        """Let what is asked inside have only a part of the seconds that are left."""
        before = self._deadline
        now = self._clock()
        self._deadline = min(before, now + part * max(0.0, before - now))
        try:
            yield
        finally:
            self._deadline = before

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return max(0.0, self._deadline - self._clock())

    @cached_property
    def empty(self) -> Snapshot:
        """The cluster with nothing allocated."""
        return emptied(self.cluster.snapshot)

    @cached_property
    def devices(self) -> Sequence[DeviceEntry]:
        """All devices of the cluster, each once."""
        snapshot = self.cluster.snapshot
        found = {
            entry.id: entry for n in snapshot.nodes for p in snapshot.view(n).pools for entry in p.devices
        }
        return tuple(found.values())

    def on_node(self, name: str) -> NodeHoldings:
        """Return what is held of the devices of a node."""
        return self._holdings.on_node(name)

    # --- changed clusters -----------------------------------------------------------------------------------

    def without(self, freed: Collection[int]) -> Snapshot:
        """Return the cluster as it is when some holders have gone."""
        if freed and len(freed) == len(self.cluster.holders) and not self.cluster.kept:
            return self.empty
        return self._holdings.without(freed)

    def free(self, freed: Collection[int]) -> Mapping[str, tuple[int, ...]]:
        """Return what is left of nodes besides devices when some holders have gone."""
        left = dict(self.cluster.free)
        for i in freed:
            for node, amounts in self.cluster.holders[i].gives.items():
                if node in left:
                    left[node] = tuple(map(sum, zip(left[node], amounts, strict=True)))
        return left

    # --- questions ------------------------------------------------------------------------------------------

    def solve(self, workload: Workload, freed: Collection[int] = ()) -> Answer:
        """Return where the workload goes when some holders have gone.

        Raises:
            OutOfTime: the deadline has passed.
        """
        return self.ask(self.without(freed), workload.members, workload.levels, self._room(workload, freed))

    def _room(self, workload: Workload, freed: Collection[int]) -> Mapping[str, tuple[int, ...]] | None:
        return self.free(freed) if self.cluster.free and want_room(workload.members) else None

    def ask(
        self,
        snapshot: Snapshot,
        members: Sequence[GroupMember],
        levels: Sequence[Level] = (),
        free: Mapping[str, tuple[int, ...]] | None = None,
        *,
        brief: bool = False,
    ) -> Answer:
        """Ask the allocator; the arguments are those of ``allocate_group``.

        Raises:
            OutOfTime: the deadline has passed.
        """
        left = self.seconds_left
        if left <= 0:
            raise OutOfTime
        if free is not None:
            # What a pod does not ask for does not matter, however little there is of it.
            free = {
                n: tuple(max(0, a) for a in of) if min(of, default=0) < 0 else of for n, of in free.items()
            }
        self.asked += 1
        budget = Budget(_STEPS, _PER_NODE, seconds=left, clock=self._clock)
        if len(members) == 1 and not levels and free is None:
            answer = self._one(snapshot, members[0], budget)
        else:
            answer = allocate_group(
                snapshot,
                members,
                levels=levels,
                free=free,
                ignore_taint=is_controller_taint,
                budget=budget,
                brief=brief,
            )
        if isinstance(answer, Failed) and answer.gave_up:
            if self.seconds_left <= 0:
                raise OutOfTime
            self.unsure = True
        return answer

    def with_left_out(self, workload: Workload, answer: Answer, freed: Collection[int] = ()) -> Answer:
        """Return a refusal whose reasons name the pools that are left out; any other answer as it is.

        So is a refusal for which no time is left.
        """
        left_out, left = self.cluster.left_out, self.seconds_left
        if left_out is None or left <= 0:
            return answer
        if not isinstance(answer, GroupRefused) or not isinstance(answer.first, DoesNotFit):
            return answer
        first = units_of(workload.members)[0]
        named = allocate(
            self.without(freed).with_slices(left_out.slices),
            first.claims,
            nodes=first.nodes,
            ignore_taint=is_controller_taint,
            pools=left_out.pools,
            withheld=left_out.why,
            budget=Budget(_STEPS, _PER_NODE, seconds=left, clock=self._clock),
        )
        return replace(answer, first=named) if isinstance(named, DoesNotFit) else answer

    def fits(
        self,
        snapshot: Snapshot,
        members: Sequence[GroupMember],
        levels: Sequence[Level] = (),
        free: Mapping[str, tuple[int, ...]] | None = None,
    ) -> bool:
        """Return whether all members fit. As for ``ask``."""
        return isinstance(self.ask(snapshot, members, levels, free, brief=True), GroupAllocated)

    def _one(self, snapshot: Snapshot, member: GroupMember, budget: Budget) -> Answer:
        outcome = allocate(
            snapshot, member.claims, nodes=member.nodes, ignore_taint=is_controller_taint, budget=budget
        )
        match outcome:
            case Allocated():
                return GroupAllocated((outcome,))
            case DoesNotFit():
                return GroupRefused(1, 0, first=outcome)
            case Failed():
                return outcome


def allocated_with(snapshot: Snapshot, members: Iterable[GroupMember], answer: GroupAllocated) -> Snapshot:
    """Return the cluster after the members got what the answer says."""
    made: dict[str, AllocationResult] = {}
    for member, got in zip(members, answer.members, strict=True):
        if got is not None:
            for claim, result in zip(member.claims, got.results, strict=True):
                if claim.status.allocation is None:
                    made[str(claim.key)] = result
    return replace(snapshot, allocated=snapshot.allocated.with_allocations(made.items()))


def less_room(
    free: Mapping[str, tuple[int, ...]], members: Sequence[GroupMember], answer: GroupAllocated
) -> dict[str, tuple[int, ...]]:
    """Return what is left besides devices when members are where the answer says."""
    left = dict(free)
    for member, got in zip(members, answer.members, strict=True):
        if got is not None and got.node in left and member.needs:
            left[got.node] = tuple(a - b for a, b in zip(left[got.node], member.needs, strict=True))
    return left
