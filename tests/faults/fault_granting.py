"""Random fault schedules in open pools: what the chart installs by default.

Besides the pods of every schedule there are pods with extended resources, and claims that have a NIC of
another driver as well, which kube-scheduler allocates by grants; some pods have no gate. kube-scheduler is
later than anything is waited for; the API server evaluates the policy that the chart installs. Invariants,
besides those of every schedule:

* the controller allocates nothing that is granted, nor what excludes that; others nothing that is neither
  granted nor kube-scheduler's (at every write);
* in the end nothing is granted, all pools of the controller are open, and every pod that fits runs.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import msgspec
from fault_world import ANY_CLASS, CLASS, DRIVER, NODE_NAMES, NS, QUICK, SETTINGS, Scenario
from gate_files import WITHOUT_GATE, gate_documents
from grant_audit import GrantAudit
from kubelet_fakes import FakePlugin

from controller.config import ControllerConfig
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.meta import DriverName
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, ResourceClaim
from dra_driver.errors import ApiUnavailable, DraError, NotFound
from dra_driver.kube import KubeApi
from dra_driver.ownership import owner_of
from dra_driver.resourceclaim import (
    classes_by_resource,
    extended_claim,
    extended_resources,
    lacks_extended_claim,
    shares,
)
from dra_driver.sim import assets
from dra_driver.sim.cluster import CONTROLLER_ACCOUNT
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.kubelet import NodeLayout

__all__ = ["GrantingScenario"]

OTHER = DriverName("nic.example.com")
RESOURCE = "example.com/gpu"
ROOT = "resource.kubernetes.io/pcieRoot"
NICS = 4
LATEST_SECONDS = 11.0
"""By which kube-scheduler is late at most. What it writes then is refused, however late it is."""
# Longer than what an earlier process may have under way, as at other times.
TIMINGS = replace(QUICK, closing=1.5)


class GrantingScenario(Scenario):
    """A cluster whose pools are open."""

    seconds = 9.0
    kills = 2
    pause = (0.3, 2.5)
    open_pools = True

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._audit = GrantAudit(self.server.store, DRIVER, "controller")
        self._scheduler: Scheduler | None = None

    # --- the cluster ----------------------------------------------------------------------------------------

    def config(self) -> ControllerConfig:
        return replace(super().config(), open_pools=True, timings=TIMINGS)

    def kubeconfig_of_controller(self) -> Path:
        return self.root / "kubeconfig-controller"

    def more_manifests(self) -> list[dict[str, Any]]:
        spec = {**ANY_CLASS["spec"], "extendedResourceName": RESOURCE}
        nic = {**builders.device_class("nic", f'device.driver == "{OTHER}"'), "kind": "DeviceClass"}
        return [
            {**ANY_CLASS, "spec": spec},
            {"apiVersion": "resource.k8s.io/v1", **nic},
            *assets.own_manifests(open_pools=True),
            *gate_documents(),
        ]

    def scheduler(self, api: KubeApi) -> Scheduler:
        self._scheduler = super().scheduler(api)
        return self._scheduler

    async def more_parts(self) -> None:
        for name in NODE_NAMES:
            self.add(f"nic {name}", functools.partial(self._run_nic, name))
        self.server.write_kubeconfig(self.kubeconfig_of_controller(), CONTROLLER_ACCOUNT)

    async def _run_nic(self, name: str) -> None:
        """Run the other driver's plugin, which publishes its slice whenever it is gone."""
        layout = NodeLayout(self.root / name)
        (layout.plugins / OTHER).mkdir(parents=True, exist_ok=True)
        plugin = FakePlugin(layout.plugins / OTHER, layout.registry, driver=OTHER, instance="-nic", cdi=False)
        for path in (plugin.dra_socket, plugin.reg_socket):
            path.unlink(missing_ok=True)
        await plugin.start()
        try:
            async with await KubeApi.connect(self.root / "kubeconfig", user_agent=f"nic-{name}") as api:
                while True:
                    await self._publish_nics(api, name)
                    await asyncio.sleep(SETTINGS.registry_tick)
        finally:
            await plugin.stop()

    async def _publish_nics(self, api: KubeApi, name: str) -> None:
        store = self.server.store
        node = store.get(NODES, name)
        if node is None or any(
            s.spec.driver == OTHER and s.spec.node_name == name for s in store.list(RESOURCE_SLICES)
        ):
            return
        attributes = {ROOT: "pci0000:00"}
        nics = [builders.device(f"nic-{i}", attributes=attributes) for i in range(NICS)]
        body = builders.resource_slice(name, *nics, driver=OTHER)
        body["metadata"]["ownerReferences"] = [msgspec.to_builtins(owner_of(node))]
        try:
            await api.create(RESOURCE_SLICES, body)
        except (ApiUnavailable, DraError):
            pass  # it is tried again

    # --- what happens ---------------------------------------------------------------------------------------

    async def disturb(self) -> None:
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._be_late())
            try:
                await super().disturb()
            finally:
                late.cancel()
        if self._scheduler is not None:
            self._scheduler.slow_allocation = 0.0

    async def _be_late(self) -> None:
        """Have kube-scheduler be late now and then."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.1, 1.5))
            late = self.chance.random() < 0.5
            if self._scheduler is not None:
                self._scheduler.slow_allocation = self.chance.uniform(0.0, LATEST_SECONDS) if late else 0.0

    async def somebody(self) -> None:
        roll = self.chance.random()
        if roll < 0.2:
            await self._extended_pod()
        elif roll < 0.4:
            await self.new_pod(spec=self._mixed())
        elif roll < 0.43:
            await self._wipe()
        else:
            await super().somebody()

    async def _extended_pod(self) -> None:
        name = f"p{next(self.names)}"
        gated = self.chance.random() < 0.7
        amount = {RESOURCE: self.chance.choice(("1", "1", "2"))}
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["sh", "-c", self.chance.choice(("sleep 3600", "sleep 0.2"))],
            "resources": {"requests": amount, "limits": amount},
        }
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "preemptionPolicy": "Never",
            "containers": [container],
            **({} if gated else WITHOUT_GATE),
        }
        await self.api.create(PODS, {"metadata": {"name": name, "namespace": NS}, "spec": spec})

    def _mixed(self) -> dict[str, Any]:
        gpu = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": self.chance.choice((1, 1, 2))}}
        nic = {"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}
        requests = [gpu, nic] if self.chance.random() < 0.5 else [nic, gpu]
        constraints = [{"matchAttribute": ROOT}] if self.chance.random() < 0.3 else []
        return {"devices": {"requests": requests, **({"constraints": constraints} if constraints else {})}}

    async def _wipe(self) -> None:
        """Delete a node's slices, as a kubelet does."""
        node = self.chance.choice(NODE_NAMES)
        for slice_ in self.server.store.list(RESOURCE_SLICES):
            if slice_.spec.node_name == node:
                try:
                    await self.api.delete(RESOURCE_SLICES, slice_.metadata.name)
                except NotFound:
                    pass

    # --- what is looked at ----------------------------------------------------------------------------------

    def looked(self) -> Iterator[str]:
        yield from self._audit.look()
        result, audit = self.result, self._audit
        result.granted, result.taken, result.refused = audit.granted, audit.taken, audit.refused
        result.own, result.longest = audit.own, audit.longest

    def unsettled(self) -> Iterator[str]:
        for text in super().unsettled():
            if not any(text.startswith(f"pod {name} fits on ") for name in self._refused()):
                yield text
        for holder in self._audit.left():
            yield f"something is granted to {holder}"

    def _refused(self) -> Iterator[str]:
        """Yield pods for which devices that are shared are not granted, although they fit (decision 11)."""
        for pod in self.server.store.list(PODS, NS):
            messages = (str(c.get("message")) for c in pod.status.conditions)
            if any("could get more shares of" in message for message in messages):
                yield pod.metadata.name

    def claims_of(self, pod: Pod) -> list[ResourceClaim] | None:
        """Return the claims of a pod, with the one for extended resources that is to come."""
        claims = super().claims_of(pod)
        if claims is None or not lacks_extended_claim(pod, self.claim_of):
            return claims
        classes = classes_by_resource(self.server.store.list(DEVICE_CLASSES))
        served = {name: classes[name] for name in extended_resources(pod) if name in classes}
        if not served:
            return claims
        claim = extended_claim(pod, shares(pod, served).requests)
        meta = msgspec.structs.replace(claim.metadata, name=f"<{pod.metadata.name}>")
        return [*claims, msgspec.structs.replace(claim, metadata=meta)]
