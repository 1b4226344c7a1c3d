"""What is known of pods and their claims right now: the questions that every room asks, answered once."""

from __future__ import annotations

from collections.abc import Iterator

from controller.allocate.decide import CLAIM_INDEX, NODE_INDEX, PodID, claims_of, is_finished
from controller.allocate.state.assume_cache import AssumeCache
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import ResourceClaim
from dra_driver.kube import Handler, Informer
from dra_driver.resourceclaim import claims_named, extended_resources, lacks_extended_claim

__all__ = ["KnownPods"]


class KnownPods:
    """Finds pods, and the claims that they use, with what this process has written of them.

    Args:
        pods: all namespaces, with the indices ``CLAIM_INDEX`` and ``NODE_INDEX``.
        assume_cache: the newest version of each claim.
    """

    def __init__(self, pods: Informer[Pod], assume_cache: AssumeCache) -> None:
        self._pods = pods
        self._assume_cache = assume_cache

    # --- pods -----------------------------------------------------------------------------------------------

    def follow(self, handler: Handler[Pod]) -> None:
        """Call a handler with each change from now on."""
        self._pods.add_handler(handler)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.items())

    def get(self, key: ObjectKey) -> Pod | None:
        """Return the pod with a key; it may be another one than the one that had it before."""
        return self._pods.get(key)

    def find(self, pod: PodID) -> Pod | None:
        """Return a pod as it is now, if it is still there."""
        found = self._pods.get(pod.key)
        return found if found is not None and found.metadata.uid == pod.uid else None

    def users_of(self, claim: ObjectKey) -> Iterator[Pod]:
        """Yield the pods that use a claim, in order; nothing may change meanwhile."""
        return iter(self._pods.each(CLAIM_INDEX, claim))

    def is_cleared_by_scheduler(self, node: str) -> bool:
        """Return whether kube-scheduler evicts pods from a nominated node (KEP-3329, DisruptionTarget).

        It is making room for a pod then, which others leave to it.
        """
        return bool(node) and any(
            condition.get("type") == "DisruptionTarget" and condition.get("reason") == "PreemptionByScheduler"
            for victim in self._pods.each(NODE_INDEX, node)
            for condition in victim.status.conditions
            if not is_finished(victim)
        )

    # --- their claims ---------------------------------------------------------------------------------------

    def claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims that a pod uses, those that are there."""
        return [c for key in claims_of(pod) if (c := self._assume_cache.get(key)) is not None]

    def lacks_devices(self, pod: Pod) -> bool:
        """Return whether a claim of a pod is not allocated, nor being written."""
        if is_finished(pod):
            return False
        claims = map(self._assume_cache.get, claims_named(pod))
        return any(
            c is not None and c.status.allocation is None and not self._assume_cache.is_assumed(c)
            for c in claims
        )

    def lacks_extended_claim(self, pod: Pod) -> bool:
        """Return whether a pod asks for extended resources for which kube-scheduler has made no claim yet."""
        return bool(extended_resources(pod)) and lacks_extended_claim(pod, self._assume_cache.get)

    def is_being_allocated(self, pod: Pod) -> bool:
        """Return whether an allocation of a claim of a pod is being written."""
        return any(map(self._assume_cache.is_assumed, self.claims(pod)))
