"""Groups before any search: how many members have devices at all, and what a refusal rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set
from typing import NamedTuple

from controller.allocate.decide.nodes.placement import FreeRoom
from controller.allocate.decide.nodes.signatures import signature_of
from controller.allocate.decide.pods.solving import PodDecider
from controller.allocate.decide.state.objects import claims_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.nodefit import Vector
from dra_driver.structured import Budget, BudgetExhausted, Room

__all__ = ["Crowd", "crowds", "missing_in", "state_of"]


class Crowd(NamedTuple):
    """Members of a group that want the same.

    Attributes:
        number: of them.
        room: for pods like them.
        nodes: that can take one of them.
        pod: one of them.
    """

    number: int
    room: Room
    nodes: Set[str]
    pod: Pod

    def within(self, nodes: set[str] | None) -> Set[str]:
        """Return those of some nodes that can take them."""
        return self.nodes if nodes is None else nodes & self.nodes


def crowds(
    decider: PodDecider,
    members: Sequence[tuple[Pod, Sequence[ResourceClaim]]],
    pending: Container[Uid],
    budget: Budget,
) -> list[Crowd]:
    """Return the members that wait for devices, those of one signature together.

    Args:
        decider: knows what is free.
        members: of the group, with their claims.
        pending: those that wait.
        budget: what the look may cost.
    """
    users = Counter(key for pod, _ in members for key in claims_of(pod))
    alike: dict[bytes, list[Pod]] = {}
    for pod, claims in members:
        # A claim that members share is allocated once, wherever the first of them goes.
        if pod.metadata.uid in pending and claims and all(users[c.key] == 1 for c in claims):
            beside, volumes = decider.beside(pod), decider.volume_needs(pod)
            signature = signature_of(pod, list(claims), (), beside, volumes)
            alike.setdefault(signature, []).append(pod)
    found: list[Crowd] = []
    for pods in alike.values():
        room = decider.room(pods[0], budget)
        if room is not None:
            found.append(Crowd(len(pods), room, decider.nodes_for(pods[0]), pods[0]))
    return found


def missing_in(of: Sequence[Crowd], domains: Sequence[set[str] | None]) -> list[tuple[set[str] | None, int]]:
    """Return the domains, each with the number of members that it surely has no free devices for."""
    try:
        return [(d, sum(c.number - c.room.holds(c.number, c.within(d)) for c in of)) for d in domains]
    except BudgetExhausted:
        return [(nodes, 0) for nodes in domains]


def state_of(of: Sequence[Crowd], domains: Iterable[set[str] | None], free: FreeRoom) -> object | None:
    """Return what a refusal rests on besides the members; None if that is not known.

    A device that none of them can use does not change it, nor does a node without free devices for them, nor
    resources beyond what the members need that a node has devices for.
    """
    try:
        devices = sorted(tuple(crowd.room.state(crowd.within(nodes)) for crowd in of) for nodes in domains)
        return devices, _short(of, free)
    except BudgetExhausted:
        return None


def _short(of: Sequence[Crowd], free: FreeRoom) -> frozenset[tuple[str, Vector]]:
    """Return what is left of nodes that have more devices for members than resources or host ports."""
    found: set[tuple[str, Vector]] = set()
    needs = [free.needs(crowd.pod) for crowd in of]
    for name, left in free.nodes.items():
        most = free.nothing
        for crowd, each in zip(of, needs, strict=True):
            if name in crowd.nodes:
                held = crowd.room.holds(crowd.number, [name])
                most = tuple(sum_ + need * held for sum_, need in zip(most, each, strict=True))
        short = tuple(map(min, left, most))
        if short != most:
            found.add((name, short))
    return frozenset(found)
