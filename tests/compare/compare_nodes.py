"""Nodes that are objects only: their devices, and a stand-in for the kubelets that report on pods."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import builders
import msgspec
from compare_plane import Plane, until

from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS, Pod
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.discovery.registry import open_backend
from dra_driver.errors import ApiError
from dra_driver.kube import Handler, Informer, KubeApi

__all__ = ["make_nodes", "side_by_side", "standing_in"]

T = TypeVar("T")

_PROFILE = "dgx-h100"
_AMOUNTS = {"cpu": "192", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "1000Gi"}
_AT_ONCE = 16
# At least; and for each node, where there are many.
_PUBLISHED_SECONDS, _NODE_SECONDS = 120.0, 1.0


async def side_by_side(job: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Do a job for each of these, some at a time."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await job(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


def _devices(number: int) -> str:
    backend = open_backend(
        f"simulated={_PROFILE}", sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="x"
    )
    try:
        devices = [found.device for found in backend.discover()][:number]
        # Links lead to GPUs that are not there where there are fewer.
        return codec.encode([msgspec.structs.replace(d, links=()) for d in devices]).decode()
    finally:
        backend.close()


async def make_nodes(plane: Plane, number: int, gpus: int, *, partitions: bool, ours: bool) -> None:
    """Make nodes of H100 and have their slices published.

    Args:
        plane: where.
        number: of nodes.
        gpus: of each, at most eight.
        partitions: whether the GPUs are published with all their partitions (MIG).
        ours: whether the controller allocates. Otherwise it only publishes, and ends: kube-scheduler is
            alone.
    """
    text = _devices(gpus)
    if partitions:
        spec = {"partitions": {"profiles": ["*"]}}
        meta = {"name": "partitions"}
        body = {
            "apiVersion": DEVICE_POLICIES.api_version,
            "kind": "DevicePolicy",
            "metadata": meta,
            "spec": spec,
        }
        await plane.api.create(DEVICE_POLICIES, body)

    async def one(i: int) -> None:
        api, name = plane.api, f"node-{i:03}"
        node = await api.create(NODES, builders.node(name))
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "message": ""}
        status = {"allocatable": _AMOUNTS, "capacity": _AMOUNTS, "conditions": [ready]}
        await api.merge_patch(NODES, name, {"status": status}, subresource="status")
        # Admission taints nodes that no kubelet has reported as ready.
        await api.merge_patch(NODES, name, {"spec": {"taints": None}})
        devices = json.loads(text.replace('"GPU-', f'"GPU-{i:08x}-'))
        uid = node.metadata.uid
        body = builders.inventory(name, *devices, driver=DEFAULT_DRIVER_NAME, node_uid=uid)
        status = body.pop("status")
        await api.create(DEVICE_INVENTORIES, body)
        await api.merge_patch(
            DEVICE_INVENTORIES, body["metadata"]["name"], {"status": status}, subresource="status"
        )

    await side_by_side(one, range(number))
    await plane.start_controller("controller" if ours else "scheduler")

    async def published() -> bool:
        found = (await plane.api.list(DEVICE_INVENTORIES)).items
        mode = plane.record if ours else "scheduler"
        done = [i for i in found if i.status.publication.allocator == mode]
        if len(done) < number:
            return False
        slices = (await plane.api.list(RESOURCE_SLICES)).items
        wanted = {s.spec.node_name for s in slices if s.spec.shared_counters or not partitions}
        return len(wanted) == number

    seconds = max(_PUBLISHED_SECONDS, number * _NODE_SECONDS)
    await until("the slices of all nodes", published, seconds, max(0.3, number / 500))
    if not ours:
        plane.stop_controller()


@contextlib.asynccontextmanager
async def standing_in(api: KubeApi, namespace: str) -> AsyncIterator[None]:
    """Stand in for kubelets: report bound pods of a namespace as ready, and end those that are deleted."""
    done: set[tuple[str, str]] = set()
    tasks: set[asyncio.Task[None]] = set()
    addresses = itertools.count(1)

    def saw(pod: Pod) -> None:
        if not pod.spec.node_name:
            return
        step = "end" if pod.metadata.deletion_timestamp else "run"
        if (key := (pod.metadata.uid, step)) in done:
            return
        done.add(key)
        task = asyncio.create_task(_end(api, pod) if step == "end" else _run(api, pod, next(addresses)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    informer = Informer(api, PODS, namespace=namespace)
    informer.add_handler(Handler(saw, lambda _, pod: saw(pod)))
    running = asyncio.create_task(informer.run())
    try:
        await informer.synced.wait()
        yield
    finally:
        running.cancel()
        await asyncio.wait({running, *tasks})


async def _run(api: KubeApi, pod: Pod, number: int) -> None:
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    status = {
        "phase": "Running",
        "podIP": f"10.244.{number // 256}.{number % 256}",
        "conditions": [{"type": kind, "status": "True"} for kind in kinds],
    }
    meta = {"uid": pod.metadata.uid}
    with contextlib.suppress(ApiError):  # it is gone
        await api.merge_patch(
            PODS,
            pod.metadata.name,
            {"metadata": meta, "status": status},
            pod.metadata.namespace,
            subresource="status",
        )


async def _end(api: KubeApi, pod: Pod) -> None:
    with contextlib.suppress(ApiError):
        await api.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)
