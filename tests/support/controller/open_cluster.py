"""A cluster with the admission policy of open pools, which the fake API server evaluates."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import builders
from builders import DRIVER, NAMESPACE
from fake_client import FakeClient
from manifest_files import documents

from dra_driver.api.core import CONFIG_MAPS, NAMESPACES, NODES
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.names import DEFAULT_DRIVER_NAME, GRANTS, SYSTEM_NAMESPACE, TRIAL_CLAIM
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.server.admission import (
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)
from dra_driver.api.server.watch import ObjectList
from dra_driver.ownership import Grants, bare_devices
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.assets import deploy_directory

__all__ = ["ROOM", "PolicedCluster", "cluster_of", "without_taints"]

T = TypeVar("T", bound=WireObject)

ROOM = {"cpu": "64", "memory": "320Gi", "pods": "110"}


class PolicedCluster(FakeClient):
    """An API server that evaluates the policy; its client is the controller.

    Attributes:
        evaluates: whether it does where the controller tries it.
        listing: seconds that a list of claims takes, as many claims do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evaluates = True
        self.listing = 0.0
        account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:dra-driver-controller"
        self.user = {"username": account, "groups": ["system:authenticated"]}

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Patch; the trial is admitted where the policy is not evaluated."""
        if name == TRIAL_CLAIM and not self.evaluates:
            return await self.get(resource, name, namespace)
        return await super().merge_patch(
            resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
        )

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """List, in the time that it takes."""
        selectors = {"label_selector": label_selector, "field_selector": field_selector}
        found = await super().list(resource, namespace, **selectors)
        if resource.kind == RESOURCE_CLAIMS.kind and self.listing:
            await asyncio.sleep(self.listing)
        return found

    def install(self) -> None:
        """Install policy, binding, object and the claim of the trial, as far as they are missing."""
        for body in _documents():
            resource = _RESOURCES[body["kind"]]
            namespace = SYSTEM_NAMESPACE if resource.namespaced else ""
            if self.find(resource, body["metadata"]["name"], namespace) is None:
                self.put(resource, body)

    def gate_everywhere(self) -> None:
        """Install what sets the gate in every namespace."""
        for body in _gating():
            resource = {r.kind: r for r in (MUTATING_POLICIES, MUTATING_POLICY_BINDINGS)}[body["kind"]]
            self.put(resource, body)

    def gate_labelled(self) -> None:
        """Have what sets the gate leave namespaces without a label out."""
        spec = {"matchConstraints": {"namespaceSelector": {"matchLabels": {"gate": "yes"}}}}
        self.edit(MUTATING_POLICIES, "dra-driver-allocation-gate", {"spec": spec})

    def uninstall(self) -> None:
        """Delete the policy."""
        self.remove(VALIDATING_POLICIES, GRANTS)

    def grants(self) -> Grants:
        """Return what the object says."""
        found = self.find(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE) or {}
        return Grants.of_data(found.get("data") or {})

    def take(self, claim: str, node: str, device: str, **more: Any) -> bool:
        """Do as kube-scheduler: allocate a device to a claim; return whether that was admitted.

        Args:
            claim: name of the claim.
            node: whose pool.
            device: name of the device.
            **more: what the allocation says of the device besides.
        """
        if self.obj(RESOURCE_CLAIMS, claim, NAMESPACE).status.allocation is not None:
            return False
        kind, options = self._kind(RESOURCE_CLAIMS), Options(manager="kube-scheduler")
        patch = {"status": builders.allocation(builders.result(node, device, **more))}
        try:
            self.registry.patch(kind, NAMESPACE, claim, "merge", patch, options, "status")
        except StatusError as e:
            if GRANTS not in str(e.raw()):
                raise
            return False
        return True

    def bare(self) -> frozenset[str]:
        """Return the devices without our taint."""
        ours = (s for s in self.all(RESOURCE_SLICES) if s.spec.driver == DRIVER)
        return frozenset(name for s in ours for name in bare_devices(s))

    def record(self, node: str = "n1") -> str:
        """Return who may allocate from the pool of a node, as it is noted."""
        return self.obj(DEVICE_INVENTORIES, f"{node}.{DRIVER}").status.publication.allocator

    def doubles(self) -> Sequence[tuple[str, str]]:
        """Return the devices that several claims have."""
        held = [
            (r.pool, r.device)
            for claim in self.all(RESOURCE_CLAIMS)
            if claim.status.allocation is not None
            for r in claim.status.allocation.devices.results
        ]
        return sorted({one for one in held if held.count(one) > 1})


def cluster_of(*nodes: str, gpus: int = 2) -> PolicedCluster:
    """Return nodes with GPUs of ours, the policy, and the gate in every namespace."""
    cluster = PolicedCluster()
    cluster.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    for name in (NAMESPACE, SYSTEM_NAMESPACE):
        cluster.put(NAMESPACES, {"metadata": {"name": name}})
    cluster.gate_everywhere()
    cluster.install()
    for name in nodes:
        cluster.put(NODES, builders.node(name, uid=f"uid-{name}", allocatable=ROOM))
        devices = [builders.device(f"gpu-{i}", "40Gi", attributes={"type": "gpu"}) for i in range(gpus)]
        cluster.put(DEVICE_INVENTORIES, builders.inventory(name, *devices))
    return cluster


def without_taints(body: dict[str, Any]) -> None:
    """Drop device taints, as an API server does without the feature gate (``FakeClient.strip``)."""
    if body["kind"] == RESOURCE_SLICES.kind:
        for device in body["spec"].get("devices") or ():
            device.pop("taints", None)


_RESOURCES = {
    r.kind: r for r in (CONFIG_MAPS, RESOURCE_CLAIMS, VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS)
}


@functools.cache
def _manifest() -> str:
    found = documents(deploy_directory("manifests") / "60-grants.yaml")
    return json.dumps([d for d in found if d]).replace(DEFAULT_DRIVER_NAME, DRIVER)


def _documents() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_manifest())
    return found


def _gating() -> list[dict[str, Any]]:
    return documents(deploy_directory("manifests") / "gate-policy" / "gating.yaml")
