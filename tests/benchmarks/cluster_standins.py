"""The fastest stand-ins that write what the real ones write, for pods from a template to running.

Per pod: the controller-manager creates the claim and notes it in the pod's status; once the gate is off and
the claim allocated, the scheduler reserves it and binds the pod; the kubelet reports the pod running. Nothing
is decided here: the allocation says where the pod goes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import fleet_objects as fleet
from apiserver_support import MERGE_PATCH, Connection

from dra_driver.api.names import ALLOCATION_GATE


class StandIns:
    """Follows pods and claims of the namespace.

    Attributes:
        running: name of a pod → when it was reported running, on the monotonic clock.
        ungated: name of a pod → when its gate was seen to be off.
    """

    def __init__(self, port: int, connections: list[Connection], *, live: bool = True) -> None:
        self._port = port
        self._connections = connections
        self._live = live
        self._todo: asyncio.Queue[tuple[str, dict[str, Any], dict[str, Any]]] = asyncio.Queue()
        self._claims: dict[str, dict[str, Any]] = {}
        self._asked: set[tuple[str, str]] = set()
        self.running: dict[str, float] = {}
        self.ungated: dict[str, float] = {}
        self.watching = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(self._work(connection))
            if self._live:
                group.create_task(self._follow_claims())
            group.create_task(self._follow_pods())

    async def _events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        lister, watcher = await Connection.open(self._port), await Connection.open(self._port)
        version = (await lister.call("GET", f"{path}?limit=1"))["metadata"]["resourceVersion"]
        self.watching.set()
        async for event in watcher.events(f"{path}?watch=1&resourceVersion={version}"):
            yield event["object"]

    async def _follow_claims(self) -> None:
        async for claim in self._events(fleet.CLAIMS):
            name = claim["metadata"]["name"]
            self._claims[name] = claim

    async def _follow_pods(self) -> None:
        async for pod in self._events(fleet.PODS):
            name = pod["metadata"]["name"]
            gates = [g["name"] for g in pod["spec"].get("schedulingGates") or ()]
            if ALLOCATION_GATE not in gates:
                self.ungated.setdefault(name, time.monotonic())
            if not self._live:
                continue
            if not pod.get("status", {}).get("resourceClaimStatuses"):
                self._ask("claim", pod)
            elif pod["spec"].get("nodeName"):
                self._ask("run", pod)
            elif not gates:
                self._ask("bind", pod)

    def _ask(self, what: str, pod: dict[str, Any]) -> None:
        key = (what, pod["metadata"]["name"])
        if key not in self._asked:
            self._asked.add(key)
            self._todo.put_nowait((what, pod, {}))

    async def _work(self, connection: Connection) -> None:
        while True:
            what, pod, _ = await self._todo.get()
            name = pod["metadata"]["name"]
            match what:
                case "claim":
                    await self._make_claim(connection, pod)
                case "bind":
                    await self._bind(connection, pod)
                case _:
                    status = fleet.running(pod["spec"]["nodeName"])
                    await _patch(connection, f"{fleet.PODS}/{name}/status", {"status": status})
                    self.running[name] = time.monotonic()

    async def _make_claim(self, connection: Connection, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        name = f"{meta['name']}-gpu-x"
        body = {
            "metadata": {
                "name": name,
                "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": fleet.CLAIM_SPEC,
        }
        await connection.send("POST", fleet.CLAIMS, json.dumps(body).encode())
        statuses = [{"name": "gpu", "resourceClaimName": name}]
        path = f"{fleet.PODS}/{meta['name']}/status"
        await _patch(connection, path, {"status": {"resourceClaimStatuses": statuses}})

    async def _bind(self, connection: Connection, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self._claims.get(name, {})
        if not claim.get("status", {}).get("allocation"):  # the watch of claims is behind
            claim = await connection.call("GET", f"{fleet.CLAIMS}/{name}")
        allocation = claim["status"]["allocation"]
        node = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        reserved = [{"resource": "pods", "name": meta["name"], "uid": meta["uid"]}]
        await _patch(connection, f"{fleet.CLAIMS}/{name}/status", {"status": {"reservedFor": reserved}})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": meta["name"]}, "target": target}
        await connection.send("POST", f"{fleet.PODS}/{meta['name']}/binding", json.dumps(body).encode())


async def _patch(connection: Connection, path: str, patch: dict[str, Any]) -> None:
    await connection.send("PATCH", path, json.dumps(patch).encode(), MERGE_PATCH)
