"""Small clusters for tests of the allocator, and a checker of allocations that shares no code with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import builders
import msgspec
from builders import DRIVER

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    AllocationResult,
    Device,
    DeviceClass,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dra_driver.structured import AllocatedState, Snapshot


def device(name: str, memory: str = "", **fields: Any) -> dict[str, Any]:
    """A device as raw data; ``attributes`` take plain values."""
    return builders.device(name, memory, **{"attributes": {}, **fields})


def pool(node: str, *devices: dict[str, Any], driver: str = DRIVER, **spec: Any) -> ResourceSlice:
    """The one slice of the pool of a node."""
    return codec.convert(ResourceSlice, builders.resource_slice(node, *devices, driver=driver, **spec))


def partitioned_pool(
    node: str, counters: Mapping[str, Mapping[str, str]], *devices: dict[str, Any]
) -> list[ResourceSlice]:
    """A pool of two slices: counters, and devices that take from them."""
    sets = [
        {"name": s, "counters": {c: {"value": v} for c, v in amounts.items()}}
        for s, amounts in counters.items()
    ]
    first = builders.resource_slice(node, name=f"{node}-0", count=2, sharedCounters=sets)
    second = builders.resource_slice(node, *devices, name=f"{node}-1", count=2)
    return [codec.convert(ResourceSlice, body) for body in (first, second)]


def takes(counter_set: str, **amounts: str) -> list[dict[str, Any]]:
    """``consumesCounters`` of a partition."""
    return [{"counterSet": counter_set, "counters": {n: {"value": v} for n, v in amounts.items()}}]


def node(name: str, **labels: str) -> Node:
    return codec.convert(Node, {"metadata": {"name": name, "labels": labels}})


def gpu_class(name: str = "gpu", **spec: Any) -> DeviceClass:
    return codec.convert(DeviceClass, builders.device_class(name, **spec))


def exactly(count: int | None = 1, memory: str = "", **fields: Any) -> dict[str, Any]:
    """``exactly`` or a subrequest; a count of None means all devices."""
    raw: dict[str, Any] = {"deviceClassName": "gpu", **fields}
    raw |= {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    if memory:
        raw["capacity"] = {"requests": {"memory": memory}}
    return raw


def claim(name: str, *requests: dict[str, Any], **devices: Any) -> ResourceClaim:
    """A claim; each request is the content of ``exactly``, or a whole request where it has a name."""
    full = [r if "exactly" in r or "firstAvailable" in r else {"exactly": r} for r in requests]
    named = [{"name": f"req-{i}", **r} for i, r in enumerate(full)]
    return codec.convert(ResourceClaim, builders.claim(name, uid=f"uid-{name}", requests=named, **devices))


def annotated(of: ResourceClaim, topology: str) -> ResourceClaim:
    """The claim with a wish for the topology of its devices."""
    metadata = msgspec.structs.replace(of.metadata, annotations={TOPOLOGY_ANNOTATION: topology})
    return msgspec.structs.replace(of, metadata=metadata)


def allocated(of: ResourceClaim, result: AllocationResult) -> ResourceClaim:
    return ResourceClaim(metadata=of.metadata, spec=of.spec, status=ResourceClaimStatus(allocation=result))


def snapshot(
    *slices: ResourceSlice | Sequence[ResourceSlice],
    taken: Iterable[ResourceClaim] = (),
    nodes: Sequence[Node] = (),
    classes: Sequence[DeviceClass] = (),
) -> Snapshot:
    """A snapshot of slices; nodes that they name exist."""
    flat = [s for item in slices for s in ([item] if isinstance(item, ResourceSlice) else item)]
    named = sorted({s.spec.node_name for s in flat if s.spec.node_name} - {n.metadata.name for n in nodes})
    return Snapshot.build(
        slices=flat,
        classes=[gpu_class(), *classes],
        nodes=[*nodes, *(node(name) for name in named)],
        allocated=AllocatedState.from_claims(taken),
    )


def names(result: AllocationResult) -> list[str]:
    return [f"{r.pool}/{r.device}" for r in result.devices.results]


# --- the checker --------------------------------------------------------------------------------------------


class Checker:
    """What the API promises about allocations, told from the objects alone; classes select everything."""

    def __init__(self, slices: Sequence[ResourceSlice], taken: Sequence[ResourceClaim]) -> None:
        self.devices: dict[tuple[str, str, str], Device] = {}
        self.counters: dict[tuple[str, str, str, str], int] = {}
        self.node_of: dict[tuple[str, str, str], str | None] = {}
        for s in slices:
            for c in s.spec.shared_counters:
                for name, amount in c.counters.items():
                    self.counters[s.spec.driver, s.spec.pool.name, c.name, name] = amount.value.nano
            for d in s.spec.devices:
                key = (s.spec.driver, s.spec.pool.name, d.name)
                self.devices[key] = d
                self.node_of[key] = s.spec.node_name
        self.taken = [
            r for c in taken if c.status.allocation is not None for r in c.status.allocation.devices.results
        ]

    def problems(
        self, at: str, claims: Sequence[ResourceClaim], results: Sequence[AllocationResult]
    ) -> list[str]:
        """Everything that is wrong with an allocation."""
        found: list[str] = []
        new = [r for result in results for r in result.devices.results]
        for r in new:
            key = (r.driver, r.pool, r.device)
            if key not in self.devices:
                found.append(f"{key} does not exist")
            elif self.node_of[key] != at:
                found.append(f"{key} is not on {at}")
        if found:
            return found
        found += self._exclusive(new)
        found += self._shared([*self.taken, *new])
        found += self._counted([*self.taken, *new])
        for of, result in zip(claims, results, strict=True):
            found += self._requests(of, result, at)
            found += self._constraints(of, result)
        return found

    def _device(self, r: DeviceRequestAllocationResult) -> Device:
        return self.devices[r.driver, r.pool, r.device]

    def _exclusive(self, new: Sequence[DeviceRequestAllocationResult]) -> list[str]:
        whole = Counter(
            (r.driver, r.pool, r.device)
            for r in [*self.taken, *new]
            if not r.admin_access and r.share_id is None
        )
        return [f"{key} is allocated {n} times" for key, n in whole.items() if n > 1]

    def _shared(self, every: Sequence[DeviceRequestAllocationResult]) -> list[str]:
        used: dict[tuple[str, str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        found = []
        # Admin access looks at devices, it takes nothing of them.
        for r in (r for r in every if not r.admin_access):
            if (r.share_id is not None) != bool(self._device(r).allow_multiple_allocations):
                found.append(f"{r.device}: shareID and allowMultipleAllocations do not agree")
            for name, amount in r.consumed_capacity.items():
                used[r.driver, r.pool, r.device][name] += amount.nano
        for key, amounts in used.items():
            for name, nano in amounts.items():
                if nano > self.devices[key].capacity[name].value.nano:
                    found.append(f"{key}: more {name} is given away than there is")
        ids = Counter(r.share_id for r in every if r.share_id is not None)
        return found + [f"shareID {i} is used {n} times" for i, n in ids.items() if n > 1]

    def _counted(self, every: Sequence[DeviceRequestAllocationResult]) -> list[str]:
        left = dict(self.counters)
        for driver, pool_name, name in {(r.driver, r.pool, r.device) for r in every if not r.admin_access}:
            for consumed in self.devices[driver, pool_name, name].consumes_counters:
                for counter, amount in consumed.counters.items():
                    left[driver, pool_name, consumed.counter_set, counter] -= amount.value.nano
        return [f"counter {key} is over-committed" for key, amount in left.items() if amount < 0]

    def _enough_left(self, capacity: Any, key: tuple[str, str, str]) -> bool:
        asked: Mapping[str, Quantity] = capacity.requests if capacity is not None else {}
        for name, has in self.devices[key].capacity.items():
            used = sum(
                r.consumed_capacity[name].nano
                for r in self.taken
                if (r.driver, r.pool, r.device) == key and not r.admin_access and name in r.consumed_capacity
            )
            if used + asked.get(name, has.value).nano > has.value.nano:
                return False
        return True

    def _requests(self, of: ResourceClaim, result: AllocationResult, at: str) -> list[str]:
        found = []
        by_request: dict[str, list[DeviceRequestAllocationResult]] = defaultdict(list)
        for r in result.devices.results:
            by_request[r.request].append(r)
        for request in of.spec.devices.requests or ():
            options = (
                {f"{request.name}/{s.name}": s for s in request.first_available}
                if request.first_available
                else {request.name: request.exactly}
            )
            given = [name for name in options if name in by_request]
            if len(given) != 1:
                found.append(f"{request.name}: {len(given)} alternatives are served")
                continue
            spec, got = options[given[0]], by_request.pop(given[0])
            assert spec is not None
            if spec.allocation_mode == "All":
                want = {
                    key
                    for key, d in self.devices.items()
                    if self.node_of[key] == at
                    and _big_enough(spec.capacity, d)
                    # A shared device without enough left does not count among "all devices", except for
                    # those who only look at it.
                    and (any(r.admin_access for r in got) or self._enough_left(spec.capacity, key))
                }
                if {(r.driver, r.pool, r.device) for r in got} != want:
                    found.append(f"{given[0]}: not all devices")
            elif len({(r.driver, r.pool, r.device) for r in got}) != spec.count:
                found.append(f"{given[0]}: {len(got)} devices instead of {spec.count}")
            for r in got:
                if not _big_enough(spec.capacity, self._device(r)):
                    found.append(f"{r.device} is too small")
                if not _tolerated(spec.tolerations, self._device(r)):
                    found.append(f"{r.device} is tainted")
        if by_request:
            found.append(f"results for unknown requests {sorted(by_request)}")
        return found + (["more than 32 devices"] if len(result.devices.results) > 32 else [])

    def _constraints(self, of: ResourceClaim, result: AllocationResult) -> list[str]:
        found = []
        for constraint in of.spec.devices.constraints:
            name = (constraint.match_attribute or constraint.distinct_attribute or "").rpartition("/")[2]
            values = [
                self._device(r).attributes.get(name)
                for r in result.devices.results
                if not constraint.requests
                or r.request in constraint.requests
                or r.request.partition("/")[0] in constraint.requests
            ]
            if None in values:
                found.append(f"{name} is absent")
            elif constraint.match_attribute and len(set(values)) > 1:
                found.append(f"{name} is not the same")
            elif constraint.distinct_attribute and len(set(values)) < len(values):
                found.append(f"{name} is not distinct")
        return found


def _big_enough(capacity: Any, of: Device) -> bool:
    asked: Mapping[str, Quantity] = capacity.requests if capacity is not None else {}
    return all(n in of.capacity and of.capacity[n].value >= amount for n, amount in asked.items())


def _tolerated(tolerations: Any, of: Device) -> bool:
    return all(
        t.effect == "None" or any(x.operator == "Exists" and x.key in ("", t.key) for x in tolerations)
        for t in of.taints
    )
