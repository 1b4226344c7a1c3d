"""The parts of kube-controller-manager that DRA needs: resource claim controller, garbage collection.

What they write, and when, follows recordings of Kubernetes 1.36: claims are generated from templates, for
gated pods as well; reservations of deleted pods are removed; claims with the delete-protection finalizer are
deallocated with their last reservation; generated claims are deleted once their pod is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar

import structlog

from dra_driver import resourceclaim
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod, PodResourceClaim
from dra_driver.api.meta import ObjectKey, OwnerReference, Resource, Uid, WireObject
from dra_driver.api.names import CLAIM_FINALIZER, POD_CLAIM_ANNOTATION
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_driver.errors import Conflict, NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, SystemClock, WorkQueue
from dra_driver.ports import KubeClient
from dra_driver.sim.objects import OWNED_KINDS, OWNER_KINDS, MetaObject

__all__ = ["ClaimController", "GarbageCollector"]

log = structlog.get_logger(__name__)

_KEPT_SECONDS = 60.0
_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
FINISHED = ("Succeeded", "Failed")


def _done(pod: Pod) -> bool:
    """Return whether the pod will never run again: it has ended, or was deleted before it was bound."""
    return pod.status.phase in FINISHED or (
        pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    )


class _Made:
    """Claims that were created and that the watch has not shown; without them a second one would be created.

    kube-controller-manager keeps them for a minute as well (its ``MutationCache``).
    """

    def __init__(self) -> None:
        self._of: dict[Uid, dict[str, tuple[float, ResourceClaim]]] = {}

    def add(self, pod: Uid, claim: ResourceClaim) -> None:
        """Keep a claim that was created for a pod."""
        now = asyncio.get_running_loop().time()
        self._of.setdefault(pod, {})[claim.metadata.name] = (now, claim)

    def of(self, pod: Uid) -> dict[str, ResourceClaim]:
        """Return the claims of a pod by name."""
        oldest = asyncio.get_running_loop().time() - _KEPT_SECONDS
        found = {name: made for name, made in self._of.pop(pod, {}).items() if made[0] > oldest}
        if found:
            self._of[pod] = found
        return {name: claim for name, (_, claim) in found.items()}

    def discard(self, claim: ResourceClaim) -> None:
        """Forget a claim that the watch has shown."""
        for owner in claim.metadata.owner_references or ():
            if (made := self._of.get(owner.uid)) is not None:
                made.pop(claim.metadata.name, None)
                if not made:
                    del self._of[owner.uid]


class ClaimController:
    """The resource claim controller, with two queues: pods that need claims, and claims to be checked."""

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._pods = Informer(api, PODS, indices={"claim": _claims_of})
        self._claims = Informer(api, RESOURCE_CLAIMS, indices={"owner": _owner_uids})
        self._templates = Informer(api, RESOURCE_CLAIM_TEMPLATES)
        self._recorder = EventRecorder(api, "resource_claim", SystemClock())
        self._made = _Made()
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue("claims from templates")
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue("claims")

    async def run(self) -> None:
        """Run until cancelled."""
        self._pods.add_handler(
            Handler(added=self._pod_seen, updated=lambda _, pod: self._pod_seen(pod), deleted=self._pod_seen)
        )
        self._claims.add_handler(
            Handler(
                added=self._claim_seen,
                updated=lambda _, claim: self._claim_seen(claim),
                deleted=self._claim_gone,
            )
        )
        self._templates.add_handler(Handler(added=lambda _: self._all_pods()))
        async with asyncio.TaskGroup() as group:
            informers: tuple[Informer[Any], ...] = (self._pods, self._claims, self._templates)
            for informer in informers:
                group.create_task(informer.run())
            group.create_task(self._recorder.run())
            for informer in informers:
                await informer.synced.wait()
            group.create_task(self._pod_queue.process(self._sync_pod, workers=2))
            group.create_task(self._claim_queue.process(self._sync_claim, workers=4))

    # --- what changed -----------------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod) -> None:
        if not resourceclaim.uses_claims(pod) and pod.status.extended_resource_claim_status is None:
            return
        self._pod_queue.add(pod.key)
        for used in resourceclaim.pod_claims(pod):
            if used.key is not None:
                self._claim_queue.add(used.key)
        for claim in self._claims.by_index("owner", pod.metadata.uid):
            self._claim_queue.add(claim.key)

    def _all_pods(self) -> None:
        for pod in self._pods.items():
            self._pod_seen(pod)

    def _claim_seen(self, claim: ResourceClaim) -> None:
        self._made.discard(claim)
        self._claim_queue.add(claim.key)
        for pod in self._pods.by_index("claim", claim.key):
            self._pod_queue.add(pod.key)

    def _claim_gone(self, claim: ResourceClaim) -> None:
        self._made.discard(claim)
        for owner in claim.metadata.owner_references or ():
            for pod in self._pods.items():
                if pod.metadata.uid == owner.uid:
                    self._pod_queue.add(pod.key)

    # --- pods: generate claims, reserve for pods bound by hand --------------------------------------------

    async def _sync_pod(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None or _done(pod) or pod.metadata.deletion_timestamp is not None:
            return
        names: dict[str, str | None] = {}
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is not None:
                names[entry.name] = await self._generated(pod, entry)
        known = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses}
        if names and names != known and None not in names.values():
            status = [{"name": k, "resourceClaimName": v} for k, v in names.items()]
            await self._api.merge_patch(
                PODS,
                key.name,
                {"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": status}},
                key.namespace,
                subresource="status",
            )
        if pod.spec.node_name:
            await self._reserve_for_bound(pod)

    async def _generated(self, pod: Pod, entry: PodResourceClaim) -> str | None:
        """Return the name of the claim of one entry; create the claim if there is none."""
        known = {c.metadata.name: c for c in self._claims.by_index("owner", pod.metadata.uid)}
        found = [
            claim.metadata.name
            for claim in (self._made.of(pod.metadata.uid) | known).values()
            if (claim.metadata.annotations or {}).get(POD_CLAIM_ANNOTATION) == entry.name
        ]
        if found:
            # There are several where the answer to a creation was lost. The one that the status names stays.
            statuses = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses}
            named = statuses.get(entry.name)
            return named if named in found else found[0]
        assert entry.resource_claim_template_name is not None
        template = self._templates.get_by_name(entry.resource_claim_template_name, pod.metadata.namespace)
        if template is None:
            name = entry.resource_claim_template_name
            self._recorder.event(
                PODS,
                pod,
                "Warning",
                "FailedResourceClaimCreation",
                f'PodResourceClaim {entry.name}: resource claim template "{name}": '
                f'resourceclaimtemplate.resource.k8s.io "{name}" not found',
            )
            return None
        inner = template.spec.metadata
        body = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {
                "generateName": _generate_name(pod.metadata.name, entry.name),
                "namespace": pod.metadata.namespace,
                "labels": dict(inner.labels or {}),
                "annotations": {**(inner.annotations or {}), POD_CLAIM_ANNOTATION: entry.name},
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
            "spec": codec.plain(template.spec.spec),
        }
        claim = await self._api.create(RESOURCE_CLAIMS, body, pod.metadata.namespace)
        self._made.add(pod.metadata.uid, claim)
        return claim.metadata.name

    async def _reserve_for_bound(self, pod: Pod) -> None:
        """Reserve the allocated claims of a pod that was bound by hand: kube-scheduler has not done so."""
        for used in resourceclaim.pod_claims(pod):
            claim = self._claims.get(used.key) if used.key is not None else None
            if (
                claim is None
                or claim.status.allocation is None
                or claim.metadata.deletion_timestamp is not None
            ):
                continue
            if resourceclaim.is_reserved_for(claim, pod.metadata.uid) or not resourceclaim.is_for_pod(
                pod, claim
            ):
                continue
            reserved = [*claim.status.reserved_for, resourceclaim.pod_reference(pod)]
            await self._write_status(claim, {"reservedFor": codec.plain(reserved)})

    # --- claims: reservations, deallocation, deletion -----------------------------------------------------

    async def _sync_claim(self, key: ObjectKey) -> None:
        claim = self._claims.get(key)
        if claim is None:
            return
        valid = [ref for ref in claim.status.reserved_for if not await self._stale(claim, ref)]
        protected = CLAIM_FINALIZER in (claim.metadata.finalizers or ())
        if len(valid) < len(claim.status.reserved_for):
            deallocate = protected and not valid and claim.status.allocation is not None
            status: dict[str, Any] = {"reservedFor": codec.plain(valid) or None}
            claim = await self._write_status(claim, {**status, **(_NOT_ALLOCATED if deallocate else {})})
            if deallocate:
                await self._remove_finalizer(claim)
        elif protected and not valid and claim.metadata.deletion_timestamp is not None:
            if claim.status.allocation is not None:
                claim = await self._write_status(claim, _NOT_ALLOCATED)
            await self._remove_finalizer(claim)
        if not valid:
            await self._delete_generated(claim)

    async def _stale(self, claim: ResourceClaim, reference: ResourceClaimConsumerReference) -> bool:
        if reference.resource != "pods" or reference.api_group:
            return False  # a consumer of an unknown kind
        pod = self._pods.get_by_name(reference.name, claim.metadata.namespace)
        if pod is None or pod.metadata.uid != reference.uid:
            # The watch may be behind: ask the API server before a reservation is removed.
            try:
                pod = await self._api.get(PODS, reference.name, claim.metadata.namespace)
            except NotFound:
                return True
        return pod.metadata.uid != reference.uid or _done(pod)

    async def _remove_finalizer(self, claim: ResourceClaim) -> None:
        finalizers = [f for f in claim.metadata.finalizers or () if f != CLAIM_FINALIZER]
        patch = {
            "metadata": {
                "finalizers": finalizers or None,
                "resourceVersion": claim.metadata.resource_version,
            }
        }
        with contextlib.suppress(NotFound):
            await self._api.merge_patch(RESOURCE_CLAIMS, claim.metadata.name, patch, claim.metadata.namespace)

    async def _delete_generated(self, claim: ResourceClaim) -> None:
        """Delete a generated claim once its pod is done; garbage collection does if the pod is gone."""
        if claim.metadata.deletion_timestamp is not None:
            return
        for owner in claim.metadata.owner_references or ():
            if not owner.controller or owner.kind != "Pod":
                continue
            pod = self._pods.get_by_name(owner.name, claim.metadata.namespace)
            if pod is not None and pod.metadata.uid == owner.uid and _done(pod):
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(
                        RESOURCE_CLAIMS, claim.metadata.name, claim.metadata.namespace, uid=claim.metadata.uid
                    )

    async def _write_status(self, claim: ResourceClaim, status: Mapping[str, Any]) -> ResourceClaim:
        patch = {"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status}
        return await self._api.merge_patch(
            RESOURCE_CLAIMS, claim.metadata.name, patch, claim.metadata.namespace, subresource="status"
        )


_NOT_ALLOCATED: Mapping[str, Any] = {"allocation": None, "devices": None}


def _generate_name(pod: str, entry: str) -> str:
    """Return ``<pod>-<claim>-``, cut so that with five random characters it is a DNS label."""
    longest = 57
    if len(pod) + len(entry) + 1 > longest:
        pod = pod[: longest // 2]
        entry = entry[: longest - 1 - len(pod)]
    return f"{pod}-{entry}-"


def _claims_of(pod: Pod) -> Iterable[Hashable]:
    return [used.key for used in resourceclaim.pod_claims(pod) if used.key is not None]


def _owner_uids(item: WireObject) -> Iterable[Hashable]:
    return [owner.uid for owner in item.metadata.owner_references or ()]


class GarbageCollector:
    """Deletes objects whose owners are all gone, or before their owner (foreground), and releases orphans.

    Attributes:
        KINDS: group and plural name of the kinds that it handles.
    """

    KINDS: ClassVar[frozenset[tuple[str, str]]] = frozenset(
        (k.group, k.plural) for k in (*OWNED_KINDS, *OWNER_KINDS.values())
    )

    def __init__(self, api: KubeClient) -> None:
        self._api = api
        self._informers: dict[str, Informer[MetaObject]] = {
            _name(kind): Informer(api, kind, indices={"owner": _owner_uids})
            for kind in {k.path(): k for k in (*OWNED_KINDS, *OWNER_KINDS.values())}.values()
        }
        self._queue: WorkQueue[tuple[str, ObjectKey]] = WorkQueue("garbage")

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            # It does not wait for the first lists: an unknown owner is read from the API server before
            # anything is deleted, and a kind that the server does not have must not stop the others.
            for name, informer in self._informers.items():
                seen = functools.partial(self._seen, name)
                changed = functools.partial(self._changed, name)
                informer.add_handler(Handler(added=seen, updated=changed, deleted=self._gone))
                group.create_task(informer.run())
            group.create_task(self._queue.process(self._sync, workers=2))

    def knows(self, key: ObjectKey) -> bool:
        """Return whether an object of this name has been seen and is still there, of whichever kind."""
        return any(informer.get(key) is not None for informer in self._informers.values())

    def _seen(self, kind: str, item: MetaObject) -> None:
        if item.metadata.owner_references or item.metadata.deletion_timestamp is not None:
            self._queue.add((kind, item.key))

    def _changed(self, kind: str, _old: MetaObject, item: MetaObject) -> None:
        self._seen(kind, item)

    def _gone(self, item: MetaObject) -> None:
        for informer, dependent in self._dependents(item):
            self._queue.add((_name(informer.resource), dependent.key))
        for owner in item.metadata.owner_references or ():  # may wait for dependents
            kind = f"{owner.api_version}/{owner.kind}"
            for namespace in {item.metadata.namespace, ""} if kind in self._informers else ():
                self._queue.add((kind, ObjectKey(namespace, owner.name)))

    def _dependents(self, owner: MetaObject) -> list[tuple[Informer[MetaObject], MetaObject]]:
        uid = owner.metadata.uid
        return [(i, item) for i in self._informers.values() for item in i.by_index("owner", uid)]

    async def _sync(self, key: tuple[str, ObjectKey]) -> None:
        informer = self._informers[key[0]]
        item = informer.get(key[1])
        if item is None:
            return
        if item.metadata.deletion_timestamp is not None:
            finalizers = item.metadata.finalizers or ()
            if _FOREGROUND in finalizers and await self._no_dependents(item):
                await self._release(informer, item, _FOREGROUND)
            if _ORPHAN in finalizers:
                await self._orphan_dependents(item)
                await self._release(informer, item, _ORPHAN)
            return
        if not item.metadata.owner_references:
            return  # an owner that is checked because a dependent of it is gone
        for owner in item.metadata.owner_references:
            if await self._exists(owner, item.metadata.namespace):
                return
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(
                informer.resource, item.metadata.name, item.metadata.namespace, uid=item.metadata.uid
            )

    async def _no_dependents(self, owner: MetaObject) -> bool:
        """Delete the dependents of an owner; return whether none is left that it has to wait for."""
        blocking = False
        for informer, item in self._dependents(owner):
            mine = (r for r in item.metadata.owner_references or () if r.uid == owner.metadata.uid)
            blocking |= any(r.block_owner_deletion for r in mine)
            if item.metadata.deletion_timestamp is None:
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(
                        informer.resource, item.metadata.name, item.metadata.namespace, uid=item.metadata.uid
                    )
        return not blocking

    async def _orphan_dependents(self, owner: MetaObject) -> None:
        for informer, item in self._dependents(owner):
            left = [r for r in item.metadata.owner_references or () if r.uid != owner.metadata.uid]
            await self._patch(informer, item, {"ownerReferences": codec.plain(left) or None})

    async def _release(self, informer: Informer[MetaObject], item: MetaObject, finalizer: str) -> None:
        left = [f for f in item.metadata.finalizers or () if f != finalizer]
        await self._patch(informer, item, {"finalizers": left or None})

    async def _patch(
        self, informer: Informer[MetaObject], item: MetaObject, metadata: Mapping[str, Any]
    ) -> None:
        body = {"metadata": {**metadata, "resourceVersion": item.metadata.resource_version}}
        with contextlib.suppress(NotFound):
            await self._api.merge_patch(informer.resource, item.metadata.name, body, item.metadata.namespace)

    async def _exists(self, owner: OwnerReference, namespace: str) -> bool:
        kind = OWNER_KINDS.get((owner.api_version, owner.kind))
        if kind is None:
            return True  # a kind that is not followed: its owner is taken to exist
        namespace = namespace if kind.namespaced else ""
        informer = self._informers.get(_name(kind))
        known = informer.get_by_name(owner.name, namespace) if informer is not None else None
        if known is not None and known.metadata.uid == owner.uid:
            return True
        try:
            found = await self._api.get(kind, owner.name, namespace)
        except NotFound:
            return False
        return found.metadata.uid == owner.uid


def _name(kind: Resource[Any]) -> str:
    return f"{kind.api_version}/{kind.kind}"
