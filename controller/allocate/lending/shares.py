"""Devices of which kube-scheduler may not know who has which share.

It would count on capacity that is gone, and the API server does not count. For whole devices it does not
matter: what is lent is free, and late writes are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.names import DEFAULT_SCHEDULER
from dra_driver.api.resource import ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID
from dra_driver.ports import Clock
from dra_driver.resourceclaim import pod_claims

__all__ = ["SETTLED_SECONDS", "UNSHOWN_SECONDS", "SettledShares"]

SETTLED_SECONDS: Final = 2.0
"""Since the last change of a share of a device until the device can be lent."""

UNSHOWN_SECONDS: Final = 60.0
"""Likewise where nothing has shown that kube-scheduler knows of a share."""

_Device = tuple[PoolID, str]


@dataclass(slots=True)
class _Given:
    """Shares of one claim.

    Attributes:
        claim: whose they are.
        devices: that they are shares of.
        since: monotonic time in seconds when this was seen.
        shown: names of the schedulers that have shown that they know of it.
    """

    claim: ObjectKey
    devices: frozenset[_Device]
    since: float
    shown: frozenset[str] = frozenset()


class SettledShares:
    """When kube-scheduler knows who has shares of a device.

    It shows that by binding a pod that has the claim: it binds none before it has seen the claim allocated.
    What it has seen it keeps, so that is certain, however late its watch may be. Where no pod
    is bound, as after a start of this process, only time is left. It may learn late that a share is free,
    in which case a loan would be in vain.

    Args:
        claims: followed from now on.
        pods: likewise.
        clock: for the time of changes.
    """

    def __init__(self, claims: Informer[ResourceClaim], pods: Informer[Pod], clock: Clock) -> None:
        self._clock = clock
        self._claims = claims
        self._given: dict[Uid, _Given] = {}
        self._by_device: dict[_Device, set[Uid]] = {}
        self._freed: dict[_Device, float] = {}
        # Pods that were bound since this process follows them, and by which scheduler.
        self._bound: dict[Uid, str] = {}
        claims.add_handler(Handler(added=self._seen, updated=self._updated, deleted=self._gone))
        pods.add_handler(Handler(updated=self._pod_updated, deleted=self._pod_deleted))

    def left(self, pool: PoolID, device: str, scheduler: str) -> float:
        """Return the seconds until a device can be lent, or has to be looked at again; 0: it can.

        Args:
            pool: of the device.
            device: its name.
            scheduler: ``spec.schedulerName`` of the pod for which it is lent.
        """
        now = self._clock.monotonic()
        left = self._freed.get((pool, device), now - SETTLED_SECONDS) + SETTLED_SECONDS - now
        for uid in self._by_device.get((pool, device), ()):
            given = self._given[uid]
            seconds = SETTLED_SECONDS if self._is_shown(given, scheduler) else UNSHOWN_SECONDS
            left = max(left, given.since + seconds - now)
        return max(0.0, min(left, SETTLED_SECONDS))

    def kept(self) -> int:
        """Return of how many claims, pods and devices something is kept."""
        self._forget()
        return len(self._given) + len(self._by_device) + len(self._bound) + len(self._freed)

    def _forget(self) -> None:
        past = self._clock.monotonic() - SETTLED_SECONDS
        self._freed = {key: at for key, at in self._freed.items() if at > past}

    def _is_shown(self, given: _Given, scheduler: str) -> bool:
        """Return whether a scheduler has bound a pod for which the claim is reserved.

        While it is, the claim is not allocated anew, so the pod was bound with what is allocated now.
        """
        claim = self._claims.get(given.claim)
        users = claim.status.reserved_for if claim is not None else ()
        given.shown |= {self._bound[user.uid] for user in users if user.uid in self._bound}
        return (scheduler or DEFAULT_SCHEDULER) in given.shown

    def _updated(self, old: ResourceClaim, new: ResourceClaim) -> None:
        if old.metadata.uid != new.metadata.uid or old.status.allocation != new.status.allocation:
            self._gone(old)
            self._seen(new)

    def _seen(self, claim: ResourceClaim) -> None:
        devices = frozenset(_shared(claim))
        if not devices:
            return
        self._given[claim.metadata.uid] = _Given(claim.key, devices, self._clock.monotonic())
        for device in devices:
            self._by_device.setdefault(device, set()).add(claim.metadata.uid)

    def _gone(self, claim: ResourceClaim) -> None:
        given = self._given.pop(claim.metadata.uid, None)
        if given is None:
            return
        self._forget()
        for device in given.devices:
            self._freed[device] = self._clock.monotonic()
            of_device = self._by_device[device]
            of_device.discard(claim.metadata.uid)
            if not of_device:
                del self._by_device[device]

    def _pod_updated(self, old: Pod, new: Pod) -> None:
        if old.metadata.uid != new.metadata.uid:
            self._bound.pop(old.metadata.uid, None)
        # One that is there with its node from the start may have been bound by anybody.
        elif not old.spec.node_name and new.spec.node_name and any(pod_claims(new)):
            self._bound[new.metadata.uid] = new.spec.scheduler_name or DEFAULT_SCHEDULER

    def _pod_deleted(self, pod: Pod) -> None:
        self._bound.pop(pod.metadata.uid, None)


def _shared(claim: ResourceClaim) -> Iterator[_Device]:
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.share_id is not None:
            yield PoolID(result.driver, result.pool), result.device
