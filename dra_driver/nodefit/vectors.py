"""What several pods take of a node together, as vectors: a sum that a solver can work with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.nodefit.ports import HostPort
from dra_driver.nodefit.requests import MOST_RESOURCES, PodNeeds, amount
from dra_driver.nodefit.room import NodeRoom

__all__ = ["NeedsVectors", "Vector"]

Vector = tuple[int, ...]

# More than any group needs of any node.
_PLENTY: Final = 10**30
_FIRST: Final = ("pods", "cpu", "memory", "ephemeral-storage")


class NeedsVectors:
    """The resources and host ports that any of some pods asks for, each as one place of a vector.

    Of more than 64 of them the rest is left to kube-scheduler. Where one pod takes a port on all addresses,
    all pods with that port exclude one another, also two of them that name different addresses.
    """

    def __init__(self, pods: Iterable[PodNeeds]) -> None:
        names: set[str] = set()
        ports: set[HostPort] = set()
        for needs in set(pods):
            names.update(name for name, _ in needs.amounts)
            ports.update(needs.ports)
        self._everywhere = {(p.protocol, p.number) for p in ports if not p.address}
        order = sorted(names, key=lambda name: (name not in _FIRST, name))
        places: list[str | HostPort] = [*order, *sorted({self._place(port) for port in ports})]
        self._places = tuple(places[:MOST_RESOURCES])

    def _place(self, port: HostPort) -> HostPort:
        all_of_it = (port.protocol, port.number) in self._everywhere
        return HostPort(port.protocol, port.number) if all_of_it else port

    @property
    def nothing(self) -> Vector:
        """The vector of a pod that takes nothing."""
        return (0,) * len(self._places)

    def of(self, needs: PodNeeds) -> Vector:
        """Return what one of the pods takes."""
        amounts = dict(needs.amounts)
        ports = {self._place(port) for port in needs.ports}
        return tuple(
            int(place in ports) if isinstance(place, HostPort) else amounts.get(place, 0)
            for place in self._places
        )

    def free(
        self, room: NodeRoom, allocatable: Mapping[str, Quantity], served: Collection[str] = ()
    ) -> Vector:
        """Return what is left of a node that has room for each of the pods alone; as for ``problem``."""

        def left(name: str) -> int:
            has = amount(name, allocatable[name].nano) if name in allocatable else 0
            if not allocatable or (name in served and has <= 0):
                return _PLENTY
            return max(0, has - room.taken(name))

        return tuple(1 if isinstance(place, HostPort) else left(place) for place in self._places)
