"""Pods that only kube-scheduler can place with their devices: what is lent for them, or why nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_driver.api.core import Pod
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.explaining.answers import Answer
from dra_driver.fleet import GRANTING, LENDING_HELP, LendingShown, LentToPod
from dra_driver.ownership import is_controller_taint
from dra_driver.resourceclaim import classes_by_resource, extended_resources, lacks_extended_claim, pod_claims
from dra_driver.structured import Allocated

__all__ = ["loan_sentences", "loans_of", "needs_loan"]


def loans_of(pod: Pod, shown: LendingShown | None) -> list[LentToPod]:
    """Return what is lent for a pod, on each node."""
    return [one for one in (shown.loans if shown is not None else ()) if one.pod == str(pod.key)]


def needs_loan(manifests: Manifests, pod: Pod, found: Sequence[Answer]) -> str:
    """Return why only kube-scheduler can place a pod with devices of the controller; empty if that is not so.

    Args:
        manifests: the cluster.
        pod: any.
        found: the answers about its claims, and others.
    """
    if pod.spec.node_name:
        return ""
    ours = {
        (s.spec.driver, s.spec.pool.name, d.name)
        for s in manifests.slices
        for d in s.spec.devices
        if any(map(is_controller_taint, d.taints))
    }
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
        if {(r.driver, r.pool, r.device) in ours for r in results} == {True, False}:
            which = f"claim {answer.claim.metadata.name} asks for devices of the controller and of others"
            return f"{which}: only kube-scheduler can allocate both"
    return ""


def loan_sentences(
    manifests: Manifests, pod: Pod, found: Sequence[Answer], shown: LendingShown | None
) -> Iterator[str]:
    """Return what is said about a loan for a pod.

    Args:
        manifests: the cluster.
        pod: any.
        found: the answers about its claims, and others.
        shown: what the controller says of lending; None: that is not known.
    """
    if loans := loans_of(pod, shown):
        yield from (one.sentence for one in loans)
        return
    why = needs_loan(manifests, pod, found)
    if not why:
        return
    yield why
    if shown is not None and shown.mode == GRANTING:
        yield (
            f"nothing is granted now: {shown.obstacle}"
            if shown.obstacle
            else "nothing is granted to it at the moment"
        )
    elif shown is None:
        yield LENDING_HELP
    elif shown.mode != "on":
        yield f"lending is {shown.mode}: {LENDING_HELP}"
    elif shown.obstacle:
        yield f"nothing is lent now: {shown.obstacle}"
    else:
        yield "lending is on, and nothing is lent for it at the moment"
