"""The part of ``scheduling.k8s.io`` that says which pods are scheduled together: PodGroup (KEP-4671).

The kind is ``v1alpha2`` in Kubernetes 1.36, ``v1alpha3`` and ``v1beta1`` in 1.37. Of ``spec`` only
``minCount`` can be changed, from 1.37 on. What decides nothing here (templates, conditions) is not decoded.
CompositePodGroups, groups of groups, are known by the PodGroups that name one as their parent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.api.meta import ExactWire, Resource, Wire, WireObject

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
POD_GROUP_VERSIONS: Final = ("v1", "v1beta2", "v1beta1", "v1alpha3", "v1alpha2")
"""Versions that are read, newest first. In ``v1alpha1`` pods name a Workload in place of a PodGroup."""


class GangSchedulingPolicy(ExactWire, frozen=True, kw_only=True):
    """``schedulingPolicy.gang``: so many pods are scheduled at the same time, or none."""

    min_count: int = 0


class BasicSchedulingPolicy(ExactWire, frozen=True, kw_only=True):
    """``schedulingPolicy.basic``: the pods are scheduled one by one."""


class PodGroupSchedulingPolicy(ExactWire, frozen=True, kw_only=True):
    """``schedulingPolicy``: ``basic`` where ``gang`` is not set."""

    gang: GangSchedulingPolicy | None = None
    basic: BasicSchedulingPolicy | None = None


class TopologyConstraint(ExactWire, frozen=True, kw_only=True):
    """``schedulingConstraints.topology[]``: all pods run on nodes of one value of the label ``key``."""

    key: str = ""


class PodGroupSchedulingConstraints(ExactWire, frozen=True, kw_only=True):
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
    """``spec`` of a PodGroup. The priority is there with the gate WorkloadAwarePreemption.

    Attributes:
        parent_composite_pod_group_name: CompositePodGroup that the group is a part of (KEP-6012).
        newer: path of the first field of policy or constraints that this version does not know.
    """

    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: tuple[PodGroupResourceClaim, ...] = ()
    priority: int | None = None
    parent_composite_pod_group_name: str | None = None
    newer: str = ""


class PodGroup(WireObject, frozen=True, kw_only=True):
    """Pods that name it in ``spec.schedulingGroup``; they may be older than it.

    Of its metadata only what identifies it is kept: its author can write any number of labels, finalizers …
    """

    spec: PodGroupSpec = PodGroupSpec()

    @property
    def is_basic(self) -> bool:
        """Whether its pods are scheduled one by one, as if they were in no group."""
        spec = self.spec
        return spec.scheduling_policy.gang is None and not (
            spec.parent_composite_pod_group_name or spec.newer
        )

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
