"""What a workload wants of a node as numbers of single devices, request by request.

That is less than claims ask for: constraints between devices are left out, of alternatives the least number
of any of their devices is wanted, and of requests for all devices, and those with admin access, nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from dra_driver.api import codec, names
from dra_driver.api.resource import DeviceClaim, DeviceRequest, ResourceClaim
from dra_driver.ownership import is_controller_taint
from dra_driver.planning.holders.areas import areas_of
from dra_driver.planning.holders.packing import AreaKind, Vector
from dra_driver.planning.holders.spreading import Load
from dra_driver.planning.holders.tables import AreaTables, Memory
from dra_driver.structured import Snapshot, suitable_devices

__all__ = ["NodeTables", "Wanted"]

# Requests that differ; more would have too many combinations of numbers.
_MOST_KINDS = 6


@dataclass(slots=True)
class Wanted:
    """The requests of a workload that differ, each as a kind of device.

    Args:
        units: the claims of each kind of unit.

    Attributes:
        kinds: claims with one of the requests each.
        numbers: how many devices of each kind a unit of each kind needs.
        exact: whether nothing was left out.
    """

    units: Sequence[Sequence[ResourceClaim]]
    kinds: list[ResourceClaim] = field(default_factory=list)
    numbers: list[Vector] = field(default_factory=list)
    exact: bool = True

    def __post_init__(self) -> None:
        places: dict[bytes, int] = {}
        needs: list[dict[int, int]] = []
        for claims in self.units:
            needs.append({})
            for claim in claims:
                if claim.status.allocation is None:
                    self._take(claim, places, needs[-1])
        self.numbers = [tuple(of.get(i, 0) for i in range(len(self.kinds))) for of in needs]

    def _take(self, claim: ResourceClaim, places: dict[bytes, int], needs: dict[int, int]) -> None:
        asked = claim.spec.devices
        annotated = names.TOPOLOGY_ANNOTATION in (claim.metadata.annotations or {})
        self.exact = self.exact and not asked.constraints and not annotated
        for request in asked.requests or ():
            number = _least(request)
            self.exact = self.exact and request.exactly is not None and number > 0
            if not number:
                continue
            single = _single(claim, request)
            place = places.setdefault(codec.encode(single.spec), len(self.kinds))
            if place == len(self.kinds):
                self.kinds.append(single)
            needs[place] = needs.get(place, 0) + number

    @property
    def countable(self) -> bool:
        """Whether there are kinds, and few enough of them."""
        return 0 < len(self.kinds) <= _MOST_KINDS

    def of(self, load: Load) -> Vector:
        """Return the devices of each kind that a load needs."""
        pairs = list(zip(load, self.numbers, strict=True))
        return tuple(sum(count * number[i] for count, number in pairs) for i in range(len(self.kinds)))


def _least(request: DeviceRequest) -> int:
    """Return the number of devices that a request needs at least; 0 where it may be none."""
    if request.exactly is not None:
        asked = request.exactly
        return 0 if asked.allocation_mode == "All" or asked.admin_access else max(1, asked.count)
    return min(
        (0 if s.allocation_mode == "All" else max(1, s.count) for s in request.first_available), default=0
    )


def _single(claim: ResourceClaim, request: DeviceRequest) -> ResourceClaim:
    """Return a claim for one device of a request."""
    exactly, subs = request.exactly, request.first_available
    one = DeviceRequest(
        name="one",
        exactly=None if exactly is None else msgspec.structs.replace(exactly, count=1, derived_attributes=()),
        first_available=tuple(msgspec.structs.replace(s, count=1, derived_attributes=()) for s in subs),
    )
    spec = msgspec.structs.replace(claim.spec, devices=DeviceClaim(requests=(one,)))
    return ResourceClaim(metadata=claim.metadata, spec=spec)


@dataclass(frozen=True, slots=True)
class NodeTables:
    """The tables of one kind of node.

    Attributes:
        tables: of its areas.
        limited: kinds of devices of which there is an end.
        exact: whether devices are as ``Wanted`` counts them.
    """

    tables: AreaTables
    limited: tuple[bool, ...]
    exact: bool

    @classmethod
    def of(cls, empty: Snapshot, node: str, wanted: Wanted, memory: Memory) -> NodeTables:
        """Return what a node can have.

        Args:
            empty: the cluster with nothing allocated.
            node: its name.
            wanted: the kinds of devices.
            memory: shared by all nodes.
        """
        view = empty.view(node)
        entries = [e for pool in view.pools for e in pool.devices]
        entries += [e for pool in view.pools for e in pool.elsewhere]
        suitable = [
            suitable_devices(empty, (kind,), node, ignore_taint=is_controller_taint) for kind in wanted.kinds
        ]
        # The tables know counters only, so with groups they say what there is at most.
        grouped = any(pool.grouped for pool in view.pools)
        limited = tuple(not any(entries[i].shareable for i in of) for of in suitable)
        counters = {
            (pool.id, name, counter): amount.value.nano
            for pool in view.pools
            for name, of in pool.counter_sets.items()
            for counter, amount in of.counters.items()
        }
        areas = []
        for positions in areas_of(entries):
            kinds = [tuple(k for k, of in enumerate(suitable) if limited[k] and i in of) for i in positions]
            if any(kinds):
                areas.append((positions, AreaKind.of([entries[i] for i in positions], kinds, counters)))
        return cls(AreaTables(areas, memory), limited, wanted.exact and all(limited) and not grouped)

    def needs(self, wanted: Vector) -> Vector:
        """Return what is wanted as far as it is limited."""
        return tuple(n if limited else 0 for n, limited in zip(wanted, self.limited, strict=True))
