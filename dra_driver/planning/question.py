"""What a plan is asked about: a workload, the cluster, and the claims that hold devices of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dra_driver.api import codec, names
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.structured import GroupMember, Level, PoolID, PoolPolicies, Snapshot

__all__ = [
    "Holder",
    "LeftOut",
    "PlannedCluster",
    "Template",
    "Unit",
    "Workload",
    "needed",
    "node_of",
    "units_of",
    "want_room",
]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to fit: the pods of one object, all of them.

    Attributes:
        name: for people, such as ``Job default/train``.
        members: one for each pod; a claim without a pod is a pod that uses it alone.
        levels: of topology that the members share.
    """

    name: str
    members: tuple[GroupMember, ...]
    levels: tuple[Level, ...] = ()

    @property
    def claims(self) -> dict[ObjectKey, ResourceClaim]:
        """The claims of all members, each once."""
        return {claim.key: claim for member in self.members for claim in member.claims}


@dataclass(frozen=True, slots=True)
class Holder:
    """Claims that stand and fall together, because pods share them.

    Attributes:
        name: for people; the name of the first pod, or of the claim where no pod uses it.
        claims: with their allocations.
        pods: that use them, ``namespace/name``.
        priority: the highest of the pods.
        members: the pods, with claims that are not allocated, as they would ask again elsewhere.
        gives: what a node has more of without the pods, in the order of ``PlannedCluster.free``.
    """

    name: str
    claims: tuple[ResourceClaim, ...]
    pods: tuple[str, ...] = ()
    priority: int = 0
    members: Sequence[GroupMember] = ()
    gives: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of node of which there could be more.

    Attributes:
        name: of a profile, or of the node that is copied.
        node: the Node; each new one gets a name, and a host name label, of its own.
        slices: the slices of that node.
        room: what a new node has besides devices, in the order of ``PlannedCluster.free``.
    """

    name: str
    node: Node
    slices: tuple[ResourceSlice, ...]
    room: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Pools that others allocate from. No question knows their devices; the reasons name them.

    Attributes:
        slices: of these pools.
        why: whose they are, by pool, in the words of ``Exclusion.found``.
        pools: the pools that are not left out.
    """

    slices: tuple[ResourceSlice, ...]
    why: Mapping[PoolID, str]
    pools: PoolPolicies


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """The cluster at one moment.

    Attributes:
        snapshot: with everything that is allocated.
        holders: what may be freed or moved.
        kept: allocated claims that may not.
        free: what pods leave of nodes besides devices, less than 0 where they take more than there is;
            absent nodes have enough.
        resources: what the places of ``free`` are, for people.
        left_out: pools that are not in ``snapshot``; None if there are none.
        coupled: whether nodes share devices.
    """

    snapshot: Snapshot
    holders: tuple[Holder, ...] = ()
    kept: tuple[ResourceClaim, ...] = ()
    free: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    coupled: bool = False
    resources: tuple[str, ...] = ()
    left_out: LeftOut | None = None


class Unit(NamedTuple):
    """Members that go to one node because they share claims; mostly a single member.

    Attributes:
        members: numbers of the members.
        claims: of all of them, each once.
        nodes: that can take all of them; if None, every node.
        needs: what they take of a node besides devices.
        kind: equal for units that ask for the same.
    """

    members: tuple[int, ...]
    claims: tuple[ResourceClaim, ...]
    nodes: Collection[str] | None
    needs: tuple[int, ...]
    kind: object


def want_room(members: Iterable[GroupMember]) -> bool:
    """Return whether members need anything of a node besides devices."""
    return any(any(member.needs) for member in members)


def needed(members: Iterable[GroupMember], resources: Sequence[str]) -> list[tuple[int, str]]:
    """Return what members need of a node besides devices: its place in ``needs``, and its name."""
    places = {i for member in members for i, amount in enumerate(member.needs) if amount}
    return [(i, resources[i] if i < len(resources) else f"resource {i}") for i in sorted(places)]


def units_of(members: Sequence[GroupMember]) -> list[Unit]:
    """Return the members as units, in the order of their first members."""
    leader = list(range(len(members)))

    def find(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    first: dict[ObjectKey, int] = {}
    for i, member in enumerate(members):
        for claim in member.claims:
            if claim.status.allocation is None:
                a, b = sorted((find(i), find(first.setdefault(claim.key, i))))
                leader[b] = a
    together: dict[int, list[int]] = {}
    for i in range(len(members)):
        together.setdefault(find(i), []).append(i)
    return [_unit(members, tuple(numbers)) for numbers in together.values()]


def _unit(members: Sequence[GroupMember], numbers: tuple[int, ...]) -> Unit:
    of = [members[i] for i in numbers]
    claims = tuple({claim.key: claim for member in of for claim in member.claims}.values())
    limited = [frozenset(m.nodes) for m in of if m.nodes is not None]
    nodes: Collection[str] | None = None
    if limited:
        nodes = of[0].nodes if len(of) == 1 else frozenset.intersection(*limited)
    needs = tuple(map(sum, zip(*(m.needs for m in of), strict=True)))
    asked = b"".join(map(_asked, claims))
    return Unit(numbers, claims, nodes, needs, (asked, None if nodes is None else id(nodes), needs, len(of)))


def _asked(claim: ResourceClaim) -> bytes:
    devices = claim.spec.devices
    topology = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    asked: object = claim.status.allocation or (devices.requests, devices.constraints, topology, claim.newer)
    return codec.encode(asked)


def node_of(claim: ResourceClaim) -> str:
    """Return the node whose devices an allocated claim has; empty if that is not said."""
    allocation = claim.status.allocation
    selector = None if allocation is None else allocation.node_selector
    if selector is not None and len(selector.node_selector_terms) == 1:
        for field_ in selector.node_selector_terms[0].match_fields:
            if field_.key == "metadata.name" and field_.operator == "In" and len(field_.values) == 1:
                return field_.values[0]
    # The pool of a node has the node's name as a rule.
    results = () if allocation is None else allocation.devices.results
    return str(results[0].pool) if results else ""
