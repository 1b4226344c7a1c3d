"""The part of ``scheduling.k8s.io`` that says which pods are scheduled together: PodGroup (KEP-4671).

The kind is alpha: ``v1alpha2`` in Kubernetes 1.36. All of ``spec`` is immutable. What decides nothing here
(templates, disruption, conditions) is not decoded.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.api.meta import Resource, Wire, WireObject

__all__ = [
    "POD_GROUPS",
    "POD_GROUP_VERSIONS",
    "SCHEDULING_GROUP",
    "PodGroup",
    "PodGroupResourceClaim",
    "pod_groups",
]

SCHEDULING_GROUP: Final = "scheduling.k8s.io"
POD_GROUPS: Final = "podgroups"
POD_GROUP_VERSIONS: Final = ("v1", "v1beta2", "v1beta1", "v1alpha2")
"""Versions that are read, newest first. In ``v1alpha1`` pods name a Workload in place of a PodGroup."""


class GangSchedulingPolicy(Wire, frozen=True, kw_only=True):
    """``schedulingPolicy.gang``: so many pods are scheduled at the same time, or none."""

    min_count: int = 0


class PodGroupSchedulingPolicy(Wire, frozen=True, kw_only=True):
    """``schedulingPolicy``: ``basic`` where ``gang`` is not set."""

    gang: GangSchedulingPolicy | None = None


class TopologyConstraint(Wire, frozen=True, kw_only=True):
    """``schedulingConstraints.topology[]``: all pods run on nodes of one value of the label ``key``."""

    key: str = ""


class PodGroupSchedulingConstraints(Wire, frozen=True, kw_only=True):
    """``schedulingConstraints``, with the gate TopologyAwareWorkloadScheduling."""

    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupResourceClaim(Wire, frozen=True, kw_only=True):
    """``resourceClaims[]``, with the gate DRAWorkloadResourceClaims.

    The entry of a pod with the same name, claim and template means the claim of the group.
    """

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodGroupSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a PodGroup. The priority is there with the gate WorkloadAwarePreemption."""

    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: tuple[PodGroupResourceClaim, ...] = ()
    priority: int | None = None


class PodGroup(WireObject, frozen=True, kw_only=True):
    """Pods that name it in ``spec.schedulingGroup``; they may be older than it.

    Of its metadata only what identifies it is kept: its author can write any number of labels, finalizers …
    """

    spec: PodGroupSpec = PodGroupSpec()

    def __post_init__(self) -> None:
        meta = self.metadata
        if meta.labels or meta.annotations or meta.finalizers or meta.owner_references:
            slim = msgspec.structs.replace(
                meta, labels=None, annotations=None, finalizers=None, owner_references=None
            )
            msgspec.structs.force_setattr(self, "metadata", slim)


def pod_groups(version: str) -> Resource[PodGroup]:
    """Return the kind in one of its versions."""
    return Resource(SCHEDULING_GROUP, version, POD_GROUPS, "PodGroup", PodGroup, namespaced=True)
