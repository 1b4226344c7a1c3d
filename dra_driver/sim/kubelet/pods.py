"""The life of one pod on a node: prepare, start, watch, stop, unprepare, in the order of the real kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import EventRecorder
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import KubeClient
from dra_driver.sim.cdi_reader import CdiError
from dra_driver.sim.kubelet.claims import ClaimManager, ClaimsNotReady
from dra_driver.sim.kubelet.runtime import RunningContainer, SimRuntime
from dra_driver.sim.kubelet.settings import KubeletSettings
from dra_driver.sim.objects import RUN_PODS, RunContainer, RunPod

__all__ = ["NodeContext", "PodWorker"]

log = structlog.get_logger(__name__)

FINISHED = ("Succeeded", "Failed")
# Seconds before a status that could not be written is tried again.
STATUS_RETRY = 0.5


@dataclass(slots=True)
class NodeContext:
    """The parts that the pods of a node share.

    Attributes:
        health: (driver, pool, device) → health and message of the last report.
    """

    api: KubeClient
    recorder: EventRecorder
    claims: ClaimManager
    runtime: SimRuntime
    settings: KubeletSettings
    health: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)


class PodWorker:
    """One pod, from the moment that it is bound to this node until it is gone.

    Args:
        node: the node's parts.
        pod: the pod in its first version.
    """

    def __init__(self, node: NodeContext, pod: RunPod) -> None:
        self._node = node
        self._pod = pod
        self._gone = False
        self._changed = asyncio.Event()
        self._unwritten = False  # the last status could not be written
        self._waiting: dict[str, tuple[str, str]] = {}  # container → reason, message
        self._create_again = 0.0  # monotonic
        self._sandbox_ready = False
        self._phase = "Pending"
        self._written: Mapping[str, Any] | None = None
        self._started_at = rfc3339(time.time())

    @property
    def pod(self) -> RunPod:
        """The newest version of the pod."""
        return self._pod

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return self._pod.metadata.uid

    @property
    def is_removed(self) -> bool:
        """Whether its object is deleted; such a pod is active no more, whatever its containers do."""
        return self._gone

    def update(self, pod: RunPod) -> None:
        """Update the pod to a new version."""
        self._pod = pod
        self._changed.set()

    def removed(self) -> None:
        """Note that the object is deleted from the API server, by force or by this kubelet."""
        self._gone = True
        self._changed.set()

    def health_changed(self) -> None:
        """Note that the health of a device has changed, so that pod status may have to change."""
        self._changed.set()

    # --- the life -------------------------------------------------------------------------------------------

    @property
    def _ending(self) -> bool:
        return self._gone or self._pod.metadata.deletion_timestamp is not None

    async def run(self) -> None:
        """Run until the pod is deleted."""
        if self._pod.status.phase in FINISHED:
            self._phase = self._pod.status.phase
            await self._unprepare()
            self._node.runtime.stop_sandbox(self.uid)
        else:
            sandbox = self._node.runtime.sandboxes.get(self.uid)
            self._sandbox_ready = sandbox is not None
            if sandbox is not None and sandbox.containers:
                self._phase = "Running"
            await self._start()
        while not self._ending:
            if self._phase in FINISHED:
                await self._wait(None)
                if self._unwritten:
                    await self._write_status()
            else:
                await self._supervise()
        await self._terminate()

    async def _wait(self, seconds: float | None) -> None:
        """Wait until something changes, at most ``seconds``; if None, without limit."""
        if self._unwritten:
            seconds = STATUS_RETRY if seconds is None else min(seconds, STATUS_RETRY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _pause(self, seconds: float) -> None:
        """Sleep ``seconds``, or until the pod is to end."""
        deadline = time.monotonic() + seconds
        while not self._ending and (left := deadline - time.monotonic()) > 0:
            await self._wait(left)

    async def _start(self) -> None:
        if not self._sandbox_ready:
            for container in self._pod.spec.containers:
                self._waiting[container.name] = ("ContainerCreating", "")
            await self._write_status()
            await self._prepare()
            if self._ending:
                return
            self._node.runtime.run_sandbox(self.uid, self._pod.metadata.namespace, self._pod.metadata.name)
            self._sandbox_ready = True
            await self._write_status()
        await self._start_containers()

    async def _prepare(self) -> None:
        while not self._ending:
            try:
                await self._node.claims.prepare(self._pod)
                return
            except ClaimsNotReady as e:
                self._event(
                    "Warning",
                    "FailedPrepareDynamicResources",
                    f"Failed to prepare dynamic resources: prepare dynamic resources: {e}",
                )
            await self._pause(self._node.settings.prepare_retry)

    async def _start_containers(self) -> None:
        """Start the containers that are not there; one that cannot be created is tried again later."""
        sandbox = self._node.runtime.sandboxes[self.uid]
        for container in self._pod.spec.containers:
            if container.name not in sandbox.containers:
                self._create(container)
        self._create_again = time.monotonic() + self._node.settings.create_retry

    def _create(self, container: RunContainer) -> None:
        try:
            devices = self._node.claims.cdi_devices(self._pod, container)
            self._node.runtime.start_container(self.uid, container, devices)
        except (CdiError, ClaimsNotReady) as e:
            message = f"failed to create containerd container: {e}"
            self._waiting[container.name] = ("CreateContainerError", message)
            self._event("Warning", "Failed", f"Error: {message}")
        else:
            self._waiting.pop(container.name, None)
            self._phase = "Running"  # Pending until the first container has started
            self._event("Normal", "Started", f"Started container {container.name}")

    async def _supervise(self) -> None:
        """Act once on containers that have ended; if none has, wait for the next event."""
        containers = self._node.runtime.sandboxes[self.uid].containers
        now = time.monotonic()
        await self._write_status()
        ended = [c for c in containers.values() if c.ended(now)]
        restart = [c for c in ended if self._restarts(c)]
        if restart:
            await self._restart(restart)
        elif len(ended) == len(self._pod.spec.containers):
            await self._finish(ended)
        elif self._waiting and now >= self._create_again:
            await self._start_containers()
        else:
            delay = self._node.settings.exit_detection
            times = [c.ends + delay for c in containers.values() if c.ends is not None and c.ends > now]
            if self._waiting:
                times.append(self._create_again)
            await self._wait(max(0.0, min(times) - now) if times else None)

    def _restarts(self, container: RunningContainer) -> bool:
        policy = self._pod.spec.restart_policy
        return policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)

    async def _restart(self, ended: list[RunningContainer]) -> None:
        """Restart containers in the same sandbox, without prepare, with the CDI specs as they are now."""
        await self._pause(self._node.settings.restart_backoff)
        if self._ending:
            return
        containers = self._node.runtime.sandboxes[self.uid].containers
        for running in ended:
            self._create(next(c for c in self._pod.spec.containers if c.name == running.name))
            if running.name in self._waiting:
                containers.pop(running.name, None)
        self._create_again = time.monotonic() + self._node.settings.create_retry

    async def _finish(self, ended: list[RunningContainer]) -> None:
        """Finish a pod whose containers have ended; as recorded, unprepare comes before the phase."""
        await self._unprepare()
        self._phase = "Failed" if any(c.exit_code for c in ended) else "Succeeded"
        self._sandbox_ready = False
        await self._write_status()

    async def _terminate(self) -> None:
        sandbox = self._node.runtime.sandboxes.get(self.uid)
        for name in sandbox.containers if sandbox is not None and self._phase not in FINISHED else ():
            self._event("Normal", "Killing", f"Stopping container {name}")
        if sandbox is not None and not self._gone:
            grace = self._pod.spec.termination_grace_period_seconds
            await asyncio.sleep(min(self._node.settings.stop_delay, grace))
        await self._unprepare()
        self._node.runtime.stop_sandbox(self.uid)
        while not self._gone:
            try:
                await self._node.api.delete(
                    RUN_PODS,
                    self._pod.metadata.name,
                    self._pod.metadata.namespace,
                    uid=self.uid,
                    grace_period_seconds=0,
                )
                return
            except NotFound:
                return
            except DraError as e:
                log.warning("pod not removed, will be tried again", pod=str(self._pod.key), error=str(e))
                await self._wait(1.0)

    async def _unprepare(self) -> None:
        """Unprepare the pod's claims, after everything of it has been stopped."""
        self._node.runtime.end_processes(self.uid)
        delay = self._node.settings.unprepare_retry
        while True:
            try:
                await self._node.claims.unprepare(self.uid)
                return
            except ClaimsNotReady as e:
                log.info("unprepare failed, will be tried again", pod=str(self._pod.key), error=str(e))
            await asyncio.sleep(delay)
            delay = self._node.settings.unprepare_retry_later

    # --- status ---------------------------------------------------------------------------------------------

    def _event(self, kind: Any, reason: str, message: str) -> None:
        self._node.recorder.event(RUN_PODS, self._pod, kind, reason, message, about=message)

    async def _write_status(self) -> None:
        if self._gone:
            return
        status = self._status()
        if status == self._written:
            return
        conditions = [*self._foreign_conditions(status["conditions"]), *status["conditions"]]
        metadata = self._pod.metadata
        try:
            await self._node.api.merge_patch(
                RUN_PODS,
                metadata.name,
                {
                    # A merge replaces the whole list, so conditions of others must be those that are there.
                    "metadata": {"uid": self.uid, "resourceVersion": metadata.resource_version},
                    "status": {**status, "conditions": conditions},
                },
                metadata.namespace,
                subresource="status",
            )
            self._written = status
            self._unwritten = False
        except NotFound:
            pass  # deleted; the watch will show it
        except Conflict:
            self._unwritten = True  # the watch will show a newer version
        except DraError as e:
            self._unwritten = True
            log.warning("pod status not written", pod=str(self._pod.key), error=str(e))

    def _status(self) -> dict[str, Any]:
        sandbox = self._node.runtime.sandboxes.get(self.uid)
        running = sandbox.containers if sandbox is not None else {}
        now = time.monotonic()
        up = all(c.name in running and not running[c.name].ended(now) for c in self._pod.spec.containers)
        unready: dict[str, str] = {}
        completed = {"reason": "PodCompleted"} if self._phase == "Succeeded" else {}
        if self._phase in FINISHED:
            unready = {"reason": "PodCompleted" if self._phase == "Succeeded" else "PodFailed"}
        elif not up:
            names = " ".join(c.name for c in self._pod.spec.containers if c.name not in running)
            unready = {
                "reason": "ContainersNotReady",
                "message": f"containers with unready status: [{names}]",
            }
        conditions = [
            {"type": "PodReadyToStartContainers", "status": str(self._sandbox_ready)},
            {"type": "Initialized", "status": "True", **completed},
            {"type": "Ready", "status": str(not unready), **unready},
            {"type": "ContainersReady", "status": str(not unready), **unready},
            {"type": "PodScheduled", "status": "True"},
        ]
        return {
            "phase": self._phase,
            "startTime": self._started_at,
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "conditions": self._with_times(conditions),
            "containerStatuses": [
                self._container_status(c, running.get(c.name)) for c in self._pod.spec.containers
            ],
        }

    def _foreign_conditions(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        types = {condition["type"] for condition in own}
        return [dict(c) for c in self._pod.status.conditions if c.get("type") not in types]

    def _with_times(self, conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = {c.get("type"): c for c in (self._written or {}).get("conditions", ())}
        now = rfc3339(time.time())
        for condition in conditions:
            old = before.get(condition["type"])
            same = old is not None and old["status"] == condition["status"]
            condition["lastTransitionTime"] = old["lastTransitionTime"] if old is not None and same else now
        return conditions

    def _container_status(self, container: RunContainer, running: RunningContainer | None) -> dict[str, Any]:
        now = time.monotonic()
        waiting = self._waiting.get(container.name)
        state: dict[str, Any]
        if waiting is not None or running is None:
            reason, message = waiting or ("ContainerCreating", "")
            state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        elif running.ended(now):
            assert running.ends is not None
            state = {
                "terminated": {
                    "exitCode": running.exit_code,
                    "reason": "Error" if running.exit_code else "Completed",
                    "startedAt": _wall(running.started),
                    "finishedAt": _wall(running.ends),
                }
            }
        else:
            state = {"running": {"startedAt": _wall(running.started)}}
        up = "running" in state
        status: dict[str, Any] = {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": up,
            "started": up,
            "restartCount": running.restarts if running is not None else 0,
            "state": state,
        }
        resources = self._resources_status(container)
        if resources:
            status["allocatedResourcesStatus"] = resources
        return status

    def _resources_status(self, container: RunContainer) -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for label, device, driver in self._node.claims.allocated_resources(self._pod, container):
            if not device.cdi_ids:
                continue
            health, message = self._node.health.get((driver, device.pool, device.device), ("Unknown", ""))
            entry = {"resourceID": device.cdi_ids[0], "health": health}
            found.setdefault(label, []).append({**entry, **({"message": message} if message else {})})
        return [{"name": name, "resources": resources} for name, resources in found.items()]


def _wall(monotonic: float) -> str:
    return rfc3339(time.time() - (time.monotonic() - monotonic))
