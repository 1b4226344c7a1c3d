"""The scheduler's claims for extended resources that a DeviceClass serves, as kube-scheduler writes them.

While a pod waits, the claim exists in memory only. It is created once there is a node with devices for it;
``status.extendedResourceClaimStatus`` says which container gets which request. A claim that a failed attempt
has left is deleted, and the pod is tried again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from dra_driver import resourceclaim
from dra_driver.api import codec
from dra_driver.api.core import PODS, Node, Pod
from dra_driver.api.names import CLAIM_FINALIZER, EXTENDED_RESOURCE_ANNOTATION
from dra_driver.api.resource import RESOURCE_CLAIMS, DeviceClass, DeviceRequest, ResourceClaim
from dra_driver.errors import NotFound
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient

__all__ = ["ExtendedResources", "owner_uids", "served_by_classes"]


def owner_uids(claim: ResourceClaim) -> Iterable[Hashable]:
    """Return the UIDs of a claim's owners, for the claim informer's index ``owner``."""
    return [owner.uid for owner in claim.metadata.owner_references or ()]


class ExtendedResources:
    """The extended resources that pods request, and the claims for them.

    Args:
        api: the API server.
        classes: all device classes.
        claims: all claims, with the index ``owner``.
    """

    def __init__(
        self, api: KubeClient, classes: Informer[DeviceClass], claims: Informer[ResourceClaim]
    ) -> None:
        self._api = api
        self._claims = claims
        self._classes = classes
        self._by_resource: Mapping[str, DeviceClass] | None = None
        self._made: dict[str, ResourceClaim] = {}  # pod UID → claim that the watch may not have shown yet
        classes.add_handler(
            Handler(
                added=lambda _: self._classes_changed(),
                updated=lambda _old, _new: self._classes_changed(),
                deleted=lambda _: self._classes_changed(),
            )
        )

    def _classes_changed(self) -> None:
        self._by_resource = None

    def wanted(self, pod: Pod) -> Mapping[str, DeviceClass]:
        """Return the pod's resources that a class serves; none for most pods."""
        names = resourceclaim.extended_resources(pod)
        if not names:
            return {}
        if self._by_resource is None:
            self._by_resource = resourceclaim.classes_by_resource(self._classes.items())
        return {name: self._by_resource[name] for name in names if name in self._by_resource}

    def left_over(self, pod: Pod) -> ResourceClaim | None:
        """Return the claim of a failed attempt; None if there is none."""
        found: Iterable[ResourceClaim] = self._claims.by_index("owner", pod.metadata.uid)
        made = self._made.get(pod.metadata.uid)
        candidates = [*found, *([made] if made is not None else [])]
        return next((c for c in candidates if resourceclaim.is_extended_claim(c, pod.metadata.uid)), None)

    def forget(self, pods: Collection[str]) -> None:
        """Forget all pods but these, given by UID."""
        for uid in [u for u in self._made if u not in pods]:
            del self._made[uid]

    async def create(self, pod: Pod, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """Create the claim, not allocated yet."""
        body = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {
                "generateName": f"{pod.metadata.name}-extended-resources-",
                "namespace": pod.metadata.namespace,
                "annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"},
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": pod.metadata.name,
                        "uid": pod.metadata.uid,
                        "controller": True,
                    }
                ],
            },
            "spec": {"devices": {"requests": codec.plain(list(requests))}},
        }
        claim = await self._api.create(RESOURCE_CLAIMS, body, pod.metadata.namespace)
        self._made[pod.metadata.uid] = claim
        return claim

    async def record(self, pod: Pod, claim: ResourceClaim, share: resourceclaim.Share) -> None:
        """Write into the pod's status which container gets which request."""
        status = {
            "resourceClaimName": claim.metadata.name,
            "requestMappings": codec.plain(list(share.mappings)),
        }
        await self._api.merge_patch(
            PODS,
            pod.metadata.name,
            {"metadata": {"uid": pod.metadata.uid}, "status": {"extendedResourceClaimStatus": status}},
            pod.metadata.namespace,
            subresource="status",
        )

    async def delete(self, pod: Pod, claim: ResourceClaim) -> None:
        """Delete a claim at once, allocated or not."""
        name, namespace = claim.metadata.name, claim.metadata.namespace
        with contextlib.suppress(NotFound):
            current = await self._api.get(RESOURCE_CLAIMS, name, namespace)
            if current.metadata.uid == claim.metadata.uid:
                await self._delete(current)
        self._made.pop(pod.metadata.uid, None)

    async def _delete(self, claim: ResourceClaim) -> None:
        name, namespace = claim.metadata.name, claim.metadata.namespace
        finalizers = claim.metadata.finalizers or ()
        if CLAIM_FINALIZER in finalizers:
            left = [f for f in finalizers if f != CLAIM_FINALIZER]
            version = claim.metadata.resource_version
            patch = {"metadata": {"finalizers": left or None, "resourceVersion": version}}
            await self._api.merge_patch(RESOURCE_CLAIMS, name, patch, namespace)
        await self._api.delete(RESOURCE_CLAIMS, name, namespace, uid=claim.metadata.uid)


def served_by_classes(wanted: Mapping[str, DeviceClass], node: Node) -> Mapping[str, DeviceClass]:
    """Return those of the requested resources that this node does not offer through a device plugin."""
    return {name: c for name, c in wanted.items() if not node.status.allocatable.get(name)}
