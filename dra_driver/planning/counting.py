"""How many more of a workload fit, and how large a block of devices is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from dra_driver.api.resource import DeviceRequest, ResourceClaim
from dra_driver.planning.checks import Checks, OutOfTime, allocated_with, less_room
from dra_driver.planning.holders.areas import devices_needed
from dra_driver.planning.holders.domains import Domain
from dra_driver.planning.holders.nodes import NodeCosts
from dra_driver.planning.question import PlannedCluster, Unit, Workload, units_of, want_room
from dra_driver.structured import GroupAllocated, GroupMember

__all__ = ["Count", "copies", "countable", "how_many", "largest_block", "with_count"]

# Of a workload; nothing larger is asked in one piece.
_MOST_MEMBERS = 4096
# The same of one with units that do not use devices up.
_MOST_UNCOUNTED = 64
_MOST_DEVICES = 256
_MOST_ON_NODE = 256


@dataclass(frozen=True, slots=True)
class Count:
    """How many fit.

    Attributes:
        number: that do fit.
        proven: whether one more does not.
    """

    number: int
    proven: bool


def copies(workload: Workload, number: int) -> tuple[GroupMember, ...]:
    """Return the members of so many workloads like this one; claims that are not allocated are made anew."""
    made: list[GroupMember] = []
    for i in range(number):
        made += [replace(m, claims=tuple(_copy(c, i) for c in m.claims)) for m in workload.members]
    return tuple(made)


def _copy(claim: ResourceClaim, number: int) -> ResourceClaim:
    if claim.status.allocation is not None or not number:
        return claim
    name = f"{claim.metadata.name}~{number}"
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, name=name, uid=""))


def how_many(checks: Checks, workload: Workload) -> Count:
    """Return how many workloads like this one fit at the same time.

    Workloads that share levels of topology are counted one after the other, each by itself.
    """
    checks.unsure = False
    if workload.levels:
        return _one_by_one(checks, workload)
    units = units_of(workload.members)
    if not checks.cluster.coupled and len({unit.kind for unit in units}) == 1:
        return _by_nodes(checks, workload, units)
    size = max(1, len(workload.members))
    uses_up = all(devices_needed(unit.claims)[0] for unit in units)
    most = max(1, (_MOST_MEMBERS if uses_up else _MOST_UNCOUNTED) // size)
    low, high = 0, 1
    try:
        while high <= most and _fit(checks, workload, high):
            checks.progress(f"{high} fit")
            low, high = high, high * 2
        if low * 2 > most and high > most:
            return Count(low, proven=False)
        while high - low > 1:
            middle = (low + high) // 2
            if _fit(checks, workload, middle):
                low = middle
            else:
                high = middle
    except OutOfTime:
        return Count(low, proven=False)
    return Count(low, proven=not checks.unsure)


def _by_nodes(checks: Checks, workload: Workload, units: Sequence[Unit]) -> Count:
    """Return the number, counted node by node: the units ask for the same, and nodes share nothing."""
    one = replace(workload, members=tuple(workload.members[i] for i in units[0].members))
    number, complete = 0, True
    try:
        costs = NodeCosts(checks, replace(one, members=copies(one, _MOST_ON_NODE)))
        for nodes in costs.classes(Domain(tuple(checks.cluster.snapshot.nodes))):
            checks.progress(f"{number} fit")
            most, proven = costs.most(nodes)
            complete = complete and proven
            number += most * len(nodes.nodes)
    except OutOfTime:
        complete = False
    return Count(number // len(units), proven=complete and not checks.unsure)


def _fit(checks: Checks, workload: Workload, number: int) -> bool:
    members = copies(workload, number)
    needs = bool(checks.cluster.free) and want_room(members)
    return checks.fits(checks.cluster.snapshot, members, free=checks.free(()) if needs else None)


def _one_by_one(checks: Checks, workload: Workload) -> Count:
    number = 0
    cluster: PlannedCluster = checks.cluster
    snapshot, room = cluster.snapshot, dict(cluster.free)
    needs = bool(room) and want_room(workload.members)
    try:
        while number * len(workload.members) < _MOST_MEMBERS:
            answer = checks.ask(snapshot, workload.members, workload.levels, room if needs else None)
            if not isinstance(answer, GroupAllocated):
                break
            snapshot = allocated_with(snapshot, workload.members, answer)
            room = less_room(room, workload.members, answer)
            number += 1
            checks.progress(f"{number} fit")
    except OutOfTime:
        pass
    # One after the other need not be the most that fit.
    return Count(number, proven=number == 0 and not checks.unsure)


def with_count(claim: ResourceClaim, number: int) -> ResourceClaim:
    """Return the claim with another number of devices in its only request."""
    requests = claim.spec.devices.requests or ()
    made: list[DeviceRequest] = []
    for request in requests:
        assert request.exactly is not None
        made.append(
            msgspec.structs.replace(request, exactly=msgspec.structs.replace(request.exactly, count=number))
        )
    devices = msgspec.structs.replace(claim.spec.devices, requests=tuple(made))
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def countable(members: Sequence[GroupMember]) -> ResourceClaim | None:
    """Return the claim of a single member if it has one request for a number of devices."""
    if len(members) != 1 or len(members[0].claims) != 1:
        return None
    claim = members[0].claims[0]
    requests = claim.spec.devices.requests or ()
    if claim.status.allocation is not None or len(requests) != 1 or requests[0].exactly is None:
        return None
    return None if requests[0].exactly.allocation_mode == "All" else claim


def largest_block(checks: Checks, workload: Workload) -> Count | None:
    """Return the largest number of devices that one such claim could have; None if that makes no sense.

    Raises:
        OutOfTime: the deadline has passed.
    """
    claim = countable(workload.members)
    if claim is None:
        return None
    checks.unsure = False
    member = workload.members[0]

    def fits(number: int) -> bool:
        changed = replace(member, claims=(with_count(claim, number),))
        needs = bool(checks.cluster.free) and want_room((member,))
        return checks.fits(
            checks.cluster.snapshot, (changed,), workload.levels, checks.free(()) if needs else None
        )

    low, high = 0, 1
    while high <= _MOST_DEVICES and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Count(low, proven=not checks.unsure)
