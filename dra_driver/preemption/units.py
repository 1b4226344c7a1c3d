"""Units of removal: pods that go together, because they share claims or belong to one group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.preemption.answers import Cost
from dra_driver.preemption.question import HoldingPod, OccupiedCluster, Preemptor

__all__ = ["Costs", "Unit", "Units", "devices_of", "room_of", "units_of"]

_OWN = "belongs to what preempts"
_NONE: Mapping[str, int] = {}
_NOT_OURS = "holds devices that are not allocated by this driver"


@dataclass(frozen=True, eq=False)
class Unit:
    """Pods that go together, at least one, with their claims.

    Attributes:
        pods: to be removed.
        claims: that are free then.
        devices: how many of them are, without admin access; one at least.
    """

    pods: tuple[HoldingPod, ...]
    claims: tuple[ResourceClaim, ...]
    devices: int

    @cached_property
    def cost(self) -> Cost:
        """What it costs alone, where every budget allows as much as it takes."""
        pods = self.pods
        if len(pods) == 1:
            pod = pods[0]
            several = int(len(pod.budgets) > 1)
            return Cost(several, pod.priority, 1, pod.priority, -pod.started, self.devices)
        priorities = [p.priority for p in pods]
        several = sum(len(p.budgets) > 1 for p in pods)
        work = -sum(p.started for p in pods)
        return Cost(several, max(priorities), len(pods), sum(priorities), work, self.devices)

    @cached_property
    def disruptions(self) -> Mapping[str, int]:
        """By how much it uses each budget."""
        if not any(pod.budgets for pod in self.pods):
            return _NONE
        return Counter(budget for pod in self.pods for budget in pod.budgets)

    @cached_property
    def gives(self) -> Mapping[str, tuple[int, ...]]:
        """What nodes have more of without the pods, besides devices."""
        return room_of(self.pods)


def devices_of(claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """Return what a claim has of devices, without admin access."""
    allocation = claim.status.allocation
    return [] if allocation is None else [r for r in allocation.devices.results if not r.admin_access]


def room_of(pods: Iterable[HoldingPod]) -> dict[str, tuple[int, ...]]:
    """Return what pods take of nodes."""
    found: dict[str, tuple[int, ...]] = {}
    for pod in pods:
        if pod.node and any(pod.takes):
            before = found.get(pod.node)
            after = tuple(map(sum, zip(before, pod.takes, strict=True))) if before else pod.takes
            found[pod.node] = after
    return found


@dataclass(frozen=True, slots=True)
class Units:
    """What holds devices, by what may become of it.

    Attributes:
        removable: victims.
        going: claims that come without a removal, and all pods that are being deleted.
        kept: claims that stay.
        why: number of the pods that stay, by reason.
    """

    removable: tuple[Unit, ...]
    going: tuple[tuple[ResourceClaim, ...], tuple[HoldingPod, ...]]
    kept: tuple[ResourceClaim, ...]
    why: Mapping[str, int]


def units_of(cluster: OccupiedCluster, preemptor: Preemptor) -> Units:
    """Return what holds devices of a cluster, as seen by a preemptor."""
    claims = {c.key: c for c in cluster.claims if c.status.allocation is not None}
    own = {c.key for member in preemptor.members for c in member.claims}
    removable: list[Unit] = []
    going: list[ResourceClaim] = []
    kept: list[ResourceClaim] = []
    why: Counter[str] = Counter()
    seen: set[ObjectKey] = set()
    for pods in _together(cluster.pods):
        keys = pods[0].claims if len(pods) == 1 else dict.fromkeys(k for p in pods for k in p.claims)
        seen.update(keys)
        stay = {k for p in pods if p.hangs for k in p.claims}
        kept += [claims[k] for k in stay if k in claims]
        held = tuple([claims[k] for k in keys if k in claims and k not in stay])
        live = tuple([p for p in pods if not (p.going or p.hangs)])
        if not live and own.isdisjoint(keys):
            going += held
            continue
        devices = sum([len(devices_of(c)) for c in held])
        reason = _OWN if not own.isdisjoint(keys) else _why_kept(live, held, cluster.ours, preemptor)
        if reason:
            why[reason] += len(live)
        if reason or not devices:
            kept += held
        else:
            removable.append(Unit(live, held, devices))
    kept += [c for key, c in claims.items() if key not in seen]
    ending = tuple(p for p in cluster.pods if p.going)
    return Units(tuple(removable), (tuple(going), ending), tuple(kept), why)


def _together(pods: Sequence[HoldingPod]) -> Iterable[list[HoldingPod]]:
    """Return the pods by what joins them, in the order of the first of each."""
    leader = list(range(len(pods)))
    first: dict[object, int] = {}

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for i, pod in enumerate(pods):
        for key in (*pod.claims, pod.group) if pod.group else pod.claims:
            known = first.setdefault(key, i)
            if known != i:
                a, b = sorted((find(i), find(known)))
                leader[b] = a
    found: defaultdict[int, list[HoldingPod]] = defaultdict(list)
    for i, pod in enumerate(pods):
        found[find(i)].append(pod)
    return found.values()


def _why_kept(
    pods: Sequence[HoldingPod],
    claims: Sequence[ResourceClaim],
    ours: Collection[PoolID] | None,
    preemptor: Preemptor,
) -> str:
    """Return why pods that go together stay; empty where they may go."""
    for pod in pods:
        if pod.key in preemptor.pods or (preemptor.group and pod.group == preemptor.group):
            return _OWN
    for pod in pods:
        if pod.priority >= preemptor.priority:
            return f"has priority {preemptor.priority} or higher"
    for pod in pods:
        if pod.kept:
            return pod.kept
    if ours is not None and any(PoolID(r.driver, r.pool) not in ours for c in claims for r in devices_of(c)):
        return _NOT_OURS
    return ""


class Costs:
    """What sets of units cost.

    Args:
        units: by number.
        allowed: disruptions that each budget allows.
    """

    def __init__(self, units: Sequence[Unit], allowed: Mapping[str, int]) -> None:
        self.units = units
        self._allowed = allowed

    def alone(self, unit: int) -> Cost:
        """Return what a unit costs by itself, where every budget allows as much as it takes."""
        return self.units[unit].cost

    def of(self, chosen: Iterable[int]) -> Cost:
        """Return what units cost together; one at least."""
        numbers = list(chosen)
        units = [self.units[i] for i in numbers]
        costs = [self.alone(i) for i in numbers]
        used: Counter[str] = Counter()
        for unit in units:
            used.update(unit.disruptions)
        beyond = sum(self.violated(used).values())
        return Cost(
            beyond + sum(c.violations for c in costs),
            max(c.highest for c in costs),
            sum(c.pods for c in costs),
            sum(c.priorities for c in costs),
            sum(c.work for c in costs),
            sum(c.devices for c in costs),
        )

    def violated(self, used: Mapping[str, int]) -> dict[str, int]:
        """Return by how many disruptions budgets are exceeded where so many of each are used."""
        beyond = {budget: n - max(0, self._allowed.get(budget, 0)) for budget, n in used.items()}
        return {budget: n for budget, n in beyond.items() if n > 0}
