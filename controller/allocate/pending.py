"""Pods that could not be served, in the order in which they are looked at again.

Pods that ask for the same have one *signature*. They fit or do not fit together, so of each signature only
the oldest pod is tried when something changes; when it is served, the next one is. A change costs one
decision per signature, however many pods wait, and those that waited longest are served first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.resource import ResourceClaim

__all__ = ["PendingPods", "requests_of", "signature_of"]


def signature_of(pod: Pod, claims: Sequence[ResourceClaim], avoided: Collection[str]) -> bytes:
    """What decides whether the pod fits: equal signatures get equal answers in one state of the cluster.

    Args:
        pod: that waits.
        claims: that it needs allocated, of its own; none where its claims are shared or partly allocated:
            then the pod is a signature of its own.
        avoided: nodes that are left out for this pod.
    """
    if not claims or avoided or pod.spec.node_name:
        return str(pod.key).encode()
    spec = pod.spec
    needs = [c.resources.requests for c in (*spec.init_containers, *spec.containers)]
    return requests_of(claims) + codec.encode([spec.node_selector, spec.affinity, spec.tolerations, needs])


def requests_of(claims: Iterable[ResourceClaim]) -> bytes:
    """Return what claims ask for, without their names: the same for claims from one template."""
    return codec.encode(
        [[c.spec, (c.metadata.annotations or {}).get(TOPOLOGY_ANNOTATION, "")] for c in claims]
    )


class PendingPods:
    """See the module. Ages are creation timestamps; equal ones are ordered by key."""

    def __init__(self) -> None:
        self._signatures: dict[ObjectKey, bytes] = {}
        self._reasons: dict[ObjectKey, str] = {}
        self._pods: dict[bytes, dict[ObjectKey, tuple[str, ObjectKey]]] = {}

    def __len__(self) -> int:
        return len(self._signatures)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._signatures

    def reason(self, key: ObjectKey) -> str:
        """Why the pod waits, as it was told; empty where it does not wait, or nobody knows."""
        return self._reasons.get(key, "")

    def add(self, pod: Pod, signature: bytes, reason: str = "") -> None:
        """The pod waits; with another signature or for another reason than before, perhaps."""
        self.remove(pod.key)
        self._signatures[pod.key] = signature
        self._reasons[pod.key] = reason
        self._pods.setdefault(signature, {})[pod.key] = (pod.metadata.creation_timestamp or "", pod.key)

    def remove(self, key: ObjectKey) -> ObjectKey | None:
        """The pod waits no longer.

        Returns:
            the oldest pod that still waits with the same signature, if the pod waited and there is one.
        """
        self._reasons.pop(key, None)
        signature = self._signatures.pop(key, None)
        if signature is None:
            return None
        others = self._pods[signature]
        del others[key]
        if not others:
            del self._pods[signature]
            return None
        return min(others, key=others.__getitem__)

    def heads(self) -> list[ObjectKey]:
        """The oldest pod of each signature, oldest first."""
        oldest = [min(pods.values()) for pods in self._pods.values()]
        return [key for _, key in sorted(oldest)]
