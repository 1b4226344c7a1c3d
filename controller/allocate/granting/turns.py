"""Which pod is granted devices next, and for how many pods of one namespace something is at a time.

Whoever may make pods can make some that kube-scheduler never places with their grants, and others when it is
done with these. Nobody else gets what is granted meanwhile. So of one priority the namespace with the fewest
grants comes next, and one of which too many grants are not used has fewer at a time, down to one, until they
are used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.allocate.decide import Rank
from controller.allocate.granting.grant import Ending
from dra_driver.api.meta import ObjectKey

__all__ = ["GrantTurns"]

# Of which the pod, or kube-scheduler, is the cause. A wrong guess about devices is ours.
_UNUSED: Final = (Ending.TIMEOUT, Ending.REFUSED, Ending.GONE)


class GrantTurns:
    """Pods that wait until there is room for another grant.

    Args:
        most: pods that have grants at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ranks: dict[ObjectKey, Rank] = {}
        # For so many pods a namespace may have grants. It begins with more than there are at a time, so that
        # a pod that is deleted now and then costs it nothing.
        self._credit = 2 * most
        self._credits: dict[str, int] = {}

    def wait(self, pod: ObjectKey, rank: Rank) -> None:
        """Have a pod wait."""
        self._ranks[pod] = rank

    def forget(self, pod: ObjectKey) -> bool:
        """Have a pod wait no longer; return whether it did."""
        return self._ranks.pop(pod, None) is not None

    def ended(self, namespace: str, ending: Ending) -> None:
        """Take note of how the grants for a pod of a namespace have ended."""
        credit = self._credits.pop(namespace, self._credit)
        if ending is Ending.ALLOCATED:
            credit *= 2
        elif ending in _UNUSED:
            credit = max(1, credit - 1)
        if credit < self._credit:
            self._credits[namespace] = credit

    def may(self, namespace: str, held: Mapping[str, int]) -> bool:
        """Return whether another pod of a namespace may have grants, as far as that depends on its own.

        Args:
            namespace: which one.
            held: for how many pods of each namespace something is granted.
        """
        return held.get(namespace, 0) < self._credits.get(namespace, self._credit)

    def has_room(self, pod: ObjectKey, rank: Rank, held: Mapping[str, int]) -> bool:
        """Return whether it is the turn of a pod: those that wait and come before it are counted."""
        place = _place(rank, held)
        before = sum(_place(one, held) < place for key, one in self._next(held) if key != pod)
        return self.may(pod.namespace, held) and sum(held.values()) + before < self._most

    def first(self, held: Mapping[str, int]) -> ObjectKey | None:
        """Return the pod that comes next; None where none waits that may have grants."""
        following = ((_place(rank, held), key) for key, rank in self._next(held))
        return min(following, default=(None, None))[1]

    def _next(self, held: Mapping[str, int]) -> list[tuple[ObjectKey, Rank]]:
        return [(key, rank) for key, rank in self._ranks.items() if self.may(key.namespace, held)]


def _place(rank: Rank, held: Mapping[str, int]) -> tuple[int, int, Rank]:
    return rank.level, held.get(rank.key.namespace, 0), rank
