"""Which of the pods that wait until kube-scheduler has less to do comes next."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from controller.allocate.decide import Rank
from dra_driver.api.meta import ObjectKey

__all__ = ["Turns"]


class Turns:
    """Pods that wait, by namespace.

    Higher priorities go first. Among pods of one priority namespaces take turns, and within a namespace pods
    go by their ranks.
    """

    def __init__(self) -> None:
        # The namespace that was not served for longest is the first.
        self._waiting: OrderedDict[str, dict[ObjectKey, Rank]] = OrderedDict()

    def wait(self, pod: ObjectKey, rank: Rank) -> None:
        """Have a pod wait."""
        self._waiting.setdefault(pod.namespace, {})[pod] = rank

    def forget(self, pod: ObjectKey) -> None:
        """Have a pod wait no longer."""
        pods = self._waiting.get(pod.namespace, {})
        if pods.pop(pod, None) is not None and not pods:
            del self._waiting[pod.namespace]

    def take(self, own: Callable[[str], int], room: int) -> list[ObjectKey]:
        """Return the pods whose turn it is; they wait no longer.

        Args:
            own: for how many pods of a namespace there is room however many there are of others.
            room: for how many pods there is room, those of ``own`` included.
        """
        found: list[ObjectKey] = []
        for namespace in list(self._waiting):
            for pod in self._first(namespace, own(namespace)):
                found.append(pod)
                self.forget(pod)
        left = room - len(found)
        if left <= 0:
            return found
        ranked = [heapq.nsmallest(left, pods.values()) for pods in self._waiting.values()]
        # What has a turn: its level, when its turn is, and which of its namespace it is.
        turns = [(ranks[0].level, turn, ranks, 0) for turn, ranks in enumerate(ranked)]
        heapq.heapify(turns)
        turn = len(turns)
        while turns and left > 0:
            _, _, ranks, place = heapq.heappop(turns)
            pod = ranks[place].key
            found.append(pod)
            self.forget(pod)
            if pod.namespace in self._waiting:
                self._waiting.move_to_end(pod.namespace)
            if place + 1 < len(ranks):
                heapq.heappush(turns, (ranks[place + 1].level, turn, ranks, place + 1))
            turn, left = turn + 1, left - 1
        return found

    def _first(self, namespace: str, number: int) -> list[ObjectKey]:
        return [rank.key for rank in heapq.nsmallest(max(0, number), self._waiting[namespace].values())]
