"""The pods for which devices are lent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.allocate.decide import (
    Lend,
    LentNode,
    PodID,
    Rank,
    claims_of,
    is_finished,
    report_of,
)
from controller.allocate.lending.loan import LOAN_SECONDS, Ending, NodeLoan, PodLoan, is_refused
from controller.allocate.lending.port import Loans
from controller.allocate.lending.shares import SettledShares
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.fleet import LentToPod
from dra_driver.kube import Handler, Informer
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import MAX_RECALLED, PoolID, units
from dra_driver.ports import Clock
from dra_driver.publishing.loans import LoanState
from dra_driver.resourceclaim import extended_resources, lacks_extended_claim, pod_claims

__all__ = ["MOST_INSTEAD", "MOST_PODS", "PodLoans", "wants_loan"]

log = structlog.get_logger(__name__)

MOST_PODS: Final = 4
"""Pods for which devices are lent at a time: so many without a gate may contend for what is lent."""

MOST_INSTEAD: Final = 2
"""Of these, pods that the controller could serve itself: the others have nothing but loans."""

VOLUME_SECONDS: Final = 100.0
"""Likewise where it waits for volumes to be made before it writes the claims."""

# A report that comes sooner may rest on slices as they were before the loan.
_REFUSED_SECONDS: Final = 5.0
# That the note and the slices may take to be written and seen.
_OPENING_SECONDS: Final = 60.0
# A pod rests after its second loan in vain, then for twice as long each time: others have their turn.
_REST_SECONDS: Final = 15.0
_LONGEST_REST: Final = 600.0
# After something could not be lent for a pod that the controller can serve itself.
_INSTEAD_SECONDS: Final = 5.0
# Devices that may still be lent below which a pod gets those of one node only.
_SCARCE: Final = MAX_RECALLED // 2
_BEFORE_OPEN: Final = (LoanState.NOTING, LoanState.UNTAINTING, LoanState.LENT)


@dataclass(frozen=True, slots=True)
class _Rest:
    """A pod for which devices were lent in vain, so often one after the other, and until when it rests."""

    times: int
    until: float


@dataclass(slots=True)
class _Waiting:
    """Pods that wait until there is room for another loan."""

    ranks: dict[ObjectKey, Rank] = field(default_factory=dict)

    def first(self) -> ObjectKey | None:
        return min(self.ranks, key=self.ranks.__getitem__, default=None)


def wants_loan(pod: Pod, claim_of: Callable[[ObjectKey], ResourceClaim | None]) -> bool:
    """Return whether a pod asks for extended resources for which kube-scheduler has made no claim yet."""
    if pod.spec.node_name or not extended_resources(pod):
        return False
    return lacks_extended_claim(pod, claim_of)


class PodLoans:
    """For which pods devices are lent, and how far each loan is.

    A process that has just started lends for no pod: what an earlier one has lent comes back by itself.

    Attributes:
        ended: sent when a loan is over, with the pod, its nodes and why.

    Args:
        loans: of the publishing side.
        assume_cache: what is taken.
        shares: of devices, as far as kube-scheduler knows them.
        slices_of: the slices of a pool as they are.
        pods: all namespaces.
        clock: for the times of a loan.
        look: has a pod looked at.
        rank: of a pod.
        most: pods at a time.
    """

    def __init__(
        self,
        loans: Loans,
        assume_cache: AssumeCache,
        shares: SettledShares,
        slices_of: Callable[[PoolID], Iterable[ResourceSlice]],
        pods: Informer[Pod],
        clock: Clock,
        look: Callable[[ObjectKey], None],
        rank: Callable[[ObjectKey], Rank],
        most: int = MOST_PODS,
    ) -> None:
        self._loans = loans
        self._assume_cache = assume_cache
        self._shares = shares
        self._slices_of = slices_of
        self._pods = pods
        self._clock = clock
        self._look = look
        self._rank = rank
        self.ended: Signal[[PodID, tuple[str, ...], Ending]] = Signal()
        self._most = most
        self._of: dict[Uid, PodLoan] = {}
        self._instead: set[Uid] = set()
        self._claims: Counter[ObjectKey] = Counter()
        self._rests: dict[Uid, _Rest] = {}
        # Until when the controller serves pods itself, although something might be lent.
        self._here: dict[Uid, float] = {}
        self._waiting = _Waiting()
        pods.add_handler(Handler(updated=lambda _, pod: self._seen(pod), deleted=self._deleted))
        loans.changed.listen(self._changed)

    def __len__(self) -> int:
        """Return for how many pods something is lent."""
        return len(self._of)

    def shown(self) -> tuple[LentToPod, ...]:
        """Return for which pods what is lent, for people."""
        now, past = self._clock.now(), self._clock.monotonic()
        return tuple(
            LentToPod(
                pod=str(loan.pod.key),
                node=place.node,
                since=rfc3339(now - (past - loan.since)),
                state=min(self._states(place), key=list(LoanState).index).name.lower(),
                devices=place.devices,
            )
            for loan in self._of.values()
            for place in loan.places
        )

    def has(self, pod: Pod) -> bool:
        """Return whether something is lent for a pod."""
        return pod.metadata.uid in self._of

    def wants(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources that it has not got yet."""
        return wants_loan(pod, self._assume_cache.get)

    def holds(self, claims: Iterable[ObjectKey]) -> bool:
        """Return whether something is lent for a pod that uses one of these claims: they are not ours now."""
        return any(key in self._claims for key in claims)

    # --- the beginning --------------------------------------------------------------------------------------

    def serves_instead(self, pod: Pod) -> bool:
        """Return whether something may be lent now for a pod that the controller could serve itself."""
        return (
            not self._waiting.ranks
            and len(self._of) < self._most
            and len(self._instead) < MOST_INSTEAD
            and self._left_to_rest(pod) <= 0
            and self._here.get(pod.metadata.uid, 0.0) <= self._clock.monotonic()
            and not self._loans.obstacle()
        )

    def begin(self, pod: Pod, decision: Lend) -> tuple[str, float]:
        """Lend for a pod what was decided; nothing may be awaited since the decision was judged.

        Returns:
            Why it was not done, empty if it was; and seconds after which to look again, 0: not.
        """
        key = pod.key
        if self.has(pod):
            return "", 0.0
        self._waiting.ranks.pop(key, None)
        if obstacle := self._loans.obstacle():
            return f"nothing can be lent to kube-scheduler now: {obstacle}", 5.0
        if (left := self._left_to_rest(pod)) > 0:
            times = self._rests[pod.metadata.uid].times
            return f"devices were lent {times} times in vain; they are again in {left:.0f} s", left
        if not self._has_room(key, instead=decision.instead):
            if not decision.instead:
                self._waiting.ranks[key] = self._rank(key)
            return f"devices are lent for {len(self._of)} other pods; it is its turn after them", 0.0
        if any(c is not None and self._assume_cache.is_assumed(c) for c in self._known(pod)):
            return "a claim of the pod is being allocated", 1.0
        places: list[NodeLoan] = []
        for one in decision.nodes:
            if places and self._loans.room() < _SCARCE:
                break
            place = self._lend(one, pod.spec.scheduler_name)
            if isinstance(place, NodeLoan):
                places.append(place)
            elif not places:
                return place
        self._put(pod, places, decision)
        log.info("lending devices", pod=str(key), devices={place.node: place.devices for place in places})
        if len(self._of) < self._most:
            self._next()
        return "", 0.0

    def _lend(self, one: LentNode, to: str) -> NodeLoan | tuple[str, float]:
        """Begin to lend on one node to a scheduler, all or nothing; as ``begin`` where that is not done."""
        left = max((self._shares.left(p, d, to) for p, names in one.devices for d in names), default=0.0)
        if left > 0:
            return "kube-scheduler may not know yet who has which share of its devices", left
        place = NodeLoan(one.node, {pool: self._units(pool, names) for pool, names in one.devices})
        if not all(self._is_free(pool, names) for pool, names in place.units.items()):
            return "its devices are being allocated", 1.0
        begun: list[PoolID] = []
        for pool, of_pool in place.units.items():
            if not self._loans.lend(pool, of_pool):
                for other in begun:
                    self._loans.end(other, place.units[other].keys())
                return "its devices cannot be lent yet", 1.0
            begun.append(pool)
        return place

    def _put(self, pod: Pod, places: list[NodeLoan], decision: Lend) -> None:
        uid = pod.metadata.uid
        self._of[uid] = loan = PodLoan(
            PodID(pod.key, uid),
            places,
            tuple(place.node for place in places),
            frozenset(claims_of(pod)),
            self._clock.monotonic(),
            VOLUME_SECONDS if decision.slow else LOAN_SECONDS,
        )
        self._claims.update(loan.claims)
        if decision.instead:
            self._instead.add(uid)

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be lent for a pod now: it waits for other things, and others go on."""
        self._forget(pod.key)

    def serve_here(self, pod: Pod) -> None:
        """Have the controller serve a pod itself for a moment: nothing could be lent in place of that."""
        self._here[pod.metadata.uid] = self._clock.monotonic() + _INSTEAD_SECONDS

    def _left_to_rest(self, pod: Pod) -> float:
        known = self._rests.get(pod.metadata.uid)
        return known.until - self._clock.monotonic() if known is not None else 0.0

    def _has_room(self, key: ObjectKey, *, instead: bool) -> bool:
        """Return whether it is the turn of a pod: those that wait and come before it are counted."""
        if instead and len(self._instead) >= MOST_INSTEAD:
            return False
        rank = self._rank(key)
        before = sum(other < rank for k, other in self._waiting.ranks.items() if k != key)
        return len(self._of) + before < self._most

    def _units(self, pool: PoolID, names: Iterable[str]) -> dict[str, frozenset[str]]:
        of_device = units(self._slices_of(pool))
        found: dict[str, set[str]] = {}
        for name in names:
            found.setdefault(of_device.get(name, name), set()).add(name)
        return {unit: frozenset(devices) for unit, devices in found.items()}

    def _is_free(self, pool: PoolID, lent: Mapping[str, frozenset[str]]) -> bool:
        """Return whether nobody has the devices, and no allocation in their units is being written."""
        taken = self._assume_cache.taken(pool)
        if any(device in taken.devices for devices in lent.values() for device in devices):
            return False
        of_device = units(self._slices_of(pool))
        return not any(of_device.get(name, name) in lent for name in self._assume_cache.being_written(pool))

    # --- what becomes of it ---------------------------------------------------------------------------------

    def opens(self, pod: Pod) -> str:
        """Return the best node for a pod that kube-scheduler is to see now, as all is lent; else empty."""
        loan = self._of.get(pod.metadata.uid)
        if loan is None or loan.opened is not None or not all(map(self._is_lent, loan.places)):
            return ""
        return loan.places[0].node

    def devices(self, pod: Pod) -> Mapping[str, tuple[str, ...]]:
        """Return the devices that are lent for a pod, by node, the best one first."""
        loan = self._of.get(pod.metadata.uid)
        return {place.node: place.devices for place in loan.places} if loan is not None else {}

    def opened(self, pod: Pod, nominated: str) -> float:
        """Note that kube-scheduler sees a pod from now on; return for how many seconds it may use all.

        Args:
            pod: as it is known.
            nominated: its resourceVersion as from which its node is nominated.
        """
        loan = self._of.get(pod.metadata.uid)
        if loan is None:
            return 0.0
        loan.opened, loan.before, loan.nominated = self._clock.monotonic(), report_of(pod), nominated
        return loan.seconds

    def check(self, pod: Pod) -> float:
        """End the loan for a pod if that is over; return the seconds until it has to be looked at again."""
        loan = self._of.get(pod.metadata.uid)
        if loan is None:
            return 0.0
        now = self._clock.monotonic()
        ending, left = self._judge(loan, pod, now)
        if ending is not None:
            self._end(loan, ending)
            return 0.0
        return left

    def _judge(self, loan: PodLoan, pod: Pod, now: float) -> tuple[Ending | None, float]:
        if is_finished(pod) or pod.metadata.deletion_timestamp:
            return Ending.GONE, 0.0
        if pod.spec.node_name or self._has_devices(pod):
            return Ending.ALLOCATED, 0.0
        over = self._leave(loan)
        if over is not None:
            return over, 0.0
        if loan.opened is None:
            left = loan.since + _OPENING_SECONDS - now
            return (Ending.TIMEOUT, 0.0) if left <= 0 else (None, left)
        refused = is_refused(loan, pod)
        left = loan.opened + (_REFUSED_SECONDS if refused else loan.seconds) - now
        if left > 0:
            return None, left
        return (Ending.REFUSED if refused else Ending.TIMEOUT), 0.0

    def _leave(self, loan: PodLoan) -> Ending | None:
        """End the loan on nodes where it is of no use any more; return why, if none are left."""
        why: Ending | None = None
        for place in list(loan.places):
            if self._is_taken(place, loan.pod.uid):
                why = Ending.TAKEN
            elif not all(state in _BEFORE_OPEN for state in self._states(place)):
                why = why or Ending.INTERRUPTED
            else:
                continue
            loan.places.remove(place)
            self._end_place(place)
        return why if not loan.places else None

    def _has_devices(self, pod: Pod) -> bool:
        allocated = all(c is not None and c.status.allocation is not None for c in self._known(pod))
        return allocated and not wants_loan(pod, self._assume_cache.get)

    def _known(self, pod: Pod) -> Iterator[ResourceClaim | None]:
        """Yield the claims of a pod as they are known; None for those that are not."""
        return (self._assume_cache.get(u.key) if u.key is not None else None for u in pod_claims(pod))

    def _is_taken(self, place: NodeLoan, pod: Uid) -> bool:
        """Return whether another pod has a device that was lent for this one."""
        return any(
            self._is_of_another(ObjectKey(*holder.split("/", 1)), pod)
            for pool, of_pool in place.units.items()
            for devices in of_pool.values()
            for device in devices
            if (holder := self._assume_cache.taken(pool).devices.get(device)) is not None
        )

    def _is_of_another(self, key: ObjectKey, pod: Uid) -> bool:
        # kube-scheduler reserves a claim in the write that allocates it, before the pod says that it has it.
        claim = self._assume_cache.get(key)
        return claim is not None and all(user.uid != pod for user in claim.status.reserved_for)

    def _is_lent(self, place: NodeLoan) -> bool:
        return all(state is LoanState.LENT for state in self._states(place))

    def _states(self, place: NodeLoan) -> Iterable[LoanState]:
        for pool, of_pool in place.units.items():
            known = self._loans.loans(pool)
            for unit in of_pool:
                found = known.get(unit)
                yield found.state if found is not None else LoanState.OURS

    def _end_place(self, place: NodeLoan) -> None:
        for pool, of_pool in place.units.items():
            self._loans.end(pool, of_pool.keys())

    def _end(self, loan: PodLoan, ending: Ending) -> None:
        uid = loan.pod.uid
        self._of.pop(uid, None)
        self._instead.discard(uid)
        self._claims -= Counter(loan.claims)
        for place in loan.places:
            self._end_place(place)
        if ending in (Ending.TIMEOUT, Ending.REFUSED):
            times = self._rests[uid].times + 1 if uid in self._rests else 1
            rest = min(_REST_SECONDS * float(1 << min(times - 2, 16)), _LONGEST_REST) if times > 1 else 0.0
            self._rests[uid] = _Rest(times, self._clock.monotonic() + rest)
        log.info("loan is over", pod=str(loan.pod.key), nodes=loan.nodes, why=ending.value)
        self.ended.send(loan.pod, loan.nodes, ending)
        self._next()

    def _next(self) -> None:
        """Look at the pod whose turn it is."""
        first = self._waiting.first()
        if first is not None:
            self._look(first)

    # --- what informers show --------------------------------------------------------------------------------

    def _changed(self, pool: PoolID) -> None:
        for loan in self._of.values():
            if any(pool in place.units for place in loan.places):
                self._look(loan.pod.key)

    def _seen(self, pod: Pod) -> None:
        if pod.spec.node_name or is_finished(pod) or pod.metadata.deletion_timestamp:
            self._forget(pod.key)
            self._forget_times(pod.metadata.uid)
        if pod.metadata.uid in self._of:
            # Nothing else is to be waited for: the sooner it ends, the sooner the devices are back.
            self.check(pod)
            self._look(pod.key)

    def _deleted(self, pod: Pod) -> None:
        self._forget(pod.key)
        loan = self._of.get(pod.metadata.uid)
        if loan is not None:
            self._end(loan, Ending.GONE)
        self._forget_times(pod.metadata.uid)

    def _forget_times(self, pod: Uid) -> None:
        self._rests.pop(pod, None)
        self._here.pop(pod, None)

    def _forget(self, key: ObjectKey) -> None:
        if self._waiting.ranks.pop(key, None) is not None:
            self._next()
