"""The pods for which devices are granted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from controller.allocate.decide import (
    GrantDevices,
    GrantedNode,
    PodID,
    Rank,
    claims_of,
    is_ending,
    report_of,
)
from controller.allocate.granting.grant import GRANT_SECONDS, Ending, NodeGrant, PodGrant, verdict
from controller.allocate.granting.port import Grants, Wanted
from controller.allocate.granting.turns import GrantTurns
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.doubling import doubled
from dra_driver.fleet import GrantedToPod
from dra_driver.kube import Handler, Informer
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import PoolID, is_newer, units
from dra_driver.ports import Clock
from dra_driver.publishing.grants import GrantState
from dra_driver.resourceclaim import extended_resources, lacks_extended_claim, pod_claims

__all__ = ["MOST_INSTEAD", "MOST_PODS", "PodGrants", "wants_grant"]

log = structlog.get_logger(__name__)

MOST_PODS: Final = 16
"""Pods for which devices are granted at a time: what one does not use is kept from others for a while."""

MOST_INSTEAD: Final = 8
"""Of these, pods that the controller could serve itself: the others have nothing but grants."""

VOLUME_SECONDS: Final = 100.0
"""For which kube-scheduler may use what is granted where it waits for volumes to be made before it writes."""

# A report that comes sooner may rest on what kube-scheduler saw of the cluster a moment before.
_REFUSED_SECONDS: Final = 5.0
# After it has failed to write what it chose: it tries again after one second, a pod that it has tried often
# after ten.
_ELSEWHERE_SECONDS: Final = 3.0
_LATE_SECONDS: Final = 12.0
# That the object may take to be written.
_OPENING_SECONDS: Final = 60.0
# A pod rests after its second grant in vain, then for twice as long each time: others have their turn.
_REST_SECONDS: Final = 15.0
_LONGEST_REST: Final = 600.0
# After something could not be granted for a pod that the controller can serve itself.
_INSTEAD_SECONDS: Final = 5.0
# Devices for which there is room below which a pod gets those of one node only.
_SCARCE: Final = 256
_IN_VAIN: Final = (Ending.TIMEOUT, Ending.REFUSED, Ending.ELSEWHERE)


@dataclass(frozen=True, slots=True)
class _Rest:
    """A pod for which devices were granted in vain, so often one after the other, and until when it rests."""

    times: int
    until: float


def _after_reports(
    grant: PodGrant, failed: Ending | None, now: float, opened: float
) -> tuple[Ending | None, float]:
    """Return how the grants for a pod end by what kube-scheduler has said, or after how many seconds.

    What it has chosen and may not allocate it may have chosen before: it tries again, and is sent to the node
    again for that.
    """
    grant.refused |= failed is Ending.REFUSED
    if failed is Ending.ELSEWHERE:
        if grant.again:
            return Ending.ELSEWHERE, 0.0
        grant.elsewhere = now if grant.elsewhere is None else grant.elsewhere
    ends = [(opened + grant.seconds, Ending.TIMEOUT)]
    if grant.refused:
        ends.append((opened + _REFUSED_SECONDS, Ending.REFUSED))
    if grant.elsewhere is not None:
        seconds = _ELSEWHERE_SECONDS if grant.first else _LATE_SECONDS
        ends.append((grant.elsewhere + seconds, Ending.ELSEWHERE))
    end, ending = min(ends, key=lambda one: one[0])
    return (None, end - now) if end > now else (ending, 0.0)


def wants_grant(pod: Pod, claim_of: Callable[[ObjectKey], ResourceClaim | None]) -> bool:
    """Return whether a pod asks for extended resources for which kube-scheduler has made no claim yet."""
    if pod.spec.node_name or not extended_resources(pod):
        return False
    return lacks_extended_claim(pod, claim_of)


class PodGrants:
    """For which pods devices are granted, and how far each grant is.

    A process that has just started grants nothing: what an earlier one has granted ends by itself.

    Attributes:
        ended: sent when the grants for a pod are over, with the pod, its nodes and why.

    Args:
        grants: of the publishing side.
        assume_cache: what is taken.
        slices_of: the slices of a pool as they are.
        pods: all namespaces.
        clock: for the times of a grant.
        look: has a pod looked at.
        rank: of a pod.
        most: pods at a time.
    """

    def __init__(
        self,
        grants: Grants,
        assume_cache: AssumeCache,
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
        pods: Informer[Pod],
        clock: Clock,
        look: Callable[[ObjectKey], None],
        rank: Callable[[ObjectKey], Rank],
        most: int = MOST_PODS,
    ) -> None:
        self._grants = grants
        self._assume_cache = assume_cache
        self._slices_of = slices_of
        self._pods = pods
        self._clock = clock
        self._look = look
        self._rank = rank
        self.ended: Signal[[PodID, tuple[str, ...], Ending]] = Signal()
        self._most = most
        self._of: dict[Uid, PodGrant] = {}
        self._instead: set[Uid] = set()
        self._claims: Counter[ObjectKey] = Counter()
        self._rests: dict[Uid, _Rest] = {}
        # Until when the controller serves pods itself, although something might be granted.
        self._here: dict[Uid, float] = {}
        self._turns = GrantTurns(most)
        pods.add_handler(Handler(updated=lambda _, pod: self._seen(pod), deleted=self._deleted))
        grants.changed.listen(self._changed)

    def __len__(self) -> int:
        """Return for how many pods something is granted."""
        return len(self._of)

    def shown(self) -> tuple[GrantedToPod, ...]:
        """Return for which pods what is granted, for people."""
        now, past = self._clock.now(), self._clock.monotonic()
        return tuple(
            GrantedToPod(
                pod=str(grant.pod.key),
                node=place.node,
                since=rfc3339(now - (past - grant.since)),
                state=min(self._states(place), key=list(GrantState).index).name.lower(),
                devices=place.devices,
            )
            for grant in self._of.values()
            for place in grant.places
        )

    def has(self, pod: Pod) -> bool:
        """Return whether something is granted for a pod."""
        return pod.metadata.uid in self._of

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources that it has not got yet."""
        return wants_grant(pod, self._assume_cache.get)

    def holds(self, claims: Iterable[ObjectKey]) -> bool:
        """Return whether something is granted for a pod that uses one of these claims: they are not ours."""
        return any(key in self._claims for key in claims)

    # --- the beginning --------------------------------------------------------------------------------------

    def serves_instead(self, pod: Pod) -> bool:
        """Return whether something may be granted now for a pod that the controller could serve itself."""
        held = self._held()
        return (
            self._turns.first(held) is None
            and self._turns.may(pod.metadata.namespace, held)
            and len(self._of) < self._most
            and len(self._instead) < MOST_INSTEAD
            and self._left_to_rest(pod) <= 0
            and self._here.get(pod.metadata.uid, 0.0) <= self._clock.monotonic()
            and not self._grants.obstacle()
        )

    def begin(self, pod: Pod, decision: GrantDevices) -> tuple[str, float]:
        """Grant for a pod what was decided; nothing may be awaited since the decision was judged.

        Returns:
            Why it was not done, empty if it was; and seconds after which to look again, 0: not.
        """
        key = pod.key
        if self.has(pod):
            return "", 0.0
        if obstacle := self._grants.obstacle():
            return f"nothing can be granted to kube-scheduler now: {obstacle}", 5.0
        self._turns.forget(key)
        if (left := self._left_to_rest(pod)) > 0:
            times = self._rests[pod.metadata.uid].times
            return f"devices were granted {times} times in vain; they are again in {left:.0f} s", left
        if not self._has_room(key, instead=decision.instead):
            if not decision.instead:
                self._turns.wait(key, self._rank(key))
            few = not self._turns.may(key.namespace, self._held())
            why = "pods of its namespace have not used theirs, so that it has few at a time; " if few else ""
            return f"devices are granted for {len(self._of)} other pods; {why}it is its turn after them", 0.0
        if any(c is not None and self._assume_cache.is_assumed(c) for c in self._known(pod)):
            self._next()
            return "a claim of the pod is being allocated", 1.0
        places: list[NodeGrant] = []
        for one in decision.nodes:
            if places and self._grants.room() < _SCARCE:
                break
            place = self._grant(one)
            if isinstance(place, NodeGrant):
                places.append(place)
            elif not places:
                self._next()
                return place
        self._put(pod, places, decision)
        log.info("granting devices", pod=str(key), devices={place.node: place.devices for place in places})
        if len(self._of) < self._most:
            self._next()
        return "", 0.0

    def _grant(self, one: GrantedNode) -> NodeGrant | tuple[str, float]:
        """Begin to grant what is on one node, all or nothing; as ``begin`` where that is not done."""
        place = NodeGrant(one.node, self._units(one))
        if not all(self._is_free(pool, of_pool) for pool, of_pool in place.units.items()):
            return "its devices are being allocated", 1.0
        if not self._grants.grant(place.units):
            return "its devices cannot be granted yet", 1.0
        return place

    def _put(self, pod: Pod, places: list[NodeGrant], decision: GrantDevices) -> None:
        uid = pod.metadata.uid
        self._of[uid] = grant = PodGrant(
            PodID(pod.key, uid),
            places,
            tuple(place.node for place in places),
            frozenset(claims_of(pod)),
            self._clock.monotonic(),
            VOLUME_SECONDS if decision.slow else GRANT_SECONDS,
        )
        self._claims.update(grant.claims)
        if decision.instead:
            self._instead.add(uid)

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be granted for a pod now: it waits for other things, others go on."""
        self._forget(pod.key)

    def serve_here(self, pod: Pod) -> None:
        """Have the controller serve a pod itself for a moment: nothing could be granted in place of that."""
        self._here[pod.metadata.uid] = self._clock.monotonic() + _INSTEAD_SECONDS

    def _left_to_rest(self, pod: Pod) -> float:
        known = self._rests.get(pod.metadata.uid)
        return known.until - self._clock.monotonic() if known is not None else 0.0

    def _has_room(self, key: ObjectKey, *, instead: bool) -> bool:
        """Return whether it is the turn of a pod: those that wait and come before it are counted."""
        if instead and len(self._instead) >= MOST_INSTEAD:
            return False
        return self._turns.has_room(key, self._rank(key), self._held())

    def _units(self, one: GrantedNode) -> Wanted:
        found: dict[PoolID, dict[str, dict[str, frozenset[str]]]] = {}
        for pool, key, names in one.devices:
            of_device = units(self._slices_of(pool))
            of_pool = found.setdefault(pool, {})
            for name in names:
                of_unit = of_pool.setdefault(of_device.get(name, name), {})
                of_unit[key] = of_unit.get(key, frozenset()) | {name}
        return found

    def _is_free(self, pool: PoolID, wanted: Mapping[str, Mapping[str, frozenset[str]]]) -> bool:
        """Return whether nobody has the devices, and no allocation in their units is being written."""
        taken = self._assume_cache.taken(pool).devices
        of_units = wanted.values()
        if any(device in taken for of_unit in of_units for names in of_unit.values() for device in names):
            return False
        of_device = units(self._slices_of(pool))
        return not any(of_device.get(name, name) in wanted for name in self._assume_cache.being_written(pool))

    # --- what becomes of it ---------------------------------------------------------------------------------

    def opens(self, pod: Pod) -> str:
        """Return the best node for a pod that kube-scheduler is to see now, as all is granted; else empty."""
        grant = self._of.get(pod.metadata.uid)
        if grant is None or grant.opened is not None or not all(map(self._is_granted, grant.places)):
            return ""
        return grant.places[0].node

    def lacks_nomination(self, pod: Pod) -> str:
        """Return the best node for a pod of which kube-scheduler has cleared the nomination; else empty.

        It tries the pod again, and would look at all nodes: on most of them it may not take what it finds.
        """
        grant = self._of.get(pod.metadata.uid)
        if grant is None or grant.opened is None or pod.status.nominated_node_name:
            return ""
        return grant.places[0].node if is_newer(pod.metadata.resource_version, grant.nominated) else ""

    def devices(self, pod: Pod) -> Mapping[str, tuple[str, ...]]:
        """Return the devices that are granted for a pod, by node, the best one first."""
        grant = self._of.get(pod.metadata.uid)
        return {place.node: place.devices for place in grant.places} if grant is not None else {}

    def opened(self, pod: Pod, nominated: str, *, first: bool) -> float:
        """Note that kube-scheduler sees a pod from now on; return for how many seconds it may use all.

        Args:
            pod: as it is known.
            nominated: its resourceVersion as from which its node is nominated.
            first: whether kube-scheduler has not seen it before.
        """
        grant = self._of.get(pod.metadata.uid)
        if grant is None:
            return 0.0
        grant.opened, grant.before, grant.nominated = self._clock.monotonic(), report_of(pod), nominated
        grant.first = first
        return grant.seconds

    def renominated(self, pod: Pod, nominated: str) -> None:
        """Note as from which resourceVersion the node of a pod is nominated again."""
        grant = self._of.get(pod.metadata.uid)
        if grant is not None:
            grant.before, grant.nominated = report_of(pod), nominated
            grant.again = grant.elsewhere is not None

    def check(self, pod: Pod) -> float:
        """End the grants for a pod if they are over; return the seconds until the next look at it."""
        grant = self._of.get(pod.metadata.uid)
        if grant is None:
            return 0.0
        ending, left = self._judge(grant, pod, self._clock.monotonic())
        if ending is not None:
            self._end(grant, ending)
            return 0.0
        return left

    def _judge(self, grant: PodGrant, pod: Pod, now: float) -> tuple[Ending | None, float]:
        if pod.spec.node_name or self._has_devices(pod):
            return Ending.ALLOCATED, 0.0
        if is_ending(pod):
            return Ending.GONE, 0.0
        self._leave(grant)
        if not grant.places:
            return Ending.INTERRUPTED, 0.0
        if grant.opened is None:
            left = grant.since + _OPENING_SECONDS - now
            return (Ending.TIMEOUT, 0.0) if left <= 0 else (None, left)
        return _after_reports(grant, verdict(grant, pod), now, grant.opened)

    def _leave(self, grant: PodGrant) -> None:
        """End the grants on nodes where they are of no use any more."""
        for place in list(grant.places):
            if not all(state.listed for state in self._states(place)):
                grant.places.remove(place)
                self._end_place(place)

    def _has_devices(self, pod: Pod) -> bool:
        allocated = all(c is not None and c.status.allocation is not None for c in self._known(pod))
        return allocated and not wants_grant(pod, self._assume_cache.get)

    def _known(self, pod: Pod) -> Iterator[ResourceClaim | None]:
        """Yield the claims of a pod as they are known; None for those that are not."""
        return (self._assume_cache.get(u.key) if u.key is not None else None for u in pod_claims(pod))

    def _is_granted(self, place: NodeGrant) -> bool:
        return all(state is GrantState.GRANTED for state in self._states(place))

    def _states(self, place: NodeGrant) -> Iterable[GrantState]:
        for pool, of_pool in place.units.items():
            known = self._grants.grants(pool)
            for unit in of_pool:
                found = known.get(unit)
                yield found.state if found is not None else GrantState.OURS

    def _end_place(self, place: NodeGrant) -> None:
        for pool, of_pool in place.units.items():
            self._grants.end(pool, of_pool.keys())

    def _end(self, grant: PodGrant, ending: Ending) -> None:
        uid = grant.pod.uid
        self._of.pop(uid, None)
        self._instead.discard(uid)
        self._claims -= Counter(grant.claims)
        for place in grant.places:
            self._end_place(place)
        self._turns.ended(grant.pod.key.namespace, ending)
        if ending in _IN_VAIN:
            times = self._rests[uid].times + 1 if uid in self._rests else 1
            rest = doubled(_REST_SECONDS, times - 2, _LONGEST_REST) if times > 1 else 0.0
            self._rests[uid] = _Rest(times, self._clock.monotonic() + rest)
        log.info("grants are over", pod=str(grant.pod.key), nodes=grant.nodes, why=ending.value)
        self.ended.send(grant.pod, grant.nodes, ending)
        self._next()

    def _held(self) -> Mapping[str, int]:
        """Return for how many pods of each namespace something is granted."""
        return Counter(grant.pod.key.namespace for grant in self._of.values())

    def _next(self) -> None:
        """Look at the pod whose turn it is."""
        first = self._turns.first(self._held())
        if first is not None:
            self._look(first)

    # --- what informers show --------------------------------------------------------------------------------

    def _changed(self, pool: PoolID) -> None:
        for grant in self._of.values():
            if any(pool in place.units for place in grant.places):
                self._look(grant.pod.key)

    def _seen(self, pod: Pod) -> None:
        if pod.spec.node_name or is_ending(pod):
            self._forget(pod.key)
            self._forget_times(pod.metadata.uid)
        if pod.metadata.uid in self._of:
            # Nothing else is to be waited for: the sooner it ends, the sooner the devices are back.
            self.check(pod)
            self._look(pod.key)

    def _deleted(self, pod: Pod) -> None:
        self._forget(pod.key)
        grant = self._of.get(pod.metadata.uid)
        if grant is not None:
            self._end(grant, Ending.GONE)
        self._forget_times(pod.metadata.uid)

    def _forget_times(self, pod: Uid) -> None:
        self._rests.pop(pod, None)
        self._here.pop(pod, None)

    def _forget(self, key: ObjectKey) -> None:
        if self._turns.forget(key):
            self._next()
