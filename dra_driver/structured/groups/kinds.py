"""Members that can stand for one another: those that ask for the same."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dra_driver.api import codec, names
from dra_driver.api.resource import ResourceClaim
from dra_driver.structured.groups.members import GroupMember

__all__ = ["Bundle", "Kind", "bundles", "kinds_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Members that share claims, so that they go to one node; mostly a single member.

    Attributes:
        members: their numbers.
        claims: each once.
        nodes: that can take all of them; if None, every node.
    """

    members: tuple[int, ...]
    claims: tuple[ResourceClaim, ...]
    nodes: Collection[str] | None
    needs: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Kind:
    """Bundles that ask for the same, in the order of their last members."""

    bundles: list[Bundle]

    @property
    def of(self) -> Bundle:
        """One that stands for all."""
        return self.bundles[0]


def bundles(members: Sequence[GroupMember]) -> list[Bundle]:
    """Return the members, those together that share a claim which is not allocated."""
    leader = list(range(len(members)))

    def find(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    first: dict[object, int] = {}
    for i, member in enumerate(members):
        for claim in member.claims:
            if claim.status.allocation is None:
                j = first.setdefault(claim.key, i)
                a, b = sorted((find(i), find(j)))
                leader[b] = a
    together: dict[int, list[int]] = {}
    for i in range(len(members)):
        together.setdefault(find(i), []).append(i)
    return [_bundle(members, numbers) for numbers in together.values()]


def _bundle(members: Sequence[GroupMember], numbers: Sequence[int]) -> Bundle:
    if len(numbers) == 1:
        member = members[numbers[0]]
        return Bundle(tuple(numbers), member.claims, member.nodes, member.needs)
    claims = {c.key: c for i in numbers for c in members[i].claims}
    allowed = [members[i].nodes for i in numbers]
    limited = [set(n) for n in allowed if n is not None]
    needs = [members[i].needs for i in numbers]
    return Bundle(
        tuple(numbers),
        tuple(claims.values()),
        set.intersection(*limited) if limited else None,
        tuple(map(sum, zip(*needs, strict=True))),
    )


def kinds_of(of: Sequence[Bundle]) -> list[Kind]:
    """Return the bundles by what they ask for."""
    found: dict[object, Kind] = {}
    for bundle in sorted(of, key=lambda b: max(b.members)):
        key = (tuple(map(_asked, bundle.claims)), _nodes_key(bundle.nodes), bundle.needs, len(bundle.members))
        found.setdefault(key, Kind([])).bundles.append(bundle)
    return list(found.values())


def _asked(claim: ResourceClaim) -> bytes:
    devices = claim.spec.devices
    topology = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    asked: object = claim.status.allocation or (devices.requests, devices.constraints, topology, claim.newer)
    # A digest: claims may have a megabyte of selectors each.
    return hashlib.blake2b(codec.encode(asked), digest_size=16).digest()


def _nodes_key(nodes: Collection[str] | None) -> object:
    if nodes is None:
        return None
    # Callers mostly pass one object for all members that are alike.
    return id(nodes) if len(nodes) > 64 else frozenset(nodes)
