"""What several pods take of a node together, as vectors: a sum that a solver can work with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dra_driver.api.quantity import Quantity
from dra_driver.nodefit.ports import HostPort, conflict
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

    Args:
        pods: that ask.
        others: pods that ask as well; if there are more than 64 places, the rest of theirs is left out first.
    """

    def __init__(self, pods: Iterable[PodNeeds], others: Iterable[PodNeeds] = ()) -> None:
        first, second = set(pods), set(others)
        every = {port for needs in first | second for port in needs.ports}
        self._everywhere = {(p.protocol, p.number) for p in every if not p.address}
        places = dict.fromkeys([*self._places_of(first), *self._places_of(second)])
        self._places = tuple(places)[:MOST_RESOURCES]

    def _places_of(self, pods: Collection[PodNeeds]) -> list[str | HostPort]:
        names = {name for needs in pods for name, _ in needs.amounts}
        ports = {self._place(port) for needs in pods for port in needs.ports}
        return [*sorted(names, key=lambda name: (name not in _FIRST, name)), *sorted(ports)]

    def _place(self, port: HostPort) -> HostPort:
        all_of_it = (port.protocol, port.number) in self._everywhere
        return HostPort(port.protocol, port.number) if all_of_it else port

    @property
    def names(self) -> tuple[str, ...]:
        """What the places are, for people."""
        return tuple(p if isinstance(p, str) else f"host port {p.number}/{p.protocol}" for p in self._places)

    @property
    def nothing(self) -> Vector:
        """The vector of a pod that takes nothing."""
        return (0,) * len(self._places)

    def of(self, needs: PodNeeds) -> Vector:
        """Return what a pod takes. A port on all addresses takes those of single addresses, too."""
        amounts = dict(needs.amounts)
        return tuple(
            int(_takes(needs.ports, place)) if isinstance(place, HostPort) else amounts.get(place, 0)
            for place in self._places
        )

    def free(
        self, room: NodeRoom, allocatable: Mapping[str, Quantity], served: Collection[str] = ()
    ) -> Vector:
        """Return what is left of a node that has room for each of the pods alone; as for ``problem``."""

        def left(name: str) -> int:
            has = _has(name, allocatable, served)
            return _PLENTY if has is None else max(0, has - room.taken(name))

        return tuple(1 if isinstance(place, HostPort) else left(place) for place in self._places)

    def left(
        self, pods: Iterable[PodNeeds], allocatable: Mapping[str, Quantity], served: Collection[str] = ()
    ) -> Vector:
        """Return what pods leave of a node; less than 0 where they take more than there is.

        Args:
            pods: of the node.
            allocatable: as for ``problem``.
            served: as for ``problem``.
        """
        left = [1 if isinstance(p, HostPort) else _has(p, allocatable, served) for p in self._places]
        for needs in pods:
            taken = self.of(needs)
            left = [None if a is None else a - b for a, b in zip(left, taken, strict=True)]
        return tuple(_PLENTY if amount is None else amount for amount in left)


def _has(name: str, allocatable: Mapping[str, Quantity], served: Collection[str]) -> int | None:
    """Return what a node has of a resource; None where that does not matter."""
    has = amount(name, allocatable[name].nano) if name in allocatable else 0
    return None if not allocatable or (name in served and has <= 0) else has


def _takes(ports: Iterable[HostPort], place: HostPort) -> bool:
    same = (p.address for p in ports if (p.protocol, p.number) == (place.protocol, place.number))
    return conflict(place, same)
