"""One simulated node: the Node object, its pods, its plugins, and the wiping of its ResourceSlices."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from dra_driver.api.core import NODES
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import Backoff, EventRecorder, Handler, Informer, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import KubeClient
from dra_driver.sim.cdi_reader import CdiRegistry, simulated_device_node
from dra_driver.sim.kubelet.claims import ClaimManager
from dra_driver.sim.kubelet.plugins import DeviceHealth, PluginManager
from dra_driver.sim.kubelet.pod_resources import PodResourcesLister, serve
from dra_driver.sim.kubelet.pods import FINISHED, NodeContext, PodWorker
from dra_driver.sim.kubelet.runtime import SimRuntime
from dra_driver.sim.kubelet.settings import KubeletSettings, NodeLayout
from dra_driver.sim.objects import RUN_PODS, RunPod

__all__ = ["SimKubelet"]

log = structlog.get_logger(__name__)

ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "pods": "110"}


class SimKubelet:
    """The stand-in kubelet of one node.

    Args:
        api: the API server.
        name: name of the node.
        layout: the node's directories.
        settings: delays.
        runtime: container runtime; that of an earlier kubelet to restart it while its containers run on.
        labels: labels of the Node object, beside ``kubernetes.io/hostname``.
        taints: taints that the Node object has from the start.
        allocatable: ``status.allocatable`` of the Node object.
    """

    def __init__(
        self,
        api: KubeClient,
        name: str,
        layout: NodeLayout,
        settings: KubeletSettings | None = None,
        *,
        runtime: SimRuntime | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        allocatable: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.layout = layout
        self._api = api
        self._settings = settings or KubeletSettings()
        self._allocatable = dict(allocatable or ALLOCATABLE)
        self._labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        self._taints = [dict(taint) for taint in taints]
        layout.create()
        self.runtime = runtime or SimRuntime(
            CdiRegistry([layout.cdi], stat_device=simulated_device_node), layout.cgroups
        )
        self.plugins = PluginManager(layout.registry, self._settings, self._wipe, self._health)
        self.claims = ClaimManager(api, self.plugins, layout.checkpoint)
        self._recorder = EventRecorder(api, "kubelet", SystemClock())
        self._node = NodeContext(api, self._recorder, self.claims, self.runtime, self._settings)
        self._workers: dict[str, PodWorker] = {}

    async def run(self) -> None:
        """Run until cancelled. Containers run on, as they do when a kubelet stops."""
        pods = Informer(self._api, RUN_PODS, field_selector=f"spec.nodeName={self.name}")
        lister = PodResourcesLister(self._active_pods, self.claims.claims.values)
        async with serve(self.layout.pod_resources, lister), asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            await self._register()
            pods.add_handler(
                Handler(
                    added=lambda pod: self._added(group, pod),
                    updated=lambda _, pod: self._updated(group, pod),
                    deleted=self._deleted,
                )
            )
            group.create_task(pods.run())
            group.create_task(self._startup_wipe())
            group.create_task(self.plugins.run())
            group.create_task(self._heartbeat())
            await pods.synced.wait()
            group.create_task(self._forget_lost_pods())

    # --- pods -----------------------------------------------------------------------------------------------

    def _active_pods(self) -> list[RunPod]:
        workers = [w for w in self._workers.values() if not w.is_removed]
        return [w.pod for w in workers if w.pod.status.phase not in FINISHED]

    def _added(self, group: asyncio.TaskGroup, pod: RunPod) -> None:
        if pod.spec.node_name != self.name or pod.metadata.uid in self._workers:
            return
        worker = PodWorker(self._node, pod)
        self._workers[worker.uid] = worker
        task = group.create_task(worker.run())
        task.add_done_callback(lambda _: self._workers.pop(worker.uid, None))

    def _updated(self, group: asyncio.TaskGroup, pod: RunPod) -> None:
        worker = self._workers.get(pod.metadata.uid)
        if worker is None:
            self._added(group, pod)
        else:
            worker.update(pod)

    def _deleted(self, pod: RunPod) -> None:
        worker = self._workers.get(pod.metadata.uid)
        if worker is not None:
            worker.removed()

    async def _forget_lost_pods(self) -> None:
        """Unprepare claims of pods that were deleted while no kubelet was running."""
        while True:
            await asyncio.sleep(self._settings.reconcile)
            users = {uid for info in self.claims.claims.values() for uid in info.pods}
            for uid in users - set(self._workers):
                try:
                    self.runtime.end_processes(uid)
                    await self.claims.unprepare(uid)
                    self.runtime.stop_sandbox(uid)
                except DraError as e:
                    log.info("unprepare failed, will be tried again", pod_uid=uid, error=str(e))

    def _health(self, driver: str, devices: Sequence[DeviceHealth]) -> None:
        changed = False
        for device in devices:
            key = (driver, device.pool, device.device)
            value = (device.health, device.message)
            changed |= self._node.health.get(key) != value
            self._node.health[key] = value
        if changed:
            for worker in self._workers.values():
                worker.health_changed()

    # --- slices ---------------------------------------------------------------------------------------------

    async def _startup_wipe(self) -> None:
        if self._settings.startup_wipe is not None:
            await asyncio.sleep(self._settings.startup_wipe)
            await self._wipe("")

    async def _wipe(self, driver: str) -> None:
        """Delete the node's slices, of one driver or of all, whichever component published them."""
        selector = f"spec.nodeName={self.name}" + (f",spec.driver={driver}" if driver else "")
        backoff = Backoff(base=0.2, cap=10.0)
        while True:
            try:
                found = await self._api.list(RESOURCE_SLICES, field_selector=selector)
                for item in found.items:
                    with contextlib.suppress(NotFound, Conflict):
                        await self._api.delete(RESOURCE_SLICES, item.metadata.name, uid=item.metadata.uid)
                if found.items:
                    log.info("slices wiped", node=self.name, driver=driver or "all", slices=len(found.items))
                return
            except DraError as e:
                log.info("slices not wiped, will be tried again", node=self.name, error=str(e))
                await asyncio.sleep(backoff.next())

    # --- the Node -------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        backoff = Backoff(base=0.2, cap=10.0)
        while True:
            try:
                with contextlib.suppress(Conflict):  # the Node is there already
                    await self._api.create(
                        NODES,
                        {
                            "apiVersion": "v1",
                            "kind": "Node",
                            "metadata": {"name": self.name, "labels": self._labels},
                            **({"spec": {"taints": self._taints}} if self._taints else {}),
                        },
                    )
                await self._write_node(first=True)
                return
            except DraError as e:
                log.warning("node not registered, will be tried again", node=self.name, error=str(e))
                await asyncio.sleep(backoff.next())

    async def _write_node(self, *, first: bool) -> None:
        now = rfc3339(time.time())
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "stand-in kubelet is posting ready status",
            "lastHeartbeatTime": now,
        }
        if first:
            self._ready_since = now
        status: dict[str, Any] = {"conditions": [{**condition, "lastTransitionTime": self._ready_since}]}
        if first:
            status |= {
                "capacity": self._allocatable,
                "allocatable": self._allocatable,
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": self.name},
                ],
            }
        await self._api.merge_patch(NODES, self.name, {"status": status}, subresource="status")

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat)
            with contextlib.suppress(DraError):
                await self._write_node(first=False)
