"""Kinds as the stand-ins need them: pods as a kubelet reads them, other objects by their metadata."""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.api import core
from dra_driver.api.meta import Resource, Wire, WireObject
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES

__all__ = [
    "APPLIED_KINDS",
    "OWNED_KINDS",
    "OWNER_KINDS",
    "RUN_PODS",
    "EnvVar",
    "MetaObject",
    "RunContainer",
    "RunPod",
    "RunPodSpec",
    "metadata_only",
]


class EnvVar(Wire, frozen=True, kw_only=True):
    """``env[]`` of a container; ``valueFrom`` is left out of the simulation."""

    name: str
    value: str = ""


class RunContainer(core.Container, frozen=True, kw_only=True):
    """A container with the fields that decide its simulated life."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()


class RunPodSpec(core.PodSpec, frozen=True, kw_only=True):
    """``spec`` of a pod that a kubelet runs."""

    containers: tuple[RunContainer, ...] = ()
    init_containers: tuple[RunContainer, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30


class RunPod(core.Pod, frozen=True, kw_only=True):
    """A pod that a kubelet runs."""

    spec: RunPodSpec = RunPodSpec()


class MetaObject(WireObject, frozen=True, kw_only=True):
    """Any object, with nothing but its metadata."""


RUN_PODS = Resource("", "v1", "pods", "Pod", RunPod, namespaced=True)


def metadata_only(
    group: str, version: str, plural: str, kind: str, *, namespaced: bool
) -> Resource[MetaObject]:
    """Return a kind of which only metadata is read."""
    return Resource(group, version, plural, kind, MetaObject, namespaced=namespaced)


# Kinds that the garbage collector handles, and kinds that own them.
OWNED_KINDS = tuple(
    metadata_only(r.group, r.version, r.plural, r.kind, namespaced=r.namespaced)
    for r in (core.PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_INVENTORIES)
)
OWNER_KINDS: Mapping[tuple[str, str], Resource[MetaObject]] = {
    (r.api_version, r.kind): metadata_only(r.group, r.version, r.plural, r.kind, namespaced=r.namespaced)
    for r in (core.PODS, core.NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_INVENTORIES)
}

# Kinds that the example manifests may contain.
APPLIED_KINDS: Mapping[tuple[str, str], Resource[MetaObject]] = {
    (r.api_version, r.kind): metadata_only(r.group, r.version, r.plural, r.kind, namespaced=r.namespaced)
    for r in (
        core.NAMESPACES,
        core.PODS,
        RESOURCE_CLAIMS,
        RESOURCE_CLAIM_TEMPLATES,
        DEVICE_CLASSES,
        DEVICE_POLICIES,
    )
}
