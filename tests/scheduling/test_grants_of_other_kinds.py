"""Grants for pods that demand more of their node than devices, beside the real kube-scheduler.

Some of it the controller looks at as well, for the rest its own choice would be a guess.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import builders
import pytest
from builders import request
from granting_beside import NAMESPACE, Beside, gpu, granting_beside

from dra_driver.api.meta import Resource
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.storage import BIND_COMPLETED, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, SELECTED_NODE
from dra_driver.nodefit.terms import MOST_PARTS
from dra_driver.sim.objects import MetaObject

pytestmark = [pytest.mark.slow, pytest.mark.long]

HOST = "kubernetes.io/hostname"
NODES = ("n0", "n1", "n2")
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", MetaObject, namespaced=False)


@contextlib.asynccontextmanager
async def provisioner(beside: Beside, refuses: str = "") -> AsyncIterator[None]:
    """Make the volume of a claim where kube-scheduler wants it, but on the node that is refused; bind it."""
    api = beside.world.api

    async def run() -> None:
        while True:
            for found in (await api.list(PERSISTENT_VOLUME_CLAIMS, NAMESPACE)).items:
                node = (found.metadata.annotations or {}).get(SELECTED_NODE, "")
                if not node or found.spec.volume_name:
                    continue
                name = found.metadata.name
                if node == refuses:
                    bare = {"metadata": {"annotations": {SELECTED_NODE: None}}}
                    await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, bare, NAMESPACE)
                    continue
                common = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
                terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}]
                reference = {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name}
                volume = {
                    "capacity": {"storage": "1Gi"},
                    "csi": {"driver": "disks.example.com", "volumeHandle": name},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
                    "claimRef": {**reference, "uid": found.metadata.uid},
                    **common,
                }
                body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
                await api.create(PERSISTENT_VOLUMES, {**body, "spec": volume})
                bound = {"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": name}}
                await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, bound, NAMESPACE)
                phase = {"status": {"phase": "Bound"}}
                await api.merge_patch(PERSISTENT_VOLUME_CLAIMS, name, phase, NAMESPACE, subresource="status")
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def volume_claim(beside: Beside, name: str) -> None:
    """Make a claim for a volume that is made where its pod goes."""
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    body["spec"] = {**asked, "storageClassName": "late"}
    await beside.world.api.create(PERSISTENT_VOLUME_CLAIMS, body, NAMESPACE)


async def asks(
    beside: Beside, name: str, *, extended: bool = False, **spec: Any
) -> frozenset[tuple[str, str]]:
    """Make a pod with a claim for a GPU, or with an extended resource; return what was granted for it."""
    since = asyncio.get_running_loop().time()
    if extended:
        await beside.pod(name, amount=1, **spec)
    else:
        body = builders.claim(name, request("gpu", "whole"), namespace=NAMESPACE)
        await beside.world.api.create(RESOURCE_CLAIMS, body)
        await beside.pod(name, name, **spec)
    await beside.bound(name)
    granted = frozenset(device for device, at in beside.seen.granted_at.items() if at >= since)
    print(f"{name}: bound {beside.seconds_to_bind(name):.3f} s after the grant; {sorted(granted)}")
    assert beside.seen.has(name) <= granted
    await beside.back()
    return granted


def test_pods_of_which_kube_scheduler_alone_knows_the_node() -> None:
    async def scenario(beside: Beside) -> None:
        for node in NODES:
            await beside.node(node, gpu(0))
        labels = {"labels": {"app": "web"}}
        await beside.world.pod("resident", gated=False, metadata=labels, nodeName="n0")
        async with beside.controller():
            await beside.published(*NODES)
            await asyncio.sleep(8.0)
            term = {
                "labelSelector": {"matchLabels": {"app": "web"}},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "topologyKey": HOST,
            }
            apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
            await asks(beside, "apart", affinity=apart)
            assert {node for node, _ in beside.seen.has("apart")} <= {"n1", "n2"}
            meta = {"metadata": {"name": "late"}, "provisioner": "disks.example.com"}
            await beside.world.api.create(
                CLASSES,
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "volumeBindingMode": "WaitForFirstConsumer",
                    **meta,
                },
            )
            async with provisioner(beside, refuses="n0"):
                await volume_claim(beside, "data")
                await asks(beside, "volume", volume="data")
            # kube-scheduler looks only every second whether a volume is there.
            async with provisioner(beside):
                await volume_claim(beside, "more")
                await asks(beside, "volume-at-once", volume="more")
            await beside.all_is_ours(3)

    run(scenario)


def spread(app: str, *more: str) -> dict[str, Any]:
    """Return what has pods of an application spread over nodes; there are none of ``more``."""
    chosen = {"key": "app", "operator": "In", "values": [app, *more]}
    constraint = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [chosen]},
    }
    return {"metadata": {"labels": {"app": app}}, "topologySpreadConstraints": [constraint]}


def test_pods_that_are_spread_over_nodes() -> None:
    async def scenario(beside: Beside) -> None:
        for node in NODES:
            await beside.node(node, gpu(0), gpu(1))
        # More than the controller looks at.
        long = [f"none-{i}" for i in range(MOST_PARTS)]
        residents = {"web": ("n0", "n1"), "batch": ("n0", "n0", "n2")}
        for app, nodes in residents.items():
            for i, node in enumerate(nodes):
                labels = {"labels": {"app": app}}
                await beside.world.pod(f"{app}-{i}", gated=False, metadata=labels, nodeName=node)
        async with beside.controller():
            await beside.published(*NODES)
            await asyncio.sleep(8.0)
            # It goes where there are none, and each of the next ones to another node.
            left = set(NODES)
            granted = await asks(beside, "spread", extended=True, **spread("web"))
            assert {node for node, _ in granted} == {"n2"}
            for i in range(len(NODES)):
                granted = await asks(beside, f"spread-{i}", extended=True, **spread("web"))
                assert len({node for node, _ in granted}) == 1
                left -= {node for node, _ in granted}
            assert not left
            granted = await asks(beside, "long", **spread("batch", *long))
            assert len({node for node, _ in granted}) > 1
            assert {node for node, _ in beside.seen.has("long")} == {"n1"}

    run(scenario)


def run(scenario: Callable[[Beside], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(290), granting_beside("real") as beside:
            await scenario(beside)

    asyncio.run(main())
