"""Which claims of a pod do not exist, and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from controller.allocate.decide import is_finished
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.resourceclaim import pod_claims

__all__ = ["MissingClaim", "missing_claims"]


class MissingClaim(NamedTuple):
    """An entry of a pod's ``spec.resourceClaims`` without a claim.

    Attributes:
        entry: its name; empty for the claim of the pod's extended resources.
        template: the template that the claim is to be made from; None if it is not made from one.
        reason: what was not found; empty if the claim is still to be made.
    """

    entry: str
    template: ObjectKey | None
    reason: str

    def __str__(self) -> str:
        name = f"Claim {self.entry}" if self.entry else "The claim for extended resources"
        return f"{name} does not exist: {self.reason}" if self.reason else f"{name} does not exist yet"


def missing_claims(
    pod: Pod, there: Collection[ObjectKey], templates: Collection[ObjectKey] | None
) -> Iterator[MissingClaim]:
    """Yield the claims that a pod lacks; none if its containers have ended, for then they may be gone.

    Args:
        pod: any pod.
        there: the claims that exist.
        templates: the templates of its namespace; None if they are not known.
    """
    if is_finished(pod):
        return
    named = {e.name: e.resource_claim_template_name for e in pod.spec.resource_claims}
    for used in pod_claims(pod):
        if used.key in there:
            continue
        name = named.get(used.entry)
        template = ObjectKey(pod.metadata.namespace, name) if name else None
        reason = "" if used.key is None else f"ResourceClaim {used.key} was not found"
        if template is not None and templates is not None and template not in templates:
            reason = f"template {template} was not found"
        yield MissingClaim(used.entry, template, reason)
