"""Allocations of ours that no pod uses."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from controller.allocate.deallocation import Deallocator
from controller.allocate.decide import is_finished
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.wakeups import Wakeups
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.resourceclaim import foreign_gates, is_served

__all__ = ["UnusedAllocations"]

log = structlog.get_logger(__name__)


class UnusedAllocations:
    """Deallocates claims of ours whose pods went away before kube-scheduler reserved them.

    The controller-manager deallocates when a reservation ends, so it never looks at such a claim. A claim is
    ours also when its pool has gone to kube-scheduler since, which allocates and reserves in one write.
    """

    def __init__(
        self,
        schedulers: Collection[str],
        pods: KnownPods,
        assume_cache: AssumeCache,
        owners: CurrentOwners,
        deallocator: Deallocator,
        wakeups: Wakeups,
    ) -> None:
        """Connect the parts.

        Args:
            schedulers: whose pods are served.
            pods: all namespaces.
            assume_cache: the newest version of each claim.
            owners: know whose a pool is.
            deallocator: does it.
            wakeups: claims that are looked at again when something changes.
        """
        self._schedulers = schedulers
        self._pods = pods
        self._assume_cache = assume_cache
        self._owners = owners
        self._deallocator = deallocator
        self._wakeups = wakeups

    async def reconcile(self, key: ObjectKey) -> None:
        """Deallocate one claim if no pod uses it. A pod that another controller gates does not use it yet.

        Raises:
            ApiError: it cannot be deallocated now.
        """
        claim = self._assume_cache.get(key)
        if (
            claim is None
            or claim.status.allocation is None
            or claim.status.reserved_for
            or claim.metadata.deletion_timestamp
        ):
            return
        if self._assume_cache.is_assumed(claim):
            # The API server has it, but its answer was lost: the writer does not know yet.
            self._wakeups.check_use(key)
            return
        users = self._pods.users_of(key)
        if any(self._may_use(pod) for pod in users):
            return
        allocation = claim.status.allocation
        if not (self._owners.are_ours(allocation) or self._owners.are_left_to_scheduler(allocation)):
            if self._owners.may_become_ours(allocation):
                self._wakeups.unused_later.add(key)
            return
        log.info("deallocating a claim that no pod uses", claim=str(key))
        await self._deallocator.deallocate(claim)

    def _may_use(self, pod: Pod) -> bool:
        """Return whether a pod runs, or may be placed: an API server binds none that is being deleted."""
        if is_finished(pod) or foreign_gates(pod):
            return False
        unbound = not pod.spec.node_name
        return not (unbound and (pod.metadata.deletion_timestamp or not is_served(pod, self._schedulers)))
