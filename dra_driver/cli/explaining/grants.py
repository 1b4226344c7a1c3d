"""Pods that only kube-scheduler can place with their devices: what is granted, or why nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_driver.api.core import Pod
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.explaining.answers import Answer
from dra_driver.fleet import GRANTS_HELP, GrantedToPod, GrantsShown
from dra_driver.ownership import PoolAllocator, PoolID, allocating_pools
from dra_driver.resourceclaim import classes_by_resource, extended_resources, lacks_extended_claim, pod_claims
from dra_driver.structured import Allocated

__all__ = ["grant_sentences", "grants_of", "needs_grant"]


def grants_of(pod: Pod, shown: GrantsShown | None) -> list[GrantedToPod]:
    """Return what is granted to a pod, on each node."""
    return [one for one in (shown.pods if shown is not None else ()) if one.pod == str(pod.key)]


def needs_grant(manifests: Manifests, pod: Pod, found: Sequence[Answer]) -> str:
    """Return why only kube-scheduler can place a pod with devices of the controller; empty if that is not so.

    Args:
        manifests: the cluster.
        pod: any.
        found: the answers about its claims, and others.
    """
    if pod.spec.node_name:
        return ""
    allocators = allocating_pools(manifests.slices, manifests.inventories)
    ours = {pool for pool, who in allocators.items() if who is PoolAllocator.CONTROLLER}
    if not ours:
        return ""
    if lacks_extended_claim(pod, {claim.key: claim for claim in manifests.claims}.get):
        served = classes_by_resource(manifests.classes)
        if names := sorted(extended_resources(pod) & served.keys()):
            return f"asks for {', '.join(names)}: only kube-scheduler makes and allocates claims for that"
    keys = {used.key for used in pod_claims(pod)}
    for answer in found:
        if answer.claim.key not in keys or answer.is_allocated or not isinstance(answer.outcome, Allocated):
            continue
        results = answer.outcome.results[0].devices.results
        if {PoolID(r.driver, r.pool) in ours for r in results} == {True, False}:
            which = f"claim {answer.claim.metadata.name} asks for devices of the controller and of others"
            return f"{which}: only kube-scheduler can allocate both"
    return ""


def grant_sentences(
    manifests: Manifests, pod: Pod, found: Sequence[Answer], shown: GrantsShown | None
) -> Iterator[str]:
    """Return what is said about grants for a pod.

    Args:
        manifests: the cluster.
        pod: any.
        found: the answers about its claims, and others.
        shown: what the controller says of grants; None: that is not known.
    """
    if granted := grants_of(pod, shown):
        yield from (one.sentence for one in granted)
        return
    why = needs_grant(manifests, pod, found)
    if not why:
        return
    yield why
    if shown is None or not shown.enabled:
        yield GRANTS_HELP
    elif shown.obstacle:
        yield f"nothing is granted now: {shown.obstacle}"
    else:
        yield "nothing is granted to it at the moment"
