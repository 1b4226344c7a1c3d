"""Names that several parts agree on: driver, labels, taints, gates, finalizers, field managers."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALLOCATED_CONDITION",
    "ALLOCATION_GATE",
    "ALLOCATOR_LABEL",
    "CANNOT_ALLOCATE",
    "CLAIM_FINALIZER",
    "CLAIM_GONE_IN_USE",
    "CONTROLLER_FIELD_MANAGER",
    "CONTROLLER_LEASE",
    "CONTROLLER_TAINT",
    "COUNTERS_ANNOTATION",
    "DEFAULT_DRIVER_NAME",
    "DEFAULT_SCHEDULER",
    "DEVICE_CLASSES",
    "EXTENDED_RESOURCE_ANNOTATION",
    "GATE_POLICY",
    "GRANTS",
    "GRANT_STATUS",
    "GROUP_BY_ANNOTATION",
    "GROUP_DOMAIN_ANNOTATION",
    "GROUP_LABEL",
    "GROUP_MIN_LABEL",
    "GROUP_SIZE_LABEL",
    "GROUP_SOME_RUN_ANNOTATION",
    "IMPLICIT_RESOURCE_PREFIX",
    "KUBE_SYSTEM",
    "LISTS_GATE",
    "NOT_ON_NODE",
    "NUMA_NODE",
    "NVIDIA_DRIVER_NAME",
    "PASSTHROUGH",
    "PCIE_ROOT",
    "PCI_BUS_ID",
    "PLUGIN_FIELD_MANAGER",
    "POD_CLAIM_ANNOTATION",
    "PREEMPTIBLE_LABEL",
    "PREEMPTING_CONDITION",
    "PREEMPTION_FIELD_MANAGER",
    "RDMA_DRIVER_NAME",
    "REQUEST_SHAPES",
    "SETUP_REASONS",
    "SET_ASIDE_CONDITION",
    "SET_ASIDE_FIELD_MANAGER",
    "SYSTEM_NAMESPACE",
    "TOPOLOGY_ANNOTATION",
    "TRIAL_CLAIM",
    "cdi_kind",
]

DEFAULT_DRIVER_NAME: Final = "gpu.dra-driver.dev"
# The same binary publishes RDMA NICs under a driver name of their own.
RDMA_DRIVER_NAME: Final = "rdma.dra-driver.dev"
# Under this name we take over from NVIDIA's driver, and understand its opaque parameters.
NVIDIA_DRIVER_NAME: Final = "gpu.nvidia.com"
SYSTEM_NAMESPACE: Final = "dra-driver"
# Of the controller, in its namespace.
CONTROLLER_LEASE: Final = "dra-driver-controller"
KUBE_SYSTEM: Final = "kube-system"
"""Namespace of the control plane, whose pods never get the gate: taking it off may need them."""
DEVICE_CLASSES: Final = ("gpu", "mig", "partition", "vf", "vfio", "nvidia", "amd", "intel")
"""DeviceClasses of an installation, by what stands before the driver's name; `gpu` has that name itself."""
REQUEST_SHAPES: Final = "dra-driver-request-shapes"
"""ConfigMap of an installation: request shapes by name, as `--shape` takes them."""

RECALLED_DEVICES: Final = "dra-driver-recalled-devices"
"""ConfigMap in which an earlier version listed devices that kube-scheduler might allocate no longer."""
GRANTS: Final = "dra-driver-grants"
"""ConfigMap that says what others than the controller may allocate, and the policy whose parameter it is."""
TRIAL_CLAIM: Final = "dra-driver-trial"
"""ResourceClaim that is never allocated: with it the controller tries whether that policy refuses."""
GRANT_STATUS: Final = "dra-driver-grant-status"
"""ConfigMap in which the controller says whether devices are granted, why not, and for which pods."""

# Devices of a pool that our controller allocates carry this NoSchedule taint, so that kube-scheduler's
# allocator never picks them; the value is "allocates".
CONTROLLER_TAINT: Final = "dra-driver.dev/controller"

# On slices that an earlier version has written: the counters, as JSON, in place of ``sharedCounters`` and
# ``consumesCounters`` (see ``ResourceSlice``).
COUNTERS_ANNOTATION: Final = "dra-driver.dev/counters"

# Scheduling gate of pods whose claims our controller allocates, and the namespace label that turns it on
# (value "controller").
ALLOCATION_GATE: Final = "dra-driver.dev/allocation"
ALLOCATOR_LABEL: Final = "dra-driver.dev/allocator"
GATE_POLICY: Final = "dra-driver-allocation-gate"
"""MutatingAdmissionPolicy that sets the gate, and its binding."""

# What kube-scheduler says of a node (condition PodScheduled, plugin DynamicResources) where a claim of the
# pod is not allocated, or is allocated on another node. All other filters come first, so without that the
# node would suit the pod.
CANNOT_ALLOCATE: Final = "cannot allocate all claims"
NOT_ON_NODE: Final = "resourceclaim not available on the node"

# What it says of a pod whose PodGroup it cannot place as a whole: another member has no node, or is not there
# yet, or other pods are evicted first.
GANG_REPORTS: Final = (
    "waiting for minCount pods from a gang to be scheduled",
    "failed to schedule other pod from a pod group",
    "pod group is waiting for preemption",
)

# ``spec.schedulerName`` of pods that do not say otherwise.
DEFAULT_SCHEDULER: Final = "default-scheduler"

# Condition of a pod that waits for devices: False, with the reason. Pods that never waited do not have it.
ALLOCATED_CONDITION: Final = "dra-driver.dev/Allocated"
# On the pod for which devices are set aside.
SET_ASIDE_CONDITION: Final = "dra-driver.dev/DevicesSetAside"

# On the pod for which others are preempted, or would be: True during a round; the message is for programs.
PREEMPTING_CONDITION: Final = "dra-driver.dev/Preempting"
# On a pod, or a namespace: with the value "false" its pods are never preempted by this driver.
PREEMPTIBLE_LABEL: Final = "dra-driver.dev/preemptible"

# On pods, or on claims, that are allocated all or none: the group's name and its number of pods; for an
# elastic group, how many of them suffice.
GROUP_LABEL: Final = "dra-driver.dev/group"
GROUP_SIZE_LABEL: Final = "dra-driver.dev/group-size"
GROUP_MIN_LABEL: Final = "dra-driver.dev/group-min"
# On pods, in place of the name: labels of the pod whose values name the group.
GROUP_BY_ANNOTATION: Final = "dra-driver.dev/group-by"

# Kubernetes' own: kept on allocated claims; on generated claims, the pod's name for the claim.
CLAIM_FINALIZER: Final = "resource.kubernetes.io/delete-protection"
POD_CLAIM_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"

# Kubernetes' own: "true" on the claim that a scheduler makes for a pod's extended resources; before a class's
# name, the resource that the class serves without being told.
EXTENDED_RESOURCE_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
IMPLICIT_RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

# On the pods of a group or on their claims: the levels of topology that its members share; what becomes of
# members that are not bound where others are and one cannot be placed ("wait", "release").
GROUP_DOMAIN_ANNOTATION: Final = "dra-driver.dev/group-domain"
GROUP_SOME_RUN_ANNOTATION: Final = "dra-driver.dev/group-when-some-run"

# On claims: what its devices are to have in common, such as "required:numaNode" or "preferred:nvlinkGroup"
# (several separated by commas).
TOPOLOGY_ANNOTATION: Final = "dra-driver.dev/topology"

# Standard device attributes.
PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

# Kubernetes' feature gate of attributes with several values.
LISTS_GATE: Final = "DRAListTypeAttributes"

# Device attribute of ours, in the domain of the driver: a claim may have it as a bare PCI function.
PASSTHROUGH: Final = "passthrough"

# Reason of an entry of a device's health: it stays with a claim that is gone, whose pods may still use it.
CLAIM_GONE_IN_USE: Final = "ClaimGoneInUse"
# Reasons of entries that say how a device is set up: it is not sick.
SETUP_REASONS: Final = frozenset({"MigEnabled", "VirtualFunctionsEnabled"})

PLUGIN_FIELD_MANAGER: Final = "dra-driver-kubelet-plugin"
CONTROLLER_FIELD_MANAGER: Final = "dra-driver-controller"
# Of the condition ``SET_ASIDE_CONDITION`` alone.
SET_ASIDE_FIELD_MANAGER: Final = "dra-driver-controller-set-aside"
# Of the condition ``PREEMPTING_CONDITION`` alone.
PREEMPTION_FIELD_MANAGER: Final = "dra-driver-controller-preemption"


def cdi_kind(driver: str) -> str:
    """Return the CDI kind of the specs that the plugin of ``driver`` writes, ``k8s.<driver>/claim``."""
    return f"k8s.{driver}/claim"
