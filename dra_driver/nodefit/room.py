"""What pods take of one node, as sums, and whether another pod has room beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from dra_driver.api.quantity import Quantity
from dra_driver.nodefit.ports import HostPort, conflict
from dra_driver.nodefit.requests import PodNeeds, amount

__all__ = ["NodeRoom", "problem"]

_K = TypeVar("_K")


class NodeRoom:
    """What the pods of a node take, by their priority: pods of lower priority may be evicted for others."""

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._levels: dict[int, Counter[str]] = {}
        # Protocol and number → address and priority → number of pods.
        self._ports: dict[tuple[str, int], Counter[tuple[str, int]]] = {}

    def __bool__(self) -> bool:
        """Return whether any pod takes anything."""
        return bool(self._levels)

    def add(self, needs: PodNeeds) -> None:
        """Count a pod."""
        level = self._levels.setdefault(needs.priority, Counter())
        for name, number in needs.amounts:
            self._total[name] += number
            level[name] += number
        for port in needs.ports:
            users = self._ports.setdefault((port.protocol, port.number), Counter())
            users[port.address, needs.priority] += 1

    def remove(self, needs: PodNeeds) -> None:
        """Stop counting a pod that was added."""
        level = self._levels[needs.priority]
        for name, number in needs.amounts:
            _subtract(self._total, name, number)
            _subtract(level, name, number)
        if not level:
            del self._levels[needs.priority]
        for port in needs.ports:
            users = self._ports[port.protocol, port.number]
            _subtract(users, (port.address, needs.priority), 1)
            if not users:
                del self._ports[port.protocol, port.number]

    def taken(self, resource: str, least: int | None = None) -> int:
        """Return what pods take of a resource: all pods, or those of at least this priority."""
        if least is None:
            return self._total.get(resource, 0)
        return sum(level.get(resource, 0) for priority, level in self._levels.items() if priority >= least)

    def has_below(self, priority: int) -> bool:
        """Return whether there are pods of lower priority."""
        return any(other < priority for other in self._levels)

    def conflicts(self, port: HostPort, least: int | None = None) -> bool:
        """Return whether a host port is taken: by any pod, or by one of at least this priority."""
        users = self._ports.get((port.protocol, port.number))
        if users is None:
            return False
        return conflict(port, (a for a, priority in users if least is None or priority >= least))


def _subtract(counter: Counter[_K], key: _K, number: int) -> None:
    left = counter[key] - number
    if left:
        counter[key] = left
    else:
        del counter[key]


def problem(
    needs: PodNeeds,
    room: NodeRoom,
    allocatable: Mapping[str, Quantity],
    served: Collection[str] = (),
    *,
    evicting: bool = False,
) -> str:
    """Return what a node lacks for a pod, as what the node is; an empty text where the pod has room.

    Args:
        needs: of the pod.
        room: what other pods take.
        allocatable: ``status.allocatable`` of the node; where it is empty, the kubelet has not reported yet,
            and nothing is known to be lacking.
        served: extended resources that DeviceClasses serve: where a node has none of its own, devices are
            allocated for them (KEP-5004).
        evicting: whether pods of lower priority count as gone.
    """
    least = needs.priority if evicting else None
    if allocatable:
        for name, wanted in needs.amounts:
            has = amount(name, allocatable[name].nano) if name in allocatable else 0
            if name in served and has <= 0:
                continue
            if wanted > has - room.taken(name, least):
                return "with too many pods" if name == "pods" else f"with too little {name}"
    for port in needs.ports:
        if room.conflicts(port, least):
            return f"where host port {port.number} is taken"
    return ""
