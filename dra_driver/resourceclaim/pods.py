"""The claims that a pod uses, their names, and whether they are generated from a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dra_driver.api.core import Pod, PodResourceClaim
from dra_driver.api.meta import ObjectKey, OwnerReference
from dra_driver.api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_driver.api.scheduling import POD_GROUPS, SCHEDULING_GROUP, PodGroup

__all__ = [
    "PodClaim",
    "claims_named",
    "consumer_of",
    "is_for_pod",
    "is_generated",
    "named_twice",
    "pod_claims",
    "pod_reference",
    "uses_claims",
]


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim that a pod uses.

    Attributes:
        entry: name in ``spec.resourceClaims``; empty for the claim that the scheduler makes for extended
            resources.
        key: key of the ResourceClaim; None as long as it is not generated.
        generated: whether it is made for this pod from a template, and so deleted with it.
    """

    entry: str
    key: ObjectKey | None
    generated: bool


def uses_claims(pod: Pod) -> bool:
    """Return whether the pod has ``spec.resourceClaims``."""
    return bool(pod.spec.resource_claims)


def is_generated(entry: PodResourceClaim) -> bool:
    """Return whether the claim of this entry is made from a template."""
    return entry.resource_claim_template_name is not None


def _generated(pod: Pod) -> dict[str, str | None]:
    """Return the names of generated claims by the entry that they are for."""
    # Of two of one name, which no API server takes, the first counts.
    return {s.name: s.resource_claim_name for s in reversed(pod.status.resource_claim_statuses)}


def _claim_name(entry: PodResourceClaim, generated: Mapping[str, str | None]) -> tuple[str | None, bool]:
    """Return the name of the claim of one entry, and whether it is known.

    Returns:
        ``(name, True)``; ``(None, True)`` if the controller-manager wrote that no claim is needed;
        ``(None, False)`` as long as the claim is not generated.
    """
    if entry.resource_claim_name is not None:
        return entry.resource_claim_name, True
    return generated.get(entry.name), entry.name in generated


def pod_claims(pod: Pod) -> Iterator[PodClaim]:
    """Yield the claims of the pod in the order of its spec, then the one for its extended resources, if any.

    Entries that need no claim are left out.
    """
    generated = _generated(pod)
    for entry in pod.spec.resource_claims:
        name, known = _claim_name(entry, generated)
        if known and name is None:
            continue
        key = ObjectKey(pod.metadata.namespace, name) if name is not None else None
        yield PodClaim(entry.name, key, is_generated(entry))
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        yield PodClaim("", ObjectKey(pod.metadata.namespace, extended.resource_claim_name), generated=True)


def claims_named(pod: Pod) -> Iterator[ObjectKey]:
    """Yield the keys of ``pod_claims`` that are known, at less cost: a pod may name thousands."""
    namespace, statuses = pod.metadata.namespace, pod.status.resource_claim_statuses
    generated = _generated(pod) if statuses else {}
    for entry in pod.spec.resource_claims:
        name = entry.resource_claim_name
        if name is None:
            name = generated.get(entry.name)
        if name is not None:
            yield ObjectKey(namespace, name)
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        yield ObjectKey(namespace, extended.resource_claim_name)


def named_twice(pod: Pod) -> str:
    """Return why a pod that names one claim in several entries cannot run; empty if it names none twice.

    The API server accepts such a pod, but kube-scheduler cannot bind it: it reserves the claim once for each
    entry, and the API server refuses the second (``status.reservedFor``: duplicate value).
    """
    keys = list(claims_named(pod))
    if len(set(keys)) == len(keys):
        return ""
    entries: dict[str, list[str]] = {}
    for used in pod_claims(pod):
        if used.key is not None and used.entry:
            entries.setdefault(used.key.name, []).append(used.entry)
    for claim, names in entries.items():
        if len(names) > 1:
            return (
                f"spec.resourceClaims of the pod names ResourceClaim {claim} {len(names)} times (first as "
                f"{names[0]} and {names[1]}), and kube-scheduler cannot reserve a claim twice for one pod; "
                "name it once: several containers can refer to one entry"
            )
    return ""


def is_for_pod(pod: Pod, claim: ResourceClaim) -> bool:
    """Return whether a generated claim belongs to this pod, not to an earlier one of the same name.

    One that is generated for a PodGroup belongs to its pods, which know its name only. True for claims that
    are not generated (no controlling owner of these kinds).
    """
    for owner in claim.metadata.owner_references or ():
        if owner.controller and owner.kind == "Pod":
            return owner.uid == pod.metadata.uid
        if owner.controller and _is_pod_group(owner):
            return owner.name == pod.spec.pod_group
    return True


def consumer_of(pod: Pod, group: PodGroup | None, claim: ResourceClaim) -> ResourceClaimConsumerReference:
    """Return the entry of ``status.reservedFor`` for a pod that uses a claim.

    Where name, claim and template of the pod's entry are those of an entry of its PodGroup, the claim is
    reserved for the group, and stays so until the PodGroup is deleted (gate DRAWorkloadResourceClaims).

    Args:
        pod: that uses the claim.
        group: its PodGroup, if it has one.
        claim: that it uses.
    """
    of_group = {
        (entry.name, entry.resource_claim_name, entry.resource_claim_template_name)
        for entry in (group.spec.resource_claims if group is not None else ())
    }
    generated = _generated(pod) if of_group else {}
    for entry in pod.spec.resource_claims if of_group else ():
        what = (entry.name, entry.resource_claim_name, entry.resource_claim_template_name)
        named = what in of_group and _claim_name(entry, generated)[0] == claim.metadata.name
        if group is not None and named:
            return ResourceClaimConsumerReference(
                api_group=SCHEDULING_GROUP,
                resource=POD_GROUPS,
                name=group.metadata.name,
                uid=group.metadata.uid,
            )
    return pod_reference(pod)


def _is_pod_group(owner: OwnerReference) -> bool:
    return owner.kind == "PodGroup" and owner.api_version.startswith(f"{SCHEDULING_GROUP}/")


def pod_reference(pod: Pod) -> ResourceClaimConsumerReference:
    """Return the pod's entry for ``status.reservedFor``."""
    return ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
