"""What this process knows about each pod beyond its object: one record per pod, forgotten with the pod.

It is not written anywhere, and begins anew with each process. Whatever a part has to remember about a pod is
a field or a mark here, so that nothing of a pod is left when it is gone, and one place says what there is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from controller.allocate.decide import PodID
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.kube import Handler, Informer

__all__ = ["Mark", "PodRecord", "PodRecords"]


class Mark(enum.Enum):
    """Something that is true of a pod until it is cleared."""

    LEFT_TO_SCHEDULER = "left to kube-scheduler"
    """Its claims are not allocated, and not ours to allocate; they may become that."""
    LOST_TO_SCHEDULER = "deallocated by kube-scheduler"
    """kube-scheduler has deallocated a claim of it: its group is to be looked at."""
    LACKS_VOLUMES = "lacks volumes"
    """It can be placed nowhere because of its volumes."""
    SEEN_BOUND = "seen being bound"
    """It has claims, and was seen being bound. Only kube-scheduler can do that, while anybody can make a pod
    with a node. One that was bound while no controller ran waits its turn."""
    WITHOUT_DEVICES = "bound without devices"
    """It was seen being bound, or was bound already, when its claims were not allocated."""
    BEHIND = "to be looked at later"
    """It is looked at after the pods that wait before it."""
    HAS_WAITED = "has waited for those before it"
    """It has been looked at after them, and must not wait for them again."""
    UNGATED = "gate removed"
    """Our scheduling gate has been removed, which the watch may not have shown yet."""
    REFUSAL_REPORTED = "refusal reported"
    """An Event says that its claims cannot be allocated."""
    INDEX_REPORTED = "index reported"
    """An Event says that an index is being prepared for it."""


@dataclass(slots=True, eq=False)
class PodRecord:
    """What is known about one pod.

    Attributes:
        pod: which one.
        first_seen: when it was first looked at while it needed devices; None: it has not been, or has got
            them since.
        nomination_left: since when it has had no devices although kube-scheduler has left its nomination as
            it was; None: that is not so.
        displaced: number of pods that have lost their devices because it is bound without any.

    All times are monotonic, in seconds.
    """

    pod: PodID
    first_seen: float | None = None
    nomination_left: float | None = None
    displaced: int = 0


class PodRecords:
    """The records of all pods that are there.

    Args:
        pods: all namespaces; followed from now on.
    """

    def __init__(self, pods: Informer[Pod]) -> None:
        self._pods = pods
        self._records: dict[Uid, PodRecord] = {}
        # Sets in the order in which pods were marked.
        self._marked: dict[Mark, dict[PodID, None]] = {mark: {} for mark in Mark}
        pods.add_handler(Handler(deleted=self._forget))

    def __len__(self) -> int:
        """Return the number of records and marks."""
        return len(self._records) + sum(map(len, self._marked.values()))

    def _forget(self, pod: Pod) -> None:
        self._records.pop(pod.metadata.uid, None)
        for marked in self._marked.values():
            marked.pop(_id(pod), None)

    def _is_there(self, pod: Pod) -> bool:
        known = self._pods.get(pod.key)
        return known is not None and known.metadata.uid == pod.metadata.uid

    def of(self, pod: Pod) -> PodRecord:
        """Return the record of a pod. One of a pod that is gone is empty, and is not kept."""
        found = self._records.get(pod.metadata.uid)
        if found is None:
            found = PodRecord(_id(pod))
            if self._is_there(pod):
                self._records[pod.metadata.uid] = found
        return found

    # --- marks ----------------------------------------------------------------------------------------------

    def has(self, pod: Pod, mark: Mark) -> bool:
        """Return whether a pod has a mark."""
        return _id(pod) in self._marked[mark]

    def mark(self, pod: Pod, mark: Mark) -> None:
        """Note that something is true of a pod from now on; of one that is gone nothing is noted."""
        if self._is_there(pod):
            self._marked[mark][_id(pod)] = None

    def clear(self, pod: Pod, mark: Mark) -> bool:
        """Note that something is not true of a pod any more; return whether it was."""
        return self._marked[mark].pop(_id(pod), False) is None

    def turn(self, mark: Mark, into: Mark) -> list[ObjectKey]:
        """Give all pods with one mark another one in place of it; return them in the order of marking."""
        marked, self._marked[mark] = self._marked[mark], {}
        self._marked[into].update(marked)
        return [pod.key for pod in marked]

    def marked(self, mark: Mark) -> Iterator[ObjectKey]:
        """Yield the pods with a mark, in the order in which they got it; none may change meanwhile."""
        return (pod.key for pod in self._marked[mark])

    def number(self, mark: Mark) -> int:
        """Return the number of pods with a mark."""
        return len(self._marked[mark])


def _id(pod: Pod) -> PodID:
    return PodID(pod.key, pod.metadata.uid)
