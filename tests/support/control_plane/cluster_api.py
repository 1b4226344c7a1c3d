"""Cluster API, cloud, kubelets and node agents, played by the test: MachineSets whose nodes are objects only.

The real cluster autoscaler's Cluster API provider reads MachineSets and Machines, writes the replicas of a
set, and marks the machines that are to go. Here every machine becomes a Node with an inventory of devices, as
its agent would write it, and pods that are bound run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from granting_beside import OURS, Beside
from scheduling_world import CUSTOM, NAMESPACE

from dra_driver.api.core import NODES, PODS
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.errors import NotFound

__all__ = ["NODE_GROUP", "ClusterApi"]

NODE_GROUP: Final = "node-group"
"""Label of nodes that names their MachineSet."""

_GROUP, _VERSION = "cluster.x-k8s.io", "v1beta1"
_PATH = f"/apis/{_GROUP}/{_VERSION}/namespaces/{NAMESPACE}"
_SET: Final = "set"
_MARK: Final = f"{_GROUP}/delete-machine"
_CAPACITY: Final = "capacity.cluster-autoscaler.kubernetes.io"
_LOOK_SECONDS: Final = 0.2
_BOOT_SECONDS: Final = 0.5
_READY: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "KubeletReady",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
}


def _definition(kind: str, *, scales: bool) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: dict[str, Any] = {
        "name": _VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    if scales:
        paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        version["subresources"] = {"scale": paths}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{_GROUP}"},
        "spec": {
            "group": _GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


class ClusterApi:
    """The machines of a cluster.

    Args:
        beside: the world that they are in.

    Attributes:
        cut_off: pods that ran on a node when its machine was removed: nothing had moved them.
        most: of the machines of each set, what there was at a time.
    """

    def __init__(self, beside: Beside) -> None:
        self.cut_off: list[str] = []
        self.most: dict[str, int] = {}
        self._beside = beside
        self._api = beside.world.api
        self._devices: dict[str, Sequence[dict[str, Any]]] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._made = 0

    async def install(self) -> None:
        """Define the kinds."""
        for kind, scales in (("MachineSet", True), ("Machine", False)):
            await self._api.create(CUSTOM, _definition(kind, scales=scales))
        async with asyncio.timeout(30):
            while {"machinesets", "machines"} - set(await self._api.served(_GROUP, _VERSION)):
                await asyncio.sleep(0.1)

    async def machine_set(
        self,
        name: str,
        *devices: dict[str, Any],
        replicas: int = 1,
        least: int = 0,
        most: int = 10,
        labels: dict[str, str] | None = None,
        template: tuple[str, int] | None = None,
    ) -> None:
        """Make a set of machines.

        Args:
            name: of the set, and value of ``NODE_GROUP`` of its nodes.
            devices: that the agent of each node finds.
            replicas: with which it begins.
            least: of machines.
            most: of machines.
            labels: more of the nodes.
            template: driver and number of the devices that a node of a set without nodes is said to have; by
                default those of ours.
        """
        self._devices[name] = devices
        self._labels[name] = {NODE_GROUP: name, **(labels or {})}
        driver, number = template or (OURS, len(devices))
        capacity = {
            "cpu": "8",
            "memory": "32Gi",
            "ephemeral-disk": "10Gi",
            "labels": ",".join(f"{k}={v}" for k, v in self._labels[name].items()),
            "dra-driver": driver,
            "gpu-count": str(number),
        }
        sizes = {"min": least, "max": most}
        annotations = {f"{_CAPACITY}/{key}": value for key, value in capacity.items()}
        annotations |= {
            f"{_GROUP}/cluster-api-autoscaler-node-group-{key}-size": str(size) for key, size in sizes.items()
        }
        body = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "MachineSet",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "clusterName": "test",
                "replicas": replicas,
                "selector": {"matchLabels": {_SET: name}},
                "template": {"spec": {"clusterName": "test"}},
            },
        }
        await self._api._call("POST", f"{_PATH}/machinesets", body=body)

    async def _list(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await self._api._call("GET", f"{_PATH}/{plural}"))["items"]
        return found

    async def nodes(self, machine_set: str) -> list[str]:
        """Return the nodes of a set, the oldest first."""
        machines = await self._list("machines")
        mine = [m["metadata"]["name"] for m in machines if m["metadata"]["labels"][_SET] == machine_set]
        return sorted(mine)

    async def replicas(self, machine_set: str) -> int:
        """Return how many machines of a set are wanted."""
        found = json.loads(await self._api._call("GET", f"{_PATH}/machinesets/{machine_set}"))
        return int(found["spec"]["replicas"])

    # --- machines -------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Make and remove machines until the block ends."""
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(work()) for work in (self._keep_machines, self._run_pods)]
            try:
                yield
            finally:
                for task in working:
                    task.cancel()

    async def _keep_machines(self) -> None:
        while True:
            machines = await self._list("machines")
            for one in await self._list("machinesets"):
                name = one["metadata"]["name"]
                mine = [m for m in machines if m["metadata"]["labels"][_SET] == name]
                wanted = int(one["spec"]["replicas"])
                self.most[name] = max(self.most.get(name, 0), wanted)
                if len(mine) < wanted:
                    await asyncio.sleep(_BOOT_SECONDS)
                    async with asyncio.TaskGroup() as tasks:
                        for _ in range(wanted - len(mine)):
                            tasks.create_task(self._add(name))
                marked = [m for m in mine if _MARK in m["metadata"].get("annotations", {})]
                for machine in marked[: max(0, len(mine) - wanted)]:
                    await self._remove(machine["metadata"]["name"])
            await asyncio.sleep(_LOOK_SECONDS)

    async def _add(self, machine_set: str) -> None:
        self._made += 1
        name, provider = f"{machine_set}-{self._made:03}", f"test:///{machine_set}-{self._made:03}"
        await self._beside.node(name, *self._devices[machine_set])
        annotations = {f"{_GROUP}/machine": name, f"{_GROUP}/cluster-namespace": NAMESPACE}
        metadata = {"labels": self._labels[machine_set], "annotations": annotations}
        about = {"metadata": metadata, "spec": {"providerID": provider}}
        await self._api.merge_patch(NODES, name, about)
        await self._api.merge_patch(NODES, name, {"status": {"conditions": [_READY]}}, subresource="status")
        owner = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "MachineSet",
            "name": machine_set,
            "uid": f"uid-{machine_set}",
        }
        body = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "Machine",
            "metadata": {"name": name, "labels": {_SET: machine_set}, "ownerReferences": [owner]},
            "spec": {"clusterName": "test", "providerID": provider},
            "status": {"phase": "Running", "nodeRef": {"kind": "Node", "name": name}},
        }
        await self._api._call("POST", f"{_PATH}/machines", body=body)

    async def _remove(self, name: str) -> None:
        for pod in (await self._api.list(PODS, NAMESPACE)).items:
            if pod.spec.node_name == name:
                self.cut_off.append(f"{pod.metadata.name} on {name}")
        await self._api._call("DELETE", f"{_PATH}/machines/{name}")
        for one in (await self._api.list(RESOURCE_SLICES)).items:
            if one.spec.node_name == name:
                with contextlib.suppress(NotFound):
                    await self._api.delete(RESOURCE_SLICES, one.metadata.name)
        with contextlib.suppress(NotFound):
            await self._api.delete(DEVICE_INVENTORIES, f"{name}.{OURS}")
        with contextlib.suppress(NotFound):
            await self._api.delete(NODES, name)

    async def _run_pods(self) -> None:
        """Do as kubelets: pods that are bound run; those that are to be deleted go."""
        running = {"status": {"phase": "Running"}}
        while True:
            for pod in (await self._api.list(PODS, NAMESPACE)).items:
                with contextlib.suppress(NotFound):
                    if pod.spec.node_name and pod.metadata.deletion_timestamp:
                        name = pod.metadata.name
                        await self._api.delete(PODS, name, NAMESPACE, grace_period_seconds=0)
                    elif pod.spec.node_name and pod.status.phase == "Pending":
                        await self._api.merge_patch(
                            PODS, pod.metadata.name, running, NAMESPACE, subresource="status"
                        )
            await asyncio.sleep(_LOOK_SECONDS)
