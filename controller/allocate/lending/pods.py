"""The pods for which devices are lent."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.allocate.decide import Lend, PodID, Rank, Report, is_finished, report_of
from controller.allocate.lending.port import Loans
from controller.allocate.lending.shares import RecentShares
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, units
from dra_driver.ports import Clock
from dra_driver.publishing.loans import LoanState
from dra_driver.resourceclaim import extended_resources, pod_claims

__all__ = ["MOST_PODS", "Ending", "PodLoans", "wants_loan"]

log = structlog.get_logger(__name__)

MOST_PODS: Final = 4
"""Pods for which devices are lent at a time: so many without a gate may contend for what is lent."""

LOAN_SECONDS: Final = 30.0
"""For which kube-scheduler may use what is lent for a pod, from when it sees the pod."""

# A report that comes sooner may rest on slices as they were before the loan.
_REFUSED_SECONDS: Final = 5.0
# That the note and the slices may take to be written and seen.
_OPENING_SECONDS: Final = 60.0
_BEFORE_OPEN: Final = (LoanState.NOTING, LoanState.UNTAINTING, LoanState.LENT)


class Ending(enum.Enum):
    """Why the loan for a pod is over."""

    ALLOCATED = "allocated"
    GONE = "gone"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    TAKEN = "taken"
    INTERRUPTED = "interrupted"


@dataclass(slots=True)
class _PodLoan:
    """What is lent for one pod.

    Attributes:
        pod: which one.
        node: where.
        units: that are lent, with their devices, by pool.
        since: monotonic time in seconds when it began.
        opened: when kube-scheduler could see the pod and all devices; None: it cannot yet.
        before: what kube-scheduler had reported about the pod by then.
    """

    pod: PodID
    node: str
    units: Mapping[PoolID, Mapping[str, frozenset[str]]]
    since: float
    opened: float | None = None
    before: Report | None = None

    @property
    def devices(self) -> list[str]:
        return sorted(d for of_pool in self.units.values() for of_unit in of_pool.values() for d in of_unit)


@dataclass(slots=True)
class _Waiting:
    """Pods that wait until there is room for another loan."""

    ranks: dict[ObjectKey, Rank] = field(default_factory=dict)

    def first(self) -> ObjectKey | None:
        return min(self.ranks, key=self.ranks.__getitem__, default=None)


def wants_loan(pod: Pod) -> bool:
    """Return whether a pod asks for extended resources for which kube-scheduler has made no claim yet."""
    return (
        not pod.spec.node_name
        and pod.status.extended_resource_claim_status is None
        and bool(extended_resources(pod))
    )


class PodLoans:
    """For which pods devices are lent, and how far each loan is.

    A process that has just started lends for no pod: what an earlier one has lent comes back by itself.

    Attributes:
        ended: sent when a loan is over, with the pod, its node and why.

    Args:
        loans: of the publishing side.
        assume_cache: what is taken.
        shares: of devices, as far as they have just changed hands.
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
        shares: RecentShares,
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
        self.ended: Signal[[PodID, str, Ending]] = Signal()
        self._most = most
        self._of: dict[Uid, _PodLoan] = {}
        self._waiting = _Waiting()
        pods.add_handler(Handler(updated=lambda _, pod: self._seen(pod), deleted=self._deleted))
        loans.changed.listen(self._changed)

    def __len__(self) -> int:
        """Return for how many pods something is lent."""
        return len(self._of)

    def has(self, pod: Pod) -> bool:
        """Return whether something is lent for a pod."""
        return pod.metadata.uid in self._of

    # --- the beginning --------------------------------------------------------------------------------------

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
        if not self._has_room(key):
            self._waiting.ranks[key] = self._rank(key)
            return f"devices are lent for {len(self._of)} other pods; it is its turn after them", 0.0
        left = max((self._shares.left(p, d) for p, names in decision.devices for d in names), default=0.0)
        if left > 0:
            return "shares of its devices have just changed hands", left
        by_pool = {pool: self._units(pool, names) for pool, names in decision.devices}
        if not all(self._is_free(pool, names) for pool, names in by_pool.items()):
            return "its devices are being allocated", 1.0
        begun: list[PoolID] = []
        for pool, of_pool in by_pool.items():
            if not self._loans.lend(pool, of_pool):
                for other in begun:
                    self._loans.end(other, by_pool[other].keys())
                return "its devices cannot be lent yet", 1.0
            begun.append(pool)
        pod_id = PodID(key, pod.metadata.uid)
        loan = self._of[pod.metadata.uid] = _PodLoan(pod_id, decision.node, by_pool, self._clock.monotonic())
        log.info("lending devices", pod=str(key), node=decision.node, devices=loan.devices)
        return "", 0.0

    def skip(self, pod: Pod) -> None:
        """Take note that nothing is to be lent for a pod now: it waits for other things, and others go on."""
        self._forget(pod.key)

    def _has_room(self, key: ObjectKey) -> bool:
        """Return whether it is the turn of a pod: those that wait and come before it are counted."""
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
        """Return the node on which all is lent for a pod that kube-scheduler does not see yet; else empty."""
        loan = self._of.get(pod.metadata.uid)
        return loan.node if loan is not None and loan.opened is None and self._is_lent(loan) else ""

    def devices(self, pod: Pod) -> list[str]:
        """Return the devices that are lent for a pod."""
        loan = self._of.get(pod.metadata.uid)
        return loan.devices if loan is not None else []

    def opened(self, pod: Pod) -> None:
        """Note that kube-scheduler sees a pod from now on."""
        loan = self._of.get(pod.metadata.uid)
        if loan is not None:
            loan.opened, loan.before = self._clock.monotonic(), report_of(pod)

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

    def _judge(self, loan: _PodLoan, pod: Pod, now: float) -> tuple[Ending | None, float]:
        if is_finished(pod) or pod.metadata.deletion_timestamp:
            return Ending.GONE, 0.0
        if pod.spec.node_name or self._has_devices(pod):
            return Ending.ALLOCATED, 0.0
        if self._is_taken(loan):
            return Ending.TAKEN, 0.0
        if not self._goes_on(loan):
            return Ending.INTERRUPTED, 0.0
        if loan.opened is None:
            left = loan.since + _OPENING_SECONDS - now
            return (Ending.TIMEOUT, 0.0) if left <= 0 else (None, left)
        report = report_of(pod)
        refused = report is not None and report != loan.before
        left = loan.opened + (_REFUSED_SECONDS if refused else LOAN_SECONDS) - now
        if left > 0:
            return None, left
        return (Ending.REFUSED if refused else Ending.TIMEOUT), 0.0

    def _has_devices(self, pod: Pod) -> bool:
        claims = [self._assume_cache.get(u.key) if u.key is not None else None for u in pod_claims(pod)]
        allocated = all(c is not None and c.status.allocation is not None for c in claims)
        return allocated and not wants_loan(pod)

    def _is_taken(self, loan: _PodLoan) -> bool:
        """Return whether another pod has a device that was lent for this one."""
        return any(
            self._is_of_another(ObjectKey(*holder.split("/", 1)), loan.pod.uid)
            for pool, of_pool in loan.units.items()
            for devices in of_pool.values()
            for device in devices
            if (holder := self._assume_cache.taken(pool).devices.get(device)) is not None
        )

    def _is_of_another(self, key: ObjectKey, pod: Uid) -> bool:
        # kube-scheduler reserves a claim in the write that allocates it, before the pod says that it has it.
        claim = self._assume_cache.get(key)
        return claim is not None and all(user.uid != pod for user in claim.status.reserved_for)

    def _is_lent(self, loan: _PodLoan) -> bool:
        return all(state is LoanState.LENT for state in self._states(loan))

    def _goes_on(self, loan: _PodLoan) -> bool:
        return all(state in _BEFORE_OPEN for state in self._states(loan))

    def _states(self, loan: _PodLoan) -> Iterable[LoanState]:
        for pool, of_pool in loan.units.items():
            known = self._loans.loans(pool)
            for unit in of_pool:
                found = known.get(unit)
                yield found.state if found is not None else LoanState.OURS

    def _end(self, loan: _PodLoan, ending: Ending) -> None:
        self._of.pop(loan.pod.uid, None)
        for pool, of_pool in loan.units.items():
            self._loans.end(pool, of_pool.keys())
        log.info("loan is over", pod=str(loan.pod.key), node=loan.node, why=ending.value)
        self.ended.send(loan.pod, loan.node, ending)
        self._next()

    def _next(self) -> None:
        """Look at the pod whose turn it is."""
        first = self._waiting.first()
        if first is not None:
            self._look(first)

    # --- what informers show --------------------------------------------------------------------------------

    def _changed(self, pool: PoolID) -> None:
        for loan in self._of.values():
            if pool in loan.units:
                self._look(loan.pod.key)

    def _seen(self, pod: Pod) -> None:
        if pod.spec.node_name or is_finished(pod) or pod.metadata.deletion_timestamp:
            self._forget(pod.key)
        if pod.metadata.uid in self._of:
            # Nothing else is to be waited for: the sooner it ends, the sooner the devices are back.
            self.check(pod)
            self._look(pod.key)

    def _deleted(self, pod: Pod) -> None:
        self._forget(pod.key)
        loan = self._of.get(pod.metadata.uid)
        if loan is not None:
            self._end(loan, Ending.GONE)

    def _forget(self, key: ObjectKey) -> None:
        if self._waiting.ranks.pop(key, None) is not None:
            self._next()
