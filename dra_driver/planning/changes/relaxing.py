"""Which one part of a request keeps a workload from fitting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec

from dra_driver.api import codec
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    CapacityRequirements,
    CelSelector,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_driver.ownership import blocks, is_controller_taint
from dra_driver.planning.changes.expressions import conjuncts
from dra_driver.planning.checks import Checks, OutOfTime
from dra_driver.planning.question import Workload, needed, want_room
from dra_driver.structured import DeviceEntry, GroupAllocated, GroupMember, similar_nodes

__all__ = ["Relaxed", "relaxations"]

_Asked = ExactDeviceRequest | DeviceSubRequest
_Change = Callable[[ResourceClaim], ResourceClaim]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A part of the request, and whether the workload fits without it.

    Attributes:
        part: what it is, for people.
        change: what was done about it.
        excludes: number of devices of the class that this part alone excludes; None where it is not about
            single devices.
        answer: of the allocator; None if the workload does not fit all the same.
        proven: whether that it does not fit is certain.
    """

    part: str
    change: str
    excludes: int | None
    answer: GroupAllocated | None
    proven: bool


def relaxations(checks: Checks, workload: Workload) -> tuple[list[Relaxed], bool]:
    """Return what each part of the request does, those that help first; and whether all were tried."""
    found: list[Relaxed] = []
    complete = True
    try:
        for one in _all(checks, workload):
            checks.progress(f"without {one.part}")
            found.append(one)
    except OutOfTime:
        complete = False
    found.sort(key=lambda r: (r.answer is None, -(r.excludes or 0)))
    return found, complete


def _all(checks: Checks, workload: Workload) -> Iterator[Relaxed]:
    different: dict[bytes, ResourceClaim] = {}
    for claim in workload.claims.values():
        if claim.status.allocation is None:
            different.setdefault(codec.encode(claim.spec), claim)
    for spec, claim in different.items():
        where = f"claim {claim.key}, " if len(different) > 1 else ""
        yield from _of_claim(checks, workload, spec, claim, where)
    for level in workload.levels:
        if level.required:
            changed = replace(workload, levels=tuple(at for at in workload.levels if at is not level))
            yield _try(checks, changed, f"one {level.name} for all pods", "left out")
    if any(m.nodes is not None for m in workload.members):
        changed = replace(workload, members=tuple(replace(m, nodes=None) for m in workload.members))
        yield _try(checks, changed, "node selector, affinity and tolerations of the pods", "left out")
    if checks.cluster.free and want_room(workload.members):
        yield from _needs(checks, workload)


def _needs(checks: Checks, workload: Workload) -> Iterator[Relaxed]:
    """Leave out what pods need besides devices: all of it, and if that helps one after the other."""
    names = needed(workload.members, checks.cluster.resources)

    def without(places: Collection[int]) -> Workload:
        def less(member: GroupMember) -> GroupMember:
            return replace(member, needs=tuple(0 if i in places else n for i, n in enumerate(member.needs)))

        return replace(workload, members=tuple(map(less, workload.members)))

    every = _try(
        checks,
        without([i for i, _ in names]),
        _room(name for _, name in names),
        "left out",
    )
    yield every
    if every.answer is not None and len(names) > 1:
        for i, name in names:
            yield _try(checks, without([i]), _room([name]), "left out")


def _room(names: Iterable[str]) -> str:
    return f"free {', '.join('pod slots' if name == 'pods' else name for name in names)} on the node"


def _try(checks: Checks, changed: Workload, part: str, change: str, excludes: int | None = None) -> Relaxed:
    checks.unsure = False
    answer = checks.solve(changed)
    if isinstance(answer, GroupAllocated):
        return Relaxed(part, change, excludes, answer, proven=True)
    return Relaxed(part, change, excludes, None, proven=not checks.unsure)


def _with(workload: Workload, spec: bytes, change: _Change) -> Workload:
    """Return the workload with every claim changed that asks for this."""

    def changed(claim: ResourceClaim) -> ResourceClaim:
        mine = claim.status.allocation is None and codec.encode(claim.spec) == spec
        return change(claim) if mine else claim

    members = tuple(replace(m, claims=tuple(map(changed, m.claims))) for m in workload.members)
    return replace(workload, members=members)


def _of_claim(
    checks: Checks, workload: Workload, spec: bytes, claim: ResourceClaim, where: str
) -> Iterator[Relaxed]:
    for i, request in enumerate(claim.spec.devices.requests or ()):
        alternatives: list[tuple[int, str, _Asked]] = [
            (j, f"{request.name}/{sub.name}", sub) for j, sub in enumerate(request.first_available)
        ]
        if request.exactly is not None:
            alternatives = [(-1, request.name, request.exactly)]
        for j, name, asked in alternatives:
            part = _Part(checks, workload, spec, claim, (i, j), f"{where}request {name}", asked)
            yield from part.relaxed()
    for k, constraint in enumerate(claim.spec.devices.constraints):
        kind = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
        text = f"{where}constraint {kind} {constraint.match_attribute or constraint.distinct_attribute}"

        def without(of: ResourceClaim, k: int = k) -> ResourceClaim:
            left = tuple(c for n, c in enumerate(of.spec.devices.constraints) if n != k)
            devices = msgspec.structs.replace(of.spec.devices, constraints=left)
            return msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, devices=devices))

        yield _try(checks, _with(workload, spec, without), text, "left out")


class _Part:
    """One request, or one alternative of it, of the claims of a workload."""

    def __init__(
        self,
        checks: Checks,
        workload: Workload,
        spec: bytes,
        claim: ResourceClaim,
        at: tuple[int, int],
        name: str,
        asked: _Asked,
    ) -> None:
        self._checks, self._workload, self._spec, self._at = checks, workload, spec, at
        self._name, self._asked, self._claim = name, asked, claim

    def relaxed(self) -> Iterator[Relaxed]:
        """Iterate over what can be relaxed of it."""
        yield from self._selectors()
        for capacity in self._asked.capacity.requests if self._asked.capacity is not None else ():
            yield self._capacity(capacity)
        if self._asked.allocation_mode != "All" and self._asked.count > 1:
            yield self._count()
        yield from self._taints()

    def _selectors(self) -> Iterator[Relaxed]:
        for k, selector in enumerate(self._asked.selectors):
            expression = selector.cel.expression if selector.cel is not None else ""
            parts = conjuncts(expression)
            for n, text in enumerate(parts):
                rest = " && ".join(p for m, p in enumerate(parts) if m != n)
                kept = (
                    *self._asked.selectors[:k],
                    *((DeviceSelector(cel=CelSelector(expression=rest)),) if rest else ()),
                    *self._asked.selectors[k + 1 :],
                )
                changed = self._changed(selectors=kept)
                excluded = _count_devices(self._checks, self._claim, self._asked.device_class_name, text)
                yield _try(self._checks, changed, f"selector of {self._name}: {text}", "left out", excluded)

    def _capacity(self, name: str) -> Relaxed:
        """Return how much less of a capacity would have to be asked for."""
        assert self._asked.capacity is not None
        asked = self._asked.capacity.requests[name]
        amounts = _amounts(_of_class(self._checks, self._claim, self._asked.device_class_name), name)
        smaller = sorted((a for a in amounts if a.nano < asked.nano), key=lambda a: a.nano)
        excluded = sum(n for a, n in amounts.items() if a.nano < asked.nano)
        part = f"{name} {asked} of {self._name}"
        best: Relaxed | None = None
        low, high = 0, len(smaller)
        certain = True
        while low < high:
            middle = (low + high) // 2
            tried = self._try_capacity(name, smaller[middle], part, excluded)
            certain = certain and tried.proven
            if tried.answer is not None:
                best, low = tried, middle + 1
            else:
                high = middle
        return best or Relaxed(part, "left out", excluded, None, certain)

    def _try_capacity(self, name: str, amount: Quantity, part: str, excluded: int) -> Relaxed:
        assert self._asked.capacity is not None
        requests = {**self._asked.capacity.requests, name: amount}
        changed = self._changed(capacity=CapacityRequirements(requests=requests))
        return _try(self._checks, changed, part, f"{amount} instead", excluded)

    def _count(self) -> Relaxed:
        part = f"{self._asked.count} devices of {self._name}"
        best: Relaxed | None = None
        certain = True
        low, high = 1, self._asked.count - 1
        while low <= high:
            middle = (low + high) // 2
            tried = _try(self._checks, self._changed(count=middle), part, f"{middle} instead")
            certain = certain and tried.proven
            if tried.answer is not None:
                best, low = tried, middle + 1
            else:
                high = middle - 1
        return best or Relaxed(part, "1 instead", None, None, certain)

    def _taints(self) -> Iterator[Relaxed]:
        keys = sorted(_taint_keys(self._checks.devices))
        if keys:
            tolerations = (*self._asked.tolerations, DeviceToleration(operator="Exists"))
            part = f"device taints {', '.join(keys[:3])}{' and others' * (len(keys) > 3)} for {self._name}"
            yield _try(self._checks, self._changed(tolerations=tolerations), part, "tolerated")

    def _changed(self, **fields: object) -> Workload:
        i, j = self._at

        def change(claim: ResourceClaim) -> ResourceClaim:
            requests = list(claim.spec.devices.requests or ())
            requests[i] = _changed_request(requests[i], j, fields)
            devices = msgspec.structs.replace(claim.spec.devices, requests=tuple(requests))
            return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))

        return _with(self._workload, self._spec, change)


def _changed_request(request: DeviceRequest, at: int, fields: dict[str, object]) -> DeviceRequest:
    if at < 0:
        assert request.exactly is not None
        return msgspec.structs.replace(request, exactly=msgspec.structs.replace(request.exactly, **fields))
    subs = list(request.first_available)
    subs[at] = msgspec.structs.replace(subs[at], **fields)
    return msgspec.structs.replace(request, first_available=tuple(subs))


# --- devices of the cluster ---------------------------------------------------------------------------------


def _count_devices(checks: Checks, claim: ResourceClaim, class_name: str, expression: str) -> int:
    """Return how many devices of a class an expression of a claim excludes."""
    matches = checks.cluster.snapshot.selectors.matches
    of_class = _of_class(checks, claim, class_name)
    return sum(times for entry, times in of_class if matches(expression, entry) is not True)


def _of_class(checks: Checks, claim: ResourceClaim, class_name: str) -> Iterator[tuple[DeviceEntry, int]]:
    """Yield the devices of a class, each with the number of devices that are equal for the claim.

    Raises:
        OutOfTime: the deadline has passed.
    """
    snapshot = checks.cluster.snapshot
    of_class = snapshot.classes.get(class_name)
    selectors = [s.cel.expression for s in (of_class.spec.selectors if of_class else ()) if s.cel is not None]
    for entry, times in _devices(checks, claim):
        if checks.seconds_left <= 0:
            raise OutOfTime
        if all(snapshot.selectors.matches(s, entry) is True for s in selectors):
            yield entry, times


def _devices(checks: Checks, claim: ResourceClaim) -> Iterator[tuple[DeviceEntry, int]]:
    """Yield devices, each with the number of devices that are equal for the claim."""
    if checks.cluster.coupled:
        yield from ((entry, 1) for entry in checks.devices)
        return
    for names in similar_nodes(checks.empty, (claim,), ignore_taint=is_controller_taint):
        for pool in checks.empty.view(names[0]).pools:
            yield from ((entry, len(names)) for entry in pool.devices)


def _amounts(devices: Iterable[tuple[DeviceEntry, int]], capacity: str) -> dict[Quantity, int]:
    """Return the different amounts of a capacity that devices have, with their numbers."""
    bare = capacity.rpartition("/")[2]
    found: dict[Quantity, int] = {}
    for entry, times in devices:
        for key, value in entry.device.capacity.items():
            if key.rpartition("/")[2] == bare:
                found[value.value] = found.get(value.value, 0) + times
    return found


def _taint_keys(devices: Iterable[DeviceEntry]) -> set[str]:
    """Return the keys of taints that keep claims away."""
    return {
        taint.key
        for entry in devices
        for taint in entry.device.taints
        if blocks(taint) and not is_controller_taint(taint)
    }
