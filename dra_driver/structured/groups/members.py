"""What a group asks for, and what it gets: plain values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dra_driver.api.resource import ResourceClaim
from dra_driver.structured.model.types import Allocated, DoesNotFit, Failed

__all__ = ["GroupAllocated", "GroupMember", "GroupRefused", "Level"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One pod of a group.

    Attributes:
        claims: solved together, on one node. A claim that several members share is allocated once, and all of
            them go to one node; an allocated claim keeps its devices and only restricts the node.
        nodes: that can take the pod, as far as devices do not matter; if None, all of them.
        needs: what the pod takes of a node besides devices, in the order of ``free`` of ``allocate_group``.
    """

    claims: tuple[ResourceClaim, ...]
    nodes: Collection[str] | None = None
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """A level of topology: nodes, or devices, with one value of it form a domain.

    Attributes:
        label: a label of nodes; nodes without it are in no domain.
        attribute: instead, a qualified attribute of devices (strings only). A domain has the nodes with a
            device of that value; on them, devices of other values are left out, those without any are not.
        required: whether the members must share the domain; if False, they do where that is possible.
        count: if set, members come in parts of so many, and each part shares a domain: of every domain a
            multiple of it is used. Members must ask for the same then.
        value: the only domain that may be used; empty for any.
    """

    label: str = ""
    attribute: str = ""
    required: bool = True
    count: int = 0
    value: str = ""

    @property
    def name(self) -> str:
        """The label or the attribute."""
        return self.label or self.attribute


@dataclass(frozen=True, slots=True)
class GroupAllocated:
    """The group fits.

    Attributes:
        members: one answer per member, in their order; None for those that an elastic group goes without.
        domains: for each level the value that all members have in common; empty if there is none.
    """

    members: tuple[Allocated | None, ...]
    domains: tuple[str, ...] = ()

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that are used."""
        return frozenset(m.node for m in self.members if m is not None)


@dataclass(frozen=True, slots=True)
class GroupRefused:
    """The group does not fit.

    Attributes:
        wanted: number of members that have to fit.
        held: number of members that fit at best, within a domain of ``level``.
        level: the widest required level on which the group fails; None if the whole cluster has too little.
        domain: value of that level where most members fit; of several levels, of all down to this one.
        domains: number of domains of that level.
        at_least: whether the search for ``held`` was cut short.
        first: why the first member gets no answer by itself, whatever is left of nodes besides devices, if
            ``held`` is 0; None if it does, or if that is not known.
    """

    wanted: int
    held: int
    level: Level | None = None
    domain: str = ""
    domains: int = 0
    at_least: bool = False
    first: DoesNotFit | Failed | None = None

    def summary(self, *, holders: bool = False) -> str:
        """Return one sentence for people; see ``DoesNotFit.summary``."""
        most = f"{'at least ' if self.at_least else ''}{self.held} of {self.wanted} members"
        match self.first:
            case DoesNotFit():
                reason = f": {self.first.summary(holders=holders)}"
            case Failed(message):
                reason = f": {message}"
            case None:
                reason = ""
        if self.level is None:
            return f"{most} fit at the same time{reason}"
        if not self.domains:
            return f"no node that can be used has the {_kind(self.level)} {self.level.name}"
        if self.level.count:
            return f"{most} fit in parts of {self.level.count} that share {self.level.name}{reason}"
        best = f" ({self.domain})" if self.held else ""
        return f"{most} fit in the best of {self.domains} domains of {self.level.name}{best}{reason}"


def _kind(level: Level) -> str:
    return "label" if level.label else "device attribute"
