"""Pods that could not be served, in the order in which they are looked at again.

Pods that ask for the same have one *signature*. They fit or do not fit together, so of each signature only
the oldest pod is tried when something changes; when it is served, the next one is. A change costs one
decision per signature, however many pods wait, and those that waited longest are served first.
"""

from __future__ import annotations

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey

__all__ = ["PendingPods"]


class PendingPods:
    """Pods that wait, by signature. Ages are creation timestamps; equal ones are ordered by key."""

    def __init__(self) -> None:
        self._signatures: dict[ObjectKey, bytes] = {}
        self._reasons: dict[ObjectKey, str] = {}
        self._pods: dict[bytes, dict[ObjectKey, tuple[str, ObjectKey]]] = {}

    def __len__(self) -> int:
        return len(self._signatures)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._signatures

    def reason(self, key: ObjectKey) -> str:
        """Return why a pod waits, as its Event said; empty where it does not wait."""
        return self._reasons.get(key, "")

    def add(self, pod: Pod, signature: bytes, reason: str = "") -> None:
        """Note that a pod waits; with another signature or for another reason than before, perhaps."""
        self.remove(pod.key)
        self._signatures[pod.key] = signature
        self._reasons[pod.key] = reason
        self._pods.setdefault(signature, {})[pod.key] = (pod.metadata.creation_timestamp or "", pod.key)

    def remove(self, key: ObjectKey) -> ObjectKey | None:
        """Note that a pod waits no longer.

        Returns:
            The oldest pod that still waits with the same signature, if the pod waited and there is one.
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
        """Return the oldest pod of each signature, oldest first."""
        oldest = [min(pods.values()) for pods in self._pods.values()]
        return [key for _, key in sorted(oldest)]
