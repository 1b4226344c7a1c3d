"""A stand-in for the node lifecycle controller: nodes without heartbeats are tainted, their pods evicted.

It follows the documentation of Kubernetes: a node without a heartbeat for a grace period is Ready Unknown;
``not-ready`` and ``unreachable`` taints follow the Ready condition; pods are evicted when they no longer
tolerate the NoExecute taint. Zones, rates of eviction and Leases are left out.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import Informer, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["NodeLifecycle"]

log = structlog.get_logger(__name__)

# Status of the Ready condition → key of the taint.
_TAINTS = {"False": "node.kubernetes.io/not-ready", "Unknown": "node.kubernetes.io/unreachable"}
_FINISHED = ("Succeeded", "Failed")


class NodeLifecycle:
    """Watches nodes and pods.

    Args:
        api: the API server.
        grace: seconds without a heartbeat until a node is unreachable; the real default is 50.
        tick: seconds between two checks.
        clock: what time it is; if None, the clocks of the machine.
    """

    def __init__(
        self, api: KubeClient, *, grace: float = 50.0, tick: float = 1.0, clock: Clock | None = None
    ) -> None:
        self._api = api
        self._clock = clock or SystemClock()
        self._grace = grace
        self._tick = tick
        self._nodes = Informer(api, NODES)
        self._pods = Informer(api, PODS, indices={"node": lambda pod: [pod.spec.node_name]})
        # UID → last heartbeat, and when it was seen on our clock: clocks of nodes are not compared with it.
        self._heard: dict[str, tuple[str, float]] = {}
        self._tainted: dict[str, float] = {}  # UID of a node → when its NoExecute taint was first seen

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
            await self._nodes.synced.wait()
            await self._pods.synced.wait()
            while True:
                for node in self._nodes.items():
                    try:
                        await self._look(node)
                    except (NotFound, Conflict):
                        continue  # the watch will show the change
                    except DraError as e:
                        log.warning("node not looked after", node=node.metadata.name, error=str(e))
                known = {n.metadata.uid for n in self._nodes.items()}
                for uid in set(self._heard) - known:
                    del self._heard[uid]
                    self._tainted.pop(uid, None)
                await asyncio.sleep(self._tick)

    async def _look(self, node: Node) -> None:
        ready = next((c for c in node.status.conditions if c.get("type") == "Ready"), None)
        if ready is None:
            return  # not registered yet
        uid, now = node.metadata.uid, self._clock.monotonic()
        beat = f"{ready.get('lastHeartbeatTime')} {ready.get('status')}"
        if self._heard.get(uid, ("", 0.0))[0] != beat:
            self._heard[uid] = (beat, now)
        status = str(ready.get("status"))
        if status != "Unknown" and now - self._heard[uid][1] > self._grace:
            await self._silent(node)
            return
        await self._taint(node, _TAINTS.get(status, ""))

    async def _silent(self, node: Node) -> None:
        log.info("node is silent", node=node.metadata.name, grace=self._grace)
        unknown = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        others = [dict(c) for c in node.status.conditions if c.get("type") != "Ready"]
        version = {"resourceVersion": node.metadata.resource_version}
        body = {"metadata": version, "status": {"conditions": [*others, unknown]}}
        await self._api.merge_patch(NODES, node.metadata.name, body, subresource="status")

    async def _taint(self, node: Node, key: str) -> None:
        """Set the node's taints to those of ``key`` (none if empty); evict pods that do not tolerate them."""
        kept = [t for t in node.spec.taints if t.key not in _TAINTS.values()]
        there = {(t.key, t.effect) for t in node.spec.taints} - {(t.key, t.effect) for t in kept}
        wanted = {(key, "NoSchedule"), (key, "NoExecute")} if key else set()
        if there != wanted:
            taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in kept]
            taints += [{"key": k, "effect": e} for k, e in sorted(wanted)]
            body = {
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints or None},
            }
            await self._api.merge_patch(NODES, node.metadata.name, body)
        if not key:
            self._tainted.pop(node.metadata.uid, None)
            return
        now = self._clock.monotonic()
        since = self._tainted.setdefault(node.metadata.uid, now)
        for pod in self._pods.by_index("node", node.metadata.name):
            if _leaves(pod, key, now - since):
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(
                        PODS, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid
                    )


def _leaves(pod: Pod, key: str, seconds: float) -> bool:
    """Return whether the time for which a pod tolerates the NoExecute taint is over."""
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in _FINISHED:
        return False
    matching = [
        t
        for t in pod.spec.tolerations
        if t.effect in ("", "NoExecute") and t.operator == "Exists" and t.key in ("", key)
    ]
    limits = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
    return not matching or (bool(limits) and seconds >= max(0, min(limits)))
