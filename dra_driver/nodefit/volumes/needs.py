"""What the volumes of a pod ask of a node, and why they cannot be used on any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import NodeSelector
from dra_driver.api.storage import (
    TOPOLOGY_LABELS,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologyTerm,
)
from dra_driver.nodefit.volumes.matching import ClaimRequest, request_of
from dra_driver.nodefit.volumes.objects import Handle, StorageObjects
from dra_driver.nodefit.volumes.pods import ClaimUse, Disk, PodVolumes, volumes_of
from dra_driver.nodefit.volumes.usage import VolumeUsage

__all__ = ["NO_NEEDS", "Provisioning", "VolumeNeeds", "Zone", "volume_needs"]

_SINGLE_POD = "ReadWriteOncePod"
# No provisioner, as such classes say.
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class Affinity(NamedTuple):
    """The required node affinity of a bound volume.

    Attributes:
        plugin: that made the volume; on nodes where a CSI driver serves it the affinity is not looked at.
        selector: that a node must match.
    """

    plugin: str
    selector: NodeSelector


class Zone(NamedTuple):
    """A label of a bound volume that says in which zone or region it is.

    Attributes:
        key: of the label.
        values: of which a node must have one.
    """

    key: str
    values: tuple[str, ...]


class Provisioning(NamedTuple):
    """A claim that is bound when the pod is placed.

    Attributes:
        request: what it asks of a volume that is there already.
        made: whether a volume can be made for it.
        topologies: of which a node must match one, so that it can be.
        nodes: the only ones; empty: all.
        only_made: a volume is being made for it already.
    """

    request: ClaimRequest
    made: bool
    topologies: tuple[TopologyTerm, ...] = ()
    nodes: tuple[str, ...] = ()
    only_made: bool = False


class VolumeNeeds(NamedTuple):
    """What the volumes of a pod ask of a node. Pods with equal needs can go to the same nodes.

    Attributes:
        problem: why they can be used on no node now, in kube-scheduler's words; else empty.
        affinities: of bound volumes.
        zones: of bound volumes.
        unbound: claims that are bound when the pod is placed, smallest first.
        handles: volumes to be attached, of drivers that have limits; without a name (empty handle) where
            nothing but the pod uses them.
        exclusive: claims that one pod at a time may use (ReadWriteOncePod), and other pods do.
        disks: that the pod names itself.
    """

    problem: str = ""
    affinities: tuple[Affinity, ...] = ()
    zones: tuple[Zone, ...] = ()
    unbound: tuple[Provisioning, ...] = ()
    handles: tuple[tuple[str, str, int], ...] = ()
    exclusive: tuple[ObjectKey, ...] = ()
    disks: tuple[Disk, ...] = ()


NO_NEEDS = VolumeNeeds()


def volume_needs(pod: Pod, usage: VolumeUsage) -> VolumeNeeds:
    """Return what the volumes of a pod that is not bound ask of a node."""
    volumes = volumes_of(pod)
    if volumes == PodVolumes():
        return NO_NEEDS
    objects = usage.objects
    problem = _problem(pod, volumes.claims, objects)
    if problem:
        return VolumeNeeds(problem)
    uid = pod.metadata.uid
    # A claim that is made for the pod may be named besides; then it is looked at as every other one.
    uses = sorted(volumes.claims, key=lambda use: not use.ephemeral)
    claims = {use.key: (use, objects.claims[use.key]) for use in uses}
    bound = [(use, objects.volumes[c.spec.volume_name]) for use, c in claims.values() if c.is_bound]
    unbound = [c for _, c in claims.values() if not c.is_bound]
    return VolumeNeeds(
        "",
        tuple(dict.fromkeys(_affinities(v for _, v in bound))),
        tuple(dict.fromkeys(z for use, v in bound if not use.ephemeral for z in _zones(v))),
        _unbound(uid, unbound, usage),
        _handles(uid, claims, usage),
        tuple(
            key
            for key, (use, claim) in claims.items()
            if not use.ephemeral and _SINGLE_POD in claim.spec.access_modes and _is_used(key, uid, usage)
        ),
        volumes.disks,
    )


# --- what keeps the pod from all nodes ----------------------------------------------------------------------


def _problem(pod: Pod, uses: Iterable[ClaimUse], objects: StorageObjects) -> str:
    """Return what the filters find before they look at nodes (``PreFilter``), in the order of the plugins."""
    for use in uses:
        if not use.ephemeral and use.key not in objects.claims:
            return f'persistentvolumeclaim "{use.key.name}" not found'
    for use in uses:
        claim = objects.claims.get(use.key)
        found = _without_claim(use) if claim is None else _claim_problem(pod, use, claim)
        if found:
            return found
    claims = [(use, objects.claims[use.key]) for use in uses]
    if any(not (claim.is_bound or _may_wait(claim, objects)) for _, claim in claims):
        return "pod has unbound immediate PersistentVolumeClaims"
    # VolumeZone, and for claims that are made for the pod VolumeBinding on each node.
    for use, claim in sorted(claims, key=lambda pair: pair[0].ephemeral):
        name = claim.spec.volume_name
        if claim.is_bound and name not in objects.volumes:
            if use.ephemeral:
                return "one or more pvc(s) bound to non-existent pv(s)"
            return f'persistentvolume "{name}" not found'
    return ""


def _without_claim(use: ClaimUse) -> str:
    return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{use.key.name}"'


def _claim_problem(pod: Pod, use: ClaimUse, claim: PersistentVolumeClaim) -> str:
    name = claim.metadata.name
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    if claim.metadata.deletion_timestamp:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if use.ephemeral and not _is_made_for(claim, pod):
        return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
    return ""


def _is_made_for(claim: PersistentVolumeClaim, pod: Pod) -> bool:
    owners = claim.metadata.owner_references or ()
    return any(ref.controller and ref.uid == pod.metadata.uid for ref in owners)


def _may_wait(claim: PersistentVolumeClaim, objects: StorageObjects) -> bool:
    """Return whether a claim that is not bound is bound only when a pod is placed."""
    known = objects.classes.get(claim.storage_class)
    return known is not None and known.waits and not claim.spec.volume_name


# --- bound volumes ------------------------------------------------------------------------------------------


def _affinities(volumes: Iterable[PersistentVolume]) -> Iterator[Affinity]:
    for volume in volumes:
        affinity = volume.spec.node_affinity
        if affinity is not None and affinity.required is not None:
            yield Affinity(volume.plugin, affinity.required)


def _zones(volume: PersistentVolume) -> Iterator[Zone]:
    labels = volume.metadata.labels or {}
    for key in TOPOLOGY_LABELS:
        if key in labels:
            # Several zones are joined by two underscores; a label with an empty one is ignored.
            values = [value.strip() for value in labels[key].split("__")]
            if all(values):
                yield Zone(key, tuple(sorted(set(values))))


# --- claims that are bound when the pod is placed -----------------------------------------------------------


def _unbound(
    pod: Uid, claims: Iterable[PersistentVolumeClaim], usage: VolumeUsage
) -> tuple[Provisioning, ...]:
    return tuple(_provisioning(c, usage, pod) for c in sorted(claims, key=lambda c: c.size))


def _provisioning(claim: PersistentVolumeClaim, usage: VolumeUsage, pod: Uid) -> Provisioning:
    """Return what there is for a claim that is not bound.

    Args:
        claim: of a class that waits for the first pod.
        usage: a pod that is expected on a node decides for the claims that it uses.
        pod: that asks, and does not count.
    """
    known: StorageClass = usage.objects.classes[claim.storage_class]
    made = known.provisioner not in ("", _NO_PROVISIONER)
    request = request_of(claim, usage.objects)
    if claim.selected_node is not None:
        return Provisioning(request, made, known.allowed_topologies, (claim.selected_node,), only_made=True)
    others = {u.node for uid, u in usage.users(claim.key).items() if uid != pod and not u.bound}
    return Provisioning(request, made, known.allowed_topologies, tuple(sorted(others)))


# --- how many are attached ----------------------------------------------------------------------------------


def _is_used(claim: ObjectKey, pod: Uid, usage: VolumeUsage) -> bool:
    """Return whether another pod uses a claim by name: one that is made for a pod does not count."""
    return any(
        uid != pod and ClaimUse(claim) in user.volumes.claims for uid, user in usage.users(claim).items()
    )


def _handles(
    pod: Uid, claims: dict[ObjectKey, tuple[ClaimUse, PersistentVolumeClaim]], usage: VolumeUsage
) -> tuple[tuple[str, str, int], ...]:
    """Return driver, handle and number of the volumes that count on a node with limits."""
    objects = usage.objects
    handles: dict[Handle, bool] = {}
    for key, (_, claim) in claims.items():
        handle = objects.handle(key)
        if handle is None or not objects.is_limited(handle.driver):
            continue
        others = usage.users(key).keys() - {pod}
        alone = not others and not objects.is_elsewhere(handle, claim.spec.volume_name)
        handles[handle] = alone and handles.get(handle, True)
    found: dict[tuple[str, str], int] = {}
    for handle, alone in handles.items():
        named = (handle.driver, "" if alone else handle.volume)
        found[named] = found.get(named, 0) + 1
    return tuple(sorted((driver, volume, number) for (driver, volume), number in found.items()))
