"""Gated members of groups that make no sense, and the devices that they were given before.

The gate of such a pod stays, so it would hold its devices for ever. It keeps them for as long as a part of a
group may, since its labels may be put right, or its PodGroup may come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from controller.allocate.decide.groups.group_members import Gang, GroupProblem
from controller.allocate.decide.messages import Wait
from controller.allocate.decide.state.objects import CLAIM_INDEX, Objects, is_finished
from dra_driver.api.core import Pod
from dra_driver.api.resource import ResourceClaim

__all__ = ["WrongGroups"]

# Of a claim; where more pods use it, it stays.
_MOST_USERS: Final = 16


class WrongGroups:
    """Says what pods whose groups are wrong give back.

    Args:
        seconds: for which they keep what they have.
        pods: with the index ``CLAIM_INDEX``.
        group_of: the group of a pod, or what is wrong with it.
    """

    def __init__(
        self, seconds: float, pods: Objects[Pod], group_of: Callable[[Pod], Gang | GroupProblem | None]
    ) -> None:
        self._seconds = seconds
        self._pods = pods
        self._group_of = group_of
        self._since: dict[str, float] = {}  # UID of a pod → since when it has been known to hold devices

    def decide(
        self, pod: Pod, problem: GroupProblem, held: Sequence[ResourceClaim], now: float
    ) -> Wait | tuple[ResourceClaim, ...]:
        """Return the claims that a pod gives back; ``Wait`` while it may keep them, or may be right soon.

        Args:
            pod: gated, where it holds anything.
            problem: of its group.
            held: its claims that are allocated and may be deallocated.
            now: the time.
        """
        uid = pod.metadata.uid
        own = tuple(claim for claim in held if self._is_for_wrong_pods(claim, pod))
        if not own:
            self._since.pop(uid, None)
            return Wait(problem.message) if problem.passing else ()
        left = self._since.setdefault(uid, now) + self._seconds - now
        return Wait(problem.message, left) if left > 0 else own

    def forget(self, pod: Pod) -> None:
        """Forget a pod that has ended."""
        self._since.pop(pod.metadata.uid, None)

    def _is_for_wrong_pods(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether no pod in order uses a claim: that one gets its turn with it."""
        users = (p for p in self._pods.each(CLAIM_INDEX, claim.key) if not is_finished(p))
        others = (p for p in users if p.metadata.uid != pod.metadata.uid)
        found = list(itertools.islice(others, _MOST_USERS + 1))
        return len(found) <= _MOST_USERS and all(isinstance(self._group_of(p), GroupProblem) for p in found)
